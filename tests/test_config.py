"Metadata → ModelConfig: four families, and one clear line for everything that is wrong."
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
            'final_logit_softcapping', 'attn_logit_softcapping']


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(C.ARCHITECTURES), st.dictionaries(st.sampled_from([*BASE, *OPTIONAL]), values, max_size=4))
def test_any_metadata(tmp_path, arch, meta):
    "Whatever the values are: a description, or one line."
    mf = file(tmp_path / 'm.gguf', arch, meta, replace(CFG, **C.FAMILIES[arch]))
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
