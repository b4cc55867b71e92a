"""Prices on disk: measured once, behind the first token, read by the next process, and never trusted blindly."""
import json

import pytest

import alphabook.engine as engine_module
from alphabook.engine import Engine
from conftest import ROOT

PROMPT = "def add(a, b):\n    return a + b\n\n\ndef add(a, b):\n"
TIMES = []


@pytest.fixture
def opened(tmp_path, monkeypatch):
    "A function that opens the bundled model as another process would; TIMES counts measurements."
    monkeypatch.setenv("ALPHABOOK_CACHE", str(tmp_path))
    TIMES.clear()
    measure = engine_module.measure_rounds
    def counted(*args, **options):
        TIMES.append(1)
        return measure(*args, budget=0, **options)
    monkeypatch.setattr(engine_module, "measure_rounds", counted)
    return lambda: Engine.load(ROOT/"data/models/alphabook-mini.gguf", "cpu", n_ctx=256)


def files(tmp_path): return sorted((tmp_path/"prices").glob("*"))


def test_the_next_process_reads_what_the_first_one_measured(opened, tmp_path):
    first = opened()
    plain = first.generate(PROMPT, 24, drafter="none", hash_logits=True)
    assert not TIMES and not (tmp_path/"prices").exists()               # who doesn't draft doesn't measure
    tokens = first.stream(PROMPT, 24)
    next(tokens)
    assert not TIMES                                                     # nobody waits for the first token
    next(tokens)
    assert len(TIMES) == 1
    tokens.close()
    again = first.generate(PROMPT, 24, hash_logits=True)
    assert (again.token_ids, again.logits_sha256) == (plain.token_ids, plain.logits_sha256) and len(TIMES) == 1
    (path,) = files(tmp_path)
    second = opened().generate(PROMPT, 24, hash_logits=True)
    assert (second.token_ids, second.logits_sha256) == (plain.token_ids, plain.logits_sha256)
    assert len(TIMES) == 1 and files(tmp_path) == [path]
    for damage in (b"", path.read_bytes()[:70], b"\xff\x00", json.dumps(dict(seconds=[-1.0]*64, guess=0)).encode()):
        path.write_bytes(damage)
        times = len(TIMES)
        g = opened().generate(PROMPT, 8)
        assert g.token_ids == plain.token_ids[:8] and len(TIMES) == times + 1
        assert len(json.loads(path.read_text())["seconds"]) == 64                 # whole again


def test_a_measurement_in_the_middle_leaves_no_trace(opened):
    "The first round with drafts measures on the very cache that holds the text."
    one = opened()
    session = one.session(256)
    g = one.generate(PROMPT, 40, session=session, hash_logits=True)
    plain = one.generate(PROMPT, 40, drafter="none", hash_logits=True)
    assert (g.token_ids, g.logits_sha256) == (plain.token_ids, plain.logits_sha256)
    assert session.ids == one.tokenizer.encode(PROMPT) + plain.token_ids[:-1] and len(TIMES) == 1


def test_without_a_place_they_are_measured_and_not_kept(opened, tmp_path, monkeypatch):
    (tmp_path/"file").write_text("")
    monkeypatch.setenv("ALPHABOOK_CACHE", str(tmp_path/"file"/"below"))
    assert opened().generate(PROMPT, 8).predicted_n == 8 and len(TIMES) == 1
