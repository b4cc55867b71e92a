"""How many leading guesses are right: the MTP block and the block drafter of alphabook-mini on the prompts of A, V and R.

    python data/trials/block_lengths.py -o data/results/cpu/block-drafter-DATE.json [--split test] [--prompts N]

Every guess is verified (no gate, no threshold), greedy and sampled; the texts must be the same for both."""
import argparse
import datetime
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import alphabook.cpu_streams as backend
from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.blockdraft import load_draft
from alphabook.blockdrafter import BlockDrafter, block_beside
from alphabook.blockprice import right_lengths
from alphabook.config import load_config
from alphabook.fetch import resolve_model
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.mtp import MtpDrafter, load_block
from alphabook.prompts import SAMPLED, load_prompts
from alphabook.protocol import commit
from alphabook.tokenizer import Tokenizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", dest="out", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--prompts", type=int, help="of a set; default: all")
    parser.add_argument("--block", type=Path, help="a drafter's file; default: the one beside the model")
    args = parser.parse_args()
    mf = ModelFile(resolve_model(None))
    model, tokenizer = Model(mf, load_config(mf), backend), Tokenizer.from_meta(mf.meta)
    mtp, block = load_block(model, mf), load_draft(model, ModelFile(args.block or block_beside(mf)))
    drafters = dict(mtp=lambda cache: MtpDrafter(mtp, cache.n_ctx, 5, 0), block=lambda cache: BlockDrafter(block, cache, min_p=0))
    rows, differ = [], []
    for name in "AVR":
        for kind, sampling in (("greedy", {}), ("sampled", SAMPLED)):
            lengths, texts = {a: [] for a in drafters}, {}
            for i, p in enumerate(load_prompts(name, split=args.split)[:args.prompts]):
                ids = tokenizer.encode(p.text)
                for arm, drafter in drafters.items():
                    said, right = right_lengths(model, ids, p.n, drafter, backend.token_weights, **sampling,
                                                **dict(seed=i) if sampling else {})
                    lengths[arm].append(right)
                    if texts.setdefault(p.id, said) != said: differ.append(f"{p.id}, {kind}, {arm}")
            for arm, found in lengths.items():
                means = [float(np.mean(f)) for f in found]
                every, most = np.concatenate(found), 5 if arm == "mtp" else block.draft.block - 1
                share = dict(set=name, arm=arm, drafter=arm, text=kind, split=args.split, prompts=len(found), n=len(every))
                rows.append(dict(share, unit="guesses right a round", value=float(np.mean(means)), interval=interval(means),
                                 spread=float(np.ptp(means)/np.median(means)), most=most))
                chain = [float((every >= k).mean()) for k in range(1, most + 1)]
                rows.append(dict(share, unit="chain", value=chain[0], values=chain))
                print(name, kind, arm, f"{rows[-2]['value']:.2f}", rows[-2]["interval"], [round(c, 2) for c in chain], flush=True)
    result = dict(topic="block-drafter", device="cpu", model="alphabook-mini", quantization="Q4_K, Q6_K", context=2048, width=None,
                  mode="exact", date=datetime.date.today().isoformat(), commit=commit(), contract_version=CONTRACT_VERSION,
                  command=f"python data/trials/block_lengths.py --split {args.split}", mismatches=differ, rows=rows)
    args.out.write_text(json.dumps(result, indent=1))
    if differ: sys.exit(f"texts differ: {differ[:3]}")


def interval(values, draws=2000) -> list: # of one number a prompt
    "Where 95 % of the means lie when prompts are drawn again."
    rng, values = np.random.default_rng(0), np.array(values)
    means = values[rng.integers(0, len(values), (draws, len(values)))].mean(1)
    return [float(q) for q in np.quantile(means, (.025, .975))]


if __name__ == "__main__": main()
