"""Record hashes of what the arithmetic contract computes, so that any machine, and a GPU, can be held to them.

    python tests/golden/record_contract.py          # with the numpy spec; writes tests/golden/contract.json

Inputs are made from seeds with integers and exact float operations only, so that they are the same everywhere. A hash may
change only together with `CONTRACT_VERSION`.
"""
import hashlib, json, pathlib
import numpy as np

f32 = np.float32


def floats(seed, *shape, low=-12, high=12):
    "Float32 values of all signs and many magnitudes: integers times powers of two."
    rng = np.random.default_rng(seed)
    return (rng.integers(-2**23, 2**23, shape) * 2.0**rng.integers(low - 23, high - 23, shape)).astype(f32)


def view(type, R, K, seed):
    "An integer view with every integer anywhere in its type's range; scales are float16 values."
    from alphabook.blocks import FORMATS, IntView, int_view
    from alphabook.modelfile import TYPE
    f, rng = FORMATS[type], np.random.default_rng(seed)
    shape = int_view(np.zeros((1, TYPE[type].size), np.uint8), type).q.shape[2:]
    nb = K // f.block
    draw = lambda lo_hi, *s, t=np.int16: None if lo_hi is None else rng.integers(lo_hi[0], lo_hi[1] + 1, (R, nb, *s)).astype(t)
    scale = lambda: floats(rng.integers(2**31), R, nb, low=-10, high=-4).astype(np.float16).astype(f32)
    mn = draw(f.mn, shape[0])
    return IntView(draw(f.q, *shape, t=np.int8), draw(f.sc, shape[0]), mn, scale(), None if mn is None else scale(), f.block)


def sha(*arrays):
    return hashlib.sha256(b''.join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def products(matmul):
    "Hash of a product for every type: `matmul(view, x)` → float32 [W, R]."
    import alphabook.codebooks
    from alphabook.blocks import FORMATS
    return {f'product {t}': sha(*(matmul(view(t, 5, K, K), floats(K + 1, 3, K, low=-3, high=3))
                                  for K in ((256, 2560) if f.block == 256 else (32, 288, 2592)))) for t, f in FORMATS.items()}


def functions(ops):
    "Hashes of everything that is not a product, of a backend module."
    x, y = floats(1, 40_000, low=-8, high=7), floats(2, 40_000, low=-8, high=7)
    wide = np.concatenate([floats(3, 20_000, low=-120, high=30), f32([0, 88.7228, 88.723, -86.5, -86.6, 1e-40, -1e-44])])
    steps = np.random.default_rng(4).integers(0, 2**64, 32, dtype=np.uint64)
    positions = np.array([0, 1, 63, 64, 1000, 32768, 1_000_003])
    heads = floats(5, 7, 6, 64, low=-3, high=3)
    cos, sin = ops.rope_angles(positions, steps)
    k, v = (floats(s, 200, 2, 64, low=-3, high=3).astype(np.float16) for s in (6, 7))
    at = [0, 1, 63, 64, 65, 127, 199]
    return {
        'silu': sha(ops.gated(wide, np.ones_like(wide), 'silu')), 'gelu': sha(ops.gated(wide, np.ones_like(wide), 'gelu')),
        'rms_norm': sha(*(ops.rms_norm(x[:n*8].reshape(8, n), y[:n], 1e-6) for n in (1, 64, 257, 576, 4096))),
        'float product': sha(*(ops.matmul(ops.load_matrix(y[:n*6].reshape(6, n).view(np.uint8), 'F32'), x[:n*2].reshape(2, n))
                               for n in (1, 33, 256, 300, 2048))),
        'rope': sha(cos, sin, *(ops.apply_rope(heads, cos, sin, s) for s in ('norm', 'neox'))),
        'attention': sha(*(ops.attention(heads, k, v, at, w, 0.125) for w in (0, 1, 50, 64, 128))),
    }


if __name__ == '__main__':
    import alphabook.arithmetic as spec
    from alphabook.blocks import quantize_acts
    hashes = products(lambda v, x: spec.quantized_product(v, quantize_acts(x))) | functions(spec)
    out = pathlib.Path(__file__).with_name('contract.json')
    out.write_text(json.dumps(dict(contract_version=spec.CONTRACT_VERSION, hashes=hashes), indent=1) + '\n')
    print(f'{out}: {len(hashes)} hashes')
