"""Packed products: every type, odd shapes, 1 to 64 columns, every path of this CPU, against the numpy spec; sizes; refusals."""
import os, subprocess, sys
import numpy as np
import pytest

import alphabook.arithmetic as spec
import alphabook.cpu_products as cpu
import alphabook.vectors as vectors
from alphabook.blocks import FLOAT_TYPES, FORMATS, decode, random_blocks
from alphabook.modelfile import TYPE
from alphabook.tape import recording, set_threads

PATHS = vectors.available_paths()


@pytest.fixture
def path(request):
    yield cpu.set_vectors(request.param)
    cpu.set_vectors(os.environ.get('ALPHABOOK_VECTORS'))


def rows(W, K, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(W, K)).astype(np.float32) * np.exp(rng.normal(size=(W, K)) * 2).astype(np.float32)
    x[-1] *= np.float32(1e-20)
    return x


def shapes(type):
    if type in FLOAT_TYPES: return (5, 33), (17, 256), (3, 257), (16, 576), (2, 1063)
    return ((1, 256), (35, 768), (16, 2560)) if TYPE[type].block == 256 else ((1, 32), (37, 96), (16, 576), (3, 1056))


@pytest.mark.parametrize('path', PATHS, indirect=True)
@pytest.mark.parametrize('type', [*FORMATS, *FLOAT_TYPES])
def test_every_type_equals_the_spec(type, path):
    for R, K in shapes(type):
        data, x = random_blocks(type, R, K, np.random.default_rng(R)), rows(3, K, K)
        w, want = cpu.load_matrix(data, type), spec.matmul(spec.load_matrix(data, type), x)
        assert cpu.matmul(w, x).tobytes() == want.tobytes(), (R, K)
        for i in range(3): assert cpu.matmul(w, x[i:i + 1]).tobytes() == want[i:i + 1].tobytes(), (R, K, i)
        assert cpu.matmul(w, x[:0]).shape == (0, R)


@pytest.mark.parametrize('type', ['Q4_K', 'Q6_K', 'Q8_0', 'Q4_1', 'IQ4_XS', 'BF16'])
def test_long_rows_many_columns_any_threads(type):
    data, x = random_blocks(type, 33, 17408, np.random.default_rng(0)), rows(64, 17408, 1)
    w = cpu.load_matrix(data, type)
    want = spec.matmul(spec.load_matrix(data, type), x[:3])
    for threads in (1, 2, 3):
        set_threads(threads)
        assert cpu.matmul(w, x[:3]).tobytes() == want.tobytes()
        alone = np.concatenate([cpu.matmul(w, x[i:i + 1]) for i in range(64)])
        for W in (2, 31, 32, 33, 64): assert cpu.matmul(w, x[:W]).tobytes() == alone[:W].tobytes(), (W, threads)
    set_threads()


@pytest.mark.parametrize('type', FORMATS)
def test_random_bytes_on_every_path(type):
    "Scales of every value, so also infinities and NaN: all paths agree."
    data = np.random.default_rng(3).integers(0, 256, (20, 4*TYPE[type].size*(256//TYPE[type].block)), np.uint8)
    x, got = rows(2, 1024, 5), []
    for path in PATHS:
        cpu.set_vectors(path)
        got.append(np.concatenate([cpu.matmul(cpu.load_matrix(data, type), x[:n]) for n in (1, 2)]))
    cpu.set_vectors(os.environ.get('ALPHABOOK_VECTORS'))
    for y in got: assert ((y == got[0]) | np.isnan(y) & np.isnan(got[0])).all()


@pytest.mark.parametrize('type', ['Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q3_K', 'Q4_K', 'Q5_K', 'Q6_K', 'IQ4_NL', 'IQ4_XS'])
def test_packed_weights_take_about_as_much_as_the_file(type):
    for K in (768, 4096):
        data = random_blocks(type, 64, K, np.random.default_rng(0))
        assert cpu.load_matrix(data, type).packed.nbytes <= 1.1*data.nbytes


def resident(path):
    "Bytes of a mapped file that are in this process's memory."
    mine = False
    for line in open('/proc/self/smaps'):
        if '-' in line.split(' ', 1)[0]: mine = line.rstrip().endswith(str(path))
        elif mine and line.startswith('Rss:'): return 1024*int(line.split()[1])


@pytest.mark.skipif(not os.path.exists('/proc/self/smaps'), reason='the system does not tell')
def test_pages_that_have_been_packed_are_released_and_come_back(tmp_path):
    data = random_blocks('Q8_0', 4096, 1024, np.random.default_rng(0))
    (tmp_path/'w').write_bytes(data)
    mapped = np.memmap(tmp_path/'w', np.uint8, 'r').reshape(data.shape)
    mapped.max()
    assert resident(tmp_path/'w') > 0.9*data.nbytes
    w = cpu.load_matrix(mapped, 'Q8_0')
    assert resident(tmp_path/'w') < 0.1*data.nbytes
    ids = [0, 17, 4095]
    assert cpu.embed(w, ids).tobytes() == decode(data[ids], 'Q8_0').tobytes() and (mapped == data).all()


def test_float_matrices_are_not_copied():
    data = random_blocks('F16', 4, 64, np.random.default_rng(0))
    assert np.shares_memory(cpu.load_matrix(data, 'F16').data, data)


def test_activations_of_another_length_are_refused():
    w = cpu.load_matrix(random_blocks('Q8_0', 4, 64, np.random.default_rng(0)), 'Q8_0')
    with pytest.raises(ValueError, match='32 activations for a matrix of 64 columns'): cpu.matmul(w, np.ones((1, 32), np.float32))


@pytest.mark.parametrize('W', [1, 2, 40])
def test_recorded_products_see_new_activations(W):
    "Several matrices of several types share quantized activations; the round is recorded once and played again."
    K, rng = 512, np.random.default_rng(0)
    data = [(random_blocks(type, R, K, rng), type) for type, R in (('Q4_K', 40), ('F16', 5), ('Q8_0', 16), ('Q6_K', 1))]
    ws, x = [cpu.load_matrix(*d) for d in data], np.zeros((W, K), np.float32)
    with recording() as tape: outs = cpu.matmuls(ws, x)
    for seed in range(3):
        x[:] = rows(W, K, seed)
        tape.play()
        for d, out in zip(data, outs): assert out.tobytes() == spec.matmul(spec.load_matrix(*d), x).tobytes()


def test_activations_that_would_be_copied_are_refused():
    w = cpu.load_matrix(random_blocks('Q8_0', 4, 64, np.random.default_rng(0)), 'Q8_0')
    for x in (np.ones((64, 2), np.float32).T, np.ones((2, 64))):
        with pytest.raises(ValueError, match='one piece'): cpu.matmul(w, x)


@pytest.mark.parametrize('wanted, path', [('portable', 'portable'), ('', PATHS[-1])])
def test_the_environment_chooses_a_path(wanted, path):
    code = 'import alphabook.cpu_products as c; print(c._path[0])'
    run = subprocess.run([sys.executable, '-c', code], env=os.environ | {'ALPHABOOK_VECTORS': wanted}, capture_output=True, text=True)
    assert run.stdout.strip() == path, run.stderr


def test_a_path_this_cpu_lacks_is_an_error():
    with pytest.raises(ValueError, match='this CPU has portable'): vectors.choose_path('sve')


EMULATED = """
import numpy as np
from llvmlite import ir
import alphabook.vectors as v

def emulated(builder, name, result, *args, real=v._call):
    "VNNI's two instructions in LLVM's own operations; all others as they are."
    if name == 'llvm.x86.avx512.pshuf.b.512': return v._choose(builder, args[1], [c.constant if hasattr(c, 'constant') else c for c in args[0].constant][:16], 3)
    if name != 'llvm.x86.avx512.vpdpbusd.512': return real(builder, name, result, *args)
    wide = ir.VectorType(ir.IntType(32), 64)
    p, total = builder.mul(builder.zext(args[1], wide), builder.sext(args[2], wide)), args[0]
    for i in range(4):
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), 16), [*range(i, 64, 4)])
        total = builder.add(total, builder.shuffle_vector(p, p, lanes))
    return total

v._call = emulated
import alphabook.arithmetic as spec
import alphabook.cpu_products as cpu
from alphabook.blocks import random_blocks
cpu._path[0] = 'vnni'
for type in ('Q4_K', 'Q6_K', 'Q8_0', 'IQ4_NL', 'IQ2_S', 'Q5_1'):
    data, x = random_blocks(type, 18, 512, np.random.default_rng(0)), np.random.default_rng(1).normal(size=(3, 512)).astype('f')
    want = spec.matmul(spec.load_matrix(data, type), x)
    for n in (1, 3): assert cpu.matmul(cpu.load_matrix(data, type), x[:n]).tobytes() == want[:n].tobytes(), (type, n)
print('equal')
"""


@pytest.mark.skipif(vectors.VNNI in PATHS, reason='this CPU runs the real instructions')
def test_the_vnni_path_with_its_instructions_emulated(tmp_path):
    env = os.environ | {'NUMBA_CACHE_DIR': str(tmp_path)}
    run = subprocess.run([sys.executable, '-c', EMULATED], env=env, capture_output=True, text=True)
    assert run.stdout.strip() == 'equal', run.stderr[-2000:]
