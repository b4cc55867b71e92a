"""The architecture of four streams against Hugging Face's, and its rounds against themselves."""
import sys
from dataclasses import replace

import numpy as np
import pytest

from alphabook import cpu_streams, streams
from alphabook.config import load_config
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.rounds import prefill, run_round
from conftest import ROOT

GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import streams_model

TEXTS = streams_model.texts()

@pytest.fixture(scope="module")
def golden(): return np.load(GOLDEN / "streams.npz")

@pytest.fixture(scope="module")
def mf(tmp_path_factory):
    path = tmp_path_factory.mktemp("streams") / "model.gguf"
    streams_model.write(path)
    with ModelFile(path) as mf: yield mf

@pytest.fixture(scope="module")
def model(mf): return Model(mf, load_config(mf), cpu_streams)

def least_cosine(got, want):
    "The smallest cosine between rows of logits."
    return ((got * want).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(want, axis=-1)).min()

@pytest.mark.parametrize("text", TEXTS)
def test_the_reference_equals_hugging_face(mf, golden, text):
    Reference = pytest.importorskip("alphabook.reference").Reference
    rows, want = golden[f"{text}.rows"], golden[f"{text}.logits"]
    got = Reference(mf, keep=True).logits(TEXTS[text])[rows]
    assert least_cosine(got, want) > 0.999999 and np.abs(got - want).max() < 1e-4

def test_the_mtp_block_equals_one_of_hugging_faces_parts(mf, golden):
    Reference = pytest.importorskip("alphabook.reference").Reference
    got, want = Reference(mf, keep=True).mtp_logits(TEXTS["long"])[golden["mtp.rows"]], golden["mtp.logits"]
    assert least_cosine(got, want) > 0.999999 and np.abs(got - want).max() < 1e-4

@pytest.mark.parametrize("text", TEXTS)
def test_rounds_equal_hugging_face(model, golden, text):
    "Keys and values are float16 in rounds."
    rows, want = golden[f"{text}.rows"], golden[f"{text}.logits"]
    got = run_round(model, model.new_cache(160), TEXTS[text])[rows]
    assert least_cosine(got, want) > 0.9999, least_cosine(got, want)

def test_the_recorded_texts_choose_and_never_between_equals(mf):
    "Most rows leave blocks out. None has to choose between equal scores, whose order torch's topk leaves open."
    torch = pytest.importorskip("torch")
    from alphabook import reference_streams as rs
    from alphabook.reference_layers import Weights, embed, rope_angles
    cfg, w = load_config(mf), Weights(mf.tensors, keep={})
    for name, ids in TEXTS.items():
        ids, angles = torch.tensor(ids), {False: rope_angles(torch.arange(len(ids)), cfg.rope_dim, cfg.rope_theta)}
        x = rs.open_streams(embed(ids, w, cfg), w, cfg)
        for i in range(3): x = rs.stream_block(x, w.layer(i), cfg, i, ids, angles)
        scores = rs.block_scores(rs.read_streams(x, w.layer(3), "hc_attn", cfg)[0], w.layer(3), cfg, angles[False])
        best = [row[:(t + 1) // 4].sort(descending=True).values for t, row in enumerate(scores)]
        margins = [(b[3] - b[4]).item() for b in best if len(b) > 4]
        assert len(margins) == max(0, len(ids) - 19) and min(margins, default=1) > 1e-3

def reading(model, ids, cuts, rng):
    "Logits of all rows; a cut is (rows, accepted): what is beyond the accepted is nonsense."
    cache, out = model.new_cache(190), []
    for width, accepted in cuts:
        n = cache.n
        rows = [*ids[n:n + accepted], *rng.integers(0, 256, width - accepted)]
        out.append(run_round(model, cache, rows)[:accepted])
        cache.commit(n + accepted)
    return np.concatenate(out), cache

def random_cuts(n, rng):
    "Rounds of up to 20 rows, some rejected in part or whole, that read n rows together."
    cuts = []
    while n:
        accepted = int(min(n, rng.choice([0, 1, 1, 2, 3, 5, 8, 17])))
        cuts.append((max(1, accepted + int(rng.choice([0, 0, 1, 3, 9]))), accepted))
        n -= accepted
    return cuts

def test_rows_have_the_same_bits_however_they_are_cut(mf, model):
    ids, rng = TEXTS["long"], np.random.default_rng(3)
    whole = run_round(model, model.new_cache(160), ids)
    assert np.isfinite(whole).all()
    for cuts in ([(1, 1)] * 150, [(64, 64), (64, 64), (22, 22)], *(random_cuts(150, rng) for _ in range(4))):
        assert reading(model, ids, cuts, rng)[0].tobytes() == whole.tobytes(), cuts
    spec = Model(mf, model.cfg, streams)
    got = reading(spec, ids[:40], [(18, 18), (7, 2), (20, 20)], rng)[0]
    assert got.tobytes() == whole[:40].tobytes()

def test_blocks_of_rejected_rows_are_forgotten(model):
    "A wide round beyond the budget makes keys of wrong rows; narrow rounds below it use no keys; then they are needed."
    ids, rng = TEXTS["long"], np.random.default_rng(4)
    whole = run_round(model, model.new_cache(160), ids[:24])
    got = reading(model, ids[:24], [(12, 12), (9, 1), (1, 1), (1, 1), (1, 1), (8, 8)], rng)[0]
    assert got.tobytes() == whole.tobytes()

def test_going_back_and_putting_aside(model):
    "Snapshots, restores and rollbacks forget the keys of blocks with their rows."
    ids, other, rng = TEXTS["long"], TEXTS["ends"], np.random.default_rng(5)
    whole = run_round(model, model.new_cache(160), ids)
    _, cache = reading(model, ids[:70], [(8, 8), (31, 31), (31, 31)], rng)
    snap = cache.snapshot()
    assert cache.rollback(0) == 0
    prefill(model, cache, other, 16)
    assert cache.derived
    cache.restore(snap)
    assert run_round(model, cache, ids[70:90]).tobytes() == whole[70:90].tobytes()

    mixed = ids[:8] + other[:40]                            # back to where attention was dense, and on with another text
    whole = run_round(model, model.new_cache(160), mixed)
    cache = model.new_cache(160)
    prefill(model, cache, ids[:8])
    for i in range(8, 32): run_round(model, cache, ids[i:i + 1]); cache.commit(i + 1)
    assert cache.rollback(10) == 8
    for i in range(8, 48):
        assert run_round(model, cache, mixed[i:i + 1]).tobytes() == whole[i:i + 1].tobytes(), i
        cache.commit(i + 1)

def test_a_budget_for_all_is_dense_attention(mf, model):
    ids = TEXTS["long"]
    dense = Model(mf, replace(model.cfg, index_budget=4096), cpu_streams)
    few, many = (run_round(m, m.new_cache(160), ids) for m in (model, dense))
    assert few[:19].tobytes() == many[:19].tobytes() and (few[19:] != many[19:]).any(1).all()

def test_the_phrase_table_stays_in_the_file(mf, model):
    for m in (model, Model(mf, model.cfg, streams)):
        table = m.whole.per_layer_token_embd
        assert np.shares_memory(table.data, mf.tensors["per_layer_token_embd.weight"].data)
        assert not any(isinstance(v, np.ndarray) and v is not table.data for v in vars(table).values())

def test_spec_and_reference_agree_on_each_operation():
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace
    from alphabook import reference_streams as rs
    from alphabook.reference_layers import rope_angles
    rng = np.random.default_rng(6)
    draw = lambda *s: rng.normal(size=s).astype(np.float32)
    x, y, norm = draw(5, 4, 24), draw(5, 24), draw(96)
    w = {"a_norm.weight": norm, "a_down.weight": draw(6, 96), "a_up.weight": draw(96, 6),
         "a_inject.weight": draw(4, 96), "indexer.q_proj.weight": draw(48, 24), "indexer.k_proj.weight": draw(16, 24),
         "indexer.q_norm.weight": draw(16), "indexer.k_norm.weight": draw(16)}
    t = {k: torch.from_numpy(v) for k, v in w.items()}
    cfg = SimpleNamespace(streams=4, eps=1e-6, index_heads=3, index_dim=16, index_block=4, rope_style="neox")
    matrix = lambda name: streams.load_matrix(w[f"{name}.weight"].view(np.uint8), "F32")
    blend, normed = streams.read_streams(x, norm, matrix("a_down"), matrix("a_up"), 1e-6)
    want, want_normed = rs.read_streams(torch.from_numpy(x), t, "a", cfg)
    np.testing.assert_allclose(blend, want, atol=1e-5)
    written = streams.write_streams(x, y, normed, matrix("a_inject"))
    want = rs.write_streams(torch.from_numpy(x), torch.from_numpy(y), want_normed, t, "a")
    np.testing.assert_allclose(written, want, atol=1e-5)

    h = draw(23, 24)
    angles = rope_angles(torch.arange(23), 8, 1e4)
    scores = rs.block_scores(torch.from_numpy(h), t, cfg, angles).numpy()
    cos, sin = angles.cos().float().numpy(), angles.sin().float().numpy()
    q = streams.matmul(matrix("indexer.q_proj"), h).reshape(23, 3, 16)
    q = streams.rms_norm(q, w["indexer.q_norm.weight"], 1e-6)
    keys = streams.block_keys(streams.matmul(matrix("indexer.k_proj"), h), 5, w["indexer.k_norm.weight"], 1e-6,
                              (cos[:20:4], sin[:20:4]), 4, "neox")
    mine = streams.block_scores(streams.apply_rope(q, cos, sin, "neox"), keys)
    np.testing.assert_allclose(mine / 4, scores, atol=2e-5)                       # the reference divides by sqrt(16)
    few = np.round(scores)                                                       # many ties
    for backend in (streams, cpu_streams):
        chosen = backend.choose_blocks(few, range(23), 4, 8).repeat(4, 1)[:, :23] & np.tri(23, dtype=bool)
        np.testing.assert_array_equal(chosen, rs.choose_blocks(torch.from_numpy(few), 4, 8).numpy())
    want = rs.fit(torch.from_numpy(x), torch.from_numpy(written))
    np.testing.assert_allclose(streams.fit(x, written), want, atol=1e-6)

def test_phrases_of_spec_cpu_and_reference_are_the_same():
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace
    from alphabook import reference_streams as rs
    ids = np.random.default_rng(7).integers(0, 4, 500)*83000
    cfg = SimpleNamespace(ple_ngram=4, ple_heads=6, ple_multipliers=(2**45 + 1, 2**46 + 3, 2**44 + 5, 2**46 + 7),
                          ple_sizes=(20_000_003, 11, 20_000_023, 1, 977, 13), ple_offsets=(0, 1, 2, 3, 4, 5))
    grams = rs.ngrams(torch.from_numpy(ids), 4, 0)
    want = rs.hash_rows(grams, cfg)
    for backend in (streams, cpu_streams):
        got = backend.ngrams(ids, 500, 4, 0)
        np.testing.assert_array_equal(got, grams.numpy())
        np.testing.assert_array_equal(backend.hash_rows(got, cfg.ple_multipliers, cfg.ple_sizes, cfg.ple_offsets), want)
