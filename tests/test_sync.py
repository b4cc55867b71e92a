"""What is made from the notebooks equals what is committed: the package, the clean notebooks, the README."""
import shutil, subprocess, sys
from pathlib import Path

import nbformat
import pytest

from conftest import ROOT

REMAKE = """
from nbdev.clean import nbdev_clean
from nbdev.doclinks import nbdev_export
nbdev_clean(); nbdev_export(); nbdev_clean()
"""

def copy(folder: Path) -> Path:
    "The parts of the project that export and clean read."
    for name in ("nbs", "alphabook"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder

def differences(folder: Path) -> list[str]:
    "Files that change when everything is exported and cleaned again."
    files = lambda: {p.relative_to(folder).as_posix(): p.read_bytes() for name in ("nbs", "alphabook")
                     for p in sorted((folder / name).rglob("*")) if p.is_file() and "__pycache__" not in p.parts}
    before = files()
    for name in before:   # a module that no notebook exports any more must not survive
        if name.startswith("alphabook/") and name.count("/") == 1 and name[10:] not in ("__init__.py", "__main__.py"):
            (folder / name).unlink()
    subprocess.run([sys.executable, "-c", REMAKE], cwd=folder, check=True, capture_output=True, text=True)
    after = files()
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))

def test_exports_are_in_sync_and_notebooks_are_clean(tmp_path):
    assert differences(copy(tmp_path)) == [], "run: nbdev-export && nbdev-clean"

@pytest.fixture(scope="module")
def spoiled(tmp_path_factory):
    "A copy in which one cell is edited, one notebook was run, one module is edited, and one has no notebook."
    folder = copy(tmp_path_factory.mktemp("spoiled"))
    first, second = sorted((folder / "nbs").glob("[0-9]*.ipynb"))[:2]
    nb = nbformat.read(first, 4)
    next(c for c in nb.cells if c.source.startswith("#| export")).source += "\nSPOILED = 1"
    nbformat.write(nb, first)
    nb = nbformat.read(second, 4)
    next(c for c in nb.cells if c.cell_type == "code").execution_count = 7
    nbformat.write(nb, second)
    (folder / "alphabook" / "orphan.py").write_text("x = 1\n")
    return folder, first, second

def test_the_test_sees_what_is_not_in_sync(spoiled):
    folder, first, second = spoiled
    changed = differences(folder)
    assert any(name.startswith("alphabook/") for name in changed if name != "alphabook/orphan.py")
    assert f"nbs/{second.name}" in changed
    assert "alphabook/orphan.py" in changed

def test_readme_comes_from_the_index():
    from build import readme
    assert (ROOT / "README.md").read_text(encoding="utf-8") == readme(), "run: python docs/build.py --readme"
