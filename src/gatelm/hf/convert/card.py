"""The README.md of a converted model: its form, its origin, and what was checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gatelm.nn.count import count
from gatelm.nn.gates.gate import GateConfig
from gatelm.nn.model import ModelConfig

MEASURED = {
    "val_loss": "held-out loss, nats a token",
    "first_token_share": "share of attention on the first token",
    "first_token_share_uniform": "the same under uniform attention",
    "sink_rate": "share of heads with a sink (threshold 0.3)",
    "max_activation": "largest activation in the residual stream",
    "activation_ratio": "largest over median activation, worst layer",
    "gate_mean": "mean gate score",
    "gate_below_0.1": "share of gate scores below 0.1",
}
"""Figures of a run's analysis that the card repeats, with their names."""


def gates_in_words(cfg: ModelConfig) -> str:
    """Say in words what stands at the sites, and in how many layers."""
    found: dict[str, int] = {}
    for layer in cfg.layers():
        for gate in layer.gates:
            words = f"{gate.kind} at `{gate.site}`"
            if isinstance(gate, GateConfig):
                unit = {"element": "channel", "head": "head"}[gate.granularity]
                words = (
                    f"{gate.activation} gate at `{gate.site}`, a score per {unit}, "
                    f"{'multiplied' if gate.operation == 'mul' else 'added'}, from "
                    f"{' and '.join(gate.inputs)}"
                )
            found[words] = found.get(words, 0) + 1
    if not found:
        return "none"
    return "; ".join(f"{words} ({n} of {cfg.num_layers} layers)" for words, n in found.items())


def measured(source: Path) -> dict[str, float]:
    """Read the figures of the run to which a model folder belongs; empty when there are none."""
    try:
        result = json.loads((source.parent / "result.json").read_text(encoding="utf-8"))
        metrics = result["metrics"]
        return {name: float(metrics[name]) for name in MEASURED if metrics.get(name) is not None}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def card(
    cfg: ModelConfig,
    *,
    library: str,
    source: str,
    target: str,
    steps: list[str],
    verified: str,
    figures: dict[str, float],
    title: str = "Language model converted with gatelm",
    facts: Mapping[str, str] | None = None,
) -> str:
    """Write the text of README.md, with the hub's metadata block."""
    counted = count(cfg)
    rows = {
        "Gate": gates_in_words(cfg),
        "Parameters": f"{counted.total:,}, {counted.gate:,} of them in gates",
        "Converted from": source,
        "Format": target,
        **(facts or {}),
        "Verified": verified,
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    listed = "\n".join(f"- {step}" for step in steps) or "- none: tensors are as they were"
    numbers = "\n".join(f"| {MEASURED[n]} | {value:.4g} |" for n, value in figures.items())
    tables = f"\n## Measured at the end of training\n\n| | |\n|---|---|\n{numbers}\n"
    return f"""---
library_name: {library}
pipeline_tag: text-generation
tags: [gated-attention]
---

# {title}

| | |
|---|---|
{table}

## Steps of the conversion

{listed}
{tables if figures else ""}"""
