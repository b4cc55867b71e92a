"""Record what llama.cpp computes on files of `alphabook synth`: equal on every machine, so only results are kept.

    pip install llama-cpp-python gguf
    python tests/golden/record_synth.py

writes tests/golden/synth/NAME-TYPE.npz for every test-size shape: `ids`; `llama` and `route` (layers, n, used; best
first), `mtp` and `mtp_route` where there is an MTP block: llama.cpp on the same weights dequantized to F32 (float32 KV,
no flash attention); `quantized`: the cosine per position between that and llama.cpp on the file as it is; `sha256`.
"""
import hashlib, sys, tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1]))


def cases():
    "(shape, type, MTP blocks) of every recording."
    from alphabook.architecture import MTP_FAMILIES
    from alphabook.synth import SHAPES
    for name, shape in SHAPES.items():
        if not name.startswith(('tiny-', 'small-')): continue
        mtp = int(shape.arch in MTP_FAMILIES)
        yield name, 'F16', mtp
        if name.startswith('small-'): yield name, 'MXFP4' if shape.arch == 'gpt-oss' else 'Q4_K_M', mtp


def ids_of(n_vocab): return np.random.PCG64(11).random_raw(64).astype(np.uint64) % np.uint64(n_vocab)


def record(name, type, mtp, work):
    from alphabook.synth import SHAPES, synth
    from record_hf import LlamaCpp, cosine
    from record_replicas import join_f32
    path = synth(name, type, work / 'model.gguf', mtp=mtp)
    ids = [int(i) for i in ids_of(SHAPES[name].n_vocab)]
    join_f32([path], work / 'f32.gguf')
    truth, quantized = LlamaCpp(work / 'f32.gguf').run(ids, mtp=bool(mtp)), LlamaCpp(path, f32=False).run(ids)
    c = cosine(truth['logits'], quantized['logits'])
    keep = dict(ids=np.array(ids, np.int16), llama=truth['logits'].astype(np.float16), quantized=c.astype(np.float32),
                sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    if 'route' in truth: keep['route'] = truth['route'].astype(np.int8)
    if mtp: keep['mtp'] = truth['mtp'].astype(np.float16)
    if mtp and truth['mtp_route'].size: keep['mtp_route'] = truth['mtp_route'].astype(np.int8)
    (HERE / 'synth').mkdir(exist_ok=True)
    np.savez_compressed(HERE / 'synth' / f'{name}-{type}.npz', **keep)
    print(f'{name:16} {type:7} as it is against F32: least cosine {c.min():.6f}, median {np.median(c):.6f}', flush=True)


def main():
    for case in cases():
        with tempfile.TemporaryDirectory() as work: record(*case, Path(work))


if __name__ == '__main__': main()
