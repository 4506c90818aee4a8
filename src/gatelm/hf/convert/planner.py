"""Which engines load what a model can be converted to: a table of facts, each with its source.

"run": the tests of this package load the format with that engine and compare numbers. "read": what
the engine's source or issue tracker says; it was not run here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from gatelm.hf.convert.formats.fold import RefusedError, fold
from gatelm.hf.convert.formats.rules import FORMATS
from gatelm.nn.model import ModelConfig

Verdict = Literal["loads", "does not load", "loads wrongly", "not known"]


@dataclass(frozen=True)
class Fact:
    """Whether one engine loads one format. source: where that was found."""

    engine: str
    format: str
    verdict: Verdict
    why: str
    source: str
    how: Literal["run", "read"]


_OURS = "tests of this package, transformers 5.17 and later"
_PAPER_LOADER = "gatelm.hf.modeling.paper_release, its code on transformers' Qwen3"
_OFFICIAL = "github.com/qiuzh20/gated_attention at 49645df"
_LLAMA_CPP = "ggml-org/llama.cpp, qwen3next.cpp at 02ebd8f7"
_MLX = "ml-explore/mlx-lm at d78bf58e"

FACTS: tuple[Fact, ...] = (
    Fact(
        "transformers",
        "gatelm",
        "loads",
        "as GatelmForCausalLM, with gatelm imported",
        _OURS,
        "run",
    ),
    Fact("transformers", "qwen3_5_text", "loads", "as Qwen3_5ForCausalLM", _OURS, "run"),
    Fact("transformers", "qwen3_next", "loads", "as Qwen3NextForCausalLM", _OURS, "run"),
    Fact(
        "transformers",
        "paper",
        "does not load",
        "Qwen3ForCausalLM has no gate and reads q_proj as too tall; the release's own modelling "
        "code runs on transformers 4.46 to 4.57",
        _OFFICIAL,
        "read",
    ),
    Fact("gatelm", "paper", "loads", "gatelm analyze and gatelm convert", _PAPER_LOADER, "run"),
    *(
        Fact("transformers", name, "loads", f"as {FORMATS[name].architecture}", _OURS, "run")
        for name in (
            *("llama", "mistral", "qwen2", "qwen3", "afmoe", "lfm3"),
            *("qwen3_moe", "qwen3_5_moe_text"),
        )
    ),
    Fact(
        "vLLM",
        "qwen3_5_text",
        "loads",
        "the text-only architecture is registered since July 2026; ties the head",
        "vllm-project/vllm#50210",
        "read",
    ),
    Fact(
        "vLLM",
        "qwen3_next",
        "loads",
        "it refuses a Qwen3-Next without experts, so the feed-forward network is written as one "
        "expert; it makes its own head, so the head is untied",
        "vllm-project/vllm qwen3_next.py at 002d6073, #41087",
        "read",
    ),
    Fact(
        "SGLang",
        "qwen3_next",
        "loads",
        "builds every layer as a mixture, which the one-expert form is",
        "sgl-project/sglang qwen3_next.py at 0201bc80",
        "read",
    ),
    Fact("SGLang", "qwen3_5_text", "not known", "not looked at", "", "read"),
    Fact(
        "llama.cpp",
        "qwen3_next",
        "loads",
        "same row order; it refuses zero experts, which the one-expert form avoids",
        _LLAMA_CPP,
        "read",
    ),
    Fact(
        "llama.cpp",
        "qwen3_5_text",
        "not known",
        "it has a qwen35 graph; whether its converter takes all-full-attention text models was "
        "not looked at",
        _LLAMA_CPP,
        "read",
    ),
    Fact(
        "MLX-LM",
        "qwen3_5_text",
        "loads wrongly",
        "it adds the 1 of the norms only when a convolution tensor is there, which a model without "
        "linear attention has not",
        _MLX,
        "read",
    ),
    Fact(
        "MLX-LM",
        "qwen3_next",
        "loads",
        "the one-expert form has the tensor by which it recognises norms; it reads "
        "full_attention_interval, which is written as 1",
        _MLX,
        "read",
    ),
    *(
        Fact(engine, "gatelm", "does not load", "no such architecture", "", "read")
        for engine in ("vLLM", "SGLang", "llama.cpp", "MLX-LM")
    ),
    *(
        Fact(engine, "paper", "does not load", "no such architecture", "", "read")
        for engine in ("vLLM", "SGLang", "llama.cpp", "MLX-LM")
    ),
)

GATELM = "gatelm"


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
        return asdict(self)


def plan(cfg: ModelConfig) -> list[Option]:
    """Every format, gatelm's own first; no weight is needed."""
    out = [Option(GATELM, "this package", True, (), (), _engines(GATELM))]
    for name, fmt in FORMATS.items():
        if not fmt.written:
            continue
        try:
            folded = fold(cfg, {}, fmt)
            entry = Option(name, fmt.label, True, (), tuple(folded.notes), _engines(name))
        except RefusedError as refused:
            entry = Option(name, fmt.label, False, tuple(refused.reasons), (), ())
        out.append(entry)
    return out


def targets_that_do(cfg: ModelConfig) -> list[str]:
    """Names of the formats that can express the model."""
    return [option.format for option in plan(cfg) if option.possible]


def _engines(name: str) -> tuple[Fact, ...]:
    return tuple(fact for fact in FACTS if fact.format == name)
