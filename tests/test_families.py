"Every family: the same bits however a text is run, on both backends, and close to the plain fp32 reference."
import gc, tracemalloc

import numpy as np
import pytest

import alphabook.cpu_streams as cpu
import alphabook.streams as spec
from alphabook.comparator import compare_model, one_row, passed
from alphabook.config import load_config
from alphabook.engine import Engine
from alphabook.layers import Model, open_round
from alphabook.modelfile import ModelFile, write_gguf
from alphabook.rounds import enter, finish, head, prefill, run_round, trunk
from alphabook.synth import synth

MIXTURES = ('tiny-qwen3moe', 'tiny-qwen35moe', 'tiny-qwen3next', 'tiny-olmoe', 'tiny-gpt-oss', 'tiny-qwen4exp')
RECURRENT = ('tiny-qwen35', 'tiny-qwen35moe', 'tiny-qwen3next', 'tiny-qwen4exp')
FAMILIES = (*MIXTURES, 'tiny-qwen35')
QUANTIZED = dict(zip(FAMILIES, ('Q4_0', 'Q8_0', 'Q5_0', 'Q8_0', 'MXFP4', 'Q8_0', 'Q4_1')))
IDS = np.random.default_rng(3).integers(0, 250, 40).tolist()


@pytest.fixture(scope='module')
def open_model(tmp_path_factory):
    "A function (family, type, backend) → Model; files, models and their one-row logits are made once."
    folder, made = tmp_path_factory.mktemp('families'), {}

    def get(like, type=None, backend=cpu):
        type = type or QUANTIZED[like]
        if (like, type, backend) not in made:
            path = folder / f'{like}-{type}.gguf'
            if not path.exists(): synth(like, type, path)
            mf = ModelFile(path)
            model = made[like, type, backend] = Model(mf, load_config(mf), backend)
            model.mf = mf
            model.rows = one_row(model, IDS) if backend is cpu else None
        return made[like, type, backend]

    return get


def same(a, b): return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def filled(model, n):
    "A cache that holds the first n ids."
    cache = model.new_cache(64)
    if n: prefill(model, cache, IDS[:n])
    return cache


@pytest.mark.parametrize('like', FAMILIES)
def test_the_spec_and_the_cpu_give_the_same_bits(like, open_model):
    slow, rows = open_model(like, backend=spec), open_model(like).rows
    cache = slow.new_cache(64)
    assert same(run_round(slow, cache, IDS[:4]), rows[:4])
    cache.commit(3)                                           # one row is dropped: a replay by the spec
    assert same(run_round(slow, cache, IDS[3:8]), rows[3:8])


@pytest.mark.parametrize('like', FAMILIES)
@pytest.mark.parametrize('width', range(1, 17))
def test_any_width_and_any_part_of_it_accepted(like, width, open_model):
    model = open_model(like)
    for accepted in sorted({0, 1, width // 2, width - 1, width}):
        cache = filled(model, 7)
        drafts = IDS[7:7 + accepted] + [(i + 1) % 250 for i in IDS[7 + accepted:7 + width]]
        assert same(run_round(model, cache, drafts)[:accepted], model.rows[7:7 + accepted])
        cache.commit(7 + accepted)
        assert same(run_round(model, cache, IDS[cache.n:cache.n + 2]), model.rows[cache.n:cache.n + 2])


@pytest.mark.parametrize('like', FAMILIES)
def test_any_chunks(like, open_model):
    model = open_model(like)
    for chunk in (1, 3, 7, 16, 64):
        assert same(prefill(model, model.new_cache(40), IDS, chunk), model.rows[-1])


@pytest.mark.parametrize('like', FAMILIES)
def test_a_rollback_to_anywhere_and_on(like, open_model):
    model = open_model(like)
    for n in (0, 1, 9, 10, 11, 19, 20, 25, 30):
        cache = model.new_cache(64)
        for start in (0, 10, 20): prefill(model, cache, IDS[start:start + 10])
        at = cache.rollback(n)
        assert at == (n // 10 * 10 if like in RECURRENT else n)
        assert same(run_round(model, cache, IDS[at:at + 9]), model.rows[at:at + 9])
        cache.commit(at + 4)
        assert same(run_round(model, cache, IDS[at + 4:at + 6]), model.rows[at + 4:at + 6])


@pytest.mark.parametrize('like', FAMILIES)
def test_a_prompt_leaves_checkpoints_where_it_may_be_changed(like, open_model):
    "At its end, and where its last chunk began, which may be where an earlier prompt's answer ended."
    model = open_model(like)
    cache = model.new_cache(64)
    prefill(model, cache, IDS[:20], 8)
    run_round(model, cache, IDS[20:23]); cache.commit(22)     # an answer
    prefill(model, cache, IDS[22:26], 8)
    assert [c.n for c in cache.checkpoints] == ([16, 20, 22, 26] if like in RECURRENT else [])
    assert cache.rollback(25) == (22 if like in RECURRENT else 25) and cache.rollback(19) in (16, 19)
    assert same(run_round(model, cache, IDS[cache.n:30]), model.rows[cache.n:30])


@pytest.mark.parametrize('like', FAMILIES)
def test_a_text_put_aside(like, open_model):
    model = open_model(like)
    cache = filled(model, 12)
    snap = cache.snapshot()
    prefill(model, cache, IDS[5:20])
    run_round(model, cache, IDS[:3])                          # open rows of another text
    for target in (cache, model.new_cache(30)):
        target.restore(snap)
        assert same(run_round(model, target, IDS[12:15]), model.rows[12:15])


@pytest.mark.parametrize('like', RECURRENT)
def test_rounds_leave_no_memory_behind(like, open_model):
    "Rounds accepted in part, checkpoints and roll backs, again and again: what is held stays what it was."
    model = open_model(like)
    cache, held = filled(model, 20), []
    tracemalloc.start()
    try:
        for i in range(30):
            run_round(model, cache, IDS[20:26]); cache.commit(20 + 1 + i % 6)
            cache.checkpoint()
            assert cache.rollback(20) == 20
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally: tracemalloc.stop()
    assert max(held[15:]) - min(held[15:]) < 8192, held       # the rows of one of these rounds would be more


@pytest.mark.parametrize('like', FAMILIES)
def test_one_thread_or_all(like, open_model):
    model = open_model(like)
    try:
        cpu.set_threads(1)
        assert same(run_round(model, model.new_cache(40), IDS), model.rows)
    finally: cpu.set_threads()


@pytest.mark.parametrize('like', ('tiny-qwen35moe', 'tiny-gpt-oss'))
def test_compare_finds_nothing(like, open_model):
    mf = open_model(like).mf
    result = compare_model(mf, load_config(mf), [IDS[:9]], widths=(1, 2, 4, 8, 16), n=24)
    ran = [a for a in result['arms'] if a['status'] == 'ok']
    assert passed(result) and result['mismatches'] == 0 and all(a['work'] and a['comparisons'] for a in ran)


@pytest.mark.parametrize('like', FAMILIES)
def test_a_session_tells_nothing_of_its_past(like, open_model):
    engine = Engine.load(open_model(like).mf.path, n_ctx=200)
    session = engine.session()
    first = engine.generate(IDS + IDS, n=5, session=session).token_ids
    for turn in (IDS + IDS + first + [1, 2], IDS + IDS + first[:1] + [3], IDS + IDS, IDS[:20] + [7]):
        kept, fresh = (engine.generate(turn, n=3, hash_logits=True, session=s) for s in (session, None))
        assert kept.logits_sha256 == fresh.logits_sha256 and kept.token_ids == fresh.token_ids


@pytest.mark.parametrize('like', FAMILIES)
def test_close_to_the_reference(like, open_model, record_property):
    "Keys and values are float16 here and fp32 there; the routers' choices are the reference's."
    pytest.importorskip('torch')
    from alphabook.reference import Reference
    model = open_model(like, 'F32')
    reference = Reference(model.mf)
    choices = reference.choices(IDS) if model.cfg.n_expert else {}
    want = reference.logits(IDS)
    got = run_round(model, model.new_cache(40), IDS, route=lambda layer, logits: choices[layer])
    for name, rows in (('forced', got), ('free', model.rows)):
        cosine = (rows * want).sum(-1) / np.linalg.norm(rows, axis=-1) / np.linalg.norm(want, axis=-1)
        print(f'{like} {name}: smallest cosine {cosine.min():.7f}, mean |Δ| {np.abs(rows - want).mean():.1e}, '
              f'σ {want.std():.2f}')
        if name == 'forced': assert cosine.min() >= 0.9999 and np.abs(rows - want).mean() < 0.005 * want.std()
        else: assert np.median(cosine) >= 0.999


@pytest.mark.parametrize('like', MIXTURES)
def test_the_router_can_be_replaced(like, open_model):
    model, seen = open_model(like), []
    k, E = model.cfg.n_used, model.cfg.n_expert

    def own(layer, logits):
        seen.append((layer, logits.shape))
        return model.ops.route(logits, k, model.cfg.renormalise, model.cfg.expert_scale)

    def reverse(layer, logits): return model.ops.route(-logits, k, model.cfg.renormalise, model.cfg.expert_scale)

    assert same(run_round(model, model.new_cache(8), IDS[:5], route=own), model.rows[:5])
    assert seen == [(i, (5, E)) for i in range(model.cfg.n_layer)]
    assert not same(run_round(model, model.new_cache(8), IDS[:5], route=reverse), model.rows[:5])


def test_a_drafter_gets_the_hidden_rows(open_model):
    model = open_model('tiny-qwen35moe')
    cache = filled(model, 5)
    hidden = finish(model, trunk(model, enter(model, IDS[5:9]), open_round(model, cache, IDS[5:9])))
    assert hidden.shape == (4, model.cfg.n_embd) and same(head(model, hidden), model.rows[5:9])
    cache.commit(7)
    assert same(run_round(model, cache, IDS[7:9], want=1), model.rows[8:9])


def rewritten(path, mf, change):
    "The file with its tensors passed through `change`: dict of name → (shape, type, bytes)."
    old = {n: (t.shape, t.type.name, bytes(t.data)) for n, t in mf.tensors.items()}
    write_gguf(path, mf.meta.typed(), [(n, *v) for n, v in change(old).items()])
    with ModelFile(path) as new: return prefill(model := Model(new, load_config(new), cpu), model.new_cache(40), IDS)


@pytest.mark.parametrize('like', ('tiny-qwen3moe', 'tiny-qwen35moe'))
def test_fused_experts_are_the_same_experts(like, open_model, tmp_path):
    model = open_model(like)

    def fuse(tensors):
        out = {}
        for name, (shape, type, data) in tensors.items():
            if 'ffn_up_exps' in name: continue
            if 'ffn_gate_exps' in name:
                up = tensors[name.replace('gate', 'up')][2]
                both = [np.frombuffer(d, np.uint8).reshape(shape[0], -1) for d in (data, up)]
                shape, data = (shape[0], 2 * shape[1], shape[2]), np.concatenate(both, 1).tobytes()
                name = name.replace('ffn_gate_exps', 'ffn_gate_up_exps')
            out[name] = shape, type, data
        return out

    assert same(rewritten(tmp_path / 'fused.gguf', model.mf, fuse), model.rows[-1])


def test_the_shared_gate_may_be_a_matrix_of_one_row(open_model, tmp_path):
    model = open_model('tiny-qwen35moe')
    def lift(tensors): return {n: ((1, *s) if 'inp_shexp' in n else s, *rest) for n, (s, *rest) in tensors.items()}
    assert same(rewritten(tmp_path / 'lifted.gguf', model.mf, lift), model.rows[-1])


def test_progress_reaches_all_bytes_and_the_draft_block_stays_out(tmp_path):
    synth('tiny-qwen35moe', 'Q8_0', tmp_path / 'm.gguf', mtp=1)
    with ModelFile(tmp_path / 'm.gguf') as mf:
        steps, cfg = [], load_config(mf)
        model = Model(mf, cfg, cpu, lambda done, total: steps.append((done, total)))
        assert cfg.n_mtp == 1 and len(model.layers) == cfg.n_layer == 4
        assert steps[-1][0] == steps[-1][1] == sum(t.nbytes for t in mf.tensors.values())
        assert [s[0] for s in steps] == sorted(s[0] for s in steps)
        assert np.isfinite(prefill(model, model.new_cache(20), IDS[:9])).all()


def test_layers_of_delta_nets_alone_run_too(tmp_path):
    "The first two layers of a hybrid have no attention among them."
    synth('tiny-qwen35', 'Q8_0', tmp_path / 'm.gguf', n_layers=2)
    with ModelFile(tmp_path / 'm.gguf') as mf:
        model = Model(mf, load_config(mf), cpu)
        assert model.cfg.mixers == ('gdn', 'gdn')
        rows = one_row(model, IDS[:12])
        cache = model.new_cache(16)
        run_round(model, cache, IDS[:5]); cache.commit(3)
        assert same(run_round(model, cache, IDS[3:12]), rows[3:12])
        with pytest.raises(ValueError, match='past the context'): run_round(model, cache, IDS[:14])
