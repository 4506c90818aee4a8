"""The naive twin of `nn.mixers.delta`: one sequence, one head, one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from gatelm.nn.block import LayerConfig
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.shapes import Float, Int, Tensor
from gatelm.testing.reference import Params, _at_site, _norm, by_row


def reference_delta(
    cfg: LayerConfig,
    hidden_dim: int,
    params: Params,
    x: Float[Tensor, "B T D"],
    resid: Float[Tensor, "B T D"],
    documents: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T D"]:
    """Compute the mixer's branch; `params` by their names in `nn.block.Block`."""
    return by_row(partial(_row, cfg, hidden_dim, params), documents, x, resid)


def reference_delta_rule(
    q: Float[Tensor, "T Q"],
    k: Float[Tensor, "T Q"],
    v: Float[Tensor, "T W"],
    log_decay: Float[Tensor, " T"],
    beta: Float[Tensor, " T"],
    starts: list[bool],
    state: Float[Tensor, "Q W"],
) -> tuple[Float[Tensor, "T W"], Float[Tensor, "Q W"]]:
    """Compute one head of one row by arXiv 2412.06464, eq. 10."""
    out = []
    for t in range(q.shape[0]):
        if starts[t]:
            state = torch.zeros_like(state)
        erased = torch.eye(k.shape[1], dtype=k.dtype) - beta[t] * torch.outer(k[t], k[t])
        state = torch.exp(log_decay[t]) * erased @ state + beta[t] * torch.outer(k[t], v[t])
        out.append(state.T @ q[t])
    return torch.stack(out), state


def begins(docs: list[int]) -> list[bool]:
    """Mark the tokens that begin a document."""
    return [t == 0 or docs[t] != docs[t - 1] for t in range(len(docs))]


def reference_short_conv(x: Float[Tensor, "T C"], weight: Tensor, docs: list[int]) -> Tensor:
    """Weight each channel's last tokens of the same document."""
    kernel, starts, rows = weight.shape[1], begins(docs), []
    for t in range(x.shape[0]):
        total = torch.zeros_like(x[t])
        for k in range(kernel):
            if t - k < 0:
                break
            total = total + weight[:, kernel - 1 - k] * x[t - k]
            if starts[t - k]:
                break
        rows.append(total)
    return torch.stack(rows)


def projected(
    cfg: LayerConfig, params: Params, x: Tensor, resid: Tensor, key: int, value: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Callable[..., list[Tensor]]]:
    """Return heads of q, k (T, key) and v (T, value) after their sites, and the modifiers."""
    sources: dict[str, object] = {"x": x, "resid": resid}

    def at(site: str, heads: list[Tensor]) -> list[Tensor]:
        return _at_site(cfg, site, heads, params, "attn.gates", sources)

    def heads(name: str, width: int) -> list[Tensor]:
        return at(name, list((x @ params[f"attn.{name}_proj.weight"].T).split(width, dim=-1)))

    q = sources["q"] = heads("q", key)
    return q, heads("k", key), heads("v", value), at


def _row(
    cfg: LayerConfig, hidden_dim: int, params: Params, x: Tensor, resid: Tensor, docs: list[int]
) -> Tensor:
    mixer = cfg.mixer
    assert isinstance(mixer, GatedDeltaConfig)
    key, value = mixer.key_width(hidden_dim), mixer.value_width(hidden_dim)
    q, k, v, at = projected(cfg, params, x, resid, key, value)
    mixed = reference_short_conv(torch.cat((*q, *k, *v), dim=-1), params["attn.conv.weight"], docs)
    mixed = mixed / (1 + torch.exp(-mixed))
    widths = [key] * (2 * mixer.key_heads) + [value] * mixer.num_heads
    heads = list(mixed.split(widths, dim=-1))
    q, k, v = (heads[: len(q)], heads[len(q) : 2 * len(q)], heads[2 * len(q) :])
    q = at("q_rot", [_unit(t) / key**0.5 for t in q])
    k = at("k_rot", [_unit(t) for t in k])
    beta = 1 / (1 + torch.exp(-x @ params["attn.beta_proj.weight"].T))
    step = torch.log(1 + torch.exp(x @ params["attn.decay_proj.weight"].T + params["attn.dt_bias"]))
    log_decay = -torch.exp(params["attn.A_log"]) * step
    outputs = []
    for h in range(mixer.num_heads):
        group = h * mixer.key_heads // mixer.num_heads
        state = torch.zeros(key, value, dtype=x.dtype)
        y, _ = reference_delta_rule(
            q[group], k[group], v[h], log_decay[:, h], beta[:, h], begins(docs), state
        )
        if mixer.out_norm is not None:
            y = _norm(mixer.out_norm, y, params.get("attn.out_norm.weight"))
        outputs.append(y)
    y = torch.cat(at("sdpa", outputs), dim=-1) @ params["attn.o_proj.weight"].T
    return at("out", [y])[0]


def _unit(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)
