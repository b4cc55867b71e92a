"""Experts here and there (chapters 20a to 20c) in Triton's interpreter: the bits don't change, and what can go wrong says so.

On a GPU the same was asked of the bundled model and of a large shape by data/trials/gpu_experts.py.
"""
import time
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import ROOT

pytest.importorskip("triton", reason="triton is not installed (there is none for this system)")
torch = pytest.importorskip("torch")

from alphabook import doorbell, gpu_rounds, resolved
from alphabook.config import load_config
from alphabook.doorbell import ANSWER, BELL, BOARD, LINE, PROGRAM, Programs, Workers, take_part
from alphabook.gpu_verdicts import GpuModel
from alphabook.modelfile import ModelFile
from alphabook.resolved import COMING, FIXED, FREE, ExpertStore, device_bytes, parts_of, slots_for, text_bytes
from alphabook.synth import synth
from alphabook.tape import kernel, recording, share

MINI = ROOT / "data" / "models" / "alphabook-mini.gguf"
SMALL = dict(n_layers=1, n_embd=64, n_head=1, n_kv_head=1)


@kernel
def count_calls(lo, hi, x):
    for i in range(lo, hi): x[i] += 1


def program(x, times):
    "A tape of several operations, each with as many tasks as x has numbers."
    with recording() as tape:
        for _ in range(times): share(count_calls, len(x), len(x) << 16, x)
    return tape


def test_rings_are_answered_once_by_any_number_of_workers():
    x, y, programs, board = np.zeros(40, np.int64), np.zeros(7, np.int64), Programs(2), np.zeros(BOARD, np.int64)
    programs.add(0, program(x, 3)); programs.add(1, program(y, 5))
    workers = Workers(board, programs, cores=doorbell.worker_cores()*3, patience=500)
    try:
        for ring in range(1, 61):
            if ring % 20 == 0: workers.rest(); time.sleep(0.02)
            workers.wake()
            board[BELL] = ring << PROGRAM | ring % 2
            late = time.monotonic() + 20
            while board[ANSWER] < ring: assert time.monotonic() < late; time.sleep(0)
    finally: workers.stop()
    assert (x == 3*30).all() and (y == 5*30).all()


def test_who_comes_late_finds_nothing_to_do():
    x, y, programs, board = np.zeros(4, np.int64), np.zeros(4, np.int64), Programs(2), np.zeros(BOARD, np.int64)
    programs.add(0, program(x, 1)); programs.add(1, program(y, 3))
    def play(ring, number): take_part(ring, programs.ops, *programs.place[number], programs.counters, board)
    play(7, 1); play(8, 0); play(7, 1); play(6, 0)                  # the last two have overslept
    programs.counters[[0, LINE]] = (9 << doorbell.STAMP) + 2       # ring 9 is under way, half of its first operation is done
    play(8, 0); play(7, 1)
    assert x.tolist() == [1]*4 and y.tolist() == [3]*4 and board[ANSWER] == 8
    play(9, 0)
    assert x.tolist() == [1, 1, 2, 2] and board[ANSWER] == 9


def test_pinned_memory_may_be_refused(monkeypatch):
    def refuse(*shape, pin_memory=False, **how): raise RuntimeError("CUDA error: out of memory\nmore")
    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(ValueError, match="4,096 bytes of pinned memory were refused .CUDA error: out of memory.*--device cpu"): doorbell.shared(4096, "cuda")


@pytest.fixture(scope="module")
def mini():
    with ModelFile(MINI) as mf: yield mf, load_config(mf)


def test_a_store_fits_its_cap(mini):
    mf, cfg = mini
    bytes_ = device_bytes(mf, cfg, 256)
    for more in (2 << 20, 4 << 20):
        s = ExpertStore(mf, cfg, bytes_ + more, 256)
        taken = sum(t.tiles.nbytes for b in s.banks for t in b.experts)
        assert taken <= more + sum(b.nbytes for b in s.banks) and sum(s.slots) > 0
        s.end()
    with pytest.raises(ValueError, match="--vram 1,000: .* bytes are missing for what every token needs"): ExpertStore(mf, cfg, 1000, 256)


def log_of(store, *rounds): # of (layer, experts) for each row
    "What a device would have written."
    out = np.zeros(store.log.shape[1:], np.int16)
    for layer, rows in rounds:
        k = store.cpu[layer].k
        out[layer, 0] = len(rows)
        for w, experts in enumerate(rows): out[layer, 1 + w*k:1 + w*k + len(experts)] = experts
        out[layer, 1 + len(rows)*k:] = 3                            # left by a wider round
    return out


def test_the_policy_moves_few_and_never_what_is_under_way(tmp_path):
    mf = ModelFile(synth("tiny-qwen35moe", "Q4_0", tmp_path / "tiny.gguf", n_layers=2, n_embd=64, n_ff_shared=32, n_ff_expert=32))
    cfg = load_config(mf)
    s = ExpertStore(mf, cfg, part=0.5, ranking=(np.zeros((cfg.n_layer, cfg.n_expert)), 1))
    try:
        model = GpuModel(mf, cfg, store=s)
        bank = s.bank_of[0]
        assert not model.layers[0].with_shared or (bank.owner == FIXED).any()
        fixed = np.flatnonzero(bank.owner == FIXED)
        missing = np.flatnonzero(s.where[0, :cfg.n_expert] < 0)
        assert 2 <= len(missing) < cfg.n_expert
        missing = missing[:cfg.n_used]
        for _ in range(3): s.learn(log_of(s, (0, [missing])))
        s.learn(log_of(s, *((layer, []) for layer in range(cfg.n_layer))))          # rounds without rows change nothing but the clock
        assert s.misses == 3*cfg.n_used and s.hits == 0 and s.rounds == 4
        s.decide(1)
        assert len(s.coming) == 1 and (bank.owner == COMING).sum() == 1 and (s.where[0, missing] < 0).all()
        s.decide(100)
        assert len(s.coming) == len({key for key, *_ in s.coming}) == cfg.n_used
        wanted = [(key, slot) for key, _, slot in s.coming]
        s.bring(); s.enter()
        for key, slot in wanted:
            layer, e = divmod(key, cfg.n_expert)
            assert s.where[layer, e] == slot and bank.owner[slot] == key
            for t, (data, type) in zip(bank.experts, parts_of(s.tensors[layer], [e])):
                assert torch.equal(t.tiles[slot], resolved.load_experts(data, type, s.device).tiles[0])
        assert (bank.owner[fixed] == FIXED).all() and s.admitted == len(wanted)
        held = bank.owner[bank.owner >= 0]
        for _ in range(5): s.uses.use(bank.owner[bank.owner >= 0])
        s.wanted = []
        s.learn(log_of(s, (0, [np.flatnonzero(s.where[0, :cfg.n_expert] < 0)[:1]])))
        s.decide(10)
        assert not s.coming                                             # a colder one puts nobody out
        assert len(set(held)) == len(held) and all(bank.owner[s.where[divmod(int(k), cfg.n_expert)]] == k for k in held)
    finally: s.end(); mf.close()


def few_rounds(model):
    "Logits of a round of two rows, and of one of one."
    cache = model.new_cache(32)
    out = [model.run_round(cache, [5, 260])]
    cache.commit(2)
    return np.concatenate([*out, model.run_round(cache, [9])])


@pytest.mark.parametrize("like", ["tiny-gpt-oss", "tiny-qwen35moe"])
def test_biases_and_a_shared_expert(like, tmp_path):
    "gpt-oss's experts have biases; in the other a shared expert is one more of its layer, and always there."
    shape = dict(n_layers=1, n_embd=64) | (dict(gdn_k=1, gdn_v=1, n_head=1, n_kv_head=1, n_ff_shared=32, n_ff_expert=32) if like == "tiny-qwen35moe" else {})
    mf = ModelFile(synth(like, "Q8_0", tmp_path / "tiny.gguf", **shape))
    cfg = load_config(mf)
    want = few_rounds(GpuModel(mf, cfg))
    store = ExpertStore(mf, cfg, part=0.4)
    try:
        model = GpuModel(mf, cfg, store=store)
        assert few_rounds(model).tobytes() == want.tobytes() and store.misses and (cfg.expert_bias or model.layers[0].with_shared)
    finally: store.end(); mf.close()


def test_a_lost_answer_is_an_error_and_a_late_one_is_waited_for(tmp_path):
    mf = ModelFile(synth("tiny-qwen3moe", "Q4_0", tmp_path / "tiny.gguf", **SMALL))
    cfg = load_config(mf)
    store = ExpertStore(mf, cfg, part=0.0)
    try:
        model = GpuModel(mf, cfg, store=store)
        cache = model.new_cache(32)
        want = model.run_round(cache, [5])
        cache.commit(0)
        store.workers.stop()
        store.patience = 20
        with pytest.raises(ValueError, match="the CPU has not answered: .* 0 of 1 workers are alive"): model.run_round(cache, [5])
        cache.commit(0)
        with pytest.raises(ValueError, match="the CPU has not answered"): model.run_round(cache, [5])      # still not
        cache.commit(0)
        store.workers, store.patience = Workers(store.box.near.board, store.programs), 200_000
        store.box.near.board[doorbell.STOP] = 0
        store.workers.wake()
        late = time.monotonic() + 30
        while store.box.near.board[ANSWER] < int(store.rung[0]): assert time.monotonic() < late; time.sleep(0.01)
        assert model.run_round(cache, [5]).tobytes() == want.tobytes()
    finally: store.workers.stop(); store.end(); mf.close()


@pytest.mark.parametrize("like,mtp,kv", [("tiny-qwen35moe", 1, ("f16", "f16")), ("tiny-gpt-oss", 0, ("q8_0", "q4_0")), ("tiny-qwen3moe", 0, ("f16", "q8_0")),
                                         ("tiny-qwen4exp", 0, ("f16", "f16"))])
def test_a_text_takes_what_is_counted(like, mtp, kv, tmp_path, monkeypatch):
    mf = ModelFile(synth(like, "Q8_0" if like != "tiny-qwen4exp" else "Q4_0", tmp_path / "tiny.gguf", mtp=mtp)); cfg = load_config(mf)
    class Model(SimpleNamespace): pass                               # a State asks for no more, and wants a proxy of it
    model = Model(cfg=cfg, device=torch.device("cpu"), kv=kv)
    monkeypatch.setattr(gpu_rounds, "block_angles", lambda *_: None)
    for n in (256, 2048):
        state = gpu_rounds.State(model, n)
        taken = sum(t.nbytes for t in vars(state).values() if isinstance(t, torch.Tensor))
        taken += 4*(state.S[0].nbytes + state.windows.nbytes)                # checkpoints
        if mtp: taken += sum(t.nbytes for t in gpu_rounds.kv_tables(1, n, cfg.n_kv_head, cfg.head_dim, "cpu", kv)) + 2*n*cfg.n_embd
        assert abs(text_bytes(cfg, n, kv) - taken) <= 4096 + .05*taken, (like, n)
    mf.close()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    mf = ModelFile(synth("tiny-qwen35moe", "Q4_0", tmp_path_factory.mktemp("hybrid") / "tiny.gguf", n_layers=2, n_embd=64, n_ff_expert=32, n_ff_shared=32))
    cfg = load_config(mf)
    store = ExpertStore(mf, cfg, device_bytes(mf, cfg, 512) + (8 << 20), 512)
    yield GpuModel(mf, cfg, store=store)
    store.end(); mf.close()


def test_texts_share_the_room_that_is_left_for_them(hybrid):
    for s in [*hybrid.__dict__.get("spare", ())]: hybrid.spare.remove(s)
    hybrid.store.reserve = 2*text_bytes(hybrid.cfg, 256)
    a, b = hybrid.new_cache(256), hybrid.new_cache(200)
    with pytest.raises(ValueError, match="another text of 256 positions needs .* beside .* a smaller --ctx"): hybrid.new_cache(256)
    del b
    c = hybrid.new_cache(256)                                        # takes over the state of the one that is gone
    for cache in (a, c): cache.state.recordings["a round"] = cache.state  # holds it, as recordings do
    del a, c, cache
    assert hybrid.new_cache(300).n_ctx == 300                        # for which the spare ones have to go


def test_a_text_goes_back_to_its_last_checkpoint_after_a_round_that_failed(hybrid, monkeypatch):
    hybrid.store.reserve = None
    cache = hybrid.new_cache(64)
    assert cache.recurrent
    cache.n = 3; cache.checkpoint(); cache.n = 5
    assert cache.rollback(5) == 5                                    # nothing has happened
    def told(): raise ValueError("the CPU has not answered")
    monkeypatch.setattr(hybrid.store, "told", told)
    with pytest.raises(ValueError, match="has not answered"): gpu_rounds.to_host(cache.state, torch.zeros(3))
    assert cache.rollback(5) == 3 and not cache.state.spoiled and cache.rollback(3) == 3
    with pytest.raises(ValueError): gpu_rounds.to_host(cache.state, torch.zeros(3))
    cache.checkpoints = []
    assert cache.rollback(3) == 0


def test_sessions_that_nobody_uses_make_room(monkeypatch):
    import alphabook.engine as engine_
    class Session(SimpleNamespace):
        def __init__(self, engine, n_ctx, keep=None, drafter=None):
            if engine.spare: raise ValueError("no room")
            super().__init__(cache=SimpleNamespace(n_ctx=n_ctx), drafter=drafter, reuse=lambda ids: 0)
    monkeypatch.setattr(engine_, "Session", Session)
    old = SimpleNamespace(cache=SimpleNamespace(n_ctx=10), drafter="none")
    engine = SimpleNamespace(spare=[old], n_ctx=4096)
    with engine_.borrowed(engine, 100, "none") as session: assert session.cache.n_ctx == 1024 and not engine.spare
    assert engine.spare == [session]
    with engine_.borrowed(engine, 100, "none") as again: assert again is session
    engine.spare = []
    def refuse(*args, **how): raise ValueError("no room at all")
    monkeypatch.setattr(engine_, "Session", refuse)
    with pytest.raises(ValueError, match="at all"):
        with engine_.borrowed(engine, 100, "none"): pass
