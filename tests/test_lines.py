"""Hit rates and chain survival by depth: against a walk along each draft, and against chances that are known."""
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from alphabook.lines import Drafts, lines_of, replay_copy, tries_and_hits, two_lines
from conftest import ROOT

drafts = st.lists(st.integers(0, 12).flatmap(lambda seen: st.tuples(st.integers(0, seen), st.just(seen))), max_size=40)

@settings(max_examples=100, deadline=None)
@given(drafts)
def test_survival_is_the_product_over_those_still_there(pairs):
    tries, hits = tries_and_hits([r for r, _ in pairs], [s for _, s in pairs], 12)
    expected = 1.0
    for k in range(1, 13):
        there = [r for r, s in pairs if s >= k and r >= k - 1]
        assert tries[k - 1] == len(there) and hits[k - 1] == sum(r >= k for r in there)
        expected = expected*sum(r >= k for r in there)/len(there) if there else np.nan
        survival = two_lines(tries, hits)[1][k - 1]
        assert np.isnan(expected) and np.isnan(survival) or survival == pytest.approx(expected)

def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    "Texts that differ: each has a chance of its own. Intervals over positions would hold the mean far less often."
    rng, held, narrow = np.random.default_rng(0), 0, 0
    for _ in range(100):
        d = Drafts()
        for prompt, chance in enumerate(rng.beta(4, 1, 24)):  # mean .8
            for _ in range(40): d.add(int(rng.random() < chance), 1, prompt)
        value, low, high = lines_of(d, 1, draws=200)["rate"][0]
        held += low <= .8 <= high
        narrow += abs(value - .8) <= 1.96*np.sqrt(.8*.2/len(d.right))
    assert held >= 85 and narrow < held - 15

def test_a_replay_looks_only_back():
    rng = np.random.default_rng(1)
    text = rng.integers(0, 5, 120).tolist()
    whole, d = Drafts(), Drafts()
    replay_copy(text, 60, whole, 0, depth=9)
    replay_copy(text[:100], 60, d, 0, depth=9)
    n = sum(a == b for a, b in zip(whole.right, d.right))
    assert all(min(a, s) == b for a, b, s in zip(whole.right, d.right, d.seen)) and n >= len(d.right) - 9

def test_bad_counts_are_refused():
    for right, seen in ((2, 1), (-1, 3)):
        with pytest.raises(ValueError, match="right tokens"): Drafts().add(right, seen)

def test_recorded_lines():
    "What AlphaInfer found, on our texts: the block starts higher than the copy where text is new; on edits a copy holds."
    files = sorted((ROOT/"data/results/cpu").glob("speculation-lines-*.json"))
    if not files: pytest.skip("not measured")
    run = json.loads(files[-1].read_text(encoding="utf-8"))
    points = {(r["set"], r["sampling"], r["arm"], r["line"], r.get("depth")): r for r in run["rows"] if "confidence" not in r}
    at = lambda s, arm, line, k, mode="sampled": points[s, mode, arm, line, k]["value"]
    for r in points.values():
        if "low" in r: assert r["low"] <= r["value"] <= r["high"] and r["n"] >= 20
    assert {s for s, *_ in points} == set("AVR")
    for s in "AV": assert at(s, "mtp", "rate", 1) > at(s, "copy, replayed", "rate", 1)
    for mode in ("greedy", "sampled"): assert at("R", "copy, replayed", "survival", 15, mode) > .5
    assert at("R", "copy, replayed", "rate", 15) > at("R", "copy, replayed", "rate", 1)
