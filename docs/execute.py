"""Run one notebook top to bottom, as a reader would, and keep what its cells printed and drew.

    python docs/execute.py nbs/01_modelfile.ipynb

Notebooks are committed without outputs; the site shows outputs that were just computed. They are kept in `.cache/`
under a key made from all that a chapter may depend on, so a second build runs only what changed.
"""
import hashlib, importlib.metadata, os, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "executed"
SECONDS = 60  # the most a chapter may take

def cache_path(
    notebook: Path, # a chapter
) -> Path: # where its executed copy lies; the name changes with anything that the chapter may depend on
    "A chapter depends on itself, its own and earlier chapters' modules, recorded results, and the libraries."
    notebook, key = Path(notebook).resolve(), hashlib.sha256()
    earlier = [nb for nb in sorted(notebook.parent.glob("[0-9]*.ipynb")) if nb.name <= notebook.name]
    modules = [ROOT / "alphabook" / f"{nb.stem.split('_', 1)[-1]}.py" for nb in earlier]
    results = sorted(ROOT.glob("data/**/*.json"))
    for path in [notebook, Path(__file__), ROOT / "docs" / "matplotlibrc", *modules, *results]:
        if path.exists(): key.update(path.name.encode() + b"\0" + path.read_bytes())
    for name in ("numpy", "numba", "matplotlib", "torch"):
        try: key.update(f"{name} {importlib.metadata.version(name)}".encode())
        except importlib.metadata.PackageNotFoundError: pass
    return CACHE / f"{notebook.stem}-{key.hexdigest()[:16]}.ipynb"

def execute(
    notebook: Path, # runs in its own folder, with this process's environment
    out: Path, # where the executed copy is written, if every cell passes
) -> float: # seconds, or those of processors where they are fewer: chapters may run side by side
    "Run every cell that nbdev-test would run; raises `SystemExit` with the cell's traceback at the first that fails."
    os.environ.setdefault("MATPLOTLIBRC", str(ROOT / "docs" / "matplotlibrc"))
    sys.path.insert(0, str(ROOT))
    from execnb.shell import CaptureShell
    from fastcore.nbio import write_nb
    from matplotlib_inline.backend_inline import set_matplotlib_formats
    from nbdev.process import NBProcessor
    from nbdev.test import _skip_cell
    nb = NBProcessor(notebook, rm_directives=False, process=True).nb
    shell, start, used = CaptureShell(notebook), time.perf_counter(), sum(os.times()[:4])
    set_matplotlib_formats("svg", "retina")   # the site takes the SVG, or the PNG where that is far smaller
    os.chdir(Path(notebook).parent)
    try: shell.run_all(nb, exc_stop=True, preproc=_skip_cell(nb))
    except Exception: sys.exit(shell.prettytb(fname=notebook))
    for cell in nb.cells: cell.pop("directives_", None)
    out.parent.mkdir(parents=True, exist_ok=True)
    for old in out.parent.glob(f"{Path(notebook).stem}-*.ipynb"): old.unlink()
    write_nb(nb, out)
    return min(time.perf_counter() - start, sum(os.times()[:4]) - used)

if __name__ == "__main__":
    path = Path(sys.argv[1]).resolve()
    out = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else cache_path(path)
    print(f"{path.name}: {execute(path, out):.1f} s")
