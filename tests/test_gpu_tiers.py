"""A card, RAM and a disk (chapter 21c): the same bits, and what fails below says so. In the interpreter, and with a host that rings itself."""
import os
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed (there is none for this system)")
torch = pytest.importorskip("torch")

from alphabook import resolved
from alphabook.config import load_config
from alphabook.doorbell import ANSWER, BELL, PROGRAM
from alphabook.gpu_tiers import TieredStore, buffer_bytes
from alphabook.gpu_verdicts import GpuModel
from alphabook.modelfile import ModelFile
from alphabook.reading import ReadError
from alphabook.resolved import COMING, FREE, ExpertStore, parts_of
from alphabook.synth import synth
from alphabook.tiers import HITS, MISSES, PROMPT, expert_tensors, piece_bytes

SMALL = dict(n_layers=2, n_embd=64, n_head=1, n_kv_head=1)

@pytest.fixture(scope="module")
def path(tmp_path_factory): return synth("tiny-qwen3moe", "Q4_0", tmp_path_factory.mktemp("tiers")/"tiny.gguf", **SMALL)

@pytest.fixture(scope="module")
def mixture(path):
    with ModelFile(path) as mf: yield mf, load_config(mf)

def one(mf, cfg): return max(sum(piece_bytes(t) for t in some.values()) for some in expert_tensors(mf, cfg, False).values())
def least(mf, cfg, more=0): return buffer_bytes(mf, cfg) + (cfg.n_expert + more)*one(mf, cfg)

def ringing(mf, cfg, kind=TieredStore, **how):
    "A store whose device is this test."
    store = kind(mf, cfg, part=how.pop("part", 0.0), bound=0, **how)
    for i, t in store.tensors.items(): store.cpu[i] = store.load_near(SimpleNamespace(index=i, with_shared=False), t)
    return store

X = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)

def answers(store, layer, rows):
    "What the cores say to W rows of experts that are missing; the host's part before and after a round is done, too."
    W, k, box, board = len(rows), store.cfg.n_used, store.box.near, store.box.near.board
    near = store.cpu[layer]
    store.before()
    box.rows[:W], box.answers[:] = X[:W], 0
    flat = np.array(rows, np.int32).reshape(-1)
    box.wanted[:len(flat)] = flat
    if W == 1: box.experts[:len(flat)] = flat
    number, ring = store.program_for(SimpleNamespace(index=layer), W) + (len(flat) - 1 if W == 1 else 0), int(board[BELL] >> PROGRAM) + 1
    board[BELL] = ring << PROGRAM | number
    late = time.monotonic() + 20
    while board[ANSWER] < ring: assert time.monotonic() < late; time.sleep(0)
    store.rung[0] = ring
    store.under and store.under.after(1)
    store.workers.rest()
    return box.answers[:len(flat)].copy()

def some_rows(cfg, seed, W):
    rng = np.random.default_rng(seed)
    return [rng.permutation(cfg.n_expert)[:cfg.n_used].tolist() for _ in range(W)]

@pytest.fixture(scope="module")
def whole(mixture):
    "Answers with every expert in RAM, as chapter 20b has them."
    store, got = ringing(*mixture, ExpertStore), {}
    store.under = None
    for layer in range(2):
        for W in (1, 2, 16): got[layer, W] = answers(store, layer, some_rows(mixture[1], 10*W + layer, W))
    store.end()
    return got

def check(store, whole, widths=(1, 2, 16)):
    for layer in (0, 1, 0):
        for W in widths:
            assert answers(store, layer, some_rows(store.cfg, 10*W + layer, W)).tobytes() == whole[layer, W].tobytes(), (layer, W)

def test_the_cores_say_the_same_from_slots_as_from_all_of_it(mixture, whole):
    mf, cfg = mixture
    for more, fill in ((0, False), (3, True), (cfg.n_expert, True)):
        store = ringing(mf, cfg, ram=least(mf, cfg, more), below=dict(fill=fill))
        assert store.under.complete == (more == cfg.n_expert) and store.under.bytes() <= store.under.ram
        check(store, whole)
        hits, misses = store.under.numbers[[HITS, MISSES]]
        assert hits and (misses == 0) == store.under.complete
        store.end()

def test_a_prompt_is_no_use_below(mixture):
    store = ringing(*mixture, ram=least(*mixture, 4))
    try:
        for _ in range(3): answers(store, 0, [[1, 2]])
        warm = store.under.uses.warm.copy()
        assert warm[1] > 1 and not store.under.numbers[PROMPT]
        answers(store, 0, some_rows(mixture[1], 5, 16))
        assert store.under.numbers[PROMPT] and (store.under.uses.warm == warm).all()
        answers(store, 0, [[3]])
        assert not store.under.numbers[PROMPT] and store.under.uses.warm[3] == 1
        answers(store, 0, [[1, 2]])                           # what the answer lives on is still there
        assert store.under.numbers[MISSES] <= 2 + 16 + 1
    finally: store.end()

def test_what_the_card_has_is_not_in_ram(mixture, tmp_path, path):
    from alphabook.experts import write_ranking
    mf = ModelFile(shutil.copy(path, tmp_path/"m.gguf")); cfg = load_config(mf)
    counts = np.random.default_rng(1).permutation(2*cfg.n_expert).reshape(2, -1) + 1
    write_ranking(tmp_path/"m.strp", counts, 100)
    store = TieredStore(mf, cfg, part=0.3, bound=0, ram=least(mf, cfg, 2))
    try:
        order = np.argsort(-counts.reshape(-1))
        on_card = {layer*cfg.n_expert + e for layer, some in store.first.items() for e, _ in some}
        assert on_card == set(order[:len(on_card)]) and on_card
        slots, held = sum(b.slots for b in store.under.banks), np.flatnonzero(store.under.where >= 0)
        assert set(held) == set(order[len(on_card):len(on_card) + slots]) and len(held)
    finally: store.end()

def test_rounds_on_three_tiers(tmp_path):
    "Of a hybrid with a shared expert and a block that drafts; chapter 21c does it with a plain mixture."
    shape = dict(n_layers=2, n_embd=64, gdn_k=1, gdn_v=1, n_head=1, n_kv_head=1, n_ff_shared=32, n_ff_expert=32)
    mf = ModelFile(synth("tiny-qwen35moe", "Q8_0", tmp_path/"tiny.gguf", mtp=1, **shape)); cfg = load_config(mf)
    def rounds(model):
        cache = model.new_cache(32)
        return model.run_round(cache, [5, 26]).tobytes()
    want = rounds(GpuModel(mf, cfg))
    store = TieredStore(mf, cfg, part=0.2, ram=least(mf, cfg))
    try:
        assert max(store.under.tensors) == cfg.n_layer - 1     # the block that drafts is on the card
        assert rounds(GpuModel(mf, cfg, store=store)) == want and store.under.numbers[MISSES] and store.misses
    finally: store.end()

# Faults.

def test_budgets_below(mixture):
    mf, cfg = mixture
    with pytest.raises(ValueError, match="--ram .* needs at least"): TieredStore(mf, cfg, part=0.0, ram=least(mf, cfg) - one(mf, cfg))
    with pytest.raises(ValueError, match="--vram 1,000"): TieredStore(mf, cfg, 1000, ram=least(mf, cfg))

def test_less_ram_while_running(mixture, whole):
    mf, cfg = mixture
    store = ringing(mf, cfg, ram=least(mf, cfg, 6))
    try:
        check(store, whole)
        store.under.set_ram(least(mf, cfg, 1))
        assert store.under.bytes() <= least(mf, cfg, 1)
        check(store, whole)
        with pytest.raises(ValueError, match="needs at least"): store.under.set_ram(1000)
        check(store, whole, (1,))
    finally: store.end()

def test_a_disk_that_gives_less_or_fails_is_an_error_and_then_it_is_mended(mixture, whole):
    mf, cfg = mixture
    store = ringing(mf, cfg, ram=least(mf, cfg), below=dict(fill=False))
    def disk(preadv):
        for source in store.under.sources.values(): source.preadv = preadv
    def failing(*args): raise OSError(5, "Input/output error")
    try:
        disk(lambda fd, buffers, at: 0)
        with pytest.raises(ReadError, match="only 0 came"): answers(store, 0, [[1, 2]])
        disk(failing)
        with pytest.raises(ReadError, match="Input/output error"): answers(store, 1, some_rows(cfg, 1, 2))
        disk(lambda *args: -(-os.preadv(*args)//3))           # a third at a time
        check(store, whole)
    finally: store.end()

def test_a_reader_that_dies_or_hangs_makes_it_slow(mixture, whole):
    mf, cfg = mixture
    said = []
    store = ringing(mf, cfg, ram=least(mf, cfg, 3), say=said.append, below=dict(fill=False, patience=0.05))
    under = store.under
    try:
        real, n = under.read_lump, [0]
        def dying(*args):
            n[0] += 1
            if n[0] == 1: raise MemoryError("no more")
            if n[0] == 3: time.sleep(0.4)
            return real(*args)
        under.read_lump = dying
        check(store, whole, (1, 2))
        assert any("a reader failed (MemoryError" in line for line in said) and any("does the disk hang?" in line for line in said)
        under.pool.shutdown()                                  # nobody there
        check(store, whole, (16,))
        for b in under.banks: b.owner[b.owner == -1] = -3      # too many hang
        under.where[:], under.banks[0].owner[1:] = -1, -3
        with pytest.raises(ReadError, match="no slots for them: .* lost to reads that hang"): answers(store, 0, [[1, 2]])
    finally: store.end()

def test_a_file_that_is_cut(tmp_path, path):
    mf = ModelFile(shutil.copy(path, tmp_path/"m.gguf")); cfg = load_config(mf)
    store = ringing(mf, cfg, ram=least(mf, cfg), below=dict(fill=False))
    try:
        answers(store, 0, [[1]])
        os.truncate(tmp_path/"m.gguf", os.path.getsize(path) - 5000)
        with pytest.raises(ReadError, match="it was cut while in use"): answers(store, 0, [[2]])
    finally: store.end()

def test_who_waits_is_named(mixture):
    store = ringing(*mixture, ram=least(*mixture), below=dict(fill=False))
    try:
        store.under.at = 1, 3, time.monotonic() - 7
        with pytest.raises(ValueError, match=r"the CPU has not answered: .* 3 experts of layer 1 have been on their way from .*tiny.gguf for 7\.\d s"): store.fail()
    finally: store.end()

def test_an_admission_that_cannot_be_read_is_none(mixture, whole):
    mf, cfg = mixture
    said = []
    store = TieredStore(mf, cfg, part=0.3, ram=least(mf, cfg), say=said.append)
    try:
        for i, t in store.tensors.items(): store.cpu[i] = store.load_near(SimpleNamespace(index=i, with_shared=False), t)
        for layer in range(2):
            for (a, kind), (b, same) in zip(store.bytes_of(layer, 2), parts_of(store.tensors[layer], [2])): assert kind == same and a.tobytes() == b.tobytes()
        missing = np.flatnonzero(store.where[:, :cfg.n_expert].reshape(-1) < 0)[:3]
        store.wanted, store.uses.warm[missing] = [missing], 50.0
        store.decide(2)
        assert len(store.coming) == 2
        def failing(*args): raise OSError(5, "Input/output error")
        for source in store.under.sources.values(): source.preadv = failing
        store.bring()
        assert said[-1].startswith("no more experts come to the card: ") and not store.coming and not store.moving and store.bound == 0
        assert not any((b.owner == COMING).any() for b in store.banks) and any((b.owner == FREE).any() for b in store.banks)
        for source in store.under.sources.values(): source.preadv = os.preadv
        check(store, whole, (1,))
    finally: store.end()

def test_pinned_memory_for_copies_may_be_refused(mixture, monkeypatch):
    real, said = torch.empty, []
    store = ringing(*mixture, ram=least(*mixture), say=said.append)
    def refuse(*shape, pin_memory=False, **how):
        if pin_memory: raise RuntimeError("CUDA error: out of memory\nmore")
        return real(*shape, **how)
    monkeypatch.setattr(torch, "empty", refuse)
    class Event:
        def record(self): pass
        def synchronize(self): pass
    monkeypatch.setattr(torch.cuda, "Event", Event)
    try:
        data = np.arange(7*resolved.CHUNK//2, dtype=np.uint64).view(np.uint8).reshape(7, -1)
        assert torch.equal(store.over(data), torch.from_numpy(data)) and torch.equal(store.over(data[:2]), torch.from_numpy(data[:2]))
        store.ask()
        assert store.host["log"].shape == store.log.shape and said[-1] == "pinned memory was refused (CUDA error: out of memory): copies to and from the card take longer"
    finally: store.end()
