"""A mixture in little RAM: the same bits wherever experts are, and disks, workers and files that fail."""
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import alphabook.cpu_streams as cpu_backend
from conftest import ROOT
from alphabook.config import load_config
from alphabook.engine import Engine
from alphabook.experts import write_ranking
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.reading import BLOCK, ReadError, Source, page_memory
from alphabook.rounds import prefill, run_round
from alphabook.tiers import HITS, MISSES, Store, budget_for, expert_tensors, fixed_bytes, make_banks, slots_for

IDS = np.random.default_rng(21).integers(0, 250, 40).tolist()

def opened(path, part=0.0, spare=400_000, **options):
    "A model whose experts have slots for a part of them."
    mf = ModelFile(path)
    cfg = load_config(mf)
    store = Store(mf, cfg, budget_for(mf, cfg, part) + spare*(part < 1), **options)
    store.claim = lambda cache: None
    return Model(mf, cfg, cpu_backend, experts=store)

def logits(model, ids=IDS):
    cache, out = model.new_cache(64), []
    out.append(prefill(model, cache, ids[:20]))
    for rows in (ids[20:25], ids[25:26], ids[26:27], ids[27:29], ids[29:30]):
        out.append(run_round(model, cache, rows).ravel())
        cache.commit(cache.n + len(rows))
    return np.concatenate(out).tobytes()

def plainly(path):
    mf = ModelFile(path)
    return logits(Model(mf, load_config(mf), cpu_backend))

@pytest.fixture(scope="module")
def mixture(tiny_model): return tiny_model("qwen35moe")

@pytest.mark.parametrize("family,type", [("qwen35moe", "Q8_0"), ("qwen3moe", "Q4_0"), ("gpt-oss", "MXFP4"), ("qwen3moe", "F32"),
                                         ("olmoe", "Q6_K"), ("qwen4exp", "Q8_0")])
def test_the_same_bits_wherever_experts_are(tiny_model, family, type):
    path = tiny_model(family, type)
    want = plainly(path)
    for part, spare, ahead in ((1.0, 0, True), (0.0, 0, False), (0.4, 0, True)):
        model = opened(path, part, spare, ahead=ahead)
        assert model.experts.complete == (part == 1)
        assert logits(model) == want == logits(model), (family, part)
        hits, misses = model.experts.numbers[[HITS, MISSES]]
        assert (misses == 0) == (part == 1) and hits > 0
        for b in model.experts.banks:                         # the table and the slots say the same
            for slot, key in enumerate(b.owner):
                if key >= 0: assert model.experts.where[key] == slot
        held = model.experts.where[model.experts.where >= 0]
        assert len(held) == sum((b.owner >= 0).sum() for b in model.experts.banks)

def test_budgets(mixture):
    mf = ModelFile(mixture); cfg = load_config(mf)
    with pytest.raises(ValueError, match="needs at least"): Store(mf, cfg, fixed_bytes(mf, cfg))
    for part in (0, .3, .7, 1):
        ram = budget_for(mf, cfg, part)
        store = Store(mf, cfg, ram)
        assert store.bytes() <= ram and store.complete == (part == 1)
        if part < 1: assert store.bytes() + max(b.nbytes for b in store.banks) >= ram - sum(b.nbytes for b in store.banks)
    with pytest.raises(ValueError, match="alone"): slots_for(make_banks(mf, cfg), 10)

def test_what_is_allocated_stays_below_the_cap():
    script = ("import sys; from alphabook.engine import Engine; ram = int(sys.argv[1]) or None\n"
              "e = Engine.load(None, device='cpu', n_ctx=256, ram=ram, drafter='none'); e.generate('x', n=2)\n"
              "s = getattr(e.model, 'experts', None)\n"
              "print(sum(a.nbytes for b in s.banks for a in b.arenas) if s else 0, s.bytes() if s else 0)")
    def arena(ram): return [int(x) for x in subprocess.run([sys.executable, "-c", script, str(ram)], cwd=ROOT, check=True,
                                                           capture_output=True, text=True, timeout=120).stdout.split()]
    small, large = arena(32_000_000), arena(100_000_000)
    assert small[0] < large[0] and small[1] <= 32_000_000 and large[1] <= 100_000_000

def test_keys_and_values_take_slots_and_give_them_back(mixture):
    mf = ModelFile(mixture); cfg = load_config(mf)
    store = Store(mf, cfg, budget_for(mf, cfg, 0.6))
    model, before = Model(mf, cfg, cpu_backend, experts=store), sum(b.slots for b in store.banks)
    cache = model.new_cache(64)
    assert sum(b.slots for b in store.banks) < before and store.bytes() <= store.ram
    prefill(model, cache, IDS[:5])
    with pytest.raises(ValueError, match="needs at least"): model.new_cache(1 << 20)
    del cache
    store.before()
    assert sum(b.slots for b in store.banks) == before

def test_the_hottest_are_read_first(tmp_path, mixture):
    path = shutil.copy(mixture, tmp_path/"m.gguf")
    mf = ModelFile(path); cfg = load_config(mf)
    n_layer = max(expert_tensors(mf, cfg)) + 1
    counts = np.random.default_rng(1).permutation(n_layer*cfg.n_expert).reshape(n_layer, -1)
    write_ranking(tmp_path/"m.strp", counts, 100)
    store = opened(path, 0.4, 0).experts
    slots = sum(b.slots for b in store.banks)
    held = np.flatnonzero(store.where >= 0)
    if len(store.banks) == 1: assert set(held) == set(np.argsort(-counts.reshape(-1))[:slots])
    assert len(held) == slots and store.loaded["experts"] == slots and store.loaded["seconds"] > 0

def test_a_prompt_keeps_what_the_answer_lives_on(mixture):
    model = opened(mixture, 0.8, 0, ahead=False)
    cache, store = model.new_cache(200), model.experts
    prefill(model, cache, IDS[:10])
    for i in range(20): run_round(model, cache, [IDS[3]]); cache.commit(cache.n + 1)
    warm, score = store.uses.warm.copy(), store.uses.heat().copy()
    assert 5 < warm.max() < 20                                # uses add up, the older ones less
    kept = set(np.flatnonzero(store.where >= 0)[np.argsort(-score[store.where >= 0])][:sum(b.slots - b.n_expert for b in store.banks)])
    prefill(model, cache, np.random.default_rng(5).integers(0, 250, 100).tolist())
    assert (store.uses.warm == warm).all()                    # its requests are no uses
    hot = [k for k in kept if score[k] > 0]
    assert hot and all(store.where[k] >= 0 for k in hot)

# Faults.

def broken(model, preadv):
    "Put another disk under a store, and forget what is in memory."
    for source in model.experts.sources.values(): source.preadv = preadv
    return model

def test_a_disk_that_gives_a_third_at_a_time(mixture):
    want = plainly(mixture)
    for direct in (True, False):
        model = broken(opened(mixture, direct=direct, fill=False), lambda *args: -(-os.preadv(*args)//3))
        assert logits(model) == want

@pytest.mark.parametrize("ahead", [True, False])
def test_a_disk_that_fails(mixture, ahead):
    model, n = opened(mixture, fill=False, ahead=ahead), [0]
    def failing(*args):
        n[0] += 1
        if n[0] > 9: raise OSError(5, "Input/output error")
        return os.preadv(*args)
    broken(model, failing)
    with pytest.raises(ReadError, match="gguf: .* bytes at .*Input/output error"): logits(model)
    broken(model, os.preadv)                                  # and is repaired
    assert logits(model) == plainly(mixture)

def test_a_disk_that_ends_too_early(mixture):
    model = broken(opened(mixture, fill=False), lambda fd, buffers, at: 0)
    with pytest.raises(ReadError, match="only 0 came"): logits(model)

def test_workers_that_die(mixture):
    said, want = [], plainly(mixture)
    model = opened(mixture, fill=False, say=said.append)
    real, n = model.experts.read_lump, [0]
    def dying(*args):
        import threading
        n[0] += 1
        if threading.current_thread().name.startswith("ThreadPool") and n[0] % 2: raise MemoryError("killed")
        return real(*args)
    model.experts.read_lump = dying
    assert logits(model) == want and any("a reader failed" in line for line in said)
    model.experts.pool.shutdown()                             # and then there are none
    assert logits(model) == want

def test_a_worker_that_hangs(mixture):
    said, want = [], plainly(mixture)
    model = opened(mixture, fill=False, ahead=False, say=said.append, patience=0.05, spare=800_000)
    real, hung = model.experts.read_lump, []
    def hanging(*args):
        if not hung:
            hung.append(args)
            time.sleep(0.5)
            for role in range(3):
                for slot in args[3]: model.experts.bank_of[args[0]].piece(role, slot)[:] = 77     # comes late, and wrong
            return
        return real(*args)
    model.experts.read_lump = hanging
    first = logits(model)
    time.sleep(0.6)
    assert first == want == logits(model) and any("does the disk hang" in line for line in said)

def test_a_cap_that_is_lowered_and_raised_while_running(mixture):
    model, want = opened(mixture, 1.0), plainly(mixture)
    mf, cfg = model.experts.mf, model.cfg
    assert logits(model) == want
    for part in (0.5, 0.0, 0.8, 1.0):
        model.experts.set_ram(budget_for(mf, cfg, part))
        assert model.experts.bytes() <= model.experts.ram
        assert logits(model) == want, part
    slots = [b.slots for b in model.experts.banks]
    with pytest.raises(ValueError, match="needs at least"): model.experts.set_ram(1000)
    assert [b.slots for b in model.experts.banks] == slots and logits(model) == want

def test_a_file_that_is_cut_while_in_use(tmp_path, mixture):
    path = shutil.copy(mixture, tmp_path/"cut.gguf")
    model = opened(path, fill=False)
    cache = model.new_cache(64)
    prefill(model, cache, IDS[:5])
    os.truncate(path, os.path.getsize(path)//2)
    with pytest.raises(ReadError, match="cut.gguf: .* was cut while in use"): run_round(model, cache, [1])

def test_pieces_equal_the_file(tmp_path):
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 5*BLOCK + 77, np.uint8)
    (tmp_path/"x").write_bytes(data.tobytes())
    buffer = page_memory(8*BLOCK)
    for direct in (True, False):
        source = Source(tmp_path/"x", direct)
        for _ in range(100):
            a, b = sorted(rng.integers(0, len(data) + 1, 2).tolist())
            assert (source.read(a, b - a, buffer) == data[a:b]).all()

# The command line.

def test_generate_with_little_ram(capsys, monkeypatch, tmp_path):
    from alphabook.cli import main
    def command(*args):
        code = main(["generate", "-p", "def f(x):", "-n", "12", "--json", "--hash", "--ctx", "256", *args])
        return code, *capsys.readouterr()
    runs = [command("--drafter", "none"), command("--ram", "32MB", "--drafter", "copy"), command("--ram", "1GB", "--drafter", "mtp")]
    assert [code for code, *_ in runs] == [0, 0, 0]
    assert len({json.loads(out)["logits_sha256"] for _, out, _ in runs}) == 1
    assert "the others on disk" in runs[1][2] and "all experts are in memory" in runs[2][2]
    code, out, err = command("--ram", "5MB")
    assert code == 2 and not out and err.count("\n") == 1 and "needs at least" in err

def test_a_dense_model_says_what_it_needs(tiny_model):
    with pytest.raises(ValueError, match="only mixtures can do with less"): Engine.load(tiny_model("llama"), device="cpu", ram=1000)
    Engine.load(tiny_model("llama"), device="cpu", ram=1 << 30)
