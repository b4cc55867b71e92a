"""Plans: pure choices, predictions against recorded runs, and what the command says."""
import json
import os
from dataclasses import replace

import pytest

from alphabook.cli import main
from alphabook.config import load_config
from alphabook.modelfile import ModelFile
from alphabook.gpu_plan import MEASURED_ON, Card, ShapeFile, card_facts, card_here, choose_card, context_for, load_cards, planned_card
from alphabook.plan import KEEP_FREE, Facts, auto, choose, facts_of, layer_units, load_speeds, measured, planned_ram, seconds_per_token
from conftest import ROOT

SPEEDS = dict(ram=30.0, disk=1.0)

@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("ALPHABOOK_CACHE", str(tmp_path/"cache"))
    return tmp_path/"cache"/"machine.json"

def newest(topic): return json.loads(sorted((ROOT/"data/results/cpu").glob(f"{topic}-20*.json"))[-1].read_text(encoding="utf-8"))

@pytest.mark.parametrize("name,units", [("smollm2", 30), ("gemma3-270m", 18), ("qwen2.5-coder-0.5b", 24), ("alphabook-mini", 11.5)])
def test_predictions_are_within_a_quarter_of_what_was_measured(name, units):
    run = newest("bench-cpu")
    value = {r["arm"]: r["value"] for r in run["rows"] if r["model"] == name and (r["width"], r["unit"]) in ((0, "GB/s"), (1, "tok/s"))}
    nbytes = next(m["bytes_per_token"] for m in run["models"] if m["model"] == name)
    predicted = 1/seconds_per_token(nbytes, units, value["memory, 2 threads"])
    assert abs(predicted/value["plain"] - 1) < .25
    from alphabook.fetch import resolve_model
    if name == "alphabook-mini":
        with ModelFile(resolve_model(None)) as mf:
            f = facts_of(mf, load_config(mf), SPEEDS)
            assert (f.token, f.units) == (nbytes, units) == (f.token, layer_units(load_config(mf)))

def test_what_is_given_wins_and_less_memory_is_never_faster():
    f = Facts(fixed=10**9, token=10**9, units=40, block=True, free=12 << 30, **SPEEDS, experts=20*10**9, token_experts=5*10**8, least=10**9)
    speeds = [choose(f, dict(ram=n*10**9)).speed.get("plain", 0) for n in range(1, 30)]
    assert speeds == sorted(speeds) and speeds[0] == 0 < speeds[2] and speeds[-1] == speeds[22]
    p = choose(f, dict(ram=7*10**9, drafter="none"))
    assert p.settings["ram"] == 7*10**9 and p.settings["drafter"] == "none" and sum("as you said" in r for r in p.reasons) == 2
    assert len(set(p.speed.values())) == 1                    # no drafts, no gain
    f.hit = lambda n: 1.0
    assert choose(f).speed["plain"] > speeds[10]              # a ranking that answers everything

def test_speeds_are_measured_a_few_times_and_the_best_is_kept(cached, monkeypatch, tiny_model):
    import alphabook.plan as plan
    tries, path = iter([5.0, 30.0, 7.0, 99.0]), tiny_model("llama")
    monkeypatch.setattr(plan, "read_buffer", lambda: None)
    monkeypatch.setattr(plan, "read_speed", lambda *a: next(tries))
    assert [measured(path)["ram"] for _ in range(5)] == [5, 30, 30, 30, 30] and next(tries) == 99
    for damage in ("", "[]", '{"x": 3}', "{", '{"x": {"ram": -1, "disk": 1, "tries": 1}}', "\0"):
        cached.write_text(damage)
        assert load_speeds(cached) == {}

def test_the_command(cached, capsys, monkeypatch, tiny_model):
    path = tiny_model("qwen35moe")
    assert main(["plan", str(path), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["fits"] and set(out["tok_s"]) == {"plain", "A", "V", "R"} and "ram" not in out["settings"] and cached.exists()
    assert main(["plan", str(path), "--ram", "1KB"]) == 1     # and says what the least is
    assert "does not fit" in capsys.readouterr().out
    assert main(["plan", str(path), "--drafter", "magic"]) == 2
    assert main(["plan", str(path.parent/"nothing.gguf")]) == 2
    assert main(["plan"]) == 0
    assert "expected tok/s" in capsys.readouterr().out

def test_a_bare_model_gets_slots_only_if_it_does_not_fit(capsys, monkeypatch, tiny_model):
    import alphabook.plan as plan
    path, said = tiny_model("qwen35moe"), []
    assert planned_ram(path, None, "cpu", said.append) is None
    with ModelFile(path) as mf: f = facts_of(mf, load_config(mf), SPEEDS)
    monkeypatch.setattr(plan, "free_memory", lambda: KEEP_FREE + f.fixed + f.experts - 1)
    assert planned_ram(path, None, "cpu", said.append) == f.fixed + f.experts - 1
    assert said[0].startswith("--ram") and planned_ram(path, None, "cuda", said.append) is None
    monkeypatch.setenv("ALPHABOOK_AUTO", "0")
    assert planned_ram(path, None, "cpu", said.append) is None
    monkeypatch.setenv("ALPHABOOK_AUTO", "perhaps")
    with pytest.raises(ValueError, match="must be 0"): auto()
    assert main(["generate", "-m", str(path), "-p", "x", "-n", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert planned_ram(path, 5, "cpu", said.append) == 5      # what was said wins

# A card, without one.

GIB = 1 << 30
CARD = Card("a card", 16*GIB, 400.0, 24.0, "sm_86")

@pytest.fixture(scope="module")
def shapes():
    def facts(like, card=CARD, free=64*GIB, mtp=0):
        with ShapeFile(like, mtp=mtp) as mf:
            cfg = load_config(mf)
            return card_facts(mf, cfg, card, facts_of(mf, cfg, SPEEDS, free=free))
    pytest.importorskip("triton"); pytest.importorskip("torch")
    return {like: facts(like, mtp=mtp) for like, mtp in (("qwen3-0.6b", 0), ("qwen3.6-35b-a3b", 1))} | dict(of=facts)

def test_a_card_needs_what_the_store_says(tiny_model, tmp_path):
    pytest.importorskip("triton"); pytest.importorskip("torch")
    from alphabook.residency import needed_bytes
    from alphabook.fetch import resolve_model
    from alphabook.synth import synth
    joined = synth("tiny-qwen35moe", "Q4_0", tmp_path/"m.gguf", n_layers=2, n_embd=64, n_ff_shared=32, n_ff_expert=32)     # the shared one has a slot
    some = [tiny_model(*f) for f in (("qwen35moe", "Q4_0"), ("gpt-oss", "MXFP4"), ("qwen3", "Q8_0"), ("qwen3moe", "F16"))]
    for family in (*some, joined, resolve_model(None)):
        with ModelFile(family) as mf:
            cfg = load_config(mf)
            f = card_facts(mf, cfg, CARD, facts_of(mf, cfg, SPEEDS))
            for n in (256, 4096): assert f.fixed + f.experts + n*f.position == needed_bytes(mf, cfg, n), family

def test_the_longest_context_that_costs_no_expert(shapes):
    small, large = shapes["qwen3-0.6b"], shapes["qwen3.6-35b-a3b"]
    assert "ctx" not in choose_card(small).settings and choose_card(small).settings["device"] == "cuda"
    cap = int(large.fixed + large.experts + 40_000*large.position)
    assert choose_card(large, dict(vram=cap)).settings["ctx"] == 32768
    p = choose_card(large, dict(vram=cap, ctx=200_000))       # what is said wins; it costs experts
    assert p.settings["ctx"] == 200_000 and any("of the experts have slots" in r for r in p.reasons)
    assert not any("of the experts have slots" in r for r in choose_card(large, dict(vram=cap)).reasons)
    tight = choose_card(large, dict(vram=8*GIB))
    assert 2048 <= tight.settings["ctx"] <= 8*GIB/8/large.position and tight.settings["vram"] == 8*GIB
    assert [context_for(small, int(small.fixed + n*small.position)) for n in (2040, 2050, 9000, 50_000)] == [0, 2048, 8192, 40960]

def test_what_fits_no_card_is_for_the_cpu(shapes):
    f = shapes["qwen3-0.6b"]
    p = choose_card(f, dict(vram=f.fixed))
    assert p.settings["device"] == "cpu" and "not on the card" in p.reasons[0] and p.speed["plain"] > 0
    forced = choose_card(f, dict(vram=f.fixed, device="cuda"))
    assert not forced.fits and not forced.speed and any("does not fit" in r for r in forced.reasons)

def test_speed_by_card(shapes):
    f = shapes["qwen3.6-35b-a3b"]
    def speed(card, given): return choose_card(replace(f, card=card), given).speed
    caps = [speed(CARD, dict(vram=n*GIB, ctx=8192, device="cuda")).get("plain", 0) for n in range(2, 30)]
    assert caps == sorted(caps) and 0 < caps[1] < caps[-1]/2
    whole = speed(CARD, dict(vram=40*GIB))
    assert whole["R"] > whole["V"] > whole["A"] > whole["plain"]               # its block drafts
    some = speed(CARD, dict(vram=8*GIB))
    assert len(set(some.values())) == 1                                        # not with experts elsewhere
    assert len(set(speed(CARD, dict(vram=40*GIB, drafter="none")).values())) == 1
    assert speed(replace(CARD, copy=800.0), dict(vram=40*GIB))["plain"] > whole["plain"]
    assert speed(replace(CARD, copy=0.0), {}) == {}
    ranked = replace(f, host=replace(f.host, hit=lambda n: 0.99))
    assert choose_card(ranked, dict(vram=8*GIB)).speed["plain"] > some["plain"]
    little = choose_card(replace(f, host=replace(f.host, free=8*GIB)), dict(vram=8*GIB))
    assert any("are read from the disk" in r for r in little.reasons) and little.settings["ram"] == 7*GIB
    assert little.speed["plain"] < some["plain"] and "ram" not in choose_card(f, dict(vram=8*GIB)).settings
    rams = [choose_card(f, dict(vram=8*GIB, ram=n*GIB)).speed.get("plain", 0) for n in (0.5, 2, 4, 8, 16, 32)]
    assert rams == sorted(rams) and rams[0] == 0 < rams[1] < rams[-1] == pytest.approx(some["plain"])
    assert any("of RAM are the least" in r for r in choose_card(f, dict(vram=8*GIB, ram=GIB//2)).reasons)

def test_a_measured_row_is_worth_more(shapes):
    f = shapes["of"]("qwen3-0.6b", Card("NVIDIA H200", 139*GIB, 4230.0, 53.0, "sm_90"))
    assert f.known == {None: (1351.6, MEASURED_ON)} and choose_card(f).speed["plain"] == pytest.approx(1351.6)
    assert choose_card(replace(f, known={})).speed["plain"] == pytest.approx(1351.6, rel=.05)
    assert shapes["of"]("qwen3-0.6b").known == {}             # another card
    large = replace(shapes["qwen3.6-35b-a3b"], known={None: (500, "d"), 16: (100, "d"), 0: (90, "d")})
    assert [choose_card(large, dict(vram=int(n*GIB))).speed["plain"] for n in (16, 40)] == [100, 500]
    assert choose_card(large, dict(vram=12*GIB)).speed["plain"] not in (100, 500, 90)

def test_the_command_for_a_card_that_is_not_here(cached, capsys, tmp_path, tiny_model):
    pytest.importorskip("triton"); pytest.importorskip("torch")
    path = str(tiny_model("qwen35moe"))
    def run(*words):
        code = main(["plan", *words, "--json"])
        out = capsys.readouterr()
        return code, json.loads(out.out) if out.out else out.err
    code, plan = run("--shape", "qwen3.6-35b-a3b", "--card", "RTX 4060 Ti", "--ram", "64GiB")
    assert code == 0 and plan["settings"]["device"] == "cuda" and plan["tok_s"]["plain"] > 10 and plan["machine"]["card"]["arch"] == "sm_89"
    code, plan = run(path, "--vram", "1GiB")
    assert code == 0 and plan["settings"]["vram"] == GIB and plan["tok_s"] == {} and "--card says which" in plan["reasons"][-1]
    assert run(path)[1]["settings"]["device"] == "cpu" and run(path, "--device", "cpu", "--vram", "1GiB")[1]["settings"]["device"] == "cpu"
    assert run(path, "--vram", "1MiB", "--card", "RTX 4090", "--device", "cuda")[0] == 1
    (tmp_path/"bad.json").write_text('{"free": -1}')
    for words, why in ((("--card", "Voodoo 2"), "neither a file nor"), (("--card", str(tmp_path/"bad.json")), "free"), (("--shape", "no-such"), "no shape named"),
                       (("--shape", "qwen3-8b", "--type", "Q9"), "--type Q9"), ((path, "--shape", "qwen3-8b"), "both give"), (("--device", "tpu"), "must be"),
                       (("--card", "H200", "--device", "cpu"), "contradict"), (("--ctx", "0"), "at least 1")):
        code, err = run(*words)
        assert code == 2 and why in err and err.count("\n") == 1, (words, err)

def test_a_bare_model_on_a_card(monkeypatch, tiny_model):
    torch = pytest.importorskip("torch"); pytest.importorskip("triton")
    import alphabook.gpu_plan as gpu_plan
    said = []
    real, free = facts_of, [64*GIB]
    monkeypatch.setattr(gpu_plan, "facts_of", lambda *args, **how: real(*args, **how | dict(free=free[0])))
    with ShapeFile("qwen3.6-27b") as shape:
        monkeypatch.setattr(gpu_plan, "ModelFile", lambda path: shape)
        def planned(free, **given):
            monkeypatch.setattr(gpu_plan, "asked_card", lambda torch: Card("A", free, arch="sm_86"))
            said.clear()
            return planned_card("x", given, "cuda", said.append)
        assert planned(140*GIB) == {} and not said
        assert planned(24*GIB) == dict(ctx=65536) and said[0].startswith("--ctx 65536")
        assert planned(8*GIB) == dict(device="cpu") and "not on the card" in said[0]
        free[0] = GIB                                          # nor in RAM: loading will say so
        assert planned(8*GIB) == {}
        free[0] = 64*GIB
        assert planned(8*GIB, device="cuda") == {} and planned(24*GIB, ctx=7) == {}        # what is said wins; loading says what doesn't fit
    with ShapeFile("qwen3.6-35b-a3b") as shape:
        assert planned(16*GIB) == dict(ctx=65536)
        free[0] = 16*GIB
        assert planned(16*GIB) == dict(ctx=65536, ram=15*GIB) and said[-1].startswith("--ram 15GiB")
        assert planned(16*GIB, ram=9*GIB, ctx=4096) == {} and planned(16*GIB, ram=9*GIB) == dict(ctx=65536)
        monkeypatch.setenv("ALPHABOOK_AUTO", "0")
        assert planned(24*GIB) == {}

def test_speeds_of_a_card_are_kept(cached, monkeypatch):
    pytest.importorskip("torch")
    import alphabook.gpu_plan as gpu_plan
    monkeypatch.setattr(gpu_plan, "asked_card", lambda torch: Card("A", 5, arch="sm_86", source="measured"))
    monkeypatch.setattr(gpu_plan, "card_speeds", lambda torch: dict(copy=400.0, pcie=20.0))
    assert card_here() == Card("A", 5, 400.0, 20.0, "sm_86", "measured")
    monkeypatch.setattr(gpu_plan, "card_speeds", lambda torch: 1/0)
    assert card_here().copy == 400.0
    place = cached.with_name("cards.json")
    for damage in ("", "[]", '{"x": {"copy": 1}}', '{"x": {"copy": true, "pcie": 3}}', '{"x": {"copy": -1, "pcie": 3}}'):
        place.write_text(damage)
        assert load_cards(place) == {}
