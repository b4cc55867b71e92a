"The bundled model: its size, what its records promise, its card, and that it is what chapter 29d's torch says it is."
import importlib.util, json, time

import numpy as np
import pytest

from alphabook.blocks import decode
from alphabook.modelfile import ModelFile
from alphabook.tokenizer import Tokenizer
from conftest import ROOT

MODEL = ROOT / "data/models/alphabook-mini.gguf"
RUN = json.loads(sorted((ROOT / "data/results/h200").glob("mini-training-20*.json"))[-1].read_text(encoding="utf-8"))


def test_size_and_shape():
    assert MODEL.stat().st_size <= 24_000_000
    with ModelFile(MODEL) as mf:
        keys = {key.split(".", 1)[1]: value for key, value in mf.meta.items() if key.startswith("qwen35moe.")}
        assert keys["expert_count"] >= 16 and keys["expert_used_count"] == 4 and keys["nextn_predict_layers"] == 1
        assert all(t.shape[-1] % 256 == 0 for t in mf.tensors.values() if t.type.name != "F32")


def test_loads_in_a_second():
    start = time.perf_counter()
    with ModelFile(MODEL) as mf:
        tokenizer = Tokenizer.from_meta(mf.meta)
    assert time.perf_counter() - start < 1
    for text in ("def f(x):\n    return x", "Ünï ", "Привет", "مرحبا", "안녕하세요", "你好，世界", "こんにちは", "🙂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_drafts_agree_on_code_and_english():
    hits = {r["text"]: r["value"] for r in RUN["rows"] if r["arm"] == "hit" and r["depth"] == 1
            and r["quantization"] != "F32" and r["context"] == 2048}
    assert hits["code"] >= 0.6 and hits["en"] >= 0.6 and len(hits) == 16


def test_no_expert_is_dead():
    assert next(r["value"] for r in RUN["rows"] if r["arm"] == "least chosen expert") > 0.25 / 16


def test_card_says_what_was_measured():
    spec = importlib.util.spec_from_file_location("card", ROOT / "data/corpus/card.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.card() == module.CARD.read_text(encoding="utf-8")


def test_torch_and_reference_agree():
    torch = pytest.importorskip("torch")
    from alphabook.mini import MiniConfig, rope_tables, trunk
    from alphabook.reference import Reference
    ids = list(range(3000, 3024))
    with ModelFile(MODEL) as mf:
        w = {n: torch.from_numpy(decode(t.data, t.type.name).reshape(t.shape).copy()) for n, t in mf.tensors.items()}
        other = np.asarray(Reference(mf).logits(ids))
    w |= {name: (-x).log() for name, x in w.items() if name.endswith("ssm_a")}
    with torch.no_grad():
        h = trunk(w, torch.tensor([ids]), MiniConfig(), rope_tables(MiniConfig(), len(ids)))[0][0]
    ours = (h @ w["token_embd.weight"].T).numpy()
    cosine = (ours * other).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(other, axis=1)
    assert cosine.min() > 0.99999
