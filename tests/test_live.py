"""`LiveChat` in a real JupyterLab, where JupyterLab and a browser are installed: what a reader does, with keys and mouse."""
import json, os, socket, subprocess, sys, time
from importlib.util import find_spec
from pathlib import Path

import browser
import pytest

ROOT = Path(__file__).resolve().parent.parent
CELLS = ["from alphabook import Engine\nfrom alphabook.live import LiveChat\n"
         "chat = LiveChat(Engine.load(device='cpu', n_ctx=1024), n=400)\nchat",
         "slow = chat.talk.session.policy\ntold = slow.verified\nimport time\n"
         "slow.verified = lambda *a: (time.sleep(.5), told(*a))[1]\nprint('slow now')"]
SAID = "[...document.querySelectorAll('.jp-OutputArea-output')].map(e => e.innerText).join(' ')"


def notebook(cells):
    cells = [dict(cell_type="code", id=f"c{i}", metadata={}, source=s, outputs=[], execution_count=None) for i, s in enumerate(cells)]
    kernel = dict(display_name="Python 3", language="python", name="python3")
    return json.dumps(dict(nbformat=4, nbformat_minor=5, metadata=dict(kernelspec=kernel), cells=cells))


@pytest.fixture
def lab(tmp_path):
    "A JupyterLab with one notebook, open in a browser."
    if not browser.find(): pytest.skip("no Chromium")
    if not (find_spec("jupyterlab") and find_spec("ipywidgets")): pytest.skip("no JupyterLab with ipywidgets")
    (tmp_path/"work").mkdir()
    (tmp_path/"work"/"live.ipynb").write_text(notebook(CELLS), encoding="utf-8")
    with socket.socket() as s: s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "IPYTHONDIR": str(tmp_path/"ip"),
           **{f"JUPYTER_{k}_DIR": str(tmp_path/k) for k in ("CONFIG", "RUNTIME", "DATA")}}
    server = subprocess.Popen([sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
                               "--IdentityProvider.token=t", f"--ServerApp.root_dir={tmp_path/'work'}", "--expose-app-in-browser",
                               "--ServerApp.port_retries=0"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    b = None
    try:
        for _ in range(300):
            with socket.socket() as s:
                if not s.connect_ex(("127.0.0.1", port)): break
            time.sleep(.2)
        b = browser.Browser(tmp_path/"profile")
        b("Page.navigate", url=f"http://127.0.0.1:{port}/lab/tree/live.ipynb?token=t")
        b.until("window.jupyterapp && document.querySelectorAll('.jp-Notebook .jp-Cell').length > 1", 90)
        yield b, tmp_path/"work"/"live.ipynb"
    finally:
        if b: b.close()
        server.terminate(); server.wait(30)


def click(b, what):
    x, y = b.js(f"(() => {{ const r = document.querySelector({what!r}).getBoundingClientRect(); return [r.x + r.width/2, r.y + r.height/2] }})()")
    for kind in ("mousePressed", "mouseReleased"): b("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def ask(b, text):
    click(b, ".jp-OutputArea input")
    b("Input.insertText", text=text)
    for kind in ("keyDown", "keyUp"): b("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)


def test_a_chat_in_jupyterlab(lab):
    b, file = lab
    run = lambda name: b.js(f"void window.jupyterapp.commands.execute({name!r})")
    stop = "document.querySelector('.jupyter-widgets button')"
    b.until("document.body.innerText.includes('(ipykernel) | Idle')", 90); time.sleep(2)   # a kernel, or it asks for one
    run("notebook:run-all-cells")
    b.until(f"{SAID}.includes('slow now') && document.querySelector('.jp-OutputArea input')", 180)
    assert "Nothing was said yet" in b.js(SAID) and b.js(f"{stop}.disabled")
    ask(b, "def total(prices):")
    b.until(f"{stop}.disabled === false && {SAID}.includes('def total(prices):')")
    b.until("document.querySelectorAll('.ab-text span').length > 0")               # tokens, while it grows
    b.until(f"{stop}.disabled && document.querySelectorAll('[data-r]').length > 1")
    b("Input.dispatchMouseEvent", type="mouseMoved", **dict(zip("xy", b.js(
        "(() => { const r = document.querySelector('[data-r]').getBoundingClientRect(); return [r.x + 2, r.y + 5] })()"))))
    b.until("document.querySelector('.ab-note').innerText.includes('chosen by the model')")
    ask(b, "Count to a hundred in words.")
    b.until(f"!{stop}.disabled && document.querySelectorAll('.ab').length > 1")
    click(b, ".jupyter-widgets button")                                            # the kernel hears it during the answer
    b.until(f"{stop}.disabled && document.querySelectorAll('.ab-note').length > 1", 30)
    last = b.js("[...document.querySelectorAll('.ab-note')].pop().innerText")
    assert int(last.split(" in ")[1].split()[0]) < 20, last                        # rounds, of half a second each
    run("docmanager:save")
    b.until("!document.querySelector('.jp-mod-dirty')", 30); time.sleep(1)
    kept = "".join("".join(o["data"].get("text/html", "")) for o in json.loads(file.read_text(encoding="utf-8"))["cells"][0]["outputs"])
    assert "def total(prices):" in kept and kept.count("data-r=") > 1              # what a page without a kernel will show
