"""Rounds of several texts on a GPU, in Triton's interpreter: each text has the bits that it has alone on the CPU.

On a GPU the same is compared and timed by data/trials/gpu_parallel.py.
"""
import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed (there is none for this system)')
torch = pytest.importorskip('torch')

import alphabook.cpu_streams as cpu
from alphabook import gpu_functions, gpu_together
from alphabook.arithmetic import sample
from alphabook.config import load_config
from alphabook.gpu_rounds import all_logits
from alphabook.gpu_together import GpuModel
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.rounds import run_round, run_together
from alphabook.synth import synth

TINY = dict(n_embd=32, n_head=2, n_kv_head=1, head_dim=16, n_ff=32, n_layers=2, interval=2, gdn_k=1, gdn_v=2, gdn_dim=8)   # a layer of each kind
IDS = np.random.default_rng(5).integers(0, 250, 60).tolist()
RULES = [{}, dict(temp=2.0, seed=3), dict(temp=1.5, top_k=5, top_p=.9, seed=2**40), {}]


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    "The CPU's model, and a GPU's stand-in."
    with ModelFile(synth('tiny-qwen35', 'F16', tmp_path_factory.mktemp('together')/'m.gguf', **TINY)) as mf:
        yield Model(mf, load_config(mf), cpu), GpuModel(mf, load_config(mf))


def same(a, b): return a.shape == b.shape and a.tobytes() == b.tobytes()


def tokens(cache, t, rows, right): return IDS[9*t:][cache.n:cache.n + right] + [7]*(rows - right)


def game(model, turns, together):
    "Logits of all rounds of (text, rows, how many are right, whether the next round comes before the commit), shared or one after another."
    caches, out, late = [model.new_cache(32) for _ in range(3)], [], []
    for turn in turns:
        texts = [(caches[t], tokens(caches[t], t, rows, right)) for t, rows, right, *_ in turn]
        out += run_together(model, texts) if together else [run_round(model, *text) for text in texts]
        for t, right in late: caches[t].commit(caches[t].n + right)
        late = [(t, right) for t, _, right, *waits in turn if waits]
        for t, _, right, *waits in turn:
            if not waits: caches[t].commit(caches[t].n + right)
    return out


def test_texts_come_leave_and_take_rows_back(models):
    "Of two and three texts, rejected rows, one that commits nothing, others in its seat before a text commits, texts in another order."
    turns = [[(0, 2, 1, 'waits'), (1, 1, 1)], [(2, 2, 1), (1, 1, 1)], [(1, 1, 0), (0, 1, 1), (2, 1, 1)], [(2, 1, 1), (1, 1, 1)]]
    twin, model = models
    want, got = game(twin, turns, False), game(model, turns, True)
    assert all(map(same, want, got)) and len(want) == len(got) == 9
    assert {(j.n, j.rows) for j in model.joint.values()} == {(2, 2), (2, 1), (3, 1)}


def started(model, lengths, together=False):
    "Texts of so many tokens."
    caches = [model.new_cache(32) for _ in lengths]
    texts = [(c, IDS[n:2*n]) for c, n in zip(caches, lengths)]
    run_together(model, texts) if together else [run_round(model, *text) for text in texts]
    for c, n in zip(caches, lengths): c.commit(n)
    return caches


def said(twin, n, token, rounds, rule):
    "What a text says alone, by the rule's definition."
    (cache,), ids = started(twin, [n]), [token]
    for _ in range(rounds):
        ids.append(sample(run_round(twin, cache, ids[-1:])[0], cache.n + 1, **rule))
        cache.commit(cache.n + 1)
    return ids[1:]


def test_texts_go_on_by_themselves(models):
    "Greedy and drawn, of several lengths; then some of them in other seats, and one alone, as if nobody had been there."
    twin, model = models
    lengths, first = (2, 1, 2, 1), (40, 41, 42, 43)
    want = [said(twin, *text) for text in zip(lengths, first, (3, 2, 2, 1), RULES)]
    caches = started(model, lengths, True)
    told = model.continue_together(list(zip(caches, first, RULES)), 1)
    assert told == [w[:1] for w in want]
    assert model.continue_together([(caches[i], told[i][0], RULES[i]) for i in (2, 1)], 1) == [want[i][1:2] for i in (2, 1)]
    assert model.continue_text(caches[0], told[0][0], 2, **RULES[0]) == want[0][1:]
    for cache, n, id, w in zip(caches, lengths, first, want): assert cache.ids[:cache.n].tolist() == [*IDS[n:2*n], id, *w[:-1]]


def test_nothing_is_said_of_logits_that_are_not_finite(models, monkeypatch):
    "The others go on."
    twin, model = models
    sound = gpu_together.joint_logits
    def spoil(j):
        logits, x = sound(j)
        logits[1, 3] = float('nan')
        return logits, x
    monkeypatch.setattr(gpu_together, 'joint_logits', spoil)
    one, two = model.continue_together([(c, 42, {}) for c in started(model, (1, 1), True)], 1)
    assert one == said(twin, 1, 42, 1, {}) and isinstance(two, FloatingPointError)


def test_what_is_asked_in_vain(models):
    _, model = models
    a, b = model.new_cache(20), model.new_cache(1)
    with pytest.raises(ValueError, match='comes twice'): run_together(model, [(a, [1]), (a, [2])])
    for call in (lambda: run_together(model, [(a, [1]), (b, [1, 2])]), lambda: model.continue_together([(a, 1, {}), (b, 1, {})], 2)):
        with pytest.raises(ValueError, match='past the context of 1'): call()
    assert (a.n, a.width, b.n) == (0, 0, 0)
    with pytest.raises(ValueError, match='0 rounds'): model.continue_together([(a, 1, {})], 0)
    assert gpu_together.can_sit([a, b]) and not gpu_together.can_sit([a, model.new_cache(500)])


def launches(f):
    "What a call would launch: kernels, warps, constants."
    gpu_functions.noted = []
    try: f()
    finally: found, gpu_functions.noted = gpu_functions.noted, None
    return [(kernel.__name__, warps, {k: v for k, v in constants.items() if k != 'p_seats'}) for kernel, _, _, warps, _, constants in found]


@pytest.mark.parametrize('like', ['tiny-llama', 'tiny-qwen35', 'tiny-qwen3moe'])
def test_one_launch_serves_all_texts(like, tmp_path):
    "A shared round starts the kernels of a round of one text with as many rows; seats are no part of a round of one text."
    with ModelFile(synth(like, 'Q8_0', tmp_path/'m.gguf')) as mf:
        model = GpuModel(mf, load_config(mf))
        caches = [model.new_cache(32) for _ in range(4)]
        j = gpu_together.joint_for(model, caches, 1)
        shared, alone = launches(lambda: gpu_together.joint_logits(j)), launches(lambda: all_logits(caches[0].state, 4))
        assert [k for k, *_ in shared] == [k for k, *_ in alone]
        assert any('SEAT' in c for *_, c in shared) and not any('SEAT' in c for *_, c in alone)
