"""Drafters inside a GPU's rounds, in Triton's interpreter: the CPU's ids and logits, whatever is drafted.

On a GPU the same was compared with tests/golden/gpu_drafts.json, on the bundled model and four small ones, by data/trials/gpu_drafts.py.
"""
import json

import numpy as np
import pytest

from conftest import ROOT

pytest.importorskip("triton", reason="triton is not installed (there is none for this system)")
torch = pytest.importorskip("torch")

import alphabook.engine
from alphabook import gpu_mtp, gpu_verdicts
from alphabook.engine import Engine, Session
from alphabook.policy import Alone, Prices
from alphabook.synth import synth

PROMPT, N = [5, 6, 7, 5, 6], 6
CIRCLE = [22, 6, 24, 22, 6, 132, 59, 285, 46, 290, 137, 71, 290]         # these weights go on with 137, 71, 290, 137, …
RULES = {"greedy": {}, "drawn": dict(temp=.9, top_k=40, seed=3)}
SMALL = dict(n_layers=1, n_embd=32, n_ff=32, gdn_k=1, gdn_v=1, gdn_dim=8, n_head=1, n_kv_head=1, head_dim=16, mtp=1)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    "A recurrent layer and a block that drafts, on the CPU and on a GPU's stand-in; what the CPU says."
    path = synth("tiny-qwen35", "F16", tmp_path_factory.mktemp("drafts")/"tiny.gguf", **SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alphabook.engine, "pick_backend", lambda device: device)
        cpu, gpu = (Engine.load(path, device, n_ctx=64) for device in ("cpu", "cuda"))
    want = {rule: cpu.generate(PROMPT, n=N, drafter="none", hash_logits=True, **how) for rule, how in RULES.items()}
    assert all(g.predicted_n == N for g in want.values())
    want["circle"] = cpu.generate(CIRCLE, n=11, drafter="none")
    return gpu, want


class Scripted:
    "The text's next tokens, one of them wrong; every second time none."
    name = "scripted"
    def __init__(self, text, wrong): self.text, self.wrong, self.calls = text, wrong, 0
    def draft(self, ids, n):
        self.calls += 1
        d = self.text[len(ids):len(ids) + min(n, 3)] if self.calls % 2 else []
        return [(t + 1) % 300 if i == self.wrong else t for i, t in enumerate(d)], [1.0]*len(d)
    def committed(self, ids, hidden=None, prompt=False): pass
    def rollback(self, n): pass


@pytest.mark.parametrize("wrong, rule", [(None, "drawn"), (0, "greedy"), (1, "drawn"), (2, "greedy")])
def test_the_device_judges_drafts_and_a_round_without_follows(engines, wrong, rule):
    "vLLM 39273, 40875, on a device: right drafts, a wrong one at each place, then a round without any."
    gpu, want = engines
    session = Session(gpu, 64, drafter="none")
    session.policy = Alone(Scripted([*PROMPT, *want[rule].token_ids], wrong))
    g = gpu.generate(PROMPT, n=N, session=session, **RULES[rule])
    assert g.token_ids == want[rule].token_ids and session.ids == [*PROMPT, *g.token_ids[:-1]]
    right = 3 if wrong is None else wrong
    assert g.accepted >= right and g.rounds == N - 1 - g.accepted and g.drafted > 0
    assert sum(1 for n in g.by_drafter["scripted"]["accepted_per_position"] if n) == right


def telling(patch, text, wrong=()):
    "Let the block guess a text that is known, with other tokens at some positions; it is asked nevertheless."
    sound = gpu_mtp.take_guess
    def take(d, logits, anchor, j):
        sound(d, logits, anchor, j)
        at = int(anchor) + 1 + j
        id = (text[at] + (at in wrong)) % 300 if 0 < at < len(text) else 0
        d.guesses[0, j], d.guesses[1, j] = id, int(np.float32(0.875).view(np.int32))
        d.one.ids[0] = id
    patch.setattr(gpu_mtp, "take_guess", take)


def test_rounds_that_draft_for_themselves(engines, monkeypatch):
    "Two guesses a round, that of position 7 wrong: two rounds say two and three tokens before the host looks."
    gpu, want = engines
    monkeypatch.setattr(gpu_mtp, "TURNS", 2)
    text, sound, pairs = [*PROMPT, *want["drawn"].token_ids], gpu_mtp.read_pairs, {}
    telling(monkeypatch, text, (7,))
    def read(s, P):
        pairs.update(z for z in zip(*s.drafts.round(P).entry.flip(0).tolist()) if z[0] >= 0)
        return sound(s, P)
    monkeypatch.setattr(gpu_mtp, "read_pairs", read)
    session = gpu.session(64, drafter="mtp")
    drafter, session.policy.drafter.depth = session.policy.drafter, 2
    g = gpu.generate(PROMPT, n=N, session=session, **RULES["drawn"])
    assert g.token_ids == want["drawn"].token_ids and session.ids == [*PROMPT, *g.token_ids[:-1]]
    assert drafter.known == drafter.n == session.cache.n == len(PROMPT) + N - 1
    assert pairs == {at: text[at + 1] for at in range(drafter.n)}         # the block has read the text, each token once
    assert (g.rounds, g.accepted) == (2, 3) and g.drafters == ["", "mtp", "", "mtp", "mtp", ""]


@pytest.mark.parametrize("drafter", ["mtp", "copy", "auto"])
def test_logits_are_the_cpus(engines, monkeypatch, drafter):
    "Rounds whose logits somebody wants to see are judged by the host; drafts come from the device's block."
    gpu, want = engines
    assert gpu.session(64, drafter="auto").policy.drafter.name == "mtp"   # the block alone, where prices are not a CPU's
    monkeypatch.setattr("alphabook.engine.AUTO_ON", ("cpu", "cuda"))
    gpu.prices = Prices({1: 1e-3, 32: 1.1e-3}, 1e-5)
    telling(monkeypatch, [*PROMPT, *want["greedy"].token_ids], (8,))
    session = gpu.session(64, drafter=drafter)
    if drafter != "copy": (session.policy.drafter if drafter == "mtp" else session.policy.mtp).depth = 1
    g = gpu.generate(PROMPT, n=N, session=session, hash_logits=True)
    assert (g.token_ids, g.logits_sha256, g.finish_reason, g.text) == tuple(
        getattr(want["greedy"], k) for k in ("token_ids", "logits_sha256", "finish_reason", "text"))
    assert g.rounds == N - 1 - g.accepted and (drafter == "copy" or g.accepted > 0)


def test_copies_are_found_on_the_device(engines, monkeypatch):
    "A text that goes round in circles: two rounds of one row, a look, two of four rows; then another text in the same session."
    gpu, want = engines
    monkeypatch.setattr(gpu_mtp, "TURNS", 2)
    session = gpu.session(64, drafter="copy")
    drafter = session.policy.drafter
    drafter.most = 3
    g = gpu.generate(CIRCLE, n=11, session=session)
    assert g.token_ids == want["circle"].token_ids and session.ids == [*CIRCLE, *g.token_ids[:-1]]
    assert (g.rounds, g.drafted, g.accepted) == (4, 6, 6) and g.by_drafter["copy"]["accepted_per_position"] == [2, 2, 2]
    assert drafter.there == drafter.known == session.cache.n == len(CIRCLE) + 10
    session.reuse(PROMPT)
    g = gpu.generate(PROMPT, n=N, session=session, **RULES["drawn"])
    assert g.token_ids == want["drawn"].token_ids and g.accepted == 0


def test_an_end_inside_accepted_drafts(engines, monkeypatch):
    "transformers 47912, on a device: nothing behind the end is said or read."
    gpu, want = engines
    said = want["greedy"].token_ids
    monkeypatch.setattr(gpu.tokenizer, "eog_ids", frozenset({said[2]}))
    session = Session(gpu, 64, drafter="none")
    session.policy = Alone(Scripted([*PROMPT, *said], None))
    g = gpu.generate(PROMPT, n=N, session=session)
    k = said.index(said[2])
    assert g.token_ids == said[:k + 1] and g.finish_reason == "stop" and session.ids == [*PROMPT, *said[:k]]


def test_recorded_texts_are_of_five_models():
    known = json.loads((ROOT/"tests/golden/gpu_drafts.json").read_text())
    assert {k.split()[0] for k in known} == {"mini", "tiny-qwen35", "tiny-qwen35moe", "tiny-qwen3next", "tiny-qwen4exp"}
    assert len(known) == 3*(3 + 4*2)
