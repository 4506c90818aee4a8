"""Cross-entropy summed over targets, without holding all logits at once.

`gatelm.analysis.loss` has the loss of single targets for evaluation. Training has another: the sum
alone, whose gradients are taken block by block in the forward pass, under autocast.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from gatelm.data.batch import IGNORE, Batch
from gatelm.nn.ffn.routing import Routing

LOGIT_BYTES = 16 * 2**20
"""Largest bytes of fp32 logits in memory; at least `MIN_ROWS` rows are."""
MIN_ROWS = 64


@runtime_checkable
class LanguageModel(Protocol):
    """The model interface that the loss needs: `gatelm.nn.model.Decoder`, or a stand-in."""

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        documents: Int[Tensor, "B T"] | None = None,
        routing: Routing | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the final states, which the head multiplies."""
        ...

    @property
    def head_weight(self) -> Float[Tensor, "V D"]:
        """The head's matrix."""
        ...


def sum_loss(
    model: LanguageModel,
    batch: Batch,
    *,
    rows_at_once: int | None = None,
    routing: Routing | None = None,
) -> Float[Tensor, ""]:
    """Sum the negative log-likelihood in nats over the batch's targets; a fp32 scalar.

    The caller divides by the number of targets of the whole step, over all microbatches and
    processes: the mean of microbatch means is another quantity where they hold unequal numbers.

    Args:
        rows_at_once: tokens whose logits exist at one time [default: what fits `LOGIT_BYTES`].
        routing: filled with what the routers do; only for a model that has experts.
    """
    hidden = hidden_states(model, batch, routing).flatten(0, 1)
    weight, targets = model.head_weight, batch.targets.flatten()
    rows = rows_at_once or max(MIN_ROWS, LOGIT_BYTES // (4 * weight.shape[0]))
    if torch.is_grad_enabled():
        return _LinearCrossEntropy.apply(hidden, weight, targets, rows)  # pyright: ignore[reportReturnType]
    parts = zip(hidden.split(rows), targets.split(rows), strict=True)
    return torch.stack([linear_cross_entropy(h, weight, t) for h, t in parts]).sum()


def hidden_states(
    model: LanguageModel, batch: Batch, routing: Routing | None = None
) -> Float[Tensor, "B T D"]:
    """Return the model's final states of a batch, and fill `routing`; see `sum_loss`."""
    asked: dict[str, Any] = dict(batch.second)
    if routing is not None:
        asked["routing"] = routing
    return model.hidden(batch.tokens, documents=batch.documents, **asked)


def linear_cross_entropy(
    hidden: Float[Tensor, "R D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " R"]
) -> Float[Tensor, ""]:
    """Sum the loss of states under a head, with all logits in memory: the naive twin."""
    logits = F.linear(hidden, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORE)


class _LinearCrossEntropy(torch.autograd.Function):
    """`linear_cross_entropy` in chunks of rows, whose gradients are taken in the forward pass.

    A chunk's logits become its probabilities and then its gradient in place, so that no more than
    one chunk exists, and nothing is computed twice.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
        device = hidden.device.type
        in_autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if in_autocast else hidden.dtype
        head = weight.to(dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.promote_types(dtype, torch.float32))
        total = torch.zeros((), dtype=grad_weight.dtype, device=hidden.device)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(targets), rows):
                part = slice(start, start + rows)
                states = hidden[part].to(dtype)
                loss, grad = _chunk(states, head, targets[part], grad_weight.dtype)
                total += loss
                grad_hidden[part] = grad @ head
                grad_weight += grad.T @ states
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grads[0], grad_weight * grads[0], None, None


def _chunk(
    states: Float[Tensor, "R D"],
    head: Float[Tensor, "V D"],
    targets: Int[Tensor, " R"],
    wide: torch.dtype,
) -> tuple[Float[Tensor, ""], Float[Tensor, "R V"]]:
    """Return the summed loss of a chunk, and the logits' gradient in the head's dtype."""
    logits = (states @ head.T).to(wide)
    valid = targets != IGNORE
    index = torch.where(valid, targets, 0)[:, None]
    lse = logits.logsumexp(dim=1, keepdim=True)
    loss = ((lse - logits.gather(1, index))[:, 0] * valid).sum()
    grad = logits.sub_(lse).exp_()
    grad.scatter_add_(1, index, grad.new_full(index.shape, -1.0))
    return loss, grad.mul_(valid[:, None]).to(head.dtype)
