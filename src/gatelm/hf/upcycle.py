"""Gates for a converted model that leave its outputs as they are: see `gatelm.nn.upcycle`."""

from __future__ import annotations

from gatelm.nn.upcycle import HOW_DOCS, add_gate

__all__ = ["HOW_DOCS", "add_gate"]
