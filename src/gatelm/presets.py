"""Configs by name: gates, and the model files under `recipes/models`."""

from __future__ import annotations

from gatelm.config.load import load, packaged_recipes
from gatelm.nn.gates.presets import GATE_PRESETS, PRESET_DOCS
from gatelm.nn.model import ModelConfig


def model_preset(name: str, *overrides: str) -> ModelConfig:
    """Load the model file `recipes/models/<name>.yaml`, with `path=value` overrides.

    Raises:
        ConfigError: no such preset, or an override that is no config value.
    """
    loaded = load(f"models/{name}", overrides)
    return ModelConfig.parse(loaded.tree, f"models/{name}")


def model_presets() -> tuple[str, ...]:
    """Return the names that `model_preset` knows."""
    return tuple(sorted(path.stem for path in (packaged_recipes() / "models").glob("*.yaml")))


__all__ = ["GATE_PRESETS", "PRESET_DOCS", "model_preset", "model_presets"]
