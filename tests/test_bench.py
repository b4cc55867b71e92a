"`alphabook bench`, with a peer that says what the test wants."
import json, os, subprocess, sys, time

import pytest
from gguf import GGUFReader

from conftest import ROOT
from alphabook import limits, protocol
from alphabook.cli import main
from alphabook.engine import Engine
from alphabook.tape import Tape

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
    monkeypatch.setattr(protocol, 'start_turn', lambda *_, **__: dict(first=1.5, last=2.5, ids=[7, 8], peak=10**9, cache=10**6))
    monkeypatch.setattr(protocol, 'read_buffer', lambda: protocol.np.ones(1 << 16, protocol.np.int64))
    def call(*flags, models=('llama',)):
        code = main(['bench', *(x for m in models for x in ('-m', str(tiny_model(m)))), *map(str, flags)])
        out, err = capsys.readouterr()
        return code, out, err.splitlines()
    return call


def row(result, arm, unit, width=None, model=None):
    found = [r for r in result['rows'] if r['arm'] == arm and r['unit'] == unit and width in (None, r['width'])
             and model in (None, r['model'])]
    assert len(found) == 1, (arm, unit, width, [(r['arm'], r['unit'], r['width']) for r in result['rows']])
    return found[0]


def start_cache_bytes(path, positions):
    "What a cache takes, from the file's own words: keys, values and recurrent memories twice, convolutions once."
    meta = GGUFReader(path).fields
    value = lambda key: meta[f'qwen35moe.{key}'].contents()
    layers = value('block_count')
    attention = layers // value('full_attention_interval')
    heads, dim, groups = value('ssm.time_step_rank'), value('ssm.state_size'), value('ssm.group_count')
    channels = (2 * groups + heads) * dim
    return (2 * 2 * attention * positions * value('attention.head_count_kv') * value('attention.key_length')
            + (layers - attention) * 4 * (2 * heads * dim * dim + (value('ssm.conv_kernel') - 1) * channels))


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
    assert (result['models'][0]['model'], result['threads'], result['mismatches']) == (model.stem, 1, [])
    assert result['models'][0]['file_bytes'] == model.stat().st_size
    assert result['command'] == f'alphabook bench -m {model.name} --peer llama.cpp --passes 1 --threads 1 --widths 1,5'
    assert 1e7 < row(result, 'fresh process', 'bytes at the peak')['value'] < 4e9
    start = row(result, 'fresh process', 's to first token')
    assert 0.1 < start['value'] < row(result, 'fresh process', 's to 32 tokens')['value'] < 200
    cache = start_cache_bytes(model, start['context'] + 32)
    allowed = 1.3 * model.stat().st_size + cache + 300 * 2**20
    assert row(result, 'fresh process', 'peak ÷ (1.3 files + cache + 300 MiB)')['value'] == pytest.approx(
        row(result, 'fresh process', 'bytes at the peak')['value'] / allowed)
    assert 0 < row(result, 'Python outside operations', 'share of a round')['value'] < 1
    assert row(result, 'recording', 'ms to record')['value'] > 0
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


def tampered(monkeypatch, name, rows, after=0, factor=1 + 2**-20):
    "Multiply what `protocol.name` gives for that many rows by a factor, but not the first times."
    sound, calls = getattr(protocol, name), []
    def other(model, cache, ids, **rest):
        logits = sound(model, cache, ids, **rest)
        calls.extend([1] * (len(ids) == rows))
        return logits * protocol.np.float32(factor) if len(ids) == rows and len(calls) > after else logits
    monkeypatch.setattr(protocol, name, other)
    return calls


def test_a_width_that_differs_fails(bench, monkeypatch, tmp_path):
    tampered(monkeypatch, 'run_round', 3)
    code, out, lines = bench('--passes', 1, '--widths', '1,2,3', '--json', '-o', tmp_path / 'r.json')
    wrong = json.loads(out)['mismatches']
    assert code == 1 and wrong == [f'llama-Q8_0-0: plain, width 3, pass {p}: other logits than before' for p in (0, 1)]
    assert [f'mismatch: {w}' for w in wrong] == [line for line in lines if line.startswith('mismatch')]
    assert not (tmp_path / 'r.json').exists()


@pytest.mark.parametrize('what', ['logits', 'prompt logits', 'ids'])
def test_a_pass_that_differs_fails(bench, monkeypatch, what):
    "The same work gives other bits when it is done again."
    if what == 'ids':
        turns, sound = [], protocol.decode_turn
        def decode(*args): seconds, ids, rows = sound(*args); turns.append(1); return seconds, ids[:-1] + [len(turns)], rows
        monkeypatch.setattr(protocol, 'decode_turn', decode)
    else: tampered(monkeypatch, *(('run_round', 1, 200) if what == 'logits' else ('prefill', 256, 1)))
    code, out, _ = bench('--passes', 1, '--widths', '1', '--json')
    assert code == 1 and any(f': other {what} than' in w for w in json.loads(out)['mismatches'])


def test_nothing_is_wrong_with_a_sound_backend(bench, monkeypatch):
    calls = tampered(monkeypatch, 'run_round', 1, factor=1)
    assert bench('--passes', 1, '--widths', '1,3')[0] == 0 and len(calls) > 200


def test_a_busy_machine_is_told_and_recorded(bench, monkeypatch):
    for load, words in ((99.0, 1), (0.0, 0)):
        monkeypatch.setattr(protocol, 'load', lambda: load)
        code, out, lines = bench('--passes', 1, '--widths', '1', '--json')
        assert code == 0 and json.loads(out)['load'] == [load, load]
        assert sum('busy (load 99.0)' in line for line in lines) == words


@pytest.mark.parametrize('flags, word', [
    (['--sets', 'A,B'], '--sets'), (['--split', 'all'], '--split'), (['--shapes', '9b'], '--shapes'), (['--shapes', '8b:99'], '--shapes'), (['--arms', 'plain,mtp'], '--arms'),
    (['--peer', 'http://localhost:8080'], '--peer'), (['--peer', 'vllm'], '--peer'), (['--device', 'cuda'], '--device'),
    (['--device', 'numpy'], '--device'), (['--widths', '0'], '--widths'), (['--widths', '2,x'], '--widths'),
    (['--widths', '65'], '--widths'), (['--passes', '0'], '--passes'), (['--passes', 'x'], '--passes'),
    (['--threads', '0'], '--threads'), (['--ctx', '100'], '--ctx'), (['--mode', 'slow'], '--mode'),
    (['--drafter', 'mtp'], '--drafter'), (['--draft-model', 'x'], '--draft-model'), (['--kv', 'q8_0'], '--kv'),
    (['--cold', '-1'], '--cold'), (['--topic', 'a/b'], '--topic'),
    (['-m', 'nowhere.gguf'], 'nowhere.gguf'), (['-m', 'README.md'], 'README.md'), (['-o', 'README.md/x.json'], '-o'), (['-o', 'README.md'], '-o'), (['--nonsense'], '--nonsense')])
def test_bad_flags_exit_2_in_one_line(bench, monkeypatch, flags, word):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(protocol, 'take_turns', lambda *_: pytest.fail('measured before refusing'))
    code, out, lines = bench(*flags)
    assert code == 2 and out == '' and len(lines) == 1 and lines[0].startswith('error: ') and word in lines[0]


def test_several_models_and_their_mean(bench, fake, tmp_path):
    code, out, lines = bench('--peer', 'llama.cpp', '--peer-python', fake()[0], '--passes', 2, '--widths', '1', '--json',
                             '--topic', 'some', '-o', tmp_path, models=('llama', 'gemma3'))
    result = json.loads(out)
    names = [m['model'] for m in result['models']]
    assert code == 0 and names == ['llama-Q8_0-0', 'gemma3-Q8_0-0'] and result['topic'] == 'bench-some'
    assert [*tmp_path.rglob('*.json')] == [tmp_path / 'cpu' / f'bench-some-{result["date"]}.json']
    assert result['command'].startswith('alphabook bench -m llama-Q8_0-0.gguf -m gemma3-Q8_0-0.gguf --peer llama.cpp')
    assert result['command'].endswith('--topic some') and any(line.startswith('gemma3-Q8_0-0, pass 2 of 2') for line in lines)
    for unit in ("tok/s ÷ llama.cpp's", "prompt tok/s ÷ llama.cpp's"):
        a, b = (row(result, 'plain', unit, model=m)['values'] for m in names)
        mean = row(result, 'plain', unit, model='geometric mean')
        assert mean['values'] == pytest.approx([(x * y)**0.5 for x, y in zip(a, b)]) and mean['n'] == 2
    assert not [r for r in result['rows'] if r['model'] == 'geometric mean' and 'llama.cpp' not in r['unit']]


def test_no_mean_of_one_model_or_without_the_peer(bench, fake):
    runs = [bench('--peer', 'llama.cpp', '--peer-python', fake()[0], '--passes', 1, '--widths', '1', '--json')[1],
            bench('--passes', 1, '--widths', '1', '--json', models=('llama', 'gemma3'))[1]]
    assert all('geometric mean' not in out for out in runs)


@pytest.mark.parametrize('family', ['llama', 'gemma3', 'qwen35moe'])
def test_each_product_of_the_model(bench, tiny_model, family):
    "Shapes, types and bytes are those that another reader of the file finds."
    code, out, _ = bench('--passes', 1, '--widths', '1,5', '--json', models=(family,))
    result, want = json.loads(out), {}
    for t in GGUFReader(tiny_model(family)).tensors:
        name, shape = t.name.removesuffix('.weight').split('.')[-1], t.shape.tolist()[::-1]
        tied = not any(x.name == 'output.weight' for x in GGUFReader(tiny_model(family)).tensors)
        if name == 'ffn_gate_inp_shexp': shape = [1, *shape]
        if len(shape) < 2 or 'conv1d' in name or name == 'token_embd' and not tied: continue
        kind = want.setdefault('×'.join(map(str, shape)) + f' {t.tensor_type.name}', dict(tensors=[], matrices=0, bytes=0))
        if name not in kind['tensors']: kind['tensors'].append(name)
        kind['matrices'] += 1
        kind['bytes'] += int(t.n_bytes)
    order = lambda kinds: {k: v | dict(tensors=sorted(v['tensors'])) for k, v in kinds.items()}
    assert code == 0 and order(result['models'][0]['kinds']) == order(want)
    for kind, facts in want.items():
        for width in (1, 5):
            speed, share, each = (row(result, f'product {kind}', unit, width)['value']
                                  for unit in ('GB/s', 'share of read speed', 'µs a product'))
            assert share > 0 and each > 0
            if kind.count('×') == 1: assert speed * each * 1e3 == pytest.approx(facts['bytes'] / facts['matrices'])


def test_products_are_timed_where_they_are(tiny_model):
    "A product takes as long among twice as many, however long the readings around them are."
    engine = Engine.load(tiny_model('llama'))
    kind, buffer = limits.kinds(engine.model, engine.mf)[-1], protocol.np.ones(1 << 23, protocol.np.int64)
    def least():
        tape = limits.ProductTape(engine.model.ops, kind, 1, 0, buffer)
        return min(tape.play()['µs a product'] for _ in range(9))
    kind.weights *= 25
    once = least()
    kind.weights *= 2
    assert 0.7 < least() / once < 3


def test_where_the_time_of_a_round_goes(bench):
    code, out, _ = bench('--passes', 1, '--widths', '1,4', '--json')
    result = json.loads(out)
    for width in (1, 4):
        shares = [r for r in result['rows'] if r['arm'].startswith('kernel ') and r['unit'] == 'share of the tape'
                  and r['width'] == width]
        assert code == 0 and len(shares) > 3 and sum(r['value'] for r in shares) == pytest.approx(1)
        assert 1 < sum(row(result, r['arm'], 'µs a round', width)['value'] for r in shares) < 1e6
    text = bench('--passes', 1, '--widths', '1,4')[1]
    assert 'µs a round, 4 rows' in text and 'share of read speed, 1 row' in text


def test_python_is_what_the_tape_does_not_take(tiny_model, monkeypatch):
    "A round made slower outside its tape has a larger share of Python; a slower tape has a smaller one."
    engine, nap = Engine.load(tiny_model('llama')), 0.02
    def share(): return limits.python_share(engine.model, engine.model.new_cache(64), [1, 2, 3], 4)
    assert engine.model.record and limits.outside_tape(engine.model, engine.model.new_cache(64), [1, 2, 3], 1)
    sound, play = limits.run_round, Tape.play
    monkeypatch.setattr(limits, 'run_round', lambda *a: (time.sleep(nap), sound(*a))[1])
    assert 0.5 < share() < 1
    monkeypatch.setattr(limits, 'run_round', sound)
    monkeypatch.setattr(Tape, 'play', lambda self: (time.sleep(nap), play(self))[1])
    assert 0 <= share() < 0.5


def test_cold_starts_have_no_kernels(tiny_model):
    "An empty folder of kernels is used, and the same tokens come out."
    engine = Engine.load(tiny_model('llama'))
    values, wrong = protocol.cold_starts(engine, 1, 1)
    seconds, = values['fresh process, no kernels', 1, len(engine.tokenizer.encode(protocol.START)), 's to first token']
    assert wrong == [] and seconds > 2 * protocol.start_turn(engine.mf.path, 1, engine.n_ctx)['first']


def test_cold_starts_are_asked_for(bench):
    code, out, lines = bench('--passes', 1, '--widths', '1', '--cold', 2, '--json')
    result = json.loads(out)
    assert row(result, 'fresh process, no kernels', 's to first token')['values'] == [1.5, 1.5]
    assert code == 1 and result['mismatches'] == ['llama-Q8_0-0: fresh process, no kernels: other first tokens'] * 2
    assert 'no kernels' not in bench('--passes', 1, '--widths', '1', '--json')[1] and '--cold 2' in result['command']


def test_published_shapes_are_made_measured_and_removed(bench, tmp_path, monkeypatch):
    monkeypatch.setenv('ALPHABOOK_CACHE', str(tmp_path / 'cache'))
    code, out, err = bench('--shapes', 'tiny-llama:1,tiny-qwen3:1', '--passes', 1, '--widths', '1', '--threads', 1, '--json', models=())
    result = json.loads(out)
    assert code == 0 and [m['model'] for m in result['models']] == ['tiny-llama-1-layers', 'tiny-qwen3-1-layers'], err
    assert result['command'].startswith('alphabook bench --shapes tiny-llama:1,tiny-qwen3:1 ') and result['device'] == 'cpu'
    assert row(result, 'plain', 'tok/s', model='tiny-qwen3-1-layers')['value'] > 0
    assert [*(tmp_path / 'cache').iterdir()] == [] and 'tiny-llama-1-layers: writing random weights, Q4_K_M' in err


def test_shapes_stand_alone(bench):
    code, out, err = bench('--shapes', 'tiny-llama')                             # and -m, which the fixture gives
    assert code == 2 and out == '' and len(err) == 1 and '--shapes' in err[0] and '-m' in err[0]


def test_a_card_by_its_stand_in(bench, fake, tiny_model, monkeypatch, tmp_path):
    "The whole command with Triton's interpreter in a card's place: its turns, llama.cpp asked for all layers there, a folder of its own."
    pytest.importorskip('triton', reason='triton is not installed (there is none for this system)')
    pytest.importorskip('torch')
    import alphabook.cards as cards, alphabook.cli, alphabook.engine
    from alphabook.synth import synth
    small = synth('tiny-qwen3', 'F16', tmp_path / 'small.gguf', n_layers=1, n_embd=32, n_ff=32, n_head=1, n_kv_head=1, head_dim=16)
    for where in (alphabook.cli, alphabook.engine): monkeypatch.setattr(where, 'pick_backend', lambda device: device.replace('auto', 'cuda'))
    for name, value in (('PROMPT', 2), ('DECODED', 2), ('LONG', 3), ('card_read_speed', lambda device: 100.)): monkeypatch.setattr(cards, name, value)
    monkeypatch.setenv('ALPHABOOK_AUTO', '0')                                      # no plan: it would ask the card for its memory
    peer, log = fake()
    code, out, err = bench('-m', small, '--peer', 'llama.cpp', '--peer-python', peer, '--passes', 1, '--widths', '2', '--json', '-o', tmp_path,
                           models=())
    result = json.loads(out)
    assert code == 0 and result['device'] == 'interpreter' and not result['mismatches'], err
    assert [*tmp_path.glob('interpreter/bench-small-*.json')] and json.loads(log.read_text().splitlines()[0])['gpu'] is True
    assert row(result, 'plain', 'tok/s')['value'] > 0 and row(result, 'plain', 'ms/round', 2)['value'] > 0
    assert row(result, 'memory, card', 'GB/s')['value'] == 100 and row(result, 'plain', 'share of read speed')['value'] > 0
    assert row(result, 'plain', "tok/s ÷ llama.cpp's")['value'] > 0 and row(result, 'plain again', "tok/s ÷ plain's")['value'] > 0
    assert not [r for r in result['rows'] if r['unit'].startswith('peak ÷')]
    code, out, err = bench('-m', small, '--vram', '1GiB', '--peer', 'llama.cpp', models=())
    assert code == 2 and out == '' and err == ['error: --peer llama.cpp: it gets the whole card; drop it, or --vram']
