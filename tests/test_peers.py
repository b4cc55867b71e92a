"""Peers behind a URL: our own server, which must say what the engine says; a small one that says what the test wants; the page of a run."""
import json, re, signal, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from alphabook.cli import main
from alphabook.remote import Remote
from alphabook.report import index_lines, report
from conftest import ROOT

MODEL = ROOT/'data/models/alphabook-mini.gguf'


@pytest.fixture
def call(capsys):
    def run(*argv):
        code = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return code, out, err.splitlines()
    return run


class Counts(BaseHTTPRequestHandler):
    "A server that takes text only, wants a key, and says numbers slowly enough to be timed."
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_): pass

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status); self.send_header('Content-Length', str(len(data))); self.end_headers(); self.wfile.write(data)

    def do_GET(self): self.reply(200 if self.path == '/api/v1/models' else 404, dict(data=[dict(id='small'), dict(id='large')]))

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.server.asked.append(ask)
        if self.headers['Authorization'] != 'Bearer word': return self.reply(401, dict(error='no key'))
        if self.path != '/api/v1/completions' or not isinstance(ask['prompt'], str): return self.reply(422, dict(error='text, please'))
        self.send_response(200); self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
        def send(line):
            data = f'data: {line}\n\n'.encode()
            self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data)); self.wfile.flush()
        for i in range(ask['max_tokens']):
            if self.server.dies and i == 3: return self.connection.shutdown(2)
            self.server.pause.wait(.002)
            send(json.dumps(dict(choices=[dict(text=f'{i} ')])))
        send(json.dumps(dict(choices=[], usage=dict(prompt_tokens=5, completion_tokens=ask['max_tokens']))))
        send('[DONE]')
        self.wfile.write(b'0\r\n\r\n')


@pytest.fixture
def counts():
    server = ThreadingHTTPServer(('127.0.0.1', 0), Counts)
    server.asked, server.pause, server.dies = [], threading.Event(), False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, f'http://127.0.0.1:{server.server_address[1]}/api'
    server.shutdown(); server.server_close()


def test_our_own_server_says_what_the_engine_says(call, tmp_path):
    "The same tokens as a prompt, the same text back, its speed beside ours; the page holds the result."
    pytest.importorskip('fastapi'); pytest.importorskip('uvicorn')
    from test_server import start
    server, address = start('--ctx', 2048, '--log', 'none')
    try:
        code, out, err = call('bench', '-m', MODEL, '--sets', 'A', '--prompts', 2, '--passes', 1, '--arms', 'plain', '--peer',
                              f'http://{address}/v1', '--json', '--report', tmp_path/'run.html')
    finally: server.send_signal(signal.SIGTERM); server.wait(30); server.drain.join()
    assert code == 0, err
    result = json.loads(out)
    rows = {(r['arm'], r['unit']): r for r in result['rows']}
    assert rows[address, 'same text as plain']['value'] == 1.0 and rows[address, 'tok/s']['prompts'] == 2
    assert .05 < rows[address, "tok/s ÷ plain's"]['value'] < 5 and rows[address, 'ms to the first token']['value'] > 0
    [facts] = result['peers']
    assert facts['prompt'] == 'ids' and facts['prompt_tokens'][0] == facts['prompt_tokens'][1]
    assert result['index']['base'] == address and result['command'].count('--peer') == 1
    page = (tmp_path/'run.html').read_text(encoding='utf-8')
    assert json.loads(page.split('id="results">')[1].split('</script>')[0].replace('<\\/', '</')) == [result]


def test_a_server_that_takes_text_only(call, counts):
    server, url = counts
    code, out, err = call('bench', '-m', MODEL, '--sets', 'A', '--prompts', 1, '--passes', 1, '--arms', 'plain', '--peer', url,
                          '--peer-key', 'word', '--peer-model', 'large', '--json')
    result = json.loads(out)
    rows = {(r['arm'], r['unit']): r for r in result['rows']}
    name = url[7:].removesuffix('/api')
    assert code == 0 and rows[name, 'same text as plain']['value'] == 0 and 20 < rows[name, 'tok/s']['value'] <= 520, err
    assert result['peers'][0]['prompt'] == 'text' and 'word' not in out
    timed = [a for a in server.asked if isinstance(a['prompt'], str)][1:]
    assert len(timed) == 2 and all(a['model'] == 'large' and a['temperature'] == 0 and a['stream'] for a in timed)
    assert {a['max_tokens'] for a in timed} == {timed[0]['max_tokens']} and timed[0]['max_tokens'] > 8


def test_a_server_that_leaves_or_refuses_is_dropped_with_a_word(call, counts):
    server, url = counts
    for key, dies, word in (('wrong', False, '401'), ('word', True, 'breaks off')):
        server.dies = dies
        code, out, err = call('bench', '-m', MODEL, '--sets', 'A', '--prompts', 1, '--passes', 1, '--arms', 'plain', '--peer', url,
                              '--peer-key', key, '--json')
        assert code == 0 and {r['arm'] for r in json.loads(out)['rows']} == {'plain', 'plain again'}
        assert any(word in line and 'dropped' in line for line in err), err


def test_flags_that_cannot_be_meant(call, tmp_path):
    for flags, word in ((['--peer', 'http://127.0.0.1:1'], '--sets'), (['--peer', 'vllm'], '--peer vllm'),
                        (['--report', tmp_path/'x.txt'], '.html'), (['--report', tmp_path/'no'/'x.html'], "can't be written")):
        code, out, err = call('bench', '-m', MODEL, *flags)
        assert code == 2 and out == '' and len(err) == 1 and word in err[0], err
    (tmp_path/'bad.json').write_text('{}')
    for argv, word in (([tmp_path/'bad.json', '-o', tmp_path/'p.html'], 'topic'), ([tmp_path/'none.json', '-o', tmp_path/'p.html'], 'none.json'),
                       ([tmp_path/'bad.json', '-o', tmp_path/'p.txt'], '.html')):
        code, _, err = call('report', *argv)
        assert code == 2 and len(err) == 1 and word in err[0] and not (tmp_path/'p.html').exists(), err


def test_the_clock_of_a_stream():
    "The first piece ends the wait, the last one the text; what comes after it costs nothing."
    from alphabook.remote import read_stream
    now = iter([3.0, 4.0, 8.0])
    lines = [b'data: ' + json.dumps(c).encode() for c in (
        dict(choices=[dict(text='a')]), dict(choices=[dict(text='b')]), dict(choices=[dict(text='c')]),
        dict(choices=[dict(text='', finish_reason='stop')], usage=dict(completion_tokens=6, prompt_tokens=2), timings=dict(predicted_n=6)))]
    said = read_stream(lines, 1.0, lambda: next(now))
    assert (said.first_ms, said.predicted_ms, said.speed, said.own) == (2000, 5000, 1.0, dict(predicted_n=6))


RESULTS = [p for p in sorted((ROOT/'data/results/cpu').glob('*.json')) if p.name.startswith(('bench-cpu', 'drafters-'))]

def test_the_page_of_the_recorded_runs(call, tmp_path):
    "Several files become one page that loads nothing; its index is the geometric mean, by hand."
    code, _, err = call('report', *RESULTS, '-o', tmp_path/'page.html')
    page = (tmp_path/'page.html').read_text(encoding='utf-8')
    assert code == 0 and page.count('<h2>') == len(RESULTS) and not re.search(r'(src|href)=|@import|url\(', page.split('<script')[0])
    bench = json.loads(RESULTS[0].read_text(encoding='utf-8'))
    values, base, n, left = index_lines([bench])
    speeds = {(r['arm'], r['model'], r['unit']): r['value'] for r in bench['rows']
              if r['unit'] in ('tok/s', 'prompt tok/s') and r['width'] in (1, 64, 512) and r['arm'] in ('plain', 'llama.cpp')}
    ratios = [speeds['plain', m, u]/speeds['llama.cpp', m, u] for a, m, u in speeds if a == 'plain']
    product = 1.0
    for r in ratios: product *= r
    assert base == 'llama.cpp' and n == len(ratios) == 8 and left == 0 and abs(values['plain']/product**(1/8) - 1) < 1e-9
    assert report([bench]).count('| model') == 0 and '± ' in page


def test_the_page_in_a_browser(tmp_path):
    import browser
    if not browser.find(): pytest.skip('no Chromium')
    (tmp_path/'page.html').write_text(report([json.loads(p.read_text(encoding='utf-8')) for p in RESULTS[:2]]), encoding='utf-8')
    b = browser.Browser(tmp_path/'profile')
    try:
        b('Page.navigate', url=(tmp_path/'page.html').as_uri())
        b.until("document.readyState === 'complete' && document.querySelectorAll('svg').length > 2")
        assert b.js("[...document.querySelectorAll('svg text')].every(t => t.getBBox().x >= -1 && t.getBBox().x + t.getBBox().width <= t.ownerSVGElement.viewBox.baseVal.width + 1)")
        assert b.js('document.documentElement.scrollWidth <= innerWidth')
        assert not [m for m in b.log if m.get('method') == 'Network.requestWillBeSent' and not m['params']['request']['url'].startswith('file:')]
    finally: b.close()
