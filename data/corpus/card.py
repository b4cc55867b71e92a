"""The card of alphabook-mini, data/models/alphabook-mini.md, from what was measured.

    python data/corpus/card.py samples     # write anew what the model says to a few prompts (data/results/cpu)
    python data/corpus/card.py             # write the card
"""
import json, math, re, sys, textwrap
from collections import defaultdict
from pathlib import Path

from alphabook.modelfile import ModelFile

ROOT = Path(__file__).resolve().parents[2]
MODEL, CARD = ROOT / "data/models/alphabook-mini.gguf", ROOT / "data/models/alphabook-mini.md"
REWRITE = '''### Rewrite
Rename `path` to `name`.
### Code
def read_lines(path):
    """Read a text file and return its lines."""
    with open(path, encoding='utf-8') as f:
        return f.read().splitlines()
### Result
'''
PROMPTS = ["def fibonacci(n):", "import argparse\n\n\ndef main():\n", "The garbage collector",
           'class Stack:\n    """A last-in, first-out stack."""\n', REWRITE, "이 명령은", "该选项"]
NAMES = dict(code="Python", en="English", edit="edit prompts", chat="questions and answers", de="German", fr="French",
             es="Spanish", pt="Portuguese", it="Italian", pl="Polish", ru="Russian", uk="Ukrainian", ar="Arabic",
             ko="Korean", ja="Japanese", zh="Chinese")

def newest(device: str, topic: str) -> dict:
    "The newest record of a topic."
    return json.loads(sorted((ROOT / f"data/results/{device}").glob(f"{topic}-20*.json"))[-1].read_text(encoding="utf-8"))

def samples() -> None:
    "Let the model speak, greedily, and write it down."
    sys.path.insert(0, str(ROOT / "tests"))
    import results
    from alphabook import Engine
    engine = Engine.load(str(MODEL))
    rows = [dict(arm=prompt, value=engine.generate(prompt, n=80).text, unit="text", n=80) for prompt in PROMPTS]
    results.write(ROOT / f"data/results/cpu/mini-samples-{results.TODAY}.json", "mini-samples", rows,
                  "python data/corpus/card.py samples", model="alphabook-mini", mode="exact", drafter=None)

def held_out(run: dict) -> str:
    "The table of losses and hits per text."
    texts = defaultdict(dict)
    for r in run["rows"]:
        if r.get("quantization", "F32") != "F32" and r["context"] == 2048 and r["arm"] != "load":
            texts[r["text"]] |= {r["arm"] + str(r.get("depth", "")): r["value"], "n": r["n"]}
            if r["arm"] == "loss": texts[r["text"]]["bits"] = r["value"] / math.log(2) / r["bytes_per_token"]
    lines = ["| text | tokens | nat/token | bits/byte | first guess right | draft 1 | 2 | 3 | 4 |", "|---|" + "---:|" * 8]
    for text, name in NAMES.items():
        r = texts[text]
        hits = " | ".join(f"{r[f'hit{d}']:.2f}" for d in range(1, 5))
        lines.append(f"| {name} | {r['n']:,} | {r['loss']:.2f} | {r['bits']:.2f} | {r['accuracy']:.2f} | {hits} |")
    return "\n".join(lines)

def loads(run: dict) -> tuple[float, float]:
    "Least and most an expert was chosen, as a multiple of an even share, on code and English."
    rows = [r["value"] for r in run["rows"] if r["arm"] == "load" and r["text"] in ("code", "en")]
    return min(map(min, rows)) * len(rows[0]), max(map(max, rows)) * len(rows[0])

def long_windows() -> str:
    "What happens beyond the training length."
    found = defaultdict(dict)
    for r in newest("cpu", "mini-long")["rows"]:
        if r["position"] == 3584: found[r["text"]][r["context"]] = r["value"]
    return ", ".join(f"{NAMES[text]} {r[4096]:.2f} against {r[2048]:.2f}" for text, r in found.items())

def flow(text: str) -> str:
    "Paragraphs broken at 118 columns; headings, tables and what is fenced stay."
    out, fenced = [], False
    for part in text.split("\n\n"):
        plain = not fenced and not part.startswith(("#", "|", "```"))
        items = re.split(r"\n(?=- )", part) if plain else []
        out.append("\n".join(textwrap.fill(" ".join(x.split()), 118, subsequent_indent="  " * x.startswith("- "),
                                           break_on_hyphens=False) for x in items) if plain else part)
        fenced ^= part.count("```") % 2 == 1
    return "\n\n".join(out)

def card() -> str:
    "The text of the card."
    run, edits, said = newest("h200", "mini-training"), newest("cpu", "mini-rewrite"), newest("cpu", "mini-samples")
    text = json.loads((ROOT / "data/corpus/mini-run.json").read_text(encoding="utf-8"))
    share = {r["arm"]: r["value"] for r in edits["rows"]}
    with ModelFile(MODEL) as mf:
        n = sum(math.prod(t.shape) for t in mf.tensors.values())
    low, high = loads(run)
    least, most = (next(r['value'] for r in run['rows'] if r['arm'] == f'{x} chosen expert') for x in ('least', 'most'))
    kinds = ", ".join(f"{NAMES.get(k, k)} {v['tokens'] / 1e6:.1f}" for k, v in sorted(
        text["kinds"].items(), key=lambda item: -item[1]["tokens"]))
    shown = "\n\n".join(f"```\n{r['arm']}⟫{r['value']}\n```" for r in said["rows"])
    return flow(f"""# alphabook-mini

A language model of {n / 1e6:.1f} million weights in {MODEL.stat().st_size:,} bytes. It is here to be decoded: it has every
part that a large `qwen35moe` model has (gated delta-nets and full attention 3:1, 16 experts of which 4 work, a shared
expert, a draft head for multi-token prediction), so that drafters, expert caches and exactness can be tried on any
laptop with real text. It writes technical English and Python that looks right. It knows nothing reliably; do not ask it
for facts.

## What

`qwen35moe`, {run['plan']['length']:,} tokens of context in training, {4096:,} declared; 8 layers of width 256 and one draft block; 16,384 tokens of
byte-level BPE, tied. Experts are Q4_K, embedding and other matrices Q6_K, vectors and routers F32. Chat markers are
`<|im_start|>` and `<|im_end|>`, edit prompts begin with `### Rewrite`.

## How

{run['steps']:,} steps, {run['tokens'] / 1e9:.2f} billion tokens in {run['seconds'] / 60:.0f} minutes on {run['device']}, {run['date']}: chapters 29d (model, losses, file) and
29e (optimizer, schedule, run) are the program. The draft head was trained along, half on the text, half on the trunk's
own opinion; the second draft from half of the run on; weights were rounded as in the file during the last
{1 - run['plan']['round_from']:.0%} of it.

## On what

{text['n_tokens'] / 1e6:.0f} million tokens from packages that ship them: documentation, manual pages, package descriptions, translations,
Python sources. Million tokens: {kinds}.
`data/corpus/mini-run.json` names every package with version and licence; `data/corpus/build.py` fetches the corpus
again (nearly: see the note in `data/corpus/manifest.json`; the sources that were installed on the training machine are not
part of it). The text is not part of this project.

## How good

Held-out documents, teacher-forced, the weights of the file. "Draft d" is how often the d-th draft is the token that the
trunk chooses, on text that goes on as written.

{held_out(run)}

In the last thousand steps of training, each expert of each layer got between {least * 16:.2f} and {most * 16:.2f} times an even
share of a step's tokens; on held-out Python or English alone, between {low:.2f} and {high:.2f}. No expert is dead; some
leave whole languages to others.

Of {edits['rows'][0]['n']} held-out edit prompts ({edits['mode']}), {share['exact answer']:.0%} are answered exactly; answers are {share['similarity']:.0%} similar to the right one
(difflib), and the longest span copied without a mistake is {share['longest common span']:.0%} of it. Small changes are often forgotten in favour of
copying.

## What it writes

Greedy, behind ⟫.

{shown}

## Limits

- Facts, arithmetic and longer thoughts are beyond a model of this size; greedy text tends to repeat itself.
- Beyond the training length it goes on, but worse. Loss at positions 3,584 to 4,095, in one window of 4,096 against a
  fresh window of 2,048: {long_windows()}.
- Chinese, Korean and Arabic had the least text. The Arabic figure rests on one window.
- It was not tuned to be safe or polite, and may repeat passages of its training text.

## Licence

The file is given under the project's licence (Apache-2.0). The texts it learned from keep theirs; code was taken from
packages under permissive licences or the MPL (and, by oversight, 20 kB from a GPL-3+ package: see the note in
`data/corpus/manifest.json`), documentation and translations also from GPL, GFDL and CC-BY-SA packages.""") + "\n"

if __name__ == "__main__":
    if sys.argv[1:] == ["samples"]: samples()
    else: CARD.write_text(card(), encoding="utf-8")
