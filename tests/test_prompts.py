"""The prompt sets: what every figure about speculation is measured on."""
import re
import unicodedata
from collections import Counter
from difflib import SequenceMatcher

import pytest

from alphabook.corpus import fingerprint
from alphabook.fetch import bundled_model
from alphabook.modelfile import ModelFile
from alphabook.prompts import SETS, load_prompts, prompts_folder, read_prompts
from alphabook.tokenizer import Tokenizer
from conftest import ROOT

PROMPTS = load_prompts()

def test_sizes_ids_and_splits():
    assert len({p.id for p in PROMPTS}) == len(PROMPTS)
    for s in SETS:
        mine = [p for p in PROMPTS if p.set == s]
        assert len(mine) >= 24 and all(p.id.startswith(f"{s}-") for p in mine)
        count = Counter(p.split for p in mine)
        assert set(count) == {"train", "test"} and count["train"] >= 8 and count["test"] >= 16
        assert len({p.kind for p in mine if p.split == "train"}) > 2 and len({p.text for p in mine}) == len(mine)

def paragraphs(text: str) -> set:
    "Fingerprints of whatever is long enough to be somebody's; the instruction of an edit is not."
    text = text.split("### Code\n")[-1].split("### Text\n")[-1]
    return {fingerprint(p) for p in re.split(r"\n\s*\n", text) if len(p) >= 40}

def test_no_source_text_is_in_both_splits():
    train, test = (set().union(*(paragraphs(p.text) for p in load_prompts(split=s))) for s in ("train", "test"))
    assert train and test and not train & test

def test_a_paragraph_that_is_in_both_would_be_found():
    p = next(p for p in PROMPTS if p.id == "R-typos-library")
    assert paragraphs(p.text) & paragraphs("### Rewrite\nElse.\n### Text\n" + p.text.split("### Text\n")[1])

def test_edits_repeat_their_input():
    for p in load_prompts("R"):
        old = p.text.split("\n### Code\n")[-1].split("\n### Text\n")[-1].removesuffix("### Result\n")
        assert p.text.startswith("### Rewrite\n") and p.text.endswith("\n### Result\n")
        assert SequenceMatcher(None, old, p.answer, autojunk=False).ratio() > .85, p.id
        assert (old == p.answer) == (p.kind == "copy"), p.id
        assert old in p.messages[0]["content"]

def test_there_is_room_for_the_answer():
    with ModelFile(bundled_model()) as mf: tokenizer = Tokenizer.from_meta(mf.meta)
    for p in PROMPTS:
        assert 32 <= p.n <= 512 and len(tokenizer.encode(p.text)) + p.n < 1024, p.id
        if p.answer: assert len(tokenizer.encode(p.answer)) < p.n, p.id

def test_tasks_come_in_several_scripts():
    scripts = Counter()
    for p in load_prompts("V"):
        scripts.update({unicodedata.name(c).split()[0] for c in p.text if c.isalpha()})
    assert {"LATIN", "CYRILLIC", "CJK", "HIRAGANA", "HANGUL", "ARABIC"} <= set(scripts)
    assert len({p.kind for p in load_prompts("V")}) >= 4

def test_every_prompt_has_a_chat_form():
    for p in PROMPTS: assert p.messages[-1]["role"] == "user" and len(p.messages[-1]["content"]) > 5

def test_they_travel_with_their_licence():
    assert "Apache-2.0" in (prompts_folder()/"LICENSE").read_text(encoding="utf-8")
    assert '"alphabook._prompts" = "data/prompts"' in (ROOT/"pyproject.toml").read_text(encoding="utf-8")

def test_a_bad_line_is_named(tmp_path):
    bad = tmp_path/"bad.jsonl"
    for line in ("{", "[]", '{"id": 1}', "\ufeff{}"):
        bad.write_text('\n' + line, encoding="utf-8")
        with pytest.raises(ValueError, match="bad.jsonl, line 1"): read_prompts(bad)
