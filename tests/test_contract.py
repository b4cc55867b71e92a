"""The arithmetic contract: recorded hashes, extremes, and its distance from float32 beside llama.cpp's."""
import dataclasses, json, pathlib, sys
import numpy as np
import pytest

import alphabook.codebooks
import alphabook.arithmetic as spec
import alphabook.cpu
import alphabook.cpu_packing as cpu_packing
import alphabook.cpu_products as cpu
import alphabook.cpu_hybrid as cpu_hybrid
import alphabook.hybrid as hybrid_spec
from alphabook.blocks import FORMATS, STEPS, int_bound, quantize_acts
from alphabook.tape import set_threads

GOLDEN = pathlib.Path(__file__).parent / 'golden'
sys.path.insert(0, str(GOLDEN))
from record_contract import floats, functions, hybrid, products, view

RECORDED = json.loads((GOLDEN / 'contract.json').read_text())


def spec_product(v, x): return spec.quantized_product(v, quantize_acts(x))


def cpu_product(v, x, type=None):
    "By the kernels of a type with float32 scales, or by signed bytes, which hold every type's integers."
    group, has_min = min(32, v.q.shape[-1]), v.m is not None
    p = cpu_packing.packing(type) if type else cpu_packing.Packing('8', 0, v.block, group, has_min)
    w = cpu.Matrix.__new__(cpu.Matrix)
    w.n_rows, w.stack_rows, w.n_columns = len(v.q), len(v.q), v.q[0].size
    w.allocate(dataclasses.replace(p, half=False))
    w.packed[:] = 0
    cpu_packing.pack_view(v, w.packing, 0, w.n_rows, w.packed)
    return cpu.matmul(w, x)


def test_version():
    assert RECORDED['contract_version'] == spec.CONTRACT_VERSION


@pytest.mark.parametrize('backend', ['numpy', 'cpu'])
def test_recorded_hashes(backend):
    product, ops, hybrid_ops = dict(numpy=(spec_product, spec, hybrid_spec), cpu=(cpu_product, alphabook.cpu, cpu_hybrid))[backend]
    now = products(product) | functions(ops) | hybrid(hybrid_ops)
    assert set(now) == set(RECORDED['hashes'])
    assert {k: v for k, v in now.items() if RECORDED['hashes'][k] != v} == {}


@pytest.mark.parametrize('type', FORMATS)
@pytest.mark.parametrize('extreme', ['largest', 'subnormal', 'mixed', 'zero'])
def test_extremes(type, extreme):
    K = 17408 if FORMATS[type].block == 256 else 17408 + 32
    v, x = view(type, 3, K, 9), floats(10, 2, K, low=-3, high=3)
    if type in cpu_packing.TABLES: v.q = cpu_packing.TABLES[type][0][v.q & 15]
    if extreme == 'largest': x = np.sign(x) * np.float32(2.0**119)
    if extreme == 'subnormal': x = x * np.float32(2.0**-135)
    if extreme == 'mixed': x = floats(11, 2, K, low=-110, high=100)
    if extreme == 'zero': x[:] = 0
    v.d *= np.float32(2.0**-100 if extreme == 'largest' else 1)
    if v.m is not None: v.m *= np.float32(2.0**-100 if extreme == 'largest' else 1)
    a, b = spec_product(v, x), cpu_product(v, x, type)
    assert a.tobytes() == b.tobytes() and np.isfinite(a).all()


@pytest.mark.parametrize('type', FORMATS)
def test_saturated_sums_are_exact(type):
    "Every integer at its extreme, every activation at ±127 with the largest scale: nothing wraps around."
    f, v = FORMATS[type], view(type, 1, 256, 0)
    far = lambda limits: max(limits, key=abs)
    v.q[:], v.d[:] = far(f.q), 1
    if v.sc is not None: v.sc[:] = far(f.sc)
    if v.mn is not None: v.mn[:], v.m[:] = far(f.mn), 1
    acts = quantize_acts(np.ones((1, 256), np.float32))
    assert (acts.q == 127).all() and (acts.a == STEPS).all()
    q, sc = v.q.astype(np.int64), np.ones(v.q.shape[:3], int) if v.sc is None else v.sc.astype(np.int64)
    total = int((q * sc[..., None]).sum()) * 127 * STEPS
    offset = 0 if v.mn is None else int((v.mn.astype(np.int64) * v.q.shape[-1]).sum()) * 127 * STEPS
    exact = (total - offset) * float(acts.d[0, 0])
    for y in (spec_product(v, np.ones((1, 256), np.float32)), cpu_product(v, np.ones((1, 256), np.float32), type)):
        assert abs(float(y[0, 0]) - exact) <= 1e-6 * max(abs(total), abs(offset)) * float(acts.d[0, 0])
    assert int_bound(type) < 2**31


@pytest.mark.parametrize('width', [1, 2, 3, 5, 8, 16, 33, 64])
@pytest.mark.parametrize('type', ['Q4_1', 'Q8_0', 'Q4_K', 'Q6_K', 'F16'])
def test_rows_do_not_see_each_other(type, width):
    from alphabook.blocks import random_blocks
    w = cpu.load_matrix(random_blocks(type, 7, 512, np.random.default_rng(0)), type)
    x = floats(3, 64, 512, low=-3, high=3)
    alone = np.concatenate([cpu.matmul(w, x[i:i + 1]) for i in range(64)])
    for start in range(0, 64, width):
        assert cpu.matmul(w, x[start:start + width]).tobytes() == alone[start:start + width].tobytes()
    for threads in (1, 2):
        set_threads(threads)
        assert cpu.matmul(w, x[::-1].copy()).tobytes() == alone[::-1].tobytes()
    set_threads()


def test_attention_far_out():
    "Position 32,768, a window or none, both backends."
    k, v = (floats(s, 32_800, 1, 64, low=-3, high=3).astype(np.float16) for s in (1, 2))
    q = floats(3, 1, 2, 64, low=-3, high=1)
    for window in (0, 512, 4096):
        a, b = (ops.attention(q, k, v, [32_768], window, 0.125) for ops in (spec, alphabook.cpu))
        assert a.tobytes() == b.tobytes() and np.isfinite(a).all()
