"""The website: complete, self-contained, without a dead link."""
import json, re, socket
from html.parser import HTMLParser
from pathlib import Path

import pytest

from book import chapters

class Collect(HTMLParser):
    "Ids, links and loaded assets of a page."
    def __init__(self, text: str):
        super().__init__()
        self.ids, self.links, self.assets, self.headings, self.inside = [], [], [], [], ""
        self.feed(text)
    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if "id" in a: self.ids.append(a["id"])
        if tag == "a" and "href" in a: self.links.append(a["href"])
        if tag == "link": self.assets.append(a["href"])
        for key in ("src", "srcset", "poster", "data"):
            if key in a and tag != "a": self.assets.append(a[key])
        if tag == "h1": self.inside = "h1"; self.headings.append("")
    def handle_endtag(self, tag): self.inside = "" if tag == "h1" else self.inside
    def handle_data(self, data):
        if self.inside: self.headings[-1] += data

def problems(site: Path) -> list[str]:
    "Dead links and anchors, ids that occur twice, and anything that would be loaded from elsewhere."
    pages, found = {p.name: Collect(p.read_text(encoding="utf-8")) for p in site.glob("*.html")}, []
    for name, page in pages.items():
        found += [f"{name}: id {i!r} occurs twice" for i in sorted({i for i in page.ids if page.ids.count(i) > 1})]
        for asset in page.assets:
            if asset.startswith("data:"): continue
            if re.match(r"\w+:|//", asset): found.append(f"{name}: loads {asset}")
            elif not (site / asset).is_file(): found.append(f"{name}: {asset} is missing")
        for link in page.links:
            if re.match(r"(https?|mailto):", link): continue
            target, _, anchor = link.partition("#")
            if (target or name) not in pages: found.append(f"{name}: dead link {link}")
            elif anchor and anchor not in pages[target or name].ids: found.append(f"{name}: dead anchor {link}")
    for path in [*site.rglob("*.css"), *site.rglob("*.js"), *site.rglob("*.svg")]:
        text = path.read_text(encoding="utf-8")
        loads = r"url\(\s*['\"]?(?:https?:)?//|@import|fetch\(|XMLHttpRequest|\bimport\("
        if path.name == "search.js": loads = r"^(?!window\.BOOK=)."
        if path.suffix == ".svg": loads = r"<script|<image[^>]+href=\"http|url\(http"
        found += [f"{path.name}: loads {m.group()}" for m in re.finditer(loads, text, re.M)]
    return found

@pytest.fixture(scope="module")
def site(tmp_path_factory):
    "Built without a network. Chapters that test_notebooks ran are not run again."
    import build
    def refuse(self, address): raise OSError(f"the site asked for {address}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        return build.build(tmp_path_factory.mktemp("site") / "out").parent

def test_no_dead_link_and_nothing_from_elsewhere(site):
    assert problems(site) == []

def test_every_chapter_has_its_page(site):
    for c in chapters():
        page = Collect((site / c.url).read_text(encoding="utf-8"))
        assert [re.sub(r"\s+", " ", h) for h in page.headings] == [re.sub(r"[`*]", "", c.title)]
        for other in chapters(): assert other.url in page.links, f"{c.url} does not lead to {other.url}"
    assert "alphabook" in Collect((site / "index.html").read_text(encoding="utf-8")).headings

def test_search_covers_every_chapter(site):
    script = (site / "search.js").read_text(encoding="utf-8")
    entries = json.loads(script.removeprefix("window.BOOK=").rstrip().removesuffix(";"))
    for c in chapters():
        assert sum(len(e["t"]) for e in entries if e["u"].split("#")[0] == c.url) > 1000, c.url
    assert all((site / e["u"].split("#")[0]).is_file() for e in entries)

def test_exported_names_are_documented(site):
    from book import exported_names
    for c in chapters():
        ids = set(Collect((site / c.url).read_text(encoding="utf-8")).ids)
        assert {f"api-{name}" for name in exported_names(c)} <= ids

def test_mathematics_and_code_are_rendered(site):
    text = "".join(p.read_text(encoding="utf-8") for p in site.glob("[0-9]*.html"))
    assert "<math" in text and '<span class="k">' in text
    prose = re.sub(r"<(pre|code|math|script)\b.*?</\1>", "", text, flags=re.S)
    assert not re.search(r"\$\$|\\frac|\\sum", prose), "a formula was left as it was typed"

def test_the_tests_can_fail(tmp_path):
    (tmp_path / "a.html").write_text('<h1>A</h1><p id="x"></p><p id="x"></p><a href="b.html">b</a><a href="#y">y</a>'
                                     '<script src="https://example.org/x.js"></script><img src="gone.svg">')
    (tmp_path / "s.css").write_text("@font-face { src: url(https://example.org/f.woff) }")
    found = "\n".join(problems(tmp_path))
    for what in ("occurs twice", "dead link b.html", "dead anchor #y", "loads https://example.org/x.js",
                 "gone.svg is missing", "s.css: loads"):
        assert what in found
