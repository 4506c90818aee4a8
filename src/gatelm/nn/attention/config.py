"""The config of softmax attention: it builds the module, counts costs and checks itself."""

from __future__ import annotations

from collections.abc import Collection

from gatelm.config import ConfigError
from gatelm.nn.attention.backends import BACKENDS
from gatelm.nn.attention.module import Attention
from gatelm.nn.attention.settings import AttentionSettings
from gatelm.nn.cost import ParamCount
from gatelm.nn.gates.gate import GateConfig
from gatelm.nn.gates.sites import SITES
from gatelm.nn.mixers.base import Modifiers, check_kv_heads, check_width


class AttentionConfig(AttentionSettings):
    """Grouped-query softmax attention."""

    def build(self, hidden_dim: int, layer_index: int, modifiers: Modifiers = ()) -> Attention:
        """Build the module with the modifiers at its sites."""
        return Attention(self, hidden_dim, layer_index, modifiers)

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count the parameters without those of the gates."""
        width = self.width(hidden_dim)
        if self.projection is not None:
            out = ParamCount(hidden_dim * self.num_heads * self.value_width(hidden_dim))
            rotary_dim = self.rotary_dim(hidden_dim)
            return out + self.projection.param_count(hidden_dim, self.num_heads, width, rotary_dim)
        queries, keys = self.num_heads * width, self.kv_heads * width
        bias = {"none": 0, "qkv": queries + 2 * keys, "all": queries + 2 * keys + hidden_dim}
        on_heads = 2 * self.qk_norm.num_weights(width) if self.qk_norm else 0
        if self.memory is not None:  # its keys and values cost nothing per token of the text
            of_cross = 2 * keys * self.memory.hidden_dim
            return ParamCount(2 * hidden_dim * queries, bias[self.bias] + of_cross, on_heads)
        return ParamCount(hidden_dim * (2 * queries + 2 * keys), bias[self.bias], on_heads)

    def mixing_flops_per_token(self, hidden_dim: int, seq_len: int) -> int:
        """Count FLOPs of the whole T x T square, as kernels do: no discount for causality."""
        both = self.width(hidden_dim) + self.value_width(hidden_dim)
        return 2 * self.num_heads * both * (self.memory.max_tokens if self.memory else seq_len)

    def cached_values(self, hidden_dim: int, num_tokens: int, sites: Collection[str] = ()) -> int:
        """Count the cached numbers of `num_tokens` tokens with modifiers at `sites`."""
        if self.memory is not None:
            num_tokens = self.memory.max_tokens
        elif self.window_tokens is not None:
            num_tokens = min(num_tokens, self.window_tokens - 1 + self.first_tokens)
        if self.projection is not None and self.caches_latent(sites):
            return (self.projection.kv_rank + self.rotary_dim(hidden_dim)) * num_tokens
        both = self.width(hidden_dim) + self.value_width(hidden_dim)
        return self.kv_heads * both * num_tokens

    def check(self, hidden_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for values that cannot work together."""
        check_width(self.num_heads, self.head_dim, hidden_dim, where)
        check_kv_heads(self.num_heads, self.kv_heads, where)
        if self.rope is not None:
            self.rope.check(self.width(hidden_dim), where)
            self._check_moving(where)
        self._check_bias(where)
        if self.projection is not None:
            self._check_latent(hidden_dim, where)
        if self.qk_norm is not None and self.qk_norm.gate is not None:
            raise ConfigError(f"{where}.qk_norm.gate: only norms of the residual have one")
        self._check_pattern(where)
        if self.memory is not None:
            self._check_cross(where)
        if self.dropout and not BACKENDS[self.backend].capabilities.dropout:
            raise ConfigError(f"{where}.dropout: the {self.backend} backend has none")

    def _check_pattern(self, where: str) -> None:
        if self.first_tokens and self.window_tokens is None:
            raise ConfigError(
                f"{where}.first_tokens: without a window all keys are seen anyway; set "
                "window_tokens, or leave it out"
            )
        if self.sparsity is not None and self.window_tokens is not None:
            raise ConfigError(
                f"{where}.sparsity: goes without window_tokens; its near keys are "
                "sparsity.local_blocks"
            )

    def _check_cross(self, where: str) -> None:
        if self.rope is not None:
            raise ConfigError(
                f"{where}.rope: the tokens of a memory have no place in the text; set rope to null"
            )
        for name in ("window_tokens", "sparsity", "projection"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{where}.{name}: all of a memory is seen as it is; leave it out")

    def _check_bias(self, where: str) -> None:
        if self.position_bias is None:
            return
        if self.rope is not None:
            raise ConfigError(
                f"{where}.position_bias: alibi stands in place of rotary positions; set rope: null"
            )
        if self.memory is not None:
            raise ConfigError(
                f"{where}.position_bias: a second sequence (memory) is at no distance; leave it out"
            )

    def _check_moving(self, where: str) -> None:
        if self.rope is None or not self.rope.length_dependent:
            return
        kind = None if self.rope.scaling is None else self.rope.scaling.kind
        for name, value in (("window_tokens", self.window_tokens), ("projection", self.projection)):
            if value is not None:
                raise ConfigError(
                    f"{where}.rope.scaling: {kind} turns cached keys anew, which {name} has no "
                    "place for; use yarn, or leave one of them out"
                )

    def _check_latent(self, hidden_dim: int, where: str) -> None:
        if self.kv_heads != self.num_heads:
            raise ConfigError(
                f"{where}.num_kv_heads: with projection.kind latent every head has keys of its "
                "own; leave it out"
            )
        if self.qk_norm is not None:
            raise ConfigError(
                f"{where}.qk_norm: with projection.kind latent the norms are on the latents "
                "(projection.norm); set qk_norm to null"
            )
        if self.bias != "none":
            raise ConfigError(f"{where}.bias: a latent projection has none; set bias to none")
        if self.rotary_dim(hidden_dim) == self.width(hidden_dim):
            raise ConfigError(
                f"{where}.rope.partial_factor: where all channels turn, no key can come from the "
                "latent; use e.g. 0.5, or rope: null"
            )

    def check_gate(self, gate: GateConfig, where: str) -> None:
        """Raises ConfigError for a gate that cannot work here."""
        if gate.needs_lse and self.memory is not None and self.backend == "sdpa":
            raise ConfigError(
                f"{where}.inputs: mixer.backend 'sdpa' returns no lse of a memory; use eager"
            )
        if gate.needs_lse and not BACKENDS[self.backend].capabilities.lse:
            able = [name for name, b in BACKENDS.items() if b.capabilities.lse]
            raise ConfigError(
                f"{where}.inputs: lse is not returned by mixer.backend {self.backend!r}; "
                f"use {' or '.join(able)}"
            )
        from_text = {"x", "resid", "q"} & set(gate.inputs)
        if self.memory is not None and SITES[gate.site].cached and from_text:
            raise ConfigError(
                f"{where}.inputs: keys and values of mixer.memory are not tokens of the text; use "
                "y or const, or a site of the query's side (q, q_rot, sdpa, out)"
            )
        scales = gate.granularity == "head" and gate.operation == "mul"
        if scales and gate.site in ("q", "k") and self.qk_norm is not None:
            raise ConfigError(
                f"{where}: a headwise gate at {gate.site!r} is undone by mixer.qk_norm, which "
                f"rescales each head; use site {gate.site}_rot, or granularity element"
            )
