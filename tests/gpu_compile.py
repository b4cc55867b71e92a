"""Compiles every kernel of the GPU chapters as their wrappers launch it, for GPUs that need not be there, and lints the PTX.

    python gpu_compile.py [ARCH …] [--quick] [--fusion] [--regs] [--blocks]   # a line per kernel and architecture; exit 1 if one breaks a rule

--blocks: attention over keys and values in blocks, too; --quick: one launch of each kernel; --fusion: with contraction on, to see that the rules notice it; --regs: registers and
spills of each kernel, as ptxas says them (it comes with Triton).
"""
import re, subprocess, sys, tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import numpy as np
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

import alphabook.gpu_functions as functions
from alphabook import (doorbell, resolved, streaming, gpu_block, gpu_copying, gpu_acts as acts, gpu_attention as attention, gpu_experts as experts, gpu_heads as heads, gpu_hybrid as hybrid,
                       gpu_matrices as matrices, gpu_mtp as mtp, gpu_norms as norms, gpu_products as products, gpu_tall as tall,
                       gpu_rounds as rounds, gpu_sampling as sampling, gpu_streams as streams, gpu_together as together, gpu_tokens as tokens, gpu_verdicts as verdicts)
from alphabook.elementary import rope_steps
from alphabook.gpu_weights import packing

MODULES = functions, norms, acts, tall, products, experts, matrices, heads, attention, tokens, hybrid, streams, sampling, rounds, verdicts, together, mtp, doorbell, resolved, streaming, gpu_block, gpu_copying
TYPES = {torch.float32: '*fp32', torch.float16: '*fp16', torch.int64: '*i64', torch.int32: '*i32', torch.int16: '*i16', torch.int8: '*i8', torch.uint8: '*u8'}


def recorded(calls) -> list:
    "What the wrappers would launch: (kernel, args, warps, stages, constants), nothing is run."
    functions.noted = []
    try: calls()
    finally: found, functions.noted = functions.noted, None
    return [(kernel, args, warps, stages, constants) for kernel, _, args, warps, stages, constants in found]


def source(kernel, args, constants):
    "Kernel and types as Triton's launcher would specialize them."
    names, signature, constexprs, attrs = kernel.arg_names, {}, dict(constants), {}
    given = dict(zip(names, args)) | {n: constexprs.pop(n) for n in constants if n in names and not kernel.params[names.index(n)].is_constexpr}
    for name, a in given.items():
        i = names.index(name)
        plain = kernel.params[i].do_not_specialize
        if isinstance(a, torch.Tensor): signature[name], attrs[(i,)] = TYPES[a.dtype], [['tt.divisibility', 16]]
        elif isinstance(a, float): signature[name] = 'fp32'
        elif a == 1 and not plain: constexprs[name] = 1
        else:
            signature[name] = 'i32' if abs(a) < 2**31 else 'i64'
            if a % 16 == 0 and not plain: attrs[(i,)] = [['tt.divisibility', 16]]
    return (GluonASTSource if kernel.is_gluon() else ASTSource)(kernel, {n: signature.get(n, 'constexpr') for n in names}, constexprs=constexprs, attrs=attrs)


def compiled(kernel, args, warps, stages, constants, arch, fusion=False):
    "The kernel for one architecture, with PDL where there is such a thing."
    src = source(kernel, args, dict(constants, PDL=arch >= 90))
    options = dict(num_warps=warps, enable_fp_fusion=fusion, **(dict(num_stages=stages) if stages else {}))
    return triton.compile(src, target=GPUTarget('cuda', arch, 32), options=options)


def registers(asm, arch) -> str:
    "What ptxas says of a kernel's registers and spills."
    name = f'sm_{arch}a' if arch >= 90 else f'sm_{arch}'
    with tempfile.NamedTemporaryFile('w', suffix='.ptx') as f:
        f.write(asm['ptx']); f.flush()
        tool = next(Path(triton.__file__).parent.glob(f'backends/nvidia/bin/ptxas{"-blackwell" if arch >= 100 else ""}'))
        run = subprocess.run([tool, '-v', '--fmad=false', f'--gpu-name={name}', f.name, '-o', '/dev/null'], capture_output=True, text=True)
    return ' '.join(re.findall(r'Used \d+ registers|\d+ bytes spill stores|\d+ bytes spill loads', run.stderr)) or run.stderr[-300:]


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


def product_calls(types=('Q4_K', 'Q6_K', 'Q8_0', 'IQ4_XS', 'Q4_1')):
    "Products of several types, short and long rows, and all widths that have a kernel of their own."
    rand = torch.empty
    def tiles(T, NB, type): return torch.empty((T, NB, packing(type).words), dtype=torch.int32)
    for type in types:
        for T, NB in ((8, 8), (8, 16), (600, 20)):
            w = products.Matrix(tiles(T, NB, type), type, T*16, NB*256)
            for W in (1, 8, 16, 32, 64) if type == "Q4_K" else (1, 16, 64):
                a = acts.quantize(rand(W, NB*256))
                products.product(w, a, add=rand(W, T*16))
        w = experts.Experts(tiles(8*4, 8, type).unflatten(0, (4, 8)), type, 128, 2048)
        for W in (1, 8, 64):
            tasks = experts.group_rows(torch.zeros(W*8, dtype=torch.int32), 4)
            experts.expert_product(w, acts.quantize(rand(W, 2048)), tasks, per=8)
        a, m = acts.quantize(rand(256, 2048)), products.Matrix(tiles(8, 8, type), type, 128, 2048)
        for NC in (32, 64): products.product(m, a, how=products.tall_plan(NC))
        for NC in (8, 16): experts.expert_product(w, a, tasks, per=8, how=products.tall_plan(NC))
        matrices.embed(products.Matrix(tiles(4, 2, type), type, 64, 512), torch.zeros(2, dtype=torch.int64))
    x, w = rand(3, 600), rand(600)
    acts.norm_quantize(x, w, 1e-6, keep=True); acts.norm_quantize(rand(64, 4096), rand(4096), 1e-6)
    for act in ('silu', 'gelu', 'swiglu_oai'): acts.gated_quantize(x, x, act)
    for type, dtype in (('F32', torch.float32), ('F16', torch.float16), ('BF16', torch.int16)):
        w = products.Matrix(rand(128, 2048).to(dtype), type, 128, 2048)
        w.type == 'BF16' or matrices.matmul(w, rand(3, 2048), bias=rand(128))
        matrices.embed(w, torch.zeros(2, dtype=torch.int64))
        matrices.expert_matmul(experts.Experts(rand(4, 128, 2048).to(dtype), type, 128, 2048), rand(2, 2048), torch.zeros(4, dtype=torch.int32), 2)


def calls():
    "Every wrapper at the shapes of real models and some odd ones."
    rand, ints = torch.empty, lambda *shape: torch.zeros(shape, dtype=torch.int64)
    for n in (80, 2048, 5120):
        x = rand(2, n)
        norms.rms_norm(x, rand(n), 1e-6)
        norms.add_norm(x, x, rand(n), 1e-6)
    x = rand(2, 300)
    for act in ('silu', 'gelu', 'swiglu_oai'): functions.gated(x, x, act)
    functions.softcap(x, 30.0); functions.add(x, x); functions.scale(x, 2.0); hybrid.sigmoid_gate(x, x[:, :1])
    for (H, KV, D, rope), style, norm, bias in (((32, 8, 128, 128), 'neox', True, False), ((16, 2, 256, 64), 'neox', True, False),
                                                ((9, 3, 64, 64), 'norm', False, True), ((6, 2, 40, 40), 'neox', True, False)):
        keys, values = (t[0] for t in heads.kv_tables(1, 256, KV, D, 'cpu'))
        angles = heads.rope_angles(ints(3), heads.load_steps(rope_steps(1e6, rope), 'cpu'))
        q = heads.heads(rand(3, H, D), rand(3, KV, D), rand(3, KV, D), angles, ints(3), keys, values, (rand(D), rand(D)) if norm else None, 1e-6,
                        style, (rand(H*D), rand(KV*D), rand(KV*D)) if bias else None)
        for W in (1, 3):
            attention.attention(heads.pack_queries(rand(W, H, D), KV), keys, values, ints(W), H, 0, 0.1, gate=rand(W, H, 2*D)[..., D:])
        if 256 % D == 0: attention.attention(q, keys, values, ints(3), H, 0, 0.1, quantized=True)
        attention.attention(q, keys, values, ints(3), H, 128, 0.1, rand(H), chosen=torch.zeros((3, 64), dtype=torch.uint8), block=4)
    for D, kinds in ((128, ('q8_0', 'q4_0')), (256, ('q4_0', 'q8_0'))) if '--blocks' in sys.argv else ():
        keys, values = (t[0] for t in heads.kv_tables(1, 256, 2, D, 'cpu', kinds))
        q = heads.heads(rand(1, 8, D), rand(1, 2, D), rand(1, 2, D), None, ints(1), keys, values)
        attention.attention(q, keys, values, ints(1), 8, 0, 0.1)
    for k in (1, 20):
        ids, values, _, _ = tokens.top_k(rand(2, 150000), k)
        tokens.sample(ids, values, ints(2), tokens.sampling_buffers(device='cpu'))
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
        if 256 % D == 0: hybrid.gated_norm_quantize(rand(2, V, D), rand(D), 1e-6, rand(2, V, D), 'silu')
    hybrid.conv_silu(rand(9, 96), rand(2, 96), rand(96, 4), 3)
    stream_calls(rand, ints)
    sampling.draw(rand(2, 150000), ints(2), tokens.sampling_buffers(device='cpu'))
    sampling.draw(rand(2, 150000), ints(2), tokens.sampling_buffers(device='cpu'), share=False)
    i32 = torch.zeros(1, dtype=torch.int32)
    functions.launch(rounds.k_advance, (1,), ints(1), i32, ints(1), ints(1), ints(9), i32, warps=1)
    draft_calls(rand, ints, i32); block_calls(rand, ints)
    store_calls(rand, ints, i32)
    seat_calls(rand, ints)


def store_calls(rand, ints, i32):
    "Rings, and rounds whose experts are here and there."
    from types import SimpleNamespace as Some
    functions.launch(doorbell.k_ring, (1,), ints(40), ints(1), 5, warps=1)
    functions.launch(doorbell.k_wait, (1,), ints(40), ints(1), i32, 1000, warps=1)
    n, k, E = 2048, 9, 256
    def int32(*shape): return torch.zeros(shape, dtype=torch.int32)
    log = torch.zeros((64, 40, 1 + 8*k), dtype=torch.int16)
    s = Some(box=Some(far=Some(board=ints(40), experts=ints(k), wanted=int32(64*k), rows=rand(64, n), answers=rand(64*k, n))), table=int32(40, E),
             rung=ints(2), log=log, notes=ints(3), cfg=Some(n_embd=n), cpu={0: None}, patience=1000, bank_of=[Some(owner=ints(9))]*2,
             program_for=lambda layer, W: 17)
    for W in (1, 4, 64):
        for layer in (0, 1):
            _, _, join = resolved.ExpertStore.resolve(s, Some(index=layer), Some(x=rand(W, n)), int32(W, k), None)
        join(rand(W, k, n)[:, :-1], rand(W, 8), rand(W, n), rand(W, 1), rand(W, n))
        join(rand(W, k, n), rand(W, 9))
    passes = Some(store=Some(passing=int32(40, E), bank_of=s.bank_of))
    streaming.Pass.resolve(passes, Some(index=1), None, int32(64, k), None)


def draft_calls(rand, ints, i32):
    "Verdicts of rounds of several widths, and a block's passes."
    from types import SimpleNamespace as Some
    for n in (256, 2048, 5120):
        rounds.keep_hidden(Some(model=Some(whole=Some(output_norm=rand(n)), cfg=Some(eps=1e-6)), hidden=rand(9, n).half()), rand(4, n), ints(4))
        own = Some(layers=[Some(nextn_enorm=rand(n), nextn_hnorm=rand(n))], cfg=Some(eps=1e-6))
        mtp.pairs(own, rand(4, n), rand(9, n).half(), ints(4)); mtp.pairs(own, rand(1, n), rand(1, n))
    round = Some(entry=ints(2, 1), ids=ints(1), positions=ints(1))
    d = Some(guesses=ints(2, mtp.DEPTH), n_ctx=512, one=round, min_p=rand(1), limit=ints(1))
    for n in (300, 248320): mtp.take_guess(d, rand(1, n), ints(1), 2)
    for W in (1, 4, 16):
        desk, r = verdicts.Desk('cpu'), Some(W=W, ids=ints(W), positions=ints(W))
        s = Some(desk=desk, said=ints(99), accepted=i32, drafts=d, round=lambda W: r)
        verdicts.write_verdict(s, r, ints(W), torch.zeros(W, dtype=torch.int32))
        mtp.enter_guesses(s, W - 1); mtp.follow(s, r, r, ints(W))
        for n_ctx in (512, 131072):
            s.n_ctx, s.copies = n_ctx, gpu_copying.Copies(Some(said=ints(9), n_ctx=n_ctx))
            gpu_copying.find_copy(s, W - 1)


def block_calls(rand, ints):
    "A block drafter's own kernels, at the sizes of published ones."
    from types import SimpleNamespace as Some
    for W, n in ((8, 5120), (16, 2048)):
        b = Some(guesses=ints(2, W - 1))
        gpu_block.enter_masks(Some(W=W, ids=ints(W), positions=ints(W), ends=ints(W)), ints(2), 248077)
        gpu_block.convolve(rand(W, n), rand(W, 2*2*n//64), rand(2, 2, n), 1)
        gpu_block.take_favourites(b, rand(W - 1, 248320))
        for R, k in ((256, 16), (64, 8)): gpu_block.walk(b, ints(W - 1, k), rand(W - 1, k), rand(W - 1, R), rand(1 + (W - 2)*k, R), rand((W - 1)*k, R))


def seat_calls(rand, ints):
    "Rows of several texts: one and two of each of four."
    from types import SimpleNamespace as Some
    for each in (1, 2):
        W, seats, turn, accepted = 4*each, heads.Seats(ints(4, 8), each), torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
        for H, KV, D, rope in ((32, 8, 128, 128), (16, 2, 256, 64)):
            keys, values = (t[0] for t in heads.kv_tables(1, 256, KV, D, 'cpu'))
            angles = heads.rope_angles(ints(W), heads.load_steps(rope_steps(1e6, rope), 'cpu'))
            q = heads.heads(rand(W, H, D), rand(W, KV, D), rand(W, KV, D), angles, ints(W), keys, values, (rand(D), rand(D)), 1e-6, seats=seats)
            attention.attention(q, keys, values, ints(W), H, 0, 0.1, quantized=True, seats=seats)
        K, V, D = 16, 32, 128
        C = (2*K + V)*D
        args = hybrid.gdn_inputs(rand(3, C), rand(W, C), rand(C, 4), rand(W, 1, V), rand(W, 1, V), rand(V), rand(V), K, seats=seats)
        hybrid.gdn(rand(2, V, D, D), *args, turn=turn, seats=seats)
        hybrid.replay(rand(2, 3, V, D, D), rand(3, W, K, D), rand(3, W, V, D), rand(3, W, V), rand(3, W, V), turn, accepted, seats=seats)
        hybrid.commit(rand(3, 3, C), rand(3, W, C), turn, accepted, seats)
        n = 2048
        rounds.keep_hidden(Some(model=Some(whole=Some(output_norm=rand(n)), cfg=Some(eps=1e-6)), hidden=rand(9, n).half()), rand(W, n), ints(W), seats=seats)
    functions.launch(together.k_step_on, (4,), ints(4), accepted, ints(4), ints(4), ints(4, together.ROOM + 1), ROOM=together.ROOM, warps=1)


def stream_calls(rand, ints):
    "The published size of qwen4exp."
    S, n, D = 4, 2560, 128
    x, angles = rand(2, S, n), (rand(2, 32), rand(2, 32))
    functions.bend(rand(2, 300), 4.0)
    streams.blend(rand(2, S*n), x); streams.write_streams(x, rand(2, n), rand(2, S))
    streams.write_index(rand(2, D), rand(4096, D), rand(1024, D), ints(2), rand(D), 1e-6, (rand(1024, 32), rand(1024, 32)), 4, 'neox')
    streams.choose_blocks(rand(2, 16*D), rand(1024, D), ints(2), rand(D), 1e-6, angles, 4, 2048, 'neox')
    streams.phrase_rows(ints(2), ints(2), ints(4096), (ints(3), ints(16), ints(16)), 0)
    streams.enter_phrases(x, rand(2, S*n), rand(2, n), (rand(S*n),)*3, rand(S*n, 4), rand(9, S*n), rand(2, S*n), 1e-6, 3)


def meant_for(kernel, arch) -> bool:
    "Gluon's kernels use `wgmma`, which is Hopper's alone."
    return arch == 90 or not getattr(kernel, 'is_gluon', bool)()


def defined(arch) -> set:
    "Names of an architecture's kernels: what a launch can start."
    return {name for m in MODULES for name in vars(m) if (name.startswith('k_') or name.endswith('_kernel')) and hasattr(vars(m)[name], 'arg_names')
            and 'PDL' in vars(m)[name].arg_names and meant_for(vars(m)[name], arch)}


def distinct(found, one_each=False) -> list:
    "One of each kind of launch, or the first launch of each kernel."
    if one_each: return list({f[0].__name__: f for f in reversed(found)}.values())
    kinds = {}
    for kernel, args, warps, stages, constants in found:
        types = tuple(str(a.dtype) if isinstance(a, torch.Tensor) else (type(a).__name__, a == 1) for a in args)
        kinds.setdefault((kernel.__name__, types, warps, stages, tuple(sorted(constants.items()))), (kernel, args, warps, stages, constants))
    return list(kinds.values())


if __name__ == '__main__':
    bad, options = 0, [a for a in sys.argv[1:] if a.startswith('-')]
    only = [a.removeprefix('--only=') for a in options if a.startswith('--only=')]
    found = distinct(recorded(lambda: (calls(), product_calls())), '--quick' in options)
    for arch in map(int, [a for a in sys.argv[1:] if a not in options] or (80, 86, 89, 90, 120)):
        for kernel, args, warps, stages, constants in found:
            if only and not any(o in kernel.__name__ for o in only) or not meant_for(kernel, arch): continue
            c = compiled(kernel, args, warps, stages, constants, arch, '--fusion' in options)
            wrong = faults(c.asm)
            bad += bool(wrong)
            regs = [registers(c.asm, arch)] if '--regs' in options else []
            print(f'sm_{arch} {kernel.__name__} {constants} warps {warps} shared {c.metadata.shared}', *regs, *wrong, flush=True)
    sys.exit(bad > 0)
