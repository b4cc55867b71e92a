"Rounds that are recorded once and played give the bits of rounds that run through Python, whatever happened in between."
import numpy as np
import pytest

import alphabook.cpu_streams as cpu
import alphabook.streams as spec
from alphabook.config import load_config
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.rounds import Recorded, prefill, run_round, run_together
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
    assert models[0].tapes and all(isinstance(t, Recorded) for t in models[0].tapes.values()), 'nothing was recorded'
    assert not models[1].tapes
    assert models[0].record


def test_texts_share_recordings_and_nothing_else(models):
    "Rounds of two texts in turns, of other lengths, with commits that come late."
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


def test_what_recordings_leave_shares_one_memory(models):
    "Rounds of other widths may come before a commit, of a part too; what all recordings keep is what one keeps."
    taped, eager = models
    def game(model):
        one, two, out = model.new_cache(40), model.new_cache(40), []
        for cache, ids in ((one, IDS[:9]), (two, IDS[20:29])): prefill(model, cache, ids)
        out += [run_round(model, one, IDS[9:14]), run_round(model, two, IDS[29:32]), run_round(model, two, IDS[29:30])]
        hidden = one.hidden.copy()
        one.commit(11), two.commit(10)
        return [*out, hidden, run_round(model, two, [4, 5, 6]), run_round(model, one, [4]), run_round(model, one, IDS[11:13])]
    assert all(map(same, game(taped), game(eager)))
    tapes = [t for t in taped.tapes.values() if t.ops is cpu]
    assert len(tapes) > 3 and not any(t.tape.blocks for t in tapes) and len({id(t.tape.pool[-1]) for t in tapes}) < len(tapes)


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
    cache, kept = models[0].new_cache(96), dict(models[0].tapes)
    for n in range(1, 40): run_round(models[0], cache, IDS[:n], want=1)
    kinds = [key[0] for key in models[0].tapes]
    assert kinds.count('prompt') == rounds.TAPES['prompt'] and all(kinds.count(k) <= n for k, n in rounds.TAPES.items())
    models[0].tapes.clear(); models[0].tapes.update(kept)


def test_a_damaged_value_is_an_error(models, monkeypatch):
    "A key that float16 can't hold is reported by the round that made it, recorded or not."
    for model in models:
        layer = next(l for l in model.layers if hasattr(l, 'attn_v'))
        cache = model.new_cache(8)
        cache.flag[0] = 1
        with pytest.raises(ValueError, match='not finite as float16'): run_round(model, cache, IDS[:2])
        assert np.isfinite(run_round(model, cache, IDS[:2])).all()


def joint_game(model, turns, together):
    "Logits of each text: rounds of (text, rows, how many are right), shared or one after another."
    caches, out = [model.new_cache(n) for n in (64, 96, 64)], [[], [], []]
    for turn in turns:
        texts = [(caches[t], IDS[7*t:][caches[t].n:caches[t].n + right] + [7]*(rows - right)) for t, rows, right in turn]
        logits = run_together(model, texts) if together else [run_round(model, *text) for text in texts]
        for (t, _, right), l in zip(turn, logits):
            out[t].append(l)
            caches[t].commit(caches[t].n + right)
    return out


def test_rounds_of_several_texts_are_recorded_too(models):
    "Comers, leavers, drafts that are wrong, texts in another order and with other contexts: the bits of rounds alone."
    turns = [[(0, 9, 9), (1, 20, 20)], [(0, 1, 1), (1, 1, 1)], [(1, 1, 1), (0, 1, 1), (2, 12, 12)], [(0, 4, 2), (1, 1, 1), (2, 1, 1)],
             [(0, 4, 4), (1, 1, 0), (2, 1, 1)], [(2, 4, 1), (1, 1, 1), (0, 1, 1)], [(1, 1, 1), (2, 1, 1)], [(2, 4, 3), (1, 1, 1), (0, 1, 1)]]*2
    taped, eager = models
    want = joint_game(eager, turns, False)
    for model in models:
        got = joint_game(model, turns, True)
        for a, b in zip(got, want): assert len(a) == len(b) and all(map(same, a, b))
    assert any(key[0] == 'joint' for key in taped.tapes)
    one = taped.new_cache(64)
    with pytest.raises(ValueError, match='one cache'): run_together(taped, [(one, [1]), (one, [2])])


def test_what_is_not_recorded_yet_is_run_apart(models):
    taped, key = models[0], lambda: sum(k[0] == 'joint' for k in taped.tapes)
    caches, before = [taped.new_cache(50) for _ in range(2)], key()
    for turn in range(8):
        logits = run_together(taped, [(c, [3 + turn]) for c in caches], apart=True)
        assert same(*logits) and key() - before == (turn > 4)        # recorded when it comes for the sixth time
        for c in caches: c.commit(turn + 1)
