"""The base of model formats: what one can express, and how its config and tensors differ.

A family is a subclass in a file of `families`; all other code asks the class and knows no names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transformers import AutoConfig

from gatelm.hf.convert.formats.hybrid import DeltaPacking
from gatelm.hf.convert.formats.pieces import Piece, State
from gatelm.hf.convert.formats.tensors import LLAMA_NAMES, Names, pieces
from gatelm.nn.model import ModelConfig

GateForm = Literal["none", "head", "element"]
Bias = Literal["none", "qkv", "all"]
Verdict = Literal["loads", "does not load", "loads wrongly", "not known"]
OURS = "tests of this package, transformers 5.17 and later"


@dataclass(frozen=True)
class Fact:
    """Whether one engine loads one format.

    source: where that was found. how: "run" if the tests of this package load the format with that
    engine and compare numbers; "read" if the engine's source or issue tracker says so.
    """

    engine: str
    format: str
    verdict: Verdict
    why: str
    source: str
    how: Literal["run", "read"]


class Format:
    """One model format. Class attributes say what it can express; methods read and write it."""

    name: str
    """The name that `--to` takes."""
    label: str
    model_type: str
    architecture: str
    names: Names = LLAMA_NAMES
    keys: str = ""
    """Config keys, beside those of every format, that are used or that change nothing."""
    left_out: tuple[str, ...] = (r"rotary_emb\.inv_freq$",)
    """Regular expressions of tensors that are computed, or no part of the language model."""
    notes: str = ""
    """What the table of docs/convert.md says beside the columns."""
    written: bool = True
    """False where only reading is possible."""

    norm: Literal["plain", "zero_centred"] = "plain"
    """How RMSNorm weights are stored: y w, or y (1 + w)."""
    qk_norm: Literal["required", "never"] = "required"
    sandwich: bool = False
    gates: tuple[GateForm, ...] = ("none",)
    """Forms of the sigmoid gate after SDPA that the format has."""
    layout: str | None = None
    """How q_proj packs the gate; None: the gate is a matrix of its own."""
    biases: tuple[Bias, ...] = ("none",)
    """Biases that the attention projections may have."""
    windows: Literal["never", "all layers", "by layer"] = "never"
    rope: Literal["all layers", "windowed layers"] = "all layers"
    """Which layers have rotary positions."""
    rope_kinds: tuple[str, ...] = ()
    """Kinds of layers that have rotary parameters of their own in config.json."""
    partial_rotary: bool = False
    delta: DeltaPacking | None = None
    """How the projections of Gated DeltaNet layers are packed; None: the format has none."""
    experts: Literal["never", "any layer", "all layers"] = "never"
    """Which layers may be mixtures of experts."""
    shared_expert: Literal["required", "never"] = "never"
    """The shared expert of a mixture, which a sigmoid scales."""
    one_expert: Literal["mixture", "dense"] = "mixture"
    """What a mixture of one expert means to the format's readers."""
    heads: tuple[str, ...] = ("tied", "untied")

    def has_key(self, name: str) -> bool:
        """Whether config.json of the family may have this key."""
        return name in self.keys.split()

    def recognises(self, tree: Mapping[str, Any]) -> bool:
        """Whether a config.json is of this format."""
        return tree.get("model_type") == self.model_type

    def text_config(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a config.json that describes the language model."""
        return dict(tree)

    def library_config(self, text: Mapping[str, Any]) -> Any:
        """Return transformers' config of that part. Its defaults matter: a missing
        partial_rotary_factor means a quarter for Qwen3.5."""
        known = type(AutoConfig.for_model(self.model_type))
        dropped = ("model_type", "auto_map")
        return known.from_dict({k: v for k, v in text.items() if k not in dropped})

    def check(self, c: Any, where: str) -> None:
        """Refuse a config of the family with settings that cannot be expressed here.

        Raises:
            ConfigError: with the setting.
        """

    def layer_type(self, c: Any, index: int) -> str:
        """Return the kind of a layer in transformers' words."""
        if self.windows == "all layers":
            return "full_attention" if c.sliding_window is None else "sliding_attention"
        types = getattr(c, "layer_types", None)
        return types[index] if types else "full_attention"

    def num_heads(self, c: Any, layer_type: str) -> int:
        """Return the number of query heads of a layer of that kind."""
        return c.num_attention_heads

    def bias(self, c: Any) -> Bias:
        """Return which attention projections have biases, as a value of `AttentionConfig.bias`."""
        return "all" if getattr(c, "attention_bias", False) else "none"

    def gate_form(self, c: Any) -> GateForm:
        """Return the form of the gate that a config asks for."""
        return self.gates[0]

    def is_sparse(self, c: Any, index: int) -> bool:
        """Whether a layer is a mixture of experts."""
        return self.experts == "all layers"

    def config_keys(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return the config keys to write beside those of every format."""
        return {}

    def pieces(self, cfg: ModelConfig, tree: Mapping[str, Any], layout: str | None) -> list[Piece]:
        """Return the map of all tensors of a model with this config.json. layout: see `layout`."""
        return pieces(cfg, self.names, layout=layout, delta=self.delta)

    def adjust(self, state: State, cfg: ModelConfig, tree: Mapping[str, Any]) -> list[str]:
        """Change what was read where a map of tensors cannot say it, and return what was done."""
        return []

    def engines(self) -> tuple[Fact, ...]:
        """Return the known facts about engines that load the format."""
        return (self.fact("transformers", "loads", f"as {self.architecture}", OURS, "run"),)

    def fact(
        self,
        engine: str,
        verdict: Verdict,
        why: str,
        source: str = "",
        how: Literal["run", "read"] = "read",
    ) -> Fact:
        """Make a `Fact` about this format."""
        return Fact(engine, self.name, verdict, why, source, how)
