"""The reference's hybrid layers, mixtures and second guess: by hand, by float64 loops, and by what must not matter.

Their logits are compared with other programs' in test_golden_hybrid.py.
"""
import math

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='the reference needs torch: pip install "alphabook[dev]"')

from alphabook.blocks import decode
from alphabook.config import load_config
from alphabook.modelfile import GGUFError, ModelFile, write_gguf
from alphabook.reference import Reference, check_ids
from alphabook.reference_hybrid import attend, choose, delta_layer, delta_rule, gated, mixture, yarn_factors
from alphabook.reference_layers import Weights, visible
from alphabook.synth import SHAPES, synth

torch.set_num_threads(1)
MTP = ('tiny-qwen35', 'tiny-qwen35moe', 'tiny-qwen3next')
MIXED = ('tiny-qwen3moe', 'tiny-qwen35moe', 'tiny-qwen3next', 'tiny-qwen4exp', 'tiny-olmoe', 'tiny-gpt-oss')
IDS = np.random.default_rng(3).integers(0, 280, 24).tolist()


@pytest.fixture(scope='module')
def path(tmp_path_factory):
    "Write a small model, once."
    folder, made = tmp_path_factory.mktemp('models'), {}

    def get(like, type='F32'):
        mtp = int(like in MTP)
        if (like, type) not in made: made[like, type] = synth(like, type, folder / f'{like}-{type}.gguf', mtp=mtp)
        return made[like, type]
    return get


def tensors_of(mf):
    "name → float32 array, all decoded."
    return {t.name: decode(t.data, t.type.name).reshape(t.shape) for t in mf.tensors.values()}


def rewrite(path, out, change, meta=None):
    "A copy of a float32 file: `change` gets its tensors and returns others; `meta` adds or removes (None) keys."
    with ModelFile(path) as mf:
        kinds = {k: v if isinstance(v := mf.meta[k], (str, bool, list)) else (mf.meta.kind(k), v) for k in mf.meta}
        tensors = change(tensors_of(mf))
    keys = {k: v for k, v in (kinds | (meta or {})).items() if v is not None}
    write_gguf(out, keys, [(n, x.shape, 'F32', np.ascontiguousarray(x, '<f4').tobytes()) for n, x in tensors.items()])
    return out


def logits(path, ids=IDS, **kw):
    with ModelFile(path) as mf: return Reference(mf).logits(ids, **kw)


def guess(path, ids=IDS, **kw):
    with ModelFile(path) as mf: return Reference(mf).mtp_logits(ids, **kw)


# The layers

def test_the_delta_rule_in_loops():
    "Every number of it, in Python's floats."
    rng, n, heads, d = np.random.default_rng(1), 7, 2, 5
    q, k, v = rng.standard_normal((3, n, heads, d))
    decay, beta = rng.random((2, n, heads))
    memory, want = np.zeros((heads, d, d)), np.zeros((n, heads, d))
    for t in range(n):
        for h in range(heads):
            old = [[decay[t, h] * memory[h, i, j] for j in range(d)] for i in range(d)]
            for i in range(d):
                u = beta[t, h] * (v[t, h, i] - sum(old[i][j] * k[t, h, j] for j in range(d)))
                for j in range(d): memory[h, i, j] = old[i][j] + u * k[t, h, j]
                want[t, h, i] = sum(memory[h, i, j] * q[t, h, j] for j in range(d))
    out, after = delta_rule(*(torch.tensor(x) for x in (q, k, v, decay, beta)))
    np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(after, memory, rtol=1e-12, atol=1e-12)


def test_a_sink_takes_its_share():
    "Two tokens whose scores are log 1 and log 2, and a sink of log 3: the weights are 1/6 and 2/6."
    q, k = torch.ones(2, 1, 1), torch.tensor([0., math.log(2)]).view(2, 1, 1)
    v = torch.tensor([6., 60.]).view(2, 1, 1)
    out = attend(q, k, v, 1., visible(2), torch.tensor([math.log(3)])).flatten()
    torch.testing.assert_close(out, torch.tensor([6 * 1 / 4, 6 * 1 / 6 + 60 * 2 / 6]))


def test_yarns_divisors_by_hand():
    "gpt-oss's numbers: pairs up to 8 stay, from 18 on 32 times slower, 13 lies in the middle: ½ + ½ / 32 of its speed."
    factors = yarn_factors(64, 150000., 32., 4096, 32., 1.)
    assert factors[:9].tolist() == [1] * 9 and factors[18:].tolist() == [32] * 14
    assert factors[13].item() == pytest.approx(1 / (0.5 + 0.5 / 32), rel=1e-12)
    assert factors[10].item() == pytest.approx(1 / (0.8 + 0.2 / 32), rel=1e-12)


def test_equal_scores_go_to_the_lower_number():
    ids, weights = choose(torch.tensor([[1., 2., 2., 2., 0.]]), 2)
    assert ids.tolist() == [[1, 2]] and weights.tolist() == [[0.5, 0.5]]
    wide = torch.zeros(3, 300)                                # an unstable sort shows only in long rows
    assert choose(wide, 8)[0].tolist() == [[*range(8)]] * 3


def test_the_clamps_of_gpt_oss():
    g, u = torch.tensor([8., -8., 1., 1.]), torch.tensor([0., 0., 9., -9.])
    want = [7 / (1 + math.exp(-1.702 * 7)), -8 / (1 + math.exp(1.702 * 8)), 8 / (1 + math.exp(-1.702)),
            -6 / (1 + math.exp(-1.702))]
    torch.testing.assert_close(gated(g, u, 'swiglu_oai'), torch.tensor(want))


def test_a_text_of_no_tokens(path):
    with ModelFile(path('tiny-qwen35moe')) as mf:
        cfg, w = load_config(mf), Weights(mf.tensors)
        none = torch.zeros(0, cfg.n_embd)
        assert delta_layer(none, w.layer(0), cfg).shape == none.shape
        ids, weights = torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, 2)
        assert mixture(none, w.layer(0), cfg.act, ids, weights).shape == none.shape


# The models

@pytest.mark.parametrize('like', sorted(name for name in SHAPES if name.startswith('tiny')))
def test_a_row_sees_the_past_alone(like, path):
    with ModelFile(path(like)) as mf:
        ref = Reference(mf, keep=True)
        whole = ref.logits(IDS)
        assert whole.shape == (24, ref.cfg.n_vocab) and whole.dtype == np.float32 and np.isfinite(whole).all()
        for n in (1, 7, 23): np.testing.assert_allclose(ref.logits(IDS[:n]), whole[:n], atol=1e-4)
        np.testing.assert_array_equal(Reference(mf).logits(IDS), whole)      # kept weights or not
        assert ref.logits([]).shape == (0, ref.cfg.n_vocab)
        moved = np.abs(ref.logits([IDS[0] ^ 1, *IDS[1:]]) - whole).max(1)
        assert moved[0] > 0.1 and (moved > 0).all()                          # and all of it: the first token is felt


@pytest.mark.parametrize('like', ('tiny-qwen35moe', 'tiny-olmoe'))
def test_a_quantized_file_is_its_decoded_copy(like, path, tmp_path):
    "Experts, rows of the table and rows of the head are cut out of quantized data at the right places."
    quantized = path(like, 'Q4_K_M')
    with ModelFile(quantized) as mf: assert len({t.type.name for t in mf.tensors.values()}) > 2
    np.testing.assert_array_equal(logits(quantized), logits(rewrite(quantized, tmp_path / 'f32.gguf', lambda t: t)))


@pytest.mark.parametrize('like', MIXED)
def test_choices_can_be_read_and_forced(like, path):
    with ModelFile(path(like)) as mf:
        ref = Reference(mf, keep=True)
        cfg, plain, choices = ref.cfg, ref.logits(IDS), ref.choices(IDS)
        assert sorted(choices) == list(range(cfg.n_layer))
        for ids, weights in choices.values():
            assert ids.shape == weights.shape == (24, cfg.n_used) and (np.diff(weights) <= 0).all()
            assert (np.abs(weights.sum(1) - 1) < 1e-6).all() == cfg.renormalise
        np.testing.assert_array_equal(ref.logits(IDS, lambda i, _: choices[i]), plain)
        as_lists = ref.logits(IDS, lambda i, _: tuple(x.tolist() for x in choices[i]))
        np.testing.assert_allclose(as_lists, plain, atol=1e-5)
        backwards = ref.logits(IDS, lambda i, _: tuple(x[:, ::-1].copy() for x in choices[i]))      # ranks carry no meaning
        np.testing.assert_allclose(backwards, plain, atol=1e-4)
        first = ref.logits(IDS, lambda i, l: (choices[i][0] if i else choices[i][0] ^ 1, choices[i][1]))
        assert np.abs(first - plain).max() > 1e-2


def test_experts_may_stand_in_any_order(path, tmp_path):
    order = np.array([5, 2, 7, 0, 1, 4, 6, 3])
    def shuffle(tensors):
        mixed = ('ffn_gate_inp.weight', 'ffn_gate_inp.bias')
        return {n: x[order] if '_exps.' in n or n.endswith(mixed) else x for n, x in tensors.items()}
    for like in ('tiny-qwen35moe', 'tiny-gpt-oss'):
        other = rewrite(path(like), tmp_path / f'{like}.gguf', shuffle)
        np.testing.assert_allclose(logits(other), logits(path(like)), atol=1e-5)


def test_only_chosen_experts_are_read(path, monkeypatch):
    "That is why a file may be larger than memory."
    asked, read = {}, Weights.expert
    def note(self, name, e):
        asked.setdefault(int(self.prefix.split('.')[1]), set()).add(e)
        return read(self, name, e)
    with ModelFile(path('tiny-qwen35moe')) as mf:
        ref = Reference(mf)
        choices = ref.choices(IDS[:2])
        monkeypatch.setattr(Weights, 'expert', note)
        ref.logits(IDS[:2])
    assert asked == {i: set(ids.flatten().tolist()) for i, (ids, _) in choices.items()}
    assert all(len(chosen) < 8 for chosen in asked.values())


def test_fused_tensors_are_their_parts(path, tmp_path):
    def fuse(tensors):
        for i in range(5):
            b = f'blk.{i}.'
            gate, up = (tensors.pop(f'{b}ffn_{n}_exps.weight') for n in ('gate', 'up'))
            tensors[f'{b}ffn_gate_up_exps.weight'] = np.concatenate([gate, up], 1)
            if b + 'attn_q.weight' in tensors:
                tensors[b + 'attn_qkv.weight'] = np.concatenate([tensors.pop(f'{b}attn_{n}.weight') for n in 'qkv'])
        return tensors
    fused = rewrite(path('tiny-qwen35moe'), tmp_path / 'fused.gguf', fuse)
    np.testing.assert_array_equal(logits(fused), logits(path('tiny-qwen35moe')))
    np.testing.assert_array_equal(guess(fused), guess(path('tiny-qwen35moe')))


def test_tiled_heads_are_grouped_ones_in_another_order(path, tmp_path):
    """Turn a qwen3next file into a qwen35moe one, as the converters order the two: value heads that share a key head
    are neighbours in the one and alternate in the other, and the rows of ssm_ba are split."""
    s = SHAPES['tiny-qwen3next']
    K, V, d = s.gdn_k, s.gdn_v, s.gdn_dim
    heads = np.arange(V).reshape(K, V // K).T.flatten()       # tiled head j is grouped head heads[j]
    assert heads.tolist() == [0, 2, 1, 3]
    rows = (heads[:, None] * d + np.arange(d)).flatten()
    after_keys = np.concatenate([np.arange(2 * K * d), 2 * K * d + rows])

    def tile(tensors):
        for name in [n for n in tensors if n.endswith('ssm_ba.weight')]:
            b = name.removesuffix('ssm_ba.weight')
            ba = tensors.pop(name).reshape(K, 2, V // K, -1)
            for j, part in enumerate(('beta', 'alpha')): tensors[f'{b}ssm_{part}.weight'] = ba[:, j].reshape(V, -1)[heads]
            for n, order in (('attn_qkv.weight', after_keys), ('ssm_conv1d.weight', after_keys), ('ssm_a', heads),
                             ('ssm_dt.bias', heads), ('attn_gate.weight', rows)): tensors[b + n] = tensors[b + n][order]
            tensors[b + 'ssm_out.weight'] = tensors[b + 'ssm_out.weight'][:, rows]
        return tensors

    with ModelFile(path('tiny-qwen3next')) as mf:
        meta = {k: None for k in mf.meta if k.startswith('qwen3next.')}
        meta |= {k.replace('qwen3next', 'qwen35moe'): (mf.meta.kind(k), mf.meta[k]) for k in meta}
    meta |= {'general.architecture': 'qwen35moe', 'qwen35moe.rope.dimension_sections': ('int32[]', [3, 3, 2, 0])}
    tiled = rewrite(path('tiny-qwen3next'), tmp_path / 'tiled.gguf', tile, meta)
    np.testing.assert_allclose(logits(tiled), logits(path('tiny-qwen3next')), atol=1e-4)
    np.testing.assert_allclose(guess(tiled), guess(path('tiny-qwen3next')), atol=1e-4)


# The second guess

@pytest.mark.parametrize('like', MTP)
def test_the_second_guess_knows_one_token_more(like, path):
    with ModelFile(path(like)) as mf:
        ref = Reference(mf, keep=True)
        whole = ref.mtp_logits(IDS)
        assert whole.shape == (23, 300) and np.isfinite(whole).all()
        np.testing.assert_allclose(ref.mtp_logits(IDS[:9]), whole[:8], atol=1e-4)
        np.testing.assert_allclose(ref.mtp_logits(IDS[:8], after=IDS[8]), whole[:8], atol=1e-4)
        changed = ref.mtp_logits(IDS[:9] + [IDS[9] ^ 1] + IDS[10:])
        np.testing.assert_allclose(changed[:8], whole[:8], atol=1e-4)
        assert (np.abs(changed - whole).max(1)[8:] > 1e-4).all()
        assert ref.mtp_logits([]).shape == ref.mtp_logits([7]).shape == (0, 300)
        with pytest.raises(ValueError, match=r'ids\[1\]: 300'): ref.mtp_logits(IDS[:2], after=300)


def test_the_block_attends_to_its_own_past(path):
    "Row t of the second guess depends on pairs before t, not only through the trunk: it has keys and values."
    with ModelFile(path('tiny-qwen35')) as mf:
        ref = Reference(mf, keep=True)
        from alphabook.reference import second_guess, trunk
        x, following = trunk(check_ids(IDS, 300), ref.w, ref.cfg), check_ids(IDS[1:], 300)
        plain = second_guess(x[:23], following, ref.w, ref.cfg)
        x[3] += 1
        moved = (second_guess(x[:23], following, ref.w, ref.cfg) - plain).abs().amax(1)
        assert (moved[:3] == 0).all() and (moved[3:] > 0).all()


def test_a_block_in_a_file_of_its_own(path, tmp_path):
    whole, key = path('tiny-qwen35moe'), 'qwen35moe.'
    trunk = rewrite(whole, tmp_path / 'trunk.gguf', lambda t: {n: x for n, x in t.items() if not n.startswith('blk.4.')},
                    {key + 'block_count': ('uint32', 4), key + 'nextn_predict_layers': None,
                     key + 'attention.recurrent_layers': None})
    outside = ('token_embd.weight', 'output.weight', 'output_norm.weight')
    side = rewrite(whole, tmp_path / 'side.gguf',
                   lambda t: {n: x if n.startswith('blk.4.') else 0 * x for n, x in t.items()
                              if n.startswith('blk.4.') or n in outside})
    with pytest.raises(ValueError, match='has no MTP block'): guess(trunk)
    with ModelFile(trunk) as mf, ModelFile(side) as mtp:
        ref = Reference(mf, mtp=mtp)
        np.testing.assert_array_equal(ref.mtp_logits(IDS), guess(whole))     # embedding and head are the trunk's
        np.testing.assert_array_equal(ref.logits(IDS), logits(whole))
    zero = rewrite(whole, tmp_path / 'zero.gguf', lambda t: t | {'blk.4.nextn.eh_proj.weight':
                                                                 0 * t['blk.4.nextn.eh_proj.weight']})
    with ModelFile(zero) as mf, ModelFile(side) as mtp:
        assert (Reference(mf).mtp_logits(IDS) != guess(whole)).any()
        np.testing.assert_array_equal(Reference(mf, mtp=mtp).mtp_logits(IDS), guess(whole))  # it goes before the file's
    with ModelFile(path('tiny-qwen35')) as mf, ModelFile(side) as mtp, pytest.raises(GGUFError, match='arch'):
        Reference(mf, mtp=mtp)


def test_a_block_with_parts_of_its_own(path, tmp_path):
    whole, b = path('tiny-qwen35'), 'blk.4.nextn.'
    table = np.arange(300); table[[5, 6]] = 6, 5
    def add(tensors):
        return tensors | {b + 'embed_tokens.weight': tensors['token_embd.weight'][table],
                          b + 'shared_head_head.weight': tensors['output.weight'][::-1],
                          b + 'shared_head_norm.weight': 2 * tensors.pop(b + 'shared_head_norm.weight')}
    own = rewrite(whole, tmp_path / 'own.gguf', add)
    np.testing.assert_allclose(guess(own, IDS[:6], after=5), 2 * guess(whole, IDS[:6], after=6)[:, ::-1], atol=1e-4)
    np.testing.assert_array_equal(logits(own), logits(whole))
    without = rewrite(whole, tmp_path / 'without.gguf',
                      lambda t: {n: x for n, x in t.items() if n != b + 'shared_head_norm.weight'})
    same = rewrite(whole, tmp_path / 'same.gguf', lambda t: t | {b + 'shared_head_norm.weight': t['output_norm.weight']})
    np.testing.assert_array_equal(guess(without), guess(same))               # then the trunk's last norm is used
