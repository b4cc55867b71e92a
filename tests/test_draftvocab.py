"""The draft vocabulary: scripts against Python's own table, chosen rows against the whole head, coverage as it was recorded."""
import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import alphabook.cpu_streams as cpu_backend
import alphabook.streams as numpy_backend
from alphabook.blocks import random_blocks
from alphabook.draftvocab import (
    ALWAYS, BIT, SCRIPTS, DraftHead, DraftVocabulary, choose_ids, cut_head, draft_ids, load_cut_head, scripts_of,
    token_scripts, write_cut_head)
from alphabook.fetch import bundled_model
from alphabook.modelfile import ModelFile, write_gguf
from alphabook.tokenizer import Tokenizer
from conftest import ROOT

NAMES = {name: {name.upper()} for name in SCRIPTS if name != "other"} | dict(         # first words of letters' names
    marked={"LATIN"}, vietnamese={"LATIN"}, greek={"GREEK", "COPTIC"}, han={"CJK"},
    kana={"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH"})

@pytest.fixture(scope="module")
def tokenizer():
    with ModelFile(bundled_model()) as mf: return Tokenizer.from_meta(mf.meta)

def test_letters_have_the_script_that_their_name_says():
    script_of, seen = {bit: name for name, bit in BIT.items()}, set()
    for c in map(chr, range(0x30000)):
        if unicodedata.category(c) not in ("Ll", "Lu", "Lo"): continue
        first, bits = unicodedata.name(c, "").split(" ")[0], scripts_of(c)
        script = script_of.get(bits)
        if script in NAMES: assert first in NAMES[script], (hex(ord(c)), first, script)
        if first in ("CYRILLIC", "HIRAGANA", "THAI", "HANGUL", "HEBREW") and ord(c) < 0x1c00: assert script, hex(ord(c))
        seen.add(script)
    assert seen >= set(NAMES)

def test_no_script_is_without_a_bit():
    assert len(set(BIT.values())) == len(SCRIPTS) and ALWAYS not in BIT.values()
    assert scripts_of("\ud800") == 0                          # a lone surrogate is no reason to stop

@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**17 - 1), st.integers(0, 400), st.integers(0, 9))
def test_a_choice_has_its_size_and_its_order(n, wanted, size, seed):
    rng = np.random.default_rng(seed)
    scripts = np.where(rng.random(n) < .1, ALWAYS, 1 << rng.integers(0, 17, n)).astype(np.uint32)
    ids = choose_ids(scripts, wanted, size)
    assert len(ids) == min(size, n) and (np.diff(ids) > 0).all()
    own = rng.integers(0, n, size//3)
    assert np.isin(own, choose_ids(scripts, wanted, size, own)).all()
    always = np.flatnonzero(scripts & ALWAYS)
    assert np.isin(always, ids).all() or np.isin(ids, always).all()
    if len(always) + size//2 <= size: assert np.isin(np.flatnonzero(scripts & wanted)[:size//2], ids).all()
    assert np.isin(np.arange(n)[:max(0, size - len(always) - size//2)], ids).all()      # half the places are the first ids'

def test_every_script_of_a_prompt_costs_the_same(tokenizer):
    vocabulary = DraftVocabulary(tokenizer, 5000)
    sizes = {len(vocabulary.for_text(text)) for text in ("", "hello", "привет", "你好", "안녕하세요", "مرحبا и ещё")}
    assert sizes == {5000}
    with pytest.raises(ValueError, match="at least 1"): DraftVocabulary(tokenizer, 0)

def test_special_tokens_and_pieces_of_characters_are_always_in(tokenizer):
    scripts = token_scripts(tokenizer)
    assert all(scripts[i] & ALWAYS for i in tokenizer.eog_ids)
    for i in tokenizer.encode("🤿𓂀"): assert scripts[i] & ALWAYS or tokenizer.token_bytes(i).decode()

class Toy:
    "A model that is a head."
    def __init__(self, ops, type, n=77, k=512):
        self.ops = ops
        data = random_blocks(type, n, k, np.random.default_rng(1)) if type not in ("F32", "F16") else \
            np.random.default_rng(1).standard_normal((n, k)).astype(dict(F32="<f4", F16="<f2")[type]).view(np.uint8)
        self.head = ops.load_matrix(data, type)

@pytest.mark.parametrize("ops", [numpy_backend, cpu_backend])
@pytest.mark.parametrize("kind", ["Q6_K", "Q4_0", "F16", "F32"])
def test_chosen_rows_are_the_heads_rows(ops, kind):
    model, rng = Toy(ops, kind), np.random.default_rng(2)
    x = rng.standard_normal((2, 512)).astype(np.float32)
    whole, head = ops.matmul(model.head, x), DraftHead(model, 21)
    place = getattr(head.matrix, "packed", np.zeros(0)).ctypes.data
    for _ in range(3):
        ids = np.sort(rng.choice(77, 21, replace=False))
        assert (ops.matmul(cut_head(model, ids), x) == whole[:, ids]).all()
        head.use(ids)
        assert (ops.matmul(head.matrix, x) == whole[:, ids]).all() and (head.ids == ids).all()
    assert getattr(head.matrix, "packed", np.zeros(0)).ctypes.data == place or not place
    with pytest.raises(ValueError, match="20 rows for a head of 21"): head.use(range(20))

def test_a_recording_reads_the_rows_that_are_there_now():
    model, rng = Toy(cpu_backend, "Q6_K"), np.random.default_rng(3)
    head, x = DraftHead(model, 32), rng.standard_normal((1, 512)).astype(np.float32)
    with cpu_backend.recording() as tape: y = cpu_backend.matmul(head.matrix, x)
    whole = cpu_backend.matmul(model.head, x)
    for _ in range(3):
        head.use(ids := rng.choice(77, 32, replace=False))
        tape.play()
        assert (y == whole[:, ids]).all()

def test_a_head_from_another_file(tmp_path):
    class Bundled:
        ops, cfg = numpy_backend, type("cfg", (), dict(n_vocab=16384, n_embd=256))
    with ModelFile(bundled_model()) as mf:
        write_cut_head(tmp_path/"head.gguf", mf, [7, 3, 16383])
        assert load_cut_head(mf, Bundled) == (None, None)
        with ModelFile(tmp_path/"head.gguf") as side:
            matrix, ids = load_cut_head(side, Bundled)
            x = np.ones((1, 256), np.float32)
            rows = mf.tensors["token_embd.weight"]
            assert ids.tolist() == [7, 3, 16383]
            assert (numpy_backend.matmul(matrix, x) ==
                    numpy_backend.matmul(numpy_backend.load_matrix(rows.data[ids], rows.type.name), x)).all()

@pytest.mark.parametrize("kind, d2t, found", [
    ("I64", [4, 0, 9], [4, 0, 9]), ("I32", [4, 0, 9], [4, 0, 9]), ("I64", [0, 0, 7], [0, 1, 9]), ("I64", [5, 5, 5], [5, 6, 7]),
    ("I64", [4, 0, 10], "below 10"), ("I64", [-1, 0, 1], "below 10"), ("I64", [3, 3, 8], "below 10"), ("F32", [0, 1, 2], "F32"),
    ("I64", [1, 1, 0], "different")])
def test_maps_of_ids_and_of_distances(tmp_path, kind, d2t, found):
    data = np.asarray(d2t, dict(I64="<i8", I32="<i4", F32="<f4")[kind]).tobytes()
    write_gguf(tmp_path/"map.gguf", {"general.architecture": "llama"}, [("d2t", (len(d2t),), kind, data)])
    with ModelFile(tmp_path/"map.gguf") as side:
        if isinstance(found, list): assert draft_ids(side, 10).tolist() == found
        else:
            with pytest.raises(ValueError, match=found): draft_ids(side, 10)

def test_recorded_coverage():
    "With half the ids, what a prompt's script needs is there, in every vocabulary; the first ids lack a third of it or more."
    run = json.loads(sorted((ROOT/"data/results/cpu").glob("draft-vocabulary-*.json"))[-1].read_text(encoding="utf-8"))
    values = {(r["model"], r["language"], r["size"], r["arm"]): r["value"] for r in run["rows"]}
    for model in {k[0] for k in values}:
        size = max(k[2] for k in values if k[0] == model)
        for language in ("russian", "arabic", "korean", "japanese", "chinese", "thai"):
            assert values[model, language, size, "by script"] > .99
            if model in ("qwen2", "llama-bpe"): assert values[model, language, size, "first ids"] < .67
        assert values[model, "english", size, "by script"] >= values[model, "english", size, "first ids"] - .01
