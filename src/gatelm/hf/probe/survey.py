"""Find out how a model of transformers can be read, by running it on a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.config import ConfigError
from gatelm.hf.probe.attention import NAME, Seen, implementation, showing
from gatelm.hf.probe.families import HeadShape
from gatelm.hf.probe.structure import (
    attention_matrix,
    body_of,
    input_states,
    output_projection,
    relative_difference,
    with_input_states,
)
from gatelm.nn.shapes import Float, Tensor

NUM_TOKENS = 13
"""Number of tokens in the survey's text, unlike any usual number of heads or channels."""

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Allowed relative difference of a layer's attention between two attention functions that get the
same input. For narrower types `NARROW_TOLERANCE`, which is rounding; a forgotten cap or sink is
more."""
NARROW_TOLERANCE = 0.05

Logits = Callable[[Float[Tensor, "1 n D"]], Float[Tensor, "1 n V"]]


@dataclass
class LayerFacts:
    """Facts about one layer.

    attention: the module that computes softmax attention, None without one. shape: its heads; all
    but `num_heads` is a guess where its calls are not seen. unread: why its attention cannot be
    read.
    """

    block: nn.Module
    attention: nn.Module | None = None
    shape: HeadShape | None = None
    unread: str | None = None


@dataclass
class Survey:
    """Result of a survey: the attention `implementation` to use, and facts about the layers."""

    implementation: str
    layers: list[LayerFacts]
    logits: Logits


@dataclass
class _Run:
    """Observations of a short run, by layer in the order of execution.

    inputs: hidden states that enter a block. outputs: first tensor of every module in it.
    """

    hidden: Tensor = field(default_factory=lambda: torch.empty(0))
    blocks: list[nn.Module] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    calls: list[list[Seen]] = field(default_factory=list)
    matrices: list[list[tuple[nn.Module, Tensor]]] = field(default_factory=list)
    outputs: list[dict[nn.Module, Tensor]] = field(default_factory=list)


def survey(model: PreTrainedModel, blocks: list[nn.Module]) -> Survey:
    """Run a few tokens under the showing attention function and under the library's eager one.

    Raises:
        ConfigError: when the model cannot be run at all.
    """
    try:
        eager = _run(model, blocks, "eager")
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{type(model).__name__} cannot be run on {NUM_TOKENS} tokens "
            f"({type(error).__name__}: {reason:.200})"
        ) from error
    logits = head_of(model, eager.hidden)
    try:
        shown = _run(model, blocks, NAME, inputs=eager.inputs)
    except Exception:  # a family that does not know attention functions fails in its own ways
        shown = None
    if shown is not None and _agree(shown, eager):
        return Survey(NAME, [_layer_of_calls(shown, i, model) for i in _range(shown)], logits)
    return Survey("eager", [_layer_of_matrices(eager, i, model) for i in _range(eager)], logits)


def _range(run: _Run) -> range:
    return range(len(run.blocks))


def _run(
    model: PreTrainedModel,
    blocks: list[nn.Module],
    name: str,
    *,
    inputs: list[Tensor] | None = None,
) -> _Run:
    """`inputs` replace what enters each block: rounding then does not add up over the depth, and a
    mixture of experts cannot choose differently before the layer that is compared."""
    run = _Run()

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        layer = len(run.blocks)
        run.blocks.append(module)
        run.calls.append([])
        run.matrices.append([])
        run.outputs.append({})
        run.inputs.append(input_states(args, kwargs))
        return None if inputs is None else with_input_states(args, kwargs, inputs[layer])

    def output_of(module: nn.Module, args: Any, output: Any) -> None:
        if not run.blocks:
            return
        tensor = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(tensor, Tensor):
            run.outputs[-1][module] = tensor
        matrix = attention_matrix(output, NUM_TOKENS)
        if matrix is not None and not any(matrix is seen for _, seen in run.matrices[-1]):
            run.matrices[-1].append((module, matrix))

    def shown(seen: Seen) -> None:
        if run.calls:
            run.calls[-1].append(seen)

    with ExitStack() as stack:
        stack.enter_context(evaluation(model))
        stack.enter_context(implementation(model, name))
        for block in blocks:
            hook = block.register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(hook.remove)
            for module in block.modules():
                stack.callback(module.register_forward_hook(output_of).remove)
        stack.enter_context(showing(shown, lambda seen, output: None))
        run.hidden = body_of(model)(input_ids=_tokens(model), use_cache=False)[0]
    return run


def _tokens(model: PreTrainedModel) -> Tensor:
    """Choose different ordinary tokens without padding, which some embeddings treat specially."""
    config = model.config.get_text_config()
    count = int(config.vocab_size)
    ids = [(7 + 31 * i) % count for i in range(2 * NUM_TOKENS)]
    ids = [i for i in ids if i != getattr(config, "pad_token_id", None)][:NUM_TOKENS]
    return torch.tensor([ids], device=next(model.parameters()).device)


def _agree(shown: _Run, eager: _Run) -> bool:
    """Whether every softmax layer was seen, and agrees with the eager function."""
    if len(shown.blocks) != len(eager.blocks) or not any(shown.calls):
        return False
    for layer, calls in enumerate(shown.calls):
        if eager.matrices[layer] and not calls:
            return False
        if any(seen.unknown for seen in calls):  # e.g. indices of the keys that may be seen
            return False
        for module in {seen.module for seen in calls}:
            ours, theirs = shown.outputs[layer].get(module), eager.outputs[layer].get(module)
            if ours is None or theirs is None:
                return False
            tolerance = TOLERANCE.get(ours.dtype, NARROW_TOLERANCE)
            if not relative_difference(ours, theirs) < tolerance:
                return False
    return True


def _layer_of_calls(run: _Run, index: int, model: PreTrainedModel) -> LayerFacts:
    calls = run.calls[index]
    facts = LayerFacts(run.blocks[index])
    if not calls:
        facts.unread = _no_softmax(model, index)
        return facts
    seen = calls[0]
    facts.attention = seen.module
    facts.shape = HeadShape(seen.q.shape[1], seen.k.shape[1], seen.q.shape[-1], seen.v.shape[-1])
    facts.unread = reason_unreadable(seen)
    if len(calls) > 1:
        facts.unread = f"it calls softmax attention {len(calls)} times"
    return facts


def _layer_of_matrices(run: _Run, index: int, model: PreTrainedModel) -> LayerFacts:
    matrices = run.matrices[index]
    facts = LayerFacts(run.blocks[index])
    if len(matrices) == 1:
        facts.attention, matrix = matrices[0]
        facts.shape = _shape_from_config(model, facts.attention, matrix.shape[1])
    elif matrices:
        facts.unread = f"it computes {len(matrices)} attention matrices"
    else:
        facts.unread = _no_softmax(model, index)
    return facts


def _shape_from_config(model: PreTrainedModel, attention: nn.Module, num_heads: int) -> HeadShape:
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or int(config.hidden_size) // num_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    projection = output_projection(attention)
    weight = None if projection is None else projection.weight
    if isinstance(projection, nn.Linear) and isinstance(weight, Tensor):
        return HeadShape(num_heads, kv_heads, width, weight.shape[1] // num_heads)
    return HeadShape(num_heads, kv_heads, width, width)


def _no_softmax(model: PreTrainedModel, index: int) -> str:
    kinds = getattr(model.config.get_text_config(), "layer_types", None)
    kind = kinds[index] if kinds and index < len(kinds) else None
    if kind and "attention" not in kind.removeprefix("linear_attention"):
        return f"its kind is {kind}, which has no softmax attention"
    return "no softmax attention was seen in it"


def reason_unreadable(seen: Seen) -> str | None:
    """Say why a call cannot be described by q, k, a window, a cap and sinks; None if it can."""
    if seen.has_bias:
        return "a bias is added to its scores"
    if seen.mask is None and not seen.causal:
        return "its attention is not causal"
    if seen.q.shape[2] != seen.k.shape[2]:
        return "it attends to keys of another sequence"
    return None


def head_of(model: PreTrainedModel, hidden: Tensor) -> Logits:
    """Return a function from final states to logits that agrees with the model's forward."""
    tokens = _tokens(model)
    with evaluation(model), implementation(model, "eager"):
        expected = model(input_ids=tokens, use_cache=False).logits
    tolerance = 0.1 * TOLERANCE.get(expected.dtype, NARROW_TOLERANCE)

    def through_forward(states: Tensor) -> Tensor:
        given = torch.zeros(states.shape[:2], dtype=torch.int64, device=states.device)
        with _replaced(body_of(model), states):
            return model(input_ids=given, use_cache=False).logits

    def through_head(states: Tensor) -> Tensor:
        head = model.get_output_embeddings()
        assert head is not None
        return head(states)

    def unknown(states: Tensor) -> Tensor:
        raise ConfigError(f"{type(model).__name__}: its logits could not be computed by layers")

    for attempt in (through_forward, through_head):
        try:
            with evaluation(model):
                found = attempt(hidden)
        except Exception:  # whatever this family's forward does with a stand-in
            continue
        if isinstance(found, Tensor) and relative_difference(found, expected) < tolerance:
            return attempt
    return unknown


@contextmanager
def _replaced(body: nn.Module, states: Tensor) -> Iterator[None]:
    """Let a model's body return these final states, whatever it is given."""
    own = vars(body).get("forward")  # a wrapper that stands in front of the class's, if any
    body.forward = lambda *args, **kwargs: _Given(states)
    try:
        yield
    finally:
        if own is None:
            del body.forward
        else:
            body.forward = own


class _Given:
    """Stand-in for the output of a model's body."""

    def __init__(self, states: Tensor):
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> Tensor:
        assert index == 0
        return self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return
