"""Speculation: whatever drafts, the ids and the logits are plain decoding's. Each row of public reports is a test."""
import json, subprocess, sys
from types import SimpleNamespace

import numpy as np
import pytest

from alphabook.engine import Engine, Generation, Session
from alphabook.mtp import MtpDrafter
from alphabook.policy import Alone, fitting
from conftest import ROOT

PROMPTS = {
    "code": "def fibonacci(n):", "prose": "The garbage collector", "german": "Der Speicher wird",
    "count": "Count from 1 to 20: 1, 2, 3, 4, 5, 6,", "chinese": "该选项",
    "edit": "### Rewrite\nRename `path` to `name`.\n### Code\ndef read_lines(path):\n    \"\"\"Read a text file and return its "
            "lines.\"\"\"\n    with open(path, encoding='utf-8') as f:\n        return f.read().splitlines()\n### Result\n"}
SAMPLING = {"greedy": {}, "warm": dict(temp=0.8, top_p=0.95, seed=5), "hot": dict(temp=1.2, top_k=50, min_p=0.02, seed=2**40)}


@pytest.fixture(scope="module")
def engine(): return Engine.load(ROOT/"data/models/alphabook-mini.gguf", "cpu")


class Scripted:
    "A drafter that says what a function of the text says."
    name = "scripted"
    def __init__(self, say): self.say, self.told = say, []
    def draft(self, ids, n): d = [int(i) for i in self.say(ids)][:n]; return d, [1.0]*len(d)
    def committed(self, ids, hidden=None, prompt=False): self.told.append(len(ids))
    def rollback(self, n): pass
    def reset(self): pass


def scripted(engine, say, n_ctx=512, keep=4):
    "A session whose drafts are known beforehand."
    session = Session(engine, n_ctx, keep, drafter="none")
    session.policy = Alone(Scripted(say))
    return session


def facts(g): return g.token_ids, g.logits_sha256, g.finish_reason, g.text, g.predicted_n


def prophet(plain_ids, start, wrong=()):
    "Drafts the plain run's tokens, some of them wrong: every position that is a multiple of one in `wrong`."
    def say(ids):
        rest = plain_ids[len(ids) - start:]
        return [(t + 1) % 16384 if any((len(ids) + i) % w == 0 for w in wrong) else t for i, t in enumerate(rest)]
    return say


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_text_and_logits_do_not_depend_on_the_drafter(engine, prompt, sampling):
    plain = engine.generate(PROMPTS[prompt], n=70, drafter="none", hash_logits=True, **SAMPLING[sampling])
    assert plain.rounds == plain.predicted_n - 1 and plain.by_drafter == {} and plain.drafted == plain.accepted == 0
    for drafter in ("mtp", "copy", "auto"):
        g = engine.generate(PROMPTS[prompt], n=70, drafter=drafter, hash_logits=True, **SAMPLING[sampling])
        assert facts(g) == facts(plain), drafter
        assert g.rounds + g.accepted >= g.predicted_n - 1


def test_counters_add_up(engine):
    g = engine.generate(PROMPTS["prose"], n=100, drafter="mtp")
    assert g.finish_reason == "length" and 1 + g.rounds + g.accepted == g.predicted_n == 100
    mtp = g.by_drafter["mtp"]
    assert set(g.by_drafter) == {"mtp"} and mtp["drafted"] == g.drafted >= mtp["accepted"] == g.accepted > 20
    per = mtp["accepted_per_position"]
    assert sum(per) == mtp["accepted"] and per == sorted(per, reverse=True) and len(per) <= 3
    assert per[0] <= mtp["rounds"] <= g.rounds < 80


@pytest.mark.parametrize("drafter", ["mtp", "copy", "auto"])
def test_a_round_without_drafts_follows_one_that_accepted_some(engine, drafter):
    "vLLM 39273, 40875: recurrent state goes stale when a no-draft round follows an accepted one."
    plain = engine.generate(PROMPTS["code"], n=60, drafter="none", hash_logits=True)
    session = engine.session(256, drafter=drafter)
    ask, calls = session.policy.draft, []
    def sometimes(ids, n):
        calls.append(n)
        return ask(ids, n) if len(calls) % 2 else ([], [], drafter)
    session.policy.draft = sometimes
    g = engine.generate(PROMPTS["code"], n=60, session=session, hash_logits=True)
    assert facts(g) == facts(plain) and g.accepted > 0


@pytest.mark.parametrize("wrong", [(), (2,), (3,), (2, 3), (1,), (7,)])
@pytest.mark.parametrize("width", [1, 2, 5, 16, 63])
def test_memories_are_taken_back(engine, wrong, width):
    "mlx-lm 846: counting with drafts on a model whose state can't be trimmed; here with drafts that are known beforehand."
    prompt = engine.tokenizer.encode(PROMPTS["count"])
    plain = engine.generate(prompt, n=50, drafter="none", hash_logits=True)
    say = prophet(plain.token_ids, len(prompt), wrong)
    g = engine.generate(prompt, n=50, session=scripted(engine, lambda ids: say(ids)[:width]), hash_logits=True)
    assert facts(g) == facts(plain)
    if not wrong: assert 49/(fitting(width) + 1) <= g.rounds <= 49/(fitting(width) + 1) + 3
    if wrong == (1,): assert g.accepted == 0 and g.drafted > 0


def ending_at(engine, monkeypatch, id):
    "Let an id end the text."
    monkeypatch.setattr(engine.tokenizer, "eog_ids", frozenset({id}))


@pytest.mark.parametrize("k", range(6))
def test_an_end_token_inside_an_accepted_block(engine, monkeypatch, k):
    "transformers 47912: the output ends at EOS."
    prompt = engine.tokenizer.encode(PROMPTS["code"])
    plain = engine.generate(prompt, n=20, drafter="none")
    end = plain.token_ids[k]
    k = plain.token_ids.index(end)
    ending_at(engine, monkeypatch, end)
    without = engine.generate(prompt, n=20, drafter="none", hash_logits=True)
    session = scripted(engine, prophet(plain.token_ids, len(prompt)))
    g = engine.generate(prompt, n=20, session=session, hash_logits=True)
    assert facts(g) == facts(without) and g.token_ids == plain.token_ids[:k + 1] and g.finish_reason == "stop"
    assert session.ids == [*prompt, *plain.token_ids[:k]]                # what plain decoding would have left


def test_a_stop_inside_a_block_under_a_cap(engine, monkeypatch):
    "sglang 31599: block [10, 11, STOP, 20, 21, 22], cap 5: finish_reason stop, 3 tokens."
    prompt = engine.tokenizer.encode(PROMPTS["prose"])
    plain = engine.generate(prompt, n=6, drafter="none")
    stop = plain.token_ids[2]
    assert stop not in plain.token_ids[:2]
    ending_at(engine, monkeypatch, stop)
    for n in (3, 5, 6):
        g = engine.generate(prompt, n=n, session=scripted(engine, prophet(plain.token_ids, len(prompt))))
        assert g.finish_reason == "stop" and g.token_ids == plain.token_ids[:3]
    g = engine.generate(prompt, n=2, session=scripted(engine, prophet(plain.token_ids, len(prompt))))
    assert g.finish_reason == "length" and g.predicted_n == 2 and g.rounds == 1


def test_a_stop_string_inside_a_block(engine):
    plain = engine.generate(PROMPTS["prose"], n=40, drafter="none")
    stop = plain.text[len(plain.text)//2:][:5]
    for drafter in ("none", "mtp", "copy", "auto"):
        g = engine.generate(PROMPTS["prose"], n=40, drafter=drafter, stop=stop, hash_logits=True)
        if drafter == "none": want = g
        assert g.finish_reason == "stop" and facts(g) == facts(want) and stop not in g.text


@pytest.mark.parametrize("drafter", ["none", "mtp", "copy", "auto", "scripted"])
def test_the_context_ends_inside_a_draft(engine, drafter):
    "llama.cpp PR 10641: context 64, prompt 56, draft 16: nothing beyond the context, finish_reason length."
    prompt = (engine.tokenizer.encode(PROMPTS["prose"])*20)[:56]
    want = engine.generate(prompt, n=8, drafter="none", hash_logits=True)
    session = scripted(engine, lambda ids: [5]*16, 64) if drafter == "scripted" else engine.session(64, drafter=drafter)
    g = engine.generate(prompt, n=-1, session=session, hash_logits=True)
    assert facts(g) == facts(want) and g.predicted_n == 8 and g.finish_reason == "length" and session.cache.n <= 64
    again = engine.generate(prompt, n=100, session=session, hash_logits=True)
    assert facts(again) == facts(want)


def test_drafts_see_no_logits_of_others(engine):
    "llama.cpp 27972: what a token was chosen from is the same with speculation: hashed for every prefix of the text."
    prompt = engine.tokenizer.encode(PROMPTS["edit"])
    for n in range(1, 24):
        assert engine.generate(prompt, n=n, drafter="mtp", hash_logits=True).logits_sha256 == \
            engine.generate(prompt, n=n, drafter="none", hash_logits=True).logits_sha256, n


def test_a_hundred_requests_in_a_row(engine):
    "vLLM 36872: acceptance keeps its level, texts stay the same."
    first = [engine.generate(PROMPTS[p], n=16, drafter="mtp") for p in ("code", "prose", "edit")]
    for turn in range(33):
        for g, p in zip(first, ("code", "prose", "edit")):
            again = engine.generate(PROMPTS[p], n=16, drafter="mtp")
            assert again.token_ids == g.token_ids and again.by_drafter == g.by_drafter, (turn, p)


def test_nothing_is_recorded_after_warm_up(engine, monkeypatch):
    "vLLM PR 37190, ik_llama 522: requests of different lengths; recordings are counted, and buffers keep their place."
    import alphabook.mtp, alphabook.rounds
    made = []
    for module, kind in ((alphabook.rounds, "Recorded"), (alphabook.mtp, "Pass")):
        sound = getattr(module, kind)
        monkeypatch.setattr(module, kind, lambda *a, sound=sound, kind=kind: (made.append(kind), sound(*a))[1])
    for _ in range(3):
        for p in PROMPTS: engine.generate(PROMPTS[p], n=40, drafter="mtp")
    session = next(s for s in engine.spare if s.drafter == "mtp")
    buffers, at = [session.cache.k, session.cache.memory, session.cache.fresh, session.policy.drafter.hidden], []
    made.clear()
    for n in (40, 5, 17):
        for p in reversed(PROMPTS): engine.generate(PROMPTS[p], n=n, drafter="mtp")
        at.append(sorted(b.ctypes.data for b in buffers))
    assert next(s for s in engine.spare if s.drafter == "mtp") is session and at[0] == at[1] == at[2]
    assert not made


@pytest.mark.parametrize("drafter", ["mtp", "copy", "auto"])
def test_a_session_goes_on_changes_its_end_and_repeats(engine, drafter):
    prompt = engine.tokenizer.encode(PROMPTS["edit"])
    session = engine.session(1024, drafter=drafter)
    answer = engine.generate(prompt, n=30, session=session).token_ids
    for turn in (prompt + answer + [100, 101, 102], prompt + answer[:7] + [300]*9, prompt + answer + [100, 101, 102], prompt):
        again = engine.generate(turn, n=25, session=session, hash_logits=True)
        plain = engine.generate(turn, n=25, drafter="none", hash_logits=True)
        assert facts(again) == facts(plain)
        if drafter == "mtp":                                  # and it drafts as one that never saw another text
            fresh = engine.generate(turn, n=25, session=engine.session(1024, drafter="mtp"))
            assert again.by_drafter == fresh.by_drafter


def test_a_reader_who_leaves_early(engine):
    prompt = engine.tokenizer.encode(PROMPTS["prose"])
    plain = engine.generate(prompt, n=30, drafter="none")
    for after in (1, 2, 5, 11):
        session = scripted(engine, prophet(plain.token_ids, len(prompt)))
        for i, token in enumerate(engine.stream(prompt, n=30, session=session), 1):
            if i == after: break
        assert session.ids == [*prompt, *plain.token_ids[:after - 1]]
        rest = engine.generate([*prompt, *plain.token_ids[:after]], n=30 - after, session=session)
        assert rest.token_ids == plain.token_ids[after:]


def test_the_block_is_told_of_every_round(engine):
    prompt = engine.tokenizer.encode(PROMPTS["code"])
    session = scripted(engine, lambda ids: [1, 2, 3])
    g = engine.generate(prompt, n=20, session=session)
    told = session.policy.drafter.told
    assert told == list(range(len(prompt), len(prompt) + 20)) and g.rounds == 19


def command(*args, ok=True):
    r = subprocess.run([sys.executable, "-m", "alphabook", "generate", *args], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (r.returncode == 0) == ok, r.stderr
    return json.loads(r.stdout) if ok else r.stderr


def test_the_block_guesses_from_what_the_prompt_calls_for(engine):
    "A session's head is cut when the block is first asked, and again by the next prompt; nobody else pays for it."
    quiet, asked = Session(engine, 256, drafter="auto"), Session(engine, 256, drafter="mtp")
    assert quiet.policy.mtp.head_ids is None and asked.policy.drafter.head_ids is None
    chosen = []
    for prompt in (PROMPTS["chinese"], PROMPTS["german"], PROMPTS["german"]):
        g = engine.generate(prompt, n=12, session=asked)
        assert g.token_ids == engine.generate(prompt, n=12, drafter="none").token_ids and g.drafted
        head = asked.policy.drafter.head_ids
        assert len(head) == 4096 and set(engine.tokenizer.encode(prompt)) <= set(head.tolist())
        chosen.append(head.tolist())
    assert chosen[0] != chosen[1] == chosen[2]


def test_the_command_line_says_who_drafted(tmp_path):
    base = ["-p", PROMPTS["code"], "-n", "40", "--json", "--hash"]
    plain = command(*base, "--drafter", "none")
    for flags in (["--drafter", "mtp"], ["--drafter", "copy"], [], ["--mode", "plain"]):
        g = command(*base, *flags)
        assert [g[k] for k in ("token_ids", "logits_sha256", "text")] == [plain[k] for k in ("token_ids", "logits_sha256", "text")]
        assert all(set(m) == {"rounds", "drafted", "accepted", "accepted_per_position"} for m in g["by_drafter"].values())
        assert g["drafted"] == sum(m["drafted"] for m in g["by_drafter"].values())
    assert g["by_drafter"] == {}


def test_a_block_from_a_file_of_its_own(engine, tmp_path):
    from alphabook.config import draft_names
    from alphabook.modelfile import write_gguf
    mf, cfg = engine.mf, engine.cfg
    mine = [(n, t.shape, t.type.name, t.data.tobytes()) for n, t in mf.tensors.items()]
    parts = {True: [t for t in mine if t[0] in draft_names(cfg)], False: [t for t in mine if t[0] not in draft_names(cfg)]}
    meta = dict(mf.meta)
    write_gguf(tmp_path/"side.gguf", meta, parts[True])
    write_gguf(tmp_path/"trunk.gguf", {**meta, "qwen35moe.block_count": cfg.n_layer, "qwen35moe.nextn_predict_layers": 0}, parts[False])
    apart = Engine.load(tmp_path/"trunk.gguf", "cpu", drafter="mtp", draft_model=tmp_path/"side.gguf")
    a, b = (e.generate(PROMPTS["code"], n=40, drafter="mtp", hash_logits=True) for e in (apart, engine))
    assert facts(a) == facts(b) and a.by_drafter == b.by_drafter
    with pytest.raises(ValueError, match="has no block that drafts"): Engine.load(tmp_path/"trunk.gguf", "cpu", drafter="mtp")
    with pytest.raises(ValueError, match="would be right"):
        Engine.load(tmp_path/"trunk.gguf", "cpu", drafter="mtp", draft_model=tmp_path/"trunk.gguf")
