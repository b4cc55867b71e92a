"""The block drafter through the engine: texts are those of plain decoding, greedy and sampled, and files are held
against their models. The drafter of these tests has random weights; how good the trained one is, others measure."""
import hashlib
import json
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import alphabook.cpu_streams as cpu_backend
import alphabook.streams as numpy_backend
from alphabook.blockdraft import block_rows, candidates, load_draft, load_draft_config, select, synth_draft
from alphabook.blockdrafter import run_absorb
from alphabook.cli import main
from alphabook.config import load_config
from alphabook.engine import Engine, Generation, run
from alphabook.layers import Model, open_round
from alphabook.modelfile import GGUFError, ModelFile, write_gguf
from alphabook.rounds import enter, head, run_round
from alphabook.synth import synth

GOLDEN = Path(__file__).parent/"golden"

DFLASH2 = dict(conv=2, conv_group=16, rank=32, top_k=5)

SMALL = dict(type="F16", taps=(1, 2), n_layer=1, n_ff=64, n_head=2, n_kv_head=1)

def with_keys(path, **keys):
    "A file with some other keys."
    with ModelFile(path) as mf:
        write_gguf(path.with_suffix(".2"), dict(mf.meta.items()) | {f"dflash.{k}": v for k, v in keys.items()},
                   [(n, t.shape, t.type.name, t.data) for n, t in mf.tensors.items()])
    return path.with_suffix(".2")

@pytest.fixture(scope="module", params=["tiny-qwen3", "tiny-qwen35moe"])          # the first one: DFlash2
def paths(request, tmp_path_factory):
    "A model, and a drafter in another folder."
    folder = tmp_path_factory.mktemp(request.param)
    model = synth(request.param, "Q8_0", folder/"model.gguf")
    (folder/"side").mkdir()
    with ModelFile(model) as mf: side = synth_draft(folder/"side"/"block.gguf", load_config(mf), more=DFLASH2 if request.param == "tiny-qwen3" else {}, **SMALL)
    return model, side

def blocks_of(engine, prompt, n, **sampling):
    "A generation by blocks, every guess of which is verified."
    session, g = engine.session(256), Generation()
    session.policy.drafter.min_p = 0
    for _ in run(engine, g, prompt, n, session=session, hash_logits=True, **sampling): pass
    return g

@pytest.mark.parametrize("sampling", [{}, dict(temp=.9, top_p=.95, seed=3)], ids=["greedy", "sampled"])
def test_texts_are_those_of_plain_decoding(paths, sampling):
    model, side = paths
    plain = Engine.load(model, "cpu", n_ctx=256, drafter="none").generate("hello", 40, hash_logits=True, **sampling)
    g = blocks_of(Engine.load(model, "cpu", n_ctx=256, drafter="block", draft_model=side), "hello", 40, **sampling)
    assert (g.token_ids, g.logits_sha256) == (plain.token_ids, plain.logits_sha256)
    assert g.by_drafter["block"]["drafted"] > 40

def test_a_right_guess_is_accepted(paths):
    "A drafter that knows the text: rounds of six tokens."
    model, side = paths
    engine = Engine.load(model, "cpu", n_ctx=256, drafter="block", draft_model=side)
    plain = engine.generate("hello", 30, drafter="none").token_ids
    session, g = engine.session(256), Generation()
    drafter, start = session.policy.drafter, len(engine.tokenizer.encode("hello"))
    def known(ids, n, *more):
        drafter.catch_up()
        at = len(ids) - start
        return plain[at:at + min(n, 5)], [1.0]*len(plain[at:at + min(n, 5)])
    drafter.draft = known
    for _ in run(engine, g, "hello", 30, session=session): pass
    assert g.token_ids == plain and g.rounds == -(-(len(plain) - 1)//6)
    drafter.catch_up()
    assert drafter.known == drafter.n == session.cache.n

def test_a_second_turn_and_a_changed_one(paths):
    "Sessions go back and on; texts are a fresh start's."
    model, side = paths
    engine = Engine.load(model, "cpu", n_ctx=256, drafter="block", draft_model=side)
    s, prompt = engine.session(256), list(range(10, 90))
    answer = engine.generate(prompt, n=6, session=s).token_ids
    for turn in (prompt + answer + [5, 6, 7], prompt + answer[:2] + [9]*8, prompt[:40] + [3]):
        again = engine.generate(turn, n=8, hash_logits=True, session=s)
        fresh = engine.generate(turn, n=8, hash_logits=True, drafter="none")
        assert (again.token_ids, again.logits_sha256) == (fresh.token_ids, fresh.logits_sha256)

def test_one_beside_the_model_is_found(paths, tmp_path):
    model, side = paths
    (tmp_path/"m.gguf").symlink_to(model)
    with pytest.raises(ValueError, match="no m-dflash.gguf lies beside the model"):
        Engine.load(tmp_path/"m.gguf", "cpu", n_ctx=64, drafter="block")
    engine = Engine.load(tmp_path/"m.gguf", "cpu", n_ctx=64)
    assert engine.session(64).policy.block is None
    (tmp_path/"m-dflash.gguf").symlink_to(side)
    assert Engine.load(tmp_path/"m.gguf", "cpu", n_ctx=64, drafter="block").generate("hello", 4).predicted_n
    policy = Engine.load(tmp_path/"m.gguf", "cpu", n_ctx=64).session(64).policy
    assert "block" in [d.name for d in (policy.mtp, policy.block) if d]

def test_one_that_does_not_fit_is_refused_or_left_alone(paths, tmp_path):
    model, side = paths
    (tmp_path/"m.gguf").symlink_to(model)
    with ModelFile(model) as mf: synth_draft(tmp_path/"m-dflash.gguf", load_config(mf), **SMALL | dict(taps=(1, 99)))
    with pytest.raises(GGUFError, match=r"target_layers: is \[1, 99\]"):
        Engine.load(tmp_path/"m.gguf", "cpu", n_ctx=64, drafter="block")
    assert Engine.load(tmp_path/"m.gguf", "cpu", n_ctx=64).generate("hello", 4).predicted_n        # auto goes without
    with pytest.raises(GGUFError, match="general.architecture: is .*; 'dflash' would be right"):
        Engine.load(model, "cpu", n_ctx=64, drafter="block", draft_model=model)
    with pytest.raises(ValueError, match="use --drafter block"):
        Engine.load(model, "cpu", n_ctx=64, drafter="mtp", draft_model=side)

@pytest.mark.parametrize("keys, said", [
    (dict(block_size=99), "block_size: is 99"), (dict(selector_rank=4, selector_top_k=0), "selector_top_k: is 0"),
    (dict(selector_rank=4, selector_top_k=4), "selector_predecessor.weight"), (dict(conv_kernel_size=9), "conv_kernel_size: is 9"),
    (dict(conv_kernel_size=2, conv_group_size=7), "conv_group_size: is 7; a divisor of"),
    (dict(embedding_length=96), "embedding_length: is 96"), (dict(block_count=2), "tensor blk.1"),
    ({"attention.causal": True}, "causal: is True"), (dict(embedding_scale=2.0), "embedding_scale")])
def test_what_a_file_says_is_held_against_the_model(paths, tmp_path, keys, said):
    with ModelFile(paths[0]) as mf: trunk = load_config(mf)
    side = synth_draft(tmp_path/"d.gguf", trunk, **SMALL)
    with ModelFile(with_keys(side, **keys)) as mf, pytest.raises(GGUFError, match=said):
        load_draft_config(mf, trunk)

@pytest.fixture(scope="module")
def work(tmp_path_factory):
    "The models that llama.cpp ran, made again."
    runpy.run_path(str(GOLDEN/"record_dflash.py"))["make"](work := tmp_path_factory.mktemp("dflash"))
    return work

def recorded(work, name):
    "What llama.cpp said."
    seen = np.load(GOLDEN/f"{'dflash2' if name == 'draft2' else 'dflash'}.npz")
    made = [hashlib.sha256((work/f"{n}.gguf").read_bytes()).hexdigest() for n in ("target", name)]
    if made != seen["sha256"].tolist(): pytest.skip("the files can't be made again with this numpy")
    return seen

def cosines(a, b):
    a, b = np.float64(a), np.float64(b)
    return (a*b).sum(-1)/np.sqrt((a*a).sum(-1)*(b*b).sum(-1))

@pytest.mark.parametrize("name", ["draft", "draft2"])
@pytest.mark.parametrize("backend", [cpu_backend, numpy_backend], ids=["cpu", "numpy"])
def test_taps_and_blocks_are_llama_cpp_s(work, backend, name):
    """Two layers, one with a window shorter than the text; the drafter brings embedding and head. Keys are float16 here.
    The second one is DFlash2's: its candidates and the path through them are llama.cpp's too."""
    seen = recorded(work, name)
    with ModelFile(work/"target.gguf") as mf, ModelFile(work/f"{name}.gguf") as side:
        model = Model(mf, load_config(mf), backend)
        own, ids, n = load_draft(model, side), seen["ids"], len(seen["taps"])
        cache = model.new_cache(64)
        run_round(model, cache, ids[:n])
        taps = np.concatenate(cache.taps, 1)
        assert cosines(taps, seen["taps"]).min() > 1 - 1e-6
        mine = own.new_cache(64)
        run_absorb(own, mine, seen["taps"])
        r = open_round(own, mine, seen["block"])
        rows = block_rows(own, enter(own, seen["block"]), r, np.full(len(seen["block"]), r.positions[-1]))
        assert cosines(logits := head(own, rows), seen["logits"]).min() > 1 - 1e-6
        if name == "draft": return
        k, lattice, path, places = own.draft.top_k, seen["lattice"][1:], [], [0]
        found, scores = candidates(logits[1:], k)
        for row in lattice:                                  # k candidates; scores [predecessor, candidate]
            places.append(int(row[k:].reshape(k, k)[places[-1]].argmax()))
            path.append(int(row[places[-1]]))
        assert (np.sort(found) == np.sort(lattice[:, :k])).all()
        gate = own.ops.matmul(own.whole.selector_hidden, rows[1:])
        said, parts = select(own, int(seen["block"][0]), found, scores, gate)
        assert said.tolist() == path and said.tolist() != found[:, 0].tolist()        # the selector does change something
        best = [row[k:].reshape(k, k)[i] for row, i in zip(lattice, places)]
        assert np.allclose(parts, [1/np.exp(s - s.max()).sum() for s in best], atol=2e-3)

@pytest.mark.parametrize("paths", ["tiny-qwen3"], indirect=True)
def test_bench_has_an_arm_for_it(paths, capsys):
    "`bench --sets` with a block among its arms: one text for all, and who drafted what."
    model, side = paths
    code = main(["bench", "-m", str(model), "--draft-model", str(side), "--drafter", "block", "--sets", "A", "--arms", "plain,block,auto",
                 "--prompts", "1", "--passes", "1", "--ctx", "256", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == 0 and result["mismatches"] == []
    drafts = {r["arm"]: r["by_drafter"] for r in result["rows"] if r["unit"] == "tokens/round"}
    assert {*drafts} == {"plain", "block", "auto", "plain again"} and not drafts["plain"]
    assert [r["drafter"] for r in result["rows"] if r["unit"] == "tok/s"] == ["none", "block", "auto", "none"]

@pytest.mark.parametrize("paths", ["tiny-qwen3"], indirect=True)
def test_served(paths):
    "`serve --drafter block`: answers are plain decoding's, alone and two at once, and say what was drafted."
    pytest.importorskip("fastapi")
    from test_server import post, start
    model, side = paths
    want = [Engine.load(model, "cpu", n_ctx=256, drafter="none").generate(p, 24).text for p in ("hello", "a text")]
    p, address = start("--drafter", "block", "--draft-model", side, "--ctx", 256, "--parallel", 2, model=model)
    try:
        def ask(prompt, **body): return post(address, "/v1/completions", prompt=prompt, max_tokens=24, temperature=0, **body)
        with ThreadPoolExecutor(2) as pool: both = [*pool.map(ask, ("hello", "a text"))]
        for status, answer in [*both, ask("hello")]: assert status == 200, answer
        assert [a["choices"][0]["text"] for _, a in both] == want
        assert all(a["timings"]["by_drafter"]["block"]["drafted"] > 0 for _, a in both)
    finally:
        p.terminate()
        assert p.wait(30) == 0, "".join(p.seen)
        p.drain.join()
