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


def hybrid(ops):
    "Hashes of what chapter 03c adds, and of the additions to 03b, of a backend module."
    from alphabook.elementary import rope_steps
    x, y = floats(11, 40_000, low=-8, high=5), floats(12, 40_000, low=-8, high=5)
    logits = np.concatenate([floats(13, 9, 256, low=-2, high=4), np.round(floats(14, 9, 256, low=-2, high=2))])
    heads, sinks = floats(15, 5, 6, 64, low=-3, high=3), floats(16, 6, low=-2, high=4)
    k, v = (floats(s, 200, 2, 64, low=-3, high=3).astype(np.float16) for s in (17, 18))
    routes = [ops.route(logits, n, renormalise, scale) for n in (1, 8, 10) for renormalise in (True, False)
              for scale in (1.0, 2.5)]
    gates = ops.gdn_gates(x[:480].reshape(10, 48), y[:480].reshape(10, 48), -np.abs(x[500:548]), y[500:548])
    rules = []
    for K, V, D in ((1, 1, 32), (2, 4, 128), (1, 3, 64), (2, 2, 20)):
        q, key = (ops.l2_norm(floats(s, 7, K, D, low=-3, high=2), 0.25) for s in (19, 20))
        state, value = floats(21, V, D, D, low=-3, high=1), floats(22, 7, V, D, low=-3, high=1)
        decay, beta = ops.gdn_gates(floats(23, 7, V, low=-4, high=1), floats(24, 7, V, low=-2, high=2),
                                    -np.abs(floats(25, V)), floats(26, V))
        rules += [a for tiled in (True, False) for a in ops.gdn(state, q, key, value, decay, beta, tiled)]
    blocks = floats(27, 6*5, 256, low=-6, high=-2)
    from alphabook.blocks import quantize
    experts = {t: quantize(blocks, t).reshape(6, 5, -1) for t in ('Q8_0', 'Q4_0', 'F16', 'F32')}
    rows, ids = floats(28, 9, 256, low=-3, high=3), [5, 0, 0, 3, 5, 5, 1, 0, 3]
    return {
        'swiglu_oai': sha(ops.gated(x, y, 'swiglu_oai')),
        'sinks': sha(*(ops.attention(heads, k, v, [0, 1, 63, 64, 199], w, 0.125, sinks) for w in (0, 50))),
        'yarn': sha(rope_steps(150000.0, 64, yarn=(32.0, 4096, 32.0, 1.0)),
                    *ops.rope_angles([0, 1, 77, 131_071], rope_steps(1e6, 64, yarn=(4.0, 32768, 32.0, 1.0)), 1.25)),
        'route': sha(*(a for r in routes for a in r)),
        'combine': sha(ops.combine(x[:9*8*50].reshape(9, 8, 50), y[:72].reshape(9, 8))),
        'expert_matmul': sha(*(ops.expert_matmul(ops.load_experts(d, t), rows, ids) for t, d in experts.items())),
        'sigmoid_gate': sha(ops.sigmoid_gate(x.reshape(4, -1), y[:4, None]), ops.sigmoid_gate(x, y)),
        'conv_silu': sha(*(ops.conv_silu(x[:90*(3*d + 5)].reshape(-1, 90), y[:360].reshape(90, 4), d) for d in (1, 3))),
        'l2_norm': sha(*(ops.l2_norm(x[:8*n].reshape(8, n), s) for n in (32, 100, 128, 600) for s in (1.0, 128**-.5))),
        'gdn_gates': sha(*gates),
        'gdn': sha(*rules),
        'gated_norm': sha(*(ops.gated_norm(x[:8*n].reshape(8, n), y[:n], 1e-6, y[n:9*n].reshape(8, n), kind)
                            for n in (32, 128, 300) for kind in ('silu', 'sigmoid'))),
    }


if __name__ == '__main__':
    import alphabook.arithmetic as spec
    import alphabook.hybrid as hybrid_spec
    from alphabook.blocks import quantize_acts
    hashes = products(lambda v, x: spec.quantized_product(v, quantize_acts(x))) | functions(spec)
    hashes |= hybrid(hybrid_spec)
    out = pathlib.Path(__file__).with_name('contract.json')
    out.write_text(json.dumps(dict(contract_version=spec.CONTRACT_VERSION, hashes=hashes), indent=1) + '\n')
    print(f'{out}: {len(hashes)} hashes')
