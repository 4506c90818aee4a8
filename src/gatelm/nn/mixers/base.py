"""What a sequence mixer is: a config that knows its sites and costs, a module that mixes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from gatelm.nn.cost import ParamCount
from gatelm.nn.forward_state import Context
from gatelm.nn.gates.gate import GateConfig, ModifierConfig, SiteShape
from gatelm.nn.shapes import Float, Tensor


class MixerSettings(Protocol):
    """What every config in `nn.mixers.MixerConfig` offers beside its own values."""

    sites: ClassVar[tuple[str, ...]]
    """Where this mixer has places for gates; names of `nn.gates.sites.ATTENTION_SITES`."""

    def site_shape(self, site: str, hidden_dim: int) -> SiteShape:
        """What a gate at `site` must know of its tensor."""
        ...

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Parameters without those of the gates."""
        ...

    def mixing_flops_per_token(self, hidden_dim: int, seq_len: int) -> int:
        """Matrix-product FLOPs of a token's forward beyond the parameters' own."""
        ...

    def cached_values(self, hidden_dim: int, num_tokens: int) -> int:
        """Numbers the cache holds of one sequence after `num_tokens` tokens."""
        ...

    def check(self, hidden_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for values that cannot work together."""
        ...

    def check_gate(self, gate: GateConfig, where: str) -> None:
        """Raises ConfigError for a gate this mixer cannot have."""
        ...


class Mixer(Protocol):
    """Built as `(cfg, hidden_dim, layer_index, modifiers)`; its sites are at `gates`."""

    def __call__(
        self, x: Float[Tensor, "B T D"], resid: Float[Tensor, "B T D"], context: Context
    ) -> Float[Tensor, "B T D"]:
        """The branch of x, the normed residual; `resid` is the raw one.

        Tokens see only earlier ones of their own document (`context.document_starts()`,
        `context.mask`). With `context.cache`, what later tokens need of these is left there.
        """
        ...


Modifiers = Sequence[ModifierConfig]
