"""What `--mode fast` gains and costs on a CPU: tok/s at long contexts, bytes of the cache, and the distance from exact mode's logits, for types of keys and values.

    python data/trials/fast_mode.py [-m FILE …] [--positions 512,4096,8192] [--text 1024] [--passes 3] [--threads N] [-o FILE]

Speed: a cache of each type is filled by copying the rows of one text's keys and values, read once in exact mode, again and again (decoding reads whatever stands there). Arms take turns, f16 comes twice: the second is the control.
Quality: the same text, read position by position in each mode; KL(exact ‖ fast) in nats, the share of equal favourites, and the perplexity of the text.
"""
import argparse, datetime, json, sys, time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.cpu_streams import set_threads
from alphabook.engine import Engine
from alphabook.kv import EXACT_KV, pack_rows, parse_kv, unpack_rows
from alphabook.protocol import cache_size, commit, load, machine, model_facts, summarise, write_result
from alphabook.rounds import run_round

ARMS = "f16", "f32", "q8_0", "q8_0:q4_0", "q4_0", "f16 again"
STEPS = 24                                     # tokens that are timed in a turn

def text_ids(engine, n):
    "Text that the book itself is made of, some of it prose and some of it code."
    text = "\n".join((ROOT/"alphabook"/f"{name}.py").read_text(encoding="utf-8") for name in ("rounds", "chat", "state"))
    return engine.tokenizer.encode(text)[:n]

def rows_of(model, ids, chunk=32):
    "Logits after every position of a text, and the cache."
    cache, out = model.new_cache(len(ids), keep=0), []
    for i in range(0, len(ids), chunk):
        out.append(run_round(model, cache, ids[i:i + chunk]))
        cache.commit(cache.n + len(out[-1]))
    return np.concatenate(out), cache

def log_shares(logits):
    "Logarithms of the softmax, float64."
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))

def distance(exact, other, ids):
    "KL in nats (mean, 99th percentile), share of equal favourites, perplexities."
    a, b = log_shares(exact), log_shares(other)
    kl = (np.exp(a)*(a - b)).sum(-1)
    ppl = [float(np.exp(-p[np.arange(len(ids) - 1), ids[1:]].mean())) for p in (a, b)]
    return dict(kl_mean=float(kl.mean()), kl_p99=float(np.quantile(kl, .99)), kl_max=float(kl.max()),
                same_favourite=float((exact.argmax(-1) == other.argmax(-1)).mean()), ppl_exact=ppl[0], ppl=ppl[1])

def fill(cache, source, n):
    "Rows of another cache, again and again, up to n positions."
    for table, old, kv in ((cache.k, source.k, cache.kv[0]), (cache.v, source.v, cache.kv[1])):
        for at in range(0, n, source.n):
            part = min(source.n, n - at)
            table[:, at:at + part] = pack_rows(unpack_rows(old[:, :part]), kv)
    cache.ids[:n], cache.n, cache.written[:] = 1, n, n

def seconds(model, cache, n):
    "Seconds a token behind n positions; the text stays as it is."
    for _ in range(2): run_round(model, cache, [5])
    start = time.perf_counter()
    for _ in range(STEPS): run_round(model, cache, [5])
    return (time.perf_counter() - start)/STEPS

def measure(engine, positions, n_text, passes):
    "Rows of the schema for one model."
    model, facts, ids = engine.model, model_facts(engine), text_ids(engine, n_text)
    same, rows = dict(model=facts["model"], quantization=facts["quantization"], drafter="none", width=1), []
    model.kv = EXACT_KV
    exact, source = rows_of(model, ids)
    for arm in ARMS[1:-1]:
        model.kv = parse_kv(arm)
        for unit, value in distance(exact, rows_of(model, ids)[0], ids).items():
            rows.append(dict(same, arm=arm, context=len(ids), unit=unit, value=value, n=len(ids), spread=None))
        print(facts["model"], arm, *(f"{r['unit']} {r['value']:.5g}" for r in rows[-6:]), flush=True)
    for n in positions:
        caches = {}
        for arm in ARMS:
            model.kv = parse_kv(arm.removesuffix(" again"))
            caches[arm] = model.new_cache(n + 8, keep=0)
            fill(caches[arm], source, n)
        taken = {arm: [] for arm in ARMS}
        for p in range(passes):
            for arm in ARMS[::-1] if p % 2 else ARMS: taken[arm].append(seconds(model, caches[arm], n))
        for arm in ARMS:
            speed = [1/s for s in taken[arm]]
            gain = [a/b for a, b in zip(taken["f16"], taken[arm])]
            size = cache_size(caches[arm])/(n + 8)
            rows += [dict(same, arm=arm, context=n, unit="tok/s", **summarise(speed), values=speed),
                     dict(same, arm=arm, context=n, unit="tok/s ÷ f16's", **summarise(gain), values=gain),
                     dict(same, arm=arm, context=n, unit="bytes a position", value=size, n=1, spread=None)]
            print(facts["model"], n, arm, f"{rows[-3]['value']:.2f} tok/s, {rows[-2]['value']:.3f} of f16", flush=True)
    return rows, facts

def main():
    "The command line."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", action="append"); p.add_argument("--positions", default="512,4096,8192")
    p.add_argument("--text", type=int, default=1024); p.add_argument("--passes", type=int, default=3)
    p.add_argument("--threads", type=int); p.add_argument("-o")
    args = p.parse_args()
    threads, before, rows, facts = set_threads(args.threads), load(), [], []
    for path in args.m or [None]:
        engine = Engine.load(path, "cpu", "fast", threads=threads)
        found = measure(engine, [*map(int, args.positions.split(","))], args.text, args.passes)
        rows += found[0]; facts.append(found[1])
    models = "".join(f" -m {Path(m).name}" for m in args.m or ())
    result = dict(topic="fast-mode", device="cpu", date=datetime.date.today().isoformat(), commit=commit(),
                  command=f"python data/trials/fast_mode.py{models} --positions {args.positions} --text {args.text} "
                          f"--passes {args.passes} --threads {threads}",
                  contract_version=CONTRACT_VERSION, mode="fast", threads=threads, machine=machine(),
                  load=[before, load()], models=facts, rows=rows)
    print(write_result(result, args.o or ROOT/"data"/"results"))

if __name__ == "__main__": main()
