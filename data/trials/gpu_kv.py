"""Chapters 10ha to 10j on a GPU with keys and values in blocks: bits against the numpy spec, and what reading a long text takes.

    python gpu_kv.py all --seconds 90 --out FOLDER        # on a GPU: compile in parallel, check, time; gpu-kv.json in FOLDER after every step
    python gpu_kv.py results --out FOLDER --commit C      # the published schema from it
    TRITON_INTERPRET=1 python gpu_kv.py check             # the check alone, small, without a GPU
"""
import argparse, json, subprocess, sys, time, traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
import numpy as np
import torch

from alphabook import streams as spec
from alphabook.gpu_attention import attention
from alphabook.gpu_functions import INTERPRET
from alphabook.gpu_heads import heads, kv_tables, pack_queries
from alphabook.kv import pack_rows

DEVICE = "cpu" if INTERPRET else "cuda"
KINDS = ("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q4_0", "q4_0")
SHAPES = {"qwen3.6-35b-a3b": (16, 2, 256, 10), "qwen3.6-27b": (24, 4, 256, 16), "qwen3-8b": (32, 8, 128, 36)}    # heads, KV heads, dimensions, layers that attend
PLACES = (8_000, 32_000, 250_000)
CHECKED = (((4, 2, 64), 70),) if INTERPRET else (((8, 2, 128), 300), ((8, 1, 256), 300), ((6, 2, 96), 150))

def to(x): return torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)

def check(kinds):
    "(values compared, values different) of attention over rows that `heads` wrote."
    rng, n = np.random.default_rng(1), [0, 0]
    for (H, KV, D), positions in CHECKED:
        k, v = rng.normal(size=(2, positions, KV, D)).astype(np.float32)
        keys, values = (t[0] for t in kv_tables(1, positions, KV, D, DEVICE, kinds))
        for at in range(0, positions, 50):
            part = slice(at, min(at + 50, positions))
            heads(to(rng.normal(size=(part.stop - at, H, D)).astype(np.float32)), to(k[part]), to(v[part]), None, to(np.arange(part.start, part.stop)), keys, values)
        for W in (1, 3):
            q, where = rng.normal(size=(W, H, D)).astype(np.float32)*2, np.arange(positions - W, positions)
            want = spec.attention(q, *(pack_rows(x, kind) for x, kind in zip((k, v), kinds)), where, 0, D**-.5)
            got = attention(pack_queries(to(q), KV), keys, values, to(where), H, 0, D**-.5).cpu().numpy()
            n[0] += got.size; n[1] += int((got.view(np.int32) != want.view(np.int32)).sum())
    return n

def warm(kinds, shape):
    "Compile what will be timed."
    H, KV, D, _ = SHAPES[shape]
    keys, values = (t[0] for t in kv_tables(1, 128, KV, D, DEVICE, kinds))
    attention(pack_queries(torch.zeros((1, H, D), device=DEVICE), KV), keys, values, torch.zeros(1, dtype=torch.int64, device=DEVICE), H, 0, .1)
    torch.cuda.synchronize()

def time_all(kinds, shape):
    "Rows: microseconds of a layer's attention for one row, by position."
    from gpu_products import graph_us
    H, KV, D, layers = SHAPES[shape]
    out = []
    for n in PLACES:
        size = lambda kind: {"f16": 2*D, "q8_0": D + D//16, "q4_0": D//2 + D//16}[kind]
        read = n*KV*(size(kinds[0]) + size(kinds[1]))
        many = max(2, min(24, int(400e6/read)))
        tables = [kv_tables(1, n + 1, KV, D, DEVICE, kinds) for _ in range(many)]
        for pair in tables:
            for t in pair:
                if t.dtype == torch.int8: t.view(torch.int32).random_(); t.copy_(t & 0x3B)     # small numbers, as step sizes too
                else: t.normal_()
        q, at = pack_queries(torch.randn((1, H, D), device=DEVICE), KV), torch.full((1,), n, dtype=torch.int64, device=DEVICE)
        us, spread = graph_us(lambda i: attention(q, tables[i % many][0][0], tables[i % many][1][0], at, H, 0, D**-.5), max(8, many), samples=5, sample_us=2000)
        out.append(dict(model=shape, arm=":".join(kinds), context=n, value=us, unit="µs a layer", spread=spread/us, n=5, bytes=read, layers=layers, gbs=read/us/1e3))
        print(shape, kinds, n, f"{us:.1f} µs, {read/us/1e3:.0f} GB/s of {read/1e6:.1f} MB", flush=True)
        del tables; torch.cuda.empty_cache()
    return out

def bandwidth():
    "GB/s of a plain copy, bytes read plus bytes written."
    from gpu_products import graph_us
    a, b = torch.zeros((2, 1 << 30), dtype=torch.int8, device=DEVICE)
    return 2*(1 << 30)/graph_us(lambda i: b.copy_(a), 2)[0]/1e3

def everything(out, seconds_):
    start = time.time()
    jobs = [subprocess.Popen([sys.executable, __file__, "warm", "--kinds", ":".join(k), "--shape", s]) for s in SHAPES for k in KINDS]
    while any(p.poll() is None for p in jobs) and time.time() - start < 0.5*seconds_: time.sleep(0.3)
    for p in jobs:
        if p.poll() is None: p.kill(); p.wait()
    found = dict(checks={}, rows=[], errors=[])
    def keep(): Path(out, "gpu-kv.json").write_text(json.dumps(found, indent=1))
    found["bandwidth"] = bandwidth(); keep()
    print("compiled after", round(time.time() - start), "s; a copy moves", round(found["bandwidth"]), "GB/s", flush=True)
    for f in (check, time_all):
        for shape in ([None] if f is check else SHAPES):
            for kinds in KINDS:
                if time.time() - start > seconds_ - 8: print("no time for", f.__name__, shape, kinds); continue
                try:
                    if f is check: found["checks"][":".join(kinds)] = check(kinds); print(kinds, "compared, different:", found["checks"][":".join(kinds)], flush=True)
                    else: found["rows"] += time_all(kinds, shape)
                except Exception: found["errors"].append(traceback.format_exc()); print(found["errors"][-1], flush=True)
                keep()
    print(round(time.time() - start), "s", flush=True)

def results(out, commit):
    "data/results/h200."
    import datetime
    from alphabook.arithmetic import CONTRACT_VERSION
    found, date = json.loads(Path(out, "gpu-kv.json").read_text()), datetime.date.today().isoformat()
    rows = [dict(arm=f"{kinds}, differing values", model="attention alone", context=300, value=bad, unit="values", n=n, spread=0.0) for kinds, (n, bad) in found["checks"].items()]
    head = dict(topic="gpu-kv", device="h200", date=date, commit=commit, command="python data/trials/gpu_kv.py all", contract_version=CONTRACT_VERSION, mode="fast", drafter="none",
                quantization="keys:values", width=1, bandwidth=found["bandwidth"])
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + ",\n".join("  " + json.dumps(r) for r in rows + found["rows"]) + "\n ]\n}\n"
    (ROOT/"data"/"results"/"h200"/f"gpu-kv-{date}.json").write_text(text)

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=("all", "check", "warm", "results")); p.add_argument("--out", default="."); p.add_argument("--seconds", type=float, default=90)
    p.add_argument("--kinds", default="q8_0:q4_0"); p.add_argument("--shape", default="qwen3-8b"); p.add_argument("--commit")
    a = p.parse_args()
    if a.what == "all": everything(a.out, a.seconds)
    elif a.what == "warm": warm(tuple(a.kinds.split(":")), a.shape)
    elif a.what == "results": results(a.out, a.commit)
    else:
        for kinds in KINDS: print(":".join(kinds), *check(kinds), flush=True)

if __name__ == "__main__": main()
