"""Prompts whose missing experts come to the card a layer ahead (chapter 20d), in Triton's interpreter: the bits, who lives where afterwards, and the rule."""
import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed (there is none for this system)")
torch = pytest.importorskip("torch")

from alphabook import streaming
from alphabook.config import load_config
from alphabook.gpu_verdicts import GpuModel
from alphabook.modelfile import ModelFile
from alphabook.residency import model_under, needed_bytes
from alphabook.resolved import FREE, parts_of
from alphabook.rounds import prefill
from alphabook.streaming import Plan, StreamingStore, load_experts, parts_for
from alphabook.synth import synth

SMALL = dict(n_layers=4, n_embd=64, n_head=1, n_kv_head=1, n_ff_expert=32)
TEXT = [5, 260, 7, 9, 12]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    with ModelFile(synth("tiny-qwen3moe", "Q4_0", tmp_path_factory.mktemp("streaming")/"tiny.gguf", **SMALL)) as mf: yield mf, load_config(mf)


@pytest.fixture(scope="module")
def known(mixture):
    model = GpuModel(*mixture)
    return prefill(model, model.new_cache(16), TEXT).tobytes()


@pytest.fixture
def store(mixture, monkeypatch):
    monkeypatch.setattr(streaming, "ROWS", 2)
    store = StreamingStore(*mixture, part=0.75, bound=0)
    yield store
    store.end()


def expected(store, key):
    "An expert's tiles, from the file."
    layer, e = divmod(key, store.E)
    return [load_experts(data, type, store.device).tiles[0] for data, type in parts_of(store.tensors[layer], [e])]


def check(store):
    "Every expert is where the store says, and nobody is nowhere or twice."
    for bank in store.banks:
        shelf = store.shelves[id(bank)]
        for key in (layer*store.E + e for layer in bank.layers for e in range(store.E)):
            assert (shelf.slot[key] >= 0) != (shelf.place[key] >= 0)
            mine = [t[shelf.slot[key]] for t in shelf.banked] if shelf.slot[key] >= 0 else [m[shelf.place[key]] for m in shelf.memory]
            assert all(torch.equal(a, b) for a, b in zip(mine, expected(store, key))), key
        assert len(shelf.free) + (shelf.place >= 0).sum() == shelf.aside and not set(shelf.free) & set(shelf.place.tolist())


def test_a_prompt_streams_its_experts_and_leaves_all_where_they_were(mixture, known, store, monkeypatch):
    passes, real, copies, fetch = [], GpuModel.read_many, [], streaming.fetch
    monkeypatch.setattr(GpuModel, "read_many", lambda self, cache, ids: passes.append(len(ids)) or real(self, cache, ids))
    monkeypatch.setattr(streaming, "fetch", lambda *how: copies.append(how[2]) or fetch(*how))
    model = GpuModel(*mixture, store=store)
    check(store)
    where = store.where.copy()
    cache = model.new_cache(16)
    assert prefill(model, cache, TEXT).tobytes() == known and passes == [5] and cache.n == 5 and cache.ids[:5].tolist() == TEXT
    assert store.hits == store.misses == 0 and len(copies) == 4                    # nobody was asked, each layer came once
    assert (store.where == where).all()
    check(store)
    # two experts change places in every layer, as a decode would have it; the next prompt is none the wiser
    bank = store.banks[0]
    for slot, key in ((0, store.E - 1), (9, 2*store.E - 1), (0, 0), (3, 3*store.E - 2)):
        old = int(bank.owner[slot])
        if old == key: continue
        store.where[divmod(old, store.E)], bank.owner[slot] = -1, FREE
        store.coming.append((key, bank, slot)); store.bring(); store.enter()
        assert store.where[divmod(key, store.E)] == slot and bank.owner[slot] == key
        check(store)
    for shelf in store.shelves.values(): shelf.lent = shelf.lent*2//3                         # now one part must do
    assert len({at for _, _, (_, at, _) in Plan(store).turns.values()}) == 1
    cache.rollback(0)
    assert prefill(model, cache, TEXT).tobytes() == known and passes == [5, 5]
    check(store)
    store.prices.learn_round(1e-9)                                               # the CPU is quicker than any bus
    assert model.rows_at_once(cache, 1000) == 0
    model.store = None
    assert model.rows_at_once(cache, 1000) == 0


def test_a_pass_that_fails_gives_slots_back(mixture, store, monkeypatch):
    model = GpuModel(*mixture, store=store)
    cache, calls = model.new_cache(16), []
    def through(self, *args):
        calls.append(1)
        if len(calls) == 3: raise RuntimeError("a kernel has failed")
    monkeypatch.setattr(streaming.Pass, "through", through)
    with pytest.raises(RuntimeError, match="a kernel has failed"): prefill(model, cache, TEXT)
    check(store)
    assert cache.state.spoiled


def test_without_room_or_pinned_memory_prompts_are_read_as_before(mixture, monkeypatch):
    lines = []
    monkeypatch.setattr(streaming, "memory_bytes", lambda: 1000)
    store = StreamingStore(*mixture, part=0.75, say=lines.append)
    store.end()
    assert not store.shelves and "are more than a quarter of RAM" in lines[-1]
    monkeypatch.setattr(streaming, "memory_bytes", lambda: 1 << 40)
    def refuse(*args): raise ValueError("1,000 bytes of pinned memory were refused")
    monkeypatch.setattr(streaming, "pinned", refuse)
    store = StreamingStore(*mixture, part=0.75, say=lines.append)
    store.end()
    assert not store.shelves and lines[-1] == "prompts don't stream experts: 1,000 bytes of pinned memory were refused"
    for how in (dict(part=0.0), dict(part=1.0), dict(part=0.75, stream=False)):              # no slots; nobody without one; not wanted
        store = StreamingStore(*mixture, say=lines.append, **how)
        store.end()
        assert not store.shelves and len(lines) == 2
    assert parts_for(np.full((2, 4), -1), 0, 9) == (0, 0)


def test_an_expert_on_no_shelf_is_not_fetched(mixture, store):
    GpuModel(*mixture, store=store)
    assert Plan(store).fits
    shelf = store.shelves[id(store.banks[0])]
    shelf.place[np.flatnonzero(shelf.place >= 0)[0]] = -1
    assert not Plan(store).fits


def test_models_under_a_cap_can_stream(mixture):
    mf, cfg = mixture
    lines = []
    model = model_under(mf, cfg, needed_bytes(mf, cfg, 256) - 2*10**5, 256, say=lines.append, kind=StreamingStore)
    assert model.store.shelves and any("prompts stream experts that have no slot, from" in line for line in lines), lines
    model.store.end()
