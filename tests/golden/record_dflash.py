"""Record what llama.cpp makes of a small block drafter: the residuals that its target leaves, the logits of a block.

    python tests/golden/record_dflash.py make WORK          (needs alphabook)
    python tests/golden/record_dflash.py llama.cpp WORK     (needs llama-cpp-python)

`make` writes WORK/target.gguf (tiny-qwen3, random weights, F32) and WORK/draft.gguf, a random `dflash` model of two layers,
one of them with a window, that brings the target's embedding and head along. `llama.cpp` leaves tests/golden/dflash.npz:
`ids`, `block` (anchor and masks), `taps` (n, 2·n_embd: what entered layers 1 and 2 of the target), `logits` (of the block's
rows behind those positions), `sha256` of both files. WORK/draft2.gguf has the additions of DFlash2 besides, convolutions and a
selector; tests/golden/dflash2.npz has the same of it, and `lattice`, what its selector says of each position: TOP_K candidates,
and for each of TOP_K predecessors (of the first position: the anchor, TOP_K times) a score of each candidate. Everything in float32, flash attention off. The files are made again
for the test: their weights come from numpy's generator."""
import argparse
import ctypes
import hashlib
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TAPS, BLOCK, WINDOW, N = (1, 2), 6, 20, 40
MORE = dict(conv=2, conv_group=16, rank=24, top_k=5)


def make(work):
    "The pair."
    sys.path.insert(0, str(HERE.parents[1]))
    from alphabook.architecture import FAMILIES, ModelConfig
    from alphabook.blockdraft import DraftConfig, draft_shapes
    from alphabook.config import load_config
    from alphabook.modelfile import ModelFile, write_gguf
    from alphabook.synth import synth
    work.mkdir(parents=True, exist_ok=True)
    mf = ModelFile(synth("tiny-qwen3", "F32", work/"target.gguf"))
    trunk = load_config(mf)
    layers = ModelConfig("qwen3", "", n_layer=2, n_embd=trunk.n_embd, n_ff=96, n_head=4, n_kv_head=2, head_dim=32,
                         n_vocab=trunk.n_vocab, n_ctx=512, eps=1e-6, rope_theta=1e4, rope_dim=32, attn_scale=32**-.5,
                         qkv_bias=False, tied=False, **FAMILIES["qwen3"])
    keys = dict(block_count=2, context_length=512, embedding_length=trunk.n_embd, feed_forward_length=96,
                block_size=BLOCK, target_layers=np.array(TAPS, np.int32), **{f"attention.{k}": v for k, v in dict(
                    head_count=4, head_count_kv=2, key_length=32, value_length=32, layer_norm_rms_epsilon=1e-6,
                    sliding_window=WINDOW, sliding_window_pattern=[True, False]).items()}, **{"rope.freq_base": 1e4})
    table = mf.tensors["token_embd.weight"]
    head = mf.tensors.get("output.weight", table)
    more = dict(conv_kernel_size=MORE["conv"], conv_group_size=MORE["conv_group"], selector_rank=MORE["rank"],
                selector_top_k=MORE["top_k"])
    for file, seed, keys, fields in (("draft", 60, keys, {}), ("draft2", 61, keys | more, MORE)):
        tensors, rng = [], np.random.default_rng(seed)
        for name, shape in draft_shapes(DraftConfig(layers, BLOCK, TAPS, 7, ("token_embd", "output"), **fields)).items():
            given = {"token_embd.weight": table, "output.weight": head}.get(name)
            x = rng.normal(size=shape)*shape[-1]**-.5 if len(shape) > 1 else 1 + rng.normal(size=shape)/8
            if "cessor" in name: x *= 8                       # so that pairs count beside the head's scores
            tensors.append((name, shape, "F32", given.data if given else x.astype(np.float32)))
        meta = {"general.architecture": "dflash", "tokenizer.ggml.mask_token_id": 7, **{f"dflash.{k}": v for k, v in keys.items()}}
        write_gguf(work/f"{file}.gguf", meta | {k: v for k, v in mf.meta.items() if k.startswith("tokenizer.")}, tensors)


def context(lib, path, **more):
    "A model and a context of llama.cpp's, everything in float32."
    mp, cp = lib.llama_model_default_params(), lib.llama_context_default_params()
    mp.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(path).encode(), mp)
    assert model, f"llama.cpp can't load {path}"
    cp.n_ctx = cp.n_batch = cp.n_ubatch = 512
    cp.type_k = cp.type_v = 0
    cp.flash_attn_type, cp.n_threads = 0, 1
    return model, lib.llama_init_from_model(model, cp)


def batch_of(lib, ids=None, embd=None, at=0):
    "Tokens, or rows of float32, at consecutive positions; all give outputs."
    n = len(ids) if embd is None else len(embd)
    b = lib.llama_batch_init(n, 0 if embd is None else embd.shape[1], 1)
    b.n_tokens = n
    if embd is not None: ctypes.memmove(b.embd, np.ascontiguousarray(embd, np.float32).ctypes.data, embd.nbytes)
    for i in range(n):
        if embd is None: b.token[i] = ids[i]
        b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = at + i, 1, 0, embd is None
    return b


def llama_cpp(work):
    "Run both."
    import llama_cpp
    from llama_cpp import llama_cpp as lib
    so = ctypes.CDLL(str(Path(llama_cpp.__file__).parent/"lib"/"libllama.so"))
    put = so._Z30llama_set_embeddings_layer_inpP13llama_contextjb
    get = so._Z30llama_get_embeddings_layer_inpP13llama_contextj
    put.argtypes, put.restype = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool], None
    get.argtypes, get.restype = [ctypes.c_void_p, ctypes.c_uint32], ctypes.POINTER(ctypes.c_float)
    lattice_on, lattice_of = so._Z26llama_set_embeddings_nextnP13llama_contextbb, so._Z26llama_get_embeddings_nextnP13llama_context
    lattice_on.argtypes, lattice_on.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], None
    lattice_of.argtypes, lattice_of.restype = [ctypes.c_void_p], ctypes.POINTER(ctypes.c_float)
    ids = np.random.default_rng(7).integers(8, 250, N + 1).tolist()
    model, ctx = context(lib, work/"target.gguf")
    n_embd, n_vocab = lib.llama_model_n_embd(model), lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    for layer in TAPS: put(ctx, layer, True)
    assert lib.llama_decode(ctx, batch_of(lib, ids[:N])) == 0
    taps = np.concatenate([np.ctypeslib.as_array(get(ctx, layer), (N, n_embd)).copy() for layer in TAPS], 1)
    block = [ids[N]] + [7]*(BLOCK - 1)
    for file, out in (("draft", "dflash"), ("draft2", "dflash2")):
        model, ctx = context(lib, work/f"{file}.gguf")
        lib.llama_set_causal_attn(ctx, False)
        if file == "draft2": lattice_on(ctx, True, False)
        assert lib.llama_decode(ctx, batch_of(lib, embd=taps)) == 0
        assert lib.llama_decode(ctx, batch_of(lib, block, at=N)) == 0
        logits = np.ctypeslib.as_array(lib.llama_get_logits(ctx), (BLOCK, n_vocab)).copy()
        k, more = MORE["top_k"], {}
        if file == "draft2": more["lattice"] = np.ctypeslib.as_array(lattice_of(ctx), (BLOCK, n_embd))[:, :k + k*k].copy()
        np.savez_compressed(HERE/f"{out}.npz", ids=ids, block=block, taps=taps, logits=logits, **more,
                            sha256=[hashlib.sha256((work/f"{n}.gguf").read_bytes()).hexdigest() for n in ("target", file)])
        print(file, "logits", logits.std(), "taps", taps.std(0).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("make", "llama.cpp"))
    parser.add_argument("work", type=Path)
    args = parser.parse_args()
    (make if args.step == "make" else llama_cpp)(args.work)
