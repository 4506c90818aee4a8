"""Which formats can express a model, by which steps, and which engines load them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gatelm.hf.convert.families.registry import FORMATS, GATELM
from gatelm.hf.convert.formats.fold import RefusedError, fold
from gatelm.hf.convert.formats.format import OURS, Fact
from gatelm.nn.model import ModelConfig

_OWN = (
    Fact(
        "transformers",
        GATELM,
        "loads",
        "as GatelmForCausalLM, with gatelm imported",
        OURS,
        "run",
    ),
    *(
        Fact(engine, GATELM, "does not load", "no such architecture", "", "read")
        for engine in ("vLLM", "SGLang", "llama.cpp", "MLX-LM")
    ),
)


@dataclass(frozen=True)
class Option:
    """One format for one model: whether it can be written, by which steps, and who loads it."""

    format: str
    label: str
    possible: bool
    why_not: tuple[str, ...]
    steps: tuple[str, ...]
    engines: tuple[Fact, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the option as plain data."""
        return asdict(self)


def plan(cfg: ModelConfig) -> list[Option]:
    """Plan a conversion to every format, gatelm's own first, without any weight."""
    out = [Option(GATELM, "this package", True, (), (), _OWN)]
    for name, fmt in FORMATS.items():
        if not fmt.written:
            continue
        try:
            folded = fold(cfg, {}, fmt)
            entry = Option(name, fmt.label, True, (), tuple(folded.notes), fmt.engines())
        except RefusedError as refused:
            entry = Option(name, fmt.label, False, tuple(refused.reasons), (), ())
        out.append(entry)
    return out


def targets_that_do(cfg: ModelConfig) -> list[str]:
    """Return the names of the formats that can express the model."""
    return [option.format for option in plan(cfg) if option.possible]


def facts() -> tuple[Fact, ...]:
    """Return all known facts about engines and formats."""
    written = (fmt for fmt in FORMATS.values() if fmt.written)
    return (*_OWN, *(fact for fmt in written for fact in fmt.engines()))
