"""Operations of the CPU backend that are not products: equal to the spec in every bit, on every path, by any number of threads, run or played."""
import numpy as np
import pytest

import alphabook.arithmetic as arithmetic
import alphabook.cpu as cpu_module
import alphabook.cpu_streams as cpu
import alphabook.streams as spec
from alphabook.elementary import rope_steps
from alphabook.vectors import available_paths

F = np.float32
NORM = np.random.default_rng(0).normal


@pytest.fixture(params=available_paths())
def path(request):
    "Every way this CPU can go."
    cpu.set_vectors(request.param)
    yield request.param
    cpu.set_vectors()


def floats(*shape, size=1.0): return (NORM(size=shape)*size).astype(F)


def bits(x):
    "Shapes, types and bytes of an array or of a tuple of arrays."
    return [bits(a) for a in x] if isinstance(x, tuple) else (x.shape, x.dtype, x.tobytes())


def played(op):
    "The result of an operation that was recorded and then played twice."
    with cpu.recording() as tape: result = op()
    for _ in range(2): tape.play()
    return result


SHAPES = ((1, 1), (1, 576), (5, 63), (3, 17, 31), (2, 3, 130), (64, 257), (1, 5000))
ANY = {
    'add': lambda ops, x, y, w: ops.add(x, y), 'bias': lambda ops, x, y, w: ops.add(x, w),
    'scale': lambda ops, x, y, w: ops.scale(x, 0.3), 'columns': lambda ops, x, y, w: ops.columns(x, w.size//3, w.size),
    'rms_norm': lambda ops, x, y, w: ops.rms_norm(x, w, 1e-5), 'l2_norm': lambda ops, x, y, w: ops.l2_norm(x, 0.7),
    'silu': lambda ops, x, y, w: ops.gated(x, y, 'silu'), 'gelu': lambda ops, x, y, w: ops.gated(x, y, 'gelu'),
    'swiglu_oai': lambda ops, x, y, w: ops.gated(x, y, 'swiglu_oai'), 'softcap': lambda ops, x, y, w: ops.softcap(x, 30),
    'sigmoid_gate': lambda ops, x, y, w: ops.sigmoid_gate(x, y),
    'one_gate': lambda ops, x, y, w: ops.sigmoid_gate(x, np.ascontiguousarray(y[..., :1])),
    'gated_norm': lambda ops, x, y, w: ops.gated_norm(x, w, 1e-6, y, 'silu'),
    'sigmoid_norm': lambda ops, x, y, w: ops.gated_norm(x, w, 1e-6, y, 'sigmoid'),
}


@pytest.mark.parametrize('name', ANY)
def test_rows_of_any_length(name):
    for shape in SHAPES:
        x, y, w = floats(*shape, size=20), floats(*shape, size=20), floats(shape[-1])
        want = bits(ANY[name](spec, x, y, w))
        for threads in (1, 2):
            cpu.set_threads(threads)
            assert bits(ANY[name](cpu, x, y, w)) == want, shape
            assert bits(played(lambda: ANY[name](cpu, x, y, w))) == want, shape
    cpu.set_threads()


def test_fused_forms():
    for shape in ((1, 576), (7, 130)):
        x, y, w = floats(*shape), floats(*shape), floats(shape[-1])
        assert bits(played(lambda: cpu.add_norm(x, y, w, 1e-6))) == bits((x + y, spec.rms_norm(x + y, w, 1e-6)))
    before, rows, w = floats(6, 70, size=3), floats(5, 70, size=3), floats(70, 4)
    want = spec.conv_silu(np.concatenate([before, rows]), w, 2)
    assert bits(played(lambda: cpu.conv_rows(before, rows, w, 2))) == bits(want)


def test_parts_of_larger_arrays_need_no_copy():
    "Heads of [query | gate], and heads among the channels of a convolution; a column in between is not touched."
    wide = floats(3, 5, 96)
    q, gate, w = wide[..., :48], wide[..., 48:], floats(48)
    assert bits(cpu.rms_norm(q, w, 1e-6)) == bits(spec.rms_norm(q, w, 1e-6))
    assert bits(cpu.sigmoid_gate(q, gate)) == bits(spec.sigmoid_gate(q, gate))
    channels = floats(4, 7*32)
    k, v = channels[:, 32:3*32].reshape(4, 2, 32), channels[:, 3*32:].reshape(4, 4, 32)
    q, S, gates = channels[:, :2*32].reshape(4, 2, 32), floats(4, 32, 32), np.abs(floats(2, 4, 4, size=.2))
    assert bits(cpu.gdn(S, q, k, v, *gates)) == bits(spec.gdn(S, q, k, v, *gates))
    angles = cpu.rope_angles(np.arange(4), rope_steps(1e4, 20))
    assert bits(cpu.apply_rope(k, *angles, 'norm')) == bits(spec.apply_rope(k, *angles, 'norm'))
    table = floats(9, 2, 32).astype(np.float16)
    args = table, table, np.arange(2, 6), 0, .2
    assert bits(cpu.attention(v, *args)) == bits(spec.attention(v, *args))
    with pytest.raises(ValueError, match='without gaps'): cpu.rms_norm(channels[:, ::2], floats(112), 1e-6)
    with pytest.raises(ValueError, match='contiguous'): cpu.gated(channels[:, :3], channels[:, :3], 'silu')


ATTENTION = [(1, 9, 3, 64, 130), (1, 4, 1, 256, 1000), (2, 7, 1, 32, 65), (3, 5, 5, 96, 64), (9, 14, 2, 64, 200),
             (20, 3, 1, 128, 90), (6, 4, 2, 20, 129), (2, 2, 1, 300, 70), (1, 1, 1, 8, 1)]


@pytest.mark.parametrize('W,heads,KV,D,end', ATTENTION)
def test_attention(W, heads, KV, D, end, monkeypatch):
    q, (k, v) = floats(W, heads, D), NORM(size=(2, end + 7, KV, D)).astype(np.float16)
    for positions in (np.arange(end - W, end), np.sort(NORM(size=W).argsort()*end//W)):
        for window in (0, 1, 70):
            sinks = floats(heads, size=4) if window else None
            want = bits(spec.attention(q, k, v, positions, window, .2, sinks))
            for limit in (1 << 26, 0):
                monkeypatch.setattr(cpu_module, 'LEFT_LIMIT', limit)
                assert bits(cpu.attention(q, k, v, positions, window, .2, sinks)) == want, (window, limit)


def test_attention_takes_every_path(path):
    "Where float16 has instructions, and where it has none."
    q, (k, v) = floats(3, 6, 64), NORM(size=(2, 200, 2, 64)).astype(np.float16)
    k[..., 1], v[..., 1] = k[..., 1]*np.float16(2.0**-14), v[..., 1]*np.float16(2.0**-14)          # subnormal ones too
    assert bits(cpu.attention(q, k, v, np.arange(190, 193), 0, .2)) == bits(spec.attention(q, k, v, range(190, 193), 0, .2))


def test_attention_at_far_positions_one_row_and_a_prompt():
    "32,768 positions; the same tape at another position; rows of a prompt are the rows alone."
    q, (k, v), n = floats(3, 3, 32), NORM(size=(2, 32768, 1, 32)).astype(np.float16), 32768
    positions = np.array([5, 20000, n - 1])
    for threads in (1, 2):
        cpu.set_threads(threads)
        with cpu.recording() as tape: y = cpu.attention(q, k, v, positions, 0, .2)
        for at in ([5, 20000, n - 1], [0, 1, 2], [63, 64, 127]):
            positions[:] = at
            tape.play()
            assert bits(y) == bits(spec.attention(q, k, v, at, 0, .2))
    cpu.set_threads()
    q = floats(40, 6, 32)
    whole = cpu.attention(q, k, v, np.arange(100, 140), 0, .2)
    for w in (0, 8, 39): assert bits(cpu.attention(q[w:w + 1], k, v, np.array([100 + w]), 0, .2)) == bits(whole[w:w + 1])


def test_what_lies_beyond_a_row_is_not_read():
    "Values behind the last position, or outside the window, may be anything."
    q, table = floats(2, 2, 64), NORM(size=(2, 300, 1, 64)).astype(np.float16)
    for limit in ((150, 151), (191, 192), (63, 64)):
        want = bits(spec.attention(q, *table, limit, 40, .2))
        bad = table.copy()
        bad[:, limit[1] + 1:], bad[:, :limit[0] - 39] = np.nan, np.inf
        assert bits(cpu.attention(q, *bad, np.array(limit), 40, .2)) == want


def test_store_rows(path):
    for W, KV, D in ((1, 3, 64), (5, 1, 100), (4, 2, 7)):
        mine, its, positions = *np.ones((2, 2, 30, KV, D), np.float16), np.arange(3, 3 + W)
        for value in (1.0, 65519, 65520, np.inf, -np.inf, np.nan, 2.0**-25, 1.5*2.0**-24):
            k, v, flags = floats(W, KV, D), floats(W, KV, D, size=1e-5), np.zeros((2, 1), np.int64)
            v[-1, -1, -1] = value
            cpu.store_rows(*mine, positions, k, v, flags[0])
            spec.store_rows(*its, positions, k, v, flags[1])
            assert flags[0] == flags[1] == (not abs(value) < 65520)
            assert ((mine == its) | np.isnan(mine) & np.isnan(its)).all()
        for outside in (positions + 30, positions - 9):
            flags[:] = 0
            cpu.store_rows(*mine, outside, k, k, flags[0])
            assert flags[0] == 1


@pytest.mark.parametrize('D', [32, 64, 128, 256, 20, 48])
def test_gdn_in_place_and_recorded(D):
    for W, K, V in ((1, 1, 2), (3, 2, 4), (17, 1, 1)):
        S, q, k, v = floats(V, D, D), floats(W, K, D, size=.1), floats(W, K, D, size=.1), floats(W, V, D)
        gates = np.abs(floats(2, W, V, size=.3))
        for tiled in (True, False):
            want = spec.gdn(S, q, k, v, *gates, tiled)
            for threads in (1, 2):
                cpu.set_threads(threads)
                assert bits(cpu.gdn(S, q, k, v, *gates, tiled)) == bits(want)
            out = np.empty_like(S)
            assert bits(played(lambda: cpu.gdn(S, q, k, v, *gates, tiled, out))) == bits(want)
            changed = S.copy()
            assert bits(cpu.gdn(changed, q, k, v, *gates, tiled, changed)[1]) == bits(want[1])
    cpu.set_threads()


def test_router_gates_and_convolution_recorded():
    for W, E, k in ((1, 5, 5), (33, 64, 6)):
        logits, alpha, b, a, dt = floats(W, E, size=3), floats(W, 33, size=9), floats(W, 33, size=9), -np.abs(floats(33)), floats(33)
        for args in ((k,), (k, False), (k, True, 2.5)):
            assert bits(played(lambda: cpu.route(logits, *args))) == bits(spec.route(logits, *args))
        assert bits(played(lambda: cpu.gdn_gates(alpha, b, a, dt))) == bits(spec.gdn_gates(alpha, b, a, dt))
        y, weights = floats(W, k, 1025), np.abs(floats(W, k))
        assert bits(played(lambda: cpu.combine(y, weights))) == bits(spec.combine(y, weights))
    for W, C, K, dilation in ((1, 65, 4, 1), (9, 15, 3, 2), (64, 128, 1, 1)):
        x, w = floats((K - 1)*dilation + W, C, size=3), floats(C, K)
        assert bits(played(lambda: cpu.conv_silu(x, w, dilation))) == bits(spec.conv_silu(x, w, dilation))
    a, b = floats(3, 37), floats(5, 37)
    assert bits(played(lambda: cpu.joined(a, b))) == bits(spec.joined(a, b))


def test_weights_of_tokens():
    "What `sample` draws from; the largest weight is 2³², a hopeless one 0."
    for n in (1, 513, 151_936):
        logits = floats(n, size=9)
        for temp in (1.0, 0.3, 1e-3):
            weights = cpu.token_weights(logits, logits.max(), temp)
            assert bits(weights) == bits(arithmetic.token_weights(logits, logits.max(), F(temp)))
            assert weights.max() == 2**32 and (n == 1 or weights.min() == 0 or temp == 1)


def test_positions_recorded():
    steps, positions = rope_steps(1e6, 70), np.array([0, 5, 2**31])
    for mscale in (1.0, 1.2):
        with cpu.recording() as tape: angles = cpu.rope_angles(positions, steps, mscale)
        for at in ([0, 5, 2**31], [7, 7, 123456789]):
            positions[:] = at
            tape.play()
            assert bits(angles) == bits(spec.rope_angles(at, steps, mscale))
    for D, dim in ((70, 70), (128, 70), (71, 70)):
        x = floats(3, 5, D)
        for style in ('norm', 'neox'):
            for out in (cpu.apply_rope(x, *angles, style), played(lambda: cpu.apply_rope(x, *angles, style))):
                assert bits(out) == bits(spec.apply_rope(x, *angles, style))
