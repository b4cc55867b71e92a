"""Record what llama.cpp computes on the bundled model: a trained one, in the types of the file.

    pip install llama-cpp-python gguf
    python tests/golden/record_bundled.py

writes tests/golden/alphabook-mini.npz: `text`, `ids` (by llama.cpp's tokenizer); for every `row`-th position `llama`
and `mtp`, logits from weights dequantized to F32 (float32 KV, no flash attention); `route`, `mtp_route`; `quantized`,
`quantized_mtp`: cosines per position between those and llama.cpp on the file as it is; `sha256` of the file.
"""
import hashlib, sys, tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
MODEL, ROW = HERE.parents[1] / 'data' / 'models' / 'alphabook-mini.gguf', 10
TEXT = '''def fibonacci(n):
    "The n-th Fibonacci number."
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a

The command line tool reads a file and prints what it holds. Options are described below.'''


def main():
    import llama_cpp as ll
    from record_hf import LlamaCpp, cosine
    from record_replicas import join_f32
    quantized = LlamaCpp(MODEL, f32=False)
    data, buf = TEXT.encode(), (ll.llama_token * 512)()
    n = ll.llama_tokenize(ll.llama_model_get_vocab(quantized.model), data, len(data), buf, len(buf), True, False)
    ids = list(buf[:n])
    with tempfile.TemporaryDirectory() as work:
        join_f32([MODEL], Path(work) / 'f32.gguf')
        truth = LlamaCpp(Path(work) / 'f32.gguf').run(ids, mtp=True)
    other = quantized.run(ids, mtp=True)
    c, d = cosine(truth['logits'], other['logits']), cosine(truth['mtp'], other['mtp'])
    keep = dict(llama=truth['logits'][::ROW].astype(np.float16), mtp=truth['mtp'][::ROW].astype(np.float16),
                route=truth['route'].astype(np.int8), mtp_route=truth['mtp_route'].astype(np.int8),
                quantized=c.astype(np.float32), quantized_mtp=d.astype(np.float32))
    np.savez_compressed(HERE / 'alphabook-mini.npz', text=TEXT, row=ROW, ids=np.array(ids, np.int16), **keep,
                        sha256=hashlib.sha256(MODEL.read_bytes()).hexdigest())
    print(f'{n} ids; as it is against F32: least cosine {c.min():.6f}, median {np.median(c):.6f}; MTP {d.min():.6f}')


if __name__ == '__main__': main()
