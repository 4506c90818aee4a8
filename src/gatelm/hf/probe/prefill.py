"""Prefill for models of transformers, in chunks; `prefill_of` takes any probe."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, DynamicCache
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.probe.protocol import Probe
from gatelm.config import ConfigError
from gatelm.hf.load import UnknownTensors
from gatelm.hf.modeling.generation import Tokenizer, open_generator
from gatelm.hf.modeling.wrapper import GatelmForCausalLM
from gatelm.hf.probe.attention import attention_that_shows, implementation
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.hf.probe.structure import body_of, check_length
from gatelm.inference.prefill import DecoderPrefill, Prefill
from gatelm.nn.attention.backends.tail import attend_tail, can_attend_tail
from gatelm.nn.shapes import Float, Int, Tensor

NAME = "gatelm_prefill"
MOVING = ("dynamic", "longrope")
"""Kinds of rotary positions that transformers computes anew as the text grows."""


def prefill_of(probe: Probe) -> Prefill:
    """Return the model behind a probe, ready to read in chunks.

    Raises:
        ConfigError: for a model without a cache.
    """
    if isinstance(probe, GatelmProbe):
        return DecoderPrefill(probe.model, probe.name)
    if isinstance(probe, HFProbe):
        return HFPrefill(probe)
    raise ConfigError(f"{probe.name}: it cannot read a text in chunks")


def open_prefill(
    where: str | Path,
    *,
    device: str = "auto",
    dtype: str = "float32",
    unknown_tensors: UnknownTensors = "refuse",
) -> tuple[Prefill, Tokenizer, frozenset[int]]:
    """Open the model at `where` (see `hf.load.open_model`), its tokenizer, and its end tokens.

    Raises:
        ConfigError: when it cannot be opened, has no tokenizer, or no cache.
    """
    model, tokenizer = open_generator(
        where, device=device, dtype=dtype, unknown_tensors=unknown_tensors
    )
    eos: Any = getattr(model.generation_config, "eos_token_id", None)
    ends = frozenset(i for i in (eos if isinstance(eos, list) else [eos]) if i is not None)
    name = Path(where).name
    if isinstance(model, GatelmForCausalLM):
        return DecoderPrefill(model.model, name), tokenizer, ends
    return HFPrefill(HFProbe(model, name)), tokenizer, ends


class HFPrefill:
    """Prefill of a model of transformers with its own cache."""

    def __init__(self, probe: HFProbe):
        self._probe, self.name, self.vocab_size = probe, probe.name, probe.vocab_size
        config = probe.model.config.get_text_config()
        self.length_dependent = any(kind in MOVING for kind in _rope_types(config))
        self._cache_argument = _cache_argument(body_of(probe.model))
        self._calls_a_function = probe.implementation != "eager"

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._probe.device

    def begin(self, num_tokens: int) -> DynamicCache:
        """Return an empty cache.

        Positions that move with the length remember the longest text so far; reading one token
        makes them forget it.
        """
        if self.length_dependent:
            self.extend(DynamicCache(), torch.zeros(1, 1, dtype=torch.long))
        return DynamicCache(config=self._probe.model.config)

    def extend(self, state: DynamicCache, tokens: Int[Tensor, "1 T"]) -> Float[Tensor, "1 T D"]:
        """See `Prefill.extend`."""
        check_length(self._probe.model, state.get_seq_length() + tokens.shape[1])
        body = body_of(self._probe.model)
        with evaluation(self._probe.model), self._fast():
            cache = {self._cache_argument: state}
            return body(input_ids=tokens.to(self.device), use_cache=True, **cache)[0]

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of some states."""
        return self._probe.logits(hidden)

    @contextmanager
    def _fast(self) -> Iterator[None]:
        """Give families that call an attention function one made for chunks, for the block."""
        if not self._calls_a_function:
            yield
            return
        with implementation(self._probe.model, NAME):
            yield


def _cache_argument(body: nn.Module) -> str:
    """Return the name of the cache's argument, which transformers renamed in 5.24."""
    known = inspect.signature(body.forward).parameters
    found = [name for name in ("cache", "past_key_values") if name in known]
    if not found:
        raise ConfigError(f"{type(body).__name__} has no cache, so it cannot read in chunks")
    return found[0]


def _rope_types(config: Any) -> Iterator[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    for entry in (parameters, *parameters.values()):
        if isinstance(entry, dict) and "rope_type" in entry:
            yield entry["rope_type"]


def _attention(
    module: nn.Module,
    query: Float[Tensor, "B N T H"],
    key: Float[Tensor, "B K S H"],
    value: Float[Tensor, "B K S V"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "B T N V"], None]:
    """transformers' attention signature, without a mask where queries see all keys before them."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    plain = softcap is None and s_aux is None and options.get("position_bias") is None
    if plain and can_attend_tail(q, k, v) and _sees_all_before(attention_mask, q, k):
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        return attend_tail(q, k, v, scale)[0].contiguous(), None
    return attention_that_shows(
        module, query, key, value, attention_mask, scaling, softcap, s_aux, **options
    )


def _sees_all_before(
    mask: Tensor | None, q: Float[Tensor, "B T N H"], k: Float[Tensor, "B S K H"]
) -> bool:
    """Whether query i of a chunk sees keys 0..S-T+i, as its first and last rows say."""
    if mask is None:
        return q.shape[1] == 1
    if mask.dtype != torch.bool or mask.shape[-1] != k.shape[1]:
        return False
    before = k.shape[1] - q.shape[1]
    first, last = mask[..., 0, :], mask[..., -1, :]
    return bool(
        last.all() and first[..., : before + 1].all() and not first[..., before + 1 :].any()
    )


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
