"""Compiles every kernel of chapters 10c and 10d as their wrappers launch it, for GPUs that need not be there, and lints the PTX.

    python gpu_compile.py [ARCH …] [--quick] [--fusion]   # a line per kernel and architecture; exit 1 if one breaks a rule

--quick: one launch of each kernel; --fusion: with contraction on, to see that the rules notice it.
"""
import re, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import alphabook.gpu as gpu, alphabook.gpu_hybrid as hybrid
from alphabook.elementary import rope_steps

TYPES = {torch.float32: '*fp32', torch.float16: '*fp16', torch.int64: '*i64', torch.int32: '*i32', torch.int16: '*i16', torch.int8: '*i8', torch.uint8: '*u8'}


def recorded(calls) -> list:
    "What the wrappers would launch: (kernel, args, warps, constants), nothing is run."
    found = []
    def record(kernel, grid, *args, warps=4, **constants): found.append((kernel, args, warps, constants))
    gpu.launch = hybrid.launch = record
    calls()
    return found


def source(kernel, args, constants):
    "Kernel and types as Triton's launcher would specialize them."
    names, signature, constexprs, attrs = kernel.arg_names, {}, dict(constants), {}
    for i, (name, a) in enumerate(zip(names, args)):
        if isinstance(a, torch.Tensor): signature[name], attrs[(i,)] = TYPES[a.dtype], [['tt.divisibility', 16]]
        elif isinstance(a, float): signature[name] = 'fp32'
        elif a == 1: constexprs[name] = 1
        else:
            signature[name] = 'i32' if abs(a) < 2**31 else 'i64'
            if a % 16 == 0: attrs[(i,)] = [['tt.divisibility', 16]]
    return ASTSource(kernel, {n: signature.get(n, 'constexpr') for n in names}, constexprs=constexprs, attrs=attrs)


def compiled(kernel, args, warps, constants, arch, fusion=False):
    "The kernel for one architecture, with PDL where there is such a thing."
    src = source(kernel, args, dict(constants, PDL=arch >= 90))
    return triton.compile(src, target=GPUTarget('cuda', arch, 32), options=dict(num_warps=warps, enable_fp_fusion=fusion))


def faults(asm) -> list:
    "What the contract forbids in a kernel's PTX."
    ptx, found = asm['ptx'], []
    for word in ('.approx', '.ftz', '.full', '.f64'):
        if re.search(rf'^\s+(?:@%p\d+\s+)?[a-z]+\S*{re.escape(word)}', ptx, re.M): found.append(f'has {word}')
    for op in ('add', 'sub', 'mul', 'div', 'sqrt'):
        if re.search(rf'^\s+(?:@%p\d+\s+)?{op}\.f32', ptx, re.M): found.append(f'{op}.f32 without .rn: may be contracted')
    written = sum(int(n or 1) for n in re.findall(r'call [^@]*@llvm\.fma\.(?:v(\d+))?f32', asm['llir']))
    there = len(re.findall(r'fma\.rn\.f32', ptx))
    if there > written: found.append(f'{there} fma.rn.f32, {written} written')
    return found


def calls():
    "Every wrapper at the shapes of real models and some odd ones."
    rand, ints = torch.empty, lambda *shape: torch.zeros(shape, dtype=torch.int64)
    for n in (80, 2048, 5120):
        x = rand(2, n)
        gpu.rms_norm(x, rand(n), 1e-6)
        gpu.add_norm(x, x, rand(n), 1e-6)
    x = rand(2, 300)
    for act in ('silu', 'gelu', 'swiglu_oai'): gpu.gated(x, x, act)
    gpu.softcap(x, 30.0); gpu.add(x, x); gpu.scale(x, 2.0); hybrid.sigmoid_gate(x, x[:, :1])
    for (H, KV, D, rope), style, norm, bias in (((32, 8, 128, 128), 'neox', True, False), ((16, 2, 256, 64), 'neox', True, False),
                                                ((9, 3, 64, 64), 'norm', False, True), ((6, 2, 40, 40), 'neox', True, False)):
        keys, values = (t[0] for t in gpu.kv_tables(1, 256, KV, D, 'cpu'))
        angles = gpu.rope_angles(ints(3), gpu.load_steps(rope_steps(1e6, rope), 'cpu'))
        q = gpu.heads(rand(3, H, D), rand(3, KV, D), rand(3, KV, D), angles, ints(3), keys, values, (rand(D), rand(D)) if norm else None, 1e-6,
                      style, (rand(H*D), rand(KV*D), rand(KV*D)) if bias else None)
        for W in (1, 3): gpu.attention(gpu.pack_queries(rand(W, H, D), KV), keys, values, ints(W), H, 0, 0.1, gate=rand(W, H, 2*D)[..., D:])
        if 256 % D == 0: gpu.attention(q, keys, values, ints(3), H, 0, 0.1, quantized=True)
        gpu.attention(q, keys, values, ints(3), H, 128, 0.1, rand(H), chosen=torch.zeros((3, 64), dtype=torch.uint8), block=4)
    for q, scale, offset in ((torch.int8, rand(9, 4), rand(9, 4)), (torch.int8, rand(9, 4), None), (torch.int16, None, None), (torch.float16, None, None)):
        gpu.embed(gpu.Rows(torch.zeros((9, 128), dtype=q), scale, offset), ints(2))
    for k in (1, 20):
        ids, values, _, _ = gpu.top_k(rand(2, 150000), k)
        gpu.sample(ids, values, ints(2), gpu.sampling_buffers(device='cpu'))
    for E, k in ((256, 8), (300, 10)):
        hybrid.route(rand(2, E), k, bias=rand(E)); hybrid.route(rand(2, E), k, False, 2.5)
    y = rand(2, 8, 2048)
    hybrid.combine(y, rand(2, 8)); hybrid.combine(y, rand(2, 8), rand(2, 2048), rand(2, 1), rand(2, 2048))
    for K, V, D in ((16, 32, 128), (2, 4, 64), (2, 4, 20)):
        C, turn = (2*K + V)*D, torch.zeros(1, dtype=torch.int32)
        args = hybrid.gdn_inputs(rand(3, C), rand(2, C), rand(C, 4), rand(2, 1, V), rand(2, 1, V), rand(V), rand(V), K)
        hybrid.gdn(rand(V, D, D), *args); hybrid.gdn(rand(2, V, D, D), *args, turn=turn)
        hybrid.replay(rand(2, 3, V, D, D), rand(3, 2, K, D), rand(3, 2, V, D), rand(3, 2, V), rand(3, 2, V), turn, turn)
        hybrid.commit(rand(3, 3, C), rand(3, 2, C), turn, turn)
        hybrid.gated_norm(rand(2, V, D), rand(D), 1e-6, rand(2, V, D), 'silu')
    hybrid.conv_silu(rand(9, 96), rand(2, 96), rand(96, 4), 3)


def distinct(found, one_each=False) -> list:
    "One of each kind of launch, or the first launch of each kernel."
    if one_each: return list({f[0].__name__: f for f in reversed(found)}.values())
    kinds = {}
    for kernel, args, warps, constants in found:
        types = tuple(str(a.dtype) if isinstance(a, torch.Tensor) else (type(a).__name__, a == 1) for a in args)
        kinds.setdefault((kernel.__name__, types, warps, tuple(sorted(constants.items()))), (kernel, args, warps, constants))
    return list(kinds.values())


if __name__ == '__main__':
    bad, options = 0, [a for a in sys.argv[1:] if a.startswith('-')]
    for arch in map(int, [a for a in sys.argv[1:] if a not in options] or (80, 86, 89, 90, 120)):
        for kernel, args, warps, constants in distinct(recorded(calls), '--quick' in options):
            c = compiled(kernel, args, warps, constants, arch, '--fusion' in options)
            found = faults(c.asm)
            bad += bool(found)
            print(f'sm_{arch} {kernel.__name__} {constants} shared {c.metadata.shared}', *found, flush=True)
    sys.exit(bad > 0)
