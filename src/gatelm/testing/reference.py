"""The naive twin of `nn`: one layer, one sequence, one head at a time, with plain formulas.

Slow on purpose and written from the definitions, so that tests can compare forward and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from gatelm.nn.block import LayerConfig
from gatelm.nn.gates.gate import ACTIVATIONS, GateConfig, SiteActivationConfig, SiteNormConfig
from gatelm.nn.norm import NormConfig
from gatelm.nn.positions.rope import RopeConfig
from gatelm.nn.shapes import Float, Int, Tensor
from gatelm.testing.patterns import added, visible
from gatelm.testing.rope import reference_frequency

Params = Mapping[str, Tensor]

REFERENCE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda z: 1 / (1 + torch.exp(-z)),
    "tanh01": lambda z: 1 / (1 + torch.exp(-2 * z)),
    "relu": lambda z: torch.where(z > 0, z, torch.zeros_like(z)),
    "silu": lambda z: z / (1 + torch.exp(-z)),
    "softplus": lambda z: torch.log(1 + torch.exp(z)),
    "hard_sigmoid": lambda z: torch.clamp(z / 6 + 0.5, 0, 1),
    "nonsparse_sigmoid": lambda z: 0.5 + 0.5 / (1 + torch.exp(-z)),
    "two_sigmoid": lambda z: 2 / (1 + torch.exp(-z)),
    "identity": lambda z: z,
}


def reference_layer(
    cfg: LayerConfig,
    hidden_dim: int,
    params: Params,
    resid: Float[Tensor, "B T D"],
    documents: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T D"]:
    """Compute one decoder layer in evaluation mode; `params` by names in `nn.block.Block`."""
    return by_row(partial(_layer_row, cfg, hidden_dim, params), documents, resid)


def by_row(
    row: Callable[..., Tensor],
    documents: Int[Tensor, "B T"] | None,
    *inputs: Float[Tensor, "B T D"],
) -> Tensor:
    """Apply `row(*inputs of one row, its document ids)` to every row."""
    length = inputs[0].shape[1]
    ids = [[0] * length] * len(inputs[0]) if documents is None else documents.tolist()
    return torch.stack([row(*of_row, docs) for *of_row, docs in zip(*inputs, ids, strict=True)])


def _layer_row(cfg: LayerConfig, hidden_dim: int, params: Params, resid: Tensor, docs: list[int]):
    x = _norm(cfg.norm, resid, params.get("attn_norm.weight"))
    branch = _attention_row(cfg, hidden_dim, params, x, resid, docs)
    if cfg.norm_placement == "sandwich":
        branch = _norm(cfg.norm, branch, params.get("attn_post_norm.weight"))
    resid = resid + branch
    x = _norm(cfg.norm, resid, params.get("ffn_norm.weight"))
    up = x @ params["ffn.up_proj.weight"].T
    act = {
        "relu": REFERENCE_ACTIVATIONS["relu"],
        "silu": REFERENCE_ACTIVATIONS["silu"],
        "gelu": lambda z: 0.5 * z * (1 + torch.erf(z / 2**0.5)),
        "relu2": lambda z: REFERENCE_ACTIVATIONS["relu"](z) ** 2,
    }[cfg.dense_ffn.activation]
    gated = cfg.ffn.kind == "swiglu"
    inner = act(x @ params["ffn.gate_proj.weight"].T) * up if gated else act(up)
    branch = inner @ params["ffn.down_proj.weight"].T
    sources = {"x": x, "resid": resid}
    branch = _at_site(cfg, "ffn", [branch], params, "gates", sources)[0]
    if cfg.norm_placement == "sandwich":
        branch = _norm(cfg.norm, branch, params.get("ffn_post_norm.weight"))
    return resid + branch


def _attention_row(
    cfg: LayerConfig, hidden_dim: int, params: Params, x: Tensor, resid: Tensor, docs: list[int]
) -> Tensor:
    mixer = cfg.attention
    width, group = mixer.width(hidden_dim), mixer.num_heads // mixer.kv_heads

    def heads(name: str, count: int) -> list[Tensor]:
        y = x @ params[f"attn.qkv.{name}.weight"].T
        if mixer.bias != "none":
            y = y + params[f"attn.qkv.{name}.bias"]
        return [y[:, h * width : (h + 1) * width] for h in range(count)]

    sources: dict[str, object] = {"x": x, "resid": resid}
    q, k, v = heads("q", mixer.num_heads), heads("k", mixer.kv_heads), heads("v", mixer.kv_heads)
    q = _at_site(cfg, "q", q, params, "attn.gates", sources)
    sources["q"] = q
    k = _at_site(cfg, "k", k, params, "attn.gates", sources)
    v = _at_site(cfg, "v", v, params, "attn.gates", sources)
    if mixer.qk_norm is not None:
        q = [_norm(mixer.qk_norm, t, params.get("attn.q_norm.weight")) for t in q]
        k = [_norm(mixer.qk_norm, t, params.get("attn.k_norm.weight")) for t in k]
    if mixer.rope is not None:
        q, k = [_rope(mixer.rope, t, docs) for t in q], [_rope(mixer.rope, t, docs) for t in k]
    q = _at_site(cfg, "q_rot", q, params, "attn.gates", sources)
    sources["q_rot"] = q
    k = _at_site(cfg, "k_rot", k, params, "attn.gates", sources)
    scale = width**-0.5 if mixer.scale is None else mixer.scale
    outputs, lses = [], []
    for h in range(mixer.num_heads):
        rows, lse = [], []
        for i in range(x.shape[0]):
            keys = [j for j in range(x.shape[0]) if visible(i, j, docs, mixer.pattern)]
            bias = torch.tensor([added(i, j, h, mixer.pattern) for j in keys], dtype=x.dtype)
            exponentials = torch.exp(scale * (k[h // group][keys] @ q[h][i]) + bias)
            total = exponentials.sum()
            rows.append((exponentials / total) @ v[h // group][keys])
            lse.append(torch.log(total))
        outputs.append(torch.stack(rows))
        lses.append(torch.stack(lse))
    sources["lse"] = lses
    outputs = _at_site(cfg, "sdpa", outputs, params, "attn.gates", sources)
    y = torch.cat(outputs, dim=-1) @ params["attn.o_proj.weight"].T
    if mixer.bias == "all":
        y = y + params["attn.o_proj.bias"]
    return _at_site(cfg, "out", [y], params, "attn.gates", sources)[0]


def _norm(cfg: NormConfig, x: Tensor, weight: Tensor | None) -> Tensor:
    if cfg.kind == "layernorm":
        x = x - x.mean(-1, keepdim=True)
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + cfg.eps)
    if weight is None:
        return y
    return y * (1 + weight if cfg.weight == "zero_centred" else weight)


def _rope(rope: RopeConfig, x: Tensor, docs: list[int]) -> Tensor:
    """Turn each pair of channels of x (T,H) by its angle."""
    turning = rope.rotary_dim(x.shape[-1])
    rows = []
    for i in range(x.shape[0]):
        begins = max(j for j in range(i + 1) if j == 0 or docs[j] != docs[j - 1])
        length = sum(1 for j in range(begins, len(docs)) if set(docs[begins : j + 1]) == {docs[i]})
        channels = list(x[i].unbind())
        for pair in range(turning // 2):
            a, b = (
                (pair, pair + turning // 2) if rope.pairs == "halves" else (2 * pair, 2 * pair + 1)
            )
            if rope.scaling is None:
                # the module computes angles in float32
                exponent = torch.tensor(2 * pair, dtype=torch.float32) / turning
                frequency = rope.base**-exponent
            else:
                frequency = reference_frequency(rope, pair, turning, length)
            angle = torch.tensor(float(i - begins)) * frequency
            cos, sin = rope.amplitude * torch.cos(angle), rope.amplitude * torch.sin(angle)
            channels[a], channels[b] = (
                x[i, a] * cos - x[i, b] * sin,
                x[i, b] * cos + x[i, a] * sin,
            )
        rows.append(torch.stack(channels))
    return torch.stack(rows)


def _at_site(
    cfg: LayerConfig,
    site: str,
    heads: list[Tensor],
    params: Params,
    prefix: str,
    sources: Mapping[str, object],
) -> list[Tensor]:
    """Apply what sits at `site` to a list of per-head (T, W) tensors."""
    for modifier in cfg.gates:
        if modifier.site != site:
            continue
        if isinstance(modifier, SiteNormConfig):
            weight = params.get(f"{prefix}.{site}.norm.weight")
            return [_norm(modifier.norm, y, weight) for y in heads]
        if isinstance(modifier, SiteActivationConfig):
            return [_activation(modifier.activation)(y) for y in heads]
        own = {
            name.removeprefix(f"{prefix}.{site}."): value
            for name, value in params.items()
            if name.startswith(f"{prefix}.{site}.")
        }
        groups = cfg.site_shape(site, hidden_dim=1).num_groups
        scores = reference_scores(modifier, groups, own, heads, sources)
        if modifier.operation == "add":
            return [y + s for y, s in zip(heads, scores, strict=True)]
        return [y * s for y, s in zip(heads, scores, strict=True)]
    return heads


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    return REFERENCE_ACTIVATIONS.get(name, ACTIVATIONS[name])


def reference_scores(
    gate: GateConfig,
    num_groups: int,
    params: Params,
    heads: list[Tensor],
    sources: Mapping[str, object],
) -> list[Tensor]:
    """Compute scores per head, each (T, W) or (T, 1)."""
    n = len(heads)
    scored = {"per_head": n, "mean": n, "per_kv_group": min(num_groups, n), "shared": 1}
    count = scored[gate.sharing]
    width = heads[0].shape[-1] if gate.granularity == "element" else 1
    each = []
    for index in range(count):
        logits = torch.zeros(heads[0].shape[0], width, dtype=heads[0].dtype)
        for name in gate.inputs:
            logits = logits + _input_logits(gate, name, index, count, width, params, heads, sources)
        if "bias" in params:
            logits = logits + params["bias"][index]
        each.append(_activation(gate.activation)(logits))
    if gate.sharing == "mean":
        average = sum(each[1:], each[0]) / n
        return [average] * n
    scores = [each[h * count // n] for h in range(n)]
    return _keep_largest(gate, scores) if gate.top_k else scores


def _input_logits(
    gate: GateConfig,
    name: str,
    index: int,
    count: int,
    width: int,
    params: Params,
    heads: list[Tensor],
    sources: Mapping[str, object],
) -> Tensor:
    if name == "const":
        return torch.zeros(1, dtype=heads[0].dtype)
    if name == "lse":
        lse = sources["lse"]
        assert isinstance(lse, list)
        return lse[index][:, None]
    prefix = f"proj.{name}."
    if name in ("x", "resid"):
        source = sources[name]
        assert isinstance(source, Tensor)
        vector = source[:, : gate.input_dim] if gate.input_dim else source
        weights = {k.removeprefix(prefix): p for k, p in params.items() if k.startswith(prefix)}
        if "down" in weights:
            vector, matrix = vector @ weights["down"].T, weights["up"]
        else:
            matrix = weights["weight"]
        return vector @ matrix[index * width : (index + 1) * width].T
    listed = heads if name == "y" else sources[name]
    assert isinstance(listed, list)
    share = len(listed) // count
    vector = torch.cat(listed[index * share : (index + 1) * share], dim=-1)
    for key in ("down", "up", "weight"):
        if prefix + key in params:
            matrix = params[prefix + key]
            rows = matrix.shape[0] // count
            vector = vector @ matrix[index * rows : (index + 1) * rows].T
    return vector


def _keep_largest(gate: GateConfig, scores: list[Tensor]) -> list[Tensor]:
    assert gate.top_k is not None
    stacked = torch.stack(scores)  # heads, T, width
    dim = 0 if gate.top_k.over == "heads" else 2
    threshold = stacked.sort(dim=dim, descending=True).values.select(dim, gate.top_k.k - 1)
    return list(torch.where(stacked >= threshold.unsqueeze(dim), stacked, 0.0))
