"""What the contract costs on a CPU: its kernels, and the same kernels whose float operations the compiler may reorder, contract and approximate.

    python exactness.py                    # processes with one and the other in turn, each pass in the other order; prints, with --out writes JSON

A time is the median of 0.4 s, the shortest of all passes.

The free kernels come from the same sources and the same tuning. Every float instruction of theirs, those that are written out in LLVM's language
too, carries the flags reassoc, contract, arcp, afn and nsz (all of fast-math but the promise that there are no infinities, which masks need).
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
FLAGS = ("reassoc", "contract", "arcp", "afn", "nsz")
PRODUCTS = [(t, R, K) for t in ("Q4_K", "Q6_K", "Q8_0", "F16") for R, K in ((512, 4096), (256, 12288))]
WIDTHS = (1, 4, 16)


def set_free():
    "From now on everything that is compiled may be reordered. Before anything of alphabook is imported."
    import numba
    from llvmlite import ir
    real = numba.njit
    def njit(*args, **options): return real(*args, **{**options, "fastmath": set(FLAGS)})
    numba.njit = njit
    for name in ("fadd", "fsub", "fmul", "fdiv"):
        plain = getattr(ir.IRBuilder, name)
        def free(self, lhs, rhs, name="", flags=(), plain=plain): return plain(self, lhs, rhs, name, tuple({*flags, *FLAGS}))
        setattr(ir.IRBuilder, name, free)


def cases():
    "(name, width, function of the operations' module, inputs that make no difference between the two)"
    import numpy as np
    import alphabook.cpu_streams as cpu
    from alphabook.blocks import random_blocks
    rng, F = np.random.default_rng(0), np.float32
    def normal(*shape): return rng.normal(size=shape).astype(F)
    for type, R, K in PRODUCTS:
        w = cpu.load_matrix(random_blocks(type, R, K, rng), type)
        for W in WIDTHS:
            x = normal(W, K)
            yield f"product {R}×{K} {type}", W, lambda w=w, x=x: cpu.matmul(w, x)
    k, v = rng.normal(size=(2, 8192, 2, 128)).astype(np.float16)
    for W in WIDTHS:
        q, x, u, w = normal(W, 8, 128), normal(W, 4096), normal(W, 12288), normal(4096)
        for n in (512, 8000): yield f"attention, position {n}", W, lambda q=q, n=n, W=W: cpu.attention(q, k, v, np.arange(n, n + W), 0, .09)
        yield "add and norm of 4096", W, lambda x=x, w=w: cpu.add_norm(x, x, w, 1e-6)[1]
        yield "silu gate of 12288", W, lambda u=u: cpu.gated(u, u, "silu")
        S, kk, vv, decay, beta = normal(16, 128, 128), normal(W, 8, 128), normal(W, 16, 128), np.abs(normal(W, 16))*F(.1), np.abs(normal(W, 16))*F(.1)
        yield "delta rule, 16 heads of 128", W, lambda S=S, kk=kk, vv=vv, decay=decay, beta=beta: cpu.gdn(S, kk, kk, vv, decay, beta, False)[0]


def child():
    "Times of one kind, in µs of one thread, and the results' bits."
    import hashlib
    from alphabook.tape import recording, set_threads
    set_threads(1)
    out = []
    for name, W, f in cases():
        with recording() as tape: results = [f() for _ in range(3)]
        tape.play()
        times, end = [], time.perf_counter() + 0.4
        while time.perf_counter() < end:
            t = time.perf_counter()
            tape.play()
            times.append((time.perf_counter() - t)/3*1e6)
        out.append((name, W, statistics.median(times), hashlib.sha256(results[0].tobytes()).hexdigest()))
    print(json.dumps(out))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--child", choices=("exact", "free")); p.add_argument("--passes", type=int, default=2); p.add_argument("--out"); p.add_argument("--commit")
    a = p.parse_args()
    if a.child:
        if a.child == "free": set_free()
        return child()
    runs, folder = {"exact": [], "free": []}, tempfile.mkdtemp()
    for i in range(a.passes):
        for kind in list(runs)[::-1 if i % 2 else 1]:
            env = os.environ | {"NUMBA_CACHE_DIR": f"{folder}/{kind}"}
            text = subprocess.run([sys.executable, __file__, "--child", kind], env=env, capture_output=True, text=True, check=True).stdout
            runs[kind].append(json.loads(text.splitlines()[-1]))
    rows = []
    for i, (name, W, _, bits) in enumerate(runs["exact"][0]):
        times = {kind: [r[i][2] for r in passes] for kind, passes in runs.items()}
        for arm, t in times.items(): rows.append(dict(arm=f"{name}, {arm}", width=W, value=min(t), unit="µs", n=len(t), spread=(max(t) - min(t))/min(t)))
        cost, control = min(times["exact"])/min(times["free"]) - 1, times["exact"][-1]/times["exact"][0] - 1
        rows.append(dict(arm=f"{name}, cost", width=W, value=cost, unit="share of time", n=a.passes, spread=abs(control), other_bits=bits != runs["free"][0][i][3]))
        print(f"{name:30} {W:3} rows {min(times['exact']):9.1f} µs exact {min(times['free']):9.1f} free {cost:+7.1%}  (exact again {control:+6.1%})", flush=True)
    if a.out:
        import datetime
        from alphabook.arithmetic import CONTRACT_VERSION
        from alphabook.vectors import available_paths
        head = dict(topic="exactness", device="cpu", date=datetime.date.today().isoformat(), commit=a.commit, command="python data/trials/exactness.py --out FOLDER",
                    contract_version=CONTRACT_VERSION, mode="exact", drafter="none", model="kernels alone", quantization="as named", context=0, threads=1,
                    instructions=available_paths()[-1], flags=FLAGS)
        text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "rows": [\n' + ",\n".join("  " + json.dumps(r, ensure_ascii=False) for r in rows) + "\n ]\n}\n"
        path = Path(a.out)/f"exactness-{head['date']}.json"
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__": main()
