"""Quantizing and judging: llama.cpp's recipes and its logits as recorded, files that are complete or absent, figures by another road."""
import io, json, math, os, signal, subprocess, sys, time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from alphabook.cli import main
from alphabook.engine import Engine
from alphabook.fetch import resolve_model
from alphabook.modelfile import ModelFile
from alphabook.quality import (KINDS, EngineRows, cut_windows, divergence, find_needles, judge, log_shares, read_text,
                               score_texts)
from alphabook.quantizing import plan_types, quantize_file
from alphabook.synth import synth
from conftest import ROOT

GOLDEN = json.loads((ROOT/'tests'/'golden'/'quantized.json').read_text(encoding='utf-8'))
RESULTS = sorted((ROOT/'data'/'results'/'cpu').glob('quality-*.json'))


@pytest.fixture(scope='module')
def engine(): return Engine.load(resolve_model(None), 'cpu', n_ctx=512)


def call(*argv):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err): code = main([str(a) for a in argv])
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize('name', GOLDEN['types'])
def test_the_recipes_are_llama_cpps(name, tmp_path):
    "Every tensor gets the type that llama.cpp's quantizer gave it."
    path = resolve_model(None) if name == 'alphabook-mini' else synth(name, 'F16', tmp_path/'x.gguf')
    with ModelFile(path) as mf:
        for type, want in GOLDEN['types'][name].items():
            got = plan_types(mf, type)
            assert {n: got[n] for n in want} == want, type


def test_llama_cpp_computes_the_same_on_a_mix_of_ours(tmp_path):
    "The file of the recording, made again: the ten largest logits are where llama.cpp had them, within its own rounding."
    quantize_file(resolve_model(None), tmp_path/'mix.gguf', *GOLDEN['mix'])
    mix, ids = Engine.load(tmp_path/'mix.gguf', 'cpu', n_ctx=256), GOLDEN['ids']
    rows = np.concatenate([*EngineRows(mix, 256).rows(0, ids)])
    theirs, top = np.array(GOLDEN['logits']), np.array(GOLDEN['top'])
    d = np.abs(np.take_along_axis(rows, top, -1) - theirs)
    assert len(ids) > 20 and d.mean() < .15 and d.max() < 1.5, (d.mean(), d.max())      # contract-distance: 0.14 and more
    assert (rows.argmax(-1) == top[:, 0]).mean() > .85


@pytest.mark.parametrize('family', ['llama', 'gemma3', 'qwen35moe'])
def test_every_family_survives(family, tiny_model, tmp_path):
    "Metadata but for the type, names and shapes stay; the result loads and runs; as F32 nothing changes but the size."
    source = tiny_model(family, 'F16')
    quantize_file(source, tmp_path/'f32.gguf', 'F32')
    quantize_file(source, tmp_path/'q.gguf', 'Q8_0')
    with ModelFile(source) as a, ModelFile(tmp_path/'q.gguf') as b:
        drop = {'general.file_type', 'general.quantization_version'}
        assert {k: str(v) for k, v in a.meta.typed().items() if k not in drop} == {k: str(v) for k, v in b.meta.typed().items() if k not in drop}
        assert [(n, t.shape) for n, t in a.tensors.items()] == [(n, t.shape) for n, t in b.tensors.items()]
    assert Engine.load(tmp_path/'q.gguf', 'cpu', n_ctx=64).generate('a', 4).predicted_n


def test_an_interrupted_run_leaves_nothing(tmp_path):
    "Killed when all is written and nothing renamed: the old file is whole, and no other file says that it is a model."
    out = tmp_path/'out.gguf'
    out.write_bytes(b'old')
    code = "import os, signal, sys, time; from alphabook.cli import main; os.fsync = lambda fd: time.sleep(60); "
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); "      # a shell's background jobs ignore it
    code += f"sys.exit(main(['quantize', {str(resolve_model(None))!r}, {str(out)!r}, '--type', 'Q2_K']))"
    with subprocess.Popen([sys.executable, '-c', code], cwd=ROOT, stderr=subprocess.DEVNULL) as p:
        while p.poll() is None and not [x for x in tmp_path.glob('.*.part') if x.stat().st_size > 1 << 20]: time.sleep(.01)
        time.sleep(.2)
        p.send_signal(signal.SIGINT if os.name == 'posix' else signal.SIGTERM)
    assert p.returncode and out.read_bytes() == b'old' and [x.name for x in tmp_path.iterdir()] == ['out.gguf']


def test_one_clear_line(tmp_path):
    tiny = synth('tiny-llama', 'Q8_0', tmp_path/'t.gguf')
    out = tmp_path/'o.gguf'
    for argv, words in (([tiny, out, '--type', 'Q4_K_XL'], 'writable are'), ([tiny, out, '--type', 'IQ1_S'], 'can be read, not written'),
                        ([tiny, out, '--tensor', 'ffn_down'], 'PATTERN=TYPE'), ([tiny, out, '--tensor', 'zzz=Q8_0'], 'no matrix'),
                        ([tiny, out, '--tensor', '[=Q8_0'], 'regular expression'), ([tiny, tiny], 'is the file that is read'),
                        ([tmp_path/'none.gguf', out], 'none.gguf'), ([tiny, tmp_path], 'folder')):
        code, said, err = call('quantize', *argv)
        assert code == 2 and said == '' and err.count('\n') == 1 and words in err and not out.exists(), err
    code, said, _ = call('quantize', tiny, out, '--type', 'q4_0', '--json')
    assert code == 0 and json.loads(said)['bytes'] == out.stat().st_size


def test_perplexity_is_the_plain_definition(engine):
    "By another road: one token a round, float64 logarithms of a sum, no windows' machinery."
    [ids] = cut_windows(engine.tokenizer, read_text('code'), 24, 1)
    from alphabook.rounds import run_round
    cache, total = engine.model.new_cache(24, keep=0), 0.0
    for now, then in zip(ids, ids[1:]):
        row = run_round(engine.model, cache, [now])[0].astype(np.float64)
        cache.commit(cache.n + 1)
        total -= row[then] - math.log(sum(math.exp(x) for x in row))
    got = judge([ids], EngineRows(engine, 24)).summary()['perplexity']
    assert math.isclose(got, math.exp(total/23), rel_tol=1e-9)


def test_published_solutions_pass_and_mutilated_ones_do_not():
    "Every fourteenth of HumanEval; and with the last line gone, none does."
    from alphabook.tasks import load_tasks, program_of, run_tests
    for t in load_tasks('humaneval')[::14]:
        assert run_tests(program_of(t, t.solution), t.test, t.entry) and run_tests(program_of(t, f'```python\n{t.prompt}{t.solution}```'), t.test, t.entry), t.id
        cut = t.solution.rstrip().rpartition('\n')[0] + '\n    pass\n'
        assert not run_tests(program_of(t, cut), t.test, t.entry), t.id


def test_what_a_model_wrote_leaves_nothing_behind(tmp_path):
    "Nothing written, moved or removed, nobody asked over a network, no word guessed; and an answer that only ends is no answer."
    from alphabook.tasks import run_tests
    (tmp_path/'mine').write_text('mine')
    mine, test = str(tmp_path/'mine'), 'def check(f):\n    assert f() == 1\n'
    for evil in (f'open({mine!r}, "w")', f'open({mine!r}, "r+")', f'import os; os.open({mine!r}, 1)', f'import os; os.unlink({mine!r})',
                 f'import os; os.rename({mine!r}, {mine!r} + "2")', f'import pathlib; pathlib.Path({mine!r}).write_text("x")',
                 f'import os; os.truncate({mine!r}, 0)', 'import urllib.request; urllib.request.urlopen("http://127.0.0.1:9")',
                 'import os; os.fork()', 'import ctypes; ctypes.CDLL(None)', 'print("0"*32); import os; os._exit(0)', 'raise SystemExit'):
        for where in (f'{evil}\ndef f(): return 1', f'def f():\n    try:\n        {evil}\n    except PermissionError: return 2\n    return 1'):
            assert not run_tests(where, test, 'f', 5.0), evil
    assert (tmp_path/'mine').read_text() == 'mine' and [p.name for p in tmp_path.iterdir()] == ['mine']
    assert run_tests('def f(): return 1', test, 'f') and run_tests(f'def f():\n    open({mine!r}).read()\n    return 1', test, 'f')


def test_problems_from_the_command_line(tmp_path):
    code, said, err = call('quality', 'gsm8k', '--tasks', 2, '--answer', 16, '--ctx', 1024, '--json', '-o', tmp_path)
    result = json.loads(said)
    [share, tokens] = result['rows']
    assert code == 0 and share['n'] == 2 and 0 <= share['interval'][0] <= share['value'] <= share['interval'][1] <= 1 and 0 < tokens['value'] <= 16
    assert result['command'] == 'alphabook quality gsm8k --tasks 2 --answer 16' and [*(tmp_path/'cpu').glob('quality-gsm8k-*.json')]
    code, said, err = call('quality', 'humaneval')
    assert code == 2 and '--run-code' in err and err.count('\n') == 1


def test_problems_are_gone_on_with(tmp_path):
    "Answers are kept as they come; a run that was cut off asks the rest, and gets what one run gets; another run's file is refused."
    kept, ask = tmp_path/'a.jsonl', ('quality', 'gsm8k', '--tasks', 4, '--ctx', 1024, '--json', '--answers')
    code, said, _ = call(*ask, kept, '--answer', 6, '--parallel', 3)
    whole, lines = json.loads(said)['rows'], kept.read_text().splitlines(True)
    assert code == 0 and len(lines) == 5 and whole[0]['n'] == 4 and whole[0]['of'] == 100
    kept.write_text(''.join(lines[:3]) + lines[3][:20])
    code, said, _ = call(*ask, kept, '--answer', 6, '--parallel', 1)
    assert code == 0 and json.loads(said)['rows'] == whole and kept.read_text().splitlines(True)[:3] == lines[:3]
    assert sorted(kept.read_text().splitlines()) == sorted(x.rstrip('\n') for x in lines)          # 3 at a time or alone: the same answers
    for more, words in ((('--answer', 7), 'answers with answer 6, not 7'), (('--answer', 6, '--minutes', 0), '--minutes 0'), (('--answer', 6, '--parallel', 65), '--parallel 65')):
        code, said, err = call(*ask, kept, *more)
        assert code == 2 and said == '' and err.count('\n') == 1 and words in err, err
    code, said, err = call(*ask, tmp_path/'b.jsonl', '--answer', 6, '--minutes', 1e-6)
    assert code == 2 and 'before the first answer' in err and err.count('\n') == 1


def test_divergence_by_hand():
    p, q = np.array([[.5, .25, .25]]), np.array([[.125, .25, .625]])
    want = .5*math.log(4) + .25*math.log(.4)
    assert np.allclose(divergence(np.log(p), np.log(q)), want) and np.allclose(np.exp(log_shares(np.log(p).astype('f4'))), p)
    big = log_shares(np.float32([[1e30, 0], [0, -1e30]]))
    assert np.isfinite(big[:, 0]).all()


def test_a_fast_mode_costs_something_and_exact_nothing(engine):
    from alphabook.kv import parse_kv
    [(found, rows), (fast, _)] = [score_texts(engine, ['english'], 64, 2, 'x', EngineRows(engine, 64, kv=parse_kv(kv)), EngineRows(engine, 64))
                                  for kv in ('f16', 'q4_0')]
    assert max(found['english'].kl) == 0 < min(np.mean(fast['english'].kl), 1) and {r['unit'] for r in rows} >= {'KL', 'same favourite'}


def test_a_needle_is_found_and_a_missing_one_is_not(engine):
    assert find_needles(engine, read_text('english'), 128, (0, 1), 2)[1] > 0
    import alphabook.quality as quality
    with pytest.MonkeyPatch.context() as m:
        m.setattr(quality, 'SENTENCE', ' The secret number of the blue door is {}.')
        m.setattr(quality, 'needle_prompt', lambda tok, text, n, depth, number: tok.encode(text[:300] + ' The secret number of the blue door is'))
        assert set(find_needles(engine, read_text('english'), 128, (0, 1), 2).values()) == {0}


def test_the_texts_are_what_the_results_were_measured_on():
    from alphabook.quality import text_hash
    hashes = {k: text_hash(k) for k in KINDS}
    for path in RESULTS: assert json.loads(path.read_text(encoding='utf-8'))['texts'] == hashes, path.name


@pytest.mark.parametrize('path', [p for p in RESULTS if '"maker"' in p.read_text(encoding='utf-8')], ids=lambda p: p.stem)
def test_what_our_arithmetic_adds_is_at_most_a_tenth_more_than_llama_cpps(path):
    "Of each recorded model: the geometric mean over its files of KL here ÷ KL in llama.cpp, and each by itself with some leave."
    found = {}
    for r in json.loads(path.read_text(encoding='utf-8'))['rows']:
        if r.get('maker') and r['unit'] == 'KL' and r['text'] == 'all': found.setdefault((r['quantization'], r['maker']), {})[r['arm']] = r['value']
    ratios = [v['alphabook']/v['llama.cpp'] for v in found.values()]
    assert len(ratios) >= 7 and math.exp(np.mean(np.log(ratios))) <= 1.1 and max(ratios) < 1.25, ratios


@pytest.mark.parametrize('path', [p for p in RESULTS if '"maker"' in p.read_text(encoding='utf-8')], ids=lambda p: p.stem)
def test_excess_perplexity_is_at_most_a_tenth_more_than_llama_cpps(path):
    "Our file here, next to llama.cpp's file there: all types together, and each by itself within two standard errors."
    found = {}
    for r in json.loads(path.read_text(encoding='utf-8'))['rows']:
        if r.get('maker') == r['arm'] and r['text'] == 'all' and r['unit'].startswith("perplexity ÷ base's"):
            found.setdefault(r['quantization'], {})[r['arm'], r['unit'].endswith('±')] = r['value']
    pairs = {q: (v['alphabook', False] - 1, v['llama.cpp', False] - 1, v['alphabook', True]) for q, v in found.items() if ('llama.cpp', False) in v}
    assert len(pairs) >= 3 and sum(a for a, *_ in pairs.values()) <= 1.1*sum(b for _, b, _ in pairs.values()), pairs
    assert not [q for q, (a, b, error) in pairs.items() if a - 1.1*b > 2*error], pairs
