"""Chapter 11h on a GPU: rounds that several texts share, their bits against each text's own rounds, and what they bring.

    python gpu_parallel.py check [--models …]           # logits and ids of shared rounds against rounds alone, small models and the bundled one
    python gpu_parallel.py time [--shapes …] [--texts 2,4,8]   # published shapes, random weights: shared, in turns, alone
    python gpu_parallel.py final [--seconds 240]         # both; what does not fit into the time is left out, and said

Results to --out as JSON. `--quick --layers 2 --device cpu` with TRITON_INTERPRET=1 goes through all of it without a card.
"""
import argparse, datetime, json, os, statistics, subprocess, sys, tempfile, time, traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]
import numpy as np
import torch

from alphabook.config import load_config
from alphabook.gpu_together import GpuModel
from alphabook.modelfile import ModelFile
from alphabook.synth import synth

MODELS = {"mini": None, "tiny-llama": "Q4_K_M", "tiny-gemma3": "Q8_0", "tiny-qwen3moe": "Q4_K_M", "tiny-gpt-oss": "MXFP4", "tiny-qwen35": "Q4_K_M",
          "tiny-qwen35moe": "Q8_0", "tiny-qwen3next": "Q4_0", "tiny-qwen4exp": "Q8_0"}
RULES = [{}, dict(temp=0.8, top_p=0.95, seed=5), {}, dict(temp=1.2, top_k=50, min_p=0.02, seed=2**40), dict(temp=0.5, seed=9)]
NAMES = {"8b": "qwen3-8b", "27b": "qwen3.6-27b", "35b-a3b": "qwen3.6-35b-a3b", "30b-a3b": "qwen3-30b-a3b", "0.6b": "qwen3-0.6b"}

def wait():
    if torch.cuda.is_available(): torch.cuda.synchronize()

def read(model, cache, ids):
    "A text's beginning."
    for i in range(0, len(ids), 64):
        model.run_round(cache, ids[i:i + 64], 1)
        cache.commit(cache.n + len(ids[i:i + 64]))
    return cache

# ---------------------------------------------------------------- bits
def check_one(name, turns, n_ctx=256):
    "Shared rounds of two to eight texts, which come and go, with rejected rows and steps that the device chooses: values compared, different."
    start, rng = time.time(), np.random.default_rng(3)
    if name == "mini": path = HERE.parents[1]/"data"/"models"/"alphabook-mini.gguf"
    else: path = synth(name, MODELS[name], Path(tempfile.gettempdir())/f"parallel-{name}-{os.getpid()}.gguf")
    mf = ModelFile(path)
    cfg = load_config(mf)
    model, compared, different, rounds = GpuModel(mf, cfg), 0, 0, 0
    ids = lambda n: rng.integers(5, min(cfg.n_vocab, 250), n).tolist()
    def pair():
        text = ids(int(rng.integers(1, 150 if turns > 6 else 9)))
        return [read(model, model.new_cache(n_ctx), text) for _ in range(2)]          # one goes with others, one alone
    pairs = [pair() for _ in range(8 if turns > 6 else 3)]
    for turn in range(turns):
        k = int(rng.integers(2, len(pairs) + 1))
        chosen = [pairs[i] for i in rng.permutation(len(pairs))[:k]]
        if turn % 3 < 2:
            rows = [ids(int(rng.integers(1, 5 if turn % 3 else 2))) for _ in chosen]
            shared = model.run_together([(a, r) for (a, _), r in zip(chosen, rows)])
            for (a, b), r, mine in zip(chosen, rows, shared):
                want, keep = model.run_round(b, r), int(rng.integers(0, len(r) + 1))
                compared, different = compared + want.size, different + int((want.view(np.uint32) != mine.view(np.uint32)).sum())
                a.commit(a.n + keep); b.commit(b.n + keep)
        elif model.can_sit([a for a, _ in chosen]):
            steps, rules, tokens = 4 if turns > 6 else 2, [RULES[int(i)] for i in rng.integers(0, len(RULES), k)], ids(k)
            said = model.continue_together([(a, t, how) for (a, _), t, how in zip(chosen, tokens, rules)], steps)
            for (a, b), mine, t, how in zip(chosen, said, tokens, rules):
                want = model.continue_text(b, t, steps, **how)
                compared, different = compared + steps, different + sum(x != y for x, y in zip(want, mine))
        rounds += 1
        for i in range(len(pairs)):                          # who is at the end leaves
            if min(c.room for c in pairs[i]) < 8 or rng.random() < .05: pairs[i] = pair()
    kinds = {f"{j.n} × {j.rows}": sum(r.replays for r in j.recordings.values()) for j in model.__dict__.get("joint", {}).values()}
    mf.close()
    if name != "mini": path.unlink()
    return dict(model=name, values=compared, different=different, rounds=rounds, replays=kinds, seconds=round(time.time() - start, 1))

# ---------------------------------------------------------------- time
def time_one(shape, counts, until, layers=None, quick=False, device="cuda", at=512, steps=32, passes=5):
    "Rows of the published schema: tokens a second of all texts together."
    import gpu_models
    t0, rows = time.time(), []
    model, read_bytes = gpu_models.synthetic(NAMES[shape], layers, device=device)
    model.device = torch.device(device)
    print(f"{shape}: loaded in {time.time() - t0:.1f} s", flush=True)
    rng, top = np.random.default_rng(5), min(50_000, model.cfg.n_vocab)
    caches = [read(model, model.new_cache(2048 if at > 100 else 64), rng.integers(0, top, at - 7*i if at > 100 else 3).tolist()) for i in range(max(counts))]
    snaps, tokens = [c.snapshot() for c in caches], rng.integers(0, top, len(caches)).tolist()
    def again():
        for c, s in zip(caches, snaps): c.restore(s)
    def in_turns(k):
        said, last = [[] for _ in range(k)], tokens[:k]
        for _ in range(steps//8):
            for i in range(k): said[i] += model.continue_text(caches[i], last[i], 8)
            last = [s[-1] for s in said]
        return said
    def shared(k):
        said, last = [[] for _ in range(k)], tokens[:k]
        for _ in range(steps//8):
            for s, ids in zip(said, model.continue_together([(caches[i], last[i], {}) for i in range(k)], 8)): s += ids
            last = [s[-1] for s in said]
        return said
    arms = {"alone": lambda: in_turns(1)} | {f"{k} texts, {name}": (lambda k=k, f=f: f(k)) for k in counts for name, f in (("in turns", in_turns), ("shared", shared))}
    arms["alone again"] = arms["alone"]
    first, found, wrong = {}, {a: [] for a in arms}, []
    for number in range(passes + 2):                         # the first pass compiles, the second records
        for arm in list(arms)[::-1 if number % 2 else 1]:
            if time.time() > until and number > 2: continue
            again(); wait(); t = time.perf_counter()
            said = arms[arm](); wait()
            if number > 1: found[arm].append(sum(map(len, said))/(time.perf_counter() - t))
            for i, s in enumerate(said):                     # a text says the same, whoever is there
                if first.setdefault(i, s) != s: wrong.append(f"{shape}, {arm}, text {i}")
        print(f"{shape}: pass {number} done at {time.time() - t0:.1f} s, {len(wrong)} texts differ", flush=True)
        if time.time() > until: break
    base = statistics.median(found["alone"]) if found["alone"] else float("nan")
    for arm, v in found.items():
        if not v: print("not done:", shape, arm); continue
        k = int(arm.split()[0]) if "texts" in arm else 1
        ms = 1e3*k/statistics.median(v)
        rows.append(dict(model=NAMES[shape], quantization="Q4_K_M", arm=arm, drafter="none", context=at, width=k, value=round(statistics.median(v), 2), unit="tok/s",
                         spread=round(max(v) - min(v), 2), n=len(v), values=[round(x, 2) for x in v], ms=round(ms, 4), against_alone=round(statistics.median(v)/base, 3)))
        print(f"{shape:8} {arm:22} {statistics.median(v):9.1f} tok/s {statistics.median(v)/base:6.2f} × alone, {ms:7.3f} ms for a token of each", flush=True)
    return rows, wrong

def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("what", choices=["check", "one", "time", "final"]); p.add_argument("--models", default=",".join(MODELS)); p.add_argument("--shapes", default="8b,35b-a3b,30b-a3b,0.6b,27b")
    p.add_argument("--texts", default="2,4,8"); p.add_argument("--out", default=os.environ.get("OUT", ".")); p.add_argument("--seconds", type=float, default=240)
    p.add_argument("--layers", type=int); p.add_argument("--quick", action="store_true"); p.add_argument("--device", default="cuda"); p.add_argument("--turns", type=int, default=24)
    a = p.parse_args()
    start, out = time.time(), Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    turns, counts = 3 if a.quick else a.turns, [int(k) for k in a.texts.split(",")]
    if a.what == "one": print(json.dumps(check_one(a.models, turns))); return 0
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout.strip()
    result = dict(topic="gpu-parallel", device="h200", mode="exact", date=datetime.date.today().isoformat(), commit=commit, contract_version="1",
                  command="python data/trials/gpu_parallel.py " + " ".join(sys.argv[1:]), card=torch.cuda.get_device_name() if torch.cuda.is_available() else "interpreter",
                  checks=[], wrong=[], not_done=[], rows=[])
    def save(): (out/"gpu-parallel.json").write_text(json.dumps(result, indent=1) + "\n")
    if a.what in ("check", "final"):                         # processes of their own: compiling takes the processor, not the card
        jobs = {m: subprocess.Popen([sys.executable, __file__, "one", "--models", m, "--turns", str(turns)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for m in a.models.split(",")}
        for m, job in jobs.items():
            try: text = job.communicate(timeout=max(1, .6*a.seconds - (time.time() - start)))[0]
            except subprocess.TimeoutExpired: job.kill(); text = job.communicate()[0] + "\nstopped, out of time"
            try: found = json.loads(text.strip().splitlines()[-1])
            except (ValueError, IndexError): found = dict(model=m, failed=text[-1500:])
            result["checks"].append(found); save()
            print(found, flush=True)
    if a.what in ("time", "final"):
        for shape in a.shapes.split(","):
            if time.time() - start > .85*a.seconds: result["not_done"].append(shape); print("not done:", shape, flush=True); continue
            try: rows, wrong = time_one(shape, counts, start + a.seconds, a.layers, a.quick, a.device, **(dict(at=3, steps=8, passes=1) if a.quick else {}))
            except Exception: result["not_done"].append(f"{shape}: {traceback.format_exc()[-1500:]}"); print(traceback.format_exc()[-1500:], flush=True); continue
            result["rows"] += rows; result["wrong"] += wrong; save()
            if torch.cuda.is_available(): torch.cuda.empty_cache()
    save()
    print(*result["wrong"], sep="\n")
    return int(bool(result["wrong"]) or any(c.get("different", 1) for c in result["checks"]))

if __name__ == "__main__": sys.exit(main())
