"""Make a GGUF file of what data/trials/train_block.py left.

    python data/trials/block_file.py RUN dflash -o data/models/alphabook-mini-dflash.gguf --hopes data/results/cpu/block-hopes-DATE.json
    python data/trials/block_file.py RUN dflash --results data/results/h200/block-training-DATE.json [--log FILE]

The second one keeps the figures instead; FILE is what an earlier run printed, if its files are gone. RUN holds dflash.pt and
lesson.json. `alphabook.hopes` is the rate of each guess, given that those before it were right: on the texts that were held back, or,
with --hopes FILE, as data/trials/block_lengths.py measured it on prompts of the train split (--split train), which is less, for
held-back texts are long and say things again. Never on the test split: it is what the choice between drafters is judged by."""
import argparse
import datetime
import json
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from alphabook.modelfile import ModelFile
from alphabook.protocol import commit
from alphabook.teaching import BlockConfig, export_block, load_pupil


def hopes(counts: list) -> list: # texts with 0, 1, 2, … leading guesses right
    "How often a guess was right if those before it were."
    alive = np.cumsum(counts[::-1])[::-1]
    return [float(b/max(a, 1)) for a, b in zip(alive, alive[1:])]


def measured(result: dict) -> list: # of data/trials/block_lengths.py
    "The same from the mean chain over sets, greedy and sampled."
    if any(r.get("split") != "train" for r in result["rows"]): sys.exit("--hopes: must be measured on the train split")
    chain = np.mean([r["values"] for r in result["rows"] if r["arm"] == "block" and r["unit"] == "chain"], 0)
    return [float(b/max(a, 1e-9)) for a, b in zip([1.0, *chain], chain)]

def lesson_rows(lesson: dict) -> list: # of the published schema
    "What a run says about its drafters."
    rows = []
    for name, run in lesson["runs"].items():
        counts = np.array(run["lengths"])
        n, most = int(counts.sum()), len(counts) - 1
        mean = float((counts*np.arange(most + 1)).sum()/n)
        share = dict(arm=name, drafter=name, n=n, most=most, steps=run["steps"], seconds=run["seconds"], texts=lesson["texts"],
                     own_tokens=lesson["own"])
        rows.append(dict(share, unit="guesses right a round", value=mean))
        rows.append(dict(share, unit="chain", value=float(counts[1:].sum()/n),
                         values=[float(c) for c in np.cumsum(counts[::-1])[::-1][1:]/n]))
        rows += [dict(arm=name, drafter=name, unit="loss", value=loss, n=step, seconds=s) for step, s, loss in run["curve"][::4]]
    return rows

def printed_rows(log: str) -> list: # of the published schema
    "What a run printed about its drafters."
    found = re.findall(r"(dflash2?): (\d+) steps, leading guesses right ([\d.]+)", log)
    return [dict(arm=f"{name}, an earlier run of both", drafter=name, unit="guesses right a round", value=float(right), most=7,
                 steps=int(steps), seconds=90.0) for name, steps, right in found]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("name", choices=("dflash", "dflash2"))
    parser.add_argument("-o", dest="out", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--hopes", type=Path)
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    lesson = json.loads((args.run/"lesson.json").read_text())
    if args.results:
        rows = lesson_rows(lesson) + (printed_rows(args.log.read_text()) if args.log else [])
        head = dict(topic="block-training", device="h200", model="alphabook-mini", quantization="Q4_K, Q6_K", context=512, width=None,
                    mode=None, contract_version=None, date=datetime.date.today().isoformat(), commit=commit(), lesson=lesson["lesson"],
                    command="python data/trials/train_block.py", gpu=lesson["device"], seconds_writing=lesson["seconds_writing"])
        args.results.write_text(json.dumps(head | dict(rows=rows), indent=1))
    if not args.out: return
    run = lesson["runs"][args.name]
    config = BlockConfig(**{**run["config"], "taps": tuple(run["config"]["taps"])})
    with ModelFile(Path(__file__).parents[1]/"models"/"alphabook-mini.gguf") as mf:
        names = {k: mf.meta[k] for k in ("general.license",) if k in mf.meta}
    meta = {"general.name": "alphabook-mini block drafter", "general.basename": "alphabook-mini", **names,
            "general.description": "A block drafter (DFlash) for alphabook-mini, trained on what that model writes",
            "alphabook.hopes": np.array(measured(json.loads(args.hopes.read_text())) if args.hopes else hopes(run["lengths"]),
                                        np.float32)}
    export_block(args.out, load_pupil(args.run/f"{args.name}.pt"), config, meta)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes; hopes", *(f"{h:.3f}" for h in meta["alphabook.hopes"]))


if __name__ == "__main__": main()
