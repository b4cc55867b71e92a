"""Make a GGUF file of what data/trials/train_block.py left.

    python data/trials/block_file.py RUN dflash -o data/models/alphabook-mini-dflash.gguf

RUN holds dflash.pt and lesson.json. How often each guess was right on the texts that were held back goes into the file as
`alphabook.hopes`: the rate of a guess, given that those before it were right."""
import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from alphabook.modelfile import ModelFile
from alphabook.teaching import BlockConfig, export_block, load_pupil


def hopes(counts: list) -> list: # texts with 0, 1, 2, … leading guesses right
    "How often a guess was right if those before it were."
    alive = np.cumsum(counts[::-1])[::-1]
    return [float(b/max(a, 1)) for a, b in zip(alive, alive[1:])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("name", choices=("dflash", "dflash2"))
    parser.add_argument("-o", dest="out", type=Path, required=True)
    args = parser.parse_args()
    lesson = json.loads((args.run/"lesson.json").read_text())
    run = lesson["runs"][args.name]
    config = BlockConfig(**{**run["config"], "taps": tuple(run["config"]["taps"])})
    with ModelFile(Path(__file__).parents[1]/"models"/"alphabook-mini.gguf") as mf:
        names = {k: mf.meta[k] for k in ("general.license",) if k in mf.meta}
    meta = {"general.name": "alphabook-mini block drafter", "general.basename": "alphabook-mini", **names,
            "general.description": "A block drafter (DFlash) for alphabook-mini, trained on what that model writes",
            "alphabook.hopes": np.array(hopes(run["lengths"]), np.float32)}
    export_block(args.out, load_pupil(args.run/f"{args.name}.pt"), config, meta)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes; hopes", *(f"{h:.3f}" for h in meta["alphabook.hopes"]))


if __name__ == "__main__": main()
