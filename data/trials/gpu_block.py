"""The block drafter on a GPU (chapter 18c): its texts against a CPU's, and what a block, its wide rounds and MTP cost.

    python gpu_block.py golden            # on a CPU: texts and hashes of small models with drafters of noise
    python gpu_block.py check             # on a GPU: the same, and the bundled model with its trained drafter (tests/golden/gpu_drafts.json)
    python gpu_block.py cost --shape 27b  # on a GPU: ms of a block, of rounds of 1 … 16 rows, of MTP's guesses; tokens a second at
                                          # imposed acceptance
    python gpu_block.py final --seconds 400 --out OUT      # all of it: checks, then both shapes; OUT/gpu-block.json grows as it goes

Drafters of published shapes: 35b-a3b's has 6 layers of width 2048 (8 taps, blocks of 16), 27b's is taken to be as deep (no card says so),
with blocks of 8 and DFlash2's additions. Chapter 18b draws from the JSON at which hit rate a block beats MTP with three guesses."""
import argparse, atexit, datetime, json, os, statistics, subprocess, sys, tempfile, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
import numpy as np

import gpu_drafts
from alphabook.blockdraft import synth_draft
from alphabook.config import load_config
from alphabook.engine import Engine
from alphabook.modelfile import ModelFile
from alphabook.synth import synth
from gpu_drafts import DEVICE, N, PROMPTS, RULES

GOLDEN = ROOT/"tests"/"golden"/"gpu_block.json"
DFLASH2 = dict(conv=2, conv_group=16, rank=32, top_k=5)
SMALL = {"tiny-qwen35moe": ("Q8_0", {}), "tiny-qwen35": ("Q4_K_M", DFLASH2)}       # model: (type, additions of its drafter)
SHAPES = {"35b-a3b": ("qwen3.6-35b-a3b", dict(n_layer=6, n_ff=6144, n_head=32, n_kv_head=8, head_dim=128, n_ctx=4096, block=16, window=4096,
                                              mask_id=248077, taps=(1, 6, 11, 16, 22, 27, 32, 37), type="Q4_K")),
          "27b": ("qwen3.6-27b", dict(n_layer=6, n_ff=17408, n_head=32, n_kv_head=8, head_dim=128, n_ctx=4096, block=8, mask_id=248077,
                                      taps=(1, 9, 17, 25, 33, 41, 49, 57), type="Q4_K", more=dict(conv=2, conv_group=64, rank=256, top_k=16))),
          "tiny": ("tiny-qwen35", dict(n_layer=1, n_ff=32, n_head=1, n_kv_head=1, head_dim=32, block=3, taps=(0, 1), type="F16"))}

def small(name, device):
    "A small model with a drafter of noise beside it: an engine, prompts."
    folder = Path(tempfile.mkdtemp())
    path, (type, more) = folder/f"{name}.gguf", SMALL[name]
    synth(name, type, path)
    with ModelFile(path) as mf: synth_draft(folder/f"{name}-dflash.gguf", load_config(mf), taps=(1, 3), more=more)
    atexit.register(lambda: [f.unlink() for f in folder.iterdir()] and folder.rmdir())
    ids = np.random.default_rng(3).integers(5, 250, 40).tolist()
    return Engine.load(path, device, n_ctx=512, drafter="block"), [ids[:7], ids + ids[:20]]

def golden():
    "What a CPU says, without drafts, and how many guesses of its block were right."
    out = {}
    for name in SMALL:
        engine, prompts = small(name, "cpu")
        for i, prompt in enumerate(prompts):
            for rule, how in RULES.items():
                g = engine.generate(prompt, n=N, drafter="none", hash_logits=True, **how)
                session = engine.session(512)
                session.policy.drafter.min_p = 0
                b = engine.generate(prompt, n=N, session=session, **how)
                assert b.token_ids == g.token_ids
                out[f"{name} {i} {rule}"] = dict(ids=g.token_ids, sha256=g.logits_sha256, rounds=b.rounds, drafted=b.drafted, accepted=b.accepted)
    GOLDEN.write_text("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")

def check_one(name):
    "Texts of a model with block drafts, all guesses verified: whatever the rounds, as on a CPU."
    known = json.loads((GOLDEN if name in SMALL else gpu_drafts.GOLDEN).read_text())
    start = time.time()
    if name in SMALL: engine, prompts = small(name, "cuda")
    else: engine, prompts = Engine.load(ROOT/"data"/"models"/"alphabook-mini.gguf", "cuda", n_ctx=512, drafter="block"), PROMPTS["mini"]
    loaded, texts, bad, counts, other = time.time() - start, 0, [], [0, 0, 0], 0
    session = engine.session(512)
    for i, prompt in enumerate(prompts):
        for rule, how in RULES.items():
            want = known[f"{name} {i} {rule}"]
            for hashed in (True, False):
                for min_p in (0.0, 0.3):
                    session.policy.drafter.min_p = min_p
                    g = engine.generate(prompt, n=N, session=session, hash_logits=hashed, **how)
                    texts += 1
                    if g.token_ids != want["ids"] or hashed and g.logits_sha256 != want["sha256"]: bad.append(f"{i} {rule} {hashed} {min_p}")
                    for j, v in enumerate((g.rounds, g.drafted, g.accepted)): counts[j] += v
                    if "accepted" in want and hashed and not min_p: other += (g.drafted, g.accepted) != (want["drafted"], want["accepted"])
    return dict(model=name, load_s=round(loaded, 1), seconds=round(time.time() - start, 1), texts=texts, different=len(bad), which=bad[:5],
                rounds=counts[0], drafted=counts[1], accepted=counts[2], guesses_unlike_cpu=other)

# ---------------------------------------------------------------- what it costs
def cost(out, shape, layers=None, passes=7, quick=False, at=512):
    "Rows of the published schema: ms of rounds, of blocks, of MTP; tokens a second at imposed acceptance."
    import torch
    from alphabook.gpu_block import GpuBlockDrafter, guess_block, load_gpu_draft
    from alphabook.gpu_mtp import GpuMtpDrafter, guess_on
    from alphabook.gpu_rounds import all_logits
    from alphabook.gpu_verdicts import desk_of
    like, how = SHAPES[shape]
    cuda, t0 = torch.cuda.is_available(), time.time()
    wait = torch.cuda.synchronize if cuda else lambda: None
    if not cuda: at = 8
    model, read, mtp_own = gpu_drafts.with_block(like, layers)
    path = Path(tempfile.gettempdir())/f"block-{shape}-{os.getpid()}.gguf"
    if layers: how = how | dict(taps=tuple(range(min(len(how["taps"]), layers))))
    synth_draft(path, model.cfg, **how)
    atexit.register(path.unlink, missing_ok=True)
    own, size = load_gpu_draft(model, ModelFile(path)), path.stat().st_size
    print(f"loaded {shape} in {time.time() - t0:.1f} s; a drafter of {size/1e9:.2f} GB", flush=True)
    rows, text = [], np.random.default_rng(5).integers(0, min(50000, model.cfg.n_vocab), at).tolist()
    B = own.draft.block
    def row(arm, values, unit, **more):
        rows.append(dict(model=like, quantization="Q4_K_M", mode="exact", context=at, arm=arm, value=statistics.median(values), unit=unit,
                         spread=max(values) - min(values), n=len(values), values=values, **more))
        print(arm, f"{rows[-1]['value']:.4g}", unit, f"± {rows[-1]['spread']:.2g}", more, flush=True)
        if out: Path(out, f"gpu-block-{shape}.json").write_text(json.dumps(rows))
    def ready(make=None):
        cache = model.new_cache(2*at)
        drafter = make and make(cache)
        for i in range(0, at, 64): model.run_round(cache, text[i:i + 64], want=1); cache.commit(min(at, i + 64)); drafter and drafter.committed(cache.ids[:cache.n])
        return cache, drafter
    plain, _ = ready()
    mtp, mtp_drafter = ready(lambda c: GpuMtpDrafter(mtp_own, c, depth=3, min_p=0))
    block, drafter = ready(lambda c: GpuBlockDrafter(own, c, min_p=0))
    assert drafter.draft([*text, 100], 1)[0] and mtp_drafter.draft([*text, 100], 1)[0]
    arms, repeat = {}, 1 if quick or not cuda else 20
    def ms(f):
        "Milliseconds of f, one after another on the device."
        wait(); t = time.perf_counter()
        for _ in range(repeat): f()
        wait()
        return 1e3*(time.perf_counter() - t)/repeat
    widths = (1, 2, 3, 4, 8, 16) if cuda else (1, 3)
    for W in widths:
        for name, cache in (("round", plain), ("round, absorbing", block)):
            def f(cache=cache, W=W): cache.state.play(all_logits, W)
            cache.begin(text[:W]); cache.width = 0
            arms[name, W] = f
    for D in sorted({B - 1, min(7, B - 1)}): arms["block", D + 1] = lambda D=D: block.state.play(guess_block, D + 1)
    def mtp_guesses(): mtp.state.play(guess_on, 4, 3)
    mtp.state.drafts.round(4).entry.copy_(torch.tensor([text[:4], list(range(at - 5, at - 1))]))
    desk_of(mtp.state).last.fill_(3)
    arms["MTP, 3 guesses", 4] = mtp_guesses
    found = {a: [] for a in arms}
    for f in arms.values(): f(); f()
    for _ in range(1 if quick else passes):
        for a, f in arms.items(): found[a].append(ms(f))
    for (name, W), v in found.items(): row(name, v, "ms", width=W)
    rates(model, row, plain, mtp, mtp_drafter, block, drafter, at, 1 if quick or not cuda else passes, wait, 4 if quick or not cuda else 64)
    return rows

def rates(model, row, plain, mtp, mtp_drafter, block, drafter, at, passes, wait, n):
    "Tokens a second: plain; MTP with 3 guesses at a mean of 3 tokens a round; whole blocks at some means."
    B, arms = drafter.depth + 1, {}
    def turns(cache, d, plan):
        def f():
            undo = gpu_drafts.impose(plan) if plan else None
            try:
                cache.n, said, token = at, 0, 100
                if not d:
                    while said < n: token = model.continue_text(cache, token, min(8, n))[-1]; said += min(8, n)
                    return said
                d.ready, d.n, d.known = None, at - (d is mtp_drafter), at
                while said < n:
                    for _, ids in model.continue_drafting(cache, d, token, min(1000, cache.room)): said, token = said + len(ids), ids[-1]
                return said
            finally: undo and undo()
        return f
    arms["plain"] = turns(plain, None, None)
    arms["mtp 3, mean 3"] = turns(mtp, mtp_drafter, [2, 3, 4, 3])
    for mean in sorted({3, 5, min(8, B)} if B > 3 else {2}): arms[f"block of {B}, mean {mean}"] = turns(block, drafter, [mean])
    found = {a: [] for a in arms}
    for name, f in [*arms.items()]*2:                        # recorded anew: `impose` has a buffer of its own for each plan
        for cache in (mtp, block): cache.state.forget()
        f()
    for _ in range(passes):
        for name, f in arms.items():
            for cache in (mtp, block): cache.state.forget()
            f(); f()
            wait(); t = time.perf_counter(); said = f(); wait()
            found[name].append(said/(time.perf_counter() - t))
    for name, v in found.items(): row(name, v, "tok/s", drafter=name.split()[0])

def final(out, seconds):
    "Checks side by side, then each shape alone, in so many seconds."
    start, result = time.time(), dict(topic="gpu-block", device="h200", date=datetime.date.today().isoformat(), contract_version="1",
                                      command="python data/trials/gpu_block.py final", checks=[], rows=[])
    left = lambda share=1.0: max(1, share*seconds - (time.time() - start))
    def spawn(*args): return subprocess.Popen([sys.executable, __file__, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    def done(p, limit):
        try: return p.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired: p.kill(); return p.communicate()[0] + " stopped, out of time"
    def save(): Path(out, "gpu-block.json").write_text(json.dumps(result, indent=1))
    jobs = {name: spawn("one", "--model", name) for name in ("mini", *SMALL)}
    for name, p in jobs.items():
        text = done(p, left(0.45))
        try: r = json.loads((text.strip().splitlines() or [""])[-1])
        except ValueError: r = dict(model=name, failed=text[-1500:])
        result["checks"].append(r); save()
        print("ok" if r.get("different") == 0 else "FAILED", r, flush=True)
    for shape in ("35b-a3b", "27b"):
        if left() < 20: print("not done:", shape, flush=True); continue
        text = done(spawn("cost", "--shape", shape, "--out", out), left(0.75 if shape == "35b-a3b" else 1.0))
        print(text[-3000:], flush=True)
        found = Path(out, f"gpu-block-{shape}.json")
        if found.exists(): result["rows"] += json.loads(found.read_text()); save()
    print(f"{time.time() - start:.0f} s", flush=True)

if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=["golden", "check", "one", "cost", "final"])
    p.add_argument("--model", default="mini"); p.add_argument("--shape", default="35b-a3b", choices=SHAPES); p.add_argument("--layers", type=int)
    p.add_argument("--quick", action="store_true"); p.add_argument("--seconds", type=float, default=400); p.add_argument("--out", default=os.environ.get("OUT", "."))
    a = p.parse_args()
    Path(a.out).mkdir(parents=True, exist_ok=True)
    if a.what == "golden": golden()
    elif a.what == "one": print(json.dumps(check_one(a.model)), flush=True)
    elif a.what == "check":
        for m in ("mini", *SMALL): print(json.dumps(check_one(m)), flush=True)
    elif a.what == "cost": cost(a.out, a.shape, a.layers, quick=a.quick)
    else: final(a.out, a.seconds)
