"""Which experts stay: policies against programs written another way, rankings that are damaged, traces from the command line."""
import json
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest

from conftest import ROOT
from alphabook.experts import (
    POLICIES, ForcedRoutes, Trace, add_ranking, belady, find_ranking, first_come, lfru, load_trace, lru, may_leave,
    prior_from, ranking_paths, read_ranking, replay, save_trace, sticky_trace, stickiness, write_ranking)

rng = np.random.default_rng(19)

def single(requests, n_expert):
    "A trace of one layer and one expert a token."
    return Trace(np.int16(requests).reshape(-1, 1, 1), n_expert, np.zeros(len(requests), bool))

def best_possible(requests, slots):
    "Most hits that any sequence of decisions reaches, by trying all of them."
    states = {frozenset(): 0}
    for key in requests:
        after = {}
        for held, hits in states.items():
            hits += key in held
            every = held | {key}
            for n in range(min(slots, len(every)) + 1):
                for kept in combinations(sorted(every), n):
                    kept = frozenset(kept)
                    after[kept] = max(after.get(kept, -1), hits)
        states = after
    return max(states.values())

@pytest.mark.parametrize("seed", range(8))
def test_belady_is_the_optimum(seed):
    requests = np.random.default_rng(seed).integers(0, 5, 14)
    for slots in (1, 2, 3): assert replay(single(requests, 5), slots, belady).sum() == best_possible(requests.tolist(), slots)

def test_lru_equals_an_ordered_list():
    trace = Trace((rng.random((80, 3, 1))**2*8).astype(np.int16), 8, np.zeros(80, bool))
    for slots in (1, 2, 5, 11):
        held, want = [], []
        for key in trace.keys.reshape(-1).tolist():
            want.append(key in held)
            if key in held: held.remove(key)
            held = (held + [key])[-slots:]
        assert replay(trace, slots, lru).reshape(-1).tolist() == want, slots

def test_banks_keep_to_their_layers():
    "A layer that asks for one expert only keeps it, however much the others ask for."
    ids = np.zeros((40, 2, 1), np.int16)
    ids[:, 1, 0] = np.arange(40) % 8
    trace = Trace(ids, 8, np.zeros(40, bool))
    assert replay(trace, 2, lru, banks=True)[1:, 0].all()

def test_a_bound_of_none_at_all_admits_nothing_after_the_prior():
    trace = single([3, 3, 3, 1, 3], 4)
    assert replay(trace, 1, lru, bound=0).sum() == 0
    assert replay(trace, 1, lru, bound=0, prior=[0, 9, 0, 0]).reshape(-1).tolist() == [0, 0, 0, 1, 0]
    assert replay(trace, 1, lru, bound=1).reshape(-1).tolist() == [0, 1, 1, 0, 0]

def test_a_prompt_changes_nothing_for_the_answer():
    answer = Trace(rng.integers(0, 4, (30, 2, 2)).astype(np.int16), 16, np.zeros(30, bool))
    prompt = Trace(rng.integers(4, 16, (200, 2, 2)).astype(np.int16), 16, np.ones(200, bool))
    joined = Trace(*(np.concatenate([answer.__dict__[n], prompt.__dict__[n], answer.__dict__[n]]) if n != "n_expert" else 16
                     for n in ("ids", "n_expert", "prompt")))
    twice = Trace(np.concatenate([answer.ids]*2), 16, np.zeros(60, bool))
    for policy in (lru, lfru):
        assert (replay(joined, 6, policy)[-30:] == replay(twice, 6, policy)[-30:]).all()
        assert not (replay(joined, 6, policy, prompts_admit=True)[-30:] == replay(twice, 6, policy)[-30:]).all()

def test_nobody_busy_and_nobody_of_a_side_within_its_share_leaves():
    for _ in range(200):
        resident, side = rng.random(12) < .6, rng.integers(0, 3, 12)
        shares, busy, mine = rng.integers(0, 5, 3), rng.permutation(12)[:3], rng.integers(0, 3)
        out, held = may_leave(resident, busy, side, mine, shares), np.bincount(side[resident], minlength=3)
        assert not out[busy].any() and not (out & ~resident).any()
        for other in {0, 1, 2} - {int(mine)}:
            if held[other] <= shares[other] or held[mine] >= shares[mine]: assert not out[side == other].any()

@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b[:3], lambda b: b"", lambda b: b + b"x",
                                   lambda b: b[:30] + bytes([b[30] ^ 1]) + b[31:], lambda b: b"GGUF" + b[4:],
                                   lambda b: b[:8] + b"\xff\xff\xff\x7f" + b[12:]])
def test_a_damaged_ranking_is_named_and_not_used(tmp_path, spoil):
    model, said = tmp_path/"m.gguf", []
    path = ranking_paths(model)[0]
    write_ranking(path, np.arange(12).reshape(3, 4), 5)
    assert find_ranking(model, (3, 4))[1] == 5
    path.write_bytes(spoil(path.read_bytes()))
    assert find_ranking(model, (3, 4), said.append) is None and "m.strp" in said[0]
    with pytest.raises(ValueError): read_ranking(path)

def test_a_ranking_grows_and_stays_whole(tmp_path, monkeypatch):
    path = tmp_path/"m.strp"
    add_ranking(path, np.full((2, 3), 2**32 - 2), 1)
    add_ranking(path, np.full((2, 3), 5), 2)
    counts, tokens = read_ranking(path, (2, 3))
    assert (counts == 2**32 - 1).all() and tokens == 3
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError): add_ranking(path, np.ones((2, 3), int), 1)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    assert np.allclose(prior_from((np.full((2, 3), 4), 8), 2.0), 1)

def test_made_up_routes_have_the_patterns_stickiness():
    ids = np.argsort(rng.random((1, 2, 12)) + np.arange(400)[:, None, None]//9*0, -1)[..., :3]     # never changes
    sticky = sticky_trace(Trace(np.repeat(ids, 1, 0).astype(np.int16), 12, np.zeros(len(ids), bool)), 200, 3, 24, 4)
    assert stickiness(sticky) > .95 and sticky.ids.max() < 24
    fair = Trace(np.argsort(rng.random((3000, 2, 12)), -1)[..., :3].astype(np.int16), 12, np.zeros(3000, bool))
    assert abs(stickiness(sticky_trace(fair, 1000, 2, 12, 3)) - .25) < .04

def test_the_command_line_records_a_trace_and_a_ranking(tmp_path):
    def generate(*more):
        return subprocess.run([sys.executable, "-m", "alphabook", "generate", "-p", "def f(x):", "-n", "8", "--json", *more],
                              cwd=ROOT, capture_output=True, text=True, timeout=120)
    run = generate("--trace", str(tmp_path/"t.npz"))
    assert run.returncode == 0, run.stderr
    answer, trace = json.loads(run.stdout), load_trace(tmp_path/"t.npz")
    assert len(trace.ids) == answer["prompt_n"] + answer["predicted_n"] and trace.prompt.sum() == answer["prompt_n"]
    for _ in range(2): assert generate("--trace", str(tmp_path/"t.strp")).returncode == 0
    counts, tokens = read_ranking(tmp_path/"t.strp")
    assert tokens == 2*len(trace.ids) and (counts == 2*trace.counts()).all()
    for bad in ("t.txt", "nowhere/t.npz"):
        run = generate("--trace", str(tmp_path/bad))
        assert run.returncode == 2 and run.stderr.count("\n") == 1 and not run.stdout
