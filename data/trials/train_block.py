"""Teach the block drafter of alphabook-mini on a GPU: chapter 29f with a corpus of token ids and a number of seconds.

    python data/trials/train_block.py --corpus ids.bin --write 150 --learn 300 --out OUT                    # about 480 s for one drafter
    python data/trials/train_block.py --corpus ids.bin --write 60 --learn 75 --libraries 1 --length 512 --loops --out OUT   # as the first one

`ids.bin` holds token ids of alphabook-mini, uint16, a 0 behind each document (chapter 29b). The model writes --libraries times --batch
texts, each library with beginnings of its own, most of them short; a text counts up to where it goes round in circles (--loops: all of
it counts). Three quarters of what the drafter of 2026-11-30 learned from was circles: data/trials/block_why.py. OUT gets dflash.pt
(weights, float16, 7.5 MB; dflash2.pt: 12 MB), texts.npz (texts that were held back, for block_why.py) and lesson.json (what was done, the
curve, how many leading guesses were right, on whole texts and where they are fresh). data/trials/block_file.py makes a file of one."""
import argparse
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from alphabook.teaching import BlockConfig, Lesson, teach


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1]/"models"/"alphabook-mini.gguf")
    parser.add_argument("--write", type=float, default=150, help="most seconds of writing texts")
    parser.add_argument("--learn", type=float, default=300, help="seconds of learning, for each drafter")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=8192, help="texts that are written side by side")
    parser.add_argument("--length", type=int, default=256, help="tokens of a text")
    parser.add_argument("--libraries", type=int, default=4, help="how often so many texts are written; 6 GB of memory each at a length of 256")
    parser.add_argument("--loops", action="store_true", help="learn from what texts say again and again, too")
    parser.add_argument("--tiny", action="store_true", help="a drafter of one layer, to try the program on a CPU")
    parser.add_argument("--texts", type=int, default=64, help="of a step")
    parser.add_argument("--begin-with", type=Path, help="weights of an earlier run (one drafter only)")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--only", default="dflash2", help="dflash, dflash2 or both, separated by a comma")
    args = parser.parse_args()
    start = time.time()
    def say(line): print(f"{time.time() - start:6.1f} s  {line}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    base = BlockConfig(n_layer=1, n_ff=64) if args.tiny else BlockConfig()
    variants = {"dflash": base, "dflash2": replace(base, conv=2, rank=64)}
    variants = {name: variants[name] for name in args.only.split(",")}
    corpus = np.fromfile(args.corpus, np.uint16)
    say(f"torch {torch.__version__}, {len(corpus):,} ids of corpus")
    lesson = Lesson(texts=args.texts, lr=args.lr, fresh=not args.loops)
    try: teach(args.model, corpus, args.out, variants, lesson, args.write, args.learn, args.device, args.batch, args.length, say=say,
               begin_with=args.begin_with, libraries=args.libraries)
    except Exception:
        (args.out/"error.txt").write_text(traceback.format_exc())
        raise
    finally:
        if args.device == "cuda": say(f"most memory {torch.cuda.max_memory_allocated()/2**30:.1f} GiB")


if __name__ == "__main__": main()
