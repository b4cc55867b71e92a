"""Plans: pure choices, predictions against recorded runs, and what the command says."""
import json
import os

import pytest

from alphabook.cli import main
from alphabook.config import load_config
from alphabook.modelfile import ModelFile
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
