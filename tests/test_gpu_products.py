"""Products of the GPU backend: in Triton's interpreter the same bits as the numpy spec; compiled for every architecture.

On an H200 the same checks run at full size by data/trials/gpu_products.py; results are in data/results/h200.
"""
import json, os, re, subprocess, sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed (there is none for this system)")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
TRIAL = ROOT/"data"/"trials"/"gpu_products.py"
MAIN = ["Q4_K", "Q6_K", "Q4_1", "IQ4_XS"]        # each kind of code, block, group and offset

def script(text: str, interpret: bool = True) -> str:
    "What a script prints, in a process of its own: Triton decides at its import who runs kernels."
    env = os.environ | {"TRITON_INTERPRET": "1" if interpret else "0", "PYTHONPATH": f"{ROOT}:{TRIAL.parent}"}
    p = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, timeout=600,
                       env=env)
    assert p.returncode == 0, p.stderr[-2000:]
    return p.stdout

def check(call: str) -> tuple:
    "(values compared, values different, where) of a check of the trial script."
    head = "import json, numpy as np, gpu_products as t; rng = np.random.default_rng(1); "
    return json.loads(script(f"{head}print(json.dumps(t.{call}))").splitlines()[-1])

@pytest.mark.parametrize("type", MAIN)
def test_products_of_every_kind(type):
    "One and nine columns, rows and weights that fill no tile; sums near their bounds."
    shapes = [(20, 608 if type == "Q4_1" else 768, False), (16, 256, True)]
    n, bad, where = check(f"check_products({type!r}, {shapes}, (1, 9), 'cpu', rng)")
    assert n > 1000 and bad == 0, where

def test_long_rows_use_another_kernel():
    "More than eight superblocks: sums between passes, and the kernel for many columns."
    n, bad, where = check("check_products('Q4_K', [(20, 2304, False)], (1, 9), 'cpu', rng)")
    assert n > 2000 and bad == 0, where

def test_float_matrices():
    n, bad, where = check("check_products('BF16', [(5, 100, False), (5, 600, False)], (1, 5), 'cpu', rng)")
    assert n > 100 and bad == 0, where

def test_experts():
    "Rows of several experts, some sharing activations; rows of a matrix that are no multiple of 16."
    n, bad, where = check("check_experts('Q4_K', 'cpu', rng, True)")
    assert n > 500 and bad == 0, where

def test_norm_and_gates_are_quantized_alike():
    "Fused with a norm or a gated activation: the same integers as of the numpy spec's floats."
    n, bad, where = check("check_fused('cpu', rng, True)")
    assert n > 5000 and bad == 0, where

def test_rows_without_an_expert():
    "Padding rows route nowhere: ids outside 0 … E − 1 are in no task."
    out = script("import torch, alphabook.gpu_experts as ge; t = ge.group_rows(torch.tensor([3, -1, 3, 0, 7, 3]), 5); "
                 "n = int(t.count); print(n, t.expert[:n].tolist(), t.start[:n + 1].tolist(), t.rows[:4].tolist())")
    assert out.strip() == "2 [0, 3] [0, 1, 4] [3, 0, 2, 5]"
