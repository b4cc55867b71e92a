"""The GPU's operations in Triton's interpreter against the numpy spec, bit by bit; every kernel compiled for five architectures."""
import os, subprocess, sys
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault('TRITON_INTERPRET', '1')
torch = pytest.importorskip('torch')
pytest.importorskip('triton')

import alphabook.streams as spec
from alphabook import (elementary, gpu_attention as attention, gpu_functions as functions, gpu_heads as heads, gpu_hybrid as hybrid,
                       gpu_matrices as matrices, gpu_norms as norms, gpu_tokens as tokens)
from alphabook.blocks import FLOAT_TYPES, FORMATS, decode, random_blocks
from alphabook.gpu_acts import quantize

pytestmark = [pytest.mark.skipif(not functions.INTERPRET, reason='Triton was imported without its interpreter'),
              pytest.mark.filterwarnings('ignore')]


@pytest.fixture
def rng(): return np.random.default_rng(7)


def normal(rng, *shape): return rng.normal(size=shape).astype(np.float32)


def to(*arrays):
    t = [torch.from_numpy(np.array(a, order='C')) for a in arrays]
    return t[0] if len(t) == 1 else t


def same(mine, want):
    if isinstance(want, tuple): return len(mine) == len(want) and all(map(same, mine, want))
    mine, want = mine.numpy(), np.asarray(want)
    return mine.shape == want.shape and mine.dtype == want.dtype and mine.tobytes() == want.tobytes()


@pytest.mark.parametrize('act', ['silu', 'gelu', 'swiglu_oai'])
def test_gates(rng, act):
    x = np.concatenate([normal(rng, 3000)*s for s in (.1, 10, 80)] + [np.float32([0, -0.0, 88.8, -88.8, 3e38, 1e-42])])
    y = normal(rng, len(x))
    with np.errstate(over='ignore'): assert same(functions.gated(*to(x, y), act), spec.gated(x, y, act))


def test_the_rest_that_looks_at_one_place(rng):
    x, y = normal(rng, 4, 70)*9, normal(rng, 4, 70)
    assert same(functions.softcap(to(x), 30.0), spec.softcap(x, 30.0))
    assert same(functions.add(*to(x, y)), x + y) and same(functions.scale(to(x), .3), x*np.float32(.3))
    for gate in (y, y[:, :1]): assert same(hybrid.sigmoid_gate(*to(x, gate)), spec.sigmoid_gate(x, gate))


@pytest.mark.parametrize('n', [1, 31, 128, 256, 257, 2560])
def test_norms(rng, n):
    x, y, w = normal(rng, 2, n)*7, normal(rng, 2, n), normal(rng, n)
    assert same(norms.rms_norm(*to(x, w), 1e-6), spec.rms_norm(x, w, 1e-6))
    assert same(norms.add_norm(*to(x, y, w), 1e-6), (x + y, spec.rms_norm(x + y, w, 1e-6)))
    o, z = normal(rng, 1, 2, n), normal(rng, 1, 2, n)
    for kind in ('silu', 'sigmoid'): assert same(hybrid.gated_norm(*to(o, w), 1e-6, to(z), kind), spec.gated_norm(o, w, 1e-6, z, kind))


def test_angles_far_out(rng):
    positions = np.concatenate([rng.integers(0, 1 << 50, 60), [0, 1, 2**31 - 1, 2**31, 2**32]])
    for theta, dim, mscale in ((1e4, 40, 1), (1e7, 64, 1.2)):
        steps = elementary.rope_steps(theta, dim)
        assert same(heads.rope_angles(to(positions), heads.load_steps(steps, 'cpu'), mscale), elementary.rope_angles(positions, steps, mscale))


@pytest.mark.parametrize('H,KV,D,rope,style', [(4, 2, 64, 64, 'neox'), (3, 1, 40, 24, 'norm'), (2, 2, 96, 16, 'neox'), (8, 1, 128, 128, 'neox')])
@pytest.mark.parametrize('normed,biased', [(True, False), (False, True), (True, True)])
def test_heads(rng, H, KV, D, rope, style, normed, biased):
    at, W = np.int64([63, 64, 130]), 3
    wide, k, v = normal(rng, W, H, 2*D), normal(rng, W, KV, D), normal(rng, W, KV, D)
    angles = elementary.rope_angles(at, elementary.rope_steps(1e4, rope))
    weights = (normal(rng, D), normal(rng, D)) if normed else None
    biases = (normal(rng, H*D), normal(rng, KV*D), normal(rng, KV*D)) if biased else None
    keys, values = (t[0] for t in heads.kv_tables(1, 140, KV, D, 'cpu'))
    mine = heads.heads(to(wide)[..., :D], *to(k, v), to(*angles), to(at), keys, values, weights and to(*weights), 1e-6, style, biases and to(*biases))
    q = wide[..., :D].copy()
    if biased: q, k, v = (x + b.reshape(x.shape[1:]) for x, b in zip((q, k, v), biases))
    if normed: q, k = spec.rms_norm(q, weights[0], 1e-6), spec.rms_norm(k, weights[1], 1e-6)
    q, k = spec.apply_rope(q, *angles, style), spec.apply_rope(k, *angles, style)
    assert same(heads.unpack_queries(mine[..., :W*H//KV], W, D).contiguous(), q)
    assert not mine[:, D:, :W*H//KV].any()                                                  # filled up with zeros
    want_k, want_v = np.zeros((2, 140, KV, D), np.float16)
    want_k[at], want_v[at] = k, v
    assert same(heads.unpack_keys(keys, 140, D), want_k) and same(values[:, :140].transpose(0, 1).contiguous(), want_v)


def tables(rng, n_ctx, KV, D):
    k, v = (normal(rng, n_ctx, KV, D).astype(np.float16) for _ in range(2))
    keys, values = (t[0] for t in heads.kv_tables(1, n_ctx, KV, D, 'cpu'))
    keys.copy_(heads.pack_keys(to(k)))
    values[:, :n_ctx] = to(v).transpose(0, 1)
    return k, v, keys, values


@pytest.mark.parametrize('H,KV,D', [(4, 2, 32), (2, 1, 64), (3, 1, 40), (1, 1, 128), (2, 1, 256)])
@pytest.mark.parametrize('positions,window', [([0], 0), ([63], 0), ([64, 65], 0), ([150, 151], 60), ([129, 3], 1)])
def test_attention(rng, H, KV, D, positions, window):
    k, v, keys, values = tables(rng, 160, KV, D)
    q, sinks, gate = normal(rng, len(positions), H, D)*3, normal(rng, H), normal(rng, len(positions), H, D)
    want = spec.attention(q, k, v, positions, window, D**-.5)
    args = heads.pack_queries(to(q), KV), keys, values, to(np.int32(positions)), H, window, D**-.5
    assert same(attention.attention(*args), want)
    if D > 40: return
    assert same(attention.attention(*args, gate=to(gate)), spec.sigmoid_gate(want, gate))
    assert same(attention.attention(*args, sinks=to(sinks)), spec.attention(q, k, v, positions, window, D**-.5, sinks))


def test_attention_of_any_width_and_any_division_of_work(rng, monkeypatch):
    k, v, keys, values = tables(rng, 400, 1, 32)
    positions = np.arange(380, 390)
    q = normal(rng, 10, 3, 32)*2
    want = spec.attention(q, k, v, positions, 0, .2)
    def run(rows): return attention.attention(heads.pack_queries(to(q[rows]), 1), keys, values, to(positions[rows]), 3, 0, .2)
    assert same(run(slice(None)), want) and same(run(slice(4, 5)), want[4:5])
    monkeypatch.setattr(attention, 'WAVES', 1)                                                # one program for all tiles
    assert same(run(slice(2, 5)), want[2:5])
    monkeypatch.setattr(attention, 'SCRATCH', 1)                                              # eight heads a launch
    monkeypatch.setattr(attention, 'heads_of', lambda D, W: 2)
    assert same(run(slice(0, 4)), want[:4])


def test_more_tiles_than_factors_at_a_time(rng):
    n = 64*40
    k, v, keys, values = tables(rng, n, 1, 32)
    q = normal(rng, 1, 1, 32)*3
    assert same(attention.attention(heads.pack_queries(to(q), 1), keys, values, to([n - 1]), 1, 0, .2), spec.attention(q, k, v, [n - 1], 0, .2))


@pytest.mark.parametrize('H,KV,D,W', [(4, 2, 64, 2), (9, 3, 64, 1), (3, 1, 32, 3), (2, 1, 256, 1), (4, 4, 128, 9)])
def test_attention_as_integers_is_attention_quantized(rng, H, KV, D, W):
    _, _, keys, values = tables(rng, 70, KV, D)
    q, gate = heads.pack_queries(to(normal(rng, W, H, D)*3), KV), to(normal(rng, W, H, D))
    args = q, keys, values, to(np.arange(W) + 60 - W), H, 0, D**-.5, None, gate
    want, mine = quantize(attention.attention(*args).view(W, -1)), attention.attention(*args, quantized=True)
    used = -(-W//8)*8
    for name in ('q', 'a', 's', 'm8', 'm16', 'd', 'f'):
        a, b = (getattr(x, name) for x in (mine, want))
        assert a.dtype == b.dtype and a.shape == b.shape
        if name in 'asd': assert torch.equal(a.view(-1, used)[:, :W], b.view(-1, used)[:, :W]), name
        if name == 'q': assert torch.equal(a.view(-1, used, 64)[:, :W], b.view(-1, used, 64)[:, :W])


def test_attention_that_cannot_be_integers():
    _, _, keys, values = tables(np.random.default_rng(0), 70, 1, 40)
    with pytest.raises(ValueError, match='a part of 256'): attention.attention(torch.zeros(1, 64, 2), keys, values, to([3]), 2, 0, 1.0, quantized=True)


def test_sparse_attention(rng):
    k, v, keys, values = tables(rng, 300, 1, 32)
    positions, q = np.arange(270, 273), normal(rng, 3, 2, 32)*3
    chosen = rng.random((3, 273//4 + 1)) < .2
    chosen[:, 16:32] = False                                                            # a whole tile out of sight
    chosen[:, -1] = True
    chosen[1, :48] = False
    mine = attention.attention(heads.pack_queries(to(q), 1), keys, values, to(positions), 2, 0, .2, chosen=to(chosen.astype(np.uint8)), block=4)
    assert same(mine, spec.sparse_attention(q, k, v, positions, chosen, 4, .2))


def test_embed_every_type(rng):
    ids = np.int64([5, 0, 5, 19])
    for kind in (*FORMATS, *FLOAT_TYPES):
        data = random_blocks(kind, 20, 1280, rng)
        assert same(matrices.embed(matrices.load_matrix(data, kind, device='cpu'), to(ids)), decode(data[ids], kind)), kind


def test_top_k_and_argmax(rng):
    for logits in (normal(rng, 3, 2500)*4, np.round(normal(rng, 3, 2500))):
        for k in (1, 7):
            ids, values, weights, ok = tokens.top_k(to(logits), k)
            assert same(ids.int(), spec.route(logits, k)[0]) and same(weights, spec.route(logits, k)[1]) and ok.all()
        assert tokens.argmax(to(logits))[0].tolist() == [spec.argmax(x) for x in logits]
    logits[2, 2400] = np.nan
    assert tokens.argmax(to(logits))[1].tolist() == [1, 1, 0]
    for k in (0, 65):
        with pytest.raises(ValueError, match='must be from 1 to 64'): tokens.top_k(to(logits), k)


def test_sample(rng):
    positions = rng.integers(0, 1 << 40, 4)
    for _ in range(12):
        k, temp, top_p, min_p = int(rng.integers(1, 65)), float(rng.choice([0, .3, 1, 2.5])), float(rng.choice([1, .9, .2])), float(rng.choice([0, .1]))
        seed = int(rng.integers(0, 1 << 63))*2 + 1
        logits = np.round(normal(rng, 4, 200)*6)/2
        mine = tokens.sample(*tokens.top_k(to(logits), k)[:2], to(positions), tokens.sampling_buffers(temp, top_p, min_p, seed, 'cpu'))
        assert mine.tolist() == [spec.sample(x, int(p), temp, k, top_p, min_p, seed) for x, p in zip(logits, positions)], (k, temp, top_p, min_p)


@pytest.mark.parametrize('W,E,k', [(1, 1, 1), (2, 64, 4), (2, 512, 10), (1, 300, 8)])
def test_route_and_combine(rng, W, E, k):
    for logits in (normal(rng, W, E)*3, np.round(normal(rng, W, E))):
        for renormalise, scale in ((True, 1.0), (False, 1.0), (True, 2.5)):
            assert same(hybrid.route(to(logits), k, renormalise, scale), spec.route(logits, k, renormalise, scale))
    bias = normal(rng, E)
    for renormalise in (True, False): assert same(hybrid.route(to(logits), k, renormalise, bias=to(bias)), spec.route(logits + bias, k, renormalise))
    y, w, shared, gate, x = normal(rng, W, k, 90), normal(rng, W, k), normal(rng, W, 90), normal(rng, W, 1), normal(rng, W, 90)
    want = spec.combine(y, w)
    assert same(hybrid.combine(*to(y, w)), want) and same(hybrid.combine(*to(y, w), x=to(x)), x + want)
    assert same(hybrid.combine(*to(y, w, shared, gate, x)), x + (want + spec.sigmoid_gate(shared, gate)))


@pytest.mark.parametrize('W,K,V,D', [(1, 2, 4, 32), (3, 1, 2, 64), (2, 2, 2, 20), (1, 1, 2, 128)])
def test_delta_rule(rng, W, K, V, D):
    C = (2*K + V)*D
    window, rows, conv = normal(rng, 3, C), normal(rng, W, C), normal(rng, C, 4)
    alpha, b, a, bias = normal(rng, W, V)*9, normal(rng, W, V)*9, -np.exp(normal(rng, V)), normal(rng, V)
    q, k, v = np.split(spec.conv_silu(np.concatenate([window, rows]), conv), [K*D, 2*K*D], -1)
    q, k, v = (np.ascontiguousarray(x).reshape(W, -1, D) for x in (q, k, v))
    want = (spec.l2_norm(q, D**-.5), spec.l2_norm(k), v, *spec.gdn_gates(alpha, b, a, bias))
    mine = hybrid.gdn_inputs(*to(window, rows, conv, alpha[:, None], b[:, None], a, bias), K)
    assert same(mine, want)
    S = normal(rng, V, D, D)
    for tiled in (True, False): assert same(hybrid.gdn(to(S), *mine, tiled), spec.gdn(S, *want, tiled))
    x = np.concatenate([window, rows])
    assert same(hybrid.conv_silu(*to(x[:3], x[3:], conv)), spec.conv_silu(x, conv))


def test_heads_that_are_too_wide(rng):
    with pytest.raises(ValueError, match='at most 128'): hybrid.gdn(torch.zeros(1, 160, 160), *(torch.zeros(1, 1, 160),)*3, torch.zeros(1, 1), torch.zeros(1, 1))


def compile_all(*options):
    env = {k: v for k, v in os.environ.items() if k != 'TRITON_INTERPRET'}
    script = Path(__file__).resolve().parent / 'gpu_compile.py'
    return subprocess.run([sys.executable, script, *options], env=env, capture_output=True, text=True, timeout=1200)


@pytest.mark.parametrize('arch', ['80', '86', '89', '90', '120'])
def test_every_kernel_compiles_and_nothing_is_contracted(arch):
    run = compile_all(arch, '--quick')
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    import gpu_compile
    assert {line.split()[1] for line in run.stdout.splitlines()} == gpu_compile.defined(int(arch))


def test_products_of_every_kind_compile():
    "Without --only, gpu_compile.py also goes through the kernels for many columns and for experts, which takes minutes."
    run = compile_all('90', '--only=product_kernel')
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert len(run.stdout.splitlines()) > 20


def test_products_of_many_columns_compile():
    "Every kind of type, in the widths that products and experts use."
    run = compile_all('90', '--only=tall_kernel')
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert len(run.stdout.splitlines()) >= 20


def test_the_rules_notice_contraction():
    run = compile_all('90', '--quick', '--fusion', '--only=k_heads')
    bad = [line for line in run.stdout.splitlines() if 'written' in line or 'contracted' in line]
    assert run.returncode == 1 and any('k_heads' in line for line in bad), run.stdout[-2000:]
