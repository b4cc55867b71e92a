"""Every chapter runs top to bottom, each in a process of its own, on a CPU, in under a minute."""
import os, subprocess, sys
from pathlib import Path

import nbformat
import pytest

from conftest import ROOT
from execute import SECONDS, cache_path

NOTEBOOKS = sorted((ROOT / "nbs").glob("*.ipynb"))

def run(notebook: Path, out: Path) -> subprocess.CompletedProcess:
    "As a reader would, without a GPU. What the cells print and draw goes to `out`, where the site finds it."
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, ROOT / "docs" / "execute.py", notebook, out], env=env,
                          capture_output=True, text=True, timeout=4 * SECONDS)

@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_chapter_runs(notebook):
    done = run(notebook, cache_path(notebook))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    seconds = float(done.stdout.split()[-2])
    assert seconds < SECONDS, f"{notebook.name} took {seconds:.0f} s; a chapter may take {SECONDS}"

@pytest.mark.parametrize("source", ["assert 1 + 1 == 3", "1 / 0", "import a_module_that_is_not_there", "def f(:"])
def test_a_failing_cell_fails_its_chapter(tmp_path, source):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in ("x = 1", source)])
    nbformat.write(nb, tmp_path / "99_bad.ipynb")
    done = run(tmp_path / "99_bad.ipynb", tmp_path / "out.ipynb")
    assert done.returncode == 1 and not (tmp_path / "out.ipynb").exists()
    errors = ("AssertionError", "ZeroDivisionError", "ModuleNotFoundError", "SyntaxError")
    assert any(error in done.stderr for error in errors)

def test_a_passing_notebook_passes(tmp_path):
    sources = ("print(6 * 7)", "#| eval: false\n1 / 0")
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    nbformat.write(nb, tmp_path / "99_good.ipynb")
    done = run(tmp_path / "99_good.ipynb", tmp_path / "out.ipynb")
    assert done.returncode == 0, done.stderr
    assert nbformat.read(tmp_path / "out.ipynb", 4).cells[0].outputs[0].text.strip() == "42"
