"""Every family against two programs that share nothing with ours: transformers and llama.cpp, on files that llama.cpp's
converter wrote (figures: data/results/cpu/oracle-families-*.json)."""
import functools

import numpy as np
import pytest

from family_oracle import ALONE, FAMILIES, GOLDEN, MTP, SYNTH, bundled, computed, cosine, model, recording, synthetic

pytest.importorskip('torch')
HERE = [f for f in FAMILIES if (GOLDEN / 'models' / f'{f}.npz').exists()]


@functools.cache
def ours(family, arm): return computed(model(family), recording(family), arm)


def test_all_are_recorded(): assert HERE == list(FAMILIES)


@pytest.mark.parametrize('family', HERE)
def test_the_two_oracles_agree(family):
    "Else one of them would have to be doubted first. (gemma3: llama.cpp looks GELU up in a float16 table.)"
    c = cosine(recording(family)['hf'], recording(family)['llama'])
    if family in ALONE: c = c[:19]       # they differ from where attention chooses: a budget of 16 tokens, a tail of 3
    assert c.min() > 0.999999


@pytest.mark.parametrize('family', HERE)
def test_reference(family):
    got, rec = ours(family, 'reference'), recording(family)
    for oracle in ('hf', *(['llama'] if family not in ALONE else [])):
        assert cosine(got['forced'], rec[oracle]).min() >= 0.9999, oracle
    assert np.abs(got['forced'] - rec['hf']).max() < 1e-4 * rec['hf'].std()         # float32 in another order


@pytest.mark.parametrize('family', HERE)
def test_round(family):
    "Keys and values are rounded to float16, nothing else is."
    got, rec = ours(family, 'round'), recording(family)
    for oracle in ('hf', *(['llama'] if family not in ALONE else [])):
        assert cosine(got['forced'], rec[oracle]).min() >= 0.9999, oracle
    assert np.abs(got['forced'] - rec['hf']).max() < 5e-3 * rec['hf'].std()         # ten roundings to float16 (2⁻¹¹)


@pytest.mark.parametrize('family', [f for f in MTP if f in HERE])
def test_mtp(family):
    got, rec = ours(family, 'reference'), recording(family)
    assert cosine(got['mtp'], rec['hf_mtp']).min() >= 0.9999
    assert cosine(got['mtp'], rec['llama_mtp']).min() >= 0.9999


# What synth writes. qwen4exp's shapes are left to transformers: llama.cpp's version differs.
CASES = [c for c in SYNTH if 'qwen4exp' not in c]


@functools.cache
def on_synthetic(case, arm): return computed(*synthetic(case), arm)


@pytest.mark.parametrize('case', CASES)
def test_reference_on_synthetic_files(case):
    got, rec = on_synthetic(case, 'reference'), synthetic(case)[1]
    assert cosine(got['forced'], rec['llama']).min() >= 0.9999
    if 'mtp' in rec: assert cosine(got['mtp'], rec['mtp']).min() >= 0.9999


@pytest.mark.parametrize('case', CASES)
def test_round_on_synthetic_files(case):
    got, rec = on_synthetic(case, 'round'), synthetic(case)[1]
    assert cosine(got['forced'], rec['llama']).min() >= (0.9999 if case.endswith('F16') else 0.999)


@pytest.mark.parametrize('family', FAMILIES)
def test_a_model_of_test_size(family, tiny_model):
    "At most 2 MB, MTP block included, and the same bytes again."
    from alphabook.architecture import MTP_FAMILIES
    from alphabook.synth import synth
    type, mtp = 'Q4_0' if family == 'qwen4exp' else 'Q8_0', int(family in MTP_FAMILIES)
    path = tiny_model(family, type, mtp)
    assert path.stat().st_size <= 2_000_000
    assert synth(f'tiny-{family}', type, path.with_name('again.gguf'), mtp=mtp).read_bytes() == path.read_bytes()


def test_the_bundled_model():
    "Trained weights, in the types of its file; llama.cpp reads the text, the file and its MTP block as we do."
    from alphabook.modelfile import ModelFile
    from alphabook.tokenizer import Tokenizer
    path, rec = bundled()
    with ModelFile(path) as mf: assert Tokenizer.from_meta(mf.meta).encode(str(rec['text'])) == rec['ids'].tolist()
    step, plain, fast = int(rec['row']), computed(path, rec, 'reference'), computed(path, rec, 'round')
    assert cosine(plain['forced'][::step], rec['llama']).min() >= 0.9999
    assert cosine(plain['mtp'][::step], rec['mtp']).min() >= 0.9999
    assert cosine(fast['forced'][::step], rec['llama']).min() >= 0.999
