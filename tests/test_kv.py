"Keys and values of other types than float16: stored bytes, attention over them, and an engine that keeps them."
import gguf
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import alphabook.cpu_streams as cpu
import alphabook.streams as spec
from alphabook.arms import Arm, one_row
from alphabook.backends import few_rounds, load_on, mixed_rounds
from alphabook.config import load_config
from alphabook.engine import Engine
from alphabook.kv import KV_TYPES, finite_rows, pack_rows, parse_kv, row_shape, unpack_rows
from alphabook.modelfile import ModelFile
from alphabook.state import Cache, KVCache, kv_bytes_per_token
from alphabook.synth import synth
from alphabook.vectors import available_paths

F = np.float32
NORM = np.random.default_rng(0).normal
BLOCKS = 'q8_0', 'q4_0'


def floats(*shape, size=1.0): return (NORM(size=shape)*size).astype(F)


@pytest.mark.parametrize('kv', BLOCKS)
def test_blocks_mean_what_gguf_says(kv):
    "An independent reader of the same layout."
    x = floats(40, 3, 64)*F(2)**np.arange(-25, 15, dtype=F)[:, None, None]
    table = pack_rows(x, kv)
    want = gguf.quants.dequantize(table.view(np.uint8).reshape(40, 3, -1), gguf.GGMLQuantizationType[kv.upper()])
    assert unpack_rows(table).tobytes() == want.astype(F).tobytes()


def nearest(x, kv):
    "A block's distance from the best that whole steps of its own scale can do, in steps: 0 is best."
    table = pack_rows(x, kv)
    d, low, high = table['d'].astype(float)[..., None], *((-127, 127) if kv == 'q8_0' else (-8, 7))
    best = np.abs(d[..., None]*np.arange(low, high + 1) - x.reshape(*d.shape[:-1], 32, 1)).min(-1)
    return (np.abs(unpack_rows(table).reshape(best.shape).astype(float) - x.reshape(best.shape)) - best)/np.abs(d).clip(1e-30)


@pytest.mark.parametrize('kv', BLOCKS)
def test_every_value_goes_to_the_nearest_step(kv): assert np.abs(nearest(floats(300, 64), kv)).max() < 1e-4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32, min_value=-4e5, max_value=4e5), min_size=32, max_size=32), st.sampled_from(BLOCKS))
def test_any_block_is_stored_alike(values, kv):
    tables, flags = [np.zeros((4, 1, 1), KV_TYPES[kv]) for _ in range(4)], np.zeros((2, 1), np.int64)
    x = np.array(values, F).reshape(1, 1, 32)
    cpu.store_rows(*tables[:2], np.array([2]), x, -x, flags[0])
    spec.store_rows(*tables[2:], [2], x, -x, flags[1])
    assert [t.tobytes() for t in tables[:2]] == [t.tobytes() for t in tables[2:]] and not flags.any()


@pytest.mark.parametrize('kv', KV_TYPES)
def test_what_does_not_fit_leaves_a_flag(kv):
    for bad in (np.inf, -np.inf, np.nan, 2e7 if kv != 'f32' else np.nan):
        for ops in (cpu, spec):
            tables, flag = np.zeros((2, 4, 1, row_shape(kv, 64)), KV_TYPES[kv]), np.zeros(1, np.int64)
            x = floats(2, 1, 64)
            ops.store_rows(*tables, np.arange(2), x, x, flag); assert not flag[0]
            x[1, 0, 40] = bad
            ops.store_rows(*tables, np.arange(2), x, x, flag); assert flag[0]
    cpu.store_rows(*tables, np.array([3, 4]), floats(2, 1, 64), floats(2, 1, 64), flag := np.zeros(1, np.int64))
    assert flag[0]                                            # position 4 is outside


def tables_of(n, KV, D, types):
    "Tables of n positions, stored by the spec."
    tables = [np.zeros((n, KV, row_shape(t, D)), KV_TYPES[t]) for t in types]
    spec.store_rows(*tables, np.arange(n), *floats(2, n, KV, D), np.zeros(1, np.int64))
    return tables


def check_attention(types, D, W):
    tables, q = tables_of(200, 2, D, types), floats(W, 6, D)
    for last, window in ((63, 0), (64, 20), (199, 0), (199, 70)):
        positions = np.arange(last + 1 - W, last + 1)
        args = q, *tables, positions, window, .2
        want = spec.attention(*args)
        assert cpu.attention(*args).tobytes() == want.tobytes(), (last, window)
        floats_ = spec.attention(q, *(unpack_rows(t) for t in tables), positions, window, .2)
        assert want.tobytes() == floats_.tobytes()


@pytest.mark.parametrize('path', available_paths())
def test_attention_over_blocks_on_every_path(path):
    cpu.set_vectors(path)
    try: check_attention(('q8_0', 'q4_0'), 64, 1)
    finally: cpu.set_vectors()


@pytest.mark.parametrize('types, D, W', [(('q4_0', 'f32'), 64, 5), (('q8_0', 'q8_0'), 288, 1)])
def test_attention_over_any_types(types, D, W): check_attention(types, D, W)


def test_sparse_attention_over_blocks():
    tables, q = tables_of(200, 2, 64, ('q8_0', 'q4_0')), floats(2, 6, 64)
    chosen = np.random.default_rng(1).random((2, 13)) < .5
    chosen[:, [0, -1]] = True
    args = q, *tables, np.array([150, 199]), chosen, 16, .2
    assert cpu.sparse_attention(*args).tobytes() == spec.sparse_attention(*args).tobytes()


def test_a_cache_takes_what_it_says():
    for types in (('f32', 'f32'), ('f16', 'q8_0'), ('q8_0', 'q4_0')):
        cache = KVCache(3, 16, 2, 64, types)
        assert cache.k.nbytes + cache.v.nbytes == 16*kv_bytes_per_token(3, 2, 64, types)
    assert kv_bytes_per_token(1, 1, 32, ('q8_0', 'q4_0')) == 34 + 18
    with pytest.raises(ValueError, match='--kv q4_0: has blocks of 32 values, and this model.s heads are 80'):
        Cache(8, (1, 1, 80), kv=('q4_0', 'q4_0'))


def test_a_snapshot_fits_its_own_types_only():
    x, caches = floats(2, 8, 2, 32), [KVCache(1, 8, 2, 32, t) for t in (('q8_0', 'q4_0'), ('q8_0', 'q8_0'), ('q8_0', 'q4_0'))]
    caches[0].write(0, 0, *x); caches[0].commit(5)
    snap = caches[0].snapshot()
    caches[2].restore(snap)
    assert caches[2].n == 5 and caches[2].v[:, :5].tobytes() == caches[0].v[:, :5].tobytes()
    with pytest.raises(ValueError, match='q4_0'): caches[1].restore(snap)
    with pytest.raises(ValueError, match='not finite as q4_0'): caches[0].write(0, 5, x[:, :1][0], x[:, :1][1]*F(1e8))
    assert finite_rows(caches[0].v)


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    "Tiny models."
    folder = tmp_path_factory.mktemp('kv')
    for name in ('tiny-llama', 'tiny-gemma3', 'tiny-qwen4exp', 'tiny-qwen3'): synth(name, 'Q8_0', folder/f'{name}.gguf')
    return folder


@pytest.mark.parametrize('name, kv', [('tiny-gemma3', 'q8_0:q4_0'), ('tiny-qwen4exp', 'q8_0')])
def test_rounds_of_any_kind_agree(tiny, name, kv):
    "Chapter 12d has all arms of a hybrid; here are a window, and attention that chooses."
    ids = list(range(40, 110))
    with ModelFile(tiny/f'{name}.gguf') as mf:
        model, slow = (load_on(mf, load_config(mf), device, parse_kv(kv)) for device in ('cpu', 'numpy'))
        rows, arm = one_row(model, ids), Arm('')
        for other in (mixed_rounds(model, ids, arm), few_rounds(slow, ids, arm, ((70, 5), (3, 2), (1, 1)))):
            for position, got in other: assert got.tobytes() == rows[position].tobytes(), position
        exact = load_on(mf, load_config(mf), 'cpu')
        assert one_row(exact, ids[:20])[-1].tobytes() != rows[19].tobytes()


def test_an_engine_keeps_blocks(tiny):
    path, prompt = tiny/'tiny-llama.gguf', list(range(40, 120))
    exact, fast, slow = (Engine.load(path, d, m, kv=kv) for d, m, kv in (
        ('cpu', 'exact', 'f16'), ('cpu', 'fast', 'q8_0:q4_0'), ('numpy', 'fast', 'q8_0:q4_0')))
    a, b, c = (e.generate(prompt, n=6, hash_logits=True).logits_sha256 for e in (exact, fast, slow))
    assert a != b == c
    session = fast.session(256)
    assert session.cache.k.dtype == KV_TYPES['q8_0'] and session.cache.v.dtype == KV_TYPES['q4_0']
    fast.generate(prompt + [7, 8], n=4, session=session)      # a longer text, then back into it
    assert fast.generate(prompt, n=6, session=session, hash_logits=True).logits_sha256 == b
    assert fast.generate(prompt, n=6, drafter='none', hash_logits=True).logits_sha256 == b


def test_what_an_engine_refuses(tiny):
    path = tiny/'tiny-llama.gguf'
    with pytest.raises(ValueError, match='--kv q8_0: has blocks of 32 values, and this model.s heads are 40'):
        Engine.load(tiny/'tiny-qwen3.gguf', 'cpu', 'fast', kv='f16:q8_0')
    for mode in ('exact', 'plain'):
        for kv in ('q8_0', 'f32', 'f16:q4_0'):
            with pytest.raises(ValueError, match=f'--kv {kv}: --mode {mode} keeps keys and values in f16'):
                Engine.load(path, mode=mode, kv=kv)
    for kv in ('q5_0', 'q8_0:', 'f16:f16:f16'):
        with pytest.raises(ValueError, match='types are f32, f16, q8_0, q4_0'): Engine.load(path, mode='fast', kv=kv)
    assert Engine.load(path, 'cpu', 'fast', kv='f32').session(64).cache.k.dtype == F
