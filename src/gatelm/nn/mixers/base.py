"""The interface of sequence mixers: a config with sites and costs, and a module."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple, Protocol

from torch import nn

from gatelm.config import Config, ConfigError
from gatelm.nn.cost import ParamCount
from gatelm.nn.forward_state import Context
from gatelm.nn.gates.gate import GateConfig, ModifierConfig, SiteShape
from gatelm.nn.gates.sites import ATTENTION_SITES, SITES, Sites
from gatelm.nn.shapes import Float, Tensor

Modifiers = Sequence[ModifierConfig]


class HeadShapes(NamedTuple):
    """(heads, channels of one head) of a mixer's queries, keys, values and outputs."""

    q: tuple[int, int]
    k: tuple[int, int]
    v: tuple[int, int]
    y: tuple[int, int]


class MixerSettings(Config):
    """The base of every config in `nn.mixers.config.MixerConfig`, with what each must offer."""

    sites: ClassVar[tuple[str, ...]] = ATTENTION_SITES
    """The sites that this mixer offers to gates; names of `nn.gates.sites.SITES`."""
    linear_sites: ClassVar[tuple[str, ...]] = ("out",)
    """Sites from which a constant factor passes unchanged through W_o, or comes from it."""

    def build(self, hidden_dim: int, layer_index: int, modifiers: Modifiers = ()) -> nn.Module:
        """Build the module, a `Mixer`, with the modifiers at its sites."""
        raise NotImplementedError

    def heads(self, hidden_dim: int) -> HeadShapes:
        """Numbers of heads and their widths."""
        raise NotImplementedError

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count the parameters without those of the gates."""
        raise NotImplementedError

    def mixing_flops_per_token(self, hidden_dim: int, seq_len: int) -> int:
        """Count matrix-product FLOPs of a token's forward beyond the parameters' own."""
        raise NotImplementedError

    def cached_values(self, hidden_dim: int, num_tokens: int, sites: Collection[str] = ()) -> int:
        """Count the numbers in one sequence's cache after `num_tokens` tokens.

        sites: those with a modifier.
        """
        raise NotImplementedError

    def check(self, hidden_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for values that cannot work together."""
        raise NotImplementedError

    def check_gate(self, gate: GateConfig, where: str) -> None:
        """Raises ConfigError for a gate that this mixer, one without a softmax, cannot have."""
        kind = type(self).model_fields["kind"].default
        for name in sorted({"lse", "q_rot"} & set(gate.inputs)):
            raise ConfigError(
                f"{where}.inputs: {name} is of softmax attention, and mixer.kind is {kind} here"
            )

    def site_shape(self, site: str, hidden_dim: int) -> SiteShape:
        """Return the shape of the tensor at `site`, as a gate there needs it."""
        tensor, heads = SITES[site].tensor, self.heads(hidden_dim)
        num_heads, width = (1, hidden_dim) if tensor == "branch" else getattr(heads, tensor)
        return SiteShape(
            num_heads=num_heads,
            head_dim=width,
            hidden_dim=hidden_dim,
            num_groups=heads.k[0],
            num_query_heads=heads.q[0],
            query_dim=heads.q[1],
        )

    def build_sites(self, hidden_dim: int, modifiers: Modifiers) -> Sites:
        """Build the mixer's sites with their modifiers."""
        return Sites(self.sites, modifiers, lambda site: self.site_shape(site, hidden_dim))


def check_width(num_heads: int, head_dim: int | None, hidden_dim: int, where: str) -> None:
    """Raises ConfigError, naming `where`, when heads of no width of their own leave a remainder."""
    if head_dim is None and hidden_dim % num_heads:
        raise ConfigError(
            f"{where}.num_heads: hidden_dim {hidden_dim} is not a multiple of {num_heads} heads; "
            "change one of them, or set mixer.head_dim"
        )


def check_kv_heads(num_heads: int, kv_heads: int, where: str) -> None:
    """Raises ConfigError, naming `where`, when query heads cannot be divided among key heads."""
    if num_heads % kv_heads:
        raise ConfigError(
            f"{where}.num_kv_heads: {num_heads} query heads cannot be divided among {kv_heads} "
            f"key/value heads; use a divisor of {num_heads}"
        )


class Mixer(Protocol):
    """The module that a mixer's config builds; its sites are at `gates`."""

    def __call__(
        self, x: Float[Tensor, "B T D"], resid: Float[Tensor, "B T D"], context: Context
    ) -> Float[Tensor, "B T D"]:
        """Compute the branch of x, the normed residual; `resid` is the raw one.

        Tokens see only earlier ones of their own document (`context.document_starts()`,
        `context.mask`). With `context.cache`, what later tokens need of these is left there.
        """
        ...
