"""What the tests share: where the project is, and the fetched models, if they are there."""
import sys
from pathlib import Path

import pytest

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
