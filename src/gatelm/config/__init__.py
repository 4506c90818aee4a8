"""Configs: frozen pydantic models, YAML files, `path=value` overrides."""

from gatelm.config.base import (
    Config,
    ConfigError,
    FolderName,
    by_kind,
    choice,
    foreign,
    nearest,
    not_identity,
)

__all__ = [
    "Config",
    "ConfigError",
    "FolderName",
    "by_kind",
    "choice",
    "foreign",
    "nearest",
    "not_identity",
]
