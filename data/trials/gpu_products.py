"""Chapters 10a and 10d to 10h on a GPU: bits against the numpy spec, and microseconds.

    python gpu_products.py check      # every type, widths 1 … 64, ragged shapes, long rows, fused kernels, experts
    python gpu_products.py time       # products of model shapes, CUDA graphs over more matrices than the L2 holds
    python gpu_products.py sweep      # the same with several launch plans each

Results go to --out as JSON.  TRITON_INTERPRET=1 python gpu_products.py check --small runs the check without a GPU.
"""
import argparse, json, sys, time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import numpy as np
import torch

from alphabook import gpu_acts, gpu_experts, gpu_functions, gpu_matrices, gpu_products, streams
from alphabook.blocks import FLOAT_TYPES, FORMATS, random_blocks
from alphabook.gpu_weights import packing

gp = SimpleNamespace(**{k: v for m in (gpu_functions, gpu_acts, gpu_products, gpu_experts, gpu_matrices) for k, v in vars(m).items()})
WIDTHS = (1, 2, 3, 5, 8, 16, 64)
MAIN = ("Q4_K", "Q6_K", "Q5_K", "Q8_0", "Q4_0", "IQ4_XS", "IQ3_XXS", "IQ3_S")

# ---------------------------------------------------------------- bits
def differ(got, want):
    "Number of values whose bits differ."
    got = got.cpu().numpy() if isinstance(got, torch.Tensor) else got
    return int((got.view(np.int32) != np.ascontiguousarray(want).view(np.int32)).sum())

def rows(W, K, rng):
    "Activations of mixed size."
    return rng.standard_normal((W, K)).astype(np.float32)*np.exp(rng.standard_normal((W, K))).astype(np.float32)

def check_products(type, shapes, widths, device, rng):
    "(values, different values, where)"
    n = bad = 0; where = []
    for R, K, extreme in shapes:
        data = random_blocks(type, R, K, rng)
        spec, w = streams.load_matrix(data, type), gp.load_matrix(data, type, device=device)
        x = rows(max(widths), K, rng)
        if extreme:                                          # column w against the signs of row w: sums near their bounds
            q = spec.floats if type in FLOAT_TYPES else spec.view.q.reshape(R, -1)[:, :K]
            x = np.float32(3)*np.where(q[np.arange(max(widths)) % R] < 0, np.float32(-1), np.float32(1))
        want = streams.matmul(spec, x)
        r, b = rows(max(widths), R, rng), rows(1, R, rng)[0]
        for W in widths:
            xt = torch.from_numpy(x[:W]).to(device)
            got = gp.matmul(w, xt)
            d = differ(got, want[:W])
            if K in (512, 2048):
                rt, bt = torch.from_numpy(r[:W]).to(device), torch.from_numpy(b).to(device)
                d += differ(gp.matmul(w, xt, add=rt, bias=bt), (want[:W] + b) + r[:W])
            n, bad = n + got.numel(), bad + d
            if d: where.append(f"{type} {R}x{K} W{W}{' extreme' if extreme else ''}: {d} of {got.numel()}")
        ids = rng.integers(0, R, 5)
        d = differ(gp.embed(w, torch.from_numpy(ids).to(device)), streams.embed(spec, ids))
        n, bad = n + 5*K, bad + d
        if d: where.append(f"{type} {R}x{K} embed: {d}")
    return n, bad, where

def shapes_of(type, small):
    block = 1 if type in FLOAT_TYPES else packing(type).block
    ragged = 768 if block == 256 else 608
    if small: return [(37, ragged, False), (20, 256, True)]
    long = [(19, 17408, False), (16, 12288, True)]
    return [(37, ragged, False), (37, ragged, True), (40, 2048, False), (70, 4352, True), (24, 4096, False)] + (
        long if type in MAIN else [(16, 12288, False)])

def tasks_for(ids, E):
    from alphabook.gpu_layers import tasks_of
    return tasks_of(ids, E, torch.arange(ids.shape[1] + 2, dtype=torch.int32, device=ids.device))

def check_experts(type, device, rng, small):
    n = bad = 0; where = []
    for E, R, K, W, k in ((5, 32, 512, 3, 2), (5, 20, 512, 2, 3)) if small else \
            ((5, 20, 512, 2, 3), (256, 32, 2048, 1, 8), (64, 48, 512, 16, 8), (128, 32, 768, 64, 8), (8, 32, 2048, 32, 4)):
        data = np.stack([random_blocks(type, R, K, rng) for _ in range(E)])
        spec, w = streams.load_experts(data, type), gp.load_experts(data, type, device=device)
        ids = np.stack([rng.permutation(E)[:k] for _ in range(W)]).astype(np.int32)
        x = rows(W, K, rng)
        want = streams.expert_matmul(spec, np.repeat(x, k, 0), ids.ravel())
        ids_t = torch.from_numpy(ids).to(device)
        d = differ(gp.expert_matmul(w, torch.from_numpy(x).to(device), ids_t, k), want)
        d += differ(gp.expert_matmul(w, torch.from_numpy(np.repeat(x, k, 0)).to(device), ids_t.flatten()), want)
        if type not in FLOAT_TYPES:                          # as the layers call it: no expert twice in a row
            for per, xs in ((k, x), (1, np.repeat(x, k, 0))):
                d += differ(gp.expert_product(w, gp.quantize(torch.from_numpy(xs).to(device)), tasks_for(ids_t, E), per), want)
        n, bad = n + 4*want.size, bad + d
        if d: where.append(f"experts {type} {E}x{R}x{K} W{W} k{k}: {d} of {4*want.size}")
    return n, bad, where

def parts(acts):
    "The parts of activations without the columns that do not exist."
    nb, S, W = -(-acts.K//256), -(-acts.W//8)*8, acts.W
    a = {k: getattr(acts, k).cpu().numpy() for k in ("q", "a", "s", "m8", "m16", "d")}
    m8, m16 = a["m8"].reshape(nb, 2, S, 2, 8)[:, :, :W], a["m16"].reshape(nb, 2, S, 2, 2, 8)[:, :, :W]
    return [a["q"].reshape(nb, 4, S, 64)[:, :, :W], a["a"].reshape(nb, 8, S)[..., :W], a["s"].reshape(nb, 8, S)[..., :W],
            m8[:, 0], m8[:, 1, :, 0], m16[:, 0], m16[:, 1, :, :, 0], a["d"].reshape(nb, S)[:, :W]]

def same(a, b): return sum(int((x != y).sum()) for x, y in zip(parts(a), parts(b)))

def check_fused(device, rng, small):
    n = bad = 0; where = []
    for K in (200, 600) if small else (200, 600, 896, 2048, 4096, 5120, 12288):
        for W in (1, 3) if small else (1, 3, 8, 64):
            x, u, w = rows(W, K, rng), rows(W, K, rng), rows(1, K, rng)[0]
            xt, ut, wt = (torch.from_numpy(v).to(device) for v in (x, u, w))
            y = streams.rms_norm(x, w, 1e-6)
            ref = gp.quantize(torch.from_numpy(y).to(device))
            a = gp.norm_quantize(xt, wt, 1e-6, keep=True)
            d = [same(a, ref), differ(a.x, y), same(gp.norm_quantize(xt, wt, 1e-6), ref)]
            for act in ("silu", "gelu", "swiglu_oai"):
                want = gp.quantize(torch.from_numpy(streams.gated(x, u, act)).to(device))
                d.append(same(gp.gated_quantize(xt, ut, act), want))
            n, bad = n + 6*x.size, bad + sum(d)
            if sum(d): where.append(f"fused {W}x{K}: {d}")
    return n, bad, where

def check_one(job):
    what, type, small, device, seed = job
    rng, t = np.random.default_rng(seed), time.time()
    try:
        if what == "products":
            n, bad, where = check_products(type, shapes_of(type, small), (1, 3, 9) if small else WIDTHS, device, rng)
        elif what == "experts": n, bad, where = check_experts(type, device, rng, small)
        else: n, bad, where = check_fused(device, rng, small)
    except Exception as e:
        import traceback
        n, bad, where = 0, -1, [f"{what} {type}: {e!r}"[:1500], traceback.format_exc()[-1500:]]
    return dict(arm=what, quantization=type, n=n, value=bad, where=where[:6], seconds=round(time.time() - t, 1))

def check(out, small, device, types, workers):
    jobs = [("products", t, small, device, 1) for t in types]
    jobs += [("experts", t, small, device, 2) for t in (("Q4_K", "Q8_0", "F16") if small or len(types) <= len(MAIN) else (*MAIN, "MXFP4", "F16"))]
    jobs += [("fused", None, small, device, 3)]
    results = []
    if workers > 1:
        import multiprocessing as mp
        with mp.get_context("spawn").Pool(workers) as pool:
            for r in pool.imap_unordered(check_one, jobs, chunksize=1): results.append(r); report(r)
    else:
        for j in jobs: r = check_one(j); results.append(r); report(r)
    Path(out, "check.json").write_text(json.dumps(results, indent=1))
    total, bad = sum(r["n"] for r in results), sum(abs(r["value"]) for r in results)
    print(f"checked {total} values, {bad} different", flush=True)
    return bad == 0

def report(r):
    if r["value"]: print("DIFFERENT", r, flush=True)
    elif r["seconds"] > 1: print(r["arm"], r["quantization"], r["n"], "equal,", r["seconds"], "s", flush=True)

# ---------------------------------------------------------------- time
def graph_us(run, n, samples=7, sample_us=2500):
    "(median, interquartile range) in microseconds a launch of a captured graph of run(0) … run(n − 1)"
    s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        run(0); run(n - 1); s.synchronize()
        g = torch.cuda.CUDAGraph()
        g.capture_begin()
        for i in range(n): run(i)
        g.capture_end()
        ts, k = [], 1
        for sample in range(-2, samples):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            for _ in range(k): g.replay()
            b.record(); b.synchronize()
            us = a.elapsed_time(b)*1e3/k
            if sample < 0: k = max(1, min(40, int(sample_us/us)))
            else: ts.append(us/n)
    q = np.percentile(ts, [25, 50, 75])
    del g
    return float(q[1]), float(q[2] - q[0])

def random_tiles(type, T, NB):
    "Random words with small float scales."
    p = packing(type)
    w = torch.randint(-2**31, 2**31 - 1, (T, NB, p.words), dtype=torch.int32, device="cuda")
    f = torch.randn((T, NB, 2*(p.words - p.o_float)), device="cuda")*1e-3
    w[:, :, p.o_float:] = (f.bfloat16() if p.brain else f.half()).view(torch.int32)
    return w

def matrices(type, R, K, total=320e6):
    T, NB = -(-R//16), -(-K//256)
    n = max(2, -(-int(total)//(T*NB*packing(type).words*4)))
    return [gp.Matrix(random_tiles(type, T, NB), type, R, K) for _ in range(n)]

def plans(type, R, K, W):
    "Launch plans worth trying."
    T, NB = -(-R//16), -(-K//256)
    P, C8, C16 = gp.Plan, min(8, gp.power(NB)), min(16, gp.power(NB))
    out = [gp.plan(type, W, T, NB)]
    if W <= 8:
        for C, RT, programs in ((16, 1, 132), (8, 1, 132), (8, 1, 264), (8, 2, 132), (4, 2, 264), (4, 4, 132), (4, 1, 528), (2, 4, 264)):
            if C <= C16: out.append(P(8, C, RT, C*RT, min(-(-T//RT), programs), int(NB > C)))
    else:
        out += [P(8, C, RT, C*RT, min(-(-T//RT), programs), 2, registers=most) for most in (None, 128) for C, RT, programs in
                ((4, 1, 396), (4, 1, 528), (8, 1, 132), (8, 1, 264), (16, 1, 132)) if C <= C16]
        out += [P(NC, st, r, r, 0, 3) for NC, r, st in ((16, 4, 3), (32, 4, 3), (64, 4, 2)) if NC <= W]
    return list(dict.fromkeys(out))

def compile_one(job):
    type, plan, W = job
    try:
        K = (plan.C if plan.mode == 0 else 17)*256                                           # modes 1 and 2 compile alike for all K
        gp.product(gp.Matrix(random_tiles(type, 1, K//256), type, 16, K), gp.quantize(torch.randn((W, K), device="cuda")), how=plan)
        torch.cuda.synchronize()
        return None
    except Exception as e: return f"{type} {plan}: {e!r}"[:600]

def precompile(jobs, workers):
    import multiprocessing as mp
    t = time.time()
    with mp.get_context("spawn").Pool(workers) as pool:
        for e in pool.imap_unordered(compile_one, jobs, chunksize=1):
            if e: print("FAILED", e, flush=True)
    print(len(jobs), "kernels compiled in", round(time.time() - t, 1), "s", flush=True)

def sweep(out, types, shapes, widths, workers, deadline, all_plans=True):
    t0, rowsout = time.time(), []
    todo = [(t, R, K, W) for R, K in shapes for t in types for W in widths]
    each = (lambda t, R, K, W: plans(t, R, K, W)) if all_plans else (lambda t, R, K, W: [gp.plan(t, W, -(-R//16), -(-K//256))])
    jobs = list(dict.fromkeys((t, replace(p, programs=1), min(W, 8) if W <= 8 else W) for t, R, K, W in todo for p in each(t, R, K, W)))
    precompile(jobs, workers)
    for R, K in shapes:
        for type in types:
            if time.time() - t0 > deadline: print("not run:", R, K, type, flush=True); continue
            ms = matrices(type, R, K); size = ms[0].tiles.numel()*4
            for W in widths:
                acts = gp.quantize(torch.randn((W, K), device="cuda")); y = torch.empty((W, R), device="cuda"); first = None
                for p in each(type, R, K, W):
                    try: us, spread = graph_us(lambda i: gp.product(ms[i], acts, out=y, how=p), len(ms))
                    except Exception as e: print("FAILED", type, R, K, W, p, repr(e)[:300], flush=True); continue
                    h = y.view(torch.int32).clone(); first = h if first is None else first
                    r = dict(quantization=type, shape=f"{R}x{K}", width=W, arm="product", value=round(us, 3), unit="us", spread=round(spread, 3), n=7,
                             gbs=round(size/us/1e3, 1), config=[p.NC, p.C, p.RT, p.warps, p.programs, p.mode, p.columns, p.registers], same_bits=bool((h == first).all()))
                    rowsout.append(r)
                    print(type, f"{R}x{K}", "W", W, r["value"], "us", r["gbs"], "GB/s", r["config"], "" if r["same_bits"] else "BITS DIFFER", flush=True)
            del ms; torch.cuda.empty_cache()
            Path(out, "time.json").write_text(json.dumps(rowsout, indent=1))
    return rowsout

def time_experts(out, deadline=60):
    t0, res = time.time(), []
    for type, E, R, K, k in (("Q4_K", 256, 1024, 2048, 8), ("Q4_K", 256, 512, 2048, 8), ("Q4_K", 256, 2048, 512, 8), ("Q6_K", 256, 2048, 512, 8), ("Q4_K", 128, 1536, 2048, 8), ("Q6_K", 128, 2048, 768, 8)):
        T, NB = R//16, -(-K//256)
        tiles = random_tiles(type, E*T, NB)
        w = gp.Experts(tiles.unflatten(0, (E, T)), type, R, K)
        for W in (1, 8, 32):
            per = k if R < K or K == 2048 else 1
            acts = gp.quantize(torch.randn((W if per > 1 else W*k, K), device="cuda"))
            ts = [tasks_for(torch.stack([torch.randperm(E, device="cuda")[:k] for _ in range(W)]).to(torch.int32), E) for _ in range(40)]
            base = gp.expert_plan(ts[0], T, NB)
            more = [replace(base, programs=max(1, min(-(-T//base.RT), warps//base.warps//ts[0].n))) for warps in (528, 1056, 1584, 2112, 3168, 4224)]
            for p in dict.fromkeys([base, *more]):
                try: us, spread = graph_us(lambda i: gp.expert_product(w, acts, ts[i], per, how=p), len(ts))
                except Exception as e: print("FAILED experts", type, p, repr(e)[:300]); continue
                unique = np.mean([int(t.count) if t.listed else t.n for t in ts])
                gbs = unique*T*NB*packing(type).words*4/us/1e3
                r = dict(quantization=type, shape=f"{E}x{R}x{K}", width=W, arm="experts", value=round(us, 3), unit="us", spread=round(spread, 3), gbs=round(gbs, 1), experts=round(float(unique), 1), config=[p.NC, p.C, p.RT, p.warps, p.programs, p.mode])
                res.append(r); print("experts", type, r["shape"], "W", W, r["value"], "us", r["gbs"], "GB/s", r["config"], r["experts"], flush=True)
            if time.time() - t0 > deadline: break
        del w, tiles
    Path(out, "experts.json").write_text(json.dumps(res, indent=1))
    return res

def time_small(out):
    res = []
    def row(arm, W, K, us, spread):
        res.append(dict(arm=arm, width=W, shape=str(K), value=round(us, 3), unit="us", spread=round(spread, 3))); print(arm, "W", W, "K", K, round(us, 3), "us", flush=True)
    for W in (1, 8, 64):
        for K in (2048, 4096):
            x, w = torch.randn((W, K), device="cuda"), torch.randn(K, device="cuda")
            row("quantize", W, K, *graph_us(lambda i: gp.quantize(x), 50))
            row("norm_quantize", W, K, *graph_us(lambda i: gp.norm_quantize(x, w, 1e-6), 50))
        for K in (512, 12288):
            g = torch.randn((W, 2*K), device="cuda")
            row("gated_quantize", W, K, *graph_us(lambda i: gp.gated_quantize(g[:, :K], g[:, K:], "silu"), 50))
        ids = torch.stack([torch.randperm(256, device="cuda")[:8] for _ in range(W)]).to(torch.int32)
        row("group_rows", W, 8, *graph_us(lambda i: gp.group_rows(ids, 256), 50))
        for R in (256, 32):
            f = gp.Matrix(torch.randn((R, 2048), device="cuda"), "F32", R, 2048); x = torch.randn((W, 2048), device="cuda")
            row(f"F32 {R}", W, 2048, *graph_us(lambda i: gp.matmul(f, x), 50))
    Path(out, "small.json").write_text(json.dumps(res, indent=1))

def time_layers(out, n=4):
    "Products and fused kernels of layers like qwen3-8b's, without attention: microseconds a layer."
    res = []
    def layer(): return [matrices(t, R, K, 1)[0] for t, R, K in (("Q4_K", 6144, 4096), ("Q4_K", 4096, 4096), ("Q4_K", 24576, 4096), ("Q6_K", 4096, 12288))]
    layers = [layer() for _ in range(n)]; w = torch.ones(4096, device="cuda"); size = sum(m.tiles.numel()*4 for m in layers[0])
    for W in (1, 8, 16, 64):
        x = torch.randn((W, 4096), device="cuda")
        def run(i):
            qkv, o, gu, down = layers[i]
            a = gp.product(qkv, gp.norm_quantize(x, w, 1e-6))
            b = gp.product(o, gp.quantize(a[:, :4096].contiguous() if W > 1 else a[:, :4096]), add=x)
            h = gp.product(gu, gp.norm_quantize(b, w, 1e-6))
            return gp.product(down, gp.gated_quantize(h[:, :12288], h[:, 12288:], "silu"), add=b)
        us, spread = graph_us(run, n)
        res.append(dict(arm="layer 8b", width=W, value=round(us, 2), unit="us", spread=round(spread, 2), gbs=round(size/us/1e3)))
        print(res[-1], flush=True)
    Path(out, "layers.json").write_text(json.dumps(res, indent=1))

def time_pack():
    for type in ("Q4_K", "Q6_K", "IQ3_S"):
        from alphabook.gpu_weights import pack
        data = torch.from_numpy(random_blocks(type, 1024, 4096, np.random.default_rng(1))).repeat(32, 1).cuda()
        for _ in range(2):
            torch.cuda.synchronize(); t = time.time(); pack(data, type, "cuda"); torch.cuda.synchronize(); t = time.time() - t
        print("pack", type, round(data.numel()/t/1e9, 2), "GB/s", flush=True)

def main():
    p = argparse.ArgumentParser(); p.add_argument("what"); p.add_argument("--out", default="."); p.add_argument("--small", action="store_true")
    p.add_argument("--types", default=""); p.add_argument("--shapes", default="4096x4096,24576x4096,4096x12288,2048x2048,151936x2048"); p.add_argument("--widths", default="1,8,16,64")
    p.add_argument("--workers", type=int, default=15); p.add_argument("--deadline", type=float, default=120)
    a = p.parse_args()
    device = "cpu" if gp.INTERPRET else "cuda"
    types = a.types.split(",") if a.types else [*MAIN, *(t for t in FORMATS if t not in MAIN), *FLOAT_TYPES]
    shapes = [tuple(map(int, s.split("x"))) for s in a.shapes.split(",")]
    for what in a.what.split(","):
        if what == "check": check(a.out, a.small, device, types, 1 if gp.INTERPRET else a.workers)
        elif what in ("sweep", "time"): sweep(a.out, a.types.split(",") if a.types else ["Q4_K", "Q6_K"], shapes, list(map(int, a.widths.split(","))), a.workers, a.deadline, what == "sweep")
        elif what == "experts": time_experts(a.out)
        elif what == "small": time_small(a.out)
        elif what == "layers": time_layers(a.out)
        elif what == "pack": time_pack()

if __name__ == "__main__": main()
