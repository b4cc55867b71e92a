"The round's straight-line code against the fp32 torch reference, on the variations that a file's metadata can ask for."
import numpy as np
import pytest

import alphabook.arithmetic as spec
import alphabook.cpu as cpu
from alphabook.config import load_config
from alphabook.modelfile import ModelFile, write_gguf
from alphabook.rounds import Model, prefill, run_round
from alphabook.synth import synth

F32 = lambda a: np.asarray(a, '<f4')


def variant(tmp_path, like, meta=(), drop=(), tensors=None):
    "A tiny F32 model with some metadata and tensors changed."
    synth(like, 'F32', tmp_path / 'base.gguf')
    with ModelFile(tmp_path / 'base.gguf') as mf:
        kept = {k: v for k, v in mf.meta.typed().items() if k not in drop} | dict(meta)
        old = {n: (t.shape, t.type.name, bytes(t.data)) for n, t in mf.tensors.items()}
    new = {n: (a.shape, 'F32', a.tobytes()) for n, a in (tensors or {}).items()}
    write_gguf(tmp_path / 'm.gguf', kept, [(n, *v) for n, v in (old | new).items()])
    return tmp_path / 'm.gguf'


CASES = {
    'plain': dict(),
    'linear scaling': dict(meta={'llama.rope.scaling.type': ('string', 'linear'), 'llama.rope.scaling.factor': ('float32', 4.0)}),
    'another base': dict(meta={'llama.rope.freq_base': ('float32', 500000.0)}),
    'long-context factors': dict(factors=True),
    'partial rotation': dict(meta={'llama.rope.dimension_count': ('uint32', 16)}),
}


@pytest.mark.parametrize('case', CASES)
def test_llama_variations(case, tmp_path):
    pytest.importorskip('torch')
    options = dict(CASES[case])
    if options.pop('factors', False):
        synth('tiny-llama', 'F32', tmp_path / 'look.gguf')
        with ModelFile(tmp_path / 'look.gguf') as mf: n = load_config(mf).rope_dim // 2
        options['tensors'] = {'rope_freqs.weight': F32(np.linspace(1, 8, n))}
    check(variant(tmp_path, 'tiny-llama', **options))


@pytest.mark.parametrize('like, meta', [
    ('tiny-gemma3', {'gemma3.final_logit_softcapping': ('float32', 3.0)}), ('tiny-qwen2', {}), ('tiny-qwen3', {}),
    ('tiny-gemma3', {'gemma3.attention.sliding_window': ('uint32', 7)})])
def test_others(like, meta, tmp_path):
    pytest.importorskip('torch')
    check(variant(tmp_path, like, meta))


def check(path):
    from alphabook.reference import Reference
    ids = np.random.default_rng(0).integers(0, 250, 70)
    with ModelFile(path) as mf:
        want = Reference(mf).logits(ids)
        model = Model(mf, load_config(mf), cpu)
        cache = model.new_cache(70)
        prefill(model, cache, ids[:10])
        got = run_round(model, cache, ids[10:])
        slow = Model(mf, load_config(mf), spec)
        cache = slow.new_cache(70)
        assert prefill(slow, cache, ids[:5]).tobytes() == run_round(model, model.new_cache(70), ids[:5])[-1].tobytes()
    # keys and values are rounded to float16: 2⁻¹¹ of values of about 1, in logits with a deviation of about 3
    assert np.abs(got - want[10:]).max() < 0.01 * want.std() + 0.005, np.abs(got - want[10:]).max()


def test_a_round_past_the_context_is_refused(tmp_path):
    synth('tiny-llama', 'Q8_0', tmp_path / 'm.gguf')
    with ModelFile(tmp_path / 'm.gguf') as mf:
        model = Model(mf, load_config(mf), cpu)
        cache = model.new_cache(64)
        prefill(model, cache, list(range(56)))
        with pytest.raises(ValueError, match='past the context'): run_round(model, cache, list(range(16)))
        assert cache.n == 56
