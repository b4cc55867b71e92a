"""Intervals, audits and the index, by definitions of their own."""
import itertools, math

import numpy as np
import pytest

from alphabook.fairness import audit, bootstrap, geometric, loop_at_end, speed_index, worries


def test_the_interval_is_that_of_all_draws():
    "Three prompts have 27 equally likely draws; the quantiles of many random ones approach theirs."
    values = [1.0, 1.3, 2.0]
    means = sorted(geometric(d) for d in itertools.product(values, repeat=3))
    low, high = bootstrap(values, share=.8, draws=20000)
    at = lambda q: means[min(26, int(q*27))]
    assert math.isclose(low, at(.1), rel_tol=.02) and math.isclose(high, at(.9), rel_tol=.02)
    assert bootstrap([2.5])[0] == pytest.approx(2.5)


def test_loops_are_found_wherever_they_begin():
    rng = np.random.default_rng(0)
    for period in (1, 2, 5, 17, 40):
        unit, head = rng.integers(100, 10**6, period).tolist(), rng.integers(100, 10**6, 31).tolist()
        text = head + unit*max(4, -(-24//period))
        assert loop_at_end(text) == period and loop_at_end(text[:-1] + [1]) == 0
        assert loop_at_end(head + unit*2) == 0
        assert audit(text, len(text)) == [f'ends in a loop of {period} tokens']
    assert audit([1]*5, 100, [1]*5) == ['ends after 5 of 100 tokens'] and audit([1], 4, [2]) == ["is not the control's text"]


def test_the_index_does_not_depend_on_who_is_the_base():
    rng = np.random.default_rng(1)
    cells = {(e, m, s): float(rng.uniform(10, 1000)) for e in 'xyz' for m in ('desk', 'rack') for s in 'AVR'}
    by = {b: speed_index(cells, b)[0] for b in 'xyz'}
    for a, b in itertools.permutations('xyz', 2): assert math.isclose(by[b][a], by[a][a]/by[a][b]) and math.isclose(by[b][a]*by[a][b], 1)
    cells['x', 'lap', 'A'] = 1e9                                         # a cell that only one has moves nothing
    assert speed_index(cells, 'y') == (by['y'], 6, 1)
    with pytest.raises(ValueError, match='no cell'): speed_index(cells, 'nobody')


def test_worries_name_what_is_wrong():
    card = {'name': 'card', 'utilization.gpu': '50', 'temperature.gpu': '90'}
    assert [len(worries(*a)) for a in (({}, []), ({'turbo': False}, []), ({'governors': ['performance', 'powersave']}, []), ({}, [card]))] == [0, 1, 0, 2]
    assert worries({}, [{'name': 'old', 'utilization.gpu': '[N/A]'}]) == []
