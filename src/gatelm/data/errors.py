"""The one error of this package."""

from __future__ import annotations

from gatelm.config import ConfigError


class DataError(ConfigError):
    """Data that cannot be used: one sentence that says what, where, and what would do."""
