"""Whole models by the GPU's layers and rounds, in Triton's interpreter: the bits of the numpy spec.

On a GPU the same rows were compared with tests/golden/gpu_models.json by data/trials/gpu_models.py.
"""
import os, re, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip('triton', reason='triton is not installed (there is none for this system)')
pytest.importorskip('torch')


def test_rounds_replay_chunks_and_greedy_steps():
    "A dense model, its keys and values in float16 and in blocks; hybrids with experts, a shared one, streams and phrases, and a round of which two rows of three are accepted."
    env = os.environ | {'TRITON_INTERPRET': '1', 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    p = subprocess.run([sys.executable, 'data/trials/gpu_models.py', 'small'], cwd=ROOT, capture_output=True, text=True,
                       timeout=600, env=env)
    assert p.returncode == 0, p.stderr[-2000:]
    assert re.findall(r'^(\S+) rows (\d+) different (\d+) ', p.stdout, re.M) == [
        ('tiny-llama', '4', '0'), ('tiny-llama', '4', '0'), ('tiny-qwen35moe', '4', '0'), ('tiny-qwen4exp', '4', '0')]
