"""Chapters 11g and 14a on a GPU: drafters inside its rounds, their texts and logits against the CPU's, and what they gain.

    python gpu_drafts.py golden       # on a CPU: texts and hashes of the bundled model and of small recurrent ones
    python gpu_drafts.py check        # on a GPU: the same with every drafter, and with drafts wrong at every place
    python gpu_drafts.py rates        # on a GPU: the bundled model on sets A, V and R, plain decoding as the control
    python gpu_drafts.py forced       # on a GPU: a published shape with random weights, imposed acceptance
    python gpu_drafts.py final        # all of it, in --seconds; results to --out as JSON
"""
import argparse, atexit, datetime, json, os, statistics, subprocess, sys, tempfile, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
import numpy as np

import alphabook.engine
from alphabook.engine import Engine, Session
from alphabook.policy import Alone
from alphabook.synth import synth

alphabook.engine.AUTO_ON = ("cpu", "cuda")                     # this trial is to show it
GOLDEN = ROOT/"tests"/"golden"/"gpu_drafts.json"
MODELS = {"mini": None, "tiny-qwen35": "Q4_K_M", "tiny-qwen35moe": "Q8_0", "tiny-qwen3next": "Q4_0", "tiny-qwen4exp": "Q8_0"}
RULES = {"greedy": {}, "warm": dict(temp=0.8, top_p=0.95, seed=5), "hot": dict(temp=1.2, top_k=50, min_p=0.02, seed=2**40)}
EDIT = "### Rewrite\nRename `path` to `name`.\n### Code\ndef read_lines(path):\n    \"\"\"Read a text file and return its " \
    "lines.\"\"\"\n    with open(path, encoding='utf-8') as f:\n        return f.read().splitlines()\n### Result\n"
PROMPTS = {"mini": ["def fibonacci(n):", "Der Speicher wird", EDIT]}
N = 48

def load(name, device):
    "An engine, and its prompts."
    if name == "mini": path = ROOT/"data"/"models"/"alphabook-mini.gguf"
    else:
        path = Path(tempfile.gettempdir())/f"drafts-{name}-{os.getpid()}.gguf"
        synth(name, MODELS[name], path, mtp=1)
    engine = Engine.load(path, device, n_ctx=512)
    if name != "mini": atexit.register(path.unlink, missing_ok=True)      # its prices are kept by its name
    ids = np.random.default_rng(3).integers(5, 250, 40).tolist()
    return engine, PROMPTS.get(name, [ids[:7], ids + ids[:20]])

def golden():
    "What a CPU says."
    out = {}
    for name in MODELS:
        engine, prompts = load(name, "cpu")
        for i, prompt in enumerate(prompts):
            for rule, how in RULES.items():
                g = engine.generate(prompt, n=N, drafter="none", hash_logits=True, **how)
                out[f"{name} {i} {rule}"] = dict(ids=g.token_ids, sha256=g.logits_sha256)
    GOLDEN.write_text("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")

class Scripted:
    "Drafts of a text that is known, the one at place `wrong` another token; every third time none."
    name = "scripted"
    def __init__(self, text, wrong, most): self.text, self.wrong, self.most, self.calls = text, wrong, most, 0
    def draft(self, ids, n):
        self.calls += 1
        d = self.text[len(ids):len(ids) + min(n, self.most)] if self.calls % 3 else []
        if 0 < self.wrong <= len(d): d[self.wrong - 1] = (d[self.wrong - 1] + 1) % 250
        return d, [1.0]*len(d)
    def committed(self, ids, hidden=None, prompt=False): pass
    def rollback(self, n): pass

def scripted(engine, text, wrong, most):
    session = Session(engine, 512, drafter="none")
    session.policy = Alone(Scripted(text, wrong, most))
    return session

def check_one(name):
    "One model: texts compared, texts different, by arm."
    start, known = time.time(), json.loads(GOLDEN.read_text())
    engine, prompts = load(name, "cuda")
    drafters = ["none", "copy", "auto"] + ["mtp"]*(name != "tiny-qwen4exp")
    result, first, counts = {}, time.time() - start, {}
    sessions = {d: engine.session(512, drafter=d) for d in drafters}
    for i, prompt in enumerate(prompts):
        ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        for rule, how in RULES.items():
            want = known[f"{name} {i} {rule}"]
            def compare(arm, hashed, **options):
                g = engine.generate(prompt, n=N, hash_logits=hashed, **how, **options)
                bad = g.token_ids != want["ids"] or hashed and g.logits_sha256 != want["sha256"]
                arm = f"{arm}, {'hashed' if hashed else 'ids'}"
                old = result.get(arm, (0, 0)); result[arm] = old[0] + 1, old[1] + bool(bad)
                c = counts.setdefault(arm, [0, 0, 0])
                for j, v in enumerate((g.rounds, g.drafted, g.accepted)): c[j] += v
            for d in drafters:
                for hashed in (True, False): compare(d, hashed, session=sessions[d])
            if rule == "hot": continue
            text = [*ids, *want["ids"]]
            for most, wrong in ((5, 0), (5, 1), (5, 2), (5, 3), (5, 5), (15, 0), (30, 9), (63, 40)):
                compare(f"{most} drafts, wrong: {wrong}", False, session=scripted(engine, text, wrong, most))
                if most in (5, 15): compare(f"{most} drafts, wrong: {wrong}", True, session=scripted(engine, text, wrong, most))
    return dict(model=name, load_s=round(first, 1), seconds=round(time.time() - start, 1), arms=result, counts=counts,
                different=sum(b for _, b in result.values()), texts=sum(a for a, _ in result.values()))

# ---------------------------------------------------------------- the bundled model on three kinds of text
ARMS = {"plain": "none", "mtp": "mtp", "copy": "copy", "auto": "auto", "plain again": "none"}

def rates(out, most, passes=2, sets="AVR"):
    "Rows of the published schema."
    from alphabook.drafts import set_rows, take_prompts, sets_table
    from alphabook.prompts import load_prompts
    from alphabook.protocol import model_facts
    engine = Engine.load(ROOT/"data"/"models"/"alphabook-mini.gguf", "cuda", n_ctx=2048)
    sessions = {arm: engine.session(2048, drafter=d) for arm, d in ARMS.items()}
    prompts = [p for name in sets for p in load_prompts(name, split="test")[:most]]
    found, wrong = take_prompts(engine, sessions, prompts, passes + 1)
    found = {k: v[1:] for k, v in found.items()}             # the first pass without hashes records rounds
    facts = dict(model="alphabook-mini", quantization="Q8_0, F16, …")
    try: facts = model_facts(engine)
    except Exception: pass                                   # kinds of products are a CPU's
    prices = engine.prices
    result = dict(rows=set_rows(found, facts, 2048), mismatches=wrong,
                  prices=None if prices is None else dict(seconds=prices.seconds[1:], guess=prices.guess))
    print(sets_table(result), *wrong, sep="\n", flush=True)
    return result

# ---------------------------------------------------------------- imposed acceptance
def DEVICE():
    import torch
    return "cuda" if torch.cuda.is_available() else "cpu"

PLANS = {}                                                   # recordings hold the addresses of these buffers

def impose(plan):
    "Let as many rows of a round be said as the plan has it, round after round; the choice of every row is made and paid for."
    import torch, triton, triton.language as tl
    import alphabook.gpu_verdicts as gv
    from alphabook.gpu_functions import begin, launch
    @triton.jit
    def k_impose(p_best, p_ids, p_plan, p_at, W, n, B: tl.constexpr, PDL: tl.constexpr):
        begin(PDL)
        i, at = tl.arange(0, B), tl.load(p_at)
        rows = tl.load(p_plan + at % n)
        id = tl.load(p_ids + i + 1, mask=i + 1 < W, other=7)
        tl.store(p_best + i, tl.where(i == rows - 1, id ^ 1, id), mask=(i < rows) & (i < W))
        tl.store(p_at, at + 1)
    sound, key = gv.choose_rows, tuple(plan)
    if key not in PLANS: PLANS[key] = torch.tensor(plan, device=DEVICE()), torch.zeros(1, dtype=torch.int64, device=DEVICE())
    buffer, at = PLANS[key]
    globals().update(tl=tl, begin=begin)
    def imposed(s, logits, positions, k, share):
        best, ok = sound(s, logits, positions, k, share)
        best, W = best.contiguous(), len(best)
        launch(k_impose, (1,), best, s.round(W).ids, buffer, at, W, len(plan), B=triton.next_power_of_2(W), warps=1)
        return best, ok
    gv.choose_rows = imposed
    return lambda: setattr(gv, "choose_rows", sound)

def with_block(like, layers=None):
    "`gpu_models.synthetic` with a block that drafts: model, bytes a token, block."
    import alphabook.gpu_layers as gl, alphabook.gpu_mtp as gm, alphabook.mtp as mtp, alphabook.synth as sy
    import gpu_models
    choose, shapes, config, Real, tensors = sy.choose_shape, sy.all_shapes, sy.config_of, gl.GpuModel, mtp.model_tensors
    found = []
    def build(mf, cfg):
        model = Real(mf, cfg)
        mtp.model_tensors = gl.model_tensors
        found.append(gm.gpu_block(model, mf))
        return model
    sy.choose_shape = lambda like, layers, mtp, changes: choose(like, layers, 1, changes)
    sy.all_shapes, sy.config_of, gl.GpuModel = (lambda s, mtp=1: shapes(s, 1)), (lambda s, mtp=1: config(s, 1)), build
    try: model, read = gpu_models.synthetic(like, layers, device=DEVICE())
    finally: sy.choose_shape, sy.all_shapes, sy.config_of, gl.GpuModel, mtp.model_tensors = choose, shapes, config, Real, tensors
    return model, read, found[0]

def forced(out, parts=("plain", "mtp", "wide"), layers=None, quick=False, like="qwen3.6-35b-a3b", at=512, wide_=24):
    "Tokens a second of the shape: plain, MTP with 3 drafts at a mean of 3 tokens a round, 24 tokens a round."
    import torch
    from alphabook.gpu_mtp import GpuMtpDrafter
    t0, wait = time.time(), torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    model, read, own = with_block(like, layers)
    print("loaded", round(time.time() - t0, 1), "s", flush=True)
    rows, rng = [], np.random.default_rng(5)
    def row(arm, value, unit, spread=0.0, n=1, **more):
        rows.append(dict(model=like, quantization="Q4_K_M", arm=arm, context=512, value=value, unit=unit, spread=spread, n=n, **more))
        print(arm, f"{value:.4g}", unit, f"±{spread:.2g}", more, flush=True)
    def timed(f, n):
        wait(); t = time.perf_counter(); said = f(); wait()
        return said/(time.perf_counter() - t)
    text = rng.integers(0, min(50000, model.cfg.n_vocab), at).tolist()
    def ready(mtp=False):
        cache = model.new_cache(2048)
        drafter = GpuMtpDrafter(own, cache, depth=3, min_p=0) if mtp else None
        for i in range(0, at, 64): model.run_round(cache, text[i:i + 64], want=1); cache.commit(i + len(text[i:i + 64]))
        if drafter: drafter.committed(cache.ids[:at])
        return cache, drafter
    arms, undo = {}, None
    if "plain" in parts:
        a, _ = ready()
        def plain(n=64):
            a.n = at
            for _ in range(0, n, 8): model.continue_text(a, 100, min(n, 8))
            return n
        arms["plain"] = plain
    if "mtp" in parts:
        c, drafter = ready(True)
        def mtp(n=64):
            c.n = at; drafter.ready, said, token, looks, rounds = None, 0, 100, 0, 0
            drafter.n, drafter.known = at - 1, at
            while said < n:
                for _, ids in model.continue_drafting(c, drafter, token, 1000): said, token, rounds = said + len(ids), ids[-1], rounds + 1
            mtp.rounds = rounds
            return said
        arms["mtp 3, mean 3.0"] = mtp
    if "wide" in parts:
        b, _ = ready()
        blocks = rng.integers(0, min(50000, model.cfg.n_vocab), (64, wide_)).tolist()
        def wide(n=192):
            b.n, said = at, 0
            for ids in blocks:
                if said >= n: break
                said += len(model.judge(b, ids))
            return said
        arms["24 a round"] = wide
    def run(arm, f, **how):
        undo = impose({"mtp 3, mean 3.0": [2, 3, 4, 3], "24 a round": [wide_]}[arm]) if arm != "plain" else None
        try: return timed(lambda: f(**how), 1)
        finally: undo and undo()
    for arm, f in arms.items():                              # compiled and recorded under its own plan
        t = time.time(); run(arm, f, n=2); run(arm, f, n=2); row(arm + ", first rounds", time.time() - t, "s")
    if quick: return rows
    found = {arm: [] for arm in [*arms, "plain again"]}
    for turn in range(7):
        for arm in [*arms, *(["plain again"] if "plain" in arms else [])]:
            found[arm].append(run(arm.replace(" again", ""), arms[arm.replace(" again", "")]))
    for arm, v in found.items():
        if v: row(arm, statistics.median(v), "tok/s", max(v) - min(v), len(v), values=v)
    kernels = {}
    if "mtp" in parts and not layers:
        import gpu_models
        names, span, count = gpu_models.kernels_of(lambda: mtp(9))
        kernels = {k: v for k, v in list(names.items())[:30]}
        for k, (n, us) in list(names.items())[:16]: print(f"   {k[:50]:50} {n:5} {us/n:8.2f} us each {us:9.1f} us", flush=True)
        print("   span", round(span), "us of", mtp.rounds, "rounds, nodes", count, flush=True)
    return rows

# ---------------------------------------------------------------- all of it
def spawn(*args): return subprocess.Popen([sys.executable, __file__, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

def final(out, seconds, most):
    "Checks, while others compile; then what is timed, alone on the card."
    start, result = time.time(), dict(topic="gpu-drafts", device="h200", date=datetime.date.today().isoformat(),
                                      command="python data/trials/gpu_drafts.py final", contract_version="1", checks=[], rows=[])
    def save(): Path(out, "gpu-drafts.json").write_text(json.dumps(result, indent=1))
    left = lambda share: max(1, share*seconds - (time.time() - start))
    checks = {m: spawn("one", "--model", m) for m in MODELS}
    warm = {p: spawn("forced", "--quick", "--layers", 8, "--parts", p, "--out", out) for p in ("wide", "mtp", "plain")}
    for kind, jobs in (("check", checks), ("warm", warm)):
        for name, p in jobs.items():
            try: text = p.communicate(timeout=left(0.6))[0]
            except subprocess.TimeoutExpired: p.kill(); text = p.communicate()[0] + " stopped, out of time"
            last = (text.strip().splitlines() or [""])[-1]
            ok = p.returncode == 0
            if kind == "check":
                try: r = json.loads(last); ok = r["different"] == 0
                except ValueError: r = dict(model=name, failed=text[-1500:])
                result["checks"].append(r)
            print("ok" if ok else "FAILED", kind, name, round(time.time() - start), last[-600:] if ok and kind == "warm" else text[-1500:], flush=True)
            save()
    for name, f in (("rates", lambda: rates(out, most)), ("forced", lambda: dict(rows=forced(out)))):
        if left(1) < 15: print("not done:", name, flush=True); continue
        try:
            r = f(); result["rows"] += r.pop("rows"); result |= r
        except Exception:
            import traceback; print("FAILED", name, traceback.format_exc()[-2500:], flush=True)
        save(); print(name, "done at", round(time.time() - start), "s", flush=True)

if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=["golden", "check", "one", "rates", "forced", "final"])
    p.add_argument("--model", default="mini"); p.add_argument("--out", default=os.environ.get("OUT", ".")); p.add_argument("--seconds", type=float, default=170)
    p.add_argument("--prompts", type=int, default=6); p.add_argument("--parts", default="plain,mtp,wide"); p.add_argument("--layers", type=int); p.add_argument("--quick", action="store_true")
    p.add_argument("--shape", default="qwen3.6-35b-a3b"); p.add_argument("--at", type=int, default=512); p.add_argument("--wide", type=int, default=24)
    a = p.parse_args()
    Path(a.out).mkdir(parents=True, exist_ok=True)
    if a.what == "golden": golden()
    elif a.what == "one": print(json.dumps(check_one(a.model)), flush=True)
    elif a.what == "check":
        for m in MODELS: print(json.dumps(check_one(m)), flush=True)
    elif a.what == "rates": Path(a.out, "gpu-drafts-rates.json").write_text(json.dumps(rates(a.out, a.prompts)))
    elif a.what == "forced": print(json.dumps(forced(a.out, a.parts.split(","), a.layers, a.quick, a.shape, a.at, a.wide)), flush=True)
    else: final(a.out, a.seconds, a.prompts)
