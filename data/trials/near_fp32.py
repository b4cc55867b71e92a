"""How far rows of logits are from fp32: ours, and llama.cpp's on the same file and ids, for each row of a text.

    python data/trials/near_fp32.py --peer-python PYTHON -m FILE … [-o data/results/cpu]

PYTHON can import llama_cpp. The reference is chapter 07d's. Cosine, and mean |Δ| ÷ σ of the reference's row.
"""
import argparse, datetime, json, subprocess, sys, tempfile
from pathlib import Path

import numpy as np

from alphabook.arithmetic import CONTRACT_VERSION
from alphabook.backends import NEAR
from alphabook.engine import Engine
from alphabook.protocol import commit, machine, model_facts
from alphabook.reference import Reference
from alphabook.rounds import run_round

THEIRS = """
import json, sys, numpy as np
from llama_cpp import Llama
m, ids = Llama(sys.argv[1], n_ctx=256, logits_all=True, verbose=False, n_threads=1), json.loads(sys.argv[2])
m.eval(ids)
np.save(sys.argv[3], m.scores[:len(ids)])
"""
TEXT = """The harbour was quiet in the morning. A fisherman mended his nets, and the gulls waited for what he would throw away. Children ran along the wall,
counting the boats that had come back, and one of them asked why the sea was never full, though all rivers run into it and the rain falls on it, too."""

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("-m", "--model", nargs="+", required=True); p.add_argument("--peer-python", required=True); p.add_argument("-o", "--out", default="data/results/cpu")
args = p.parse_args()
rows, models = [], []
for path in args.model:
    e = Engine.load(path, "cpu", n_ctx=256)
    ids = e.tokenizer.encode(TEXT)[:64]
    want, got = Reference(e.mf).logits(ids), run_round(e.model, e.model.new_cache(len(ids)), ids)
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/theirs.npy"
        subprocess.run([args.peer_python, "-c", THEIRS, path, json.dumps(ids), place], check=True, stdout=subprocess.DEVNULL)
        theirs = np.load(place)
    facts = model_facts(e)
    models.append(facts)
    for arm, x in ("alphabook", got), ("llama.cpp", theirs):
        a, b = np.asarray(x, float), np.asarray(want, float)
        cosine, gap = (a*b).sum(1)/np.sqrt((a*a).sum(1)*(b*b).sum(1)), np.abs(a - b).mean(1)/b.std(1)
        (least, most), (least_row, most_row) = NEAR[False]
        out = {"cosine, median": np.median(cosine), "cosine, least": cosine.min(), "gap, median": np.median(gap), "gap, most": gap.max(),
               "rows beyond the median's limit": int(((cosine < least) | (gap > most)).sum()),
               "rows beyond a row's limit": int(((cosine < least_row) | (gap > most_row)).sum())}
        for unit, value in out.items():
            rows.append(dict(model=facts["model"], quantization=facts["quantization"], arm=arm, unit=unit, value=round(float(value), 6), n=len(ids), spread=0.0,
                             context=len(ids), width=len(ids), drafter="none"))
        print(facts["model"], arm, {k: round(float(v), 5) for k, v in out.items()}, flush=True)
head = dict(topic="near-fp32", device="cpu", date=datetime.date.today().isoformat(), commit=commit(), contract_version=CONTRACT_VERSION, mode="exact",
            command=f"python data/trials/near_fp32.py --peer-python PYTHON -m {' '.join(Path(m).name for m in args.model)}", machine=machine(), models=models, rows=rows)
out = Path(args.out)/f"near-fp32-{head['date']}.json"
out.write_text(json.dumps(head, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
print("written:", out)
