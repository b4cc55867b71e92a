"""Blocks (02a), codebooks (02b), scales (02c): against gguf-py, and against bytes and floats that llama.cpp recorded."""
import hashlib
import json

import gguf
import numpy as np
import pytest

import alphabook.codebooks  # noqa: F401  registers its formats
import alphabook.scales     # noqa: F401  registers its quantizers
from alphabook.blocks import (FLOAT_TYPES, FORMATS, QUANTIZERS, decode, int_bound, int_view, offset_bound, quantize,
                              quantize_acts, random_blocks)
from alphabook.modelfile import TYPE
from conftest import ROOT

GOLDEN = json.loads((ROOT / 'tests/golden/blocks.json').read_text())['types']
WANTED = set('''F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS
                IQ3_S IQ4_NL IQ4_XS MXFP4 TQ1_0 TQ2_0'''.split())
SUPERBLOCKS = [t for t in FORMATS if FORMATS[t].block == 256]
formats = pytest.mark.parametrize('type', FORMATS)

pytestmark = pytest.mark.filterwarnings('ignore:invalid value', 'ignore:overflow')


def same(a, b):
    "Equal bits (so −0.0 is not 0.0), or both NaN."
    return a.shape == b.shape and ((a.view(np.uint32) == b.view(np.uint32)) | np.isnan(a) & np.isnan(b)).all()


def oracle(data, type): return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[type])


def random_bytes(type, rows, nb, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, nb*TYPE[type].size), dtype=np.uint8)


def exactly(v):
    "A view multiplied out in float64, where every product and difference is exact."
    w = v.d.astype(np.float64)[..., None]*(1 if v.sc is None else v.sc)
    w = w[..., None]*v.q
    if v.m is not None: w = w - (v.m.astype(np.float64)[..., None]*v.mn)[..., None]
    return w.reshape(len(w), -1)


def test_all_types_are_there(): assert set(FORMATS) | set(FLOAT_TYPES) == WANTED


@pytest.mark.parametrize('type', sorted(WANTED))
def test_decode_equals_gguf_py_on_random_bytes(type):
    data = random_bytes(type, 5, 777 if TYPE[type].block > 1 else 4096)
    assert same(decode(data, type), oracle(data, type))


@formats
def test_decode_equals_gguf_py_for_all_scales(type):
    "All 65,536 scales (every seventh for superblocks), subnormal and negative ones among them."
    f = FORMATS[type]
    codes = np.arange(65536, dtype=np.uint16) if f.block == 32 else np.arange(0, 65536, 7, dtype=np.uint16)[:9344]
    b = random_bytes(type, 1, codes.size).view(f.dtype)[0]
    halves = codes.view(np.float16)
    for name in {'d', 'm'} & set(f.dtype.names): b[name] = halves if name == 'd' else np.roll(halves, 1234)
    if type == 'MXFP4': b['e'] = codes % 256
    if type == 'IQ1_M': b['scales'] = b['scales'] & 0xfff | codes[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) << 12
    data = b.view(np.uint8).reshape(64, -1)
    w = decode(data, type)
    assert same(w, oracle(data, type))
    assert same(exactly(int_view(data, type)).astype(np.float32), w)


@pytest.mark.parametrize('type', GOLDEN)
def test_decode_equals_llama_cpp(type):
    data = np.frombuffer(bytes.fromhex(GOLDEN[type]['data']), np.uint8).reshape(2, -1)
    w = decode(data, type)
    assert hashlib.sha256(w.astype('<f4').tobytes()).hexdigest() == GOLDEN[type]['sha256']


def test_the_golden_file_covers_every_quantized_type(): assert set(GOLDEN) == set(FORMATS)


@formats
def test_view_has_the_agreed_shapes(type):
    v, f = int_view(random_bytes(type, 3, 5), type), FORMATS[type]
    assert v.q.dtype == np.int8 and v.q.shape[:2] == (3, 5) and v.q.shape[2]*v.q.shape[3] == v.block == TYPE[type].block
    assert v.d.dtype == np.float32 and v.d.shape == (3, 5) and (v.m is None) == (v.mn is None) == (f.mn is None)
    assert v.q.shape[2] == 1 if v.block == 32 else v.q.shape[2] in (8, 16)
    for a in (v.sc, v.mn): assert a is None or (a.dtype == np.int16 and a.shape == v.q.shape[:3])
    assert int_view(random_bytes(type, 0, 5), type).q.shape == (0, *v.q.shape[1:])


@formats
def test_pieces_do_not_show(type):
    "Rows that end inside a piece, and leading axes, change nothing."
    data = random_bytes(type, 6, 517)
    w = decode(data, type)
    assert same(decode(data.reshape(2, 3, -1), type), w.reshape(2, 3, -1)) and same(decode(data[4], type), w[4])
    assert same(decode(np.asfortranarray(data), type), w)
    assert (int_view(data, type).q[5] == int_view(data[5:], type).q[0]).all()


@formats
def test_ranges_hold_and_are_reached(type):
    f, v = FORMATS[type], int_view(random_bytes(type, 1, 30000), type)
    for a, limits in ((v.q, f.q), (v.sc, f.sc), (v.mn, f.mn)):
        assert (a is None and limits is None) or (a.min(), a.max()) == limits


@formats
def test_integer_sums_fit(type):
    assert max(int_bound(type), offset_bound(type)) < (2**31 if FORMATS[type].block == 256 else 2**24)


def test_known_bounds():
    assert int_bound('Q6_K') == 2130706432 and int_bound('Q4_K') == 256*15*127*63*32 and int_bound('TQ1_0') == 128*127*32
    assert offset_bound('Q4_K') == 256*127*63*32 and offset_bound('Q6_K') == 0


@pytest.mark.parametrize('call', [
    lambda: decode(np.zeros((2, 17), np.uint8), 'Q4_0'), lambda: decode(np.zeros((2, 18), np.int8), 'Q4_0'),
    lambda: decode(np.zeros((2, 18), np.uint8), 'IQ9_X'), lambda: int_view(np.zeros((2, 4), np.uint8), 'F32'),
    lambda: decode(np.zeros((2, 3), np.uint8), 'F16'), lambda: quantize(np.zeros((1, 33)), 'Q8_0'),
    lambda: quantize(np.zeros((1, 256)), 'IQ1_S'), lambda: random_blocks('Q4_K', 1, 128, np.random.default_rng(0))])
def test_bad_input_is_one_clear_line(call):
    with pytest.raises(ValueError) as e: call()
    assert '\n' not in str(e.value) and any(t in str(e.value) for t in ('Q4', 'IQ', 'F32', 'F16', 'Q8'))


# Writing

def awkward(scale):
    "Rows of zeros, a constant, gaps, steps, signs, halves of Q8_0's levels, on a background of Gaussian weights."
    x = np.random.default_rng(3).standard_normal((16, 1024)).astype(np.float32)
    x[1], x[2], x[3, ::3], x[4], x[5] = 0, .25, 0, np.round(x[4]*4)/4, np.sign(x[5])
    x[6] = (np.arange(1024) % 64 - 31.5)/127
    x[6, ::32] = 1
    return (x*np.float32(scale)).astype(np.float32)


@pytest.mark.parametrize('scale', [1, 1e-3, 1e-6, 1e-8, 100])
@pytest.mark.parametrize('type', [*FLOAT_TYPES, 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'MXFP4', 'TQ1_0', 'TQ2_0'])
def test_quantize_equals_gguf_py(type, scale):
    x = awkward(scale)
    truth = gguf.quants.quantize(x, gguf.GGMLQuantizationType[type])
    assert (quantize(x, type) == np.ascontiguousarray(truth).view(np.uint8)).all()


@pytest.mark.parametrize('type', ['Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'MXFP4'])
def test_quantize_equals_llama_cpp(type):
    x = np.random.default_rng(1).standard_normal((2, 512)).astype(np.float32)
    assert quantize(x, type).tobytes().hex() == GOLDEN[type]['data']


def relative(y, x): return np.sqrt(np.mean(np.square(y - x, dtype=np.float64))/np.mean(np.square(x, dtype=np.float64)))


@pytest.mark.parametrize('type', ['Q2_K', 'Q3_K', 'Q4_K', 'Q5_K', 'Q6_K', 'IQ4_NL', 'IQ4_XS'])
def test_searched_scales_are_no_worse_than_llama_cpps(type):
    x = np.random.default_rng(1).standard_normal((2, 512)).astype(np.float32)
    theirs = decode(np.frombuffer(bytes.fromhex(GOLDEN[type]['data']), np.uint8).reshape(2, -1), type)
    assert relative(decode(quantize(x, type), type), x) < relative(theirs, x)


@pytest.mark.parametrize('type', QUANTIZERS)
def test_hard_weights(type):
    assert (decode(quantize(np.zeros((2, 256)), type), type) == 0).all()
    for bad in (np.nan, np.inf, -np.inf):
        x = np.zeros((1, 256), np.float32)
        x[0, 77] = bad
        with pytest.raises(ValueError, match='finite'): quantize(x, type)
    if type != 'MXFP4':
        for x in (np.full((1, 256), 1e30), np.linspace(-3e38, 3e38, 256)[None]):
            with pytest.raises(ValueError, match='too large'): quantize(x, type)
    for scale in (1e-12, 1e-8, 1e-5, 1e3):
        assert np.isfinite(decode(quantize(awkward(scale), type), type)).all()
    assert quantize(np.zeros((0, 256)), type).shape == (0, 256//TYPE[type].block*TYPE[type].size)


@pytest.mark.parametrize('type', ['Q3_K', 'Q4_K', 'Q5_K', 'Q6_K', 'IQ4_XS'])
def test_tiny_weights_survive(type):
    "A float16 scale must not underflow to zero while the block can still say something."
    x = awkward(1)[6:]*np.float32(1e-5)
    assert relative(decode(quantize(x, type), type), x) < .3


@pytest.mark.parametrize('type', sorted(WANTED))
def test_random_blocks_are_valid(type):
    data = random_blocks(type, 32, 1024, np.random.default_rng(0), sigma=.02)
    w = decode(data, type)
    assert data.dtype == np.uint8 and data.shape == (32, 1024//TYPE[type].block*TYPE[type].size)
    assert np.isfinite(w).all() and .017 < w.std() < .023 and abs(w.mean()) < .001
    assert w.reshape(-1, 16).mean(-1).std() < .5*w.std()              # each group is centered
    assert (data == random_blocks(type, 32, 1024, np.random.default_rng(0), sigma=.02)).all()


# Activations

def acts_naive(x):
    "One superblock, by the contract's formula, one float32 operation at a time."
    f = np.float32
    A = max(abs(v) for v in x)
    if A < 2.0**-100: return [0]*256, [1]*8, f(0)
    q, a = [], []
    for j in range(8):
        group = x[32*j:32*j + 32]
        a.append(min(32, 1 + int(max(abs(v) for v in group)*f(32)/A)))
        q += [round(float(v*(f(127)/A*f(32)/f(a[-1])))) for v in group]
    return q, a, A/f(4064)


@pytest.mark.parametrize('scale', [2.0**-140, 2.0**-101, 2.0**-99, 1e-3, 1, 1e9, 2.0**116])
def test_activations_equal_the_loop(scale):
    rng = np.random.default_rng(5)
    x = rng.standard_t(3, (12, 256)).clip(-8, 8)*np.repeat(2.0**rng.integers(-7, 1, (12, 8)), 32, -1)
    x[1, :250], x[2], x[3] = 0, 1, np.arange(-127.5, 128.5)/127.5
    x = (x*scale).astype(np.float32)
    r = quantize_acts(x)
    for i, row in enumerate(x):
        q, a, d = acts_naive(row)
        assert r.q[i, 0].tolist() == q and r.a[i, 0].tolist() == a and r.d[i, 0] == d
    assert (r.bs == r.q.reshape(12, 1, 8, 32).sum(-1)).all() and np.abs(r.q.astype(int)).max() <= 127
    assert r.q.dtype == np.int8 and r.a.dtype == r.bs.dtype == np.int32 and r.d.dtype == np.float32


def test_activation_shapes_and_padding():
    x = np.random.default_rng(6).standard_normal((2, 3, 300)).astype(np.float32)
    r, whole = quantize_acts(x), quantize_acts(np.pad(x, ((0, 0), (0, 0), (0, 212))))
    assert r.q.shape == (2, 3, 2, 256) and r.a.shape == r.bs.shape == (2, 3, 2, 8) and r.d.shape == (2, 3, 2)
    assert (r.q == whole.q).all() and (r.a == whole.a).all() and (r.d == whole.d).all() and not r.q[..., 1, 44:].any()
    assert quantize_acts(x[0, 0]).q.shape == (2, 256) and quantize_acts(x[:0]).q.shape == (0, 3, 2, 256)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf, 2.0**120, -2.0**120])
def test_activations_must_be_finite(bad):
    with pytest.raises(ValueError, match='finite'): quantize_acts(np.float32([1, bad, 3]))
    assert quantize_acts(np.float32([1, np.nextafter(np.float32(2.0**120), np.float32(0)), 3])).q[0, 1] == 127
