"""Attention backends by name."""

from gatelm.nn.attention.backends.base import AttentionBackend, AttentionOutput, Capabilities
from gatelm.nn.attention.backends.eager import EagerBackend
from gatelm.nn.attention.backends.flex import FlexBackend
from gatelm.nn.attention.backends.sdpa import SdpaBackend

BACKENDS: dict[str, AttentionBackend] = {
    "eager": EagerBackend(),
    "sdpa": SdpaBackend(),
    "flex": FlexBackend(),
}

__all__ = ["BACKENDS", "AttentionBackend", "AttentionOutput", "Capabilities"]
