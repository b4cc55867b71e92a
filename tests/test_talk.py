"""The command line's chat, doctor, completion and variables, as processes."""
import contextlib, io, json, os, signal, subprocess, sys, time
from types import SimpleNamespace
from unittest import mock

def alphabook(*argv, text="", code=0, **env):
    "The command line in this process; what it printed."
    from alphabook.cli import main
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(os.environ, env), mock.patch("sys.stdin", io.StringIO(text)):
        try: got = main([str(a) for a in argv])
        except SystemExit as e: got = e.code                                  # --help
    assert got == code, err.getvalue()
    return SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())

def test_a_talk_that_is_saved_goes_on(tmp_path):
    first = alphabook("chat", "--ctx", 1024, "-n", 12, text=f"What is a list?\n/save {tmp_path}/talk\n/regen\n/quit\n")
    answer, again = first.stdout.splitlines()[0], first.stdout.splitlines()
    talk = json.loads((tmp_path / "talk").read_text())["messages"]
    assert [m["role"] for m in talk] == ["user", "assistant"] and talk[1]["content"].splitlines()[0] == answer
    assert first.stdout.count(talk[1]["content"]) == 2                         # answered again: the same
    more = alphabook("chat", "--ctx", 1024, "-n", 12, "--json", text=f"/load {tmp_path}/talk\nAnd a tuple?\n").stdout
    from alphabook import Engine
    engine = Engine.load(n_ctx=1024)
    ids = engine.tokenizer.encode(engine.chat_template().render(talk + [dict(role="user", content="And a tuple?")]), add_special=False)
    assert json.loads(more)["text"] == engine.generate(ids, n=12).text
    p = alphabook("chat", "--ctx", 1024, text="/nonsense\n", code=2)           # in a script, an error ends it
    assert "/help" in p.stderr and p.stderr.count("error") == 1

def test_ctrl_c_stops_the_answer_only():
    p = subprocess.Popen([sys.executable, "-u", "-m", "alphabook", "chat", "--ctx", "8000", "-n", "7000", "--json", "--temp", "3", "--seed", "1"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        p.stdin.write("/set temp 5\nCount.\n"); p.stdin.flush()
        while "temp 5" not in p.stderr.readline(): pass
        time.sleep(1.5)
        p.send_signal(signal.SIGINT)
        g = json.loads(p.stdout.readline())
        assert g["finish_reason"] == "interrupted" and 0 <= g["predicted_n"] < 7000
        p.stdin.write("/set n 5\nAnd now?\n"); p.stdin.flush()
        assert json.loads(p.stdout.readline())["predicted_n"] <= 5
        p.stdin.close()
        assert p.wait(30) == 0
    finally: p.kill()

def test_doctor_and_completion():
    found = json.loads(alphabook("doctor", "--json").stdout)["findings"]
    about = {f["about"]: f for f in found}
    assert {"processor", "instructions", "reading memory", "cache", "GPU", "model"} <= set(about) and about["model"]["state"] == "ok"
    assert "GB/s" in about["reading memory"]["what"] and all(f["do"] for f in found if f["state"] != "ok")
    p = alphabook("doctor", "-m", "nowhere.gguf", code=1)
    assert "wrong" in p.stdout and "nowhere.gguf" in p.stdout
    for shell in ("bash", "zsh", "fish"): assert "generate" in alphabook("completion", shell).stdout
    alphabook("completion", "tcsh", code=2)

def test_variables_stand_for_flags():
    text = json.loads(alphabook("generate", "-p", "def f", "-n", 4, "--json").stdout)
    by_variable = json.loads(alphabook("generate", "-p", "def f", "--json", ALPHABOOK_MODE="plain", ALPHABOOK_CTX="64", ALPHABOOK_TEMP="0").stdout)
    assert by_variable["mode"] == "plain" and by_variable["text"].startswith(text["text"]) and by_variable["predicted_n"] + by_variable["prompt_n"] <= 64
    assert json.loads(alphabook("generate", "-p", "x", "-n", 1, "--mode", "exact", "--json", ALPHABOOK_MODE="plain").stdout)["mode"] == "exact"
    assert json.loads(alphabook("generate", "-p", "x", "--json", ALPHABOOK_N="2").stdout)["predicted_n"] <= 2           # it has no long name
    p = alphabook("generate", "-p", "x", ALPHABOOK_THREADS="many", code=2)
    assert "$ALPHABOOK_THREADS" in p.stderr and p.stderr.count("\n") == 1
    for command in ("generate", "chat", "serve", "compare", "bench"): assert "examples:\n  " in alphabook(command, "--help").stdout
