"""A small qwen4exp model whose weights are a function of their names, in Hugging Face's layout and in GGUF's.

Everything that is special in the architecture really happens in it: four streams, a budget of 16 positions that texts
exceed, phrases of two and three tokens, and an MTP block. `record_streams.py` gives the weights to transformers and
writes down what it computes; tests write them as a GGUF file. The two layouts differ as llama.cpp's converter makes
them differ: norms as 1 + weight, V heads tiled, one projection of the index cut in two, the phrase table in one piece.
"""
import zlib

import numpy as np

CONFIG = dict(
    vocab_size=256, hidden_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=32, linear_value_head_dim=32,
    linear_conv_kernel_dim=4, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=8,
    num_experts_per_tok=3, hc_count=4, hc_lowrank=32, ple_layer_ids=[2], ple_embed_dim=96, ple_conv_kernel_size=4,
    ngram_size=3, heads_per_ngram=2, ngram_vocab_size_base=200, split_ngram_parts=4, indexer_n_heads=4,
    indexer_kv_heads=1, indexer_head_dim=32, indexer_budget=16, indexer_compress_ratio=4, output_gate_type='sigmoid',
    eos_token_id=2, bos_token_id=None, pad_token_id=None, max_position_embeddings=4096, rms_norm_eps=1e-6,
    full_attention_interval=4, tie_word_embeddings=False, rope_parameters=dict(
        rope_type='default', rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1],
        mrope_interleaved=True))
N, RANK, STREAMS, LAYERS, EXPERTS = 96, 32, 4, 4, 8
MULTIPLIERS = (4295158889762567, 35454616657218897, 19285316470915801)  # what transformers derives from its seed …
SIZES, OFFSETS, ROWS = (211, 223, 227, 229), (0, 211, 434, 661), 896       # … and the sizes: primes from 200 on


def weight(name, shape):
    "The values of a parameter by its Hugging Face name: sums of four small integers, about normal, float32."
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(4*int(np.prod(shape))).reshape(4, -1)
    x = ((raw >> np.uint64(32)).astype(np.int64) % 17 - 8).sum(0).astype(np.float32).reshape(shape)/np.float32(9.8)
    if name.endswith('A_log'): return x/np.float32(2)
    if name.endswith('dt_bias') or 'embed' in name: return x
    if len(shape) == 1: return x/np.float32(4) + np.float32('linear_attn.norm' in name)
    if 'conv1d' in name: return x/np.float32(2)
    return x*np.float32(1.5/shape[-1]**.5)


def texts():
    "Token ids: a few; with ends of text, two of them in a row; far beyond the budget, with repetitions."
    raw = (np.random.PCG64(14).random_raw(224) >> np.uint64(40)).astype(np.int64) % 253 + 3
    short, ends, long = raw[:10].copy(), raw[10:74].copy(), raw[74:].copy()
    ends[[7, 20, 21, 50]], long[[60, 61]] = 2, 2
    long[100:104], long[120:124] = [5, 6, 7, 5], [5, 6, 7, 5]
    return dict(short=short.tolist(), ends=ends.tolist(), long=long.tolist())


def tile(w, head):
    "Rows of V heads from [K head, its V heads] to [V heads of all K heads in turn]."
    return w.reshape(2, 3, head, -1).swapaxes(0, 1).reshape(w.shape)


def mixer(to, frm, inject=True):
    "A stream mixer: (GGUF name, values)."
    yield f'{to}_norm', 1 + weight(f'{frm}.hc_norm.weight', (STREAMS*N,))
    yield f'{to}_down', weight(f'{frm}.input_mix_weight_down.weight', (RANK, STREAMS*N))
    yield f'{to}_up', weight(f'{frm}.input_mix_weight_up.weight', (STREAMS*N, RANK))
    if inject: yield f'{to}_inject', weight(f'{frm}.block_inject_weight.weight', (STREAMS, STREAMS*N))


def delta_net(p):
    "A gated delta net."
    qkv = weight(f'{p}.in_proj_qkv.weight', (128 + 192, N))
    conv = weight(f'{p}.conv1d.weight', (128 + 192, 1, 4))[:, 0]
    yield 'attn_qkv', np.concatenate([qkv[:128], tile(qkv[128:], 32)])
    yield 'attn_gate', tile(weight(f'{p}.in_proj_z.weight', (192, N)), 32)
    yield 'ssm_conv1d', np.concatenate([conv[:128], tile(conv[128:], 32)])
    yield 'ssm_beta', tile(weight(f'{p}.in_proj_b.weight', (6, N)), 1)
    yield 'ssm_alpha', tile(weight(f'{p}.in_proj_a.weight', (6, N)), 1)
    yield 'ssm_a', 0 - np.exp(tile(weight(f'{p}.A_log', (6,)), 1))
    yield 'ssm_dt.bias', tile(weight(f'{p}.dt_bias', (6,)), 1)
    yield 'ssm_norm', weight(f'{p}.norm.weight', (32,))
    yield 'ssm_out', np.ascontiguousarray(tile(weight(f'{p}.out_proj.weight', (N, 192)).T, 32).T)


def attention(p):
    "Attention with its index."
    for to, frm, rows in (('q', 'q', 256), ('k', 'k', 64), ('v', 'v', 64)):
        yield f'attn_{to}', weight(f'{p}.{frm}_proj.weight', (rows, N))
    yield 'attn_output', weight(f'{p}.o_proj.weight', (N, 128))
    for x in 'qk': yield f'attn_{x}_norm', 1 + weight(f'{p}.{x}_norm.weight', (32,))
    qk = weight(f'{p}.indexer.index_qk_proj.weight', (160, N))
    yield 'indexer.q_proj', qk[:128]
    yield 'indexer.k_proj', qk[128:]
    for x in 'qk': yield f'indexer.{x}_norm', 1 + weight(f'{p}.indexer.{x}_layernorm.weight', (32,))


def experts(p):
    "The mixture and its shared expert."
    gate_up = weight(f'{p}.experts.gate_up_proj', (EXPERTS, 64, N))
    yield 'ffn_gate_inp', weight(f'{p}.gate.weight', (EXPERTS, N))
    yield 'ffn_gate_exps', np.ascontiguousarray(gate_up[:, :32])
    yield 'ffn_up_exps', np.ascontiguousarray(gate_up[:, 32:])
    yield 'ffn_down_exps', weight(f'{p}.experts.down_proj', (EXPERTS, N, 32))
    for x, shape in (('gate', (32, N)), ('up', (32, N)), ('down', (N, 32))):
        yield f'ffn_{x}_shexp', weight(f'{p}.shared_expert.{x}_proj.weight', shape)
    yield 'ffn_gate_inp_shexp', weight(f'{p}.shared_expert_gate.weight', (1, N))


def phrases(p):
    "What is made of the rows of the phrase table."
    yield 'ple_key', weight(f'{p}.key_proj.weight', (STREAMS*N, N))
    yield 'ple_value', weight(f'{p}.value_proj.weight', (N, N))
    for x in ('key', 'query', 'conv'): yield f'ple_norm_{x}', 1 + weight(f'{p}.norm_{x}.weight', (STREAMS*N,))
    yield 'ple_conv1d', weight(f'{p}.conv1d.weight', (STREAMS*N, 1, 4))[:, 0]


def layer(i, p, mix):
    "One layer."
    yield from mixer('hc_attn', f'{p}.attn_hyper_connection')
    yield from mixer('hc_ffn', f'{p}.mlp_hyper_connection')
    yield from mix
    yield from experts(f'{p}.mlp')
    if i == 1: yield from phrases(f'{p}.ple')


def tensors(mtp=True):
    "All tensors of the GGUF file by name."
    out = {'token_embd': weight('model.embed_tokens.weight', (256, N)), 'output': weight('lm_head.weight', (256, N)),
           'per_layer_token_embd': weight('model.layers.1.ple.ple_embedding.ngram_embedding.weight', (ROWS, 24)),
           **dict(mixer('output_hc', 'model.hyper_connection_mixer', inject=False))}
    for i in range(LAYERS):
        p = f'model.layers.{i}'
        mix = attention(f'{p}.self_attn') if i == 3 else delta_net(f'{p}.linear_attn')
        out |= {f'blk.{i}.{name}': x for name, x in layer(i, p, mix)}
    if mtp:
        block = dict(layer(LAYERS, 'mtp.layers.0', attention('mtp.layers.0.self_attn')))
        block |= dict(mixer('nextn.hc_head', 'mtp.hyper_connection_mixer', inject=False))
        block['nextn.enorm'] = 1 + weight('mtp.pre_fc_norm_embedding.weight', (N,))
        block['nextn.hnorm'] = 1 + weight('mtp.pre_fc_norm_hidden.weight', (STREAMS*N,))
        halves = [weight(f'mtp.fc_{x}.weight', (N, N)) for x in ('embedding', 'hidden')]
        block['nextn.eh_proj'] = np.concatenate(halves, 1)
        out |= {f'blk.{LAYERS}.{name}': x for name, x in block.items()}
    return {name if name.endswith(('ssm_a', '.bias')) else name + '.weight': x for name, x in out.items()}


def meta(mtp=True):
    "The metadata of the GGUF file."
    keys = {'block_count': LAYERS + mtp, 'context_length': 4096, 'embedding_length': N, 'attention.head_count': 4,
            'attention.head_count_kv': 2, 'attention.key_length': 32, 'attention.value_length': 32,
            'attention.layer_norm_rms_epsilon': 1e-6, 'rope.freq_base': 1e7, 'rope.dimension_count': 8,
            'rope.dimension_sections': np.array([2, 1, 1, 0], np.int32), 'expert_count': EXPERTS,
            'expert_used_count': 3,
            'expert_feed_forward_length': 32, 'expert_shared_feed_forward_length': 32, 'ssm.conv_kernel': 4,
            'ssm.state_size': 32, 'ssm.group_count': 2, 'ssm.time_step_rank': 6, 'ssm.inner_size': 192,
            'full_attention_interval': 4, 'hyper_connection.count': STREAMS, 'hyper_connection.low_rank': RANK,
            'attention.indexer.head_count': 4, 'attention.indexer.key_length': 32, 'attention.indexer.top_k': 16,
            'attention.compress_ratios': np.array([0, 0, 0, 4] + [0]*mtp, np.int32),
            'ple.layers': np.array([1], np.int32), 'ple.ngram_size': 3, 'ple.heads_per_ngram': 2,
            'ple.conv_kernel': 4, 'ple.eos_token_id': 2,
            'embedding_length_per_layer_input': 24, 'ple.layer_multipliers': np.array(MULTIPLIERS, np.uint64),
            'ple.head_offsets': np.array(OFFSETS, np.uint64), 'ple.head_vocab_sizes': np.array(SIZES, np.uint64)}
    if mtp: keys['nextn_predict_layers'] = 1
    return {'general.architecture': 'qwen4exp', 'general.name': 'streams',
            **{f'qwen4exp.{k}': v for k, v in keys.items()},
            'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'qwen35',
            'tokenizer.ggml.tokens': [f'<{i}>' for i in range(256)],
            'tokenizer.ggml.token_type': np.ones(256, np.int32), 'tokenizer.ggml.merges': ['< 1'],
            'tokenizer.ggml.eos_token_id': 2}


def write(path, mtp=True):
    "Write the model as a GGUF file with this project's writer."
    from alphabook.modelfile import write_gguf
    write_gguf(path, meta(mtp), [(name, x.shape, 'F32', np.ascontiguousarray(x, '<f4').tobytes())
                                 for name, x in tensors(mtp).items()])
