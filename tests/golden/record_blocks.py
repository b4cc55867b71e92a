"""Record what llama.cpp itself makes of every block type: `python tests/golden/record_blocks.py`.

Needs llama-cpp-python (any build) and numpy. Writes two files:
- tests/golden/blocks.json: for each type, the bytes llama.cpp quantizes 2 x 512 numbers to, and a hash of the
  floats it decodes them to;
- data/results/cpu/quantize-error-DATE.json: the error of its quantizers on Gaussian and Student t weights.
"""
import ctypes as C
import datetime
import hashlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
TYPES = dict(Q4_0=2, Q4_1=3, Q5_0=6, Q5_1=7, Q8_0=8, Q2_K=10, Q3_K=11, Q4_K=12, Q5_K=13, Q6_K=14, IQ2_XXS=16, IQ2_XS=17,
             IQ3_XXS=18, IQ1_S=19, IQ4_NL=20, IQ3_S=21, IQ2_S=22, IQ4_XS=23, IQ1_M=29, TQ1_0=34, TQ2_0=35, MXFP4=39)
NEED_WEIGHTS = 'IQ2_XXS', 'IQ2_XS', 'IQ1_S', 'IQ1_M'


class Traits(C.Structure):
    "The head of ggml_type_traits."
    _fields_ = [('name', C.c_char_p), ('block', C.c_int64), ('interleave', C.c_int64), ('size', C.c_size_t),
                ('quantized', C.c_bool), ('to_float', C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64))]


def load():
    "llama.cpp's ggml library."
    import llama_cpp
    lib = C.CDLL(str(next((Path(llama_cpp.__file__).parent / 'lib').glob('libggml-base.*'))))
    lib.ggml_quantize_chunk.restype = C.c_size_t
    lib.ggml_quantize_chunk.argtypes = [C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_int64, C.c_int64, C.c_void_p]
    lib.ggml_get_type_traits.restype = C.POINTER(Traits)
    return lib


def round_trip(lib, type, x):
    "Bytes and decoded floats of rows x."
    t = lib.ggml_get_type_traits(TYPES[type]).contents
    lib.ggml_quantize_init(TYPES[type])
    rows, k = x.shape
    data, out = np.zeros((rows, k//t.block*t.size), np.uint8), np.empty_like(x)
    weights = np.ones(k, np.float32)
    w = weights.ctypes.data if type in NEED_WEIGHTS else None
    n = lib.ggml_quantize_chunk(TYPES[type], x.ctypes.data, data.ctypes.data, 0, rows, k, w)
    assert n == data.nbytes, (type, n, data.nbytes)
    for row, o in zip(data, out): t.to_float(row.ctypes.data, o.ctypes.data, k)
    return data, out


def main():
    lib, today = load(), datetime.date.today().isoformat()
    version = f"llama-cpp-python {importlib.metadata.version('llama_cpp_python')}"
    x = np.random.default_rng(1).standard_normal((2, 512)).astype(np.float32)
    golden = {}
    for type in TYPES:
        data, out = round_trip(lib, type, x)
        golden[type] = dict(data=data.tobytes().hex(), sha256=hashlib.sha256(out.astype('<f4').tobytes()).hexdigest())
    record = dict(source=version, command='python tests/golden/record_blocks.py', date=today, types=golden)
    (ROOT / 'tests/golden/blocks.json').write_text(json.dumps(record, indent=1) + '\n')

    rows = []
    for kind, x in (('gauss', np.random.default_rng(1).standard_normal((32, 1024)).astype(np.float32)),
                    ('student-t3', np.random.default_rng(1).standard_t(3, (32, 1024)).astype(np.float32))):
        for type in TYPES:
            error = round_trip(lib, type, x)[1] - x
            e = float(np.sqrt(np.mean(np.square(error, dtype=np.float64))/np.mean(np.square(x, dtype=np.float64))))
            rows.append(dict(quantization=type, model=kind, value=round(100*e, 4), n=x.size))
        print(kind, file=sys.stderr)
    result = dict(topic='quantize-error', device='cpu', arm='llama.cpp', unit='% of RMS', spread=None, date=today,
                  commit=None, command='python tests/golden/record_blocks.py', contract_version=None, context=None,
                  width=None, mode=None, drafter=None, source=version, host=platform.machine(), rows=rows)
    (ROOT / f'data/results/cpu/quantize-error-{today}.json').write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__': main()
