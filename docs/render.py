"""From the cells of an executed notebook to HTML: prose, mathematics, code, output and signatures."""
import ast, base64, html, importlib, inspect, re
import xml.etree.ElementTree as ET
from pathlib import Path

import latex2mathml.converter
from fastcore.docments import docments
from markdown_it import MarkdownIt
from markdown_it.rules_core import replacements
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from book import Chapter, exported_names

MATHML = "http://www.w3.org/1998/Math/MathML"
OVER = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
ET.register_namespace("", MATHML)
replacements.SCOPED_ABBR_RE = re.compile("(?!)")   # dashes and dots are set; but (R) is a set of prompts here, no ®
slug = lambda text: re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text.lower())).strip("-") or "section"
plain = lambda markup: re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", markup))).strip()

# Mathematics is MathML, which browsers lay out by themselves: no script, no web font.
def math(latex: str, display: bool = False) -> str:
    "LaTeX to MathML; in display mode the limits of sums and maxima go above and below."
    tree = ET.fromstring(latex2mathml.converter.convert(latex, display="block" if display else "inline"))
    tree.set("alttext", latex.strip())
    for node in tree.iter() if display else []:
        kind = node.tag.removeprefix(f"{{{MATHML}}}")
        if kind in OVER and (node[0].text or "").strip() in ("∑", "∏", "max", "min", "lim", "argmax", "argmin"):
            node.tag = f"{{{MATHML}}}{OVER[kind]}"
    markup = ET.tostring(tree, encoding="unicode")
    return f'<div class="math">{markup}</div>' if display else markup

def code(source: str, language: str = "python") -> str:
    "Highlighted source without a wrapper; the colours are in style.css."
    try: lexer = get_lexer_by_name(language or "text")
    except ClassNotFound: lexer = get_lexer_by_name("text")
    return highlight(source.strip("\n"), lexer, HtmlFormatter(nowrap=True)).rstrip("\n")

class Page:
    "Renders one notebook; collects its sections for the table of contents and for the search."
    def __init__(self,
        url: str, # the page's file name
        names: dict[str, str], # exported name -> the URL of its documentation
        assets: Path, # folder for figures
        links = lambda href: href, # rewrites a link of the notebook
    ):
        self.url, self.names, self.assets, self.links = url, names, assets, links
        self.sections = []   # dict(level, title, id, text)
        self.ids, self.n_figures = {"main", "nav", "menu", "find", "theme", "search"}, 0   # the template's own
        self.md = MarkdownIt("commonmark", {"html": True, "typographer": True}).use(footnote_plugin)
        self.md.enable(["table", "strikethrough", "replacements"])
        self.md.use(dollarmath_plugin, double_inline=True, renderer=lambda s, opt: math(s, opt["display_mode"]))
        self.md.add_render_rule("fence", lambda r, tokens, i, *_: self.fence(tokens[i].content, tokens[i].info))
        self.md.add_render_rule("table_open", lambda *_: '<div class="table"><table>')
        self.md.add_render_rule("table_close", lambda *_: "</table></div>")
        self.md.add_render_rule("code_inline", lambda r, tokens, i, *_: self.inline_code(tokens[i].content))

    def new_id(self, text: str) -> str:
        base = name = slug(text); n = 1
        while name in self.ids: n += 1; name = f"{base}-{n}"
        self.ids.add(name)
        return name

    def section(self, level: int, title: str, id: str):
        self.sections.append(dict(level=level, title=title, id=id, text=[]))

    def note(self, text: str):
        "Text that the search should find under the current section."
        if not self.sections: self.section(1, "", "")
        self.sections[-1]["text"].append(text)

    def inline_code(self, text: str) -> str:
        "Code in prose; an exported name links to what it does."
        name = re.sub(r"\(.*\)$", "", text).removeprefix("alphabook.")
        href = self.names.get(name) or self.names.get(name.split(".")[-1] if "." in name else "")
        markup = f"<code>{html.escape(text)}</code>"
        return f'<a class="name" href="{href}">{markup}</a>' if href and not self.in_heading else markup

    @staticmethod
    def fence(text: str, info: str) -> str:
        "A code block in prose."
        return f'<pre class="fence"><code>{code(text, info.split(" ")[0].strip("{.}"))}</code></pre>\n'

    in_heading = False
    def prose(self, source: str) -> str:
        "Markdown to HTML, with an anchor on every heading."
        tokens, out = self.md.parse(source), []
        for i, token in enumerate(tokens):
            for t in token.children or []:
                if t.type == "link_open": t.attrs["href"] = self.links(str(t.attrs["href"]))
        parts = self._split(tokens)
        for heading, body in parts:
            if heading:
                self.in_heading = True
                title = self.md.renderer.render([heading[1]], self.md.options, {})
                self.in_heading = False
                level, id = int(heading[0].tag[1]), self.new_id(heading[1].content)
                self.section(level, plain(title), id)
                anchor = f'<a class="anchor" href="#{id}" aria-label="Link to this section">#</a>' if level > 1 else ""
                out.append(f'<h{level} id="{id}">{title}{anchor}</h{level}>')
            markup = self.md.renderer.render(body, self.md.options, {})
            self.note(plain(re.sub(r"<math.*?</math>", "", markup, flags=re.S)))
            out.append(markup)
        return "\n".join(out)

    @staticmethod
    def _split(tokens: list) -> list:
        "[(heading tokens or None, the tokens below it)]"
        parts = [(None, [])]; i = 0
        while i < len(tokens):
            if tokens[i].type == "heading_open" and tokens[i].level == 0:
                parts.append((tokens[i:i + 3], [])); i += 3
            else:
                parts[-1][1].append(tokens[i]); i += 1
        return parts

    def cell(self, cell) -> str:
        "One notebook cell. Directives: hide, default_exp, echo: false, output: false, code-fold: true."
        if cell.cell_type == "markdown": return self.prose(cell.source)
        if cell.cell_type != "code": return ""
        lines = cell.source.splitlines()
        flags = {m.group(1): m.group(2) for line in lines if (m := re.match(r"#\|\s*([\w-]+):?\s*(.*)", line))}
        if flags.keys() & {"hide", "default_exp"} or flags.get("include") == "false": return ""
        source = "\n".join(line for line in lines if not line.startswith("#|")).strip()
        silent = source.splitlines()[-1:] and source.splitlines()[-1].startswith("os.environ.setdefault(")   # its value tells nothing
        out = "" if silent or flags.get("output") == "false" else "".join(self.output(o) for o in cell.outputs)
        return (self.source(source, flags) if source and flags.get("echo") != "false" else "") + out

    def source(self, source: str, flags: dict) -> str:
        "A code cell. Imports are folded away; exported cells are marked, and their definitions can be linked to."
        exported = bool(flags.keys() & {"export", "exports", "exporti"})
        self.note(source)
        try: body = ast.parse(source).body
        except SyntaxError: body = []
        defined = [f"def-{n.name}" for n in body if exported and isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        defined = list(dict.fromkeys(defined))
        ids = "".join(f'<a id="{name}"></a>' for name in defined if name not in self.ids)
        self.ids.update(defined)
        block = f'{ids}<pre class="code{" export" if exported else ""}"><code>{code(source)}</code></pre>\n'
        imports = body and all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in body)
        if imports or flags.get("code-fold") == "true":
            return f'<details class="fold"><summary>{"imports" if imports else "code"}</summary>{block}</details>\n'
        return block

    def output(self, output) -> str:
        "Printed text, the value of the last expression, a figure or HTML."
        text = lambda s: s if isinstance(s, str) else "".join(s)
        tidy = lambda s: html.escape(re.sub(r"\x1b\[[\d;]*m", "", text(s)).rstrip())
        if output.output_type == "stream":
            shown = output.name == "stdout" and text(output.text).strip()
            return f'<pre class="out">{tidy(output.text)}</pre>\n' if shown else ""
        if output.output_type == "error": raise ValueError(f"{self.url}: {output.ename}: {output.evalue}")
        data = output.data
        if "text/html" in data: return f'<div class="html">{text(data["text/html"])}</div>\n'
        svg, png = text(data.get("image/svg+xml", "")).encode(), base64.b64decode(text(data.get("image/png", "")))
        if svg and not (png and len(svg) > max(3e5, len(png))): return self.figure(svg, "svg")
        if png: return self.figure(png, "png")
        if "text/markdown" in data: return self.prose(text(data["text/markdown"]))
        if "text/latex" in data: return math(text(data["text/latex"]).strip().strip("$"), display=True)
        return f'<pre class="out">{tidy(data["text/plain"])}</pre>\n' if "text/plain" in data else ""

    def figure(self, image: bytes, kind: str) -> str:
        "A plot becomes a file beside the page."
        self.n_figures += 1
        title = self.sections[-1]["title"] if self.sections else self.url
        path = self.assets / f"{Path(self.url).stem}-{self.n_figures}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
        src, alt = f"{path.parent.name}/{path.name}", f"Plot: {html.escape(title)}"
        return f'<figure class="plot"><img src="{src}" alt="{alt}" loading="lazy"></figure>\n'

    # What the chapter exports
    def api(self, chapter: Chapter) -> str:
        "Signature, docstring and parameters of every exported name that can be called."
        names = exported_names(chapter)
        if not names: return ""
        module = importlib.import_module(f"alphabook.{chapter.module}")
        title, id = "What this chapter exports", self.new_id("what-this-chapter-exports")
        self.section(2, title, id)
        out, rest = [f'<h2 id="{id}">{title}</h2>',
                     f'<p class="import"><code>from alphabook.{chapter.module} import …</code></p>'], []
        for name in names:
            obj = getattr(getattr(module, name), "py_func", getattr(module, name))    # py_func: what numba compiled
            ours = (inspect.isclass(obj) or inspect.isfunction(obj)) and obj.__module__ == module.__name__
            if ours: out.append(self.entry(name, obj))
            else: rest.append(name)
        if rest:
            self.note(" ".join(rest))
            shown = ", ".join(f'<code id="api-{n}">{n}</code>' for n in rest)
            out.append(f"<p>Values and other names: {shown}.</p>")
            self.ids.update(f"api-{n}" for n in rest)
        return '<section class="api">' + "\n".join(out) + "</section>"

    def entry(self, name: str, obj) -> str:
        "One function or class, with its public methods."
        self.ids.add(f"api-{name}")
        self.section(3, name, f"api-{name}")
        self.note(f"{name} {inspect.getdoc(obj) or ''}")
        above = f'<a class="above" href="#def-{name}" title="Where the chapter defines it">↑</a>'
        out = [f'<div class="entry" id="api-{name}">', above if f"def-{name}" in self.ids else "",
               self.described(obj, signature(obj, name))]
        for key, value in vars(obj).items() if inspect.isclass(obj) else []:
            method = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if key.startswith("_") or not inspect.isfunction(method) or not method.__doc__: continue
            shown = signature(method, f"{name}.{key}", drop_self=not isinstance(value, staticmethod))
            if isinstance(value, property): shown = f"{name}.{key}"
            out.append(f'<div class="method">{self.described(method, shown)}</div>')
        return "".join(out) + "</div>"

    def described(self, obj, shown: str) -> str:
        "Signature, docstring, parameters."
        return f'<pre class="sig"><code>{code(shown)}</code></pre>{self.doc(obj)}{params(obj)}'

    def doc(self, obj) -> str:
        text = inspect.getdoc(obj) or ""
        if inspect.isclass(obj) and text.startswith(f"{obj.__name__}("): text = ""   # what @dataclass writes
        return f'<div class="doc">{self.md.render(text)}</div>' if text else ""

def signature(obj, name: str, drop_self: bool = False) -> str:
    "One line if it fits, else one line a parameter."
    try: sig = inspect.signature(obj)
    except (TypeError, ValueError): return name
    def show(a):   # an annotation as it was written
        if isinstance(a, str): return a
        return str(a).replace("typing.", "") if getattr(a, "__args__", None) else getattr(a, "__name__", str(a))
    values = [p for p in sig.parameters.values() if not (drop_self and p.name in ("self", "cls"))]
    parts, star = [], False
    for p in values:
        if p.kind is p.VAR_POSITIONAL: star = True
        if p.kind is p.KEYWORD_ONLY and not star: parts.append("*"); star = True
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        text = prefix + p.name + (f": {show(p.annotation)}" if p.annotation is not p.empty else "")
        if p.default is not p.empty:
            value = repr(p.default)
            if re.search(r" at 0x|<.*>", value) or len(value) > 60: value = getattr(p.default, "__name__", "…")
            text += f" = {value}" if ":" in text else f"={value}"
        parts.append(text)
    returns = None if inspect.isclass(obj) or sig.return_annotation is sig.empty else sig.return_annotation
    result = f" -> {show(returns)}" if returns is not None else ""
    line = f"{name}({', '.join(parts)}){result}"
    return line if len(line) <= 88 else f"{name}(\n    " + ",\n    ".join(parts) + f"\n){result}"

def params(obj) -> str:
    "The comments beside the parameters, as a table."
    try: docs = docments(obj, full=True)
    except Exception: return ""     # built-in or generated signature: nothing to show
    rows = [(k, d["docment"]) for k, d in docs.items() if d.get("docment")]
    if not rows: return ""
    name = lambda k: "<em>returns</em>" if k == "return" else f"<code>{html.escape(k)}</code>"
    cells = "".join(f"<tr><td>{name(k)}</td><td>{MarkdownIt().renderInline(str(text))}</td></tr>" for k, text in rows)
    return f'<div class="table"><table class="params">{cells}</table></div>'
