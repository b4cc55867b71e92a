"""The block drafter on a GPU, in Triton's interpreter, through the engine: texts are the CPU's, greedy and drawn, whatever is
guessed; rounds that the host judges and rounds that judge themselves leave the drafter what the CPU's has."""
import pytest

pytest.importorskip("triton", reason="Triton is not installed (there is none for this system)")
torch = pytest.importorskip("torch")

import alphabook.engine
import alphabook.sessions
from alphabook import gpu_block
from alphabook.blockdraft import synth_draft
from alphabook.config import load_config
from alphabook.engine import Engine
from alphabook.gpu_heads import unpack_keys
from alphabook.modelfile import ModelFile
from alphabook.synth import synth

PROMPT, N = [5, 6, 7, 5, 6], 6
SMALL = dict(n_layers=1, n_embd=32, n_ff=32, gdn_k=1, gdn_v=1, gdn_dim=8, n_head=1, n_kv_head=1, head_dim=16)
DRAWN = dict(temp=.9, top_k=40, seed=3)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    "A recurrent layer and a random drafter of one layer, on the CPU and on a GPU's stand-in."
    folder = tmp_path_factory.mktemp("block")
    path = synth("tiny-qwen35", "F16", folder/"tiny.gguf", **SMALL)
    with ModelFile(path) as mf:
        synth_draft(folder/"tiny-dflash.gguf", load_config(mf), "F16", taps=(0, 1), n_layer=1, n_ff=32, n_head=1, n_kv_head=1,
                    head_dim=16, block=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alphabook.engine, "pick_backend", lambda device: device)
        return [Engine.load(path, device, n_ctx=64, drafter="block") for device in ("cpu", "cuda")]


def same_tables(gpu, cpu, n):
    "Keys and values of a text in both drafters."
    mine, theirs = gpu.policy.drafter, cpu.policy.drafter
    theirs.catch_up()
    b, c, D = mine.state.blocks, theirs.cache, mine.own.cfg.head_dim
    return (mine.n == mine.known == theirs.n == n and (unpack_keys(b.keys[0], n, D).numpy() == c.k[0, :n]).all()
            and (b.values[0, :, :n].permute(1, 0, 2).numpy() == c.v[0, :n]).all())


def telling(patch, text, wrong=()):
    "Let the block guess a text that is known, with other tokens at some positions; it is asked nevertheless."
    sound = gpu_block.take_favourites
    def take(b, logits):
        sound(b, logits)
        at = int(b.rows(1 + len(logits)).positions[0]) + 1
        if at > 0: b.guesses[0, :len(logits)] = torch.tensor([(text[i] + (i in wrong)) % 300 for i in range(at, at + len(logits))])
        b.guesses[1] = 0x3F600000                            # all of them sure, 0.875
    patch.setattr(gpu_block, "take_favourites", take)


def test_turns_say_the_cpus_text(engines, monkeypatch):
    "Two guesses a turn, one of them wrong: what is said, what is read, and what the drafter has absorbed."
    cpu, gpu = engines
    its, mine = cpu.session(64), gpu.session(64)
    want = cpu.generate(PROMPT, n=N, session=its, **DRAWN)
    telling(monkeypatch, [*PROMPT, *want.token_ids, 0, 0, 0], (7,))
    g = gpu.generate(PROMPT, n=N, session=mine, **DRAWN)
    assert g.token_ids == want.token_ids and mine.ids == [*PROMPT, *g.token_ids[:-1]] and (g.rounds, g.accepted) == (2, 3)
    assert g.by_drafter["block"]["drafted"] == 4 and same_tables(mine, its, len(PROMPT) + N - 1)


def test_rounds_of_the_host(engines, monkeypatch):
    "Logits are wanted, so the host judges; the block's guesses are the CPU's."
    cpu, gpu = engines
    its, mine = cpu.session(64), gpu.session(64)
    its.policy.drafter.min_p = mine.policy.drafter.min_p = 0
    want, g = (e.generate(PROMPT, n=4, session=s, hash_logits=True) for e, s in ((cpu, its), (gpu, mine)))
    assert (g.token_ids, g.logits_sha256, g.rounds, g.by_drafter) == (
        want.token_ids, want.logits_sha256, want.rounds, want.by_drafter) and g.drafted > 0
    assert same_tables(mine, its, len(PROMPT) + 3)
    drafter, text = mine.policy.drafter, [*PROMPT, *g.token_ids]
    assert drafter.draft(text, 2)[0] == its.policy.drafter.draft(text, 2)[0]
    drafter.committed([0]*200)                               # a text that was loaded, not read: no guesses behind it
    assert drafter.draft([0]*201) == ([], [])
    drafter.rollback(3)
    assert drafter.n == drafter.known == 3


def test_a_session_on_a_disk(engines, tmp_path):
    "What was saved goes on as if nothing had happened; not on another kind of device, where tables lie differently."
    cpu, gpu = engines
    mine, path = gpu.session(64), tmp_path/"a.session"
    gpu.generate(PROMPT, n=3, session=mine)
    gpu.save_session(mine, path)
    there = gpu.load_session(path, 64)
    assert there.ids == mine.ids and there.cache is not mine.cache
    text = [*there.ids, 5]
    want, got = (e.generate(text, n=2, session=s, hash_logits=True) for e, s in ((cpu, None), (gpu, there)))
    assert got.logits_sha256 == want.logits_sha256
    with pytest.raises(ValueError, match="of an engine on a GPU; this one is on a CPU"): cpu.load_session(path)
