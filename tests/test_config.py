"Metadata → ModelConfig: eleven families, and one clear line for everything that is wrong."
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alphabook import config as C
from alphabook.fetch import MODELS, cache_dir
from alphabook.modelfile import GGUFError, ModelFile, write_gguf

BASE = {'block_count': 2, 'context_length': 64, 'embedding_length': 48, 'feed_forward_length': 80,
        'attention.head_count': 6, 'attention.head_count_kv': 2, 'attention.layer_norm_rms_epsilon': 1e-5,
        'vocab_size': 50}
CFG = C.ModelConfig('llama', 'llama', n_layer=2, n_embd=48, n_ff=80, n_head=6, n_kv_head=2, head_dim=8, n_vocab=50,
                    n_ctx=64, eps=1e-5, rope_theta=1e4, rope_dim=8, attn_scale=8 ** -.5, qkv_bias=False, tied=False,
                    **C.FAMILIES['llama'])


def file(path, arch='llama', meta=(), cfg=CFG, without=(), extra=(), types=()):
    "A GGUF of zeros with some keys changed (None: left out) and some tensors dropped, added, or of another type."
    keys = {'general.architecture': arch, **{f'{arch}.{k}': v for k, v in {**BASE, **dict(meta)}.items()}}
    keys = {k: v for k, v in keys.items() if v is not None}
    shapes = {n: s for n, s in C.tensor_names(cfg).items() if n not in without}
    tensors = [(n, s, dict(types).get(n, 'F32')) for n, s in shapes.items()] + list(extra)
    sizes = {'F32': 4, 'F64': 8, 'F16': 2, 'I32': 4}
    write_gguf(path, keys, [(n, s, t, bytes(math.prod(s) * sizes[t])) for n, s, t in tensors])
    return ModelFile(path)


def test_llama(tmp_path):
    cfg = C.load_config(file(tmp_path / 'm.gguf'))
    assert cfg == replace(CFG, eps=cfg.eps, attn_scale=float(np.float32(8 ** -.5)), swa_layers=(False, False),
                          mixers=('attention',) * 2)
    assert abs(cfg.eps - 1e-5) < 1e-12 and not cfg.tied


def test_tied_and_bias(tmp_path):
    cfg = C.load_config(file(tmp_path / 'm.gguf', 'qwen2', cfg=replace(CFG, tied=True, qkv_bias=True)))
    assert cfg.tied and cfg.qkv_bias and cfg.rope_style == 'neox' and not cfg.qk_norm


def test_qwen3(tmp_path):
    shape = replace(CFG, qk_norm=True, head_dim=10)
    meta = {'attention.key_length': 10, 'attention.value_length': 10}
    cfg = C.load_config(file(tmp_path / 'm.gguf', 'qwen3', meta, shape))
    assert cfg.head_dim == cfg.rope_dim == 10 and cfg.qk_norm and cfg.attn_scale == float(np.float32(10) ** -.5)


def test_gemma3(tmp_path):
    shape = replace(CFG, qk_norm=True, post_norms=True, n_layer=7, tied=True)
    meta = {'block_count': 7, 'attention.sliding_window': 16, 'rope.freq_base': 1e6, 'rope.scaling.factor': 8.0}
    cfg = C.load_config(file(tmp_path / 'm.gguf', 'gemma3', meta, shape))
    assert cfg.swa_layers == (True, True, True, True, True, False, True) and cfg.window == 16
    assert (cfg.rope_theta, cfg.rope_theta_swa, cfg.rope_type, cfg.rope_scale) == (1e6, 1e4, 'linear', 8.0)
    assert cfg.act == 'gelu' and cfg.embed_scale == float(np.sqrt(np.float32(48)))


def test_gemma3_exceptions(tmp_path):
    "62 layers (27B): scores are scaled by n_embd / n_head. No window: no window layers."
    shape = replace(CFG, qk_norm=True, post_norms=True, n_layer=62, head_dim=2, tied=True)
    meta = {'block_count': 62, 'attention.key_length': 2, 'attention.value_length': 2}
    cfg = C.load_config(file(tmp_path / 'm.gguf', 'gemma3', meta, shape))
    assert cfg.attn_scale == float(np.float32(1) / np.sqrt(np.float32(8))) and cfg.swa_layers == (False,) * 62


def test_per_layer_lists(tmp_path):
    same = np.array([6, 6], np.int32)
    assert C.load_config(file(tmp_path / 'm.gguf', meta={'attention.head_count': same})).n_head == 6


def test_rope_factors(tmp_path):
    def with_factors(values, type='F32'):
        write_gguf(tmp_path / 'm.gguf', {**{f'llama.{k}': v for k, v in BASE.items()}, 'general.architecture': 'llama'},
                   [(n, s, 'F32', bytes(4 * math.prod(s))) for n, s in C.tensor_names(CFG).items()]
                   + [('rope_freqs.weight', (4,), type, np.array(values, 'f4' if type == 'F32' else 'f2'))])
        return C.load_config(ModelFile(tmp_path / 'm.gguf'))

    assert with_factors([1, 1, 2, 8]).rope_factors
    for bad in ([1, 1, 0, 1], [1, 1, -1, 1], [1, 1, math.inf, 1], [1, 1, math.nan, 1]):
        with pytest.raises(GGUFError, match='rope_freqs.weight: has factors that are not positive and finite'):
            with_factors(bad)
    with pytest.raises(GGUFError, match='rope_freqs.weight: has the type F16; F32'):
        with_factors([1, 1, 2, 8], 'F16')


BAD_KEYS = [
    ('block_count', None, r'llama.block_count: is missing; an integer from 1 to 512 would be right'),
    ('block_count', 0, 'is 0; an integer'),
    ('block_count', 4_000_000_000, 'is 4000000000; an integer from 1 to 512'),
    ('block_count', -1, 'is -1'),
    ('block_count', '2', "is '2'; an integer"),
    ('block_count', 2.0, 'is 2.0; an integer'),
    ('block_count', True, 'is True; an integer'),
    ('block_count', [2, 3], 'one value for all layers'),
    ('block_count', np.zeros(0, np.int32), 'one value for all layers'),
    ('context_length', None, 'context_length: is missing'),
    ('context_length', 0, 'context_length: is 0'),
    ('embedding_length', None, 'embedding_length: is missing'),
    ('embedding_length', 47, r'attention.head_count: is 6; a divisor of embedding_length, which is 47'),
    ('embedding_length', 1 << 60, 'embedding_length: is 1152921504606846976'),
    ('feed_forward_length', None, 'feed_forward_length: is missing'),
    ('feed_forward_length', 81, r'ffn_gate.weight: has shape \(80, 48\); \(81, 48\) would be right'),
    ('attention.head_count', 0, 'head_count: is 0'),
    ('attention.head_count', None, 'head_count: is missing'),
    ('attention.head_count_kv', 0, 'head_count_kv: is 0'),
    ('attention.head_count_kv', 4, 'head_count_kv: is 4; a divisor of head_count, which is 6'),
    ('attention.head_count_kv', None, r'attn_k.weight: has shape \(16, 48\); \(48, 48\)'),
    ('attention.key_length', 7, 'value_length: is 8; 7, as key_length'),
    ('attention.layer_norm_rms_epsilon', None, 'layer_norm_rms_epsilon: is missing'),
    ('attention.layer_norm_rms_epsilon', 0.0, 'layer_norm_rms_epsilon: is 0.0'),
    ('attention.layer_norm_rms_epsilon', math.nan, 'layer_norm_rms_epsilon: is nan'),
    ('attention.layer_norm_rms_epsilon', 'x', "layer_norm_rms_epsilon: is 'x'"),
    ('attention.sliding_window', 32, 'sliding_window: is 32; none, or at least 64'),
    ('attention.causal', False, 'causal: is False; True'),
    ('expert_count', 8, 'expert_count: is 8; 0 .mixtures of experts are not supported in llama.'),
    ('rope.freq_base', 0.5, 'freq_base: is 0.5; a number above 1'),
    ('rope.freq_base', math.inf, 'freq_base: is inf'),
    ('rope.dimension_count', 9, 'dimension_count: is 9; an integer from 1 to 8'),
    ('rope.dimension_count', 3, 'dimension_count: is 3; an even number'),
    ('rope.scaling.type', 'yarn', 'rope.scaling.factor: is missing; a number above 0'),
    ('rope.scaling.type', 'longrope', "rope.scaling.type: is 'longrope'; none, linear or yarn"),
    ('rope.scaling.type', [1, 2], 'rope.scaling.type: is .1, 2.|rope.scaling.type: is array'),
    ('rope.scaling.factor', -1.0, 'factor: is -1.0'),
    ('rope.scaling.attn_factor', 2.0, 'attn_factor: is 2.0; 1 would be right'),
    ('vocab_size', None, 'vocab_size: is missing'),
    ('vocab_size', 51, r'token_embd.weight: has shape \(50, 48\); \(51, 48\)'),
]


@pytest.mark.parametrize('key, value, words', BAD_KEYS, ids=[f'{k}={v!r}'[:40] for k, v, _ in BAD_KEYS])
def test_bad_keys(tmp_path, key, value, words):
    mf = file(tmp_path / 'm.gguf', meta={key: value})
    with pytest.raises(GGUFError, match=words) as e:
        C.load_config(mf)
    assert '\n' not in str(e.value) and str(e.value).startswith(f'{mf.path}: ') and len(str(e.value)) < 400


@pytest.mark.parametrize('key, value, field, expected', [
    ('attention.sliding_window', 64, 'window', 0),
    ('rope.scaling.factor', 0.0, 'rope_scale', 1.0),
    ('rope.scaling.factor', 4.0, 'rope_scale', 4.0),
    ('rope.scale_linear', 2.0, 'rope_scale', 2.0),
    ('expert_count', 0, 'n_layer', 2),
    ('attention.causal', True, 'n_layer', 2),
    ('rope.freq_base', 500000, 'rope_theta', 500000.0),
    ('rope.dimension_count', 4, 'rope_dim', 4),
])
def test_allowed_keys(tmp_path, key, value, field, expected):
    assert getattr(C.load_config(file(tmp_path / 'm.gguf', meta={key: value})), field) == expected


@pytest.mark.parametrize('change, words', [
    (dict(arch='mamba'), "architecture: 'mamba' is not supported; supported are llama, qwen2, qwen3, gemma3"),
    (dict(arch='clip\nx'), r"'clip\\nx' is not supported"),
    (dict(without=['blk.1.ffn_up.weight']), r'tensor blk.1.ffn_up.weight: is missing; .*\(80, 48\)'),
    (dict(without=['token_embd.weight']), 'token_embd.weight: is missing'),
    (dict(without=['output_norm.weight']), 'output_norm.weight: is missing'),
    (dict(without=list(C.tensor_names(CFG))), 'holds no tensors'),
    (dict(types={'blk.0.attn_v.weight': 'F64'}), 'attn_v.weight: has the type F64; one of F32, F16, BF16, .*Q4_K'),
    (dict(types={'output_norm.weight': 'I32'}), 'output_norm.weight: has the type I32; one of F32, F16, BF16 would'),
    (dict(extra=[('blk.0.attn_q.bias', (48,), 'F32')]), 'blk.0.attn_k.bias: is missing'),
    (dict(extra=[('blk.0.ffn_up.bias', (80,), 'F32'), ('z', (3,), 'F32')]), 'ffn_up.bias.: is no part of .* .2 such'),
    (dict(extra=[('x\ny', (3,), 'F32')]), r"tensor 'x\\ny': is no part of"),
    (dict(arch='qwen2', extra=[('rope_freqs.weight', (4,), 'F32')]), 'rope_freqs.weight.: is no part of a qwen2 model'),
    (dict(extra=[('rope_freqs.weight', (5,), 'F32')]), r'rope_freqs.weight: has shape \(5,\); \(4,\)'),
])
def test_bad_files(tmp_path, change, words):
    mf = file(tmp_path / 'm.gguf', **change)
    with pytest.raises(GGUFError, match=words) as e:
        C.load_config(mf)
    assert '\n' not in str(e.value)


# What llama.cpp's loaders read and its converter writes, in small: per family its keys, and what they have to become.
MOE = {'expert_count': 4, 'expert_used_count': 2, 'expert_feed_forward_length': 24}
MOE_CFG = dict(n_expert=4, n_used=2, n_ff_expert=24)
GDN = {'ssm.conv_kernel': 4, 'ssm.state_size': 8, 'ssm.group_count': 2, 'ssm.time_step_rank': 4, 'ssm.inner_size': 32,
       'full_attention_interval': 2}
GDN_CFG = dict(gdn_k=2, gdn_v=4, gdn_dim=8, conv_width=4, mixers=('gdn', 'attention'))
SHARED = {'expert_shared_feed_forward_length': 40}
STREAMS = {'hyper_connection.count': 4, 'hyper_connection.low_rank': 6, 'attention.indexer.head_count': 3,
           'attention.indexer.key_length': 12, 'attention.indexer.top_k': 64,
           'attention.compress_ratios': np.array([0, 4], np.int32), 'ple.layers': np.array([0], np.int32),
           'ple.ngram_size': 3, 'ple.heads_per_ngram': 2, 'ple.conv_kernel': 4, 'ple.eos_token_id': 7,
           'embedding_length_per_layer_input': 12, 'ple.layer_multipliers': np.array([3, 5, 1 << 45], np.uint64),
           'ple.head_offsets': np.array([0, 5, 10, 17], np.uint64),
           'ple.head_vocab_sizes': np.array([5, 5, 7, 7], np.uint64)}
STREAMS_CFG = dict(streams=4, stream_rank=6, index_heads=3, index_dim=12, index_budget=64, index_block=4, ple_layer=0,
                   ple_ngram=3, ple_heads=4, ple_dim=12, ple_rows=24, ple_conv=4, ple_eos=7,
                   ple_multipliers=(3, 5, 1 << 45), ple_offsets=(0, 5, 10, 17), ple_sizes=(5, 5, 7, 7))
ALL = dict(mixers=('attention',) * 2)
NEW = {
    'qwen3moe': (MOE, ALL | MOE_CFG),
    'olmoe': ({k: v for k, v in MOE.items() if 'length' not in k}, ALL | MOE_CFG | dict(n_ff_expert=80)),
    'gpt-oss': (MOE | {'attention.sliding_window': 16, 'rope.scaling.type': 'yarn', 'rope.scaling.factor': 32.0,
                       'rope.scaling.original_context_length': 4096},
                ALL | MOE_CFG | dict(qkv_bias=True, window=16, swa_layers=(True, False), rope_type='yarn',
                                     yarn=(32.0, 4096, 32.0, 1.0))),
    'qwen3next': (MOE | GDN | SHARED, MOE_CFG | GDN_CFG | dict(n_ff_shared=40)),
    'qwen35': (GDN, GDN_CFG),
    'qwen35moe': (MOE | GDN | SHARED | {'feed_forward_length': None}, MOE_CFG | GDN_CFG | dict(n_ff=0, n_ff_shared=40)),
    'qwen4exp': (MOE | GDN | SHARED | STREAMS, MOE_CFG | GDN_CFG | STREAMS_CFG | dict(n_ff_shared=40))}


def family(path, arch, meta=(), changes=(), **more):
    "A file of a family, keys and configuration changed, and the configuration."
    cfg = replace(CFG, arch=arch, **C.FAMILIES[arch], **{**NEW[arch][1], **dict(changes)})
    return file(path, arch, {**NEW[arch][0], **dict(meta)}, cfg, **more), cfg


@pytest.mark.parametrize('arch', NEW)
def test_families(tmp_path, arch):
    mf, expected = family(tmp_path / 'm.gguf', arch)
    cfg = C.load_config(mf)
    for field in vars(expected):
        if field not in ('name', 'eps', 'attn_scale', 'swa_layers', 'rope_theta_swa', 'rope_mscale'):
            assert getattr(cfg, field) == getattr(expected, field), field
    assert abs(cfg.rope_mscale - (1.346574 if arch == 'gpt-oss' else 1)) < 1e-6  # 1 + 0.1 ln 32
    assert cfg.rope_theta_swa == 1e4 and cfg.swa_layers == (arch == 'gpt-oss', False)


# Shapes as llama.cpp's loaders ask for them (rows first), written out: the files above are made from our own list.
SHAPES = {
    'qwen3moe': {'attn_q_norm.weight': (8,), 'ffn_gate_inp.weight': (4, 48), 'ffn_gate_exps.weight': (4, 24, 48),
                 'ffn_up_exps.weight': (4, 24, 48), 'ffn_down_exps.weight': (4, 48, 24), 'ffn_norm.weight': (48,)},
    'olmoe': {'attn_q_norm.weight': (48,), 'attn_k_norm.weight': (16,), 'ffn_down_exps.weight': (4, 48, 80)},
    'gpt-oss': {'attn_q.bias': (48,), 'attn_k.bias': (16,), 'attn_output.bias': (48,), 'attn_sinks.weight': (6,),
                'ffn_gate_inp.bias': (4,), 'ffn_gate_exps.bias': (4, 24), 'ffn_up_exps.bias': (4, 24),
                'ffn_down_exps.bias': (4, 48), 'post_attention_norm.weight': (48,)},
    'qwen3next': {'ssm_ba.weight': (8, 48), 'attn_qkv.weight': (64, 48), 'attn_gate.weight': (32, 48), 'ssm_a': (4,),
                  'ssm_dt.bias': (4,), 'ssm_conv1d.weight': (64, 4), 'ssm_norm.weight': (8,),
                  'ssm_out.weight': (48, 32), 'ffn_gate_inp_shexp.weight': (48,), 'ffn_gate_shexp.weight': (40, 48),
                  'ffn_up_shexp.weight': (40, 48), 'ffn_down_shexp.weight': (48, 40),
                  'post_attention_norm.weight': (48,)},
    'qwen35': {'ssm_beta.weight': (4, 48), 'ssm_alpha.weight': (4, 48), 'ffn_gate.weight': (80, 48),
               '1.attn_q.weight': (96, 48), '1.attn_k.weight': (16, 48), '1.attn_output.weight': (48, 48),
               '1.attn_q_norm.weight': (8,), '1.attn_k_norm.weight': (8,)},
    'qwen35moe': {'ssm_beta.weight': (4, 48), 'ffn_gate_exps.weight': (4, 24, 48), 'ffn_gate_inp_shexp.weight': (48,)},
    'qwen4exp': {'hc_attn_norm.weight': (192,), 'hc_attn_down.weight': (6, 192), 'hc_attn_up.weight': (192, 6),
                 'hc_attn_inject.weight': (4, 192), 'hc_ffn_inject.weight': (4, 192), 'ple_key.weight': (192, 48),
                 'ple_value.weight': (48, 48), 'ple_norm_key.weight': (192,), 'ple_norm_query.weight': (192,),
                 'ple_norm_conv.weight': (192,), 'ple_conv1d.weight': (192, 4), '1.indexer.q_proj.weight': (36, 48),
                 '1.indexer.k_proj.weight': (12, 48), '1.indexer.q_norm.weight': (12,),
                 '1.indexer.k_norm.weight': (12,)}}


@pytest.mark.parametrize('arch', NEW)
def test_shapes(tmp_path, arch):
    names = C.tensor_names(replace(CFG, arch=arch, **C.FAMILIES[arch], **NEW[arch][1]))
    for name, shape in SHAPES[arch].items():
        assert names[f'blk.{name if name[0] == "1" else "0." + name}'] == shape, name
    whole = {name: shape for name, shape in names.items() if not name.startswith('blk.')}
    norm = {'output_hc_norm.weight': (192,), 'output_hc_down.weight': (6, 192), 'output_hc_up.weight': (192, 6),
            'per_layer_token_embd.weight': (24, 12)} if arch == 'qwen4exp' else {'output_norm.weight': (48,)}
    assert whole == {'token_embd.weight': (50, 48), 'output.weight': (50, 48), **norm}
    assert ('blk.0.attn_norm.weight' in names) == (arch != 'qwen4exp')


def test_every_missing_tensor_is_named(tmp_path):
    for arch in NEW:
        names = list(C.tensor_names(family(tmp_path / 'm.gguf', arch)[1]))
        for name in (n for n in names if '.0.' not in n and n not in ('output.weight', 'blk.1.attn_q.bias')):
            if name.endswith('attn_q.bias') or arch not in ('gpt-oss', 'olmoe') and name == 'output.weight':
                continue
            with pytest.raises(GGUFError, match=f'tensor {name}: is missing'):
                C.load_config(family(tmp_path / 'm.gguf', arch, without=[name])[0])


def test_only_some_may_be_tied(tmp_path):
    for arch in NEW:
        mf = family(tmp_path / 'm.gguf', arch, without=['output.weight'])[0]
        if arch in ('olmoe', 'gpt-oss'):
            with pytest.raises(GGUFError, match='tensor output.weight: is missing'):
                C.load_config(mf)
        else:
            assert C.load_config(mf).tied


BAD = [
    *[(arch, 'expert_count', None, 'expert_count: is missing') for arch in NEW if arch != 'qwen35'],
    ('qwen35', 'expert_count', 4, 'expert_count: is 4; 0 .mixtures of experts are not supported in qwen35.'),
    ('qwen3moe', 'expert_used_count', 5, 'expert_used_count: is 5; an integer from 1 to 4'),
    ('qwen3moe', 'expert_used_count', None, 'expert_used_count: is missing'),
    ('qwen3moe', 'expert_used_count', np.array([2, 3], np.int32), r'expert_used_count: is \[2, 3\]; one value for all'),
    ('qwen3moe', 'expert_feed_forward_length', None, 'expert_feed_forward_length: is missing'),
    ('qwen3moe', 'expert_feed_forward_length', 25, r'ffn_gate_exps.weight: has shape \(4, 24, 48\); \(4, 25, 48\)'),
    ('qwen3moe', 'expert_count', 5, r'ffn_gate_inp.weight: has shape \(4, 48\); \(5, 48\)'),
    ('qwen3moe', 'expert_group_count', 2, 'expert_group_count: is 2; 0 or 1'),
    ('qwen3moe', 'expert_gating_func', 2, r'expert_gating_func: is 2; 1 \(softmax\)'),
    ('olmoe', 'expert_gating_func', 3, r'expert_gating_func: is 3; 1 \(softmax\)'),
    ('qwen3moe', 'expert_weights_scale', -1.0, 'expert_weights_scale: is -1.0'),
    ('qwen3moe', 'rope.dimension_count', 4, "dimension_count: is 4; 8, the head's width"),
    ('qwen3moe', 'nextn_predict_layers', 1, r'nextn_predict_layers: is 1; 0 \(more'),
    ('olmoe', 'feed_forward_length', None, 'feed_forward_length: is missing'),
    ('gpt-oss', 'attention.sliding_window', None, 'sliding_window: is missing'),
    ('gpt-oss', 'attention.sliding_window', 0, 'sliding_window: is 0; an integer from 1'),
    ('gpt-oss', 'attention.sliding_window_pattern', np.array([True]), 'sliding_window_pattern: is .*; 2 entries'),
    ('gpt-oss', 'rope.scaling.type', 'linear', "rope.scaling.type: is 'linear'; none or yarn"),
    ('gpt-oss', 'rope.scaling.type', None, 'rope.scaling.type: is missing; none or yarn'),
    ('gpt-oss', 'rope.scaling.factor', 0.5, 'rope.scaling.factor: is 0.5; at least 1'),
    ('gpt-oss', 'rope.scaling.factor', None, 'rope.scaling.factor: is missing'),
    ('gpt-oss', 'rope.scaling.original_context_length', 0, 'original_context_length: is 0'),
    ('gpt-oss', 'rope.scaling.yarn_beta_fast', 0.5, 'yarn_beta_fast: is 0.5; more than yarn_beta_slow, which is 1,'),
    ('gpt-oss', 'rope.scaling.yarn_ext_factor', 0.5, 'yarn_ext_factor: is 0.5; 1, or none'),
    ('gpt-oss', 'rope.scaling.yarn_attn_factor', 1.0, 'yarn_attn_factor: is 1.0; 1.3466, or none'),
    ('gpt-oss', 'rope.scaling.yarn_log_multiplier', 0.1, 'yarn_log_multiplier: is 0.1'),
    ('qwen3next', 'ssm.group_count', 3, 'ssm.time_step_rank: is 4; a multiple of ssm.group_count, which is 3'),
    ('qwen3next', 'ssm.inner_size', 33, 'ssm.inner_size: is 33; 32'),
    ('qwen3next', 'expert_shared_feed_forward_length', 41, r'ffn_gate_shexp.weight: has shape \(40, 48\); \(41, 48\)'),
    ('qwen35', 'ssm.conv_kernel', 1, 'ssm.conv_kernel: is 1; an integer from 2'),
    ('qwen35', 'ssm.conv_kernel', 5, r'ssm_conv1d.weight: has shape \(64, 4\); \(64, 5\)'),
    ('qwen35', 'ssm.state_size', None, 'ssm.state_size: is missing'),
    ('qwen35', 'feed_forward_length', None, 'feed_forward_length: is missing'),
    ('qwen35', 'full_attention_interval', 0, 'full_attention_interval: is 0'),
    ('qwen35', 'full_attention_interval', 1, 'blk.0.attn_q.weight: is missing'),
    ('qwen35', 'attention.recurrent_layers', np.array([True]), 'recurrent_layers: is .True.; 2 entries, true or false'),
    ('qwen35', 'attention.recurrent_layers', [1.5, 0.5], 'recurrent_layers: is .1.5, 0.5.; 2 entries'),
    ('qwen35', 'attention.recurrent_layers', True, 'recurrent_layers: is True; 2 entries'),
    ('qwen35', 'rope.dimension_sections', np.array([1, 1, 1, 0]), r'sections: is \[1, 1, 1, 0\]; .* share out 4 pairs'),
    ('qwen35', 'rope.dimension_sections', 'x', "sections: is 'x'"),
    ('qwen35', 'nextn_predict_layers', 2, 'nextn_predict_layers: is 2; 0 or 1'),
    ('qwen35', 'block_count', np.array([2, 3]), 'block_count: is .2, 3.; one value for all layers'),
    ('qwen35', 'attention.head_count_kv', np.array([0, 2]), 'head_count_kv: is .0, 2.; one value for all layers'),
    ('qwen35moe', 'expert_shared_feed_forward_length', None, 'expert_shared_feed_forward_length: is missing'),
    ('qwen4exp', 'nextn_predict_layers', 2, 'nextn_predict_layers: is 2; 0 or 1'),
    ('qwen4exp', 'hyper_connection.count', 1, 'hyper_connection.count: is 1; an integer from 2'),
    ('qwen4exp', 'hyper_connection.low_rank', None, 'low_rank: is missing'),
    ('qwen4exp', 'attention.indexer.key_length', 7, 'key_length: is 7; an integer from 8'),
    ('qwen4exp', 'attention.indexer.top_k', 63, 'top_k: is 63; a multiple of 4'),
    ('qwen4exp', 'attention.compress_ratios', None, 'compress_ratios: is missing; a list of 2'),
    ('qwen4exp', 'attention.compress_ratios', np.array([4, 0]), r'compress_ratios: is .4, 0.; the same number above 0'),
    ('qwen4exp', 'attention.compress_ratios', np.array([0.0, 4.0]), 'compress_ratios: is .0.0, 4.0.; a list of 2, int'),
    ('qwen4exp', 'ple.layers', np.array([1]), 'ple.layers: is .1.; one layer that is a delta-net'),
    ('qwen4exp', 'ple.layers', np.array([0, 1]), 'ple.layers: is .0, 1.; a list of 1'),
    ('qwen4exp', 'ple.layers', np.array([2]), 'ple.layers: is .2.; a list of 1, integers from 0 to 1'),
    ('qwen4exp', 'ple.ngram_size', 9, 'ngram_size: is 9; an integer from 2 to 8'),
    ('qwen4exp', 'ple.ngram_size', 2, 'ple.head_offsets: is .* a list of 2'),
    ('qwen4exp', 'ple.head_vocab_sizes', np.array([5, 0, 7, 7], np.uint64), 'sizes: is .5, 0, 7, 7.; a list of 4'),
    ('qwen4exp', 'ple.head_vocab_sizes', np.array([5, 5, 7, 8], np.uint64), r'has shape \(24, 12\); \(25, 12'),
    ('qwen4exp', 'ple.eos_token_id', 50, 'eos_token_id: is 50; an integer from 0 to 49'),
    ('qwen4exp', 'ple.layer_multipliers', np.array([3, -5, 7]), 'is .3, -5, 7.; a list of 3, integers from 0'),
    ('qwen4exp', 'ple.layer_multipliers', None, 'multipliers: is missing'),
    ('qwen4exp', 'embedding_length_per_layer_input', None, 'per_layer_input: is missing')]


@pytest.mark.parametrize('arch, key, value, words', BAD, ids=[f'{a}:{k}={v!r}'[:60] for a, k, v, _ in BAD])
def test_bad_family_keys(tmp_path, arch, key, value, words):
    mf = family(tmp_path / 'm.gguf', arch, {key: value})[0]
    with pytest.raises(GGUFError, match=words) as e:
        C.load_config(mf)
    assert '\n' not in str(e.value) and str(e.value).startswith(f'{mf.path}: ') and len(str(e.value)) < 400


@pytest.mark.parametrize('arch, key, value, field, expected', [
    ('qwen3moe', 'expert_used_count', np.array([2, 2], np.int32), 'n_used', 2),
    ('qwen3moe', 'expert_weights_scale', 2.5, 'expert_scale', 2.5),
    ('qwen3moe', 'expert_weights_scale', 0.0, 'expert_scale', 1.0),  # unset, as llama.cpp's own writer has it
    ('gpt-oss', 'expert_gating_func', 3, 'n_used', 2),
    ('gpt-oss', 'rope.freq_base_swa', 500.0, 'rope_theta_swa', 500.0),
    ('gpt-oss', 'attention.sliding_window_pattern', np.array([False, True]), 'swa_layers', (False, True)),
    ('gpt-oss', 'rope.scaling.attn_factor', 0.5, 'rope_mscale', 0.6732868),
    ('gpt-oss', 'rope.scaling.type', 'none', 'yarn', None),
    ('qwen3moe', 'rope.scaling.type', 'none', 'rope_type', 'none'),
    ('qwen35', 'attention.recurrent_layers', np.array([True, False]), 'mixers', ('gdn', 'attention')),
    ('qwen35', 'attention.recurrent_layers', np.array([1, 0], np.int32), 'mixers', ('gdn', 'attention')),
    ('qwen35', 'rope.dimension_sections', np.array([2, 1, 1, 0]), 'rope_dim', 8),
    ('qwen4exp', 'ple.layers', None, 'ple_layer', -1),
])
def test_allowed_family_keys(tmp_path, arch, key, value, field, expected):
    changes = {f: getattr(CFG, f) for f in STREAMS_CFG if f.startswith('ple_')} if key == 'ple.layers' else {}
    found = getattr(C.load_config(family(tmp_path / 'm.gguf', arch, {key: value}, changes)[0]), field)
    assert found == pytest.approx(expected) if isinstance(expected, float) else found == expected


def test_a_padded_table_and_stream_norms_in_rows(tmp_path):
    "The converter pads the n-gram table; norms over streams may come flat or as one row per stream."
    cfg = family(tmp_path / 'm.gguf', 'qwen4exp', changes=dict(ple_rows=128))[1]
    assert C.load_config(family(tmp_path / 'm.gguf', 'qwen4exp', changes=dict(ple_rows=128))[0]).ple_rows == 128
    norms = [name for name, shape in C.tensor_names(cfg).items() if shape == (4 * 48,)]
    mf = family(tmp_path / 'm.gguf', 'qwen4exp', without=norms, extra=[(name, (4, 48), 'F32') for name in norms])[0]
    assert len(norms) == 2 * 2 + 1 + 3 and C.load_config(mf).streams == 4
    mf = family(tmp_path / 'm.gguf', 'qwen4exp', without=norms[:1], extra=[(norms[0], (3, 48), 'F32')])[0]
    with pytest.raises(GGUFError, match=r'has shape \(3, 48\); \(192,\)'):
        C.load_config(mf)


MTP_META = {'block_count': 3, 'nextn_predict_layers': 1}
OWN = ('embed_tokens', 'shared_head_head', 'shared_head_norm')


@pytest.mark.parametrize('arch', C.MTP_FAMILIES)
@pytest.mark.parametrize('own', [(), OWN[2:], OWN])
def test_mtp(tmp_path, arch, own):
    mf, expected = family(tmp_path / 'm.gguf', arch, MTP_META, dict(n_mtp=1, mtp_own=own))
    cfg = C.load_config(mf)
    assert (cfg.n_layer, cfg.n_mtp, cfg.mtp_own, cfg.mixers) == (2, 1, own, ('gdn', 'attention'))
    for name in C.draft_names(expected):
        if any(part in name for part in OWN):
            continue
        with pytest.raises(GGUFError, match=f'tensor {name}: is missing'):
            C.load_config(family(tmp_path / 'x.gguf', arch, MTP_META, dict(n_mtp=1, mtp_own=own), without=[name])[0])
    with pytest.raises(GGUFError, match='block_count: is 1; at least 2'):
        C.load_config(family(tmp_path / 'm.gguf', arch, {**MTP_META, 'block_count': 1})[0])
    listed = {**MTP_META, 'attention.recurrent_layers': np.array([True, False, True])}
    with pytest.raises(GGUFError, match='3 entries, true or false for each block, false for the last'):
        C.load_config(family(tmp_path / 'm.gguf', arch, listed, dict(n_mtp=1))[0])


@pytest.mark.parametrize('arch', C.MTP_FAMILIES)
def test_mtp_in_a_file_of_its_own(tmp_path, arch):
    trunk = C.load_config(family(tmp_path / 'm.gguf', arch)[0])
    changes, keep = dict(n_mtp=1, mtp_own=OWN[2:]), ('token_embd.weight', 'output_norm.weight', 'output.weight')
    cfg = family(tmp_path / 'x.gguf', arch, MTP_META, changes)[1]
    trunk_only = C.tensor_names(cfg).keys() - C.draft_names(cfg).keys()
    for without in (trunk_only, trunk_only - set(keep)):  # llama.cpp's converter writes embedding and head along
        side = family(tmp_path / 'x.gguf', arch, MTP_META, changes, without=without)[0]
        assert C.load_mtp_config(side, trunk) == replace(trunk, **changes)
        with pytest.raises(GGUFError, match='holds only the block that drafts .MTP.; the file of the whole model') as e:
            C.load_config(side)
        assert '\n' not in str(e.value)
    for change, words in ((dict(n_head=3), 'n_head: is 6; 3 would'), (dict(n_layer=3), 'n_layer: is 2; 3 would'),
                          (dict(arch='llama'), f'arch: is {arch}; llama'), (dict(n_vocab=51), 'n_vocab: is 50; 51')):
        with pytest.raises(GGUFError, match=words):
            C.load_mtp_config(side, replace(trunk, **change))
    with pytest.raises(GGUFError, match='nextn_predict_layers: is missing or 0'):
        C.load_mtp_config(family(tmp_path / 'y.gguf', arch)[0], trunk)
    name = 'blk.2.nextn.eh_proj.weight'
    with pytest.raises(GGUFError, match=f'tensor {name}: is missing'):
        C.load_mtp_config(family(tmp_path / 'x.gguf', arch, MTP_META, changes, without=[*trunk_only, name])[0], trunk)


@pytest.mark.parametrize('arch', ['qwen3moe', 'qwen35moe', 'qwen4exp'])
def test_fused_tensors(tmp_path, arch):
    "As the converter's --fuse-gate-up-exps and --fuse-qkv write them."
    mf, cfg = family(tmp_path / 'm.gguf', arch)
    alone = [f'blk.1.{name}.weight' for name in ('attn_q', 'attn_k', 'attn_v', 'ffn_gate_exps', 'ffn_up_exps')]
    rows = [C.tensor_names(cfg)[name][-2] for name in alone]
    fused = [('blk.1.attn_qkv.weight', (sum(rows[:3]), 48), 'F32'),
             ('blk.1.ffn_gate_up_exps.weight', (4, 48, 48), 'F32')]
    values = np.random.default_rng(0).standard_normal((4, 48, 48)).astype('f4')
    shapes = {n: s for n, s in C.tensor_names(cfg).items() if n not in alone} | {n: s for n, s, _ in fused}
    write_gguf(tmp_path / 'f.gguf', {k: mf.meta[k] for k in mf.meta}, [
        (n, s, 'F32', values if 'gate_up' in n else bytes(4 * math.prod(s))) for n, s in shapes.items()])
    with ModelFile(tmp_path / 'f.gguf') as mf:
        assert C.load_config(mf) == C.load_config(ModelFile(tmp_path / 'm.gguf'))
        found = C.model_tensors(mf, cfg)
        assert set(found) == set(C.tensor_names(cfg))
        gate, up = (found[name] for name in alone[3:])
        assert gate.shape == (4, 24, 48) and gate.nbytes == 4 * 24 * 48 * 4 and gate.type.name == 'F32'
        assert (gate.data.view('<f4') == values[:, :24]).all() and (up.data.view('<f4') == values[:, 24:]).all()
    for extra, words in ((fused[:1], 'blk.1.attn_q.weight: is there alone and in a fused tensor'),
                         (fused[1:], 'blk.1.ffn_gate_exps.weight: is there alone and'),
                         ([('blk.1.attn_qkv.weight', (7, 48), 'F32')], "blk.1.attn_qkv.weight': is no part of")):
        with pytest.raises(GGUFError, match=words):
            C.load_config(family(tmp_path / 'x.gguf', arch, extra=extra)[0])


def test_files_that_are_no_model(tmp_path):
    for meta, words in (({}, 'general.architecture: is missing'), ({'general.architecture': 3}, 'architecture: is 3'),
                        ({'general.architecture': 'llama', 'general.type': 'adapter'}, "general.type: is 'adapter'")):
        write_gguf(tmp_path / 'm.gguf', meta, [])
        with pytest.raises(GGUFError, match=words):
            C.load_config(ModelFile(tmp_path / 'm.gguf'))


def test_norms_may_be_half(tmp_path):
    C.load_config(file(tmp_path / 'm.gguf', types={'output_norm.weight': 'F16', 'blk.0.attn_v.weight': 'F16'}))


values = st.one_of(st.none(), st.integers(-2 ** 63, 2 ** 63 - 1), st.integers(0, 100), st.floats(width=32),
                   st.booleans(), st.text(max_size=5), *[st.lists(x, min_size=1, max_size=3) for x in (
                       st.integers(-9, 9), st.text(max_size=3), st.booleans())])
OPTIONAL = ['attention.key_length', 'attention.value_length', 'attention.sliding_window', 'attention.causal',
            'attention.sliding_window_pattern', 'rope.freq_base', 'rope.freq_base_swa', 'rope.dimension_count',
            'rope.scaling.type', 'rope.scaling.factor', 'rope.scale_linear', 'rope.scaling.attn_factor', 'expert_count',
            'final_logit_softcapping', 'attn_logit_softcapping', 'nextn_predict_layers', 'attention.recurrent_layers',
            'rope.dimension_sections', *MOE, *GDN, *SHARED, *STREAMS]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(C.ARCHITECTURES), st.dictionaries(st.sampled_from([*BASE, *OPTIONAL]), values, max_size=4))
def test_any_metadata(tmp_path, arch, meta):
    "Whatever the values are: a description, or one line."
    mf = family(tmp_path / 'm.gguf', arch, meta)[0] if arch in NEW else file(
        tmp_path / 'm.gguf', arch, meta, replace(CFG, **C.FAMILIES[arch]))
    try:
        cfg = C.load_config(mf)
    except GGUFError as e:
        assert '\n' not in str(e) and len(str(e)) < 500
    else:
        assert len(cfg.swa_layers) == cfg.n_layer and set(C.tensor_names(cfg)) == set(mf.tensors)


@pytest.mark.parametrize('name, expected', [
    ('smollm2', dict(arch='llama', n_layer=30, n_embd=576, n_ff=1536, n_head=9, n_kv_head=3, head_dim=64, n_vocab=49152,
                     n_ctx=8192, rope_theta=1e5, tied=True, window=0)),
    ('gemma3-270m', dict(arch='gemma3', n_layer=18, n_embd=640, n_ff=2048, n_head=4, n_kv_head=1, head_dim=256,
                         n_vocab=262144, rope_theta=1e6, rope_theta_swa=1e4, tied=True, window=512, attn_scale=1 / 16)),
])
def test_real_models(name, expected):
    "As the models' published config.json files have them."
    path = cache_dir() / MODELS[name].file
    if not path.is_file():
        pytest.skip(f'{name} is not in the cache; `alphabook fetch {name}` gets it')
    cfg = C.load_config(ModelFile(path))
    assert {k: getattr(cfg, k) for k in expected} == expected
