"""Experts, router and the gated delta rule: held to Hugging Face's recorded results, to float64, and numba to numpy by bits."""
import json, math, pathlib, sys
import numpy as np
import pytest

import alphabook.cpu_experts as cpu_experts
import alphabook.cpu_packing as cpu_packing
import alphabook.cpu_hybrid as cpu
import alphabook.hybrid as spec
from alphabook.blocks import FORMATS, decode, int_view, random_blocks
from alphabook.elementary import rope_angles, rope_steps
from alphabook.modelfile import TYPE
from alphabook.tape import recording

GOLDEN = pathlib.Path(__file__).parent / 'golden'
sys.path.insert(0, str(GOLDEN))
from record_contract import floats
from record_gdn import LAYER, RATIOS, ROUTERS, YARN, layer_weights, router_logits, rule_inputs, sink_inputs

GDN = json.loads((GOLDEN / 'gdn.json').read_text())
BACKENDS = pytest.mark.parametrize('ops', [spec, cpu], ids=['numpy', 'cpu'])


def recorded(name, shape): return np.array(name, np.float64).reshape(shape)


def close(a, b, tol=2e-6): return np.abs(a - b).max() <= tol*max(1, np.abs(b).max())


def bits(a): return [x.tobytes() for x in a] if isinstance(a, tuple) else a.tobytes()


@BACKENDS
@pytest.mark.parametrize('K,V', RATIOS)
def test_the_rule_is_hugging_faces(ops, K, V):
    q, k, v, g, beta, S = rule_inputs(K, V)
    o, end = ops.gdn(S, ops.l2_norm(q, 1/math.sqrt(32)), ops.l2_norm(k), v, np.exp(g), beta, tiled=False)
    want = GDN[f'rule {K} {V}']
    assert close(o, recorded(want['o'], o.shape)) and close(end[:, :2], recorded(want['state'], (V, 2, 32)))


@BACKENDS
@pytest.mark.parametrize('cuts', [(), (1,), (4, 5, 9)])
def test_a_whole_layer_is_hugging_faces(ops, cuts):
    "Projections in float64; convolution, norms, gates, rule and gated norm by the contract; in one round and in several."
    n, w = LAYER, layer_weights(**LAYER)
    K, V, D = n['K'], n['V'], n['D']
    project = lambda name, x: (x.astype(float) @ w[name].astype(float).T).astype(np.float32)
    window, S, y = np.zeros((3, (2*K + V)*D), np.float32), np.zeros((V, D, D), np.float32), []
    for x in np.split(w['x'], cuts):
        W = len(x)
        window = np.concatenate([window[-3:], project('in_proj_qkv', x)])
        q, k, v = np.split(ops.conv_silu(window, w['conv1d']), [K*D, 2*K*D], axis=1)
        q, k, v = (a.reshape(W, -1, D) for a in (q, k, v))
        decay, beta = ops.gdn_gates(project('in_proj_a', x), project('in_proj_b', x), -np.exp(w['A_log']), w['dt_bias'])
        o, S = ops.gdn(S, ops.l2_norm(q, 1/math.sqrt(D)), ops.l2_norm(k), v, decay, beta, tiled=False)
        o = ops.gated_norm(o, w['norm'], 1e-6, project('in_proj_z', x).reshape(W, V, D), 'silu')
        y.append(project('out_proj', o.reshape(W, -1)))
    assert close(np.concatenate(y), recorded(GDN['layer'], (n['rows'], n['n_embd'])))


@BACKENDS
@pytest.mark.parametrize('name,E,k', ROUTERS)
def test_routers_are_hugging_faces(ops, name, E, k):
    ids, weights = ops.route(router_logits(name, E), k, renormalise=name != 'olmoe')
    want = GDN[f'router {name}']
    assert ids.tolist() == want['ids'] and close(weights, recorded(want['weights'], weights.shape), 1e-6)


@BACKENDS
def test_sinks_are_hugging_faces(ops):
    q, k, v, sinks = sink_inputs()
    y = ops.attention(q, k, v, np.arange(70), 0, 0.25, sinks)
    assert close(y[-3:], recorded(GDN['sinks'], (3, 4, 32)))
    assert not close(ops.attention(q, k, v, np.arange(70), 0, 0.25)[-3:], recorded(GDN['sinks'], (3, 4, 32)), 1e-3)


@BACKENDS
def test_the_gate_of_gpt_oss_is_hugging_faces(ops):
    gate, up = floats(60, 50, 2, low=-2, high=6).T
    y = ops.gated(np.ascontiguousarray(gate), np.ascontiguousarray(up), 'swiglu_oai')
    assert close(y, np.array(GDN['swiglu_oai']))


@pytest.mark.parametrize('i', range(len(YARN)))
def test_yarn_is_hugging_faces(i):
    steps = rope_steps(YARN[i]['theta'], YARN[i]['dim'], yarn=YARN[i]['yarn'])
    assert np.allclose(steps.astype(float)/2**64*2*np.pi, GDN[f'yarn {i}']['freq'], rtol=1e-5)    # theirs are float32
    c, s = rope_angles([3], steps, GDN[f'yarn {i}']['mscale'])
    assert np.allclose(c**2 + s**2, GDN[f'yarn {i}']['mscale']**2, rtol=1e-6)


def gdn_inputs(W, K, V, D, seed):
    small = lambda s, *shape, low=-3, high=1: floats(seed + s, *shape, low=low, high=high)
    q, k = spec.l2_norm(small(1, W, K, D), 1/math.sqrt(D)), spec.l2_norm(small(2, W, K, D))
    gates = spec.gdn_gates(small(3, W, V), small(4, W, V, high=4), -np.abs(small(5, V)), small(6, V))
    return small(7, V, D, D), q, k, small(8, W, V, D), *gates


@pytest.mark.parametrize('D', [32, 64, 128, 256, 20])
@pytest.mark.parametrize('K,V', [(1, 1), (2, 4), (1, 3)])
def test_numba_equals_numpy_in_the_rule(D, K, V):
    for W in (1, 2, 3, 5) + ((17, 64) if D == 32 else ()):
        args = gdn_inputs(W, K, V, D, W)
        for tiled in (True, False):
            assert bits(cpu.gdn(*args, tiled)) == bits(spec.gdn(*args, tiled)), (W, tiled)


def test_the_tilings_differ_and_threads_do_not():
    args = gdn_inputs(9, 16, 32, 128, 0)
    one, other = cpu.gdn(*args, True), cpu.gdn(*args, False)
    assert bits(one) != bits(other)
    for threads in (1, 2, 3):
        cpu.set_threads(threads)
        assert bits(cpu.gdn(*args, True)) == bits(one)
    cpu.set_threads()


@BACKENDS
def test_a_replayed_prefix_is_the_round_of_that_prefix(ops):
    "Of 8 rows n are accepted: the state after replaying them is the state that n rows alone would have left."
    S, *rows = gdn_inputs(8, 2, 4, 64, 3)
    before, step, alone = S.copy(), S, []
    for w in range(8):
        _, step = ops.gdn(step, *(a[w:w + 1] for a in rows))
        alone.append(step)
    for n in range(1, 9): assert ops.gdn(S, *(a[:n] for a in rows))[1].tobytes() == alone[n - 1].tobytes()
    assert S.tobytes() == before.tobytes()


@BACKENDS
def test_a_long_memory_stays_finite(ops):
    "2,000 rows of keys of length one: the state neither grows without bound nor loses its bits to subnormals."
    S, *rows = gdn_inputs(2000, 1, 1, 32, 5)
    for decay in (np.ones_like(rows[3]), rows[3], np.zeros_like(rows[3])):
        o, end = ops.gdn(S, *rows[:3], decay, rows[4])
        assert np.isfinite(o).all() and np.abs(end).max() < 1e3


@BACKENDS
def test_ties_and_extremes_of_the_router(ops):
    ids, w = ops.route(np.float32([[0]*8, [1e30]*8, [-1e30, 1e30] + [0]*6]), 3)
    assert ids.tolist() == [[0, 1, 2], [0, 1, 2], [1, 2, 3]] and w[2].tolist() == [1, 0, 0] and np.allclose(w[:2], 1/3)
    ids, w = ops.route(np.float32([[2, 1]]), 2, renormalise=False, scale=3.0)
    assert ids.tolist() == [[0, 1]] and np.isclose(w.sum(), 3)
    assert ops.route(np.zeros((0, 4), np.float32), 2)[0].shape == (0, 2)


@pytest.mark.parametrize('seed', range(4))
def test_numba_equals_numpy_in_the_router(seed):
    for W, E in ((1, 5), (64, 16), (17, 256), (3, 512)):
        for logits in (floats(seed, W, E, low=-3, high=4), np.round(floats(seed, W, E, low=-2, high=2))):
            for k in (1, 4, min(10, E)):
                for renormalise in (True, False):
                    assert bits(cpu.route(logits, k, renormalise, 1.5)) == bits(spec.route(logits, k, renormalise, 1.5))


@pytest.mark.parametrize('type', ['Q4_K', 'Q5_K', 'Q6_K', 'Q3_K', 'Q8_0', 'Q4_0', 'Q4_1', 'IQ4_XS', 'MXFP4', 'F16', 'F32'])
def test_experts_equal_float64_and_each_other(type):
    E, R, K, rng = 7, 9, 512, np.random.default_rng(1)
    data = random_blocks(type, E*R, K, rng).reshape(E, R, -1)
    x, ids = rng.normal(size=(40, K)).astype(np.float32), rng.integers(0, E, 40)
    dense = decode(data, type).astype(float)
    want = np.stack([dense[e] @ row for e, row in zip(ids, x.astype(float))])
    y = spec.expert_matmul(spec.load_experts(data, type), x, ids)
    assert np.abs(y - want).max() < (0.03 if type in FORMATS else 1e-5)*np.abs(want).max()
    for mapped in (False, True):
        w = cpu.load_experts(data, type, mapped)
        for threads in (1, 2):
            cpu.set_threads(threads)
            assert bits(cpu.expert_matmul(w, x, ids)) == bits(y)
        cpu.set_threads()
        for i in (0, 13): assert bits(cpu.expert_matmul(w, x[i:i + 1], ids[i:i + 1])) == bits(y[i:i + 1])


@pytest.mark.parametrize('type', FORMATS)
def test_every_byte_is_packed_as_chapter_02_reads_it(type):
    "Blocks of random bytes, scales included, so also those that random_blocks would never write: by kernel, mapped and not, and by integer view."
    size, K = TYPE[type].size, 2048
    data = np.random.default_rng(2).integers(0, 256, (2, 40, size*K//TYPE[type].block), np.uint8)
    x, ids = floats(3, 6, K, low=-2, high=2), [1, 0, 1, 1, 0, 0]
    ws = [cpu.load_experts(data, type, mapped) for mapped in (True, False, False)]
    ws[2].packed[:] = 0
    with np.errstate(all='ignore'):
        cpu_packing.pack_view(int_view(data.reshape(80, -1), type), ws[2].packing, 0, 40, ws[2].packed)
    a, b, c = (cpu.expert_matmul(w, x, ids) for w in ws)
    for y in (a, b): assert ((y == c) | np.isnan(y) & np.isnan(c)).all()


def test_every_scale_of_mxfp4():
    "All 256 exponents, one per row; the smallest are subnormal, the largest overflow nothing by themselves."
    data = np.random.default_rng(4).integers(0, 256, (1, 256, 17), np.uint8)
    data[0, :, 0] = np.arange(256)
    x = floats(5, 2, 32, low=-2, high=0)
    a, b = (cpu.expert_matmul(cpu.load_experts(data, 'MXFP4', mapped), x, [0, 0]) for mapped in (True, False))
    assert bits(a) == bits(b) == bits(spec.expert_matmul(spec.load_experts(data, 'MXFP4'), x, [0, 0]))


def test_a_read_only_file_serves_experts(tmp_path):
    "As a model file does: mapped, read-only, at an odd offset."
    data = random_blocks('Q4_K', 4*8, 256, np.random.default_rng(6))
    (tmp_path/'w').write_bytes(b'x'*33 + data.tobytes())
    mapped = np.memmap(tmp_path/'w', np.uint8, 'r', 33).reshape(4, 8, -1)
    x = floats(7, 3, 256, low=-2, high=2)
    want = spec.expert_matmul(spec.load_experts(data.reshape(4, 8, -1), 'Q4_K'), x, [3, 0, 3])
    for stays in (False, True): assert bits(cpu.expert_matmul(cpu.load_experts(mapped, 'Q4_K', stays), x, [3, 0, 3])) == bits(want)


@pytest.mark.parametrize('N,r', [(1, 1), (1, 5), (3, 4), (20, 2), (0, 0)])
def test_recorded_experts_follow_the_router(N, r):
    "Recorded once, played with other activations and other experts; one that doesn't exist makes its row NaN."
    E, R, K, rng = 6, 40, 512, np.random.default_rng(1)
    data = [random_blocks('Q4_K', E*R, K, rng).reshape(E, R, -1) for _ in range(2)]
    ws, bias = [cpu.load_experts(d, 'Q4_K') for d in data], floats(1, E, R)
    x, ids = np.zeros((N, K), np.float32), np.zeros(N*r, np.int32)
    with recording() as tape:
        outs = cpu_experts.expert_matmuls(ws, x, ids)
        outs.append(cpu_experts.add_expert_bias(outs[0], bias, ids))
    for seed in range(3):
        x[:], ids[:] = floats(seed, N, K), np.random.default_rng(seed).integers(0, E, N*r)
        tape.play()
        for d, out in zip(data, outs):
            assert bits(out) == bits(spec.expert_matmul(spec.load_experts(d, 'Q4_K'), x.repeat(r, 0), ids))
        assert bits(outs[2]) == bits(outs[0] + bias[ids])
    if N*r > 1:
        ids[0] = E
        tape.play()
        assert np.isnan(outs[0]).any(-1).tolist() == [True] + [False]*(N*r - 1)


@pytest.mark.parametrize('type', ['Q4_K', 'Q6_K', 'Q8_0', 'Q5_0', 'Q4_1'])
@pytest.mark.parametrize('W', [1, 3, 64])
def test_a_mapped_matrix_is_the_matrix(type, W, monkeypatch):
    data, x = random_blocks(type, 33, 768, np.random.default_rng(8)), floats(9, W, 768, low=-3, high=3)
    want = cpu.matmul(cpu.load_matrix(data, type), x)
    for limit in ('UNPACK_LIMIT', 'PACK_LIMIT'): monkeypatch.setattr(cpu_experts, limit, 1000)
    w = cpu.load_matrix(data, type)
    assert not w.packed.size and bits(cpu.matmul(w, x)) == bits(want)


@BACKENDS
def test_experts_are_combined_in_rank_order(ops):
    y, w = floats(10, 5, 8, 77, low=-3, high=3), np.abs(floats(11, 5, 8, low=-6, high=0))
    assert close(ops.combine(y, w), np.einsum('wkn,wk->wn', y.astype(float), w.astype(float)), 1e-6)
    assert bits(ops.combine(y, w)) == bits(spec.combine(y, w))
    assert bits(ops.combine(y[:, ::-1].copy(), w[:, ::-1].copy())) != bits(spec.combine(y, w))
    assert bits(ops.combine(y[2:3], w[2:3])) == bits(ops.combine(y, w)[2:3])


def test_a_hybrid_backend_has_all_that_chapter_03_has():
    import alphabook.arithmetic as arithmetic
    assert set(arithmetic.__all__) <= set(spec.__all__)
    for name in arithmetic.__all__: assert getattr(spec, name) is getattr(arithmetic, name)
    for name in ('route', 'load_experts', 'expert_matmul', 'combine', 'sigmoid_gate', 'gdn', 'conv_silu', 'l2_norm',
                 'gdn_gates', 'gated_norm', 'rope_angles', 'apply_rope', 'attention', 'rms_norm', 'gated', 'softcap',
                 'embed', 'matmul', 'load_matrix'):
        assert name in spec.__all__ and name in cpu.__all__ and callable(getattr(cpu, name))
