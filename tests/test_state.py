"The caches against twins that keep Python lists or compute everything from scratch, and at their edges."
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from alphabook.state import Cache, KVCache, KVSnapshot, Snapshot, kv_bytes_per_token, memory_bytes

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
    cache, kv = KVCache(L, 4, H, D, ('f32', 'f32')), rows(0, 4)
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


@pytest.mark.parametrize('shape', ((-1, 8, H, D), (L, 0, H, D), (L, 8, 0, D), (L, 8, H, 0), (L, -1, H, D)))
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
                        (KVCache(L, 8, H, D + 1), 'values'), (KVCache(L, 8, H, D, ('f32', 'f16')), 'f32')):
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


# Recurrent layers. A token's rows are made from its id; `memory_after` is the definition, from an empty memory.
M, V, W = 2, 2, 4                                             # memories, heads, width
WINDOWS = [(3, 5)] * M + [(7, 2)]


@lru_cache(None)
def step(token, layer):
    r = np.random.default_rng([token, layer])
    draws = r.standard_normal((1, V, W)) / 2, r.standard_normal((1, V, W)), r.random((1, V)), r.random((1, V))
    return [a.astype(np.float32) for a in draws]


@lru_cache(None)
def key_value(token, layer):
    return np.random.default_rng([token, layer, 2]).standard_normal((2, H, D)).astype(np.float32)


@lru_cache(None)
def conv(token, i): return np.random.default_rng([token, i, 1]).standard_normal(WINDOWS[i][1]).astype(np.float32)


def replay(S, k, v, decay, beta, out):
    out[:] = S
    for kt, vt, dt, bt in zip(k, v, decay, beta):
        for h in range(V):
            s = out[h] * dt[h]
            out[h] = s + np.outer((vt[h] - s @ kt[h]) * bt[h], kt[h])


def memory_after(text):
    S = np.zeros((M, V, W, W), np.float32)
    for token in text:
        for layer in range(M): replay(S[layer].copy(), *step(token, layer), S[layer])
    padded = [[np.zeros(c, np.float32)] * n + [conv(t, i) for t in text] for i, (n, c) in enumerate(WINDOWS)]
    return S, [np.stack(rows[-n:]) for rows, (n, _) in zip(padded, WINDOWS)]


def cache_of(n_ctx=24, keep=3): return Cache(n_ctx, (L, H, D), (M, V, W), WINDOWS, replay, index_dim=3, keep=keep)


def play(cache, tokens):
    "A round of these tokens, as the layers of a model would."
    cache.begin(tokens)
    for layer in range(L):
        index = np.array([[t, layer, t * layer] for t in tokens], np.float32)
        cache.write(layer, cache.n, *np.stack([key_value(t, layer) for t in tokens], 1), index)
    for layer in range(M):
        steps = [np.concatenate(x) for x in zip(*(step(t, layer) for t in tokens))]
        replay(cache.memory[layer], *steps, cache.fresh[layer])
        cache.propose(layer, *steps)
    for i in range(len(WINDOWS)): cache.keep_rows(i, np.stack([conv(t, i) for t in tokens]))


def holds(cache, text):
    "Bit for bit: keys and values, index, ids, memories, windows."
    assert cache.n == len(text) and cache.ids[:cache.n].tolist() == text
    S, windows = memory_after(text)
    assert cache.memory.tobytes() == S.tobytes()
    assert [w.tobytes() for w in cache.windows] == [w.tobytes() for w in windows]
    for layer in range(L):
        for pos, t in enumerate(text):
            k, v = key_value(t, layer).astype(np.float16)
            assert (cache.k[layer, pos] == k).all() and (cache.v[layer, pos] == v).all()
            assert cache.index[layer, pos].tolist() == [t, layer, t * layer]


EVENTS = st.lists(st.tuples(st.sampled_from(('round', 'round', 'round', 'checkpoint', 'rollback', 'snapshot', 'restore',
                                             'abandon')), st.integers(0, 9), st.integers(0, 9)), max_size=25)


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.integers(0, 3))
def test_any_history_of_a_hybrid_equals_its_text_from_scratch(events, keep):
    "Rounds accepted in part, checkpoints, roll backs, snapshots, abandoned rounds, in any order."
    cache, text, saved, marks = cache_of(keep=keep), [], None, []
    for i, (event, a, b) in enumerate(events):
        tokens = [100 * i + j for j in range(min(a, cache.room))]
        if event == 'round' and tokens:
            play(cache, tokens); accepted = min(b, len(tokens)); cache.commit(cache.n + accepted)
            text = text + tokens[:accepted]
        elif event == 'abandon' and tokens: play(cache, tokens)
        elif event == 'checkpoint':
            cache.checkpoint()
            if text and len(text) not in marks and keep: marks = [*marks, len(text)][-keep:]
        elif event == 'rollback':
            n = min(a, len(text))
            want = n if n == len(text) else max([0, *(m for m in marks if m <= n)])
            assert cache.rollback(n) == want
            text, marks = text[:want], [m for m in marks if m <= want]
        elif event == 'snapshot': saved = cache.snapshot(), text
        elif event == 'restore' and saved: cache.restore(saved[0]); text, marks = saved[1], []
        assert [c.n for c in cache.checkpoints] == marks
        holds(cache, text)


@pytest.mark.parametrize('width', range(1, 17))
def test_every_accepted_prefix_of_every_width(width):
    for accepted in range(width + 1):
        cache = cache_of(40)
        play(cache, [1, 2, 3, 4, 5]); cache.commit(5)
        play(cache, list(range(10, 10 + width))); cache.commit(5 + accepted)
        holds(cache, [1, 2, 3, 4, 5, *range(10, 10 + accepted)])
        play(cache, [90, 91]); cache.commit(7 + accepted)
        holds(cache, [1, 2, 3, 4, 5, *range(10, 10 + accepted), 90, 91])


def test_the_committed_memory_is_only_read_before_the_commit():
    cache = cache_of()
    play(cache, [1, 2, 3]); cache.commit(3)
    before = cache.memory.copy(), [w.copy() for w in cache.windows]
    play(cache, [4, 5, 6])
    assert (cache.memory == before[0]).all() and all((a == b).all() for a, b in zip(cache.windows, before[1]))


def test_memory_in_use_does_not_grow():
    "The same arrays after any number of rounds and checkpoints; nothing of a round outlives its commit."
    cache, arrays = cache_of(keep=2), None
    for i in range(6):
        play(cache, [i, i + 1, i + 2]); cache.commit(cache.n + 1 + i % 3); cache.checkpoint()
        assert all(x is None for x in (*cache.rows, *cache.steps))
        now = {id(a) for a in (cache.memory, cache.fresh, *(c.memory for c in cache.checkpoints))}
        if i >= 2: assert now == arrays
        arrays = now
    assert cache.memory.nbytes == memory_bytes(M, V, W)


def test_a_failed_round_leaves_no_trace():
    cache = cache_of()
    play(cache, [1, 2]); cache.commit(2)
    cache.begin([3, 4, 5])
    cache.propose(0, *(np.repeat(x, 3, 0) for x in step(3, 0)))              # the round ends here, by some error
    with pytest.raises(ValueError, match='did not hand in 3 rows'):
        for layer in range(L): cache.write(layer, 2, *rows(0, 3)[:, layer])
        cache.commit(4)
    holds(cache, [1, 2])
    play(cache, [6]); cache.commit(3); holds(cache, [1, 2, 6])


def test_a_snapshot_of_a_hybrid_fits_only_its_like():
    cache = cache_of()
    play(cache, [1, 2, 3]); cache.commit(3)
    snap = cache.snapshot()
    assert isinstance(snap, Snapshot) and snap.n == 3
    for other, word in ((Cache(24, (L, H, D), (M, V, W), WINDOWS[:-1], replay, 3), 'windows'),
                        (Cache(24, (L, H, D), (M + 1, V, W), WINDOWS, replay, 3), 'memory'),
                        (Cache(24, (L, H, D), (M, V, W), WINDOWS, replay), 'index'), (cache_of(2), 'past the context')):
        with pytest.raises(ValueError, match=word): other.restore(snap)
        assert other.n == 0 and not other.memory.any()


def test_layers_without_attention_only():
    "A few recurrent layers make no model, but a cache."
    cache = Cache(8, (0, 1, 1), (M, V, W), [(3, 5)] * M, replay)
    cache.begin([1, 2])
    for layer in range(M):
        steps = [np.concatenate(x) for x in zip(step(1, layer), step(2, layer))]
        replay(cache.memory[layer], *steps, cache.fresh[layer]); cache.propose(layer, *steps)
        cache.keep_rows(layer, np.stack([conv(1, layer), conv(2, layer)]))
    cache.commit(1)
    assert cache.memory.tobytes() == memory_after([1])[0].tobytes()
    with pytest.raises(ValueError, match='past the context'): cache.begin(range(8))
    play_alone = [np.concatenate(x) for x in zip(step(2, 0), step(3, 0))]
    cache.begin([2, 3])
    for layer in range(M): cache.propose(layer, *play_alone); cache.keep_rows(layer, np.zeros((2, 5), np.float32))
    with pytest.raises(ValueError, match='must be from 1'): cache.commit(4)  # three rows of two
    cache.rollback(1)                                                        # drops the open round
    with pytest.raises(ValueError, match='must be from 1'): cache.commit(2)


def test_rows_of_an_older_round_are_not_taken_for_this_one():
    cache = cache_of()
    play(cache, [1, 2, 3])                                                   # abandoned
    cache.begin([4, 5, 6])
    for layer in range(L): cache.write(layer, 0, *rows(0, 3)[:, layer])
    with pytest.raises(ValueError, match='did not hand in'): cache.commit(3)
    play(cache, [4, 5, 6])
    cache.keep_rows(1, np.zeros((2, 5), np.float32))                         # one row is missing
    with pytest.raises(ValueError, match='1 of the recurrent layers did not hand in 3 rows'): cache.commit(2)
    cache.commit(0); holds(cache, [])
    cache.commit(0); holds(cache, [])                                        # nothing is open: nothing happens


def test_going_back_to_a_checkpoint_and_to_a_snapshot():
    cache = cache_of()
    play(cache, [1, 2, 3]); cache.commit(3); cache.checkpoint()
    play(cache, [4, 5]); cache.commit(5)
    snap = cache.snapshot()
    assert cache.rollback(3) == 3
    holds(cache, [1, 2, 3])
    assert cache.rollback(0) == 0
    play(cache, [7, 8, 9, 10, 11, 12]); cache.commit(6)
    cache.restore(snap)
    holds(cache, [1, 2, 3, 4, 5])
