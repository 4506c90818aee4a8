"""The naive twins of `nn.mixers.linear`, `mamba2` and their scan: one token and head at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from gatelm.nn.block import LayerConfig
from gatelm.nn.mixers.linear import EPS, LinearAttentionConfig
from gatelm.nn.mixers.mamba2 import Mamba2Config
from gatelm.nn.shapes import Float, Int, Tensor
from gatelm.testing.delta import begins, projected, reference_short_conv
from gatelm.testing.reference import Params, _norm, _rope, by_row

NAIVE_FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu1": lambda x: torch.where(x > 0, x + 1, torch.exp(x)),
    "relu": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "softmax": lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True),
    "identity": lambda x: x,
}


def reference_scan(
    q: Float[Tensor, "T Q"],
    k: Float[Tensor, "T Q"],
    v: Float[Tensor, "T W"],
    log_decay: Float[Tensor, " T"],
    starts: list[bool],
    state: Float[Tensor, "Q W"],
) -> tuple[Float[Tensor, "T W"], Float[Tensor, "Q W"]]:
    """Compute one head of one row: decay, add, read."""
    out = []
    for t in range(q.shape[0]):
        if starts[t]:
            state = torch.zeros_like(state)
        state = torch.exp(log_decay[t]) * state + torch.outer(k[t], v[t])
        out.append(state.T @ q[t])
    return torch.stack(out), state


def reference_mixer(
    cfg: LayerConfig,
    hidden_dim: int,
    params: Params,
    x: Float[Tensor, "B T D"],
    resid: Float[Tensor, "B T D"],
    documents: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T D"]:
    """Compute the branch of a `linear` or `mamba2` mixer; `params` by names in `nn.block.Block`."""
    row = {"linear": _linear_row, "mamba2": _mamba2_row}[cfg.mixer.kind]
    return by_row(partial(row, cfg, hidden_dim, params), documents, x, resid)


def _linear_row(
    cfg: LayerConfig, hidden_dim: int, params: Params, x: Tensor, resid: Tensor, docs: list[int]
) -> Tensor:
    mixer = cfg.mixer
    assert isinstance(mixer, LinearAttentionConfig)
    width, group = mixer.width(hidden_dim), mixer.num_heads // mixer.kv_heads
    q, k, v, at = projected(cfg, params, x, resid, width, width)
    phi = NAIVE_FEATURE_MAPS[mixer.feature_map]
    outputs = []
    for h in range(mixer.num_heads):
        plain_q, plain_k = phi(q[h]), phi(k[h // group])
        turned_q, turned_k = plain_q, plain_k
        if mixer.rope is not None:
            turned_q, turned_k = (
                _rope(mixer.rope, plain_q, docs),
                _rope(mixer.rope, plain_k, docs),
            )
        rows = []
        for i in range(x.shape[0]):
            seen = [j for j in range(i + 1) if docs[j] == docs[i]]
            total = sum((turned_q[i] @ turned_k[j]) * v[h // group][j] for j in seen)
            assert isinstance(total, Tensor)
            if mixer.normaliser == "sum":
                total = total / (sum(plain_q[i] @ plain_k[j] for j in seen) + EPS)
            else:
                total = total / width**0.5
            rows.append(total)
        y = torch.stack(rows)
        if mixer.out_norm is not None:
            y = _norm(mixer.out_norm, y, params.get("attn.out_norm.weight"))
        outputs.append(y)
    y = torch.cat(at("sdpa", outputs), dim=-1) @ params["attn.o_proj.weight"].T
    return at("out", [y])[0]


def _mamba2_row(
    cfg: LayerConfig, hidden_dim: int, params: Params, x: Tensor, resid: Tensor, docs: list[int]
) -> Tensor:
    mixer = cfg.mixer
    assert isinstance(mixer, Mamba2Config)
    width, state_dim, groups = mixer.width(hidden_dim), mixer.state_dim, mixer.num_groups
    c, b, v, at = projected(cfg, params, x, resid, state_dim, width)
    mixed = reference_short_conv(torch.cat((*v, *b, *c), dim=-1), params["attn.conv.weight"], docs)
    if "attn.conv.bias" in params:
        mixed = mixed + params["attn.conv.bias"]
    mixed = mixed / (1 + torch.exp(-mixed))
    heads = list(mixed.split([width] * len(v) + [state_dim] * (2 * groups), dim=-1))
    v, b, c = heads[: len(v)], heads[len(v) : len(v) + groups], heads[len(v) + groups :]
    step = torch.log(1 + torch.exp(x @ params["attn.step_proj.weight"].T + params["attn.dt_bias"]))
    outputs = []
    for h in range(mixer.num_heads):
        g = h * groups // mixer.num_heads
        decay = -torch.exp(params["attn.A_log"][h]) * step[:, h]
        empty = torch.zeros(state_dim, width, dtype=x.dtype)
        y, _ = reference_scan(c[g], b[g], v[h] * step[:, h, None], decay, begins(docs), empty)
        outputs.append(y + params["attn.skip"][h] * v[h])
    y = torch.cat(at("sdpa", outputs), dim=-1)
    if mixer.out_norm is not None:
        plain = mixer.out_norm.replace(weight="none")
        y = torch.cat([_norm(plain, part, None) for part in y.chunk(groups, dim=-1)], dim=-1)
        weight = params.get("attn.out_norm.weight")
        if weight is not None:
            y = y * (1 + weight if mixer.out_norm.weight == "zero_centred" else weight)
    return at("out", [y @ params["attn.o_proj.weight"].T])[0]
