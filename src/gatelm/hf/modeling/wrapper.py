"""Wrapper that makes any model of this package a model of transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from gatelm.config import ConfigError
from gatelm.hf.modeling.cache import LibraryCache
from gatelm.hf.modeling.padding import documents_of, is_packed, padding_to_the_left
from gatelm.nn.attention.backends import BACKENDS
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.attention.masks import has_holes
from gatelm.nn.attention.module import use_backend
from gatelm.nn.block import Block
from gatelm.nn.check import check_layer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.nn.shapes import Tensor
from gatelm.train.saving.export import MODEL_TYPE, parse_config

_CACHE_FIELD = (
    "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
)
"""Name of the output's cache field, which transformers renamed in 5.24."""


class GatelmConfig(PreTrainedConfig):
    """Config of transformers that holds a `ModelConfig` as a tree, in `model`.

    Raises:
        ConfigError: when the tree is missing or wrong, or contradicts `tie_word_embeddings`.
    """

    model_type = MODEL_TYPE
    has_no_defaults_at_init = True
    keys_to_ignore_at_inference = ("cache", "past_key_values")

    model: Any = None
    tie_word_embeddings: bool | None = None
    use_cache: bool = True
    max_position_embeddings: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.model, ModelConfig):
            self.model = self.model.tree()
        tree: dict[str, Any] = {"model_type": MODEL_TYPE, "model": self.model}
        if self.tie_word_embeddings is not None:
            tree["tie_word_embeddings"] = self.tie_word_embeddings
        parsed = parse_config(tree, kwargs.get("name_or_path") or type(self).__name__)
        self.model = parsed.tree()
        self.tie_word_embeddings = parsed.head == "tied"
        super().__post_init__(**kwargs)

    @property
    def model_config(self) -> ModelConfig:
        """The model's config."""
        return ModelConfig.parse(self.model, type(self).__name__)

    @property
    def vocab_size(self) -> int | None:
        """Number of rows of the vocabulary."""
        return self.model["vocab_size"]

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        """Set the number of rows of the vocabulary."""
        self.model = {**self.model, "vocab_size": value}

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.model["hidden_dim"]

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        return self.model["num_layers"]

    @property
    def num_attention_heads(self) -> int:
        """Number of query heads in the first layer of softmax attention."""
        return self._attention.num_heads

    @property
    def num_key_value_heads(self) -> int:
        """Number of key/value heads in the first layer of softmax attention."""
        return self._attention.kv_heads

    @property
    def head_dim(self) -> int:
        """Width of a head in the first layer of softmax attention."""
        return self._attention.width(self.hidden_size)

    @property
    def _attention(self) -> AttentionConfig:
        """The config of the first layer with softmax attention.

        Raises:
            AttributeError: for a model without such a layer.
        """
        for layer in self.model_config.layers():
            if isinstance(layer.mixer, AttentionConfig):
                return layer.mixer
        raise AttributeError("the model has no layer of softmax attention")


class RecomputedBlock(GradientCheckpointingLayer, Block):
    """A layer whose activations transformers may recompute in the backward pass."""


class GatelmForCausalLM(PreTrainedModel, GenerationMixin):
    """A `Decoder` with everything that transformers gives a causal language model.

    Folders hold the decoder's own parameter names, so that `train.saving.export.load_model` and
    `from_pretrained` read the same ones.
    """

    config_class = GatelmConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _input_embed_layer = "embedding"
    _no_split_modules = [RecomputedBlock.__name__]  # noqa: RUF012
    _skip_keys_device_placement = ["cache", "past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = False

    def __init__(self, config: GatelmConfig, decoder: Decoder | None = None):
        asked = config._attn_implementation
        super().__init__(config)
        self.model = Decoder(config.model_config) if decoder is None else decoder
        for parameter in () if decoder is None else decoder.parameters():
            parameter._is_hf_initialized = True  # pyright: ignore[reportAttributeAccessIssue]
        for layer in self.model.layers:
            layer.__class__ = RecomputedBlock
        mixers = [layer.mixer for layer in self.model.cfg.layers()]
        # transformers then never takes tokens back out of a cache, which a state cannot do
        self._is_stateful = any(not isinstance(mixer, AttentionConfig) for mixer in mixers)
        if asked is not None:
            _use_backend(self.model, asked)
        self.register_load_state_dict_pre_hook(_accept_decoder_names)
        self.post_init()

    @classmethod
    def from_decoder(cls, decoder: Decoder, **settings: Any) -> Self:
        """Wrap a decoder as a model of transformers, sharing its parameters.

        settings: of `GatelmConfig`, such as `eos_token_id`.
        """
        return cls(GatelmConfig(model=decoder.cfg, **settings), decoder)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str] | None,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load as transformers does, but missing or unexpected weights are an error.

        Raises:
            ConfigError: when the weights do not fit the config, or a file is damaged.
        """
        where = pretrained_model_name_or_path
        try:
            loaded: Any = super().from_pretrained(where, *args, output_loading_info=True, **kwargs)
        except SafetensorError as error:
            raise ConfigError(f"{where}: the weights cannot be read ({error})") from None
        model, info = loaded
        for key, what in (("missing_keys", "are missing"), ("unexpected_keys", "have no place")):
            if names := sorted(info.get(key, ())):
                raise ConfigError(f"{where}: {len(names)} weights {what}, such as {names[0]}")
        return (model, info) if output_loading_info else model

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        """Save as transformers does, with the decoder's parameter names."""
        offloaded = {"cpu", "disk"} & set(getattr(self, "hf_device_map", {}).values())
        if not getattr(self, "_hf_peft_config_loaded", False) and not offloaded:
            tensors = self.state_dict() if state_dict is None else state_dict
            prefix = f"{self.base_model_prefix}."
            state_dict = {name.removeprefix(prefix): t for name, t in tensors.items()}
        super().save_pretrained(
            save_directory,
            is_main_process=is_main_process,
            state_dict=state_dict,  # pyright: ignore[reportArgumentType]
            **kwargs,
        )

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialise parameters without loaded values by `nn.init` and torch's generator."""
        parameters = dict(self.model.named_parameters())
        loaded = {n: p for n, p in parameters.items() if getattr(p, "_is_hf_initialized", False)}
        if len(loaded) == len(parameters) or any(p.is_meta for p in parameters.values()):
            return
        kept = {name: parameter.clone() for name, parameter in loaded.items()}
        init_weights(self.model, int(torch.randint(2**31 - 1, (), device="cpu")))
        for name, value in kept.items():
            parameters[name].copy_(value)
        for parameter in parameters.values():
            parameter._is_hf_initialized = True  # pyright: ignore[reportAttributeAccessIssue]

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the head; None if it is tied to the embedding."""
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.model.head = new_embeddings  # pyright: ignore[reportAttributeAccessIssue]

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as transformers does, and change the model's config accordingly."""
        embedding = super().resize_token_embeddings(*args, **kwargs)
        self.model.cfg = self.config.model_config
        return embedding

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute logits (B,T,V), and the loss if there are labels (shifted here, -100 ignored).

        attention_mask: (B,S), 0 at padding, cached tokens included; padding may stand between
            tokens where all layers are softmax attention over all keys.
        position_ids: (B,T), for packed rows: a document begins where they start again at 0, and
            sees only itself.
        logits_to_keep: number of last tokens with logits, or a tensor of indices; 0: all.

        Raises:
            ValueError: for inputs that a decoder of this package has not.
        """
        given = cache if cache is not None else kwargs.pop("past_key_values", None)
        tokens = _token_input(input_ids, kwargs)
        cache = self._cache(given, use_cache)
        num_cached = 0 if cache is None else cache.get_seq_length()
        shape = (tokens.shape[0], tokens.shape[1])
        documents = documents_of(attention_mask, position_ids, shape, num_cached, tokens.device)
        if documents is not None and has_holes(documents):
            _check_holes(self.model.cfg)
        if documents is not None and cache is not None and is_packed(documents):
            if given is not None:
                raise ValueError("position_ids: rows of several documents have no cache; pass none")
            cache = None
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        states: list[Tensor] = []
        with ExitStack() as stack:
            if output_hidden_states:
                _collect(self.model, states, stack)
            if cache is None:
                hidden = self.model.hidden(tokens, documents=documents)
            else:
                hidden = self.model.hidden(tokens, cache=LibraryCache(cache, documents))
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.logits(hidden[:, kept])
        return_dict = kwargs.pop("return_dict", None)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs
            )
        output = CausalLMOutputWithPast(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=logits,  # pyright: ignore[reportArgumentType]
            hidden_states=(*states, hidden) if output_hidden_states else None,  # pyright: ignore
            **{_CACHE_FIELD: cache},  # pyright: ignore[reportArgumentType]
        )
        return output.to_tuple() if return_dict is False else output

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Generate as transformers does, after moving padding to the left of each row."""
        tokens = kwargs.pop("input_ids", None) if inputs is None else inputs
        mask = kwargs.get("attention_mask")
        padded = mask is not None and mask.dim() == 2 and bool((mask[:, -1] == 0).any())
        if padded and tokens is not None and mask is not None and tokens.shape == mask.shape:
            tokens, kwargs["attention_mask"] = padding_to_the_left(tokens, mask)
        return GenerationMixin.generate(self, tokens, *args, **kwargs)  # pyright: ignore

    def _cache(self, given: Cache | None, use_cache: bool | None) -> Cache | None:
        """Return the cache to fill; None if activations are recomputed, which fills it twice."""
        if self.training and torch.is_grad_enabled():
            recomputing = any(layer.gradient_checkpointing for layer in self.model.layers)
            return None if recomputing else given
        if use_cache is None:
            use_cache = self.config.use_cache
        return DynamicCache() if given is None and use_cache else given


def register_classes() -> None:
    """Make the Auto classes know the classes of this module."""
    AutoConfig.register(MODEL_TYPE, GatelmConfig, exist_ok=True)
    AutoModelForCausalLM.register(GatelmConfig, GatelmForCausalLM, exist_ok=True)


def _accept_decoder_names(
    module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *rest: Any
) -> None:
    """Let `load_state_dict` read what `save_pretrained` wrote, as a Trainer does to go on."""
    model = getattr(module, GatelmForCausalLM.base_model_prefix)
    own = {name for name, _ in model.named_children()}
    for key in list(state_dict):
        if key.startswith(prefix) and key.removeprefix(prefix).split(".")[0] in own:
            inside = f"{prefix}{GatelmForCausalLM.base_model_prefix}.{key.removeprefix(prefix)}"
            state_dict[inside] = state_dict.pop(key)


def _token_input(input_ids: Tensor | None, kwargs: dict[str, Any]) -> Tensor:
    if kwargs.pop("inputs_embeds", None) is not None:
        raise ValueError("inputs_embeds: the decoder embeds tokens itself; give input_ids")
    if kwargs.pop("output_attentions", None):
        raise ValueError(
            "output_attentions: attention weights are not returned; `gatelm analyze` measures them"
        )
    if input_ids is None:
        raise ValueError("input_ids: needed, (batch, tokens)")
    return input_ids


def _check_holes(cfg: ModelConfig) -> None:
    """
    Raises:
        ValueError: naming a layer that cannot leave out padding between the tokens of a row.
    """
    for index, layer in enumerate(cfg.layers()):
        mixer = layer.mixer
        if not isinstance(mixer, AttentionConfig):
            why = f"layer {index} ({mixer.kind}) carries a state on over every token"
        elif mixer.window_tokens or mixer.sparsity or mixer.position_bias:
            why = f"layer {index} counts the distance between tokens with the padding"
        else:
            continue
        raise ValueError(
            f"attention_mask: a row has padding between its tokens, but {why}; pad on the left"
        )


def _collect(model: Decoder, states: list[Tensor], stack: ExitStack) -> None:
    """While `stack` is open, append the embedded tokens and each layer's output but the last's."""
    layers = list(model.layers)

    def before(module: nn.Module, args: Any) -> None:
        states.append(args[0])

    for layer in layers:
        stack.callback(layer.register_forward_pre_hook(before).remove)


def _use_backend(model: Decoder, name: str) -> None:
    if name not in BACKENDS:
        raise ConfigError(f"attn_implementation {name!r}: known: {', '.join(sorted(BACKENDS))}")
    for index, layer in enumerate(model.cfg.layers()):
        if not isinstance(layer.mixer, AttentionConfig):
            continue
        mixer = layer.mixer.replace(backend=name)
        check_layer(layer.replace(mixer=mixer), model.cfg.hidden_dim, index)
    use_backend(model, name)
