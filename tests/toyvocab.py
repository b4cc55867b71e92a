"""Small vocabularies for every pre-tokenizer's name, as GGUF metadata. Their merges are stored; nothing is trained in a test."""
import gzip, json
from pathlib import Path

from alphabook.bpe import BYTE_CHARS, PRETOKENIZERS

STORE = Path(__file__).parent / "golden" / "tokenizer" / "toy_merges.json.gz"
BASE = {"general.architecture": "llama", "llama.context_length": ("uint32", 64), "llama.embedding_length": ("uint32", 64),
        "llama.block_count": ("uint32", 1), "llama.feed_forward_length": ("uint32", 64), "llama.attention.head_count": ("uint32", 1),
        "llama.attention.layer_norm_rms_epsilon": 1e-5}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIAL = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<|endoftext|>": CONTROL, "<think>": USER_DEFINED, "</tool_call>": USER_DEFINED,
           "<|im_": USER_DEFINED, "<|file_sep|>": CONTROL, "[unused3]": UNUSED}
SPM = ("spm", "spm-prefix", "spm-ties", "phi-3")
NAMES = [*PRETOKENIZERS, "gemma4", *SPM]

def merges():
    "The stored merges; none with a zero byte, where llama.cpp's strings end, and no two names for one fill-in-the-middle token."
    found = {kind: [m for m in pairs if "\0" not in m] for kind, pairs in json.loads(gzip.decompress(STORE.read_bytes())).items()}
    found["pieces"] = [m for m in found["pieces"] if not any(t in m.replace(" ", "") for t in ("fim_", "｜fim", "[PAD]"))]
    return found

def finish(tokens, special, **rest):
    "The metadata of a vocabulary whose ordinary tokens are `tokens`."
    names = [*tokens, *special]
    return {**BASE, "tokenizer.ggml.tokens": [n for n in names], "tokenizer.ggml.token_type": [*(NORMAL for _ in tokens), *special.values()],
            **{"tokenizer.ggml." + k: v for k, v in rest.items()}}

def byte_level(pre):
    "A byte-level vocabulary with merges that reach across words, so that each cut of the pre-tokenizer shows in the ids."
    pairs = merges()["bytes"]
    tokens = [t for t in dict.fromkeys([*BYTE_CHARS, *(m.replace(" ", "") for m in pairs)]) if t not in SPECIAL]
    n = len(tokens)
    return finish(tokens, SPECIAL, model="gpt2", pre=pre, merges=pairs, bos_token_id=("uint32", n), eos_token_id=("uint32", n + 1))

def pieces(name):
    "A SentencePiece vocabulary: 'spm' as Gemma, 'spm-prefix' as Llama, 'spm-ties' with equal scores and missing letters."
    pairs = merges()["pieces"]
    joined = [t for t in dict.fromkeys(m.replace(" ", "") for m in pairs) if t not in SPECIAL and t not in ("<s>", "</s>", "<unk>", "<|endoftext|>")]
    letters = sorted({c for m in pairs for c in m if c != " "})
    if name == "spm-ties": letters = [c for i, c in enumerate(letters) if i % 9]
    special = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL, **{f"<0x{b:02X}>": BYTE for b in range(256)}, **SPECIAL}
    special.pop("<|endoftext|>")
    joined = [t for t in joined if t not in special]
    tokens, types = [*special, *joined, *letters], [*special.values(), *[NORMAL] * (len(joined) + len(letters))]
    rank = (lambda i: -float(i // 40)) if name == "spm-ties" else (lambda i: -float(i))
    scores = [0.0] * len(special) + [rank(i) for i in range(len(joined))] + [-1e4 - i for i in range(len(letters))]
    if name == "phi-3": extra = {"general.name": "Phi-3 toy"}; tokens.append("<|endoftext|>"); types.append(CONTROL); scores.append(0.0)
    else: extra = {}
    return {**BASE, **extra, "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.scores": scores, "tokenizer.ggml.bos_token_id": ("uint32", 1), "tokenizer.ggml.eos_token_id": ("uint32", 2),
            **({"tokenizer.ggml.add_space_prefix": False} if name == "spm" else {}), "tokenizer.ggml.add_eos_token": name == "spm-ties"}

def gemma4():
    "Ranked merges over text with ▁ for a space, and byte tokens for what is missing."
    pairs = merges()["pieces"]
    letters = sorted({c for m in pairs for c in m if c != " "})
    special = {"<pad>": CONTROL, "<eos>": CONTROL, "<bos>": CONTROL, **{f"<0x{b:02X}>": BYTE for b in range(256)}, **SPECIAL}
    tokens = list(dict.fromkeys([*special, "\n\n", "\n\n\n", *letters, *(m.replace(" ", "") for m in pairs)]))
    return {**BASE, "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": pairs,
            "tokenizer.ggml.token_type": [special.get(t, NORMAL) for t in tokens],
            "tokenizer.ggml.bos_token_id": ("uint32", 2), "tokenizer.ggml.eos_token_id": ("uint32", 1)}

def toy(name):
    "The metadata for `write_gguf`."
    return gemma4() if name == "gemma4" else pieces(name) if name in SPM else byte_level(name)

def train():
    "Make the stored merges, once, with the `tokenizers` library; no pre-tokenizer, so that merges cross everything."
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from corpus import corpus
    texts, out = corpus(4000), {}
    for kind in ("bytes", "pieces"):
        tk = Tokenizer(models.BPE())
        if kind == "bytes": tk.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        lines = texts if kind == "bytes" else [t.replace(" ", "▁") for t in texts]
        if kind == "pieces": lines = [p for t in lines for p in t.split("\n")]
        tk.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=4000 if kind == "bytes" else 4500, show_progress=False, limit_alphabet=700,
                                                          initial_alphabet=BYTE_CHARS if kind == "bytes" else []))
        out[kind] = [" ".join(m) for m in json.loads(tk.to_str())["model"]["merges"]]
    STORE.parent.mkdir(parents=True, exist_ok=True)
    STORE.write_bytes(gzip.compress(json.dumps(out, ensure_ascii=False).encode(), 9, mtime=0))
