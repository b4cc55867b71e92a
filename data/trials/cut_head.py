"""Guesses of the bundled model's block with heads of fewer tokens, chosen by the prompt: what a guess costs, and how many are right.

    python cut_head.py [--prompts 8] [--out FOLDER --commit C]       # sets A, V, R, training split; one thread

Every text is what plain decoding says. The block is asked for three guesses at each of its positions; they are compared with the text.
"""
import argparse, datetime, json, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import numpy as np

from alphabook.draftvocab import DraftHead, DraftVocabulary
from alphabook.engine import Engine
from alphabook.mtp import MtpDrafter, run_pass
from alphabook.prompts import load_prompts
from alphabook.rounds import prefill, run_round

def guess_ms(d, n=60):
    "Least processor time of a pass over one pair."
    hidden, times = np.zeros_like(d.hidden[:1]), []
    for _ in range(n):
        t = time.thread_time(); run_pass(d.own, d.cache, [1], hidden); times.append(time.thread_time() - t)
        d.cache.rollback(0)
    return min(times)*1e3

def followed(engine, d, ids, text):
    "(right first guesses, right ones in all, positions) along a text that is known."
    first = right = n = 0
    cache = engine.model.new_cache(1024)
    prefill(engine.model, cache, ids, seen=lambda rows, hidden: d.committed(cache.ids[:cache.n], hidden))
    for i in range(len(ids), len(text) - 3):
        said, _ = d.draft(text[:i + 1], 3)
        good = next((k for k, id in enumerate(said) if id != text[i + 1 + k]), len(said))
        first, right, n = first + (good > 0), right + good, n + 1
        run_round(engine.model, cache, [text[i]]); cache.commit(cache.n + 1)
        d.committed(cache.ids[:cache.n], cache.hidden)
    return first, right, n

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0]); p.add_argument("--prompts", type=int, default=8); p.add_argument("--out"); p.add_argument("--commit")
    a = p.parse_args()
    engine = Engine.load(None, "cpu", n_ctx=1024, threads=1)
    block, n_vocab, rows = engine.mtp_block(), engine.cfg.n_vocab, []
    sizes, heads = (n_vocab, n_vocab//2, n_vocab//4), {}
    for size in sizes:
        heads[size] = None if size == n_vocab else (DraftHead(block, size), DraftVocabulary(engine.tokenizer, size))
        d = MtpDrafter(block, 256)
        if heads[size]: d.use_head(heads[size][0].matrix, heads[size][0].ids)
        rows.append(dict(arm=f"{size} tokens", set=None, value=guess_ms(d), unit="ms a guess", n=60))
        print(rows[-1], flush=True)
    for name in "AVR":
        found = {size: np.zeros(3, int) for size in sizes}
        for prompt in load_prompts(name, split="train")[:a.prompts]:
            ids = engine.tokenizer.encode(prompt.text)
            text = ids + engine.generate(prompt.text, n=64, drafter="none").token_ids
            for size in sizes:
                d = MtpDrafter(block, 1024)
                if heads[size]:
                    head, vocabulary = heads[size]
                    head.use(vocabulary.for_prompt(ids)); d.use_head(head.matrix, head.ids)
                found[size] += followed(engine, d, ids, text)
        for size, (first, right, n) in found.items():
            rows += [dict(arm=f"{size} tokens", set=name, value=first/n, unit="first guesses right", n=int(n)), dict(arm=f"{size} tokens", set=name, value=right/n, unit="guesses right of three", n=int(n))]
            print(rows[-2], rows[-1]["value"], flush=True)
    if a.out:
        head = dict(topic="cut-head", device="cpu", date=datetime.date.today().isoformat(), commit=a.commit, command="python data/trials/cut_head.py --out FOLDER", contract_version="1",
                    model="alphabook-mini", quantization=None, context=None, width=1, mode="exact", drafter="mtp", spread=None, split="train", threads=1)
        text = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + ",\n".join("  " + json.dumps(r) for r in rows) + "\n ]\n}\n"
        (Path(a.out)/f"cut-head-{head['date']}.json").write_text(text)

if __name__ == "__main__": main()
