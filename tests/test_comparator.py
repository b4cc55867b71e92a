"""The comparator: nothing is found where nothing is wrong, on every architecture; and whatever is broken is found, by the right arm, and named."""
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import alphabook
import alphabook.cpu_streams as cpu
import alphabook.policy                        # the drafters' arms
from alphabook import arms
from alphabook.arms import KINDS, Arm, Skip, Subject, judge, make_text, register
from alphabook.backends import record_of, row_hash
from alphabook.comparator import compare_model, passed
from alphabook.config import load_config
from alphabook.cpu_products import _path
from alphabook.debugger import explain
from alphabook.layers import Model
from alphabook.modelfile import ModelFile
from alphabook.rounds import run_round, run_together
from alphabook.synth import synth
from alphabook.tape import _recording, empty, kernel, share
from alphabook.vectors import fadd, fmul, fsub, fused, get, put
from conftest import ROOT

F = np.float32
TYPES = {'tiny-llama': 'Q4_K_M', 'tiny-qwen2': 'Q5_0', 'tiny-qwen3': 'Q6_K', 'tiny-gemma3': 'Q8_0', 'tiny-qwen3moe': 'Q4_0',
         'tiny-olmoe': 'Q8_0', 'tiny-gpt-oss': 'MXFP4', 'tiny-qwen35': 'Q4_1', 'tiny-qwen35moe': 'Q4_K_M',
         'tiny-qwen3next': 'F16', 'tiny-qwen4exp': 'Q8_0'}
PROMPTS = [list(range(40, 60)), np.random.default_rng(1).integers(0, 250, 70).tolist()]
FEW = ('numpy spec', 'recorded on an H200', 'Triton interpreter', 'GPU', 'fp32 reference')   # kinds of which fewer rows will do


@pytest.fixture(scope='module')
def opened(tmp_path_factory):
    "A function (family) → open file, configuration; made once."
    folder, made = tmp_path_factory.mktemp('compare'), {}

    def get(like):
        if like not in made:
            made[like] = mf = ModelFile(synth(like, TYPES[like], folder / f'{like}.gguf'))
            made[like] = mf, load_config(mf)
        return made[like]

    return get


def by_kind(result):
    "Rows compared by all arms of a kind."
    found = {}
    for a in result['arms']:
        name = next(n for n in KINDS if a['name'] == n or a['name'].startswith(n.split('{}')[0]) and '{}' in n)
        found[name] = found.get(name, 0) + a['comparisons']
    return found


@pytest.mark.parametrize('like', TYPES)
def test_every_architecture(like, opened):
    "The sampled set: every kind of arm, at least 64 rows of each that can have as many."
    result = compare_model(*opened(like), PROMPTS, widths=(1, 3, 16), n=30)
    assert passed(result) and result['mismatches'] == 0 and result['first_mismatch'] is None
    rows = by_kind(result)
    assert all(n >= 64 for name, n in rows.items() if name not in FEW and n), rows
    assert rows['numpy spec'] >= 64 and rows['replays, width {}'] and rows['prompt chunk {}']
    skipped = {a['name'] for a in result['arms'] if a['status'].startswith('skipped')}
    assert skipped <= {'instructions: avx2', 'instructions: vnni', 'threads: 2', 'GPU', 'Triton interpreter', 'fp32 reference',
                       'recorded on an H200', 'prompt chunk 512', 'drafter mtp', 'drafter block'}
    json.dumps(result)


def test_the_bundled_model():
    path = ROOT / 'data' / 'models' / 'alphabook-mini.gguf'
    if not path.exists(): pytest.skip('the bundled model is not here')
    with ModelFile(path) as mf:
        result = compare_model(mf, load_config(mf), PROMPTS, widths=(1, 3, 16), n=16)
    assert passed(result) and result['mismatches'] == 0
    rows = by_kind(result)
    assert rows['recorded on an H200'] >= 64 and all(n >= 64 for name, n in rows.items() if name not in FEW), rows


RECORDS = json.loads((ROOT / 'tests' / 'golden' / 'gpu_models.json').read_text())


@pytest.mark.parametrize('name', [n for n in RECORDS if n.startswith(('tiny', 'small-')) and 'pending' not in RECORDS[n]])
def test_rows_that_an_h200_gave(name, tmp_path):
    "Hashes of every row of logits; data/results/h200 says that the card gave the same."
    like, type, layers = [*name.split(), None][:3]
    with ModelFile(synth(like, type, tmp_path / f'{name}.gguf', n_layers=int(layers) if layers else None)) as mf:
        arm = Arm('')
        judge(KINDS['recorded on an H200'], Subject(Model(mf, load_config(mf), cpu), mf), None, None, arm)
    assert arm.status == 'ok' and arm.comparisons >= 84


def test_what_no_card_has_given_is_no_record(tmp_path, monkeypatch):
    monkeypatch.setattr(alphabook, '__file__', str(tmp_path/'alphabook'/'__init__.py'))
    assert record_of('mini.gguf') is None
    (tmp_path/'tests'/'golden').mkdir(parents=True)
    place = tmp_path/'tests'/'golden'/'gpu_models.json'
    for pending in (True, False):
        place.write_text(json.dumps({'smollm2': dict(ids=[1], rows=['0'], pending=pending)}))
        assert (record_of('/x/SmolLM2-135M-Instruct.Q4_1.gguf') is None) == pending


# ---------------------------------------------------------------- what is broken, and who finds it
@kernel
def norm_in_order(lo, hi, x, w, eps, n, out):
    for r in range(lo, hi):
        total = F(0)
        for i in range(n): total = total + x[r*n + i]*x[r*n + i]
        f = F(1)/np.sqrt(total/F(n) + eps)
        for i in range(n): out[r*n + i] = (x[r*n + i]*f)*w[i]


def other_order(always):
    "A norm whose sum goes from left to right: always, or in rounds of several rows."
    def rms_norm(x, w, eps):
        if x.ndim > 2 or len(x) == 1 and not always: return cpu.rms_norm(x, w, eps)
        out = empty(x.shape)
        share(norm_in_order, len(x), x.size, x.reshape(-1), w, F(eps), x.shape[1], out.reshape(-1))
        return out
    return dict(rms_norm=rms_norm)


@kernel
def turn_fused(lo, hi, x, cos, sin, d, D, heads, all_rows, out):
    for r in range(lo, hi):
        for i in range(0, d, 16):
            a, b = get(x, r*D + i, d - i), get(x, r*D + d + i, d - i)
            c, s = get(cos, r//heads*d + i, d - i), get(sin, r//heads*d + i, d - i)
            one = fused(a, c, fsub(fsub(a, a), fmul(b, s)))
            put(out, r*D + i, d - i, one if all_rows or r//heads % 2 else fsub(fmul(a, c), fmul(b, s)))
            put(out, r*D + d + i, d - i, fadd(fmul(a, s), fmul(b, c)))
        for i in range(2*d, D): out[r*D + i] = x[r*D + i]


def contraction(always):
    "A rotation that multiplies and adds with one rounding: always, or in every second column."
    def apply_rope(x, cos, sin, style):
        out, (W, H, D) = empty(x.shape), x.shape
        assert style == 'neox' and x.flags.c_contiguous
        args = x.reshape(-1), cos.reshape(-1), sin.reshape(-1), cos.shape[1], D, H, always, out.reshape(-1)
        share(turn_fused, W*H, x.size, *args)
        return out
    return dict(apply_rope=apply_rope)


@kernel
def cut_off(lo, hi, x, n, out):
    for i in range(lo*n, hi*n): out[i] = x[i] & np.int32(~0x1FFF)


def rounding(when):
    "Values cut off instead of rounded, when a condition on the values holds."
    def store_rows(k_table, v_table, positions, k, v, flag):
        if when(v):
            rest, n = empty(v.shape, np.int32), v.shape[-1]
            share(cut_off, v.size//n, v.size, v.view(np.int32).reshape(-1), n, rest.reshape(-1))
            v = rest.view(F)
        cpu.store_rows(k_table, v_table, positions, k, v, flag)
    return dict(store_rows=store_rows)


def recorded_only():
    "A scale that is computed when a round is recorded, and stale when it is played."
    def l2_norm(x, scale=1.0, eps=1e-6):
        y = cpu.l2_norm(x, scale, eps)
        return cpu.scale(y, 1.0 + 1e-6*(len(x) % 2)) if _recording[0] is not None else y
    return dict(l2_norm=l2_norm)


def stale_row(cache):
    "After a replay, a row of the second memory is what it was before the round."
    sound = cache.replay
    def replay(S, k, v, decay, beta, out):
        sound(S, k, v, decay, beta, out)
        if np.shares_memory(S, cache.memory[1]): out[0, 3] = S[0, 3]
    cache.replay = replay


def short_replay(cache):
    "A replay that forgets the last accepted row."
    sound = cache.replay
    def replay(S, k, v, decay, beta, out): sound(S, *(x[:max(1, len(x) - 1)] for x in (k, v, decay, beta)), out)
    cache.replay = replay


def greedy_windows(cache):
    "Windows that slide over rejected rows."
    sound = cache.commit
    def commit(n):
        rows, accepted = [None if r is None else r[len(r) - (n - cache.n):] for r in cache.rows], n - cache.n
        sound(n)
        for w, r in zip(cache.windows, rows):
            if accepted: w[-len(r):] = r[-len(w):]
    cache.commit = commit


def no_windows(cache):
    "A checkpoint without its windows."
    sound = cache.checkpoint
    def checkpoint():
        sound()
        for c in cache.checkpoints[-1:]: [w.fill(0) for w in c.windows]
    cache.checkpoint = checkpoint


def lost_values(cache):
    "A restored text without the last value."
    sound = cache.restore
    def restore(snap):
        sound(snap)
        cache.v[0, snap.n - 1] = 0
    cache.restore = restore


@pytest.fixture
def fewer(monkeypatch):
    "Without the arms that look at the definition, or at another text."
    monkeypatch.setattr(arms, 'KINDS', {n: k for n, k in KINDS.items() if n not in ('fp32 reference', 'recorded on an H200')})


def broken(like, opened, changes=(), spoil=None):
    "A comparison of a model with operations replaced or caches spoilt: (result, names of the arms that failed)."
    mf, cfg = opened(like)
    model = Model(mf, cfg, cpu)
    model.ops = SimpleNamespace(**{**vars(cpu), **dict(changes)})
    if spoil:
        def new_cache(n_ctx, keep=4):
            cache = Model.new_cache(model, n_ctx, keep)
            spoil(cache)
            return cache
        model.new_cache = new_cache
    result = compare_model(mf, cfg, PROMPTS[:1], widths=(1, 2, 5), n=24, model=model)
    return result, {a['name'] for a in result['arms'] if a['status'] == 'failed'}


WIDE = {f'{kind}, width {w}' for kind in ('rejections', 'replays', 'rotations', 'neighbours') for w in (2, 5)} | {'width 2', 'width 5'}
FAULTS = {
    'order of addition': (dict(changes=other_order(False)), WIDE | {'prompt chunk 7'}, (0, 'rms_norm', 'blk.0.attn_norm.weight')),
    'order of addition, always': (dict(changes=other_order(True)), {'numpy spec'}, (0, 'rms_norm', 'blk.0.attn_norm.weight')),
    'contraction': (dict(changes=contraction(False)), {'rotations, width 5'}, (3, 'apply_rope', '')),
    'contraction, always': (dict(changes=contraction(True)), {'numpy spec'}, (3, 'apply_rope', '')),
    'rounding': (dict(changes=rounding(lambda v: len(v) > 1)), {'prompt chunk 7', 'prompt chunk 32', 'width 5'}, (3, 'store_rows', '')),
    'rounding on one path': (dict(changes=rounding(lambda v: _path[0] == 'portable')), {'instructions: portable'}, (3, 'store_rows', '')),
    'stale row': (dict(spoil=stale_row), {'rejections, width 5', 'replays, width 5'}, (1, 'gdn', '')),
    'short replay': (dict(spoil=short_replay), {'rejections, width 5', 'replays, width 5'}, (0, 'gdn', '')),
    'greedy windows': (dict(spoil=greedy_windows), {'rejections, width 5', 'replays, width 5'}, (0, 'conv_silu', 'blk.0.ssm_conv1d.weight')),
    'checkpoint without windows': (dict(spoil=no_windows), {'prefix reuse'}, (0, 'conv_silu', 'blk.0.ssm_conv1d.weight')),
    'restored without a value': (dict(spoil=lost_values), {'snapshot and restore'}, (3, 'attention', '')),
    'recording': (dict(changes=recorded_only()), {'not recorded', 'rotations, width 5', 'neighbours, width 2'}, None),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_is_found_and_named(fault, opened, fewer):
    how, finders, where = FAULTS[fault]
    result, failed = broken('tiny-qwen35moe', opened, **how)
    first = result['first_mismatch']
    assert finders <= failed and not passed(result), (fault, failed)
    assert (first['layer'], first['operation'], first['tensor']) == (where or (None, None, None)), first
    if where: assert str(first['position']) and first['place'].startswith('position')


@pytest.mark.parametrize('like', ['tiny-gemma3', 'tiny-gpt-oss', 'tiny-qwen3next', 'tiny-qwen4exp'])
def test_the_debugger_sees_nothing_where_nothing_is_wrong(like, opened):
    "Every result of every operation in every kind of round is that of plain decoding, on the spec too."
    mf, cfg = opened(like)
    if cfg.streams: cfg = replace(cfg, index_budget=16)       # most rows choose their blocks
    subject = Subject(Model(mf, cfg, cpu), mf)
    text = make_text(subject.model, PROMPTS[0], 12)
    for name, parameter in (('width {}', 5), ('rejections, width {}', 5), ('replays, width {}', 5), ('rotations, width {}', 7),
                            ('neighbours, width {}', 3), ('prompt chunk {}', 7), ('prefix reuse', None), ('snapshot and restore', None),
                            ('numpy spec', None)):
        arm = Arm(name)
        assert judge(KINDS[name], subject, text, parameter, arm) is None and arm.status == 'ok', name
        assert explain(subject, text, KINDS[name], parameter, len(text.ids) - 1) is None, name


def test_a_fault_of_one_path_is_found_by_no_other(opened, fewer):
    assert broken('tiny-gemma3', opened, rounding(lambda v: _path[0] == 'portable'))[1] == {'instructions: portable'}


def test_a_neighbour_that_looks_over(opened):
    "A layer that mixes in what another text's row says, by a millionth, is found in company only."
    def add_norm(x, y, w, eps):
        if len(x) > 1: y = y.copy(); y[0] += F(1e-6)*y[-1]
        return cpu.add_norm(x, y, w, eps)
    mf, cfg = opened('tiny-gemma3')
    model = Model(mf, cfg, cpu)
    model.record = False
    model.ops = SimpleNamespace(**{**vars(cpu), 'add_norm': add_norm})
    text = make_text(model, PROMPTS[0], 20)
    arm = Arm('')
    first = judge(KINDS['neighbours, width {}'], Subject(model, mf), text, 2, arm)
    assert arm.mismatches
    found = explain(Subject(model, mf), text, KINDS['neighbours, width {}'], 2, first['position'])
    assert (found.layer, found.operation) == (0, 'add_norm')


# ---------------------------------------------------------------- arms that did nothing, or can't run
def test_an_arm_without_work_fails(opened, monkeypatch):
    mf, cfg = opened('tiny-llama')
    monkeypatch.setattr(arms, 'KINDS', {})
    def lazy(subject, text, parameter, arm): yield 0, text.rows[0]
    def absent(subject, text, parameter, arm): raise Skip('there is no such thing here'); yield
    def silent(subject, text, parameter, arm): return; yield
    register('absent')(absent)
    result = compare_model(mf, cfg, PROMPTS[:1], n=2)
    assert not passed(result) and result['arms'][0]['status'] == 'skipped: there is no such thing here'   # no arm at all
    for name, f in (('lazy', lazy), ('silent', silent)):
        arms.KINDS.clear()
        register(name)(f)
        result = compare_model(mf, cfg, PROMPTS[:1], n=2)
        assert not passed(result) and result['mismatches'] == 0 and result['arms'][0]['status'] == 'failed'


def test_an_arm_that_breaks_off_has_failed(opened, monkeypatch):
    mf, cfg = opened('tiny-llama')
    monkeypatch.setattr(arms, 'KINDS', {})
    @register('overflow {}', lambda subject: (1, 2))
    def overflow(subject, text, n, arm):
        arm.work += 1
        yield 0, text.rows[0]
        if n == 2: raise FloatingPointError('logits are not finite')
    result = compare_model(mf, cfg, PROMPTS[:1], n=2)
    assert [a['status'] for a in result['arms']] == ['ok', 'failed'] and result['first_mismatch']['error'] == 'logits are not finite'


def test_logits_that_are_not_finite_are_an_error(opened):
    "In plain decoding, in an arm, and for a hash."
    mf, cfg = opened('tiny-llama')
    model = Model(mf, cfg, cpu)
    model.record = False
    calls = []
    def matmul(w, x):
        y = cpu.matmul(w, x)
        if w is model.head and (calls or len(x) > 1): y[0, 0] = np.inf
        return y
    text = make_text(model, PROMPTS[0], 3)
    model.ops = SimpleNamespace(**{**vars(cpu), 'matmul': matmul})
    arm = Arm('')
    assert judge(KINDS['width {}'], Subject(model, mf), text, 2, arm)['different_logits'] == 1 and arm.status == 'failed'
    calls.append(1)
    with pytest.raises(FloatingPointError): compare_model(mf, cfg, PROMPTS[:1], n=2, model=model)
    for bad in (np.nan, np.inf):
        with pytest.raises(FloatingPointError, match='no hash'): row_hash(np.array([0, bad], F))


def test_rounds_of_several_texts(opened):
    "A text past its context, one cache twice; hidden rows are left for each."
    mf, cfg = opened('tiny-qwen35moe')
    model = Model(mf, cfg, cpu)
    a, b = model.new_cache(8), model.new_cache(2)
    with pytest.raises(ValueError, match='past the context'): run_together(model, [(a, [1, 2]), (b, [1, 2, 3])])
    with pytest.raises(ValueError, match='one cache'): run_together(model, [(a, [1]), (a, [2])])
    one, two = run_together(model, [(a, [1, 2, 3]), (b, [4])])
    assert one.shape == (3, cfg.n_vocab) and two.shape == (1, cfg.n_vocab) and len(a.hidden) == 3 and len(b.hidden) == 1
    alone = model.new_cache(8)
    assert run_round(model, alone, [1, 2, 3]).tobytes() == one.tobytes() and alone.hidden.tobytes() == a.hidden.tobytes()
    a.commit(2); b.commit(0)
    alone.commit(2)
    assert a.memory.tobytes() == alone.memory.tobytes() and not b.memory.any()
