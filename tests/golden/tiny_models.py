"""Tiny random models of every architecture: the same bytes on every machine, so that recorded results fit them.

    python tests/golden/tiny_models.py tiny-gemma3 OUT.gguf

The weights come from PCG64's raw bits, whose stream numpy guarantees, by exact operations only. The bytes are then laid
out by `alphabook.modelfile.write_gguf`; a recording holds the SHA-256 of the file it was made from.
"""
import sys

import numpy as np

from alphabook.modelfile import write_gguf

D, FF, HEADS, KV_HEADS, LAYERS, CTX = 64, 96, 4, 2, 6, 512
NAMES = ('tiny-llama', 'tiny-qwen2', 'tiny-qwen3', 'tiny-gemma3')


def head_dim(arch): return 16 if arch == 'qwen2' else 32      # qwen2 is D / HEADS in llama.cpp, the others are free


def vocabulary():
    "256 bytes in GPT-2's spelling, one merge, and an end mark: a tokenizer that any text passes through."
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b if b in plain else next(other)) for b in range(256)] + ['he', '<|endoftext|>']


def metadata(arch):
    tokens = vocabulary()
    key = {'block_count': LAYERS, 'context_length': CTX, 'embedding_length': D, 'feed_forward_length': FF,
           'attention.head_count': HEADS, 'attention.head_count_kv': KV_HEADS, 'attention.key_length': head_dim(arch),
           'attention.value_length': head_dim(arch), 'vocab_size': len(tokens)}
    if arch in ('llama', 'qwen2'): key['rope.dimension_count'] = head_dim(arch)
    if arch == 'gemma3': key['attention.sliding_window'] = 16
    meta = {'general.architecture': arch, 'general.name': f'tiny-{arch}', 'general.file_type': ('uint32', 1)}
    meta |= {f'{arch}.{k}': ('uint32', v) for k, v in key.items()}
    # An eps large enough to be felt, in two of them
    meta |= {f'{arch}.attention.layer_norm_rms_epsilon': ('float32', {'llama': 0.05, 'gemma3': 0.01}.get(arch, 1e-6)),
             f'{arch}.rope.freq_base': ('float32', {'llama': 5e5, 'gemma3': 1e6}.get(arch, 1e4)),
             'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'gpt-2', 'tokenizer.ggml.tokens': tokens,
             'tokenizer.ggml.token_type': ('int32[]', [1] * 257 + [3]), 'tokenizer.ggml.merges': ['h e'],
             'tokenizer.ggml.bos_token_id': ('uint32', 257), 'tokenizer.ggml.eos_token_id': ('uint32', 257),
             'tokenizer.ggml.add_bos_token': False}
    return meta


def shapes(arch):
    "(name, shape, typical size, offset): matrices keep a row's length about as it is, norms lie around 1."
    hd = head_dim(arch)
    v, q, kv = len(vocabulary()), HEADS * hd, KV_HEADS * hd
    yield 'token_embd.weight', (v, D), 1 if arch != 'gemma3' else 0.125, 0
    for i in range(LAYERS):
        b = f'blk.{i}.'
        yield from ((b + n, (D,), 0.2, 1) for n in ('attn_norm.weight', 'ffn_norm.weight'))
        for n, rows, cols in (('attn_q', q, D), ('attn_k', kv, D), ('attn_v', kv, D), ('attn_output', D, q),
                              ('ffn_gate', FF, D), ('ffn_up', FF, D), ('ffn_down', D, FF)):
            yield f'{b}{n}.weight', (rows, cols), 1.5 * cols**-0.5, 0
            if arch == 'qwen2' and n in ('attn_q', 'attn_k', 'attn_v'): yield f'{b}{n}.bias', (rows,), 0.5, 0
        if arch in ('qwen3', 'gemma3'):
            yield from ((b + n, (hd,), 0.2, 1) for n in ('attn_q_norm.weight', 'attn_k_norm.weight'))
        if arch == 'gemma3':
            yield from ((b + n, (D,), 0.2, 1) for n in ('post_attention_norm.weight', 'post_ffw_norm.weight'))
    yield 'output_norm.weight', (D,), 0.2, 1
    if arch in ('llama', 'qwen2'): yield 'output.weight', (v, D), 1.5 * D**-0.5, 0          # the others are tied
    if arch == 'llama': yield 'rope_freqs.weight', (hd // 2,), 0.9, 2


def write(name, path):
    "Write one of NAMES to `path`: matrices in F16, vectors in F32."
    arch, bits = name.removeprefix('tiny-'), np.random.PCG64(NAMES.index(name))

    def tensors():
        for n, shape, size, offset in shapes(arch):
            u = (bits.random_raw(int(np.prod(shape))) >> np.uint64(48)).astype(np.int64) - 32768
            x = np.float32(offset) + u.astype(np.float32) * np.float32(size * 1.75 / 32768)   # uniform, std about size
            if len(shape) == 2: yield n, shape, 'F16', x.astype(np.float16).tobytes()
            else: yield n, shape, 'F32', x.tobytes()

    write_gguf(path, metadata(arch), tensors())


if __name__ == '__main__': write(*sys.argv[1:3])
