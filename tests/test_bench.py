"`alphabook bench`, with a peer that says what the test wants."
import json, os, subprocess, sys

import pytest

from conftest import ROOT
from alphabook import cpu_streams, protocol
from alphabook.cli import main
from alphabook.engine import Engine

SCHEMA = set('topic device model quantization context width mode arm drafter value unit n spread date commit command '
             'contract_version'.split())
FAKE = '''#!{python}
import json, sys
log = open({log!r}, "a")
def answer(**what): print(json.dumps(what), flush=True)
hello = json.loads(sys.stdin.readline())
log.write(json.dumps(hello) + "\\n"); log.flush()
answer(**{facts!r})
for number, line in enumerate(sys.stdin):
    if number == {lives}: break
    ask = json.loads(line)
    log.write(line); log.flush()
    ids = ask["ids"]
    if ask["do"] == "prompt": answer(seconds=0.5)
    else: answer(seconds=0.25, said=[i if at % 4 else i + 1 for at, i in enumerate(ids)])
'''


@pytest.fixture
def fake(tmp_path):
    "A function (what it says first, answers before it ends) → an interpreter that is a peer, and its diary."
    if os.name == 'nt': pytest.skip('scripts with an interpreter line')
    def make(facts=dict(name='llama.cpp', version='0', build='none'), lives=-1):
        script, log = tmp_path / 'peer', tmp_path / 'peer.log'
        script.write_text(FAKE.format(python=sys.executable, log=str(log), facts=facts, lives=lives))
        script.chmod(0o755)
        return script, log
    return make


@pytest.fixture
def bench(tiny_model, monkeypatch, capsys):
    "A function (flags) → (exit code, standard output, lines of standard error), without fresh processes."
    monkeypatch.setattr(protocol, 'start_turn', lambda *_: (1.5, 1000, 7))
    monkeypatch.setattr(protocol, 'read_buffer', lambda: protocol.np.ones(1 << 16, protocol.np.int64))
    def call(*flags, model='llama'):
        code = main(['bench', '-m', str(tiny_model(model)), *map(str, flags)])
        out, err = capsys.readouterr()
        return code, out, err.splitlines()
    return call


def row(result, arm, unit, width=None):
    found = [r for r in result['rows'] if r['arm'] == arm and r['unit'] == unit and width in (None, r['width'])]
    assert len(found) == 1, (arm, unit, width, [(r['arm'], r['unit'], r['width']) for r in result['rows']])
    return found[0]


def test_the_whole_run_in_a_process_of_its_own(tiny_model, fake, tmp_path):
    peer, log = fake()
    model = tiny_model('qwen35moe')
    done = subprocess.run([sys.executable, '-m', 'alphabook', 'bench', '-m', model, '--peer', 'llama.cpp', '--passes', '1',
                           '--threads', '1', '--widths', '1,5', '--json', '-o', tmp_path / 'data'], cwd=ROOT, text=True,
                          capture_output=True, timeout=300, env=os.environ | {'ALPHABOOK_PEER_PYTHON': str(peer)})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    path, = [p for p in (tmp_path / 'data').rglob('*') if p.is_file()]
    assert path.parent.name == 'cpu' and path.name == f'{result["topic"]}-{result["date"]}.json'
    assert json.loads(path.read_text()) == result and str(tmp_path) not in path.read_text()
    for r in result['rows']:
        assert SCHEMA <= result.keys() | r.keys() and not result.keys() & r.keys()
        assert r['min'] <= r['value'] <= r['max'] and r['n'] == 1
    assert (result['model'], result['threads'], result['mismatches']) == (model.stem, 1, [])
    assert result['command'] == (f'alphabook bench -m {model.name} --peer llama.cpp --passes 1 --threads 1 --widths 1,5')
    assert 1e7 < row(result, 'fresh process', 'bytes at the peak')['value'] < 4e9
    assert 0.1 < row(result, 'fresh process', 's to first token')['value'] < 200
    assert 0 < row(result, 'Python outside operations', 'share of a round')['value'] < 1
    assert row(result, 'memory, 1 thread', 'GB/s')['value'] > 0.1
    assert json.loads(log.read_text().splitlines()[0]) == dict(model=str(model), threads=1, n_ctx=512)


def test_figures_of_the_peer(bench, fake, tiny_model):
    peer, log = fake()
    code, out, _ = bench('--peer', 'llama.cpp', '--peer-python', peer, '--passes', 2, '--widths', '1,4', '--json')
    result = json.loads(out)
    assert code == 0 and row(result, 'llama.cpp', 'tok/s')['value'] == 32 / 0.25
    assert row(result, 'llama.cpp', 'prompt tok/s')['value'] == 256 / 0.5
    assert row(result, 'llama.cpp', 'share of equal tokens')['value'] == 24 / 32
    assert result['peer'] == dict(name='llama.cpp', version='0', build='none')
    for unit in ('tok/s', 'prompt tok/s'):
        ours = row(result, 'plain', unit)['values']
        assert row(result, 'plain', f"{unit} ÷ llama.cpp's")['values'] == [v / (256 / 0.5 if 'prompt' in unit else 128) for v in ours]
    asked = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    engine = Engine.load(tiny_model('llama'))
    text = engine.generate(asked[0]['prompt'], n=32)
    assert len(asked) == 6 and len(asked[0]['prompt']) == 64 and asked[0]['ids'][:text.predicted_n] == text.token_ids
    assert {len(a['ids']) for a in asked} == {32, 256} and all(a == asked[0] for a in asked if a['do'] == 'continue')


def test_turns_alternate_and_the_order_is_reversed(bench, fake):
    code, _, lines = bench('--peer', 'llama.cpp', '--peer-python', fake()[0], '--passes', 3, '--widths', '1,2')
    passes = [[line.split(': ')[1] for line in lines if line.startswith(start)]
              for start in ('warming up', 'pass 1', 'pass 2', 'pass 3')]
    assert code == 0 and passes[0][:4] == ['plain', 'llama.cpp', 'plain, 64 rows a round', 'llama.cpp, 512 rows a round']
    assert passes[0] == passes[1] == passes[2][::-1] == passes[3] and 'plain again' in passes[0]


@pytest.mark.parametrize('how', ['not installed', 'no interpreter', 'dies', 'dies later'])
def test_a_peer_that_is_not_there_is_skipped_with_a_word(bench, fake, how):
    peer = dict(zip(('not installed', 'dies', 'dies later'), ((dict(absent="ModuleNotFoundError: llama_cpp"), -1),
                                                              (dict(name='llama.cpp'), 0), (dict(name='llama.cpp'), 3))))
    python = fake(*peer[how])[0] if how in peer else 'no-such-python'
    code, out, lines = bench('--peer', 'llama.cpp', '--peer-python', python, '--passes', 1, '--widths', '1', '--json')
    result, words = json.loads(out), [line for line in lines if line.startswith('llama.cpp is')]
    assert code == 0 and result['peer'] is None and len(words) == 1
    word = {'not installed': 'ModuleNotFoundError', 'no interpreter': 'no-such-python'}.get(how, 'its process ended')
    assert word in words[0]
    assert not any('llama.cpp' in r['arm'] + r['unit'] for r in result['rows']) and row(result, 'plain', 'tok/s')


def test_without_a_peer_none_is_started(bench, fake):
    peer, log = fake()
    code, out, lines = bench('--peer-python', peer, '--passes', 1, '--widths', '1')
    assert code == 0 and not log.exists() and 'llama.cpp' not in out + ''.join(lines)
    assert 'plain again' in out and 'tok/s' in out


def tampered(monkeypatch, factor):
    "Multiply what `matmul` gives by factor(number of the call, rows)."
    sound, calls = cpu_streams.matmul, []
    def matmul(w, x):
        calls.append(1)
        return sound(w, x) * protocol.np.float32(factor(len(calls), len(x)))
    monkeypatch.setattr(cpu_streams, 'matmul', matmul)


def test_a_width_that_differs_fails(bench, monkeypatch, tmp_path):
    tampered(monkeypatch, lambda call, rows: 1 + 2**-20 if rows == 3 else 1)
    code, out, lines = bench('--passes', 1, '--widths', '1,2,3', '--json', '-o', tmp_path / 'r.json')
    wrong = json.loads(out)['mismatches']
    assert code == 1 and wrong == [f'plain, width 3, pass {p}: other logits than before' for p in (0, 1)]
    assert [f'mismatch: {w}' for w in wrong] == [line for line in lines if line.startswith('mismatch')]
    assert not (tmp_path / 'r.json').exists()


@pytest.mark.parametrize('what', ['logits', 'prompt logits', 'ids'])
def test_a_pass_that_differs_fails(bench, monkeypatch, what):
    "The same work gives other bits when it is done again."
    if what == 'ids':
        turns, sound = [], protocol.decode_turn
        def decode(*args): seconds, ids, rows = sound(*args); turns.append(1); return seconds, ids[:-1] + [len(turns)], rows
        monkeypatch.setattr(protocol, 'decode_turn', decode)
    else:
        rows = 1 if what == 'logits' else 64
        tampered(monkeypatch, lambda call, n: 1 + (call > 3000) * 2**-20 if n == rows else 1)
    code, out, _ = bench('--passes', 3, '--widths', '1', '--json')
    assert code == 1 and any(f': other {what} than' in w for w in json.loads(out)['mismatches'])


def test_nothing_is_wrong_with_a_sound_backend(bench, monkeypatch):
    tampered(monkeypatch, lambda call, rows: 1)
    assert bench('--passes', 1, '--widths', '1,3')[0] == 0


def test_a_busy_machine_is_told_and_recorded(bench, monkeypatch):
    for load, words in ((99.0, 1), (0.0, 0)):
        monkeypatch.setattr(protocol, 'load', lambda: load)
        code, out, lines = bench('--passes', 1, '--widths', '1', '--json')
        assert code == 0 and json.loads(out)['load'] == [load, load]
        assert sum('busy (load 99.0)' in line for line in lines) == words


@pytest.mark.parametrize('flags, word', [
    (['--sets', 'A,V'], '--sets'), (['--shapes', '8b'], '--shapes'), (['--arms', 'plain,mtp'], '--arms'),
    (['--peer', 'http://localhost:8080'], '--peer'), (['--peer', 'vllm'], '--peer'), (['--device', 'cuda'], '--device'),
    (['--device', 'numpy'], '--device'), (['--widths', '0'], '--widths'), (['--widths', '2,x'], '--widths'),
    (['--widths', '65'], '--widths'), (['--passes', '0'], '--passes'), (['--passes', 'x'], '--passes'),
    (['--threads', '0'], '--threads'), (['--ctx', '100'], '--ctx'), (['--mode', 'fast'], '--mode'),
    (['--drafter', 'mtp'], '--drafter'), (['--draft-model', 'x'], '--draft-model'), (['--kv', 'q8_0'], '--kv'),
    (['-o', 'README.md/x.json'], '-o'), (['-o', 'README.md'], '-o'), (['--nonsense'], '--nonsense')])
def test_bad_flags_exit_2_in_one_line(bench, monkeypatch, flags, word):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(protocol, 'take_turns', lambda *_: pytest.fail('measured before refusing'))
    code, out, lines = bench(*flags)
    assert code == 2 and out == '' and len(lines) == 1 and lines[0].startswith('error: ') and word in lines[0]
