"""The checkpoints released with arXiv 2505.06708: Qwen3 with a gate packed by key/value group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatelm.config import ConfigError
from gatelm.hf.convert.families.qwen import WINDOW_KEYS
from gatelm.hf.convert.formats.format import Fact, Format, GateForm
from gatelm.hf.modeling.paper_release import KEYS, is_paper_release
from gatelm.nn.model import ModelConfig

_OFFICIAL = "github.com/qiuzh20/gated_attention at 49645df"
_LOADER = "gatelm.hf.modeling.paper_release, its code on transformers' Qwen3"


class PaperFormat(Format):
    """Format of the release, whose own modelling code is not part of the folder."""

    name = "paper"
    label = "the release of arXiv 2505.06708"
    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    keys = f"{WINDOW_KEYS} attention_bias qkv_bias use_qk_norm {' '.join(KEYS)}"
    notes = "the release of arXiv 2505.06708; its own modelling code is not part of the folder"
    gates = ("none", "head", "element")
    layout = "per_kv_group"

    def recognises(self, tree: Mapping[str, Any]) -> bool:
        """Whether a config.json has the keys of the release."""
        return is_paper_release(tree)

    def check(self, c: Any, where: str) -> None:
        """Refuse models without QK-norm, and biases."""
        if getattr(c, "use_qk_norm", True) is not True:
            raise ConfigError(
                f"{where}: use_qk_norm false: only models with QK-norm can be checked"
            )
        if getattr(c, "qkv_bias", False) or c.attention_bias:
            raise ConfigError(
                f"{where}: qkv_bias: the release has no biases, and none are converted"
            )

    def gate_form(self, c: Any) -> GateForm:
        """Return the form of the gate; like the release's code, it tests for headwise first."""
        head, element = (getattr(c, key, False) for key in KEYS)
        return "head" if head else "element" if element else "none"

    def config_keys(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return the keys of the gate's form, and of settings that are as in Qwen3."""
        form = cfg.layer.gates[0].granularity if cfg.layer.gates else None  # pyright: ignore[reportAttributeAccessIssue]
        head, element = KEYS
        return {
            head: form == "head",
            element: form == "element",
            "qkv_bias": False,
            "use_qk_norm": True,
            "use_sliding_window": False,
        }

    def engines(self) -> tuple[Fact, ...]:
        """Return the fact that only this package and the release's own code load the format."""
        return (
            self.fact(
                "transformers",
                "does not load",
                "Qwen3ForCausalLM has no gate and reads q_proj as too tall; the release's own "
                "modelling code runs on transformers 4.46 to 4.57",
                _OFFICIAL,
            ),
            self.fact("gatelm", "loads", "gatelm analyze and gatelm convert", _LOADER, "run"),
            *(
                self.fact(engine, "does not load", "no such architecture")
                for engine in ("vLLM", "SGLang", "llama.cpp", "MLX-LM")
            ),
        )
