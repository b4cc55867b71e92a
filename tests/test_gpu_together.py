"""Rounds of several texts on a GPU, in Triton's interpreter: each text has the bits that it has alone on the CPU.

On a GPU the same is compared and timed by data/trials/gpu_parallel.py.
"""
import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed (there is none for this system)')
torch = pytest.importorskip('torch')

import alphabook.cpu_streams as cpu
import alphabook.engine
from alphabook import gpu_functions, gpu_rounds, gpu_together
from alphabook.arithmetic import sample
from alphabook.config import load_config
from alphabook.copying import CopyDrafter
from alphabook.engine import Engine
from alphabook.gpu_rounds import all_logits
from alphabook.gpu_together import GpuModel
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.policy import Alone
from alphabook.rounds import run_round, run_together
from alphabook.synth import synth
from alphabook.turns import Job, Scheduler

TINY = dict(n_embd=32, n_head=2, n_kv_head=1, head_dim=16, n_ff=32, n_layers=2, interval=2, gdn_k=1, gdn_v=1, gdn_dim=8)   # a layer of each kind
IDS = np.random.default_rng(5).integers(0, 250, 60).tolist()
RULES = [{}, dict(temp=2.0, seed=3), dict(temp=1.5, top_k=5, top_p=.9, seed=2**40)]


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
    turns = [[(0, 2, 1, 'waits'), (1, 1, 1)], [(2, 2, 1), (1, 1, 1)], [(1, 1, 0), (0, 1, 1), (2, 1, 1)], [(1, 1, 1)]]
    twin, model = models
    want, got = game(twin, turns, False), game(model, turns, True)
    assert all(map(same, want, got)) and len(want) == len(got) == 8
    assert {(j.n, j.rows) for j in model.joint.values()} == {(2, 2), (3, 1)}


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
    lengths, first = (2, 1, 1), (40, 41, 42)
    want = [said(twin, *text) for text in zip(lengths, first, (2, 2, 2), RULES)]
    caches = started(model, lengths, True)
    told = model.continue_together(list(zip(caches, first, RULES)), 1)
    assert told == [w[:1] for w in want]
    assert model.continue_together([(caches[i], told[i][0], RULES[i]) for i in (2, 1)], 1) == [want[i][1:2] for i in (2, 1)]
    assert model.continue_text(caches[0], told[0][0], 1, **RULES[0]) == want[0][1:]
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
    one, two = model.continue_together([(model.new_cache(32), 42, {}) for _ in range(2)], 1)
    assert one == [int(run_round(twin, twin.new_cache(8), [42])[0].argmax())] and isinstance(two, FloatingPointError)


def test_answers_share_rounds_on_a_device(tmp_path, monkeypatch):
    "Two places: two answers whose tokens the device chooses; when one is over, one comes whose logits somebody watches. The texts that a CPU says."
    path = synth('tiny-qwen35', 'F16', tmp_path/'m.gguf', **TINY)
    monkeypatch.setattr(alphabook.engine, 'pick_backend', lambda device: device)
    cpu_, gpu = (Engine.load(path, device, n_ctx=64) for device in ('cpu', 'cuda'))
    prompts, lengths, rules, seen, calls = ([5], [6, 7], [8]), (4, 5, 2), ({}, dict(temp=.9, seed=3), {}), [], []
    want = [cpu_.generate(p, n, drafter='none', **how).token_ids for p, n, how in zip(prompts, lengths, rules)]
    s, rounds = Scheduler(lambda: gpu, slots=2, n_ctx=16), gpu.model.continue_together
    s.engine, s.sessions, s.state, s.shares = gpu, [gpu.session(16)], 'ready', True
    def counted(texts, n):
        calls.append((len(texts), n))
        return rounds(texts, n)
    monkeypatch.setattr(gpu.model, 'continue_together', counted)
    monkeypatch.setattr('alphabook.replies.AHEAD', 1)
    s.warm_together()
    assert len(s.sessions) == 2 and not any(x.ids for x in s.sessions)
    s.sessions[1].policy = policy = Alone(CopyDrafter())
    jobs = [Job(p, n, sampling=how, watch=watch) for p, n, how, watch in zip(prompts, lengths, rules, (None, None, lambda row, id: seen.append(id)))]
    s.submit(*jobs)
    while s.waiting or s.active: s.admit(), s.turn()
    assert [[t.id for t in job] for job in jobs] == want and seen == want[2] and [j.how for j in jobs] == ['finished']*3
    assert calls == [(2, 1)]*3 and [j.g.rounds for j in jobs] == [3, 4, 1] and policy.drafter.index.n == 6


def test_a_text_that_does_not_fit(models, monkeypatch):
    "One clear line."
    def full(*_): raise torch.cuda.OutOfMemoryError('CUDA out of memory')
    monkeypatch.setattr(gpu_rounds, 'State', full)
    with pytest.raises(ValueError, match='no memory on the device for one more text of 1,024 positions: give a smaller --ctx, or fewer --parallel'):
        models[1].new_cache(1000)


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
