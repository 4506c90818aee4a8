"""Arms made from a registry: one for each entry, so that a new entry is an arm by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from gatelm.config import Config, choice
from gatelm.nn.gates.gate import ACTIVATIONS
from gatelm.nn.gates.presets import GATE_PRESETS

REGISTRIES: dict[str, Mapping[str, Any]] = {
    "activations": ACTIVATIONS,
    "gate_presets": GATE_PRESETS,
}
"""Registries from which arms can be made, by name; they are read with the study."""

_ENTRY = "{name}"

if TYPE_CHECKING:
    RegistryName = str
else:
    RegistryName = choice(REGISTRIES, "registry")


class ArmsFrom(Config):
    """Template that makes an arm for each entry of a registry."""

    registry: RegistryName
    name: str = _ENTRY
    """Of the arms; `{name}` stands for the entry's."""
    set: dict[str, Any]
    """What an arm sets, `{config.path: value}`; `{name}` in its values stands for the entry's."""

    @field_validator("name")
    @classmethod
    def _tells_arms_apart(cls, value: str) -> str:
        if _ENTRY not in value:
            raise ValueError(f"{value!r} is the same for every entry; put {_ENTRY} in it")
        return value

    def arms(self) -> dict[str, dict[str, Any]]:
        """Make the arms by name, in the registry's order."""
        return {
            self.name.replace(_ENTRY, entry): _filled(self.set, entry)
            for entry in REGISTRIES[self.registry]
        }


def with_made_arms(arms: Mapping[str, Any], templates: Iterable[ArmsFrom]) -> dict[str, Any]:
    """Return written arms, then those of templates; a written arm overrides a template's."""
    made: dict[str, Any] = {}
    for template in templates:
        made |= template.arms()
    return {**arms, **{name: made[name] for name in made if name not in arms}}


def _filled(value: Any, entry: str) -> Any:
    if isinstance(value, str):
        return value.replace(_ENTRY, entry)
    if isinstance(value, Mapping):
        return {key: _filled(inner, entry) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(inner, entry) for inner in value]
    return value
