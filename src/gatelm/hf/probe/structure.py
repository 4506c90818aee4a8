"""The parts of a model of transformers, found by their types and behaviour."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from gatelm.config import ConfigError
from gatelm.nn.shapes import Tensor

OUTPUT_PROJECTIONS = (
    "o_proj",
    "out_proj",
    "c_proj",
    "dense",
    "wo",
    "Wo",
    "attn_out",
    "o_proj.linear",
)
"""Names of W_o inside an attention module, in any family."""


def body_of(model: PreTrainedModel) -> nn.Module:
    """Return the model without its head: the module whose first output is the final normed states.

    Raises:
        ConfigError: when it is not found.
    """
    if model.base_model is not model:
        return model.base_model
    for name in ("model", "transformer"):  # families whose base_model_prefix names something else
        if isinstance(found := getattr(model, name, None), PreTrainedModel):
            return found
    raise ConfigError(f"{type(model).__name__}: its body was not found, so it cannot be read")


def decoder_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """Return the outermost layers of the language model, in the order of their definition.

    Raises:
        ConfigError: when none are found.
    """
    body = body_of(model)
    for kinds in (GradientCheckpointingLayer, _members_of_lists(body, model)):
        found = [m for m in body.modules() if isinstance(m, kinds)] if kinds else []
        inner = {id(m) for block in found for m in block.modules() if m is not block}
        outer = [block for block in found if id(block) not in inner]
        if outer:
            return outer
    raise ConfigError(f"{type(model).__name__}: its layers were not found, so it cannot be read")


def learned_positions(model: PreTrainedModel) -> int | None:
    """Return the number of tokens that learned positions allow; None without such positions."""
    stated = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for name, module in model.named_modules():
        part = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and ("position" in part or part == "wpe"):
            rows = module.num_embeddings - getattr(module, "offset", 0)
            if rows >= (stated or 0):  # a table of an image's patches is smaller
                return rows
    return None


def check_length(model: PreTrainedModel, num_tokens: int) -> None:
    """
    Raises:
        ConfigError: for a text that is longer than the positions a model has learned.
    """
    limit = learned_positions(model)
    if limit is not None and num_tokens > limit:
        raise ConfigError(
            f"{num_tokens:,} tokens, but {type(model).__name__} has learned {limit:,} positions; "
            "give a shorter text or rows of fewer tokens"
        )


def _members_of_lists(body: nn.Module, model: PreTrainedModel) -> tuple[type, ...]:
    """Return the types of the members of module lists that are as long as the model is deep."""
    depth = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [m for m in body.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    return tuple({type(member) for members in lists[:1] for member in members})


def output_projection(attention: nn.Module) -> nn.Module | None:
    """Return the W_o of an attention module; None if it has no usual name."""
    for name in OUTPUT_PROJECTIONS:
        try:
            found = attention.get_submodule(name)
        except AttributeError:
            continue
        if hasattr(found, "weight"):
            return found
    return None


def first_tensor(output: Any) -> Tensor:
    """Return the hidden states in a layer's output, which may be a tuple."""
    tensor = output if isinstance(output, Tensor) else output[0]
    assert isinstance(tensor, Tensor)
    return tensor


def with_first(output: Any, tensor: Tensor) -> Any:
    """Replace the hidden states in a layer's output."""
    return tensor if isinstance(output, Tensor) else type(output)((tensor, *output[1:]))


def attention_matrix(output: Any, num_tokens: int) -> Tensor | None:
    """Find the softmax weights (R,N,t,t) in an eager attention module's output."""
    if not isinstance(output, (tuple, list)):
        return None
    for part in output:
        if not isinstance(part, Tensor) or part.dim() != 4 or not part.is_floating_point():
            continue
        if part.shape[-2:] != (num_tokens, num_tokens) or bool((part < 0).any()):
            continue
        total = part.float().sum(dim=-1)
        if bool((total < 1.01).all()) and bool((part[..., 0, 1:] == 0).all()):
            return part
    return None


def input_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the hidden states among a layer's arguments."""
    return args[0] if args else kwargs["hidden_states"]


def with_input_states(
    args: tuple[Any, ...], kwargs: dict[str, Any], tensor: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace the hidden states among a layer's arguments."""
    return ((tensor, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": tensor})


def relative_difference(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||; infinite when either is not finite."""
    a, b = a.float(), b.float()
    if a.shape != b.shape or not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return float("inf")
    return float((a - b).norm() / b.norm().clamp(min=1e-30))
