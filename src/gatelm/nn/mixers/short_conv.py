"""A causal convolution over a few tokens, channel by channel, within each document."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from gatelm.nn.shapes import Bool, Float, Int, Tensor


def segments(starts: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Number the documents of tokens; 0 is the document of the tokens before this call."""
    return starts.long().cumsum(dim=1)


class ShortConv(nn.Module):
    """Convolution y_t = sum over k of w_k x_(t-k) (+ bias), 0 <= k < kernel_tokens, per channel.

    Tokens of other documents, and those before the first, count as zeros. `weight` (C,K) holds the
    newest token's factor last, as in torch's Conv1d.
    """

    def __init__(self, channels: int, kernel_tokens: int, *, bias: bool = False):
        super().__init__()
        self.channels, self.kernel_tokens = channels, kernel_tokens
        self.weight = nn.Parameter(torch.empty(channels, kernel_tokens))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        starts: Bool[Tensor, "B T"] | None,
        tail: Float[Tensor, "B P C"] | None = None,
    ) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B P C"]]:
        """Return the convolved x and the tail for the next call: the last kernel_tokens - 1 inputs.

        starts: tokens that begin a document; None: none does. tail: of the call before, None at
            the beginning of the text.
        """
        length, past = x.shape[1], self.kernel_tokens - 1
        if tail is None:
            tail = x.new_zeros(x.shape[0], past, x.shape[2])
        inputs = torch.cat((tail, x), dim=1)
        # written out, because torch's own depthwise convolution knows no documents
        weight = self.weight.to(x.dtype)
        y = x * weight[:, past]
        if starts is None:
            for k in range(1, past + 1):
                y = torch.addcmul(y, inputs[:, past - k : past - k + length], weight[:, past - k])
            new_tail = inputs[:, length:]
        else:
            document = segments(starts)
            document = torch.cat((document.new_zeros(x.shape[0], past), document), dim=1)
            for k in range(1, past + 1):
                earlier = slice(past - k, past - k + length)
                same = (document[:, earlier] == document[:, past:])[..., None]
                y = torch.addcmul(y, inputs[:, earlier] * same, weight[:, past - k])
            last = document[:, length:] == document[:, -1:]
            new_tail = inputs[:, length:] * last[..., None]
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
        return y, new_tail

    def on_heads(
        self,
        heads: Sequence[Float[Tensor, "B T _ _"]],
        starts: Bool[Tensor, "B T"] | None,
        tail: Float[Tensor, "B P C"] | None,
    ) -> tuple[list[Tensor], Float[Tensor, "B P C"]]:
        """Apply the convolution and SiLU to heads; all their channels are the C of `forward`."""
        flat, new_tail = self(torch.cat([t.flatten(2) for t in heads], dim=-1), starts, tail)
        parts = F.silu(flat).split([t.shape[2:].numel() for t in heads], dim=-1)
        return [p.unflatten(-1, t.shape[2:]) for p, t in zip(parts, heads, strict=True)], new_tail
