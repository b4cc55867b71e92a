"""Rules that combine two drafters, taken through recorded texts at this machine's measured prices (chapter 17c).

    python data/trials/rules.py [-m FILE] [--sets AVR] [--split train] [--sampling greedy,sampled]
"""
import argparse, sys, time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import results
from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.copying import CopyDrafter
from alphabook.engine import Engine, Session
from alphabook.mtp import MtpDrafter
from alphabook.policy import WIDTHS, measure_guess, measure_rounds
from alphabook.prompts import SAMPLED, load_prompts, prompt_text
from alphabook.rules import RULES, Costs, Recording, speedup, try_rule

class Noting:
    "A policy that drafts nothing and notes what the block would have guessed."
    def __init__(self, block): self.block, self.noted = block, {}
    def draft(self, ids, n):
        self.noted[len(ids)] = self.block.draft(ids, 5)
        return [], [], "none"
    def committed(self, ids, hidden=None, prompt=False): self.block.committed(ids, hidden, prompt)
    def verified(self, *_): pass
    def rollback(self, n): self.block.rollback(n)

def record(engine, prompts, mode, n_ctx=1024):
    "Answers to prompts, with guesses."
    session = Session(engine, n_ctx, keep=0, drafter="none")
    session.policy = Noting(MtpDrafter(engine.mtp_block(), n_ctx, depth=5, min_p=0.3))
    for i, p in enumerate(prompts):
        ids, session.policy.noted = engine.tokenizer.encode(prompt_text(p)), {}
        g = engine.generate(ids, min(p.n, n_ctx - len(ids) - 1), session=session,
                            **(dict(SAMPLED, seed=i) if mode == "sampled" else {}))
        if g.predicted_n > 8: yield Recording(p.set, ids, g.token_ids, session.policy.noted)

def measure(engine, texts, n_ctx=1024):
    "What things cost here, in seconds: rounds at the end of a prompt, a guess, the copy, and what is around a plain round."
    session = Session(engine, n_ctx, keep=0, drafter="none")
    text = next(t for t in texts if t.set == "R")
    engine.generate(text.prompt, 40, session=session)
    g = engine.generate(text.prompt, 200, session=session)
    rounds = measure_rounds(engine.model, session.cache, WIDTHS, 5.0)
    ids, copy, spent = np.array(text.prompt + text.answer), CopyDrafter(), []
    copy.committed(ids[:len(text.prompt)], None, True)
    for n in range(len(text.prompt) + 1, len(ids)):
        start = time.perf_counter()
        copy.draft(ids[:n], 63)
        spent.append(time.perf_counter() - start)
    around = max(0.0, g.predicted_ms/1e3/g.rounds - rounds.seconds[1])
    return Costs(rounds.seconds, measure_guess(MtpDrafter(engine.mtp_block(), n_ctx)), float(np.median(spent)), around)

def cheaper(costs, factor=0.1):
    "Columns and guesses at a part of their price."
    one = costs.rounds[1]
    return Costs([one + factor*(s - one) if w > 1 else s for w, s in enumerate(costs.rounds)], factor*costs.guess,
                 costs.copy, costs.around)

def main():
    "Record, measure, try, write one file."
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("-m"); a.add_argument("--sets", default="AVR"); a.add_argument("--split", default="train")
    a.add_argument("--sampling", default="greedy,sampled"); a.add_argument("--most", type=int, default=10**6)
    args = a.parse_args()
    engine, rows, costs = Engine.load(args.m, "cpu"), [], None
    for mode in args.sampling.split(","):
        texts = [t for s in args.sets for t in record(engine, load_prompts(s, split=args.split)[:args.most], mode)]
        costs = costs or measure(engine, texts)
        for prices, c in (("measured", costs), ("a tenth of", cheaper(costs))):
            for rule in RULES:
                for s in args.sets:
                    got = try_rule(rule, [t for t in texts if t.set == s], c)
                    each, by = [r["plain"]/r["seconds"] for r in got], {}
                    for r in got:
                        for k, v in r["by_drafter"].items(): by[k] = [x + y for x, y in zip(by.get(k, [0]*3), v)]
                    rows.append(dict(set=s, arm=rule, drafter=rule, prices=prices, sampling=mode, n=len(got), by_drafter=by,
                                     unit="tok/s ÷ plain's, at these prices", value=round(speedup(got), 4),
                                     min=round(min(each), 3), max=round(max(each), 3), spread=round(float(np.std(each)), 3),
                                     tokens_per_round=round(sum(r["tokens"] for r in got)/sum(r["rounds"] for r in got), 3)))
                    print(mode, prices, rule, s, rows[-1]["value"], by, file=sys.stderr, flush=True)
    ms = dict(rounds={w: round(1e3*costs.rounds[w], 3) for w in WIDTHS}, guess=round(1e3*costs.guess, 3),
              copy=round(1e3*costs.copy, 4), around=round(1e3*costs.around, 3))
    path = ROOT/"data/results/cpu"/f"drafting-rules-{results.TODAY}.json"
    name = engine.mf.path.name
    command = f"python data/trials/rules.py -m {name} --sets {args.sets} --split {args.split} --sampling {args.sampling}"
    print(results.write(path, "drafting-rules", rows, command, contract_version=CONTRACT_VERSION, model=name.removesuffix(".gguf"),
                        quantization=None, context=1024, width=None, mode="exact", split=args.split, costs=ms))

if __name__ == "__main__": main()
