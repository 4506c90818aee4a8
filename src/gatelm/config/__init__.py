"""Configs: frozen pydantic models, YAML files, `path=value` overrides."""

from gatelm.config.base import (
    Config,
    ConfigError,
    by_kind,
    choice,
    nearest,
    not_identity,
)

__all__ = ["Config", "ConfigError", "by_kind", "choice", "nearest", "not_identity"]
