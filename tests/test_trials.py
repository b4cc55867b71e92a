"""The GPU kernels of `data/trials`, on small shapes in Triton's interpreter: the same bits as the contract.

On a GPU they were run with the same checks; the results are in data/results/h200.
"""
import os, re, subprocess, sys
from pathlib import Path

import pytest

TRIALS = Path(__file__).parents[1] / 'data' / 'trials'
pytest.importorskip('triton', reason='triton is not installed (there is none for this system)')
pytest.importorskip('torch')


def output(tmp_path, *argv):
    "What a trial prints in the interpreter."
    p = subprocess.run([sys.executable, *argv, '--out', str(tmp_path)], cwd=TRIALS, capture_output=True, text=True, timeout=300,
                       env=os.environ | {'TRITON_INTERPRET': '1', 'PYTHONPATH': str(TRIALS.parents[1])})
    assert p.returncode == 0, p.stderr[-2000:]
    return p.stdout


@pytest.mark.parametrize('type', ['Q4_K', 'Q6_K', 'Q8_0', 'Q5_0', 'Q4_1'])
def test_product(type, tmp_path):
    "One and many columns, ragged shapes, worst-case integers, against an exact reference."
    out = output(tmp_path, 'contract_triton.py', 'check', '--kinds', type, '--widths', '1,8')
    compared, different = map(int, re.search(rf'^{type} (\d+) (\d+) ', out, re.M).groups())
    assert compared > 500 and different == 0


def test_functions_norm_rope_and_attention(tmp_path):
    "Against chapters 03a and 03b themselves."
    out = output(tmp_path, 'contract_math.py', '--small')
    compared, different = map(int, re.search(r'^total .*?(\d+) different (\d+)', out, re.M).groups())
    assert compared > 100_000 and different == 0


def test_the_reference_of_the_trials_is_the_contract(monkeypatch):
    monkeypatch.syspath_prepend(str(TRIALS))
    import contract_reference
    compared, different = contract_reference.compare_alphabook()
    assert compared > 1000 and different == 0


def test_kernels_without_the_contract_are_right_but_for_rounding(tmp_path):
    "What exactness is timed against on a GPU: products within rounding of the exact ones; those of float16 weights a little further off."
    found = re.findall(r'^(.+) ([\d.]+)$', output(tmp_path, 'gpu_exactness.py', 'small'), re.M)
    assert len(found) == 15 and all(float(off) < (0.04 if name.startswith('f16') else 0.003) for name, off in found), found
