"""Named gates: the descriptive names that replace the two numberings G1..G5 in circulation."""

from __future__ import annotations

from gatelm.nn.gates.gate import (
    GateConfig,
    GateInit,
    ModifierConfig,
    SiteActivationConfig,
    SiteNormConfig,
)

GATE_PRESETS: dict[str, ModifierConfig] = {
    "sdpa-element": GateConfig(site="sdpa"),
    "sdpa-head": GateConfig(site="sdpa", granularity="head"),
    "value": GateConfig(site="v"),
    "key": GateConfig(site="k"),
    "query": GateConfig(site="q"),
    "output": GateConfig(site="out"),
    "scores-x": GateConfig(site="q_rot", granularity="head"),
    "scores-key": GateConfig(site="k_rot", granularity="head"),
    "scores-q": GateConfig(site="q_rot", granularity="head", inputs=("q",)),
    "residual": GateConfig(site="out", inputs=("resid",)),
    "ffn": GateConfig(site="ffn"),
    "value-head": GateConfig(site="v", granularity="head"),
    "sdpa-element-shared": GateConfig(site="sdpa", sharing="mean"),
    "value-shared": GateConfig(site="v", sharing="mean"),
    "sdpa-additive-silu": GateConfig(site="sdpa", operation="add", activation="silu"),
    "sdpa-additive-identity": GateConfig(site="sdpa", operation="add", activation="identity"),
    "sdpa-silu-gate": GateConfig(site="sdpa", activation="silu"),
    "sdpa-nonsparse": GateConfig(site="sdpa", activation="nonsparse_sigmoid"),
    "sdpa-input-independent": GateConfig(site="sdpa", inputs=("const",)),
    "sdpa-sparse-input": GateConfig(
        site="sdpa", granularity="head", input_dim=12, init=GateInit(weight="zeros")
    ),
    "sdpa-two-sigmoid": GateConfig(
        site="sdpa", activation="two_sigmoid", init=GateInit(weight="zeros")
    ),
    "learned-sink": GateConfig(site="sdpa", granularity="head", inputs=("lse", "const")),
    "softmax-off-by-one": GateConfig(site="sdpa", granularity="head", inputs=("lse",)),
    "sdpa-norm": SiteNormConfig(site="sdpa"),
    "sdpa-silu": SiteActivationConfig(site="sdpa", activation="silu"),
}

PRESET_DOCS: dict[str, tuple[str, str, str]] = {
    # preset: (arXiv 2505.06708, second numbering, what it is)
    "sdpa-element": ("G1", "G1", "after SDPA, a score per channel"),
    "sdpa-head": ("G1", "G1", "after SDPA, a score per head"),
    "value": ("G2", "", "on the values"),
    "key": ("G3", "", "on the keys"),
    "query": ("G4", "", "on the queries"),
    "output": ("G5", "G5", "after W_o"),
    "scores-x": ("", "G2", "on the scores, per query and head, from x"),
    "scores-key": ("", "G2", "on the scores, per key and head, from x"),
    "scores-q": ("", "G3", "on the scores, per query and head, from the query"),
    "residual": ("", "G4", "on the branch added to the residual, from the residual"),
    "ffn": ("", "", "on the output of the feed-forward network"),
    "value-head": ("G2, headwise", "", "on the values, a score per key/value head"),
    "sdpa-element-shared": ("G1, head-shared", "", "after SDPA, scores averaged over heads"),
    "value-shared": ("G2, head-shared", "", "on the values, scores averaged over heads"),
    "sdpa-additive-silu": ("G1, additive", "", "after SDPA, SiLU scores added"),
    "sdpa-additive-identity": ("G1, additive", "", "after SDPA, a linear map of x added"),
    "sdpa-silu-gate": ("G1, SiLU", "", "after SDPA, SiLU scores multiplied"),
    "sdpa-nonsparse": ("NS-sigmoid", "", "control: scores in [0.5, 1], so never closed"),
    "sdpa-input-independent": ("input-independent", "", "control: learned scores, no input"),
    "sdpa-sparse-input": ("", "", "a score per head from the first 12 channels of x"),
    "sdpa-two-sigmoid": ("", "", "2 sigmoid from zero: the identity at the start"),
    "learned-sink": ("", "", "a learned extra logit in the softmax, written as a gate"),
    "softmax-off-by-one": ("", "", "an extra logit of 0 in the softmax, written as a gate"),
    "sdpa-norm": ("G1 RMSNorm", "", "control: per-head RMSNorm after SDPA, no gate"),
    "sdpa-silu": ("G1 SiLU", "", "control: SiLU after SDPA, no gate, no parameters"),
}
