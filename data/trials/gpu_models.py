"""Chapters 11d and 11e on a GPU: whole models, their bits against recorded ones of the numpy spec, and their speed.

    python gpu_models.py golden       # on a CPU: hashes of every row of logits of small models of each architecture
    python gpu_models.py small        # with TRITON_INTERPRET=1, without a GPU: tiny models beside the numpy spec
    python gpu_models.py check        # on a GPU: the same rows in every width, chunk, replay and in recorded rounds
    python gpu_models.py time         # on a GPU: published shapes, with random weights made on the device
    python gpu_models.py card         # on a GPU: all models again, in --seconds, what is new first
    python gpu_models.py confirm      # from what that left in --out: the records that the card gave too are no longer pending

Results go to --out as JSON.
"""
import argparse, hashlib, json, os, statistics, subprocess, sys, tempfile, time, traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import numpy as np

from alphabook.config import load_config
from alphabook.modelfile import ModelFile
from alphabook.synth import synth

GOLDEN = ROOT/"tests"/"golden"/"gpu_models.json"
PROMPT, DECODED = 70, 14
MODELS = [("mini", None, None), ("tiny-llama", "Q4_K_M", 4), ("tiny-qwen2", "Q8_0", 4), ("tiny-qwen3", "Q4_K_M", 4), ("tiny-gemma3", "Q5_K_M", None),
          ("small-qwen3moe", "Q4_K_M", 4), ("small-olmoe", "Q6_K", 4), ("small-gpt-oss", "MXFP4", 4), ("small-qwen35", "Q4_K_M", 4),
          ("small-qwen35moe", "Q4_K_M", 4), ("small-qwen35moe", "IQ3_S", 4), ("small-qwen35moe", "F16", 2), ("small-qwen3next", "Q4_0", 4),
          ("small-qwen3moe", "IQ4_XS", 4), ("small-qwen3moe", "IQ3_XXS", 4), ("small-qwen35", "BF16", 4), ("small-qwen4exp", "Q4_K_M", 3),
          ("smollm2", None, None), ("qwen3-0.6b", "Q4_K_M", 2), ("qwen3-8b", "Q4_K_M", 2), ("llama-3-8b", "Q5_K_M", 2), ("gemma3-270m", "Q8_0", 6),
          ("qwen3-30b-a3b", "Q4_K_M", 2), ("olmoe-1b-7b", "Q4_K_M", 2), ("gpt-oss-20b", "MXFP4", 2), ("qwen3.6-27b", "Q4_K_M", 2),
          ("qwen3.6-35b-a3b", "Q4_K_M", 2), ("qwen3-next-80b-a3b", "Q4_K_M", 2), ("qwen3.8-flash-next", "Q4_K_M", 3)]
FEW = dict(n_vocab=4096)                                       # of published shapes: layers as wide as theirs, but one of each kind
CHANGES = {"qwen3-0.6b": {}, "qwen3-8b": FEW, "llama-3-8b": FEW, "gemma3-270m": FEW, "qwen3-30b-a3b": FEW, "olmoe-1b-7b": FEW, "gpt-oss-20b": FEW,
           "qwen3.6-27b": FEW | dict(interval=2), "qwen3.6-35b-a3b": FEW | dict(interval=2), "qwen3-next-80b-a3b": FEW | dict(interval=2, n_expert=128),
           "qwen3.8-flash-next": FEW | dict(interval=3, n_expert=64, ple_base=2000)}
ALL = ",".join(map(str, range(len(MODELS))))
ORDER = [0, *range(16, len(MODELS)), *range(1, 16)]            # what no card has given yet comes first

def name_of(like, type, layers): return like if type is None else f"{like} {type} {layers or ''}".strip()

def open_model(like, type, layers):
    "An open file, its configuration, and a text of PROMPT ids."
    if like == "mini": path = next(p for p in (r/"data"/"models"/"alphabook-mini.gguf" for r in (ROOT, ROOT.parent)) if p.exists())
    elif like == "smollm2": path = smollm2()
    else:
        path = Path(tempfile.gettempdir())/f"gpu-{like}-{type}-{layers}-{os.getpid()}.gguf"
        synth(like, type, path, n_layers=layers, **CHANGES.get(like, {}))
    mf = ModelFile(path)
    cfg = load_config(mf)
    if type: path.unlink()
    return mf, cfg, np.random.default_rng(7).integers(0, min(cfg.n_vocab, 250), PROMPT).tolist()

def smollm2():
    "The fetched file; or one put together from pieces in the temporary folder (a machine without network got them one by one)."
    place, pieces = Path(tempfile.gettempdir())/"smollm2.gguf", sorted(Path(tempfile.gettempdir()).glob("smollm2.piece.*"))
    if place.exists(): return place
    if not pieces:
        from alphabook.fetch import fetch
        return fetch("smollm2")
    with place.open("wb") as f:
        for p in pieces: f.write(p.read_bytes())
    return place

def row_hash(row): return hashlib.sha256(np.ascontiguousarray(row, "<f4").tobytes()).hexdigest()[:16]

# ---------------------------------------------------------------- recorded on a CPU
def record(m):
    "Ids, and a hash of each row of logits, of the numpy spec; of the CPU backend for models that are too large for it."
    from alphabook import cpu_streams, streams
    from alphabook.arithmetic import argmax
    from alphabook.layers import Model
    from alphabook.rounds import run_round
    mf, cfg, ids = open_model(*m)
    model = Model(mf, cfg, cpu_streams if m[0] in CHANGES or m[1] is None else streams)
    cache, rows = model.new_cache(PROMPT + DECODED), []
    def read(part):
        y = run_round(model, cache, part); cache.commit(cache.n + len(part)); rows.extend(map(row_hash, y)); return y[-1]
    for i in range(0, PROMPT, 35): last = read(ids[i:i + 35])
    while len(ids) < PROMPT + DECODED: ids.append(int(argmax(last))); last = read(ids[-1:])
    return dict(ids=ids, rows=rows)

def golden():
    out = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for m in MODELS[::-1]:
        if name_of(*m) in out: continue
        out[name_of(*m)] = record(m) | dict(pending=True)        # until a card has given the same
        print(name_of(*m), out[name_of(*m)]["ids"][-DECODED:], flush=True)
        if m == MODELS[0]: out["engine"] = engine(True)
        write_golden(out)

def write_golden(out):
    "One model a line."
    GOLDEN.write_text("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")

# ---------------------------------------------------------------- compared on a GPU
def check_one(m, arms=None, place=None):
    "One model: {arm: (rows compared, rows different)}; the file `place` has what is known so far, and what went wrong."
    from alphabook.gpu_layers import GpuModel
    import alphabook.gpu_rounds
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    here = name_of(*m) not in known or os.environ.get("RECORD")
    want = record(m) if here else known[name_of(*m)]
    mf, cfg, _ = open_model(*m)
    ids, rows, n = want["ids"], want["rows"], PROMPT + DECODED
    start = time.time()
    model, result = GpuModel(mf, cfg), {}
    loaded = time.time() - start
    def compare(arm, at, logits):
        bad = sum(row_hash(y) != rows[at + i] for i, y in enumerate(logits))
        old = result.get(arm, (0, 0)); result[arm] = old[0] + len(logits), old[1] + bad
    def chunks(arm, size):
        cache = model.new_cache(n)
        for i in range(0, n, size):
            y = model.run_round(cache, ids[i:i + size]); compare(arm, i, y); cache.commit(i + len(y))
    def sizes(arm, parts):
        cache, i = model.new_cache(n), 0
        for size in parts: y = model.run_round(cache, ids[i:i + size]); compare(arm, i, y); i += size; cache.commit(i)
    def rejections(arm, width):
        cache, j = model.new_cache(n + width), 0
        model.run_round(cache, ids[:20]); cache.commit(20)
        while cache.n < n:
            j = j % (width - 1) + 1
            part, pos = list(ids[cache.n:cache.n + width]), cache.n
            if j < len(part): part[j] = (part[j] + 1) % cfg.n_vocab
            y = model.run_round(cache, part)[:j]; compare(arm, pos, y); cache.commit(pos + len(y))
    def greedy(arm, each):
        cache = model.new_cache(n)
        y = model.run_round(cache, ids[:64], want=1); compare(arm, 63, y); cache.commit(64)
        y = model.run_round(cache, ids[64:PROMPT], want=1); compare(arm, PROMPT - 1, y); cache.commit(PROMPT)
        got = [int(y[0].argmax())]
        while len(got) < DECODED: got += model.continue_text(cache, got[-1], min(each, DECODED - len(got)))
        result[arm + " ids"] = DECODED, sum(a != b for a, b in zip(got, ids[PROMPT:]))
        y = model.run_round(cache, ids[cache.n:]); compare(arm, cache.n, y)
    def again(arm):
        cache = model.new_cache(n)
        model.run_round(cache, ids[:40]); cache.commit(40); cache.checkpoint(); snap = cache.snapshot()
        model.run_round(cache, ids[:8]); cache.commit(45)
        at = cache.rollback(40)
        compare(arm, at, model.run_round(cache, ids[at:at + 8])); cache.commit(at + 8)
        cache.restore(snap)
        compare(arm, 40, model.run_round(cache, ids[40:]))
    todo = {"chunks of 64": lambda a: chunks(a, 64), "chunks of 7": lambda a: chunks(a, 7), "chunks of 33": lambda a: chunks(a, 33), "chunks of 256": lambda a: chunks(a, 256), "64, 16 and 4 rows": lambda a: sizes(a, (64, 16, 4)), "one row": lambda a: chunks(a, 1),
            "rejections, width 3": lambda a: rejections(a, 3), "rejections, width 8": lambda a: rejections(a, 8), "greedy": lambda a: greedy(a, 4), "rollback and restore": again}
    errors = {}
    def so_far():
        recordings = sum(bool(r.graph) for s in model.spare for r in s.recordings.values())
        found = dict(model=name_of(*m), load_s=round(loaded, 2), seconds=round(time.time() - start, 1), recordings=recordings, recorded_here=bool(here), arms=result, errors=errors)
        if place: Path(f"{place}.new").write_text(json.dumps(found)); os.replace(f"{place}.new", place)
        return found
    for arm in QUICK:
        if arms is not None and arm not in arms: continue
        try: todo[arm](arm)
        except Exception:
            if not place: raise
            errors[arm] = traceback.format_exc()
        so_far()
    return so_far()

def engine(record=False):
    "The engine on the bundled model: the hash of all logits, and the same ids without looking at logits."
    from alphabook.engine import Engine
    path = next(p for p in (r/"data"/"models"/"alphabook-mini.gguf" for r in (ROOT, ROOT.parent)) if p.exists())
    e, text = Engine.load(path, "cpu" if record else "cuda", n_ctx=512), "def fibonacci(n):\n"
    a = e.generate(text, n=48, hash_logits=True)
    if record: return dict(ids=a.token_ids, sha256=a.logits_sha256)
    s = e.session()
    b = [e.generate(text, n=48, session=s) for _ in range(2)][1]
    want = json.loads(GOLDEN.read_text())["engine"]
    c = e.generate(text, n=400)
    print("engine on cuda:", "hash equal" if a.logits_sha256 == want["sha256"] else f"HASH DIFFERS {a.logits_sha256}",
          "ids equal" if a.token_ids == b.token_ids == want["ids"] == c.token_ids[:48] else "IDS DIFFER", f"{c.predicted_n/c.predicted_ms*1e3:.0f} tok/s", len(c.text), flush=True)

def spawn(*args): return subprocess.Popen([sys.executable, __file__, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

def check(out, jobs, models, arms):
    "All models, several processes at once."
    todo, running, done = models, {}, []
    while todo or running:
        while todo and len(running) < jobs: i = todo.pop(0); running[i] = spawn("one", "--model", i, *(("--arms", arms) if arms else ()))
        time.sleep(0.2)
        for i in [i for i, p in running.items() if p.poll() is not None]:
            text = running.pop(i).stdout.read()
            try: r = json.loads(text.strip().splitlines()[-1])
            except (ValueError, IndexError): r = dict(model=name_of(*MODELS[i]), failed=text[-1500:])
            done.append(r)
            bad = sum(b for _, b in r.get("arms", {}).values())
            print("FAILED" if "failed" in r else "BITS DIFFER" if bad else "ok", json.dumps(r), flush=True)
    Path(out, "check.json").write_text(json.dumps(done, indent=1))

QUICK = ["64, 16 and 4 rows", "one row", "rejections, width 8", "greedy", "rollback and restore", "chunks of 256", "chunks of 7", "chunks of 33", "rejections, width 3", "chunks of 64"]

def card(out, seconds_, jobs, models):
    "All models in processes of their own, the new ones first; what each has done so far is in --out all the time."
    start, folder = time.time(), Path(tempfile.mkdtemp())
    todo, running, failed = list(models), {}, {}
    def gather():
        found = [json.loads(f.read_text()) for f in sorted(folder.glob("*.json"))]
        lost = [dict(model=name_of(*MODELS[i]), failed=text) for i, text in failed.items()]
        Path(out, "card.json.new").write_text(json.dumps(dict(seconds=round(time.time() - start), checks=found + lost), indent=1))
        os.replace(Path(out, "card.json.new"), Path(out, "card.json"))
    while (todo or running) and time.time() - start < seconds_:
        while todo and len(running) < jobs:
            i = todo.pop(0)
            log = open(folder/f"{i}.log", "w+")
            running[i] = subprocess.Popen([sys.executable, __file__, "one", "--model", str(i), "--out", str(folder/f"{i}.json")], stdout=log, stderr=log), log
        time.sleep(1)
        for i in [i for i, (p, _) in running.items() if p.poll() is not None]:
            p, log = running.pop(i)
            log.seek(0)
            if p.returncode: failed[i] = log.read()[-20000:]
            print("FAILED" if p.returncode else "ended", name_of(*MODELS[i]), round(time.time() - start), "s", flush=True)
        gather()
    for i, (p, log) in running.items():
        p.kill(); p.wait(); log.seek(0)
        failed[i] = "out of time " + log.read()[-20000:]
    for i in todo: failed[i] = "not begun"
    gather()
    for c in json.loads(Path(out, "card.json").read_text())["checks"]:
        arms = c.get("arms", {})
        print(c["model"], sum(a for a, _ in arms.values()), "rows", sum(b for _, b in arms.values()), "different", len(arms), "of", len(QUICK) + 1, "arms", c.get("seconds"),
              "s", c.get("failed", "").strip()[-300:], *(f"{k}: {v[-300:]}" for k, v in c.get("errors", {}).items()), flush=True)

def confirm(out, commit):
    "Records that a card gave too are records from now on; writes what it compared to data/results."
    from alphabook.arithmetic import CONTRACT_VERSION
    import datetime
    report, known, rows = json.loads(Path(out, "card.json").read_text()), json.loads(GOLDEN.read_text()), []
    for c in report["checks"]:
        arms, name = c.get("arms", {}), c["model"]
        if not arms: print("nothing of", name, c.get("failed", "")[-200:]); continue
        bad, complete = sum(b for _, b in arms.values()), {"64, 16 and 4 rows", "one row"} <= set(arms)
        if not bad and complete: known[name].pop("pending", None)
        print(name, "different" if bad else "equal" if complete else "not complete")
        for arm, (n, b) in arms.items():
            rows.append(dict(model=name, quantization=name.split()[1] if " " in name else "as in the file", context=PROMPT + DECODED, width=None, mode="exact", arm=arm,
                             drafter="none", value=b, unit="rows different", n=n, spread=None))
    write_golden(known)
    head = dict(topic="gpu-records", device="h200", date=datetime.date.today().isoformat(), commit=commit, command="python data/trials/gpu_models.py card", contract_version=CONTRACT_VERSION,
                seconds=report["seconds"], not_finished=sorted({c["model"] for c in report["checks"] if "failed" in c or c.get("errors")}))
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + ",\n".join("  " + json.dumps(r) for r in rows) + "\n ]\n}\n"
    (ROOT/"data"/"results"/"h200"/f"gpu-records-{head['date']}.json").write_text(text)

# ---------------------------------------------------------------- compared in Triton's interpreter
def small(like, type, kv=("f16", "f16"), **changes):
    "Rounds, a replay, a prompt's chunk and greedy steps of a tiny model beside the numpy spec: rows compared and different."
    from alphabook import streams
    from alphabook.gpu_rounds import GpuModel
    from alphabook.layers import Model
    from alphabook.rounds import run_round
    with tempfile.TemporaryDirectory() as folder:
        mf = ModelFile(synth(like, type, Path(folder)/"tiny.gguf", **changes))
        cfg = load_config(mf)
        a, b = Model(mf, cfg, streams, kv=kv), GpuModel(mf, cfg, kv=kv)
        x, y, rows, bad = a.new_cache(16), b.new_cache(16), 0, 0
        for ids, keep, want in (([5, 7, 260], 2, None), ([9, 1], 2, 1)):
            p, q = run_round(a, x, ids, want), run_round(b, y, ids, want)
            rows, bad = rows + len(p), bad + sum(row_hash(i) != row_hash(j) for i, j in zip(p, q))
            x.commit(x.n + keep); y.commit(y.n + keep)
        first = int(p[0].argmax()); said, token = [], first
        for _ in range(2): token = int(run_round(a, x, [token])[0].argmax()); x.commit(x.n + 1); said.append(token)
        bad += said != b.continue_text(y, first, 2)
    print(f"{like} rows {rows} different {bad} greedy {said}", flush=True)

# ---------------------------------------------------------------- timed on a GPU
SHAPES = {"8b": "qwen3-8b", "27b": "qwen3.6-27b", "35b-a3b": "qwen3.6-35b-a3b", "30b-a3b": "qwen3-30b-a3b", "0.6b": "qwen3-0.6b"}

def synthetic(like, layers=None, type="Q4_K_M", device="cuda"):
    "A GpuModel whose weights are random words of the right types, made on the device; bytes that a token reads."
    import torch
    from types import SimpleNamespace
    import alphabook.gpu_experts as ge, alphabook.gpu_layers as gl, alphabook.gpu_products as gp
    from alphabook.gpu_weights import packing
    from alphabook.modelfile import TYPE
    from alphabook.synth import all_shapes, choose_shape, config_of, pick_type, vector_values
    s = choose_shape(like, layers, 0, {})
    cfg, rng, read = config_of(s), np.random.default_rng(1), 0
    tensors = {}
    for name, shape in all_shapes(s).items():
        t = TYPE[pick_type(name, shape, s, type)]
        nbytes = int(np.prod(shape[:-1]))*t.nbytes(shape[-1]) if len(shape) > 1 else 4*shape[0]
        data = np.broadcast_to(np.uint8(0), (int(np.prod(shape[:-1])), t.nbytes(shape[-1]))) if t.name != "F32" else \
            vector_values(name, shape, s, rng).view(np.uint8).reshape(int(np.prod(shape[:-1])), -1)
        tensors[name] = SimpleNamespace(name=name, shape=shape, type=t, nbytes=nbytes, data=data)
        if len(shape) == 3: nbytes = nbytes*cfg.n_used//cfg.n_expert
        read += 0 if name == "token_embd.weight" and not cfg.tied else nbytes
    g = torch.Generator(device=device).manual_seed(1)
    def words(n, nb, type):
        p = packing(type)
        w = torch.randint(-2**31, 2**31 - 1, (n, nb, p.words), dtype=torch.int32, device=device, generator=g)
        f = torch.randn((n, nb, 2*(p.words - p.o_float)), device=device, generator=g)*2e-5
        w[:, :, p.o_float:] = (f.bfloat16() if p.brain else f.half()).view(torch.int32)
        return w
    def load_matrix(data, type, rows_only=False, device="cuda"):
        if type == "F32": return gp.Matrix(torch.from_numpy(np.array(data)).to(device).view(torch.float32), type, len(data), data.shape[1]//4)
        K = data.shape[1]//TYPE[type].size*TYPE[type].block
        return gp.Matrix(words(-(-len(data)//16), -(-K//256), type), type, len(data), K)
    def load_experts(data, type, device="cuda"):
        E, R, K = data.shape[0], data.shape[1], data.shape[2]//TYPE[type].size*TYPE[type].block
        return ge.Experts(words(E*R//16, -(-K//256), type).unflatten(0, (E, -1)), type, R, K)
    def concatenate(blocks, axis=0):
        if any(b.strides[-1] for b in blocks): return np.concatenate(blocks, axis)
        shape = list(blocks[0].shape); shape[axis] = sum(b.shape[axis] for b in blocks)
        return np.broadcast_to(np.uint8(0), shape)
    old = gl.load_matrix, gl.load_experts, gl.np, gl.model_tensors
    gl.load_matrix, gl.load_experts, gl.np = load_matrix, load_experts, SimpleNamespace(concatenate=concatenate, cumsum=np.cumsum, delete=np.delete)
    gl.model_tensors = lambda mf, cfg: tensors
    try: return gl.GpuModel(SimpleNamespace(path=like), cfg), read
    finally: gl.load_matrix, gl.load_experts, gl.np, gl.model_tensors = old

def seconds(f, n):
    "Median seconds of f, n times, the device being waited for after each."
    import torch
    times = []
    for _ in range(n):
        torch.cuda.synchronize(); t = time.perf_counter(); f(); torch.cuda.synchronize(); times.append(time.perf_counter() - t)
    return statistics.median(times), max(times) - min(times)

def kernels_of(f):
    "{name: (launches, microseconds)} of what f does on the device, and the span from the first kernel's start to the last's end."
    import torch
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as p: f(); torch.cuda.synchronize()
    names, spans = {}, []
    for e in p.events():
        if e.device_type.name != "CUDA": continue
        n = names.setdefault(e.name, [0, 0.0]); n[0] += 1; n[1] += e.time_range.elapsed_us(); spans.append((e.time_range.start, e.time_range.end))
    span = max(b for _, b in spans) - min(a for a, _ in spans) if spans else 0
    return dict(sorted(names.items(), key=lambda x: -x[1][1])), span, len(spans)

def time_one(shape, out, widths, layers=None, deep=None, quick=False):
    "One published shape: rows of results."
    import torch
    import alphabook.gpu_rounds as gr
    start = time.time()
    model, read = synthetic(SHAPES[shape], layers)
    torch.cuda.synchronize()
    rows = []
    def row(arm, width, context, value, unit, spread=0.0, n=1, **more):
        rows.append(dict(model=SHAPES[shape], quantization="Q4_K_M", arm=arm, width=width, context=context, value=value, unit=unit, spread=spread, n=n, **more))
        print(shape, arm, "W", width, "at", context, f"{value:.4g}", unit, more, flush=True)
    row("load", 0, 0, time.time() - start, "s", bytes_per_token=read)
    cache = model.new_cache(4096); s = cache.state
    token = 100
    def at(n): cache.n, cache.width = n, 0
    # decode
    if 1 in widths: at(512); t = time.time(); model.continue_text(cache, token, 2); row("first rounds", 1, 512, time.time() - t, "s")
    if quick:
        for W in widths:
            at(512); r = cache.begin([token]*W); s.play(gr.all_logits, r.W)
            if s.nets: cache.commit(513)
            if W == 64: at(512); model.run_round(cache, [token]*64, want=1)
        torch.cuda.synchronize()
        return rows, {}
    for n in (64, 8):
        def go(): at(512); model.continue_text(cache, token, n)
        go(); sec, spread = seconds(go, 7)
        row("decode" if n == 64 else "decode, host every 8", 1, 512, n/sec, "tok/s", spread/sec, 7, ms=1e3*sec/n, gbs=read*n/sec/1e9, share=read*n/sec/4.23e12)
    at(512); cache.begin([token]); eager = s.recordings[gr.step, -1, False].f
    sec, spread = seconds(eager, 3); row("decode, not recorded", 1, 512, 1/sec, "tok/s", spread/sec, 3)
    at(512); cache.begin([token]); names, span, count = kernels_of(lambda: [s.play(gr.step, -1, False) for _ in range(4)])
    row("nodes of a step", 1, 512, count/4, "nodes", span_us=span/4)
    for k, (c, us) in list(names.items())[:24]: print(f"   {k[:60]:60} {c/4:7.1f} a step {us/c:8.2f} us each {us/4:9.1f} us a step", flush=True)
    profile_ = {k: [c/4, us/4] for k, (c, us) in names.items()}
    for W in widths:
        at(512); r = cache.begin([token + i for i in range(W)]); s.play(gr.all_logits, r.W); s.play(gr.all_logits, r.W)
        g = s.recordings[gr.all_logits, r.W]
        def go():
            for _ in range(8): g()
        sec, spread = seconds(go, 5); row("round", W, 512, 1e3*sec/8, "ms", spread/sec, 5)
    s.clear(); cache.turn = 0
    at(0); ids = np.random.default_rng(3).integers(0, 50000, 72).tolist(); model.run_round(cache, ids[:8]); cache.commit(8)
    snap, hashes = cache.snapshot(), {}
    for W in widths:
        if 64 % W: continue
        n = 64 if W >= 8 else 8
        hashes[W] = []
        for i in range(8, 8 + n, W): hashes[W] += [row_hash(y) for y in model.run_round(cache, ids[i:i + W])]; cache.commit(i + W)
        cache.restore(snap)
    same = [h[:8] == hashes[widths[-1]][:8] and (len(h) == 8 or h == hashes[widths[-1]]) for h in hashes.values()]
    row("rows equal in all widths", 0, 72, float(all(same)), "bool", widths=list(hashes))
    if s.nets:
        for W in (8, 64):
            if W not in widths: continue
            at(512); cache.begin([token]*W); cache.commit(513)
            g = s.recordings[gr.accept, W]
            if g.graph: sec, spread = seconds(lambda: [g() for _ in range(8)], 3); row("commit with replay", W, 512, 1e3*sec/8, "ms", spread/sec, 3)
    def prompt():
        at(0)
        for i in range(0, 2048, 64): model.run_round(cache, [token + j for j in range(64)], want=1); cache.commit(i + 64)
    prompt(); sec, spread = seconds(prompt, 3); row("prompt", 64, 2048, 2048/sec, "tok/s", spread/sec, 3)
    if deep:
        del cache, s, eager, g; model.spare.clear(); torch.cuda.empty_cache()
        for n in deep:
            cache = model.new_cache(n + 256); s = cache.state
            at(n); model.continue_text(cache, token, 2)
            def go(): at(n); model.continue_text(cache, token, 16)
            sec, spread = seconds(go, 3); row("decode", 1, n, 16/sec, "tok/s", spread/sec, 3)
            del cache, s; model.spare.clear(); torch.cuda.empty_cache()
    return rows, profile_

def final(out, shapes, widths, seconds_, models):
    "Kernels compiled by a process per shape and width while some models are checked; then every shape is timed; in so many seconds."
    start = time.time()
    left = lambda share: max(1, share*seconds_ - (time.time() - start))
    warm = {(s, w): spawn("time", "--quick", "--layers", 8, "--shapes", s, "--widths", w, "--out", out) for w in widths[::-1] for s in shapes}
    checks = {m: spawn("one", "--model", m, "--arms", "64, 16 and 4 rows;one row;rejections, width 8;greedy") for m in models}
    done = []
    for share, jobs in ((0.58, warm), (0.64, checks)):
        for key, q in jobs.items():
            try: text = q.communicate(timeout=left(share))[0]
            except subprocess.TimeoutExpired: q.kill(); text = q.communicate()[0] + " stopped, out of time"
            name = name_of(*MODELS[key]) if jobs is checks else key
            if jobs is checks and q.returncode == 0: done.append(json.loads(text.strip().splitlines()[-1]))
            print("ok" if q.returncode == 0 else "FAILED", name, round(time.time() - start), text.strip().splitlines()[-1][-700:] if jobs is checks or q.returncode else "", flush=True)
    result = dict(checks=done, rows=[], kernels={})
    for s in shapes:
        Path(out, "gpu-models.json").write_text(json.dumps(result))
        if time.time() - start > seconds_ - 6: print("not timed:", s, flush=True); continue
        try: rows, result["kernels"][SHAPES[s]] = time_one(s, out, widths, deep=[32768] if s in ("27b", "35b-a3b") else None); result["rows"] += rows
        except Exception as e: print("FAILED", s, repr(e)[:300], flush=True)
        import gc, torch; gc.collect(); torch.cuda.empty_cache()
    Path(out, "gpu-models.json").write_text(json.dumps(result))
    print(round(time.time() - start), "s", flush=True)
    engine()

def results(out, commit):
    "One file of the published schema from what `final` left in a folder."
    import datetime
    from alphabook.arithmetic import CONTRACT_VERSION
    found = json.loads(Path(out, "gpu-models.json").read_text())
    rows = [dict(r, mode="exact", drafter="none") for r in found["rows"]]
    date = datetime.date.today().isoformat()
    head = dict(topic="gpu-models", device="h200", date=date, commit=commit, command="python data/trials/gpu_models.py final", contract_version=CONTRACT_VERSION,
                note=found.get("note", "weights are random words of the right types, made on the device"), checks=found["checks"], kernels=found["kernels"])
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + ",\n".join("  " + json.dumps(r) for r in rows) + "\n ]\n}\n"
    path = ROOT/"data"/"results"/"h200"/f"gpu-models-{date}.json"
    path.write_text(text)
    print(path, len(rows), "rows")

def main():
    p = argparse.ArgumentParser(); p.add_argument("what"); p.add_argument("--out", default="."); p.add_argument("--model", type=int, default=0)
    p.add_argument("--models", default=ALL); p.add_argument("--jobs", type=int, default=12); p.add_argument("--shapes", default="8b,35b-a3b,30b-a3b,0.6b,27b"); p.add_argument("--widths", default="1,8,64")
    p.add_argument("--quick", action="store_true"); p.add_argument("--deep", default="32768"); p.add_argument("--arms"); p.add_argument("--layers", type=int); p.add_argument("--commit"); p.add_argument("--seconds", type=float, default=120)
    a = p.parse_args()
    widths = [int(w) for w in a.widths.split(",")]
    for what in a.what.split(","):
        if what == "golden": golden()
        elif what == "small":
            small("tiny-llama", "Q4_K", n_layer=1, n_ff=256)
            small("tiny-llama", "Q8_0", ("q8_0", "q4_0"), n_layer=1, n_ff=256)
            small("tiny-qwen35moe", "Q4_0", n_layer=2, interval=2, n_expert=4, n_ff_shared=64)
            small("tiny-qwen4exp", "Q8_0", n_expert=2, n_used=1)
        elif what == "one": print(json.dumps(check_one(MODELS[a.model], a.arms and a.arms.split(";"), a.out if a.out.endswith(".json") else None)))
        elif what == "card": card(a.out, a.seconds, a.jobs, ORDER if a.models == ALL else [int(m) for m in a.models.split(",")])
        elif what == "confirm": confirm(a.out, a.commit)
        elif what == "warm":
            start, jobs = time.time(), {(s, w): spawn("time", "--quick", "--layers", 8, "--shapes", s, "--widths", w, "--out", a.out)
                                        for w in widths[::-1] for s in a.shapes.split(",")}
            for (s, w), q in jobs.items():
                text = q.communicate()[0]
                print("warmed" if q.returncode == 0 else "FAILED", s, w, round(time.time() - start), "" if q.returncode == 0 else text[-1200:], flush=True)
        elif what == "check": check(a.out, a.jobs, [int(m) for m in a.models.split(",")], a.arms)
        elif what == "engine": engine()
        elif what == "results": results(a.out, a.commit)
        elif what == "final": final(a.out, a.shapes.split(","), widths, a.seconds, [int(m) for m in a.models.split(",")])
        elif what == "time":
            for s in a.shapes.split(","):
                deep = [int(n) for n in a.deep.split(",")] if a.deep and s in ("27b", "35b-a3b") else None
                if a.quick: time_one(s, a.out, widths, a.layers, quick=True); continue
                try: time_one(s, a.out, widths, a.layers, deep)
                except Exception as e: import traceback; traceback.print_exc(); print("FAILED", s, repr(e)[:300], flush=True)
                import gc, torch; gc.collect(); torch.cuda.empty_cache()

if __name__ == "__main__": main()
