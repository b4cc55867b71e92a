"""Fetch the packages of packages.txt, and make the token files and the vocabulary of alphabook-mini from them.

    python data/corpus/build.py fetch FOLDER       # apt-get and pip download, about 2 GB; Debian 12
    python data/corpus/build.py make FOLDER OUT    # writes OUT/*.bin, tokenizer.json, manifest.json

How it works is told in chapters 29a_edits, 29b_corpus and 29c_mixture. A line of packages.txt is a kind, a name and a
version: `deb NAME VERSION`, `wheel NAME VERSION`, `descriptions LANGUAGE SUITE` or `library NAME VERSION` (the standard
library of the Python at /usr/bin/python3).
"""
import hashlib, json, re, subprocess, sys
from collections import Counter, defaultdict
from multiprocessing import Pool
from pathlib import Path
from random import Random

from alphabook.corpus import SCRIPTS, Once, read_deb, read_descriptions, read_tree, read_wheel
from alphabook.mixture import (chat_prompts, choose, edit_prompts, encode_documents, is_held_out, limit, swap_words,
                               train_vocabulary, write_ids)

PACKAGES = Path(__file__).with_name("packages.txt")
ASKED = {"gimp-help-ko": "GFDL-1.2+", "gimp-help-zh-cn": "GFDL-1.2+", "manpages-dev": "as manpages", "peewee": "MIT",
         "manpages-ja": "as the original pages", "manpages-ja-dev": "as the original pages", "skrooge-common": "GPL-3+",
         "installation-guide-amd64": "GPL-2", "python3.11-doc": "PSF-2.0"}  # where the package says it in prose
ASKED |= {"debian-faq" + end: "GPL-2+" for end in ("", "-de", "-fr", "-it", "-ja", "-ru", "-zh-cn")}
VOCABULARY = dict(prose=.30, code=.27, ru=.045, uk=.03, ar=.035, ko=.06, ja=.06, zh=.06, de=.03, fr=.03, es=.025,
                  pt=.02, it=.02, pl=.02)  # shares of the 60 MB that the vocabulary is trained on

def packages() -> list[tuple[str, str, str]]:
    "Kind, name and version of every line."
    lines = [line.split() for line in PACKAGES.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return [tuple(line[:3]) for line in lines]

def fetch(folder: Path) -> None:
    "Download what is not there yet."
    folder.mkdir(parents=True, exist_ok=True)
    for kind, name, version in packages():
        if kind == "deb": subprocess.run(["apt-get", "download", f"{name}={version}"], cwd=folder, check=True)
        if kind == "wheel":
            subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
                            f"{name}=={version}"], cwd=folder, check=True)
    languages = ",".join(sorted({name for kind, name, _ in packages() if kind == "descriptions"}))
    lists = (folder / "lists").resolve()
    lists.mkdir(exist_ok=True)
    subprocess.run(["apt-get", "-o", f"Dir::State::Lists={lists}", "-o", f"Acquire::Languages={languages}", "update"],
                   check=True)

def find(folder: Path, kind: str, name: str) -> Path | None:
    "The file of a package."
    pattern = {"deb": f"{name}_*.deb", "wheel": f"{name}-[0-9]*.whl",
               "descriptions": f"lists/*_main_i18n_Translation-{name.replace('_', '%5f')}.*"}.get(kind)
    found = sorted(folder.glob(pattern)) if pattern else []
    return next((f for f in found if "security" not in f.name and "updates" not in f.name), None)

def read(job) -> tuple:
    "One package, its file's hash, and the place in the order in which paragraphs count as said."
    folder, kind, name, version = job
    path = find(folder, kind, name)
    if kind == "library":
        command = "import sysconfig; print(sysconfig.get_path('stdlib'))"
        root = subprocess.run(["/usr/bin/python3", "-c", command], capture_output=True, text=True, check=True).stdout
        source, path = read_tree(name, version, "PSF-2.0", Path(root.strip())), Path(name)
    elif path is None: sys.exit(f"{name}: not in {folder}; run fetch first")
    elif kind == "descriptions":
        text = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", path], capture_output=True, check=True).stdout
        language = name[:2]
        most = 9e6 if language in SCRIPTS or language == "en" else 6e6
        source = read_descriptions(text.decode("utf-8", "replace"), language, most)
    else: source = (read_deb if kind == "deb" else read_wheel)(path)
    source.licence = ASKED.get(source.name, source.licence)
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    first = re.match(r"(python3|manpages|debian-|apt|deb.*Translation|numpy|django)", path.name) is None
    return (first, path.name + ".pkl"), digest, source

def make(folder: Path, out: Path, n_processes: int = 2) -> None:
    "Token files, vocabulary, manifest."
    out.mkdir(parents=True, exist_ok=True)
    with Pool(n_processes) as pool: read_all = pool.map(read, [(folder, *p) for p in packages()], chunksize=1)
    once, docs = Once(), defaultdict(list)
    for _, _, source in sorted(read_all, key=lambda r: r[0]):
        for d in choose(source, once): docs[d.kind].append(d)
    docs = {kind: limit(found, kind) for kind, found in docs.items()}
    tok = train_vocabulary(vocabulary_texts(docs, 60e6))
    tok.save(str(out / "tokenizer.json"))
    pools = swap_words(docs)
    texts = [(k, d.text) for k, found in docs.items() for d in found if not is_held_out(d)]
    texts += [("edit", t) for t in edit_prompts(docs, 26e6, 1, False, pools)]
    texts += [("chat", t) for t in chat_prompts(docs, 8e6, 2, False)]
    Random(7).shuffle(texts)
    write_ids(tok, [t for _, t in texts], out, "train")
    held = {k: [d.text for d in found if is_held_out(d)] for k, found in docs.items()}
    held |= dict(edit=edit_prompts(docs, 6e5, 3, True, pools), chat=chat_prompts(docs, 3e5, 4, True))
    for kind, found in held.items():
        Random(9).shuffle(found)
        if found: write_ids(tok, found, out, f"heldout-{kind}", most=10**9)
    write_manifest(out, tok, docs, texts, read_all)

def vocabulary_texts(docs: dict, n_bytes: float) -> list[str]:
    "A sample in the shares of VOCABULARY; a kind with less text than that is taken up to three times."
    r, texts = Random(5), []
    for kind, share in VOCABULARY.items():
        found, size = [d.text[:20000] for d in docs.get(kind, []) if not is_held_out(d)], 0
        r.shuffle(found)
        for text in found*3:
            if size > share*n_bytes: break
            texts.append(text)
            size += len(text.encode())
    return texts

def write_manifest(out: Path, tok, docs: dict, texts: list, read_all: list) -> None:
    "What went in: per package and per kind."
    used = defaultdict(Counter)
    for kind, found in docs.items():
        for d in found: used[d.source][kind] += len(d.text.encode())
    kinds = defaultdict(Counter)
    for (kind, text), ids in zip(texts, encode_documents(tok, [t for _, t in texts])):
        kinds[kind].update(documents=1, bytes=len(text.encode()), tokens=len(ids))
    rows = {k: dict(v, bytes_per_token=round(v["bytes"]/(v["tokens"] - v["documents"]), 3)) for k, v in kinds.items()}
    sources = [dict(name=s.name, version=s.version, licence=s.licence, sha256=digest, bytes=dict(used[s.name]))
               for _, digest, s in read_all if s.name in used]
    manifest = dict(kinds=rows, sources=sources)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "fetch": fetch(Path(sys.argv[2]))
    elif len(sys.argv) == 4 and sys.argv[1] == "make": make(Path(sys.argv[2]), Path(sys.argv[3]))
    else: sys.exit(__doc__)
