"""Record which types llama.cpp's quantizer gives each tensor, and what llama.cpp computes on a mix that `alphabook quantize` wrote.

    python tests/golden/record_quantized.py -o tests/golden/quantized.json [--peer-python PATH]

Needs llama-cpp-python (in the interpreter of --peer-python). `contract_version` is null: these are llama.cpp's numbers.
"""
import argparse, datetime, json, subprocess, sys, tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
from alphabook.fetch import resolve_model
from alphabook.modelfile import ModelFile
from alphabook.peer import Peer
from alphabook.quantizing import quantize_file
from alphabook.synth import synth
from alphabook.tokenizer import Tokenizer

sys.path[:0] = [str(ROOT/"data"/"trials")]
from quality import make_theirs

MIX = "Q4_K_M", ["attn_q=Q8_0", "ffn_up_exps=IQ4_NL"]
TEXT = "def add(a, b):\n    \"\"\"Return the sum of two numbers.\"\"\"\n    return a + b\n\nThe function above returns the sum"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("-o", required=True); p.add_argument("--peer-python", default=sys.executable)
    args = p.parse_args()
    folder, types = Path(tempfile.mkdtemp()), {}
    sources = {"alphabook-mini": resolve_model(None)} | {like: synth(like, "F16", folder/f"{like}.gguf")
                                                         for like in ("tiny-llama", "tiny-gemma3")}
    for name, source in sources.items():
        for type in ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q6_K", "Q8_0", "Q5_0", "Q4_0"):
            out = folder/f"{name}-{type}.gguf"
            if not make_theirs(args.peer_python, source, out, type): continue
            with ModelFile(out) as mf: types.setdefault(name, {})[type] = {n: t.type.name for n, t in mf.tensors.items()}
    quantize_file(resolve_model(None), folder/"mix.gguf", *MIX)
    with ModelFile(folder/"mix.gguf") as mf: ids = Tokenizer.from_meta(mf.meta, "mix").encode(TEXT); n_vocab = mf.meta.count("tokenizer.ggml.tokens")
    peer = Peer(args.peer_python, model=str(folder/"mix.gguf"), threads=2, n_ctx=256)
    peer.ask(do="rows", ids=ids, path=str(folder/"rows"))
    rows = np.fromfile(folder/"rows", "<f4").reshape(len(ids), n_vocab)
    top = np.argsort(-rows, -1, kind="stable")[:, :10]
    result = dict(source=peer.facts["version"], date=datetime.date.today().isoformat(), contract_version=None, mix=MIX,
                  command="python tests/golden/record_quantized.py -o tests/golden/quantized.json", ids=ids, top=top.tolist(),
                  logits=[[round(float(x), 4) for x in r[t]] for r, t in zip(rows, top)], types=types)
    peer.close()
    Path(args.o).write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__": main()
