"""Attention backends by name."""

from gatelm.nn.backends.base import AttentionBackend, AttentionOutput, Capabilities
from gatelm.nn.backends.eager import EagerBackend
from gatelm.nn.backends.flex import FlexBackend
from gatelm.nn.backends.sdpa import SdpaBackend

BACKENDS: dict[str, AttentionBackend] = {
    "eager": EagerBackend(),
    "sdpa": SdpaBackend(),
    "flex": FlexBackend(),
}

__all__ = ["BACKENDS", "AttentionBackend", "AttentionOutput", "Capabilities"]
