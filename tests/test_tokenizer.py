"""Ids equal llama.cpp's and Hugging Face's, on a corpus in many scripts; streams never break a character."""
import random, sys, unicodedata
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "golden")]

import corpus, record_tokenizer as golden, toyvocab
from alphabook.bpe import PRETOKENIZERS, fast_words, merge, merge_naive, pretokenizer, split_words, to_byte_chars
from alphabook.modelfile import GGUFError, ModelFile, write_gguf
from alphabook.tokenizer import Specials, Tokenizer, inner_pairs, partition

CORPUS = corpus.corpus()
TOYS = golden.load("toys")["vocabularies"]

def plain_meta(meta): return {k: v[1] if isinstance(v, tuple) else v for k, v in meta.items()}

def check_facts(tk, facts):
    assert (tk.n_vocab, tk.add_bos, tk.add_eos) == (facts["n_vocab"], facts["add_bos"], facts["add_eos"])
    assert [tk.bos_id, tk.eos_id] == [facts["bos"], facts["eos"]]
    assert sorted(tk.eog_ids) == facts["eog"]
    assert golden.digest(np.flatnonzero(tk.vocab.types == 3).tolist()) == facts["control"]

def check_pieces(tk, facts):
    pieces = [tk.token_bytes(i).hex() for i in range(tk.n_vocab)]
    assert [golden.digest(pieces[a:a + 1000]) for a in range(0, tk.n_vocab, 1000)] == facts["pieces"]

def check_ids(encode, which, data):
    "All recorded hashes; the error names the first text that is known to differ."
    for i, ids in data["full"].items():
        text, flags = CORPUS[int(i)], corpus.flags(int(i))
        assert encode(text, *flags) == ids, f"text {i}, {flags}: {text!r}"
    found = golden.digests([encode(CORPUS[i], *corpus.flags(i)) for i in which])
    wrong = [k for k, (a, b) in enumerate(zip(found, data["hashes"], strict=True)) if a != b]
    assert not wrong, f"other ids somewhere in the hundreds {wrong} of the recorded texts"

def test_corpus_is_the_recorded_one():
    assert golden.corpus_hash() == golden.load("toys")["corpus"] and len(CORPUS) == 20_000

@pytest.mark.parametrize("name", toyvocab.NAMES)
def test_every_pretokenizer_equals_llama_cpp(name):
    tk, data = Tokenizer.from_meta(plain_meta(toyvocab.toy(name)), name), TOYS[name]
    check_facts(tk, data["facts"])
    check_pieces(tk, data["facts"])
    check_ids(tk.encode, golden.TOY_TEXTS, data)
    for i in list(data["full"])[::2]: assert tk.encode_plain(CORPUS[int(i)], *corpus.flags(int(i))) == data["full"][i], i

def real(name):
    try: path = golden.vocab_path(name)
    except FileNotFoundError as e: pytest.skip(str(e))
    return ModelFile(path).meta, golden.load(name)

@pytest.mark.parametrize("name", [*golden.MODELS, *golden.VOCABS])
def test_real_vocabularies_equal_llama_cpp(name):
    meta, data = real(name)
    tk = Tokenizer.from_meta(meta, name)
    check_facts(tk, data["facts"])
    if name != "command-r": check_pieces(tk, data["facts"])      # there llama.cpp prints [UNK_BYTE…] for its user's emoji parts
    check_ids(tk.encode, range(20_000), data)
    for i in list(data["full"])[::7]: assert tk.encode_plain(CORPUS[int(i)], *corpus.flags(int(i))) == data["full"][i], i

@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m", "llama-bpe"])
def test_real_models_equal_hugging_face(name):
    meta, data = real(name)
    tk = Tokenizer.from_meta(meta, name)
    texts = [t for t in CORPUS if golden.hf_comparable(name, t)]
    assert len(texts) == data["hf"]["texts"] > 19_000
    assert golden.digests([tk.encode(t, add_special=False) for t in texts]) == data["hf"]["hashes"]

@pytest.mark.parametrize("name", ["llama-bpe", "spm", "spm-prefix", "gemma4", "smollm", "qwen35"])
def test_decode_returns_the_bytes(name):
    "llama.cpp#23252: NFC and NFD stay what they are; no cleaning of spaces."
    tk = Tokenizer.from_meta(plain_meta(toyvocab.toy(name)), name)
    for text in ["Café déjà vu — 123 😊", unicodedata.normalize("NFD", "Café déjà vu — 123 😊"), " a .  b ' c ' \n\n", "<|im_end|> a", *CORPUS[100:400]]:
        if tk.vocab.model != "gpt2" and ("▁" in text or "<0x" in text): continue      # here these mean a space and a byte
        ids = tk.encode(text, add_special=False)
        lead = b" " if tk.add_space_prefix and text and not isinstance(partition(text, tk.specials[True].present(text))[0], int) else b""
        if tk.add_space_prefix and tk.specials[True].present(text): continue     # a space after each special token
        assert tk.decode_bytes(ids) == lead + text.encode()

@pytest.mark.parametrize("raw, text", [("😊".encode(), "😊"), (b"\xc0\x80", "��"), (b"\xed\xa0\x80", "���"), (b"\xf0\x9f", "�"), (b"a\xffb", "a�b"),
                                       ("e\u0301👩‍💻".encode(), "e\u0301👩‍💻"), (b"", "")])
def test_stream_never_breaks_utf8(raw, text):
    "llama.cpp#11738: an emoji over four tokens, and bytes that are no UTF-8."
    tk = Tokenizer.from_meta(plain_meta(toyvocab.toy("smollm")))
    ids = [tk.vocab.ids[to_byte_chars("\0")]] * 0 + [tk.vocab.ids[c] for c in map(toyvocab.BYTE_CHARS.__getitem__, raw)]
    stream = tk.stream()
    parts = [stream.push(i) for i in ids] + [stream.flush()]
    assert "".join(parts) == text == tk.decode(ids)
    for part in parts: part.encode()

def test_streamed_text_is_the_decoded_text():
    tk, rng = Tokenizer.from_meta(plain_meta(toyvocab.toy("qwen2"))), random.Random(5)
    for _ in range(200):
        ids = [rng.randrange(tk.n_vocab) for _ in range(rng.randrange(12))]
        stream = tk.stream()
        assert "".join(map(stream.push, ids)) + stream.flush() == tk.decode(ids)

def test_special_tokens_count_only_where_the_text_is_trusted():
    tk = Tokenizer.from_meta(plain_meta(toyvocab.toy("qwen2")))
    end = tk.vocab.ids["<|im_end|>"]
    assert tk.encode("<|im_end|>") == [end] and end not in tk.encode("<|im_end|>", parse_special=False)
    assert tk.decode(tk.encode("a<|im_end|>b"), skip_special=True) == "ab" and tk.decode([end]) == "<|im_end|>"
    think = tk.vocab.ids["<think>"]
    assert tk.encode("a<think>b", parse_special=False)[1:-1] == [think]
    assert tk.encode("\ud800x") == tk.encode("\ufffdx")

@pytest.mark.parametrize("change, words", [
    ({"tokenizer.ggml.pre": "nope"}, ("nope", "unknown pre-tokenizer", "smollm", "qwen35")), ({"tokenizer.ggml.pre": None}, ("tokenizer.ggml.pre", "missing")),
    ({"tokenizer.ggml.model": "bert"}, ("bert", "gpt2, llama")), ({"tokenizer.ggml.model": None}, ("tokenizer.ggml.model",)),
    ({"tokenizer.ggml.tokens": None}, ("tokenizer.ggml.tokens", "missing")), ({"tokenizer.ggml.merges": None}, ("tokenizer.ggml.merges", "missing")),
    ({"tokenizer.ggml.merges": 3}, ("tokenizer.ggml.merges", "array")), ({"tokenizer.ggml.token_type": [1]}, ("token_type", "1 entries")),
    ({"tokenizer.ggml.tokens": []}, ("tokenizer.ggml.tokens",)), ({"tokenizer.ggml.pre": ["qwen2"]}, ("tokenizer.ggml.pre",)),
    ({"tokenizer.ggml.tokens": [1, 2]}, ("tokenizer.ggml.tokens", "strings")),
    ({"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1, 6]}, ("'b'", "<0x00>"))])
def test_bad_vocabularies_get_one_clear_line(change, words):
    meta = {**plain_meta(toyvocab.toy("qwen2")), **change}
    with pytest.raises(GGUFError) as e: Tokenizer.from_meta({k: v for k, v in meta.items() if v is not None}, "m.gguf")
    assert "\n" not in str(e.value) and str(e.value).startswith("m.gguf: ") and all(w in str(e.value) for w in words)

def test_ids_outside_the_vocabulary_are_an_error():
    tk = Tokenizer.from_meta(plain_meta(toyvocab.toy("qwen2")))
    for id in (-1, tk.n_vocab):
        with pytest.raises(ValueError, match="outside the vocabulary"): tk.decode([id])

def test_vocabularies_with_holes_take_the_readable_path():
    meta = plain_meta(toyvocab.toy("qwen2"))
    at = meta["tokenizer.ggml.tokens"].index(meta["tokenizer.ggml.merges"][5].replace(" ", ""))
    meta["tokenizer.ggml.tokens"] = [*meta["tokenizer.ggml.tokens"]]
    meta["tokenizer.ggml.tokens"][at] = "[gone]"
    tk = Tokenizer.from_meta(meta)
    assert tk.engine.build() is None and tk.encode("a  b") == tk.encode_plain("a  b") != []

def test_of_equal_merges_the_first_counts():
    meta = plain_meta(toyvocab.toy("smollm"))
    twice = {**meta, "tokenizer.ggml.merges": meta["tokenizer.ggml.merges"] + meta["tokenizer.ggml.merges"][:500]}
    once, twice = Tokenizer.from_meta(meta), Tokenizer.from_meta(twice)
    for text in CORPUS[60:260]: assert once.encode(text) == twice.encode(text) == twice.encode_plain(text)

def test_bytes_without_a_token_are_left_out():
    "Many vocabularies lack the bytes that no UTF-8 text contains; a missing one still stands between its neighbours."
    meta = plain_meta(toyvocab.toy("qwen2"))
    gone = [i for i, t in enumerate(meta["tokenizer.ggml.tokens"]) if t in ("\u00f0", "Q")]        # the first byte of an emoji
    meta["tokenizer.ggml.tokens"] = [f"[gone {i}]" if i in gone else t for i, t in enumerate(meta["tokenizer.ggml.tokens"])]
    meta["tokenizer.ggml.merges"] = [m for m in meta["tokenizer.ggml.merges"] if not {"\u00f0", "Q"} & set(m)]
    tk = Tokenizer.from_meta(meta)
    assert tk.engine.build() is not None
    for text in ["a😊b", "eQr", "Q", "😊", *CORPUS[:200]]: assert tk.encode(text) == tk.encode_plain(text)

def test_both_merge_loops_agree():
    rng = random.Random(1)
    for _ in range(500):
        ranks = {"".join(rng.choices("ab▁", k=rng.randrange(2, 6))): rng.randrange(6) for _ in range(10)}
        text = rng.choices("ab▁", k=rng.randrange(25))
        assert merge(text, lambda l, r: ranks.get(l + r)) == merge_naive(text, lambda l, r: ranks.get(l + r))

def test_both_regex_engines_agree():
    for name in set(PRETOKENIZERS):
        words = fast_words(pretokenizer(name))
        for text in CORPUS[:120]: assert [w for w, _ in words.pre_tokenize_str(text)] == [to_byte_chars(w) for w in split_words(text, pretokenizer(name))], (name, text)

def test_specials_part_longest_first():
    "As llama.cpp does: a longer token that begins later still wins over a shorter one that it overlaps."
    names = {"ab": 1, "bcd": 2, "a": 3}
    assert partition("abcd", Specials(names).present("abcd")) == [3, 2]
    assert partition("xab", Specials(names).present("xab")) == ["x", 1]

def test_cuts_are_safe():
    assert inner_pairs(["ab", "c", "▁de"]) >= {"ab", "▁d", "de"} and "bc" not in inner_pairs(["ab", "c"])

def test_a_written_file_reads_back(tmp_path):
    write_gguf(tmp_path / "toy.gguf", toyvocab.toy("spm"), [])
    with ModelFile(tmp_path / "toy.gguf") as mf: assert Tokenizer.from_meta(mf.meta).encode("ab c") == Tokenizer.from_meta(plain_meta(toyvocab.toy("spm"))).encode("ab c")
