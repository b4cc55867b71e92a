"""The operations of chapters 10b to 10l on a GPU: bits against the numpy spec at real shapes, and microseconds.

    python gpu_ops.py check [GROUP …]      # one JSON line per comparison; groups run in processes of their own
    python gpu_ops.py time [GROUP …]       # CUDA graph replay, with and without PDL
    python gpu_ops.py all --out FOLDER     # both, as result files

Timing: a graph of as many launches over different buffers as exceed the L2 cache; median of 7 replays.
"""
import argparse, contextlib, functools, json, math, subprocess, sys, time
from pathlib import Path
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / 'alphabook').is_dir(): sys.path.insert(0, str(ROOT))
import alphabook.streams as spec
from alphabook import elementary, gpu_attention, gpu_functions, gpu_heads, gpu_hybrid, gpu_matrices, gpu_norms, gpu_tokens
from alphabook.blocks import decode, random_blocks
from alphabook.gpu_acts import Acts, quantize

SHAPES = {  # query heads, KV heads, head size, rope, gated
    '0.6b': (16, 8, 128, 128, False), '8b': (32, 8, 128, 128, False), '30b-a3b': (32, 4, 128, 128, False),
    '27b': (24, 4, 256, 64, True), '35b-a3b': (16, 2, 256, 64, True), 'gpt-oss-20b': (64, 8, 64, 64, False)}
NETS = {'35b-a3b': (16, 32, 128), '27b': (16, 48, 128)}           # key heads, value heads, size
ROWS, DEADLINE = [], [math.inf]


def row(**fields):
    ROWS.append(fields)
    print(json.dumps(fields), flush=True)


def to(*arrays):
    t = [torch.from_numpy(np.ascontiguousarray(a)).cuda() for a in arrays]
    return t[0] if len(t) == 1 else t


def normal(rng, *shape): return rng.normal(size=shape).astype(np.float32)


def compare(arm, mine, want, **fields):
    "How many values differ in any bit."
    if isinstance(mine, Acts): mine, want = acts_parts(mine), acts_parts(want)
    mine, want = (x if isinstance(x, tuple) else (x,) for x in (mine, want))
    total = wrong = 0
    for m, w in zip(mine, want, strict=True):
        m, w = m.cpu().numpy(), w.cpu().numpy() if isinstance(w, torch.Tensor) else np.asarray(w)
        assert m.shape == w.shape and m.dtype.itemsize == w.dtype.itemsize, (arm, m.shape, w.shape, m.dtype, w.dtype)
        kind = {2: np.int16, 4: np.int32, 8: np.int64}[m.dtype.itemsize]
        total += m.size
        wrong += int((np.ascontiguousarray(m).view(kind) != np.ascontiguousarray(w).view(kind)).sum())
    row(arm=arm, unit='differing values', value=wrong, n=total, **fields)


# ---------------------------------------------------------------- bits
def acts_parts(x):
    "What of quantized activations belongs to their rows, as numpy arrays; and the same as tensors."
    used = -(-x.W//8)*8
    parts = x.q.view(-1, used, 64)[:, :x.W], x.a.view(-1, used)[:, :x.W], x.s.view(-1, used)[:, :x.W], x.d.view(-1, used)[:, :x.W]
    return tuple(p.to(torch.int32) if p.dtype == torch.int8 else p for p in parts)


def check_pointwise(rng):
    x = np.concatenate([normal(rng, 1 << 18)*s for s in (1e-3, 1, 30, 1e4)])
    bits = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, bits[np.isfinite(bits)], np.float32([0, -0.0, 86.5, -86.5, -86.6, 88.72283, 88.8, 1e-40, -1e-45])])
    y = normal(rng, len(x))
    with np.errstate(all='ignore'):
        for act in ('silu', 'gelu', 'swiglu_oai'):
            want = spec.gated(x, y, act)
            ok = ~np.isnan(want)
            compare(f'gated {act}', gpu_functions.gated(*to(x, y), act)[to(ok)], want[ok])
        compare('softcap', gpu_functions.softcap(to(x), 30.0), spec.softcap(x, 30.0))
        compare('sigmoid_gate', gpu_hybrid.sigmoid_gate(*to(y, x)), spec.sigmoid_gate(y, x))
    compare('add', gpu_functions.add(*to(x, y)), x + y)
    V = 1 << 16
    alpha, b, a, bias = normal(rng, 16, V)*12, normal(rng, 16, V)*12, -np.exp(normal(rng, V)), normal(rng, V)
    window, rows, conv = normal(rng, 3, 3*32), normal(rng, 2, 3*32), normal(rng, 3*32, 4)
    for i in range(0, V, 64):
        if i % 4096: continue
        s = slice(i, i + 64)
        decay = gpu_hybrid.gdn_inputs(*to(np.zeros((3, 66*32), np.float32), np.zeros((16, 66*32), np.float32), np.zeros((66*32, 4), np.float32)),
                                      *to(alpha[:, None, s], b[:, None, s], a[s], bias[s]), 1)[3:]
        compare('gates', decay, spec.gdn_gates(alpha[:, s], b[:, s], a[s], bias[s]))


def check_norms(rng):
    for W, n in ((1, 576), (8, 1024), (2, 2048), (64, 4096), (3, 5120), (2, 17408), (64, 128), (5, 80)):
        x, y, w = normal(rng, W, n)*np.exp(normal(rng, W, 1)*3), normal(rng, W, n), normal(rng, n)
        compare('rms_norm', gpu_norms.rms_norm(*to(x, w), 1e-6), spec.rms_norm(x, w, 1e-6), shape=[W, n])
        compare('add_norm', gpu_norms.add_norm(*to(x, y, w), 1e-6), (x + y, spec.rms_norm(x + y, w, 1e-6)), shape=[W, n])
    for W, D in ((8, 128), (64, 256)):
        o, w, z = normal(rng, W, 16, D), normal(rng, D), normal(rng, W, 16, D)
        for kind in ('silu', 'sigmoid'):
            compare(f'gated_norm {kind}', gpu_hybrid.gated_norm(*to(o, w), 1e-6, to(z), kind), spec.gated_norm(o, w, 1e-6, z, kind), shape=[W, 16, D])


def check_heads(rng):
    positions = np.concatenate([rng.integers(0, 1 << 40, 4000), [0, 1, 63, 64, 32767, 131071]])
    for theta, dim in ((1e7, 64), (1e6, 128), (1e4, 256)):
        steps = elementary.rope_steps(theta, dim)
        compare('rope_angles', gpu_heads.rope_angles(to(positions), gpu_heads.load_steps(steps, 'cuda')), elementary.rope_angles(positions, steps), shape=[len(positions), dim])
    for name, (H, KV, D, rope, gated) in SHAPES.items():
        for W in (1, 8) if 'head' in name else (1, 8, 64):
            at = np.arange(W) + 200
            angles = elementary.rope_angles(at, elementary.rope_steps(1e6, rope))
            wide, k, v = normal(rng, W, H, 2*D if gated else D), normal(rng, W, KV, D), normal(rng, W, KV, D)
            norms, keys, values = (normal(rng, D), normal(rng, D)), *(t[0] for t in gpu_heads.kv_tables(1, 300, KV, D))
            q = np.ascontiguousarray(wide[..., :D])
            mine = gpu_heads.heads(to(wide)[..., :D], *to(k, v), to(*angles), to(at), keys, values, to(*norms), 1e-6)
            want_q = spec.apply_rope(spec.rms_norm(q, norms[0], 1e-6), *angles, 'neox')
            want_k = spec.apply_rope(spec.rms_norm(k, norms[1], 1e-6), *angles, 'neox').astype(np.float16)
            compare('heads', (gpu_heads.unpack_queries(mine[..., :W*H//KV], W, D).contiguous(), gpu_heads.unpack_keys(keys, 300, D)[200:200 + W].contiguous(), values[:, 200:200 + W].transpose(0, 1).contiguous()),
                    (want_q, want_k, v.astype(np.float16)), shape=[name, W])


def tables(rng, n_ctx, KV, D):
    k, v = (normal(rng, n_ctx, KV, D).astype(np.float16) for _ in range(2))
    keys, values = (t[0] for t in gpu_heads.kv_tables(1, n_ctx, KV, D))
    keys.copy_(gpu_heads.pack_keys(to(k)))
    values[:, :n_ctx] = to(v).transpose(0, 1)
    return k, v, keys, values


CASES = [('8b', [511], 0, False), ('0.6b', [700, 701, 702, 703], 0, False), ('35b-a3b', list(range(505, 513)), 0, False), ('27b', [300, 301], 0, False),
         ('30b-a3b', [1000, 63, 64, 0], 0, False), ('gpt-oss-20b', [640, 641, 642], 128, True), ('gpt-oss-20b', [127, 128, 200], 128, True),
         ('head 96', [77, 130], 0, False), ('head 40', [77, 130], 50, False), ('8b', list(range(40, 104)), 0, False)]
SHAPES.update({'head 96': (6, 2, 96, 96, False), 'head 40': (6, 2, 40, 40, False)})


def check_attention(rng, i):
    name, positions, window, sink = CASES[i]
    H, KV, D, *_ = SHAPES[name]
    k, v, keys, values = tables(rng, max(positions) + 20, KV, D)
    q, sinks, gate = normal(rng, len(positions), H, D)*3, normal(rng, H), normal(rng, len(positions), H, D)
    want = spec.attention(q, k, v, positions, window, D**-.5, sinks if sink else None)
    args = gpu_heads.pack_queries(to(q), KV), keys, values, to(np.int64(positions)), H, window, D**-.5, to(sinks) if sink else None
    shape = [name, len(positions), max(positions) + 1]
    compare('attention', gpu_attention.attention(*args), want, shape=shape)
    compare('attention, gated', gpu_attention.attention(*args, gate=to(gate)), spec.sigmoid_gate(want, gate), shape=shape)
    if 256 % D == 0: compare('attention, quantized', gpu_attention.attention(*args, gate=to(gate), quantized=True), quantize(gpu_attention.attention(*args, gate=to(gate)).view(len(positions), -1)), shape=shape)
    alone = [gpu_attention.attention(gpu_heads.pack_queries(to(q[n:n + 1]), KV), keys, values, args[3][n:n + 1], *args[4:]) for n in range(len(positions))]
    compare('attention, row by row', torch.cat(alone), want, shape=shape)


def check_long(rng, i):
    "One row at position 32,767, alone and as one of four."
    H, KV, D, n = ((4, 1, 128, 32768), (8, 1, 256, 32768))[i]
    k, v, keys, values = tables(rng, n + 64, KV, D)
    q = normal(rng, 4, H, D)*3
    want = spec.attention(q[1:2], k, v, [n - 1], 0, D**-.5)
    def run(rows): return gpu_attention.attention(gpu_heads.pack_queries(to(q[rows]), KV), keys, values, to(np.arange(n - 2, n + 2)[rows]), H, 0, D**-.5)
    compare('attention', run(slice(1, 2)), want, shape=[f'{H}/{KV} heads of {D}', 1, n])
    compare('attention, row of four', run(slice(0, 4))[1:2], want, shape=[f'{H}/{KV} heads of {D}', 4, n])


def check_hybrid(rng):
    for W, E, k in ((1, 128, 8), (8, 256, 8), (64, 512, 10), (64, 64, 6)):
        for logits in (normal(rng, W, E)*3, rng.integers(-2, 3, (W, E)).astype(np.float32)*rng.choice(np.float32([1, -0.0]), (W, E))):
            for renormalise, scale in ((True, 1.0), (False, 2.5)):
                compare('route', gpu_hybrid.route(to(logits), k, renormalise, scale), spec.route(logits, k, renormalise, scale), shape=[W, E, k])
    for W, k, n in ((1, 8, 2048), (8, 8, 2048), (64, 10, 2560)):
        y, w, shared, gate, x = normal(rng, W, k, n), normal(rng, W, k), normal(rng, W, n), normal(rng, W, 1), normal(rng, W, n)
        compare('combine', gpu_hybrid.combine(*to(y, w, shared, gate, x)), x + (spec.combine(y, w) + spec.sigmoid_gate(shared, gate)), shape=[W, k, n])
    for name, (K, V, D) in {**NETS, 'small': (2, 4, 32), 'mini': (2, 4, 64)}.items():
        for W in (1, 3, 8, 64):
            if W == 64 and D == 128 and name != '35b-a3b': continue
            C = (2*K + V)*D
            window, rows, conv = normal(rng, 3, C), normal(rng, W, C), normal(rng, C, 4)
            alpha, b, a, bias = normal(rng, W, 1, V)*4, normal(rng, W, 1, V)*4, -np.exp(normal(rng, V)), normal(rng, V)
            mine = gpu_hybrid.gdn_inputs(*to(window, rows, conv, alpha, b, a, bias), K)
            q, k, v = np.split(spec.conv_silu(np.concatenate([window, rows]), conv), [K*D, 2*K*D], -1)
            q, k, v = (np.ascontiguousarray(x).reshape(W, -1, D) for x in (q, k, v))
            want = (spec.l2_norm(q, D**-0.5), spec.l2_norm(k), v, *spec.gdn_gates(alpha[:, 0], b[:, 0], a, bias))
            compare('gdn_inputs', mine, want, shape=[name, W])
            if W == 64 and D == 128: want = tuple(x[:16] for x in want)
            S = normal(rng, V, D, D)
            compare('gdn', gpu_hybrid.gdn(*to(S, *want)), spec.gdn(S, *want), shape=[name, len(want[0])])
            pair, turn = to(np.stack([S, np.full_like(S, np.nan)])), to(np.int32([0]))
            gpu_hybrid.gdn(pair, *to(*want), turn=turn)
            n = max(1, len(want[0])*2//3)
            gpu_hybrid.replay(pair[:, None], *(x[None] for x in to(*want[1:])), turn, to(np.int32([n])))
            compare('replay', pair[1], spec.gdn(S, *(x[:n] for x in want))[1], shape=[name, n])


def check_tokens(rng):
    from alphabook.blocks import FLOAT_TYPES, FORMATS
    ids = rng.integers(0, 500, 64)
    for kind in (*FORMATS, *FLOAT_TYPES):
        data = random_blocks(kind, 500, 1024, rng)
        compare('embed', gpu_matrices.embed(gpu_matrices.load_matrix(data, kind), to(ids)), decode(data[ids], kind), quantization=kind)
    for n in (151936, 248320, 16384):
        logits = normal(rng, 4, n)*3
        logits[1] = np.round(logits[1])
        best, ok = gpu_tokens.argmax(to(logits))
        compare('argmax', best, np.int64([spec.argmax(x) for x in logits]), shape=[4, n])
        ids, _, weights, _ = gpu_tokens.top_k(to(logits), 20)
        compare('top_k', (ids.int(), weights), spec.route(logits, 20), shape=[4, n, 20])
        positions = np.int64([5, 77, 32768, 1 << 34])
        for temp, top_p, min_p, seed in ((1.0, 1.0, 0.0, 1), (0.7, 0.9, 0.02, 2**64 - 3), (1.5, 0.5, 0.0, 7)):
            mine = gpu_tokens.sample(*gpu_tokens.top_k(to(logits), 20)[:2], to(positions), gpu_tokens.sampling_buffers(temp, top_p, min_p, seed))
            compare('sample', mine, np.int64([spec.sample(x, int(p), temp, 20, top_p, min_p, seed) for x, p in zip(logits, positions)]), shape=[4, n, 20])


def check_warm(rng, i):
    "No comparison: compiles what `time` will launch, while other processes compare."
    time_attention(('0.6b', '8b', '27b', '35b-a3b')[i:i + 1], (512,), pdls=(True,), brief=True)
    ROWS.clear()


CHECKS = dict(pointwise=check_pointwise, norms=check_norms, heads=check_heads, hybrid=check_hybrid, tokens=check_tokens)
CHECKS.update({f'attention.{i}': functools.partial(check_attention, i=i) for i in range(len(CASES))}, **{f'long.{i}': functools.partial(check_long, i=i) for i in range(2)})
WARM = {f'warm.{i}': functools.partial(check_warm, i=i) for i in range(4)}


# ---------------------------------------------------------------- time
@contextlib.contextmanager
def early(on):
    gpu_functions.pdl = on
    try: yield
    finally: gpu_functions.pdl = None


def replayed(launches, n=7):
    "Microseconds per launch set of a captured graph: median and interquartile range of n replays."
    launches[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for f in launches: f()
    def once(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times): graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)*1e3/times/len(launches)
    once(1)
    times = max(1, min(50, int(3e3/(once(1)*len(launches)))))
    t = [once(times) for _ in range(n)]
    low, mid, high = np.percentile(t, (25, 50, 75))
    return float(mid), float(high - low)


def timed(arm, make, bytes_each=0, pdls=(True, False), most=48, **fields):
    "make(i) → a function that launches on the i-th set of buffers."
    if time.time() > DEADLINE[0]: raise TimeoutError('out of time')
    copies = int(max(2, min(most, 2 + 150e6//max(1, bytes_each))))
    launches = [make(i) for i in range(copies)]
    for pdl in pdls:
        with early(pdl): value, spread = replayed(launches)
        extra = dict(gbs=round(bytes_each/value/1e3, 1)) if bytes_each else {}
        row(arm=arm, unit='µs', value=round(value, 3), spread=round(spread, 3), n=7, pdl=pdl, **extra, **fields)


def rand(*shape): return torch.randn(*shape, device='cuda')


def time_small():
    for W in (1, 8, 64):
        for n in (1024, 2048, 4096, 5120):
            def make(i):
                x, y, w = rand(W, n), rand(W, n), rand(n)
                return lambda: gpu_norms.add_norm(x, y, w, 1e-6)
            timed('add_norm', make, width=W, shape=[n])
        x, y = rand(W, 12288), rand(W, 12288)
        timed('gated silu', lambda i: lambda: gpu_functions.gated(x, y, 'silu'), width=W, shape=[12288])
        positions, steps = torch.arange(W, device='cuda'), gpu_heads.load_steps(elementary.rope_steps(1e6, 128), 'cuda')
        timed('rope_angles', lambda i: lambda: gpu_heads.rope_angles(positions, steps), width=W, shape=[128])
        for name, (H, KV, D, rope, gated) in SHAPES.items():
            if name not in ('8b', '35b-a3b'): continue
            angles = gpu_heads.rope_angles(positions, gpu_heads.load_steps(elementary.rope_steps(1e6, rope), 'cuda'))
            keys, values = (t[0] for t in gpu_heads.kv_tables(1, 1024, KV, D))
            def make(i):
                q, k, v, norms = rand(W, H, D), rand(W, KV, D), rand(W, KV, D), (rand(D), rand(D))
                return lambda: gpu_heads.heads(q, k, v, angles, positions, keys, values, norms, 1e-6)
            timed('heads', make, width=W, shape=[name])


def time_attention(shapes=('0.6b', '8b', '27b', '35b-a3b'), contexts=(512, 4096, 32768, 131072), pdls=(True,), brief=False):
    for name in shapes:
        H, KV, D, *_ = SHAPES[name]
        for n in contexts:
            sizes = 4*KV*D*n
            layers = 2 if brief else int(max(2, min(40, 2 + 150e6//sizes)))
            k, v = gpu_heads.kv_tables(layers, n + 64, KV, D)
            k.normal_(); v.normal_()
            for W in {512: (1, 2, 8, 64), 4096: (1, 8), 32768: (1, 8), 131072: (1,)}[n]:
                positions = torch.arange(n - W, n, device='cuda')
                def make(i):
                    q = gpu_heads.pack_queries(rand(W, H, D), KV)
                    return lambda: gpu_attention.attention(q, k[i], v[i], positions, H, 0, D**-.5)
                if brief: make(0)()
                else: timed('attention', make, sizes, pdls, most=layers, width=W, context=n, shape=[name])
            del k, v
    torch.cuda.synchronize()


def time_parts():
    "The two launches of attention apart, and programs per multiprocessor."
    for name, n, W in (('8b', 512, 1), ('8b', 32768, 1), ('8b', 32768, 8), ('35b-a3b', 512, 1), ('35b-a3b', 32768, 1), ('27b', 32768, 1)):
        H, KV, D, *_ = SHAPES[name]
        sizes, group = 4*KV*D*n, H//KV
        layers = int(max(2, min(30, 2 + 150e6//sizes)))
        k, v = gpu_heads.kv_tables(layers, n + 64, KV, D)
        k.normal_(); v.normal_()
        positions, waves = torch.arange(n - W, n, device='cuda'), gpu_attention.WAVES
        q, out = gpu_heads.pack_queries(rand(W, H, D), KV), torch.empty(W, H, D, device='cuda')
        def part(i): return lambda: gpu_attention.attend_part(q, k[i], v[i], positions, 1 << 30, D**-.5, None, 0, 0, W*group, group, D)
        for gpu_attention.WAVES in (4, 8, 16): timed('attend', part, sizes, (True,), most=layers, width=W, context=n, shape=[name], waves=gpu_attention.WAVES)
        gpu_attention.WAVES, tiles = waves, part(0)()
        timed('combine tiles', lambda i: lambda: gpu_attention.combine_part(*tiles, positions, 1 << 30, None, None, 0, group, H, out), 0, (True,), width=W, context=n, shape=[name])
        del k, v, tiles


def time_net(widths=(1, 2, 4, 8, 64)):
    for name, (K, V, D) in NETS.items():
        C = (2*K + V)*D
        for W in widths:
            turn = torch.zeros(1, dtype=torch.int32, device='cuda')
            def inputs(i):
                args = rand(3, C), rand(W, C), rand(C, 4), rand(W, 1, V), rand(W, 1, V), rand(V), rand(V)
                return lambda: gpu_hybrid.gdn_inputs(*args, K)
            timed('gdn_inputs', inputs, width=W, shape=[name])
            def net(i):
                S = rand(2, V, D, D)
                q, k, v, gates = rand(W, K, D)/D, torch.nn.functional.normalize(rand(W, K, D), dim=-1), rand(W, V, D), torch.rand(2, W, V, device='cuda')
                return lambda: gpu_hybrid.gdn(S, q, k, v, gates[0], gates[1], turn=turn)
            timed('gdn', net, 8*V*D*D, width=W, shape=[name])
            def norm(i):
                o, w, z = rand(W, V, D), rand(D), rand(W, V, D)
                return lambda: gpu_hybrid.gated_norm(o, w, 1e-6, z, 'silu')
            timed('gated_norm', norm, width=W, shape=[name])
        L, W = 30, 8
        S, n = rand(2, L, V, D, D), torch.full((1,), 3, dtype=torch.int32, device='cuda')
        k, v, gates = torch.nn.functional.normalize(rand(L, W, K, D), dim=-1), rand(L, W, V, D), torch.rand(2, L, W, V, device='cuda')
        windows, kept = rand(L, 3, C), rand(L, W, C)
        timed('replay of 3 rows, 30 layers', lambda i: lambda: gpu_hybrid.replay(S, k, v, gates[0], gates[1], turn, n), 8*L*V*D*D, most=2, width=W, shape=[name])
        timed('commit, 30 layers', lambda i: lambda: gpu_hybrid.commit(windows, kept, turn, n), width=W, shape=[name])


def time_experts():
    for W in (1, 8, 64):
        for E, k, n in ((128, 8, 2048), (256, 8, 2048), (512, 10, 2560)):
            logits = rand(W, E)
            timed('route', lambda i: lambda: gpu_hybrid.route(logits, k), width=W, shape=[E, k])
            y, w, shared, gate, x = rand(W, k, n), rand(W, k), rand(W, n), rand(W, 1), rand(W, n)
            timed('combine', lambda i: lambda: gpu_hybrid.combine(y, w, shared, gate, x), width=W, shape=[k, n])


def time_tokens():
    for W in (1, 8):
        for n in (151936, 248320):
            logits, ids = rand(W, n), torch.randint(0, n, (W,), device='cuda')
            timed('argmax', lambda i: lambda: gpu_tokens.argmax(logits), width=W, shape=[n])
            timed('top_k 20', lambda i: lambda: gpu_tokens.top_k(logits, 20), width=W, shape=[n])
        best, values = gpu_tokens.top_k(logits, 20)[:2]
        parameters = gpu_tokens.sampling_buffers(0.7, 0.9, 0.02, 1)
        timed('sample', lambda i: lambda: gpu_tokens.sample(best, values, ids, parameters), width=W, shape=[20])
        table = gpu_matrices.load_matrix(random_blocks('Q4_K', 1000, 4096, np.random.default_rng(0)), 'Q4_K')
        few = ids % 1000
        timed('embed', lambda i: lambda: gpu_matrices.embed(table, few), width=W, shape=[4096])


TIMES = dict(attention=time_attention, small=time_small, parts=time_parts, net=time_net, experts=time_experts, tokens=time_tokens)


def write(out, topic, rows):
    import triton
    name = torch.cuda.get_device_name()
    head = dict(topic=topic, device=f'{name} (triton {triton.__version__}, torch {torch.__version__}, CUDA graph replay)', model=None, quantization=None,
                context=None, mode='exact', drafter=None, date=time.strftime('%Y-%m-%d'), commit='COMMIT', contract_version=spec.CONTRACT_VERSION,
                command='python data/trials/gpu_ops.py all --out FOLDER')
    body = ',\n'.join('  ' + json.dumps(r) for r in rows)
    (Path(out)/f'{topic}-{head["date"]}.json').write_text(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + body + '\n ]\n}\n')


def main():
    p = argparse.ArgumentParser()
    p.add_argument('what', choices=('check', 'time', 'all')); p.add_argument('groups', nargs='*'); p.add_argument('--out'); p.add_argument('--seconds', type=float, default=1e9, help='of `all`; what does not fit is left out')
    a = p.parse_args()
    if a.what == 'check':
        for g in a.groups or CHECKS: {**CHECKS, **WARM}[g](np.random.default_rng(1))
    if a.what == 'time':
        for g in a.groups or TIMES: TIMES[g]()
    if a.what != 'all': return
    began = time.time()
    jobs = {g: subprocess.Popen([sys.executable, __file__, 'check', g], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for g in (*CHECKS, *WARM)}
    rows = []
    for g, job in jobs.items():
        try: stdout, stderr = job.communicate(timeout=max(1, began + .65*a.seconds - time.time()))
        except subprocess.TimeoutExpired:
            job.kill()
            stdout, stderr = job.communicate()
            print(g, 'not finished in time', flush=True)
        if job.returncode > 0: print(g, 'FAILED', stderr[-3000:], flush=True)
        rows += [json.loads(line) for line in stdout.splitlines() if line.startswith('{')]
    bad = [r for r in rows if r['value']]
    print(round(time.time() - began), 's;', f'{len(rows)} comparisons of {sum(r["n"] for r in rows)} values, {len(bad)} with differences', *bad[:40], sep='\n', flush=True)
    if a.out: write(a.out, 'gpu-ops-bits', rows)
    DEADLINE[0] = began + a.seconds - 3
    for g in a.groups or TIMES:
        start = time.time()
        try: TIMES[g]()
        except TimeoutError: print(g, 'cut short', flush=True)
        except Exception as e: print(g, 'FAILED', repr(e)[:2000], flush=True)
        print(g, round(time.time() - start), 's', flush=True)
    if a.out: write(a.out, 'gpu-ops', ROWS)


if __name__ == '__main__': main()
