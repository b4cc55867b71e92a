"The tape: recorded operations give what issued ones give, with any number of threads, late ones too; stale kernels are not used."
import json, os, pathlib, shutil, subprocess, sys, threading

import numpy as np
import pytest

import alphabook.tape as tape_module
from alphabook.tape import Pool, empty, kernel, recording, set_threads, share, side_by_side


@kernel
def square_into(lo, hi, x, out):
    for i in range(lo, hi): out[i] = x[i]*x[i]


@kernel
def sum_into(lo, hi, x, factor, out):
    total = np.float32(0)
    for i in range(x.size): total += x[i]
    out[0] = total*factor


@kernel
def strided(lo, hi, x, flag, out):
    for r in range(lo, hi): out[r] = x[r, 1] if flag else x[r, 0]


@kernel
def slow_first(lo, hi, x, out):
    "The first task takes a millisecond or so, the others nothing."
    for i in range(lo, hi):
        v = x[i]
        if i == 0:
            for _ in range(300_000): v = v*np.float32(0.999) + np.float32(0.001)
        out[i] = v


@pytest.fixture(autouse=True)
def all_threads_afterwards():
    yield
    set_threads()


@pytest.mark.parametrize('threads', [1, 2, 64])
def test_a_chain_of_dependent_operations(threads):
    "Each operation reads all of the one before, so one that begins too early is noticed."
    set_threads(threads)
    x, squares, total = np.arange(999, dtype=np.float32), np.zeros(999, np.float32), np.zeros(1, np.float32)
    with recording() as tape:
        for _ in range(50):
            share(square_into, 999, 10**8, x, squares)
            share(sum_into, 1, 1, squares, np.float32(0.5), total)
            share(square_into, 1, 1, total, squares[500:])              # spoils a square, which the next round mends
    for i in range(20):
        x[:] = np.arange(i, i + 999)
        tape.play()
        want = np.float32(0)
        for v in x*x: want += v
        assert total[0] == want*np.float32(0.5)


def test_nobody_overtakes_a_slow_task():
    x, slow, out = np.full(64, 2, np.float32), np.zeros(64, np.float32), np.zeros(64, np.float32)
    with recording() as tape:
        share(slow_first, 64, 64 << 16, x, slow)
        share(square_into, 64, 64 << 16, slow, out)
    for _ in range(20):
        slow[:], out[:] = 0, 0
        tape.play()
        assert (out == slow*slow).all() and slow.all()


def test_strides_booleans_and_threads_of_the_machine():
    x, out = np.arange(20, dtype=np.float32).reshape(5, 4), np.zeros(5, np.float32)
    for flag in (False, True):
        with recording() as tape: share(strided, 5, 10**9, x[:, 1:3], flag, out)
        tape.play()
        assert (out == x[:, 2 if flag else 1]).all()


@pytest.mark.parametrize('factor', [0.5, np.float32(0.5), np.float64(0.5), 2])
def test_numbers_of_all_kinds_arrive(factor):
    "A Python float was cut to an integer on a tape, and was itself without one."
    x, out, want = np.arange(5, dtype=np.float32), np.zeros(1, np.float32), np.float32(10*factor)
    share(sum_into, 1, 1, x, factor, out)
    assert out[0] == want
    out[0] = 0
    with recording() as tape: share(sum_into, 1, 1, x, factor, out)
    tape.play()
    assert out[0] == want


def test_workers_that_never_come():
    "All of the pool's threads are busy with something else: the round is done by the one that asked for it."
    release = threading.Event()
    blocked = [tape_module._pool.submit(release.wait) for _ in range(64)]
    try:
        x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
        with recording() as tape: share(square_into, 1000, 10**9, x, out)
        set_threads()
        tape.play()
        assert out.all()
    finally: release.set()
    for b in blocked: b.result()


def test_memory_is_used_again_but_not_side_by_side():
    with recording() as tape:
        a = empty(1000); at = a.ctypes.data; del a
        assert empty(1000).ctypes.data == at
        with side_by_side():
            a = empty(1000); at = a.ctypes.data; del a
            b = empty(1000)
            assert b.ctypes.data != at
        kept = empty(1000)
        assert kept.ctypes.data != b.ctypes.data
    assert len(tape.pool.blocks) == 2
    with recording() as other: pass
    other.play()                                                          # an empty one


def test_open_twice():
    with recording():
        with pytest.raises(RuntimeError, match='open already'):
            with recording(): pass
    with recording(): pass


def test_an_upgrade_is_noticed(tmp_path):
    "A kernel uses something of another file; when that file changes, the kernel on disk is not used."
    package = tmp_path/'alphabook'
    shutil.copytree(pathlib.Path(tape_module.__file__).parent, package,
                    ignore=lambda folder, names: [n for n in names if n == '__pycache__' or n.endswith('.gguf')])
    (package/'user.py').write_text('from .tape import kernel\nfrom .cpu_one import ONE\n\n@kernel\n'
                                   'def f(lo, hi, x): x[0] = ONE\n')
    run = ('import numpy as np; from alphabook.user import f; x = np.zeros(1); f(0, 1, x); '
           'print(int(x[0]), sum(f.stats.cache_hits.values()))')
    def output(one):
        (package/'cpu_one.py').write_text(f'ONE = {one}\n')
        env = os.environ | dict(PYTHONPATH=str(tmp_path))
        return subprocess.run([sys.executable, '-c', run], env=env, cwd=tmp_path, text=True, check=True,
                              capture_output=True).stdout.strip()
    assert output(1) == '1 0'                        # compiled
    assert output(1) == '1 1'                        # read from disk
    assert output(2) == '2 0'                        # numba alone would have said 1, for user.py is what it was


def test_siblings_of_other_processes_keep_their_code(tmp_path):
    "Two processes compile one sibling each, both as numba's number one; a third, which reads both from disk, tells them apart."
    (tmp_path/'siblings.py').write_text('''import numpy as np
from alphabook.tape import kernel, recording, share

def adder(n):
    @kernel
    def add(lo, hi, x):
        for i in range(lo, hi): x[i] += n
    return add

SMALL, LARGE = adder(1), adder(1000)

def added(*siblings):
    x = np.zeros(len(siblings), np.int64)
    for i, f in enumerate(siblings): f(i, i + 1, x)                       # by numba's wrapper: all are in memory now
    with recording() as tape:
        for i, f in enumerate(siblings): share(f, 1, 1, x[i:])
    tape.play()                                                           # by name
    return x.tolist(), [sum(f.stats.cache_hits.values()) for f in siblings]
''')
    def output(run):
        env = os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path), NUMBA_CACHE_DIR=str(tmp_path/'cache'))
        return subprocess.run([sys.executable, '-c', 'from siblings import *; print(' + run + ')'], env=env, cwd=tmp_path,
                              text=True, check=True, capture_output=True).stdout.strip()
    assert output('added(SMALL)') == '([2], [0])' and output('added(LARGE)') == '([2000], [0])'
    assert output('added(SMALL, LARGE)') == '([2, 2000], [1, 1])'


MANY = '''import sys
import numpy as np
import alphabook.tape as tape
from alphabook.tape import kernel, recording, share

def adder(n):
    @kernel
    def add(lo, hi, x):
        for i in range(lo, hi): x[i] += n
    return add

def result(cores):
    tape._cores, x, adders = cores, np.zeros(9, np.int64), [adder(n) for n in range(9)]
    with recording() as t:
        for i, f in enumerate(adders): share(f, 1, 1, x[i:])
    t.play()
    return x.tolist(), sum(sum(f.stats.cache_hits.values()) for f in adders)
'''


def many(folder, before='pass'):
    "What `result` says in a new process that finds its kernels in this folder: (values, kernels read from disk)."
    (folder/'many.py').write_text(MANY)
    env = os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path), NUMBA_CACHE_DIR=str(folder/'cache'))
    out = subprocess.run([sys.executable, '-c', f'import os; from many import *; {before}; print(*result(3))'], env=env,
                         cwd=folder, text=True, check=True, capture_output=True).stdout
    values, read = out.rsplit(maxsplit=1)
    return json.loads(values), int(read)


@pytest.mark.skipif(sys.platform != 'linux', reason='processes are copied on Linux only')
def test_kernels_are_compiled_by_several_processes(tmp_path):
    "Copies of the process compile everything, however few each of them makes; what they have made is read from disk."
    for few in 8, 2:
        (tmp_path/str(few)).mkdir()
        for _ in range(2): assert many(tmp_path/str(few), f'tape.FEW = {few}') == ([*range(9)], 9)


@pytest.mark.parametrize('trouble', [
    'tape._copy = lambda *a: 0',                                                      # no copy can be made
    'tape._copy = lambda *a: os.fork() or os._exit(1)',                               # copies die at once
    'os.chmod("cache", 0o500); tape.Path.write_bytes = lambda *a: os.open("/proc/none", 0)'])  # nothing can be written
def test_compiling_when_something_goes_wrong(tmp_path, trouble):
    (tmp_path/'cache').mkdir()
    assert many(tmp_path, trouble) == ([*range(9)], 0)


def test_a_damaged_file_is_compiled_again(tmp_path):
    many(tmp_path)
    for path in (tmp_path/'cache').rglob('many.*.nbc'): path.write_bytes(path.read_bytes()[:100])
    assert many(tmp_path) == ([*range(9)], 0)
    assert many(tmp_path) == ([*range(9)], 9)


def test_nowhere_to_keep_kernels(tmp_path):
    nowhere = 'import numba.core.caching as c; c.CompileResultCacheImpl._locator_classes = []'
    assert many(tmp_path, nowhere) == ([*range(9)], 0) == many(tmp_path, nowhere)
