"""Spec and CPU backend, which share no code, at sizes and values where a shared assumption would break: bit for bit."""
import numpy as np
import pytest

import alphabook.cpu_streams as cpu
import alphabook.streams as spec
from alphabook.arms import make_text
from alphabook.blocks import quantize, random_blocks
from alphabook.config import load_config
from alphabook.engine import Engine
from alphabook.layers import Model
from alphabook.modelfile import ModelFile, write_gguf
from alphabook.rounds import run_round
from alphabook.synth import synth

F = np.float32
TYPES = ('Q4_K', 'Q6_K', 'Q8_0', 'Q5_0', 'Q4_1', 'IQ4_XS', 'MXFP4', 'F16', 'BF16')


def rng(seed=0): return np.random.default_rng(seed)


def same(a, b): return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def products(type, R, K, x, seed=0):
    "One matrix with both backends; also a row alone."
    data = random_blocks(type, R, K, rng(seed))
    mine, its = cpu.matmul(cpu.load_matrix(data, type), x), spec.matmul(spec.load_matrix(data, type), x)
    assert np.isfinite(its).all() and its.any() and same(mine, its), type
    assert same(cpu.matmul(cpu.load_matrix(data, type), x[-1:]), its[-1:]), type


@pytest.mark.parametrize('type', TYPES)
def test_long_rows(type):
    "K = 17,408: the feed-forward of a model with 27 billion weights; worst-case integers in one row."
    x = rng(1).normal(size=(3, 17408)).astype(F)
    x[1] = np.where(rng(2).random(17408) < .5, -1, 1)         # every activation is ±127
    products(type, 24, 17408, x)


@pytest.mark.parametrize('type, R', [('Q8_0', 151_936), ('Q6_K', 262_144), ('F16', 151_936)])
def test_a_whole_vocabulary(type, R):
    products(type, R, 256, rng(3).normal(size=(2, 256)).astype(F))


EXTREMES = {
    'subnormal': lambda x: (x*1e-40).astype(F), 'half subnormal': lambda x: np.where(x > 0, x, x*F(1e-42)).astype(F),
    'tiny': lambda x: (x*1e-30).astype(F), 'huge': lambda x: (x*1e15).astype(F),
    'one giant': lambda x: np.where(np.arange(x.shape[-1]) == 7, 3e18, x).astype(F),
    'zeros of both signs': lambda x: np.where(x > 0, F(0), F(-0.0)).astype(F),
    'one value': lambda x: np.full_like(x, F(0.1)), 'ties': lambda x: np.round(x*2).astype(F)/2}


@pytest.mark.parametrize('kind', EXTREMES)
@pytest.mark.filterwarnings('ignore::RuntimeWarning')
def test_extreme_activations(kind):
    "Products, norms, gates, rotations and attention: subnormals are kept, and nothing is flushed to zero."
    x = EXTREMES[kind](rng(4).normal(size=(3, 512))).astype(F)
    for type in ('Q4_K', 'Q8_0', 'Q5_0', 'F16', 'F32'):
        data = random_blocks(type, 16, 512, rng(5))
        assert same(cpu.matmul(cpu.load_matrix(data, type), x), spec.matmul(spec.load_matrix(data, type), x)), type
    w, u, heads = rng(6).normal(size=512).astype(F), rng(7).normal(size=x.shape).astype(F), x.reshape(3, 8, 64)
    for f in (lambda ops: ops.rms_norm(x, w, 1e-6), lambda ops: ops.rms_norm(x, w, 0.0 if x.any() else 1e-6),
              lambda ops: ops.l2_norm(heads), lambda ops: ops.add(x, u),
              lambda ops: ops.scale(x, 1e-3), lambda ops: ops.sigmoid_gate(u, x), lambda ops: ops.softcap(x, 30.0),
              lambda ops: ops.gated_norm(u.reshape(3, 8, 64), w[:64], 1e-6, heads, 'silu'),
              *(lambda ops, act=act: ops.gated(x, u, act) for act in ('silu', 'gelu', 'swiglu_oai')),
              lambda ops: ops.apply_rope(heads, *ops.rope_angles(np.arange(3) + 32_766, rope_steps()), 'neox'),
              lambda ops: ops.route(x, 8)[0], lambda ops: ops.route(x, 8)[1]):
        assert same(f(cpu), f(spec))
    if np.abs(x).max() < 1e4:
        k, v = heads.astype(np.float16), rng(8).normal(size=heads.shape).astype(np.float16)
        assert same(*(ops.attention(heads, k, v, np.arange(3), 0, .125) for ops in (cpu, spec)))


def rope_steps():
    from alphabook.elementary import rope_steps
    return rope_steps(1e6, 64)


@pytest.mark.parametrize('like, type', [('tiny-gemma3', 'Q8_0'), ('tiny-qwen35moe', 'Q8_0'), ('tiny-qwen4exp', 'Q8_0')])
def test_position_32768(like, type, tmp_path):
    "A text whose first 32,766 positions are random keys, values and memories; rounds that cross 32,768."
    n = 32_766
    with ModelFile(synth(like, type, tmp_path / 'm.gguf')) as mf:
        models = [Model(mf, load_config(mf), ops) for ops in (cpu, spec)]
        caches = [m.new_cache(n + 8) for m in models]
        k, v = rng(9).normal(size=(2, *caches[0].k[:, :n].shape)).astype(np.float16)
        index, S = rng(10).normal(size=caches[0].index[:, :n].shape).astype(F), rng(11).normal(size=caches[0].memory.shape).astype(F)*F(.1)
        for c in caches:
            c.k[:, :n], c.v[:, :n], c.index[:, :n], c.memory[:] = k, v, index, S
            c.ids[:n] = rng(12).integers(0, 250, n)
            c.n = c.written[:] = n
        mine, its = (run_round(m, c, [5, 6, 7]) for m, c in zip(models, caches))
        assert np.isfinite(its).all() and same(mine, its)
        for c in caches: c.commit(n + 2)
        again = run_round(models[0], caches[0], [7])
        assert same(again, its[2:3])


def test_logits_that_are_not_finite_have_no_hash(tmp_path):
    "A model whose last norm overflows: an error from the engine, greedy or not, hashed or not, and from a comparison."
    synth('tiny-llama', 'F32', tmp_path / 'base.gguf')
    with ModelFile(tmp_path / 'base.gguf') as mf:
        tensors = {n: (t.shape, t.type.name, bytes(t.data)) for n, t in mf.tensors.items()}
        shape = tensors['output_norm.weight'][0]
        tensors['output_norm.weight'] = shape, 'F32', np.full(shape, 3e38, '<f4').tobytes()
        write_gguf(tmp_path / 'm.gguf', mf.meta.typed(), [(n, *t) for n, t in tensors.items()])
    for device in ('cpu', 'numpy'):
        engine = Engine.load(tmp_path / 'm.gguf', device)
        for options in (dict(), dict(hash_logits=True), dict(hash_logits=True, temp=.7)):
            with np.errstate(all='ignore'), pytest.raises(ValueError, match='not finite'): engine.generate([5, 6], n=3, **options)
    with np.errstate(all='ignore'), pytest.raises(FloatingPointError, match='not finite'): make_text(engine.model, [5, 6], 0)
