"The KV cache against a twin that keeps Python lists, and at its edges."
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from alphabook.state import KVCache, KVSnapshot, kv_bytes_per_token

L, H, D = 2, 3, 4


def rows(seed, w): return np.random.default_rng(seed).standard_normal((2, L, w, H, D)).astype(np.float32)


def write(cache, pos, kv):
    for layer in range(L): cache.write(layer, pos, kv[0, layer], kv[1, layer])


def same(cache, twin):
    "The committed part of the cache equals the twin's list of positions, bit for bit."
    assert cache.n == len(twin)
    if twin:
        want = np.stack(twin, axis=2).astype(np.float16)      # (2, L, n, H, D)
        assert (cache.k[:, :cache.n] == want[0]).all() and (cache.v[:, :cache.n] == want[1]).all()


def test_bytes_per_token_is_what_the_arrays_take():
    cache = KVCache(30, 16, 3, 64)
    assert cache.k.nbytes + cache.v.nbytes == 16 * kv_bytes_per_token(30, 3, 64)
    assert kv_bytes_per_token(32, 8, 128) == 131072           # Llama 3 8B: 128 KiB a token


def test_rounded_once_to_nearest_even():
    cache = KVCache(1, 4, 1, 1)
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65504, 2**-24], np.float32).reshape(4, 1, 1)
    cache.write(0, 0, x, -x)
    assert cache.k.ravel().tolist() == [1, 1 + 2**-9, 65504, 2**-24]
    assert cache.v.ravel().tolist() == [-1, -1 - 2**-9, -65504, -2**-24]


def test_float32_storage_keeps_every_bit():
    cache, kv = KVCache(L, 4, H, D, np.float32), rows(0, 4)
    write(cache, 0, kv)
    assert (cache.k == kv[0]).all() and (cache.v == kv[1]).all()


def test_drafts_never_pass_the_context():
    "llama.cpp PR 10641: context 64, prompt 56, draft 16."
    cache = KVCache(L, 64, H, D)
    write(cache, 0, rows(0, 56)); cache.commit(56)
    before = cache.k.copy(), cache.v.copy()
    with pytest.raises(ValueError, match='17 rows at position 56: past the context of 64'): write(cache, 56, rows(1, 17))
    assert (cache.k == before[0]).all() and (cache.v == before[1]).all()
    assert cache.room == 8
    write(cache, 56, rows(1, cache.room)); cache.commit(64)
    assert cache.room == 0
    with pytest.raises(ValueError, match='past the context of 64'): write(cache, 64, rows(2, 1))


@pytest.mark.parametrize('pos', (-1, 1, 5, 6))
def test_rows_out_of_place(pos):
    cache = KVCache(L, 8, H, D)
    write(cache, 0, rows(0, 2)); cache.commit(2)
    write(cache, 2, rows(1, 2))                               # drafts at 2 and 3: from 2 to 4 is free to write
    with pytest.raises(ValueError, match=f'position {pos} of layer 0'): write(cache, pos, rows(2, 1))


def test_a_shorter_rewrite_of_drafts_makes_the_rest_stale():
    cache = KVCache(L, 8, H, D)
    write(cache, 0, rows(0, 5)); write(cache, 0, rows(1, 2))
    with pytest.raises(ValueError, match='commit: 5'): cache.commit(5)
    cache.commit(2)


def test_a_commit_drops_what_lies_beyond_it():
    cache = KVCache(L, 8, H, D)
    write(cache, 0, rows(0, 5)); cache.commit(2)
    with pytest.raises(ValueError, match='commit: 3'): cache.commit(3)


def test_commit_needs_every_layer():
    cache = KVCache(L, 8, H, D)
    cache.write(0, 0, *rows(0, 2)[:, 0])
    with pytest.raises(ValueError, match='written'): cache.commit(1)


@pytest.mark.parametrize('bad', (7e4, np.inf, np.nan))
def test_no_infinity_enters(bad):
    cache, kv = KVCache(L, 8, H, D), rows(0, 1)
    for part in (0, 1):
        worse = kv.copy(); worse[part, 0, 0, 1, 2] = bad
        with pytest.raises(ValueError, match='not finite as float16'): write(cache, 0, worse)
    assert not cache.k.any() and not cache.v.any()


@pytest.mark.parametrize('shape', ((0, 8, H, D), (L, 0, H, D), (L, 8, 0, D), (L, 8, H, 0), (L, -1, H, D)))
def test_empty_shapes(shape):
    with pytest.raises(ValueError, match='each must be ≥ 1'): KVCache(*shape)


@pytest.mark.parametrize('to', (0, 1, 5, 8))
def test_rewriting_after_a_rollback_gives_the_same_bits(to):
    kv, straight, detour = rows(0, 8), KVCache(L, 8, H, D), KVCache(L, 8, H, D)
    write(straight, 0, kv); straight.commit(8)
    write(detour, 0, kv); detour.commit(8); detour.rollback(to)
    write(detour, to, rows(1, 8 - to))                        # a wrong turn, never committed
    for pos in range(to, 8): write(detour, pos, kv[:, :, pos:pos + 1]); detour.commit(pos + 1)
    assert (straight.k == detour.k).all() and (straight.v == detour.v).all()


def test_rollback_bounds():
    cache = KVCache(L, 8, H, D)
    write(cache, 0, rows(0, 4)); cache.commit(3)
    for n in (-1, 4):
        with pytest.raises(ValueError, match=f'rollback: {n}'): cache.rollback(n)
    cache.rollback(0)
    assert cache.n == 0 and cache.room == 8
    with pytest.raises(ValueError, match='commit: 1'): cache.commit(1)       # what was taken back counts no more


def test_a_snapshot_owns_its_memory():
    cache, kv = KVCache(L, 8, H, D), rows(0, 4)
    write(cache, 0, kv); cache.commit(4)
    snap = cache.snapshot()
    cache.rollback(0); write(cache, 0, rows(1, 8)); cache.commit(8)          # another text over it
    cache.restore(snap)
    same(cache, [kv[:, :, i] for i in range(4)])
    with pytest.raises(ValueError, match='commit: 5'): cache.commit(5)       # what the other text wrote counts no more


def test_restore_refuses_what_does_not_fit():
    cache = KVCache(L, 8, H, D)
    write(cache, 0, rows(0, 8)); cache.commit(8)
    snap = cache.snapshot()
    for other, word in ((KVCache(L, 7, H, D), 'past the context of 7'), (KVCache(L + 1, 8, H, D), 'layers'),
                        (KVCache(L, 8, H, D + 1), 'values'), (KVCache(L, 8, H, D, np.float32), 'float32')):
        with pytest.raises(ValueError, match=word): other.restore(snap)


OPS = st.lists(st.tuples(st.sampled_from(('round', 'drafts', 'rollback', 'snapshot', 'restore')), st.integers(0, 9),
                         st.integers(0, 9)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(OPS)
def test_any_history_equals_a_list(ops):
    "Rounds with rejected drafts, roll backs and snapshots in any order: the text is always what a list would hold."
    cache, twin, saved = KVCache(L, 16, H, D), [], None
    for i, (op, a, b) in enumerate(ops):
        if op == 'round' or op == 'drafts':
            w = min(a, cache.room); kv = rows(i, w); write(cache, cache.n, kv)
            if op == 'round':
                keep = min(b, w); cache.commit(cache.n + keep); twin += [kv[:, :, j] for j in range(keep)]
        elif op == 'rollback':
            cache.rollback(min(a, cache.n)); twin = twin[:cache.n]
        elif op == 'snapshot':
            saved = cache.snapshot(), list(twin)
            assert isinstance(saved[0], KVSnapshot) and saved[0].nbytes == cache.n * kv_bytes_per_token(L, H, D)
        elif saved:
            cache.restore(saved[0]); twin = list(saved[1])
        same(cache, twin)
