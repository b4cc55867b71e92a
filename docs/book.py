"""What the book consists of: its parts, its chapters, and what each of them says about itself."""
import ast, re
from dataclasses import dataclass
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
PARTS = [  # title, first and last chapter number
    ("I", "The file", 1, 5), ("II", "The model", 6, 8), ("III", "The round", 9, 12),
    ("IV", "Speculation", 13, 18), ("V", "Bigger than the card", 19, 22), ("VI", "The engine", 23, 28),
    ("VII", "A model of our own", 29, 29)]

@dataclass
class Chapter:
    path: Path # the notebook
    number: str # '01', '02a'
    title: str # its first heading
    promise: str # the quotation below the heading
    module: str # what it exports to, '' if nothing

    @property
    def url(self) -> str: return self.path.stem + ".html"

    @property
    def part(self) -> str:
        "'I · The file'"
        n = int(re.match(r"\d+", self.number).group())
        return next((f"{roman} · {name}" for roman, name, a, b in PARTS if a <= n <= b), "Appendix")

def read_chapter(path: Path) -> Chapter:
    "The first cell is `# Title` and `> promise`; `#| default_exp` names the module."
    cells = nbformat.read(path, 4).cells
    if not cells: raise ValueError(f"{path.name}: no cells; a chapter begins with '# Title' and '> promise'")
    title = re.search(r"^# (.+)$", cells[0].source, re.M)
    promise = re.search(r"^> (.+(?:\n> ?.*)*)", cells[0].source, re.M)
    if not (title and promise): raise ValueError(f"{path.name}: the first cell must hold '# Title' and '> promise'")
    module = next((m.group(1) for c in cells if (m := re.search(r"^#\| default_exp (\S+)", c.source, re.M))), "")
    return Chapter(path, path.stem.split("_")[0], title.group(1).strip(),
                   " ".join(line.lstrip("> ") for line in promise.group(1).splitlines()), module)

def chapters(folder: Path = ROOT / "nbs") -> list[Chapter]:
    "In reading order, which is the order of the file names."
    return [read_chapter(path) for path in sorted(folder.glob("[0-9]*_*.ipynb"))]

def exported_names(chapter: Chapter) -> list[str]:
    "The module's `__all__`, read without importing it."
    path = ROOT / "alphabook" / f"{chapter.module}.py"
    if not chapter.module or not path.exists(): return []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []
