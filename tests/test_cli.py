"The command line as a stranger uses it: in a process of its own."
import json, os, subprocess, sys

import pytest

from conftest import ROOT
from alphabook.modelfile import ModelFile, write_gguf
from alphabook.synth import synth

KEYS = set('text token_ids finish_reason prompt_n predicted_n prompt_ms predicted_ms rounds drafted accepted by_drafter '
           'mode device model contract_version'.split())


def run(*argv, stdin=b'', **env):
    p = subprocess.run([sys.executable, '-m', 'alphabook', *map(str, argv)], input=stdin, capture_output=True, timeout=300,
                       env=os.environ | env)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def one_line(argv, *words, **env):
    "Exit 2, nothing on stdout, one line on stderr that has these words."
    code, out, err = run(*argv, **env)
    assert code == 2 and out == '' and err.count('\n') == 1 and 'Traceback' not in err, (code, out, err)
    for w in words: assert str(w) in err, (w, err)
    return err


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp('cli') / 'tiny.gguf'
    synth('tiny-llama', 'Q8_0', path)
    return path


def test_generate_json(tiny):
    code, out, err = run('generate', '-m', tiny, '-p', 'hello', '-n', 6, '--json', '--hash')
    g = json.loads(out)
    assert code == 0 and set(g) == KEYS | {'logits_sha256'} and g['predicted_n'] == len(g['token_ids']) <= 6
    assert (g['mode'], g['device'], g['model'], g['contract_version']) == ('exact', 'cpu', 'tiny.gguf', '1')
    again = json.loads(run('generate', '-m', tiny, '-n', 6, '--json', '--hash', '--threads', 1, '--mode', 'plain', stdin=b'hello')[1])
    slow = json.loads(run('generate', '-m', tiny, '-p', 'hello', '-n', 6, '--json', '--hash', '--device', 'numpy')[1])
    assert g['token_ids'] == again['token_ids'] == slow['token_ids']
    assert g['logits_sha256'] == again['logits_sha256'] == slow['logits_sha256']


def test_text_goes_to_stdout_and_the_rest_to_stderr(tiny, tmp_path):
    (tmp_path / 'p.txt').write_text('hello')
    code, out, err = run('generate', '-m', tiny, '-f', tmp_path / 'p.txt', '-n', 6)
    assert code == 0 and out.rstrip('\n') == json.loads(run('generate', '-m', tiny, '-p', 'hello', '-n', 6, '--json')[1])['text'].rstrip('\n')
    assert 'tok/s' in err


def test_sampling_is_a_function_of_the_seed(tiny):
    ids = lambda *more: json.loads(run('generate', '-m', tiny, '-p', 'a', '-n', 8, '--json', '--temp', 1, *more)[1])['token_ids']
    assert ids('--seed', 1) == ids('--seed', 1) != ids('--seed', 2)


def test_info_and_compare(tiny):
    facts = json.loads(run('info', tiny, '--json')[1])
    assert facts['architecture'] == 'llama' and facts['supported'] is True
    code, out, _ = run('compare', '-m', tiny, '--widths', '1,3', '--json', '-p', 'some words')
    result = json.loads(out)
    assert code == 0 and result['mismatches'] == 0 < result['comparisons'] and result['first_mismatch'] is None
    assert {'positions', 'comparisons', 'mismatches', 'first_mismatch', 'arms'} <= set(result)


def test_compare_fails_on_a_mismatch(tiny, monkeypatch, capsys):
    import alphabook.cpu_streams as cpu
    from alphabook.cli import main
    sound = cpu.rms_norm
    monkeypatch.setattr(cpu, 'rms_norm', lambda x, w, eps: sound(x, w, eps if len(x) == 1 else 1.001*eps + 1e-7))
    assert main(['compare', '-m', str(tiny), '--widths', '2', '--json', '-p', 'some words']) == 1
    result = json.loads(capsys.readouterr().out)
    first = result['first_mismatch']
    assert result['mismatches'] > 0 and first['arm'] == 'width 2'
    assert (first['layer'], first['operation'], first['tensor']) == (0, 'rms_norm', 'blk.0.attn_norm.weight')
    assert main(['compare', '-m', str(tiny), '--widths', '2', '-p', 'some words']) == 1
    assert 'first: width 2, ' in capsys.readouterr().out


@pytest.mark.parametrize('flags, word', [
    (['--widths', '1,x'], '--widths'), (['--widths', '65'], 'from 1 to 64'), (['--widths', '0'], 'from 1 to 64'),
    (['--device', 'tpu'], '--device'), (['--kv', 'q8_0'], '--kv'), (['--threads', '0'], '--threads'), (['--ctx', '0'], '--ctx'), (['-p', ''], 'empty'), (['--most'], '--most')])
def test_bad_flags_of_compare(tiny, flags, word): one_line(['compare', '-m', tiny, *flags], word)


def test_without_a_model(tmp_path):
    one_line(['generate', '-m', 'smollm2', '-p', 'x'], 'alphabook fetch smollm2', ALPHABOOK_CACHE=str(tmp_path))
    one_line(['chat', '-m', 'smolm2'], 'did you mean smollm2')
    one_line(['compare', '-m', 'gpt5'], 'known are alphabook-mini')


@pytest.mark.parametrize('flags, word', [
    (['--kv', 'q8_0'], '--kv'), (['--kv', 'f16:x'], '--kv'), (['--mode', 'plain', '--drafter', 'copy'], '--drafter'),
    (['--mode', 'quick'], '--mode'), (['--device', 'tpu'], '--device'), (['--device', 'cuda'], '--device'), (['--temp', 'warm'], '--temp'),
    (['--temp', '-1'], '--temp'), (['--temp', 'nan'], '--temp'), (['--top-p', '1.5'], '--top-p'), (['--threads', '0'], '--threads'),
    (['--ctx', '0'], '--ctx'), (['--ctx', '2', '-p', 'hello world'], 'context_length_exceeded'), (['--vram', 'lots'], '--vram'),
    (['--seed', '-1'], '--seed'), (['-n', 'x'], '-n'), (['-n', '-2'], '-n'), (['--vram', '0'], '--vram'), (['--ram', '0'], '--ram'), (['--ram', '1e400GB'], '--ram'), (['--draft-model', 'x'], '--draft-model'), (['-f', 'nowhere.txt'], 'drop one'),
    (['--frobnicate'], '--frobnicate'), (['-p', ''], 'empty')])
def test_bad_flags(tiny, flags, word): one_line(['generate', '-m', tiny, '-p', 'hello', *flags], word)


def test_bad_prompts(tiny, tmp_path):
    (tmp_path / 'latin.txt').write_bytes(b'caf\xe9')
    one_line(['generate', '-m', tiny, '-f', tmp_path / 'latin.txt'], 'latin.txt', 'UTF-8')
    one_line(['generate', '-m', tiny, '-f', tmp_path / 'none.txt'], 'none.txt')
    one_line(['generate', '-m', tiny, '-f', tmp_path], tmp_path)


def cut(data, where): return data[:where]


def test_damaged_files(tiny, tmp_path):
    "The reports of facts that users file: each is one line that names the file and what is wrong."
    data = tiny.read_bytes()
    with ModelFile(tiny) as mf: meta, tensors = dict(mf.meta.typed()), {n: (t.shape, t.type.name, bytes(t.data)) for n, t in mf.tensors.items()}
    def variant(name, change):
        path = tmp_path / name
        m, t = dict(meta), dict(tensors)
        change(m, t)
        write_gguf(path, m, [(n, *v) for n, v in t.items()])
        return path
    raw = {'header.gguf': data[:20], 'string.gguf': data[:300], 'tensor.gguf': data[:-40], 'empty.gguf': b'',
           'page.gguf': b'<!doctype html><html>', 'zip.gguf': b'PK\x03\x04' + b'\0' * 60, 'v1.gguf': data[:4] + b'\1\0\0\0' + data[8:],
           'big.gguf': data[:4] + b'\0\0\0\3' + data[8:]}
    for name, body in raw.items(): (tmp_path / name).write_bytes(body)
    for name in raw: one_line(['generate', '-m', tmp_path / name, '-p', 'x'], name)
    assert 'big-endian' in one_line(['info', tmp_path / 'big.gguf'])
    drop = lambda key: lambda m, t: m.pop(key)
    one_line(['generate', '-m', variant('arch.gguf', lambda m, t: m.update({'general.architecture': ('string', 'mamba9')})), '-p', 'x'],
             'mamba9', 'llama', 'qwen2', 'qwen3', 'gemma3')
    one_line(['generate', '-m', variant('key.gguf', drop('llama.attention.head_count')), '-p', 'x'], 'llama.attention.head_count')
    one_line(['generate', '-m', variant('lost.gguf', lambda m, t: t.pop('blk.0.attn_q.weight')), '-p', 'x'], 'blk.0.attn_q.weight')
    one_line(['generate', '-m', variant('pre.gguf', lambda m, t: m.update({'tokenizer.ggml.pre': ('string', 'klingon')})), '-p', 'x'], 'klingon')
    def poison(m, t):
        shape, type, body = t['output_norm.weight']
        t['output_norm.weight'] = (shape, type, b'\0\0\xc0\x7f' * (len(body) // 4))
    assert 'finite' in one_line(['generate', '-m', variant('nan.gguf', poison), '-p', 'x'])


def test_commands_of_later_versions():
    for name in ('quality', 'quantize'): one_line([name], name)
    one_line(['fetch', 'nonsense'], 'smollm2')
    one_line(['synth', '--like', 'nonsense', '-o', 'x.gguf'], 'qwen3-0.6b')
    one_line(['synth', '--like', 'qwen3-0.6b', '--type', 'Q9_Z', '-o', 'x.gguf'], 'Q9_Z')
    one_line(['nonsense'])
    assert run()[0] == 2


def test_a_closed_pipe_is_not_an_error(tiny):
    code = f'{sys.executable} -m alphabook generate -m {tiny} -p hello -n 40 | head -c 1; exit ${{PIPESTATUS[0]}}'
    p = subprocess.run(['bash', '-c', code], capture_output=True, timeout=300)
    assert b'Traceback' not in p.stderr and b'Exception' not in p.stderr


def test_chat(tiny):
    code, out, err = run('chat', '-m', tiny, '-n', 5, '--json', stdin=b'hello\nand again\n')
    turns = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(turns) == 2 and all(set(t) == KEYS for t in turns)


def test_the_real_model(smollm2):
    code, out, _ = run('generate', '-m', smollm2, '-p', 'The capital of France is', '-n', 32, '--json', '--hash')
    g = json.loads(out)
    assert code == 0 and g['text'].startswith(' Paris') and g['prompt_n'] == 5
    slow = json.loads(run('generate', '-m', smollm2, '-p', 'The capital of France is', '-n', 2, '--json', '--hash', '--device', 'numpy')[1])
    fast = json.loads(run('generate', '-m', smollm2, '-p', 'The capital of France is', '-n', 2, '--json', '--hash')[1])
    assert slow['logits_sha256'] == fast['logits_sha256'] and slow['token_ids'] == g['token_ids'][:2]


def test_info_says_what_a_family_was_proven_with(tmp_path, capsys, monkeypatch):
    from alphabook import cli
    from alphabook.config import ARCHITECTURES
    real = {'SmolLM2-135M-Instruct', 'Qwen2.5-Coder-0.5B-Instruct', 'gemma-3-270m'}    # see tests/golden/*.json
    replicas = {p.name for p in (ROOT / 'tests/golden/replicas').iterdir() if p.is_dir()}
    assert {name for names in cli.PROOFS.values() for name in names.split(', ')} == real | replicas
    assert set(cli.PROOFS) <= set(ARCHITECTURES)
    path = synth('tiny-olmoe', 'Q8_0', tmp_path / 'm.gguf')
    assert cli.main(['info', str(path), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['proven_with'] == 'OLMoE-1B-7B-0924-Instruct'
    monkeypatch.delitem(cli.PROOFS, 'olmoe')
    assert cli.main(['info', str(path)]) == 0 and 'unproven' in capsys.readouterr().out
