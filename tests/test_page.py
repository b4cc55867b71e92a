"""The chat page, in a browser: typed into, stopped, asked for a key."""
import http.client, json, os, signal
from pathlib import Path

import pytest

from browser import Browser, find

pytest.importorskip("fastapi"); pytest.importorskip("uvicorn")
from test_server import KEY, start

@pytest.fixture(scope="module")
def server():
    p, address = start("--api-key", KEY, "--ctx", 2048, "--log", "none", "--drafter", "mtp")
    yield address
    p.send_signal(signal.SIGTERM); p.wait(30)

@pytest.fixture(scope="module")
def page(server, tmp_path_factory):
    if not find(): pytest.skip("no Chromium or Chrome: set ALPHABOOK_BROWSER to its path")
    b = Browser(tmp_path_factory.mktemp("profile"))
    assert b.open(f"http://any:{KEY}@{server}/") == 200
    yield b
    b.close()

def send(page, text, **fields):
    for name, value in dict(text=text, **fields).items(): page.js(f"document.getElementById('{name}').value = {json.dumps(value)}")
    page.js("document.getElementById('ask').requestSubmit()")

DONE = "!document.getElementById('send').disabled"
SPANS = "[...document.querySelectorAll('.assistant:last-of-type [data-by]')].map(s => [s.dataset.by, s.textContent])"

def test_an_answer_has_the_colours_of_its_drafters(server, page):
    from alphabook import Engine
    page.until("document.getElementById('model').textContent !== ''")
    assert page.js("document.getElementById('model').textContent") == "alphabook-mini, 2048 positions"
    question = "What is a <b>list</b> in Python? & why"
    send(page, question, most="60", temperature="0")
    page.until("document.querySelector('.figures[class=figures]:not(#model)') && " + DONE)
    spans = page.js("[...document.querySelectorAll('.assistant [data-by]')].map(s => [s.dataset.by, s.textContent])")
    engine = Engine.load(drafter="mtp")
    ids = engine.tokenizer.encode(engine.chat_template().render([dict(role="user", content=question)]), add_special=False)
    g = engine.generate(ids, n=60)
    assert "".join(text for _, text in spans) == g.text.lstrip() or "".join(text for _, text in spans) == g.text
    assert {by for by, _ in spans} == set(g.drafters) and len(set(g.drafters)) > 1          # some were drafted, some were not
    colours = page.js("[...new Set([...document.querySelectorAll('.assistant [data-by]')].map(s => getComputedStyle(s).backgroundColor))].length")
    assert colours == len({by for by, _ in spans})
    assert page.js("document.querySelector('.user').textContent") == question                # as text, not as HTML
    figures = page.js("document.querySelector('.assistant .figures').textContent")
    assert figures.startswith(f"{g.predicted_n} tokens in ") and "tok/s" in figures and "right" in figures
    if os.environ.get("ALPHABOOK_PICTURE"): page.picture(Path(os.environ["ALPHABOOK_PICTURE"]))
    assert page.complaints() == [], page.complaints()
    assert {u.split("/")[2].rpartition("@")[2] for u in page.addresses() if not u.startswith("data:")} == {server}

def test_a_second_turn_remembers_and_stop_keeps_what_was_said(page):
    send(page, "And a tuple?", most="1500")
    page.until("document.querySelectorAll('.assistant').length === 2 && document.querySelectorAll('.assistant')[1].textContent.length > 20")
    page.js("document.getElementById('stop').click()")
    page.until(DONE)
    assert page.js("talk.length") == 4 and page.js("talk[3].content.length") >= 10
    page.js("document.getElementById('most').value = '5'; document.getElementById('again').click()")
    page.until(DONE + " && document.querySelectorAll('.assistant .figures').length === 2")
    figures = page.js("[...document.querySelectorAll('.assistant .figures')].at(-1).textContent")
    assert " 0 remembered" not in figures and page.js("talk.length") == 4
    page.js("document.getElementById('clear').click()")
    assert page.js("talk.length + document.getElementById('talk').children.length") == 0

def test_an_error_is_shown_and_a_wrong_key_asks_for_a_right_one(page):
    send(page, "word " * 4000, most="5")
    page.until("document.querySelector('.error')")
    assert "context_length_exceeded" in page.js("document.querySelector('.error').textContent")
    page.js("document.getElementById('clear').click(); sessionStorage.setItem('key', 'wrong')")
    send(page, "Hi", most="5")
    page.until("!document.getElementById('key').hidden")
    page.js(f"document.getElementById('secret').value = {KEY!r}; document.getElementById('key').requestSubmit()")
    page.until("document.querySelector('.assistant .figures') && " + DONE)
    assert page.js("talk.length") == 2 and page.js("document.getElementById('key').hidden")

def test_without_the_key_there_is_no_page(server, page):
    c = http.client.HTTPConnection(server); c.request("GET", "/")
    r = c.getresponse()
    assert r.status == 401 and r.headers["www-authenticate"].startswith("Basic") and b"<form" not in r.read()

def test_the_policy_names_what_is_there(page):
    "A script that gets into the page does not run."
    page.js("""document.body.insertAdjacentHTML('beforeend', '<img src="x" onerror="window.bad = 1">'); 0""")
    page.js("(() => { const s = document.createElement('script'); s.textContent = 'window.bad = 2'; document.body.append(s) })()")
    assert page.js("window.bad === undefined")
    assert page.js("fetch('https://example.org/').then(() => 'went', e => e.name)") == "TypeError"
