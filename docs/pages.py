"""Pages beside the chapters, made from data and code: what was measured, every result, every knob."""
import argparse, json, math, re
from itertools import groupby
from pathlib import Path

from book import ROOT
from knobs import ENVIRONMENT, FLAGS

RESULTS = ROOT / "data" / "results"
WRITTEN = {"glossary.md": "Glossary", "ideas.md": "Where the ideas come from", "scope.md": "Scope"}   # in docs/

def results(topic: str = "", device: str = "*") -> list[tuple[Path, dict]]:
    "Files of results whose topic begins so, the oldest first."
    paths = sorted(RESULTS.glob(f"{device}/{topic}*.json"), key=lambda p: (p.stem[-10:], p.name))
    return [(p, json.loads(p.read_text(encoding="utf-8"))) for p in paths]

def rows_of(result: dict, **want) -> list[dict]:
    "The rows of a result whose fields are such."
    return [r for r in result["rows"] if all(r.get(k) == v for k, v in want.items())]

# The first page
def summary_table(link = lambda topic: "results.html") -> str:
    "What was measured, in a few lines: the newest file of each topic."
    lines = ["| what | measured | where |", "|---|---|---|"]
    for path, d in results("bench-cpu", "cpu")[-1:]:
        for unit, what in (("tok/s ÷ llama.cpp's", "decoding"), ("prompt tok/s ÷ llama.cpp's", "reading prompts")):
            each = [r for r in rows_of(d, arm="plain", unit=unit) if r["model"] != "geometric mean"]
            mean = math.exp(sum(math.log(r["value"]) for r in each) / len(each))
            lines.append(f"| {what}, next to llama.cpp, same files, same run | {mean:.1f} times as fast (geometric mean of "
                         f"{len(each)} models; {min(r['value'] for r in each):.1f} to {max(r['value'] for r in each):.1f}) | "
                         f"{d['machine']['processor']}, {d['threads']} threads, {d['date']} |")
    for path, d in results("drafters-alphabook-mini", "cpu")[-1:]:
        gains = [f"{r['set']} {r['value']:.2f}" for r in rows_of(d, arm="auto", unit="tok/s ÷ plain's")]
        lines.append("| drafts (`--drafter auto`) next to plain decoding, same bits, on short requests (A), tasks (V), edits "
                     f"(R) | {', '.join(gains)} times as fast | alphabook-mini, same processor, {d['date']} |")
    for path, d in results("gpu-models", "h200")[-1:]:
        theirs = {(r["model"], r["context"]): r["value"] for r in rows_of(d, arm="llama.cpp", unit="tok/s")}
        ours = [r for r in rows_of(d, arm="decode", unit="tok/s") if (r["model"], r["context"]) in theirs]
        pairs = [(r["value"], theirs[r["model"], r["context"]]) for r in ours]
        if pairs:
            ratios = [a / b for a, b in pairs]
            lines.append(f"| decoding on a GPU, one text, no drafts, next to llama.cpp | {min(ratios):.1f} to {max(ratios):.1f} "
                         f"times as fast ({len(ratios)} shapes, random weights) | H200, {d['date']}, llama.cpp's a day before |")
        for _, t in results("gpu-tall", "h200")[-1:]:
            read = {r["model"]: r["value"] for r in rows_of(t, unit="tok/s", arm="prompt, 256 rows, twice the heads a program")}
            ratios = [read[model] / rate for (model, n), rate in theirs.items() if n == 2048 and model in read]
            lines.append(f"| reading a prompt of 2,048 tokens on a GPU, next to llama.cpp | {min(ratios):.1f} to {max(ratios):.1f} "
                         f"times as fast ({len(ratios)} shapes, random weights) | H200, {t['date']}, llama.cpp's two days before |")
    for path, d in results("quality-", "cpu")[-1:]: lines += quality_lines()
    return "\n".join(lines)

def quality_lines() -> list[str]:
    "What four bits cost in either engine, from the newest files of `data/trials/quality.py`."
    newest = {d["models"][0]["model"]: d for _, d in results("quality-", "cpu") if "peer" in d}
    out = []
    for model, d in newest.items():
        found = {r["arm"]: r["value"] for r in d["rows"] if r.get("quantization") == "Q4_K_M" and r.get("maker") == "llama.cpp"
                 and r["text"] == "all" and r["unit"] == "KL"}
        bits = [r["bits"] for r in d["rows"] if r.get("quantization") == "Q4_K_M" and r.get("maker") == "llama.cpp" and "bits" in r]
        if len(found) == 2: out.append((model, found, bits[0]))
    if not out: return []
    cells = "; ".join(f"{m}, {bits:.1f} bits a weight: {f['alphabook']:.3f} (llama.cpp {f['llama.cpp']:.3f})" for m, f, bits in out)
    return [f"| what a Q4_K_M file loses, run here and by llama.cpp: KL divergence from float32, nats a token | {cells} | "
            f"English, French and code, {d['date']} |"]

# Results
def result_table(d: dict, most: int = 400) -> str:
    "A Markdown table of the rows; columns that say one thing stand above it."
    known = [k for k in dict.fromkeys(k for r in d["rows"] for k in r) if k not in ("values", "by_drafter", "config", "min", "max")]
    flat = [{k: r.get(k) for k in known if not isinstance(r.get(k), (dict, list))} for r in d["rows"]]
    columns = [k for k in known if len({str(r.get(k)) for r in flat}) > 1 or k in ("unit", "value")]
    def cell(x):
        if x is None: return ""
        if isinstance(x, float): return f"{x:.4g}" if abs(x) < 1e5 else f"{x:,.0f}"
        return " ".join(str(x).replace("|", "\\|").split())[:80]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(r.get(k)) for k in columns) + " |" for r in flat[:most]]
    rest = f"\n\n{len(flat) - most:,} more rows are in the file." if len(flat) > most else ""
    return "\n".join(lines) + rest

def result_facts(path: Path, d: dict) -> str:
    "Where, when and how a file of results came about."
    machine = d.get("machine") or {}
    facts = dict(file=f"`{path.relative_to(ROOT).as_posix()}`", date=d.get("date"), commit=d.get("commit"),
                 command=f"`{d['command']}`" if d.get("command") else None, mode=d.get("mode"), threads=d.get("threads"),
                 processor=machine.get("processor"), vectors=machine.get("vectors"), load=d.get("load"), note=d.get("note"))
    return "\n".join(f"- {k}: {v}" for k, v in facts.items() if v not in (None, "", []))

def results_page() -> str:
    "A list of all results."
    out = ["Every number in this book comes from a cell that you can run, or from one of these files: `data/results/DEVICE/"
           "TOPIC-DATE.json`, one object each, shared fields above, rows below. `docs/results.schema.json` describes them.", ""]
    for device, group in groupby(sorted(results(), key=lambda x: (x[0].parent.name, x[0].name)), lambda x: x[0].parent.name):
        out += [f"## {device}", "", "| topic | date | rows | made by |", "|---|---|---:|---|"]
        for path, d in group:
            command = " ".join(str(d.get("command") or "").split())
            out.append(f"| [{d['topic']}](result-{device}-{path.stem}.html) | {d.get('date')} | {len(d['rows']):,} | "
                       f"{f'`{command[:100]}`' if command else ''} |")
        out.append("")
    return "\n".join(out)

# Knobs
def commands() -> dict[str, argparse.ArgumentParser]:
    "The commands of `alphabook`."
    from alphabook.cli import make_parser
    parser = make_parser()
    [sub] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(sub.choices)

def flags() -> dict[tuple, tuple]:
    "Every flag: {(name, what its help says): (action, commands that have it)}."
    found = {}
    for command, parser in commands().items():
        for a in parser._actions:
            if isinstance(a, argparse._HelpAction): continue
            name = a.option_strings[-1] if a.option_strings else a.dest.upper()
            found.setdefault((name, a.help), (a, []))[1].append(command)
    return found

def variables() -> set[str]:
    "The environment variables that the package looks at."
    text = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "alphabook").glob("*.py"))
    return set(re.findall(r"environ(?:\.get\(|\[)['\"](ALPHABOOK_\w+)['\"]", text))

def knobs_page() -> str:
    "Every flag and variable: default, what it does, why it is there, what happens without it."
    out = ["Every knob there is, from the code. A flag that is left away has the default; where a knob cannot be had, the last "
           "column says what happens instead. Gains are measured figures with a place to look them up, or there is none.", ""]
    for title, chosen in (("How a model runs", lambda n, cs: len(cs) > 3), ("One command's own", lambda n, cs: len(cs) <= 3)):
        out += [f"## {title}", "", "| flag | does | default | why, and the gain | otherwise |", "|---|---|---|---|---|"]
        for (name, _), (a, owners) in flags().items():
            if not chosen(name, owners) or not name.startswith("-"): continue
            k, default = FLAGS.get(name, {}), a.default
            nothing = default is None or default is False or default == [] or str(default).startswith("/")
            shown = "" if nothing else f"`{default}`"
            of = f" ({len(owners)} commands)" if len(owners) > 3 else f" ({', '.join(owners)})"
            why = "; ".join(filter(None, (k.get("why", ""), k.get("gain", ""))))
            help = (a.help or "").replace("%%", "%").replace("|", "\\|")
            out.append(f"| `{name}` | {help}{of} | {shown} | {why} | {k.get('else', '')} |")
        out.append("")
    out += ["## The environment", "", "A flag with a value can also be set by a variable: `--threads 4` is `ALPHABOOK_THREADS=4`.", "", "| variable | does | why | otherwise |", "|---|---|---|---|"]
    for name in sorted(variables()):
        k = ENVIRONMENT.get(name, {})
        out.append(f"| `{name}` | {k.get('does', '')} | {k.get('why', '')} | {k.get('else', '')} |")
    return "\n".join(out)
