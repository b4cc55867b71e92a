"""Conditional hit rate and chain survival of the copy and of the drafting block, on the prompts' test split; and how far confidences hold.

    python data/trials/speculation_lines.py [-m FILE] [--sets AVR] [--split test] [--arms copy,mtp]
"""
import argparse, sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import results
from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.engine import Engine, Session
from alphabook.lines import Drafts, lines_of, replay_copy
from alphabook.prompts import SAMPLED, load_prompts, prompt_text, repeats, shared

DEPTH = 63                                     # drafts of a round
MOST = 24                                      # depths that are written down
WIDTHS = 1, 2, 4, 8, 16, 32, 64                # rows of a round: each is recorded once, and then played

class Watched:
    "A policy that is looked at: what it drafted, how sure it was, what was accepted."
    def __init__(self, policy, into, sure): self.policy, self.into, self.sure, self.prompt = policy, into, sure, None
    def __getattr__(self, name): return getattr(self.policy, name)
    def draft(self, ids, n):
        drafts, sure, name = self.policy.draft(ids, n)
        fit = max(w for w in WIDTHS if w <= len(drafts) + 1) - 1 if name == "copy" else len(drafts)
        self.last = drafts[:fit], sure[:fit], name
        return self.last
    def verified(self, drafted, accepted, *rest):
        if drafted: self.into.add(accepted, drafted, self.prompt)
        self.sure += [(p, k < accepted) for k, p in enumerate(self.last[1][:min(accepted + 1, drafted)])]
        self.policy.verified(drafted, accepted, *rest)

def answers(engine, prompts, mode, drafter, most, into=None, sure=None):
    "Answers to prompts; what was drafted for them goes into `into` and `sure`."
    session = Session(engine, 1024, keep=0, drafter=drafter)
    if session.policy: session.policy = Watched(session.policy, into, sure)
    for i, p in enumerate(prompts):
        if session.policy: session.policy.prompt = p.id
        g = engine.generate(prompt_text(p), n=min(p.n, most), session=session, **(dict(SAMPLED, seed=i) if mode == "sampled" else {}))
        yield p, engine.tokenizer.encode(prompt_text(p)), g.token_ids

def line_rows(drafts, **what):
    "The rows of both lines."
    lines = lines_of(drafts, MOST)
    for name in ("rate", "survival"):
        for k in range(MOST):
            value, low, high = lines[name][k]
            if lines["tries"][k] >= 20:
                yield dict(what, line=name, depth=k + 1, n=int(lines["tries"][k]), unit="share",
                           **{key: round(float(x), 4) for key, x in (("value", value), ("low", low), ("high", high))})

def calibration_rows(sure, **what):
    "Hit rate by confidence, in tenths; the error is the mean distance of both, weighted by how often."
    p, hit = np.array(sure).reshape(-1, 2).T
    error = 0
    for i in range(10):
        inside = (p >= i/10) & (p < (i + 1)/10 if i < 9 else p <= 1)
        if not inside.any(): continue
        error += abs(p[inside].mean() - hit[inside].mean())*inside.mean()
        yield dict(what, line="calibration", confidence=round(p[inside].mean(), 4), value=round(hit[inside].mean(), 4), n=int(inside.sum()), unit="share")
    yield dict(what, line="calibration error", value=round(error, 4), n=len(p), unit="share")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model")
    parser.add_argument("--sets", default="AVR")
    parser.add_argument("--split", default="test")
    parser.add_argument("--arms", default="copy,mtp")
    parser.add_argument("-n", type=int, default=160, help="most tokens of an answer")
    parser.add_argument("--modes", default="greedy,sampled")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "data/results/cpu" / f"speculation-lines-{results.TODAY}.json")
    args = parser.parse_args()
    engine, rows = Engine.load(args.model, "cpu", threads=args.threads), []
    for mode in args.modes.split(","):
        for s in args.sets:
            prompts, replayed, matched, texts, audit = load_prompts(s, args.split), Drafts(), [0, 0], {}, []
            what = dict(set=s, sampling=mode)
            for p, ids, out in answers(engine, prompts, mode, "none", args.n):
                texts[p.id] = out
                found = replay_copy(ids + out, len(ids) + 1, replayed, p.id, DEPTH, least=2)
                matched = [a + b for a, b in zip(matched, found)]
                audit.append((repeats(out), shared(out, ids)))
            rows += [dict(what, line=name, arm="text", value=round(float(x), 4), n=len(audit), unit="share")
                     for name, x in zip(("repeats", "shared"), np.mean(audit, 0))]
            rows.append(dict(what, line="matched", arm="copy, replayed", value=round(matched[0]/matched[1], 4), n=matched[1], unit="share"))
            rows += line_rows(replayed, arm="copy, replayed", **what)
            for drafter in args.arms.split(","):
                taken, sure, arm = Drafts(), [], "copy, as taken" if drafter == "copy" else drafter
                for p, ids, out in answers(engine, prompts, mode, drafter, args.n, taken, sure):
                    assert out == texts[p.id], f"{p.id}, {mode}: the drafter {drafter} changed the text"
                rows += line_rows(taken, arm=arm, **what)
                if sure: rows += calibration_rows(sure, arm=arm, **what)
            print(mode, s, len(rows), "rows", file=sys.stderr, flush=True)
    model = engine.mf.path.name
    command = f"python data/trials/speculation_lines.py -m {model} --sets {args.sets} --split {args.split} --arms {args.arms} -n {args.n}"
    print(results.write(args.out, "speculation-lines", rows, command, contract_version=CONTRACT_VERSION, model=model.removesuffix(".gguf"),
                        quantization=None, context=None, width=None, mode="exact", drafter="copy, mtp", spread=None))
