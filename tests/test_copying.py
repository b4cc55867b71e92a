"""The copy drafter against Python's own string search, which knows nothing of trees."""
import time

import numpy as np
from hypothesis import given, settings, strategies as st

from alphabook.copying import MOST, CopyDrafter, CopyIndex

def by_string_search(ids) -> tuple:
    "The longest match of a text's end that `str.rfind` finds, the latest of them."
    text = "".join(map(chr, ids))
    for length in range(min(MOST, len(ids) - 1), 0, -1):
        at = text.rfind(text[-length:], 0, len(text) - 1)
        if at >= 0: return at + length, length
    return 0, 0

texts = st.one_of(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 30), max_size=120),
                  st.builds(lambda p, k, tail: p*k + tail, st.lists(st.integers(0, 5), min_size=1, max_size=40),
                            st.integers(1, 4), st.lists(st.integers(0, 5), max_size=5)))

@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), texts), max_size=5))
def test_every_position_has_the_longest_match_also_after_going_back(steps):
    index, ids = CopyIndex(1), []
    for keep, more in steps:
        new = ids[:round(keep*len(ids))] + more
        same = index.sync(new)
        assert ids[:same] == new[:same] and ids[same:same + 1] != new[same:same + 1] or ids == new
        ids = new
        assert index.ids.tolist() == ids
        for n in range(len(ids) + 1): assert index.match(n) == by_string_search(ids[:n])

def test_runs_periods_and_repeats():
    for ids in ([3]*500, [1, 2]*200, [*range(90)]*3, [0]*40 + [1] + [0]*40 + [1], [*range(40), 7, *range(40)]):
        index = CopyIndex()
        index.append(ids)
        for n in range(len(ids) + 1): assert index.match(n) == by_string_search(ids[:n])

def test_taking_all_back_leaves_nothing():
    index = CopyIndex(1)
    for seed in range(3):
        index.append(np.random.default_rng(seed).integers(0, 3, 2000))
        index.cut(0)
        assert index.used.tolist() == [1, 0] and index.match() == (0, 0)

def test_a_long_text_is_indexed_in_half_a_second():
    rng = np.random.default_rng(0)
    CopyIndex().append([1])                                   # compiled, or read from disk
    for ids in (rng.integers(0, 2, 100_000), np.zeros(100_000, int), rng.zipf(1.3, 100_000) % 50_000):
        times = []
        for _ in range(3):
            start, index = time.perf_counter(), CopyIndex()
            index.append(ids)
            times.append(time.perf_counter() - start)
        assert min(times) < 0.5

def test_a_draft_may_be_as_long_as_a_round_and_go_round_the_end():
    drafter = CopyDrafter()
    ids, sure = drafter.draft([1, 2, 3, 1, 2, 3, 1], 63)
    assert ids == ([2, 3, 1]*21) and len(sure) == 63 and all(0 < p < 1 for p in sure)

def test_only_written_tokens_are_scored():
    drafter, repeat = CopyDrafter(), [1, 2, 3, 4]*5
    trials = lambda: drafter.rates.trials.sum()
    before = trials()
    drafter.committed(repeat, prompt=True)
    drafter.draft(repeat, 5)
    assert trials() == before
    drafter.draft(repeat + [1, 2], 5)
    assert trials() == before + 2
    drafter.rollback(4)
    drafter.draft(repeat, 5)                                  # a new prompt
    assert trials() == before + 2
    drafter.committed(repeat + [1]*4, prompt=True)
    assert trials() == before + 2
    drafter.reset()
    assert trials() == before and drafter.index.n == 0
