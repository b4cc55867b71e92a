"""What others do first: install the wheel, paste the README's example, name a model on a hub."""
import json, os, re, signal, socket, subprocess, sys, zipfile
from pathlib import Path

import pytest

from alphabook.cli import main
from conftest import ROOT


def alone(folder: Path, *command, **more):
    "A command where only the unpacked wheel is alphabook."
    env = {k: v for k, v in os.environ.items() if not k.startswith(('ALPHABOOK', 'PYTHON'))} | dict(PYTHONPATH=str(folder/'site'))
    return subprocess.run([sys.executable, *map(str, command)], cwd=folder, env=env, text=True, capture_output=True, timeout=300, **more)


@pytest.fixture(scope='module')
def unpacked(tmp_path_factory):
    "A folder with the wheel's content under site/, built from what git knows and what is new."
    folder = tmp_path_factory.mktemp('wheel')
    files = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard'], cwd=ROOT, text=True, capture_output=True)
    if files.returncode: pytest.skip('not a git checkout')
    for name in files.stdout.splitlines():
        if name.startswith(('alphabook/', 'data/models/', 'data/prompts/', 'data/tasks/', 'data/texts/')) or '/' not in name:
            if (ROOT/name).is_file():
                (folder/'source'/name).parent.mkdir(parents=True, exist_ok=True)
                (folder/'source'/name).write_bytes((ROOT/name).read_bytes())
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, '-c', build, str(folder)], cwd=folder/'source', text=True, capture_output=True, timeout=300)
    if 'invalid command' in done.stderr or 'No module named' in done.stderr: pytest.skip('no tools to build a wheel')
    assert done.returncode == 0, done.stderr[-2000:]
    [wheel] = folder.glob('*.whl')
    zipfile.ZipFile(wheel).extractall(folder/'site')
    return folder


def test_the_wheel_needs_no_repository(unpacked):
    "Import, generate by the slow specification (nothing to compile), texts, prompts and tasks; all from the wheel."
    code = ("import alphabook, json; from alphabook import Engine; from alphabook.quality import read_text; "
            "from alphabook.prompts import load_prompts; from alphabook.tasks import load_tasks; "
            "print(json.dumps([alphabook.__file__, len(read_text('code')), len(load_prompts('AVR')), len(load_tasks('gsm8k'))]))")
    done = alone(unpacked, '-c', code)
    assert done.returncode == 0, done.stderr
    where, code, prompts, tasks = json.loads(done.stdout)
    assert Path(where).is_relative_to(unpacked/'site') and code > 10**5 and prompts > 90 and tasks == 100
    done = alone(unpacked, '-m', 'alphabook', 'generate', '--device', 'numpy', '-p', 'def', '-n', '1', '--json')
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer['predicted_n'] == 1 and answer['model'] == 'alphabook-mini.gguf' and answer['text'], done.stderr


def test_the_readmes_client_as_pasted():
    "The block of the README, word for word, against a server started as the README says; another port if 8080 is taken."
    pytest.importorskip('openai'); pytest.importorskip('fastapi'); pytest.importorskip('uvicorn')
    from test_server import start
    [code] = re.findall(r'<!-- example: openai -->\n```python\n(.*?)```', (ROOT/'README.md').read_text(encoding='utf-8'), re.S)
    with socket.socket() as s: port = 8080 if s.connect_ex(('127.0.0.1', 8080)) else 0
    server, address = start('--port', port, '--log', 'none')
    try:
        pasted = code if port else code.replace('127.0.0.1:8080', address)
        done = subprocess.run([sys.executable, '-c', pasted], text=True, capture_output=True, timeout=200)
    finally: server.send_signal(signal.SIGTERM); server.wait(30); server.drain.join()
    assert done.returncode == 0 and len(done.stdout) > 20, done.stderr
    from alphabook.chat import ChatTemplate
    from alphabook.engine import Engine
    engine = Engine.load(None, 'cpu', n_ctx=512)
    text = engine.chat_template().render([dict(role='user', content='What is a list in Python?')])
    assert done.stdout == engine.generate(engine.tokenizer.encode(text, add_special=False), 64).text


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch, tmp_path, capsys):
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    monkeypatch.setenv('HF_ENDPOINT', f'http://127.0.0.1:{port}'); monkeypatch.setenv('ALPHABOOK_CACHE', str(tmp_path))
    for argv, words in ((['-hf', 'user/repo:Q4_K_M'], "can't be reached"), (['-hf', 'user'], 'user/repo'), (['-hf', 'a/b', '-m', 'x'], 'drop one')):
        assert main(['generate', *argv, '-p', 'x']) == 2
        out, err = capsys.readouterr()
        assert out == '' and err.count('\n') == 1 and words in err, err


def test_a_model_from_a_hub(monkeypatch, tmp_path, tiny_model, capsys):
    "A hub of two answers: the file runs, and runs again when the hub is gone."
    import hashlib, threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    body = Path(tiny_model('llama')).read_bytes()

    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_): pass
        def do_GET(self):
            listed = [dict(type='file', path='tiny-Q8_0.gguf', size=len(body), lfs=dict(oid=hashlib.sha256(body).hexdigest()))]
            self.send_response(200); self.end_headers()
            self.wfile.write(json.dumps(listed).encode() if self.path.startswith('/api/models/some/one/') else body)

    server = ThreadingHTTPServer(('127.0.0.1', 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv('HF_ENDPOINT', f'http://127.0.0.1:{server.server_address[1]}'); monkeypatch.setenv('ALPHABOOK_CACHE', str(tmp_path))
    texts = []
    for i in range(2):
        assert main(['generate', '-hf', 'some/one:q8_0', '-p', 'hello', '-n', '4', '--json']) == 0
        texts.append(json.loads(capsys.readouterr().out)['token_ids'])
        if not i: server.shutdown(); server.server_close()
    assert texts[0] == texts[1] and len(texts[0]) and (tmp_path/'hub/some/one/tiny-Q8_0.gguf').read_bytes() == body
