"""Configs: frozen pydantic models, YAML files, `path=value` overrides."""

from gatelm.config.base import Config, ConfigError, choice, nearest, not_identity

__all__ = ["Config", "ConfigError", "choice", "nearest", "not_identity"]
