"""Record what transformers renders for the chat cases: `python tests/golden/record_chat.py [FOLDER of *.jinja]` (needs `transformers`; no torch).

The small templates of chatcases.py are recorded as text, templates of others (from the source package of llama-cpp-python, see
record_tokenizer.py --vocab-only) as hashes only."""
import gzip, hashlib, json, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from chatcases import SPECIAL, TALKS, TEMPLATES

OUT = HERE / "chat.json.gz"
def digest(text): return hashlib.sha256(text.encode()).hexdigest()[:16]

def render(source, talk):
    "What transformers renders, or the error that it raises: ('text', …) or ('error', …)."
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template
    talk = dict(talk)
    try: return "text", render_jinja_template([talk.pop("messages")], chat_template=source, **{"add_generation_prompt": True, **SPECIAL, **talk})[0][0]
    except TemplateError as e: return "error", e.message or type(e).__name__
    except (TypeError, KeyError, AttributeError) as e: return "error", str(e)

if __name__ == "__main__":
    import transformers
    small = {name: {talk: render(source, TALKS[talk]) for talk in TALKS} for name, source in TEMPLATES.items()}
    others = {}
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")) if len(sys.argv) > 1 else []:
        source = path.read_text()
        if "strftime_now" in source: continue                       # prints today's date
        rows = {talk: render(source, TALKS[talk]) for talk in TALKS}
        others[path.name] = {"source": digest(source), "rows": {talk: (kind, digest(text)) for talk, (kind, text) in rows.items()}}
    data = {"oracle": f"transformers {transformers.__version__}", "small": small, "others": others}
    OUT.write_bytes(gzip.compress(json.dumps(data, ensure_ascii=False).encode(), 9, mtime=0))
    print(len(small), len(others), OUT.stat().st_size)
