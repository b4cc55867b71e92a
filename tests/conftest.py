"""What the tests share: where the project is, and the fetched models, if they are there."""
import os, sys
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")   # before anything imports triton: its own functions look at it, too

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))   # the site's builder is not part of the package

def fetched(name: str) -> Path:
    "The path of a fetched model, or a skip that says how to get it."
    from alphabook.fetch import resolve_model
    try: return resolve_model(name)
    except ValueError as error: pytest.skip(str(error))

@pytest.fixture(scope="session")
def smollm2() -> Path:
    "SmolLM2-135M-Instruct."
    return fetched("smollm2")

@pytest.fixture(scope="session")
def gemma3_270m() -> Path:
    "Gemma-3-270M."
    return fetched("gemma3-270m")

@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A function (family, type, MTP blocks) → path of the family's test-size model, made once a session.

    The files are those of `alphabook synth --like tiny-FAMILY`: the same bytes on every machine, at most 2 MB as Q8_0
    (qwen4exp with its MTP block: as Q4_0).
    """
    from alphabook.synth import synth
    folder = tmp_path_factory.mktemp("tiny")

    def path(family: str, type: str = "Q8_0", mtp: int = 0) -> Path:
        out = folder / f"{family}-{type}-{mtp}.gguf"
        return out if out.exists() else synth(f"tiny-{family}", type, out, mtp=mtp)

    return path
