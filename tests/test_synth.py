"Synthetic models: valid files in every shape and type, the same bytes for the same seed, logits worth comparing."
import math

import numpy as np
import pytest
from gguf import GGUFReader, dequantize

from alphabook import synth as S
from alphabook.config import ARCHITECTURES, MTP_FAMILIES, load_config, tensor_names
from alphabook.modelfile import ModelFile
from alphabook.tokenizer import Tokenizer

TINY = [like for like in S.SHAPES if like.startswith('tiny-')]
SMALL = [like for like in S.SHAPES if like.startswith('small-')]
# what --like promises: the published names
PUBLISHED = {'qwen3-0.6b': 0.596, 'qwen3-8b': 8.19, 'qwen3-30b-a3b': 30.5, 'qwen3.6-35b-a3b': 34.7,
             'qwen3.6-27b': 26.9, 'qwen3-next-80b-a3b': 79.7, 'llama-3-8b': 8.03, 'gemma3-270m': 0.268,
             'olmoe-1b-7b': 6.92, 'gpt-oss-20b': 20.9, 'qwen3.8-flash-next': None}


@pytest.mark.parametrize('like', PUBLISHED)
def test_published_sizes(like):
    "Billions of parameters, as the model cards have them."
    n = sum(map(math.prod, S.all_shapes(S.SHAPES[like]).values())) / 1e9
    if PUBLISHED[like]:
        assert n == pytest.approx(PUBLISHED[like], rel=0.005)


@pytest.mark.parametrize('like', TINY)
@pytest.mark.parametrize('type', ['F32', 'Q4_K_M', 'MXFP4'])
def test_files_are_valid(tmp_path, like, type):
    "gguf-py reads them, every weight is finite, matrices have the deviation that was asked for."
    s = S.SHAPES[like]
    path = S.synth(like, type, tmp_path / 'm.gguf', n_vocab=520)
    reader = GGUFReader(path)
    assert {t.name for t in reader.tensors} == set(S.all_shapes(s))
    for t in reader.tensors:
        x = dequantize(t.data, t.tensor_type).astype(np.float64)
        assert np.isfinite(x).all(), t.name
        mean, sigma = S.moments(t.name, x.shape, S.replace(s, n_vocab=520))
        if x.size >= 2000 and t.name.endswith('weight'):
            off = 0.25 if type == 'MXFP4' else 0.12  # its scales are powers of two
            assert x.std() == pytest.approx(sigma, rel=off), t.name
            assert x.mean() == pytest.approx(mean, abs=0.1 * sigma), t.name
    mf = ModelFile(path)
    tokenizer = Tokenizer.from_meta(mf.meta)
    assert tokenizer.n_vocab == 520 == len(mf.meta['tokenizer.ggml.tokens'])
    assert tokenizer.decode(tokenizer.encode('Ünïcödé 🙂 the end'), skip_special=True) == 'Ünïcödé 🙂 the end'


@pytest.mark.parametrize('type', ['F16', 'Q4_K_M'])
@pytest.mark.parametrize('like', SMALL)
def test_small_shapes(tmp_path, like, type):
    "Heads as wide as the published models' have them, rows that K-quants fit, files that a test can read in no time."
    s, real = S.SHAPES[like], next(S.SHAPES[k] for k in PUBLISHED if S.SHAPES[k].arch == S.SHAPES[like].arch)
    for field in ('head_dim', 'gdn_dim', 'rope_dim', 'index_dim'):
        assert getattr(s, field) == getattr(real, field), field
    with ModelFile(S.synth(like, type, tmp_path / 'm.gguf', mtp=int(s.arch in MTP_FAMILIES))) as mf:
        cfg = load_config(mf)
        assert {cfg.mixer(i) for i in range(cfg.n_layer)} == {'attention', 'gdn' if s.gdn_k else 'attention'}
        assert (cfg.ple_layer == 1) == (s.arch == 'qwen4exp') and (tmp_path / 'm.gguf').stat().st_size < 24e6
        types = {t.type.name for t in mf.tensors.values()}
        assert types == {'F32', 'F16'} if type == 'F16' else types >= {'F32', 'Q4_K', 'Q6_K'}


def test_the_ngram_table_is_the_published_one():
    "Multipliers and sizes for the published vocabulary and seed, as Hugging Face's qwen4_exp computes them."
    fields = S.ngram_fields(S.SHAPES['qwen3.8-flash-next'])
    assert fields['ple_multipliers'] == (23703573157769, 20109073645365, 8052911324071)
    assert [n - 20_000_000 for n in fields['ple_sizes']] == [
        3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171]
    assert fields['ple_offsets'][:3] == (0, 20000003, 40000026) and fields['ple_rows'] == 320001536
    assert [S.multiplier(i, 512) for i in range(3)] == [4295158889763781, 17440218147737327, 1270917961434445]


def test_files_say_what_the_shape_says(tmp_path):
    "What the keys became in the loader equals what the writer made them from."
    for like in [*TINY, *SMALL]:
        s = S.SHAPES[like]
        for mtp in {0, int(s.arch in MTP_FAMILIES)}:
            expected = S.config_of(s, mtp)
            with ModelFile(S.synth(like, 'Q8_0', tmp_path / 'm.gguf', mtp=mtp)) as mf:
                cfg = load_config(mf)
            for field in vars(cfg):  # the rest only the arithmetic needs
                if field not in ('name', 'eps', 'attn_scale', 'embed_scale', 'swa_layers', 'rope_theta_swa',
                                 'rope_type', 'rope_mscale', 'yarn'):
                    assert getattr(cfg, field) == getattr(expected, field), (like, field)
            assert (cfg.yarn == (32.0, 4096, 32.0, 1.0)) == (s.arch == 'gpt-oss')


@pytest.mark.parametrize('arch', ARCHITECTURES)
def test_our_loader_takes_them(tmp_path, arch):
    like, s = f'tiny-{arch}', S.SHAPES[f'tiny-{arch}']
    for n_layers in (1, 8):
        with ModelFile(S.synth(like, 'Q8_0', tmp_path / 'm.gguf', n_layers)) as mf:
            cfg = load_config(mf)
            assert (cfg.n_layer, cfg.head_dim, cfg.window, cfg.tied) == (n_layers, s.head_dim, s.window, s.tied)
            assert set(tensor_names(cfg)) == set(mf.tensors)


def test_types_of_hybrids_follow_llama_cpp():
    "A delta-net's projection counts as values; the index is not quantized; rows of 320 fall back to blocks of 32."
    s = S.SHAPES['qwen3.6-35b-a3b']
    kinds = [S.pick_type(f'blk.{i}.attn_qkv.weight', (8192, 2048), s, 'Q4_K_M') for i in (0, 5, 6, 7, 34, 35)]
    assert kinds == ['Q6_K', 'Q4_K', 'Q4_K', 'Q6_K', 'Q6_K' if (34 - 5) % 3 == 2 else 'Q4_K', 'Q6_K']
    s = S.SHAPES['qwen3.8-flash-next']
    for name, shape, kind in (('indexer.q_proj.weight', (512, 2560), 'F16'), ('hc_ffn_up.weight', (10240, 320), 'Q5_0'),
                              ('hc_ffn_norm.weight', (10240,), 'F32'), ('ssm_conv1d.weight', (10240, 4), 'F32'),
                              ('ple_conv1d.weight', (10240, 4), 'F16'), ('ffn_gate_inp.weight', (512, 2560), 'F32')):
        assert S.pick_type(f'blk.9.{name}', shape, s, 'Q4_K_M') == kind, name
    assert S.pick_type('per_layer_token_embd.weight', (9, 160), s, 'Q4_K_M') == 'Q4_0'


@pytest.mark.parametrize('type', S.SYNTH_TYPES)
def test_every_type(tmp_path, type):
    with ModelFile(S.synth('tiny-llama', type, tmp_path / 'm.gguf', 1)) as mf:
        load_config(mf)
        base = S.MIXES.get(type, (type,))[0]
        assert mf.tensors['blk.0.attn_q.weight'].type.name == base
        assert mf.tensors['output.weight'].type.name == (base if base in ('F32', 'F16', 'BF16', 'Q8_0') else
                                                         'Q8_0' if base == 'MXFP4' else 'Q6_K')
        assert mf.tensors['blk.0.attn_norm.weight'].type.name == 'F32'


@pytest.mark.parametrize('type, expected', [('Q4_K', 'Q5_0'), ('Q5_K', 'Q5_1'), ('Q6_K', 'Q8_0'), ('Q2_K', 'Q4_0'),
                                            ('TQ1_0', 'Q4_0'), ('IQ3_S', 'IQ4_NL'), ('Q4_0', 'Q4_0'), ('BF16', 'BF16')])
def test_fallback(tmp_path, type, expected):
    "Rows of 96, then of 40, that blocks of 256 and of 32 do not divide."
    with ModelFile(S.synth('tiny-qwen2', type, tmp_path / 'm.gguf')) as mf:
        assert mf.tensors['blk.0.attn_q.weight'].type.name == expected
    with ModelFile(S.synth('tiny-qwen2', type, tmp_path / 'm.gguf', n_ff=40)) as mf:
        small = mf.tensors['blk.0.ffn_down.weight'].type.name
        assert small == ('BF16' if type == 'BF16' else 'F16')


def test_same_seed_same_bytes(tmp_path):
    a, b, c = (S.synth('tiny-qwen35moe', 'Q4_K_M', tmp_path / f'{i}.gguf', seed=seed).read_bytes()
               for i, seed in enumerate((1, 1, 2)))
    assert a == b != c and len(a) == len(c)


@pytest.mark.parametrize('interval, mixers', [(1, 'aaa'), (2, 'gag'), (3, 'gga'), (9, 'ggg')])
def test_every_how_many_layers_attend(tmp_path, interval, mixers):
    "An n-gram layer is only where layer 1 is a delta-net."
    with ModelFile(S.synth('tiny-qwen4exp', 'Q8_0', tmp_path / 'm.gguf', interval=interval)) as mf:
        cfg = load_config(mf)
        assert ''.join(cfg.mixer(i)[0] for i in range(3)) == mixers and cfg.ple_layer == (1 if mixers[1] == 'g' else -1)


def test_mtp(tmp_path):
    for like in ('tiny-qwen35', 'tiny-qwen35moe', 'tiny-qwen3next'):
        with ModelFile(S.synth(like, 'Q8_0', tmp_path / 'm.gguf', mtp=1)) as mf:
            arch = mf.meta['general.architecture']
            assert mf.meta[f'{arch}.block_count'] == 5 and mf.meta[f'{arch}.nextn_predict_layers'] == 1
            assert 'blk.4.attn_q.weight' in mf.tensors and mf.tensors['blk.4.nextn.eh_proj.weight'].shape == (128, 256)
            cfg = load_config(mf)
            assert (cfg.n_layer, cfg.n_mtp, cfg.mtp_own) == (4, 1, ('shared_head_norm',))
            assert list(mf.meta[f'{arch}.attention.recurrent_layers']) == [True, True, True, False, False]


@pytest.mark.parametrize('type, least', [('Q4_K', 512), ('Q6_K', 512), ('BF16', 64)])
def test_rows_of_a_large_tensor_differ(type, least):
    "Equal rows of a head would be tokens with equal logits."
    rows = np.concatenate(list(S.Pools(1).rows(type, 30_000, least, 0.02, np.random.default_rng(1))))
    assert len(rows) == 30_000 and len(np.unique(rows, axis=0)) == 30_000


def test_errors(tmp_path):
    out = tmp_path / 'm.gguf'
    for args, changes, words in [
            (('mamba', 'F32'), {}, "no shape named 'mamba'; known are qwen3-0.6b, "),
            (('qwen3-06b', 'F32'), {}, "no shape named 'qwen3-06b'; did you mean qwen3-0.6b"),
            (('qwen3-30b-a3b', 'F32'), dict(n_layers=512, n_expert=100000), 'm.gguf: needs .* GB are free there'),
            (('tiny-llama', 'F32'), dict(seed=-1), 'seed: is -1'),
            (('tiny-llama', 'F32'), dict(n_layer=0), 'n_layer: is 0; a number from 1'),
            (('tiny-llama', 'Q9_K'), {}, "type 'Q9_K' can not be written; one of F32, F16, BF16, .*MXFP4.*Q4_K_M"),
            (('tiny-llama', 'Q8_K'), {}, "type 'Q8_K' can not be written"),
            (('tiny-llama', 'F32'), dict(n_layers=0), 'layers: is 0; 1 to 512'),
            (('tiny-llama', 'F32'), dict(n_layers=2.0), 'layers: is 2.0; 1 to 512'),
            (('tiny-llama', 'F32'), dict(mtp=1), 'mtp: is 1; 0 would be right for llama'),
            (('tiny-qwen35', 'F32'), dict(mtp=2), 'mtp: is 2'),
            (('tiny-llama', 'F32'), dict(width=2), "no field 'width'"),
            (('tiny-llama', 'F32'), dict(n_vocab=100), 'n_vocab: is 100; at least 267'),
            (('tiny-llama', 'F32'), dict(n_vocab=-1), 'n_vocab: is -1'),
            (('tiny-qwen35', 'F32'), dict(interval=0), 'interval: is 0; a number from 1'),
            (('tiny-qwen4exp', 'F32'), dict(ngram_heads=0), 'ngram_heads: is 0; a number from 1'),
            (('tiny-qwen3moe', 'F32'), dict(mtp=1), 'mtp: is 1; 0 would be right for qwen3moe'),
            (('tiny-olmoe', 'F32'), dict(mtp=1), 'mtp: is 1; 0 would be right for olmoe'),
            (('tiny-gemma3', 'F32'), dict(n_vocab=300), 'n_vocab: is 300; at least 366'),
            (('tiny-llama', 'F32'), dict(n_embd=0), 'n_embd: is 0; a number from 1')]:
        with pytest.raises(ValueError, match=words) as e:
            S.synth(*args, out, **changes)
        assert '\n' not in str(e.value) and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match='no folder'):
        S.synth('tiny-llama', 'F32', tmp_path / 'no' / 'm.gguf')


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(*args):
        yield np.zeros(8, np.uint8)
        raise OSError(28, 'No space left on device')

    S.synth('tiny-llama', 'F32', tmp_path / 'm.gguf')
    before = (tmp_path / 'm.gguf').read_bytes()
    monkeypatch.setattr(S, 'tensor_data', full)
    with pytest.raises(OSError):
        S.synth('tiny-llama', 'F32', tmp_path / 'm.gguf')
    assert [p.name for p in tmp_path.iterdir()] == ['m.gguf'] and (tmp_path / 'm.gguf').read_bytes() == before


def logits_of(path, ids):
    "Logits of the plain fp32 reference."
    pytest.importorskip('torch', reason='the fp32 reference needs torch')
    reference = pytest.importorskip('alphabook.reference')
    return np.asarray(reference.Reference(ModelFile(path)).logits(ids))


@pytest.mark.parametrize('arch', ARCHITECTURES)
def test_logits_are_worth_comparing(tmp_path, arch):
    "A clear favourite with rivals, another one at most positions, and not simply the last token again."
    path = S.synth(f'tiny-{arch}', 'Q8_0', tmp_path / 'm.gguf', n_vocab=600)
    ids = list(np.random.default_rng(0).integers(0, 600, 40))
    logits = logits_of(path, ids)
    top = logits.argmax(1)
    assert 2 < logits.std() < 4.5 and len(set(top)) > 15 and (top == np.array(ids)).sum() < 10
