"""A mixture several times larger than the RAM it may take (chapter 21b), on this machine's CPU and disk.

    python data/trials/ram_store.py [--layers 16] [--rams 2,4] [--tokens 48] [-o data/results/cpu]

The file has the shape of qwen3-30b-a3b in fewer layers, of random weights, so its routes are made up and imposed, as skewed and as sticky as the
bundled model's (chapter 19); the ranking is counted on other tokens of the same trace. Imposed routes are not recorded rounds, and a guess about
the next layer would be wrong, so nothing is read ahead. Reads go past the page cache. All arms must give the same logits. The file is removed.
"""
import argparse, datetime, json, statistics, subprocess, tempfile, time
from pathlib import Path

import numpy as np

import alphabook.cpu_streams as cpu_backend
from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.config import load_config
from alphabook.experts import ForcedRoutes, Trace, load_trace, skew, stickiness, sticky_trace
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.rounds import prompt_of, run_round
from alphabook.synth import synth
from alphabook.tape import set_threads
from alphabook.tiers import HITS, MISSES, Store

HERE, GB = Path(__file__).resolve().parent, 1 << 30
p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--layers", type=int, default=16); p.add_argument("--rams", default="2,4"); p.add_argument("--tokens", type=int, default=48)
p.add_argument("--prompt", type=int, default=256); p.add_argument("--passes", type=int, default=2); p.add_argument("--folder"); p.add_argument("-o", "--out", default="data/results/cpu")
p.add_argument("--note", default="")
args = p.parse_args()
threads, rows, like = set_threads(None), [], "qwen3-30b-a3b"

def row(arm, value, unit, values=(), **more):
    rows.append(dict(arm=arm, value=value, unit=unit, spread=(max(values) - min(values))/statistics.median(values) if values and min(values) > 0 else 0.0, n=len(values) or 1, **more))
    print(arm, f"{value:.4g}", unit, more, flush=True)

def measure(path):
    with ModelFile(path) as mf:
        cfg, known = load_config(mf), {}
        made = sticky_trace(load_trace(HERE/"mini_routes.npz"), 4096, cfg.n_layer, cfg.n_expert, cfg.n_used)
        trace, before = (Trace(made.ids[a:b], made.n_expert, made.prompt[a:b]) for a, b in ((0, 2048), (2048, None)))
        ranking, ids = (before.counts(), len(before.ids)), np.random.default_rng(7).integers(5, 50000, 4096).tolist()
        row("file", path.stat().st_size/GB, "GiB", skew=skew(trace), stickiness=stickiness(trace), layers=cfg.n_layer)
        arms = [(f"{ram} GiB, {name}", float(ram), rank) for ram in args.rams.split(",") for name, rank in (("ranking", ranking), ("no ranking", (ranking[0]*0, 1)))]
        got = {}
        for number in range(args.passes):
            for arm, ram, rank in arms:                                          # in turns
                store = Store(mf, cfg, int(ram*GB), rank, ahead=False)
                model = Model(mf, cfg, cpu_backend, experts=store)
                routes, cache, read = ForcedRoutes(model, trace), model.new_cache(2*args.prompt + 2*args.tokens + 64), [0]
                for source in store.sources.values():
                    def counted(*a, real=source.read): read[0] += a[1]; return real(*a)
                    source.read = counted
                def some(n, chunk):
                    start, at = time.perf_counter(), store.numbers[[HITS, MISSES]].copy()
                    before_, end = read[0], cache.n + n
                    while cache.n < end:
                        routes.rewind(cache.n)
                        w = min(chunk, end - cache.n)
                        logits = run_round(model, cache, ids[cache.n:cache.n + w], 1, route=routes)
                        cache.commit(cache.n + w)
                    hits, misses = store.numbers[[HITS, MISSES]] - at
                    return dict(seconds=time.perf_counter() - start, hit=float(hits/(hits + misses)), gb=(read[0] - before_)/1e9, logits=logits.tobytes())
                def prompt(n):
                    with prompt_of(model): return some(n, 64)
                parts = dict(short=prompt(16), answer=some(args.tokens, 1), long=prompt(args.prompt), after=some(args.tokens, 1))
                for name, r in parts.items():
                    assert known.setdefault(name, r["logits"]) == r["logits"], f"{arm}, {name}: the logits are not those of the other arms"
                    got.setdefault((arm, name), []).append(r)
                got.setdefault((arm, "ready"), []).append(store.loaded | dict(slots=sum(b.slots for b in store.banks), experts=cfg.n_expert*cfg.n_layer))
                print(number, arm, {k: (round(v["seconds"], 2), round(v["hit"], 3), round(v["gb"], 2)) for k, v in parts.items()}, flush=True)
        for arm, *_ in arms:
            loaded = got[arm, "ready"]
            row(f"{arm}: filled", statistics.median(r["seconds"] for r in loaded), "s", [r["seconds"] for r in loaded], gb=loaded[0]["bytes"]/1e9, slots=loaded[0]["slots"], experts=loaded[0]["experts"])
            for name, n in dict(short=16, answer=args.tokens, long=args.prompt, after=args.tokens).items():
                speeds = [n/r["seconds"] for r in got[arm, name]]
                row(f"{arm}: {dict(short='prompt of 16', answer='decode', long='a longer prompt', after='decode after it')[name]}", statistics.median(speeds), "tok/s", speeds,
                    hit=got[arm, name][0]["hit"], gb_per_token=got[arm, name][0]["gb"]/n, context=16 if name in ("short", "answer") else 16 + args.tokens + args.prompt)

folder = tempfile.mkdtemp(dir=args.folder)
path = Path(folder)/"large.gguf"
try:
    synth(like, "Q4_K_M", path, n_layers=args.layers)
    measure(path)
finally: path.unlink(missing_ok=True); Path(folder).rmdir()
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip()
result = dict(topic="ram-store", device="cpu", date=datetime.date.today().isoformat(), command="python data/trials/ram_store.py", commit=commit, contract_version=CONTRACT_VERSION,
              model=f"{like}, {args.layers} layers, random weights", quantization="Q4_K_M", mode="exact", drafter="none", width=1, context=16, threads=threads, note=args.note, rows=rows)
Path(args.out).mkdir(parents=True, exist_ok=True)
Path(args.out, f"ram-store-{result['date']}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
