"""The config of any optimiser.

Another optimiser is a file with a class of its own `name`, `make` and `first_state` (see `adamw`),
and an entry here, which makes this a union: `Annotated[Annotated[AdamWConfig, Tag("adamw")] |
Annotated[..., Tag(...)], by_kind("adamw", key="name")]`.
"""

from __future__ import annotations

from gatelm.optim.adamw import AdamWConfig

OptimConfig = AdamWConfig
