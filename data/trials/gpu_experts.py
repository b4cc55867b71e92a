"""Chapters 20a and 20b on a GPU: experts in slots on the card, the others computed by the CPU through a doorbell.

    python gpu_experts.py bits        # the bundled model against its recorded rows, with all, no, random, some experts in slots
    python gpu_experts.py bell        # what a ring costs: there and back, without anything to compute
    python gpu_experts.py speed       # a published shape under a cap, on made-up sticky routes; ids and logits compared;
                                      # its prompts with missing experts computed by the CPU, and streamed (chapter 20d)
    python gpu_experts.py all         # the three, in --seconds; results to --out as JSON
    python gpu_experts.py tiers       # caps of the card × of RAM (chapter 21c): a short prompt, a long one, a new long one; what the plan says beside it

TRITON_INTERPRET=1 and --like tiny-qwen35moe try `bits`, `speed` and `tiers` without a GPU. `tiers` has run nowhere else yet.
"""
import argparse, datetime, json, os, shutil, statistics, subprocess, sys, time, traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
import numpy as np

LIKE, GB = "qwen3.6-35b-a3b", 1 << 30
def room(p): return shutil.disk_usage(p).free if Path(p).is_dir() else 0
SHM = Path("/dev/shm" if room("/dev/shm") > room("/tmp")//2 or room("/dev/shm") > 30*GB else "/tmp")

def wait():
    import torch
    if torch.cuda.is_available(): torch.cuda.synchronize()

# ---------------------------------------------------------------- bits
def bits():
    "The bundled model: rows of logits compared with those of the CPU, and different ones, by residency."
    from alphabook.config import load_config
    from alphabook.gpu_rounds import GpuModel
    from alphabook.modelfile import ModelFile
    from alphabook.doorbell import worker_cores
    from alphabook.resolved import ExpertStore
    from gpu_models import GOLDEN, row_hash
    known = json.loads(GOLDEN.read_text())["mini"]
    ids, rows, out = known["ids"], known["rows"], {}
    mf = ModelFile(next(p for p in (r/"data"/"models"/"alphabook-mini.gguf" for r in (ROOT, ROOT.parent)) if p.exists()))
    cfg, rng = load_config(mf), np.random.default_rng(0)
    for name, how in dict(plain=None, all=dict(part=1.0), none=dict(part=0.0), random=dict(part=0.5), adaptive=dict(part=0.33, bound=8)).items():
        start = time.time()
        store = ExpertStore(mf, cfg, workers=worker_cores()[:1], **how) if how else None   # others compile meanwhile
        model = GpuModel(mf, cfg, store=store)
        compared = bad = 0
        for parts, more in (((16, 1, 5), 0), ((1,), 12)):
            cache, turn, last = model.new_cache(len(ids) + 8), 0, len(ids)
            while cache.n < last:
                part = ids[cache.n:cache.n + parts[turn % len(parts)]]
                y = model.run_round(cache, part)
                compared, bad = compared + len(y), bad + sum(row_hash(v) != rows[cache.n + i] for i, v in enumerate(y))
                cache.commit(cache.n + (3 if len(part) == 5 else len(part)))
                turn += 1
                if name == "random" and turn % 2: store.shuffle(rng)
                if more and cache.n == 40: break
            if more:
                got = []
                while len(got) < more: got += model.continue_text(cache, ids[40] if not got else got[-1], min(4, more - len(got)))
                y = model.run_round(cache, got[-1:])            # a text of its own from position 41 on: only residency must not matter
                out.setdefault("own text", (got, row_hash(y[0])))
                compared, bad = compared + 1, bad + ((got, row_hash(y[0])) != out["own text"])
        out[name] = dict(compared=compared, different=bad, seconds=round(time.time() - start, 1),
                         **({} if store is None else dict(hits=store.hits, misses=store.misses, admitted=store.admitted)))
        print(json.dumps({k: v for k, v in out.items() if k != "own text"}), flush=True)
        if store: store.end()

# ---------------------------------------------------------------- the doorbell
def bell(n=200):
    "Microseconds of a ring and its answer inside of a recorded graph, nothing to compute; by number of workers."
    import torch
    from alphabook.doorbell import ANSWER, BOARD, Programs, Workers, k_ring, k_wait, shared, worker_cores
    from alphabook.gpu_functions import launch
    from alphabook.tape import kernel, recording, share
    @kernel
    def nothing(lo, hi, x): x[0] += 1
    with recording() as tape: share(nothing, 1, 1, np.zeros(1, np.int64))
    rows, cores = [], worker_cores()
    print("cores", cores, flush=True)
    for many in sorted({1, 4, max(1, len(cores)//2), len(cores)}):
        programs = Programs(1); programs.add(0, tape)
        memory = shared(8*BOARD, "cuda").view(torch.int64); board = memory.numpy()
        rung, late = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
        def pair():
            launch(k_ring, (1,), memory, rung, 0, warps=1); launch(k_wait, (1,), memory, rung, late, 3_000_000, warps=1)
        workers = Workers(board, programs, cores[:many])
        workers.wake(); pair(); wait()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph.capture_begin()
            for _ in range(n): pair()
            graph.capture_end()
        def timed():
            wait(); t = time.perf_counter(); graph.replay(); wait(); return (time.perf_counter() - t)/n*1e6
        timed(); got = [timed() for _ in range(9)]
        rows.append(dict(arm="doorbell, there and back", workers=many, value=statistics.median(got), unit="µs", spread=max(got) - min(got), n=len(got), late=int(late)))
        print(rows[-1], flush=True)
        workers.stop()
        board[ANSWER] = 1 << 40                                # nobody has to answer: what the two kernels cost
        timed(); got = [timed() for _ in range(9)]
        rows.append(dict(arm="doorbell, the two kernels and one look", workers=many, value=statistics.median(got), unit="µs", spread=max(got) - min(got), n=len(got)))
        print(rows[-1], flush=True)
    return rows

# ---------------------------------------------------------------- a large shape on made-up routes
def impose(trace, E):
    "Routes are the trace's, by position; the weights are the router's own of the experts that were chosen for it."
    import torch, triton, triton.language as tl
    import alphabook.gpu_layers as gl
    from alphabook.gpu_functions import begin, launch
    @triton.jit
    def k_force(p_x, p_positions, p_plan, p_out, T, at, step, x_row, E: tl.constexpr, EP: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr):
        begin(PDL)
        w, i = tl.program_id(0), tl.arange(0, EP)
        p = p_plan + tl.maximum(tl.load(p_positions + w), 0) % T*step + at
        chosen = i < 0
        for r in tl.static_range(K): chosen = chosen | (i == tl.load(p + r).to(tl.int32))
        x = tl.load(p_x + w*x_row + i, mask=i < E, other=0.0)
        tl.store(p_out + w*E + i, tl.where(chosen, x, -1e30), mask=i < E)
    globals().update(tl=tl, begin=begin)
    real, plan = gl.routed, {}
    T, L, k = trace.ids.shape
    def routed(model, layer, logits, r):
        if "ids" not in plan: plan["ids"] = torch.from_numpy(trace.ids).to(logits.device)
        out = torch.empty((len(logits), E), dtype=torch.float32, device=logits.device)
        launch(k_force, (len(logits),), logits, r.positions, plan["ids"], out, T, layer.index*k, L*k, logits.stride(0), E=E, EP=triton.next_power_of_2(E), K=k, warps=1)
        return real(model, layer, out, r)
    gl.routed = routed

def pattern():
    "The bundled model's recorded routes, from the chapter's texts; the pattern of the made-up ones."
    from alphabook.experts import Trace, load_trace
    path = HERE/"mini_routes.npz"
    return load_trace(path)

def speed(out, like=LIKE, layers=None, caps="all,16,24,0", tokens=128, prompt=512, passes=3, path=None, workers=None, bound=1, ctx=4096, long=(2048,)):
    "Rows: decode and prompt speeds by cap, with what a round's time consists of; ids and last logits compared between caps."
    import torch
    from alphabook.config import load_config
    from alphabook.doorbell import BELL, PROGRAM, ANSWER
    from alphabook.experts import Trace, skew, sticky_trace, stickiness
    from alphabook.modelfile import ModelFile
    from alphabook.gpu_verdicts import GpuModel
    from alphabook.rounds import prefill
    from alphabook.streaming import StreamingStore
    t0, rows = time.time(), []
    def row(arm, value, unit, spread=0.0, n=1, **more):
        rows.append(dict(model=like, quantization="Q4_K_M", arm=arm, context=prompt, width=1, value=value, unit=unit, spread=spread, n=n, **more))
        print(f"{time.time() - t0:6.1f} s ", arm, f"{value:.4g}", unit, f"±{spread:.2g}", more, flush=True)
    path = make_file(like, layers) if path is None else Path(path)
    row("file made", time.time() - t0, "s")
    mf = ModelFile(path); cfg = load_config(mf)
    made = sticky_trace(pattern(), 2*(prompt + passes*tokens + 64), cfg.n_layer, cfg.n_expert, cfg.n_used)
    half = len(made.ids)//2
    trace, before = (Trace(made.ids[a:b], made.n_expert, made.prompt[a:b]) for a, b in ((0, half), (half, None)))
    ranking = before.counts(), len(before.ids)                  # of other tokens than those that are measured
    row("routes made", skew(trace), "skew", stickiness=stickiness(trace))
    impose(trace, cfg.n_expert)
    text, near, known = np.random.default_rng(5).integers(5, min(50000, cfg.n_vocab), prompt).tolist(), {}, {}
    gpu = torch.cuda.is_available()
    def timed(f):
        wait(); t = time.perf_counter(); f(); wait(); return time.perf_counter() - t
    for cap in caps.split(","):
        start, (cap, _, many) = time.time(), cap.partition(":")
        if many: workers = sorted(os.sched_getaffinity(0))[1:1 + int(many)]
        how = dict(part=1.0) if cap == "all" else dict(part=0.0, bound=0) if cap == "0" else dict(part=float(cap)) if cap.startswith("0.") else dict(vram=int(cap)*GB)
        if gpu: torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if gpu else 0
        store = StreamingStore(mf, cfg, ranking=ranking, workers=workers, **(dict(bound=bound, n_ctx=ctx) | how), say=print)
        store.cpu.update(near); store.patience = min(store.patience, 4_000_000)
        model = GpuModel(mf, cfg, store=store)
        near = store.cpu
        name = {"all": "all in slots", "0": "none in slots"}.get(cap, f"cap {cap} GiB") + f", {len(store.workers.cores)} workers"
        n_slots = sum(int((b.owner >= 0).sum()) for b in store.banks)
        row(f"{name}, loaded", time.time() - start, "s", slots=n_slots, experts=cfg.n_expert*cfg.n_layer, workers=len(store.workers.cores))
        cache = model.new_cache(max(prompt + passes*tokens, *(long if store.shelves else (0,))) + 64)
        def read():
            for i in range(0, prompt, 64): y = model.run_round(cache, text[i:i + 64], want=1); cache.commit(i + len(text[i:i + 64]))
            return y
        row(f"{name}, first prompt and recording", timed(read), "s")
        cache.rollback(0)
        t = timed(read); row(f"{name}, prompt", prompt/t, "tok/s", ms=t*1e3)
        if store.shelves:
            store.prices.learn_round(t/(prompt/64))                # what the rule then chooses, see below
            round_ = store.prices.round
            for n in dict.fromkeys((prompt, *long)):
                long_text, got = (text*(n//len(text) + 1))[:n], []
                def streamed():
                    cache.rollback(0); store.prices.round = None                # always
                    return prefill(model, cache, long_text)
                t = timed(streamed); row(f"{name}, first streamed prompt of {n} and recording", t, "s")
                for _ in range(passes): got.append(n/timed(lambda: got.append(streamed().tobytes())))
                said_, got = got[::2], got[1::2]
                if n == prompt:
                    cache.rollback(0); want = read().tobytes(); same = all(s == want for s in said_)
                row(f"{name}, streamed prompt of {n}", statistics.median(got), "tok/s", max(got) - min(got), len(got), same_logits=same if n == prompt else None,
                    fetched=store.plan.missing, lent=store.plan.aside, pcie=store.prices.speed/1e9, copies_ms=store.prices.copy(store.plan.missing, store.plan.aside)*1e3, values=got)
            cache.rollback(0); read()                              # decoding goes on from here
            store.prices.round = round_
            row(f"{name}, rule", next((n for n in range(64, 1025, 64) if store.prices.is_better(n, store.plan.missing, store.plan.aside)), 0), "rows from which experts are streamed",
                round_ms=round_*1e3, pass_ms_a_round=store.prices.rows and store.prices.rows*1e3)
            store.granted = 0
        if not tokens: continue
        said, times, notes = [text[-1]], [], []
        model.continue_text(cache, said[-1], 2); cache.n = prompt; model.continue_text(cache, said[-1], 2); cache.n = prompt      # recorded
        for p in range(passes + 1):
            store.hits = store.misses = store.admitted = store.rounds = 0; store.notes[2] = 0
            def decode():
                for _ in range(0, tokens, 8): said.extend(model.continue_text(cache, said[-1], 8))
            if p == passes: break
            t = timed(decode); times.append(tokens/t)
            notes.append(dict(ms=t/tokens*1e3, wait_ms=int(store.notes[2])/1e6/tokens, hit=store.hits/max(1, store.hits + store.misses), misses=store.misses/max(1, store.rounds), admitted=store.admitted/max(1, store.rounds)))
        last = model.run_round(cache, [said[-1]])
        known[name] = said, last.tobytes()
        same = known[name] == known[next(iter(known))]
        row(f"{name}, decode", statistics.median(times), "tok/s", max(times) - min(times), len(times), values=times, passes=notes, same_text=same, finite=bool(np.isfinite(last).all()),
            peak_gib=(torch.cuda.max_memory_allocated() - held)/GB if gpu else 0, ids=said[1:9])
        if cap == "0":
            s, board = store, store.box.near.board                     # the CPU alone: the host rings
            s.workers.wake()
            for n in range(1, cfg.n_used + 1):
                got = []
                for layer in model.layers:
                    s.box.near.experts[:n] = s.box.near.wanted[:n] = np.random.default_rng(layer.index).permutation(cfg.n_expert)[:n]
                    number, ring = s.program_for(layer, 1) + n - 1, int(board[BELL] >> PROGRAM) + 1
                    t = time.perf_counter(); board[BELL] = ring << PROGRAM | number
                    while board[ANSWER] < ring: pass
                    got.append(time.perf_counter() - t)
                s.rung[0] = ring
                nbytes = sum(t.nbytes for name_, t in s.tensors[0].items() if name_ in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"))/cfg.n_expert*n
                row(f"CPU alone, {n} experts", statistics.median(got)*1e6, "µs", (max(got) - min(got))*1e6, len(got), gbs=nbytes/statistics.median(got)/1e9)
            s.workers.rest()
        store.end(); del cache, model, store
        import gc; gc.collect()
        if gpu: torch.cuda.empty_cache()
        Path(out, f"speed-{os.getpid()}.json").write_text(json.dumps(rows, indent=1))
    return rows

def tiers(out, seconds, like=LIKE, layers=None, caps="16,24", rams="64,32,16", long=19456, tokens=64, path=None):
    "Rows by caps: tok/s after a short prompt, of a long prompt, after it, of a new long prompt, after that; what doesn't fit into the time is left out."
    import torch
    from alphabook.config import load_config
    from alphabook.experts import Trace, sticky_trace
    from alphabook.gpu_plan import asked_card, card_facts, card_speeds, choose_card
    from alphabook.gpu_rounds import GpuModel
    from alphabook.gpu_tiers import TieredStore
    from alphabook.modelfile import ModelFile
    from alphabook.plan import facts_of, measured
    from alphabook.tiers import HITS, MISSES
    t0, rows, gpu = time.time(), [], torch.cuda.is_available()
    def row(arm, value, unit, **more):
        rows.append(dict(model=like, quantization="Q4_K_M", arm=arm, width=1, value=value, unit=unit, spread=0.0, n=1, **more))
        print(f"{time.time() - t0:6.1f} s ", arm, f"{value:.4g}", unit, more, flush=True)
        Path(out, "gpu-tiers.json").write_text(json.dumps(rows, indent=1))
    path = Path(path) if path else make_file(like, layers)
    mf = ModelFile(path); cfg = load_config(mf)
    made = sticky_trace(pattern(), 2048, cfg.n_layer, cfg.n_expert, cfg.n_used)
    trace, before = (Trace(made.ids[a:b], made.n_expert, made.prompt[a:b]) for a, b in ((0, 1024), (1024, None)))
    impose(trace, cfg.n_expert)
    rng, first, size = np.random.default_rng(5), None, (lambda text: int(float(text)*GB))
    texts = [rng.integers(5, min(50000, cfg.n_vocab), n).tolist() for n in (64, long, long)]
    host = facts_of(mf, cfg, measured(path))
    if gpu:
        import dataclasses
        card = dataclasses.replace(asked_card(torch), **card_speeds(torch))
        row("speed of a copy", card.copy, "GB/s"); row("pinned memory to card", card.pcie, "GB/s")
    for cap in caps.split(","):
        for ram in rams.split(","):
            name = f"cap {cap} GiB, RAM {ram} GiB"
            if gpu:
                p = choose_card(card_facts(mf, cfg, card, host), dict(vram=size(cap), ram=size(ram), ctx=long + 256))
                row(f"{name}, plan", p.speed.get("plain", 0), "tok/s", reasons=p.reasons)
            start = time.time()
            try: store = TieredStore(mf, cfg, vram=size(cap), n_ctx=long + 256, ram=size(ram), ranking=(before.counts(), len(before.ids)), say=print)
            except ValueError as e: print(name, "left out:", e); continue
            model = GpuModel(mf, cfg, store=store)
            row(f"{name}, loaded", time.time() - start, "s", slots=sum(store.slots), below=sum(b.slots for b in store.under.banks), complete=store.under.complete)
            def zero(): store.hits = store.misses = store.rounds = 0; store.notes[2] = 0; store.under.numbers[[HITS, MISSES]] = 0
            def shares(): return dict(hit=store.hits/max(1, store.hits + store.misses), below=int(store.under.numbers[HITS])/max(1, int(store.under.numbers[[HITS, MISSES]].sum())), wait_ms=int(store.notes[2])/1e6)
            speed_ = None
            for text, label in zip(texts, ("a short prompt", "a long prompt", "a new long prompt")):
                if time.time() - t0 > seconds or speed_ and len(text) > 64 and time.time() - t0 + len(text)/speed_ > seconds: print(name, label, "left out: no time"); continue
                cache = model.new_cache(len(text) + tokens + 64)
                model.run_round(cache, text[:64], want=1); cache.commit(0); wait()                # recorded
                zero(); t = time.perf_counter()
                for i in range(0, len(text), 64): model.run_round(cache, text[i:i + 64], want=1); cache.commit(i + len(text[i:i + 64]))
                wait(); speed_ = len(text)/(time.perf_counter() - t)
                row(f"{name}, {label}", speed_, "tok/s", context=len(text), **shares())
                said = model.continue_text(cache, text[-1], 8)
                zero(); wait(); t = time.perf_counter()
                for _ in range(0, tokens, 8): said += model.continue_text(cache, said[-1], 8)
                wait(); row(f"{name}, after {label}", tokens/(time.perf_counter() - t), "tok/s", context=len(text), **shares(), ids=said[:16])
                if label == "a short prompt": first = first or said; assert said == first, "the text depends on the caps"
                del cache
            store.end(); del model, store
            import gc; gc.collect()
            if gpu: torch.cuda.empty_cache()
    return rows

def make_file(like, layers):
    from alphabook.synth import synth
    path = SHM/f"{like}-{layers or 'whole'}.gguf"
    if not path.exists(): synth(like, "Q4_K_M" if not like.startswith("tiny") else "Q4_0", path, n_layers=layers)
    return path

# ---------------------------------------------------------------- all of it
def spawn(*args): return subprocess.Popen([sys.executable, __file__, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

def everything(out, seconds, caps):
    "Compiling and comparing at once, then the measurements, one after another, alone on the card."
    start = time.time()
    result = dict(topic="gpu-experts", device="h200", date=datetime.date.today().isoformat(), command="python data/trials/gpu_experts.py all", contract_version="1", rows=[])
    left = lambda share: max(1, share*seconds - (time.time() - start))
    def save(): Path(out, "gpu-experts.json").write_text(json.dumps(result, indent=1))
    bits_, small = spawn("bits"), make_file(LIKE, 4)
    print(small, round(time.time() - start, 1), "s", flush=True)
    warm = ("speed", "--layers", 4, "--caps", "0.5", "--passes", 1, "--workers", 1, "--out", out)
    jobs = {"one row": spawn(*warm, "--tokens", 8, "--prompt", 1), "64 rows": spawn(*warm, "--tokens", 0, "--prompt", 64), "make": spawn("make"), "bits": bits_}
    for name, p in jobs.items():
        try: text = p.communicate(timeout=left(0.55))[0]
        except subprocess.TimeoutExpired: p.kill(); text = p.communicate()[0] + " stopped, out of time"
        print(f"== {name}, rc {p.returncode}, {time.time() - start:.0f} s\n{text[-3500:]}", flush=True)
        if name == "bits":
            lines = [x for x in text.splitlines() if x.startswith("{")]
            result["bits"] = json.loads(lines[-1]) if lines else {}
            if p.returncode: result["bits"]["failed"] = text[-3000:]
        save()
    for name, args in (("bell", ("bell",)), ("speed", ("speed", "--caps", caps, "--out", out))):
        p = spawn(*args)
        try: text = p.communicate(timeout=left(0.65 if name == "bell" else 1))[0]
        except subprocess.TimeoutExpired: p.kill(); text = p.communicate()[0] + " stopped, out of time"
        print(f"== {name}, rc {p.returncode}, {time.time() - start:.0f} s\n{text[-6000:]}", flush=True)
        try: result["rows"] += json.loads(text.strip().splitlines()[-1])
        except (ValueError, IndexError):
            found = Path(out, f"speed-{p.pid}.json")
            if found.exists(): result["rows"] += json.loads(found.read_text())
        save()

if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=["bits", "bell", "speed", "tiers", "make", "all"])
    p.add_argument("--out", default=os.environ.get("OUT", ".")); p.add_argument("--seconds", type=float, default=135); p.add_argument("--like", default=LIKE)
    p.add_argument("--layers", type=int); p.add_argument("--caps", default="16,0,all"); p.add_argument("--tokens", type=int, default=128); p.add_argument("--passes", type=int, default=3)
    p.add_argument("--prompt", type=int, default=512); p.add_argument("--workers", type=int); p.add_argument("--bound", type=int, default=1)
    p.add_argument("--rams", default="64,32,16"); p.add_argument("--long", type=int, default=19456); p.add_argument("--file")
    a = p.parse_args()
    Path(a.out).mkdir(parents=True, exist_ok=True)
    if a.what == "bits": bits()
    elif a.what == "make": t = time.time(); print(make_file(a.like, a.layers), round(time.time() - t, 1), "s")
    elif a.what == "tiers": print(json.dumps(tiers(a.out, a.seconds, a.like, a.layers, *(("16,24" if a.caps == "16,0,all" else a.caps), a.rams, a.long, a.tokens, a.file))))
    elif a.what == "bell": print(json.dumps(bell()))
    elif a.what == "speed":
        from alphabook.doorbell import worker_cores
        print(json.dumps(speed(a.out, a.like, a.layers, a.caps, a.tokens, a.prompt, a.passes, workers=worker_cores()[:a.workers] if a.workers else None, bound=a.bound)))
    else: everything(a.out, a.seconds, a.caps)
