"Rounds that are recorded once and played give the bits of rounds that run through Python, whatever happened in between."
import numpy as np
import pytest

import alphabook.cpu_streams as cpu
import alphabook.streams as spec
from alphabook.config import load_config
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.rounds import Recorded, prefill, run_round
from alphabook.synth import synth
from alphabook.tape import set_threads

TYPES = {'tiny-llama': 'Q4_K_M', 'tiny-qwen2': 'Q5_0', 'tiny-qwen3': 'Q6_K', 'tiny-gemma3': 'Q8_0', 'tiny-qwen3moe': 'Q4_0',
         'tiny-olmoe': 'Q8_0', 'tiny-gpt-oss': 'MXFP4', 'tiny-qwen35': 'Q4_1', 'tiny-qwen35moe': 'Q4_K_M',
         'tiny-qwen3next': 'F16'}
IDS = np.random.default_rng(5).integers(0, 250, 96).tolist()


@pytest.fixture(scope='module', params=TYPES)
def models(request, tmp_path_factory):
    "The same weights twice: rounds recorded, rounds not recorded."
    path = tmp_path_factory.mktemp('recorded')/'m.gguf'
    synth(request.param, TYPES[request.param], path)
    with ModelFile(path) as mf:
        taped, eager = (Model(mf, load_config(mf), cpu) for _ in range(2))
        eager.record = False
        yield taped, eager


def same(a, b): return a.shape == b.shape and a.tobytes() == b.tobytes()


def play(model, moves):
    "Logits of all rounds of a game: (rows, how many of them are right), or a position to go back to."
    cache, out = model.new_cache(96), []
    for move in moves:
        if isinstance(move, int):
            cache.rollback(move)
            continue
        rows, right = move
        out.append(run_round(model, cache, IDS[cache.n:cache.n + right] + [7]*(rows - right)))
        cache.commit(cache.n + right)
    return out, cache


def test_a_game_of_rounds(models):
    moves = [(5, 5), (1, 1), (1, 1), (4, 2), (4, 0), (4, 4), (1, 1), (1, 0), (1, 1), (16, 9), 0, (33, 33), (1, 1), (5, 1), (5, 5)]
    (a, cache), (b, _) = (play(m, moves) for m in models)
    assert all(map(same, a, b)) and len(a) == len(b)
    assert cache.tapes and all(isinstance(t, Recorded) for t in cache.tapes.values()), 'nothing was recorded'
    assert models[0].record


def test_two_caches_do_not_share_a_tape(models):
    taped, eager = models
    one, two = taped.new_cache(40), taped.new_cache(40)
    for cache, ids in ((one, IDS[:9]), (two, IDS[20:29])): prefill(taped, cache, ids)
    first = [run_round(taped, one, [3]), run_round(taped, two, [3])]
    for cache in (one, two): cache.commit(10)
    second = [run_round(taped, two, [4]), run_round(taped, one, [4])][::-1]
    for start, *got in zip((0, 20), first, second):
        cache = eager.new_cache(40)
        prefill(eager, cache, IDS[start:start + 9])
        want = run_round(eager, cache, [3]); cache.commit(10)
        assert same(got[0], want) and same(got[1], run_round(eager, cache, [4]))


def test_the_logits_are_the_callers(models):
    "A later round doesn't write into what an earlier one returned."
    cache = models[0].new_cache(40)
    first = run_round(models[0], cache, IDS[:1])
    kept = first.copy()
    cache.commit(1)
    run_round(models[0], cache, IDS[1:2])
    assert same(first, kept)


def test_threads_change_nothing(models):
    results = []
    for n in (1, 2, None):
        set_threads(n)
        results.append(play(models[0], [(40, 40), (1, 1), (3, 2), (1, 1)])[0])
    set_threads()
    assert all(map(same, results[0], results[1])) and all(map(same, results[0], results[2]))


def test_no_more_recordings_than_agreed(models):
    import alphabook.rounds as rounds
    cache = models[0].new_cache(96)
    for n in range(1, 40): run_round(models[0], cache, IDS[:n], want=1)
    assert len(cache.tapes) <= rounds.TAPES


def test_a_damaged_value_is_an_error(models, monkeypatch):
    "A key that float16 can't hold is reported by the round that made it, recorded or not."
    for model in models:
        layer = next(l for l in model.layers if hasattr(l, 'attn_v'))
        cache = model.new_cache(8)
        cache.flag[0] = 1
        with pytest.raises(ValueError, match='not finite as float16'): run_round(model, cache, IDS[:2])
        assert np.isfinite(run_round(model, cache, IDS[:2])).all()
