"""Build the website and the README from the notebooks.

    python docs/build.py             # the site, into _docs/: open _docs/index.html
    python docs/build.py --readme    # README.md, from nbs/index.ipynb

The site needs no server and no network: styles, scripts, search and figures lie beside the pages.
"""
import argparse, html, importlib.util, json, re, shutil, subprocess, sys
from itertools import groupby
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import pages
from book import ROOT, Chapter, chapters, exported_names
from execute import SECONDS, cache_path
from render import Page

DOCS = ROOT / "docs"
MADE = {"knobs": ("Every knob", pages.knobs_page), "results": ("Results", pages.results_page)}   # pages from code and data
ALSO = {**pages.WRITTEN, **{f"{k}.md": v[0] for k, v in MADE.items()}, "CONTRIBUTING.md": "Contributing",
        "CHANGELOG.md": "Changes", "SECURITY.md": "Security"}                                     # what is listed beside the chapters
MARK = "<!-- chapters -->"                                             # in index.ipynb: the table of chapters goes here
MEASURED = "<!-- measured -->"                                         # and here, what was measured

# The README
def chapter_table(book: list[Chapter], link) -> str:
    "A Markdown table a part: number and title, promise."
    rows = []
    for part, group in groupby(book, lambda c: c.part):
        rows += [f"| **{part}** | |"] + [f"| {c.number} [{c.title}]({link(c)}) | {c.promise} |" for c in group]
    return "\n".join(["| chapter | what it promises |", "|---|---|", *rows])

def index_text(nbs: Path) -> str:
    "The Markdown of index.ipynb."
    return "\n\n".join(c.source for c in nbformat.read(nbs / "index.ipynb", 4).cells if c.cell_type == "markdown")

def readme(nbs: Path = ROOT / "nbs") -> str:
    "README.md as it should be: index.ipynb with the table of chapters, and links that work from the repository's root."
    text = index_text(nbs).replace(MARK, chapter_table(chapters(nbs), lambda c: f"nbs/{c.path.name}"))
    text = text.replace(MEASURED, pages.summary_table())
    text = re.sub(r"\]\((?!\w+:|#|nbs/)(?!\.\./)", "](nbs/", text).replace("](../", "](")
    return f"<!-- Made by `python docs/build.py --readme` from nbs/index.ipynb: edit that. -->\n\n{text.strip()}\n"

# The site
def executed(chapter: Chapter) -> Path:
    "The chapter with its outputs; runs it if nothing it depends on was run before."
    out = cache_path(chapter.path)
    if not out.exists():
        run = subprocess.run([sys.executable, DOCS / "execute.py", chapter.path, out],
                             capture_output=True, text=True, timeout=5 * SECONDS)
        if run.returncode: raise RuntimeError(f"{chapter.path.name} does not run:\n{run.stderr}")
        print(run.stdout.strip(), file=sys.stderr)
    return out

def site_link(href: str) -> str:
    "A link between notebooks or to the repository's Markdown files, as a link between pages."
    page, _, anchor = href.partition("#")
    page = page.removeprefix("./")
    if page.endswith(".ipynb"): page = Path(page).name.removesuffix(".ipynb") + ".html"
    elif Path(page).name in ALSO: page = Path(page).stem.lower() + ".html"
    return page + (f"#{anchor}" if anchor else "")

def body(chapter: Chapter, page: Page) -> str:
    "The chapter's cells below its title, then what it exports."
    first, *cells = nbformat.read(executed(chapter), 4).cells
    page.section(1, chapter.title, ""); page.note(chapter.promise)
    first.source = re.sub(r"^# .+$|^>.*$", "", first.source, flags=re.M).strip()
    return "\n".join(page.cell(c) for c in [first, *cells]) + page.api(chapter)

def names_page(book: list[Chapter]) -> str:
    "Every exported name, by chapter."
    out = []
    for c in book:
        if names := exported_names(c):
            items = [f'<li><a href="{c.url}#api-{n}"><code>{n}</code></a></li>' for n in sorted(names, key=str.lower)]
            out += [f'<h2 id="{c.module}"><a href="{c.url}">{c.number} {html.escape(c.title)}</a></h2>',
                    f'<ul class="names">{" ".join(items)}</ul>']
    return "\n".join(out)

def math_font(out: Path):
    "STIX Two Math (SIL Open Font License, carried by the package ziamath), cut down to what formulas need."
    from fontTools import subset
    package = Path(importlib.util.find_spec("ziamath").origin).parent
    options = subset.Options(flavor="woff", layout_features=["*"])
    options.drop_tables += ["DSIG"]
    font = subset.load_font(package / "fonts" / "STIXTwoMath-Regular.ttf", options)
    cut = subset.Subsetter(options)
    ranges = (0x20, 0x180), (0x370, 0x400), (0x2000, 0x2400), (0x27C0, 0x2B00), (0x1D400, 0x1D800)
    cut.populate(unicodes=[c for first, end in ranges for c in range(first, end)])
    cut.subset(font)
    subset.save_font(font, out, options)

def beside(file: str) -> str:
    "The Markdown of a page beside the chapters."
    if made := MADE.get(Path(file).stem): return made[1]()
    path = DOCS / file if file in pages.WRITTEN else ROOT / file
    return re.sub(r"^# .+\n", "", path.read_text(encoding="utf-8"))

def short_title(chapter: Chapter, book: list[Chapter]) -> str:
    "A title up to its colon, or whole where another chapter's begins the same."
    begin = lambda c: c.title.split(":")[0]
    return begin(chapter) if sum(begin(c) == begin(chapter) for c in book) == 1 else chapter.title

def search_entries(page: Page, title: str) -> list[dict]:
    "One entry a section: u(rl), p(age), s(ection), t(ext)."
    return [dict(u=page.url + (f"#{s['id']}" if s["id"] else ""), p=title, s=s["title"],
                 t=re.sub(r"\s+", " ", " ".join(s["text"]))) for s in page.sections]

def build(out: Path = ROOT / "_docs", nbs: Path = ROOT / "nbs") -> Path:
    "Write the whole site; returns the path of its first page."
    book = chapters(nbs)
    sys.path.insert(0, str(ROOT))
    for c in book: executed(c)   # a chapter that does not run stops the build before the old site is gone
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    names = {n: f"{c.url}#api-{n}" for c in book for n in exported_names(c)}
    template = Environment(loader=FileSystemLoader(DOCS), undefined=StrictUndefined).get_template("page.html")
    parts = [(part, list(group)) for part, group in groupby(book, lambda c: c.part)]
    index = []

    def write(page: Page, title: str, content: str, chapter: Chapter | None = None):
        i = book.index(chapter) if chapter else -1
        index.extend(search_entries(page, f"{chapter.number} {title}" if chapter else title))
        (out / page.url).write_text(template.render(
            title=title, content=content, chapter=chapter, parts=parts, also=ALSO, e=html.escape,
            short=lambda c: short_title(c, book),
            inline=page.md.renderInline,
            toc=[s for s in page.sections if s["level"] == 2 and s["id"]],
            before=book[i - 1] if i > 0 else None,
            after=book[i + 1] if 0 <= i < len(book) - 1 else None), encoding="utf-8")

    new = lambda url: Page(url, names, out / "figures", site_link)
    for c in book:
        page = new(c.url)
        write(page, c.title, body(c, page), c)
    page = new("index.html")
    text = index_text(nbs).replace(MARK, chapter_table(book, lambda c: c.path.name))
    text = text.replace(MEASURED, pages.summary_table()).replace("../docs/round.svg", "round.svg")
    write(page, "alphabook", page.prose(text))
    page = new("names.html")
    page.section(1, "All names", "")
    write(page, "All names", names_page(book))
    for file, title in ALSO.items():
        page = new(f"{Path(file).stem.lower()}.html")
        if file == "knobs.md": page.names = {}   # `auto` is a value there, not a function
        write(page, title, page.prose(beside(file)))
    for path, d in pages.results():
        page = new(f"result-{path.parent.name}-{path.stem}.html")
        page.section(1, d["topic"], "")
        write(page, f"{d['topic']}, {path.parent.name}", page.prose(f"{pages.result_facts(path, d)}\n\n{pages.result_table(d)}"))
    for name in ("style.css", "book.js", "round.svg"): shutil.copy(DOCS / name, out)
    math_font(out / "math.woff")
    data = json.dumps(index, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    (out / "search.js").write_text(f"window.BOOK={data};\n", encoding="utf-8")
    return out / "index.html"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readme", action="store_true", help="write README.md instead of the site")
    parser.add_argument("--out", type=Path, default=ROOT / "_docs", help="folder of the site (is emptied first)")
    parser.add_argument("--nbs", type=Path, default=ROOT / "nbs", help="folder of the notebooks")
    args = parser.parse_args()
    if args.readme:
        (ROOT / "README.md").write_text(readme(args.nbs), encoding="utf-8")
        print("wrote README.md", file=sys.stderr)
    else: print(build(args.out.resolve(), args.nbs.resolve()))
