"""Coverage of draft vocabularies on one text in fourteen languages: the first ids against those of the prompt's scripts.

    python data/trials/draft_vocabulary.py FILE.gguf …        (vocabularies without weights will do: see tests/golden/record_tokenizer.py)
"""
import argparse, json, sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import results
from alphabook.draftvocab import DraftVocabulary, coverage
from alphabook.modelfile import ModelFile
from alphabook.prompts import prompts_folder
from alphabook.tokenizer import Tokenizer

SHARES = 40_525 / 248_320, 131_072 / 248_320              # of the vocabulary: Strata's for English, AlphaInfer's

def rows_of(path: Path):
    "A row for each language, size and arm."
    with ModelFile(path) as mf: tokenizer = Tokenizer.from_meta(mf.meta, str(path))
    samples = [json.loads(line) for line in (prompts_folder() / "scripts.jsonl").read_text(encoding="utf-8").splitlines()]
    for share in SHARES:
        size = round(share * tokenizer.n_vocab)
        vocabulary = DraftVocabulary(tokenizer, size)
        for s in samples:
            n = len(tokenizer.encode(s["text"], add_special=False))
            for arm, ids in (("first ids", np.arange(size)), ("by script", vocabulary.for_text(s["prompt"]))):
                yield dict(model=path.stem.removeprefix("ggml-vocab-"), language=s["language"], size=size, arm=arm,
                           value=round(coverage(tokenizer, s["text"], ids), 4), n=n)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "data/results/cpu" / f"draft-vocabulary-{results.TODAY}.json")
    args = parser.parse_args()
    command = "python data/trials/draft_vocabulary.py " + " ".join(f.name for f in args.files)
    rows = [row for path in args.files for row in rows_of(path)]
    print(results.write(args.out, "draft-vocabulary", rows, command, quantization=None, context=None, width=None, mode=None,
                        drafter="mtp", unit="share of tokens", spread=None))
