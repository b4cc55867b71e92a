"The fp32 reference against llama.cpp's fp32 runs, recorded in tests/golden; and at its edges."
import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='the reference needs torch: pip install "alphabook[dev]"')

import oracle
from golden import tiny_models

from alphabook.modelfile import ModelFile, write_gguf
from alphabook.reference import Reference, rope_angles

torch.set_num_threads(1)                                      # small matrices; and idle threads that spin cost more
MEAN, NEAR_TIE, PERPLEXITY = 0.01, 0.01, 1e-3                 # logits, logits, relative


def agrees(d, near_tie=NEAR_TIE):
    "The three demands on a distance; prints where a near tie fell the other way."
    for miss in d['misses'][:5]: print('position %d: llama.cpp chose %d, we %d; its lead there is %.5f logits' % miss)
    for miss in d['greedy'][:5]: print('greedy step %d: llama.cpp chose %d, we %d; its lead there is %.5f logits' % miss)
    figures = {k: v for k, v in d.items() if k not in ('misses', 'greedy')}
    assert all(lead < near_tie for *_, lead in d['misses'] + d['greedy']), figures
    assert d['mean_abs'] < MEAN, figures
    assert abs(d['perplexity_ratio'] - 1) < PERPLEXITY, figures


def compare(name, path):
    rec = oracle.golden(name)
    with ModelFile(path) as mf: return oracle.distance(Reference(mf).logits(oracle.teacher_forced(rec)), rec)


@pytest.mark.parametrize('name', ('smollm2', 'gemma3-270m', 'gemma3-270m-long', 'qwen2.5-coder-0.5b'))
def test_real_models(name):
    "The long prompt is longer than Gemma's window of 512."
    try: path = oracle.model_path(name.removesuffix('-long'))
    except oracle.Missing as e: pytest.skip(str(e))
    agrees(compare(name, path))


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    "Write a tiny model, once."
    folder, made = tmp_path_factory.mktemp('tiny'), {}

    def get(name):
        if name not in made: tiny_models.write(name, made.setdefault(name, folder / f'{name}.gguf'))
        return made[name]
    return get


@pytest.mark.parametrize('name', tiny_models.NAMES)
def test_tiny_models(name, tiny):
    "Every architecture, in CI too; tiny-gemma3's prompt of 100 tokens is longer than its window of 16."
    rec = oracle.golden(name)
    assert oracle.sha256(tiny(name)) == rec['sha256'], (
        f'{name}: the file is no longer the one that was recorded: tiny_models.py or write_gguf changed; '
        'record it again: tests/golden/record_llamacpp.py --random 100')
    d = compare(name, tiny(name))
    agrees(d)
    assert not d['misses'] and not d['greedy']
    assert d['mean_abs'] < (1e-3 if name == 'tiny-gemma3' else 1e-4)         # llama.cpp's GELU is a float16 table


def test_gemmas_distance_is_llamacpps_gelu_table(tiny, monkeypatch):
    "With GELU rounded to float16 before and after, as in llama.cpp's table, most of the distance goes."
    import alphabook.reference_layers
    gelu = alphabook.reference_layers.gelu
    assert compare('tiny-gemma3', tiny('tiny-gemma3'))['mean_abs'] > 2e-4
    monkeypatch.setattr(alphabook.reference_layers, 'gelu', lambda x: gelu(x.half().float()).half().float())
    assert compare('tiny-gemma3', tiny('tiny-gemma3'))['mean_abs'] < 1e-4


@pytest.mark.parametrize('name', tiny_models.NAMES)
def test_a_row_sees_the_past_alone(name, tiny):
    ids = oracle.golden(name)['ids'][:40]
    with ModelFile(tiny(name)) as mf:
        ref = Reference(mf, keep=True)
        whole = ref.logits(ids)
        for n in (1, 17, 39): np.testing.assert_allclose(ref.logits(ids[:n]), whole[:n], atol=1e-4)
        np.testing.assert_array_equal(Reference(mf).logits(ids), whole)
        assert ref.logits([]).shape == (0, whole.shape[1])


@pytest.mark.parametrize('ids, word', (([0, 258], r'ids\[1\]: 258'), ([-1], r'ids\[0\]: -1')))
def test_ids_outside_the_vocabulary(ids, word, tiny):
    with ModelFile(tiny('tiny-llama')) as mf, pytest.raises(ValueError, match=word): Reference(mf).logits(ids)


def test_linear_rope_scaling_belongs_to_the_global_layers(tiny, tmp_path):
    "Gemma 3 from 4B on divides positions by 8 in its global layers, not in the local ones."
    path = tmp_path / 'scaled.gguf'
    with ModelFile(tiny('tiny-gemma3')) as mf:
        meta = dict(tiny_models.metadata('gemma3')) | {'gemma3.rope.scaling.type': 'linear',
                                                       'gemma3.rope.scaling.factor': ('float32', 8.)}
        write_gguf(path, meta, [(t.name, t.shape, t.type.name, t.data) for t in mf.tensors.values()])
        plain = Reference(mf).angles(9)
    with ModelFile(path) as mf: scaled = Reference(mf).angles(9)
    torch.testing.assert_close(scaled[False], plain[False] / 8)
    assert torch.equal(scaled[True], plain[True])


def test_far_angles_keep_their_digits():
    "In float64: position 2**20 of the second pair, against integers."
    from fractions import Fraction
    got = rope_angles(torch.tensor([2**20]), 4, 10000.)[0, 1].item()         # theta**(-1/2) = 1/100
    assert abs(Fraction(got) - Fraction(2**20, 100)) < Fraction(1, 10**9)
