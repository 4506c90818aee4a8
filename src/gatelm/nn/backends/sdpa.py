"""torch's fused scaled dot-product attention."""

from __future__ import annotations

from torch.nn import functional as F

from gatelm.nn.backends.base import AttentionOutput, Capabilities, Observe
from gatelm.nn.masks import AttentionMask
from gatelm.nn.shapes import Float, Tensor


class SdpaBackend:
    """`F.scaled_dot_product_attention`: no T x T matrix in memory where torch has a kernel."""

    capabilities = Capabilities(lse=False, probs=False, dropout=True)

    def __call__(
        self,
        q: Float[Tensor, "B T N H"],
        k: Float[Tensor, "B S K H"],
        v: Float[Tensor, "B S K H"],
        *,
        mask: AttentionMask,
        window_tokens: int | None,
        scale: float,
        dropout: float,
        observe: Observe,
    ) -> AttentionOutput:
        causal = mask.is_plain_causal(window_tokens)
        plain = causal or mask.sees_everything(window_tokens)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=None if plain else mask.dense(window_tokens),
            dropout_p=dropout,
            is_causal=causal,
            scale=scale,
            enable_gqa=q.shape[2] != k.shape[2],
        )
        return AttentionOutput(y.transpose(1, 2), None)
