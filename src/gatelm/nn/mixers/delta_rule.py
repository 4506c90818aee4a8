"""The gated delta rule (arXiv 2412.06464, eq. 10), chunk by chunk in torch or by kernels.

    S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T,    y_t = S_t^T q_t

Within a chunk the tokens' writes depend on one another, which is a triangular system (arXiv
2406.06484, eq. 10 and 11); between chunks only the state is handed on.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache

import torch

from gatelm.nn.mixers.chunks import decays, from_chunks, full_precision, to_chunks
from gatelm.nn.precision import to_float32
from gatelm.nn.shapes import Bool, Float, Tensor

CHUNK_TOKENS = 64


def delta_rule(
    q: Float[Tensor, "B T K Q"],
    k: Float[Tensor, "B T K Q"],
    v: Float[Tensor, "B T N W"],
    log_decay: Float[Tensor, "B T N"],
    beta: Float[Tensor, "B T N"],
    starts: Bool[Tensor, "B T"] | None,
    state: Float[Tensor, "B N Q W"] | None,
) -> tuple[Float[Tensor, "B T N W"], Float[Tensor, "B N Q W"]]:
    """Compute y in v's dtype, and the state after the last token in float32.

    q, k: each of K heads serves N/K heads of v in a row. log_decay: log alpha, at most 0. starts:
    tokens that begin a document, where the state is forgotten. state: of the call before.
    """
    length, dtype = q.shape[1], v.dtype
    chunk = min(CHUNK_TOKENS, length)
    with full_precision(q):
        repeats = v.shape[2] // q.shape[2]
        q, k = (t.repeat_interleave(repeats, dim=2) if repeats > 1 else t for t in (q, k))
        q, k, v, log_decay, beta = (
            to_chunks(to_float32(t), chunk) for t in (q, k, v, log_decay, beta)
        )
        between, since = decays(log_decay, starts)
        k_beta = k * beta[..., None]
        # the diagonal is taken as ones, what is above it as zeros
        system = (k_beta @ k.mT) * between
        known = torch.cat((v * beta[..., None], k_beta * since[..., None]), dim=-1)
        solved = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
        written, seen = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
        attended = (q @ k.mT) * between
        q, k = q * since[..., None], k * between[..., -1, :, None]
        if state is None:
            carried = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
        else:
            carried = state.to(q.dtype)
        y: list[Tensor] = []
        for c in range(q.shape[2]):
            new = written[:, :, c] - seen[:, :, c] @ carried
            y.append(q[:, :, c] @ carried + attended[:, :, c] @ new)
            carried = carried * since[:, :, c, -1, None, None] + k[:, :, c].mT @ new
        return from_chunks(torch.stack(y, dim=2), length).to(dtype), carried


def fla_delta_rule(
    q: Float[Tensor, "B T K Q"],
    k: Float[Tensor, "B T K Q"],
    v: Float[Tensor, "B T N W"],
    log_decay: Float[Tensor, "B T N"],
    beta: Float[Tensor, "B T N"],
    starts: Bool[Tensor, "B T"] | None,
    state: Float[Tensor, "B N Q W"] | None,
) -> tuple[Float[Tensor, "B T N W"], Float[Tensor, "B N Q W"]]:
    """Compute `delta_rule` by the kernels of flash-linear-attention, on CUDA.

    Documents become sequences of one long row, as those kernels want them.
    """
    rule = fla_kernel()
    batch, length = q.shape[:2]
    repeats = v.shape[2] // q.shape[2]
    q, k = (t.repeat_interleave(repeats, dim=2) if repeats > 1 else t for t in (q, k))
    options = {"scale": 1.0, "output_final_state": True, "use_qk_l2norm_in_kernel": False}
    log_decay = log_decay.float()
    if starts is None:
        return rule(q, k, v, log_decay, beta, initial_state=state, **options)
    begins = starts.clone()
    begins[:, 0] = True
    bounds = begins.flatten().nonzero().flatten()
    bounds = torch.cat((bounds, bounds.new_tensor([batch * length])))
    first = begins.flatten().cumsum(0).view(batch, length)[:, 0] - 1
    initial = q.new_zeros(len(bounds) - 1, v.shape[2], q.shape[3], v.shape[3], dtype=torch.float32)
    if state is not None:
        initial[first] = state.float() * ~starts[:, 0, None, None, None]
    flat = (t.flatten(0, 1)[None] for t in (q, k, v, log_decay, beta))
    y, states = rule(*flat, initial_state=initial, cu_seqlens=bounds, **options)
    last = torch.cat((first[1:], first.new_tensor([len(bounds) - 1]))) - 1
    return y.unflatten(1, (batch, length))[0], states[last]


Rule = Callable[..., tuple[Tensor, Tensor]]


def rule_for(kernel: str, v: Tensor) -> Rule:
    """Choose the function of `mixer.kernel` for such values; the kernels take 16 bits only."""
    fits = v.is_cuda and v.dtype in (torch.bfloat16, torch.float16)
    return fla_delta_rule if kernel == "auto" and fits and fla_installed() else delta_rule


@cache
def fla_installed() -> bool:
    """Whether flash-linear-attention is installed (the `gpu` extra)."""
    return importlib.util.find_spec("fla") is not None


@cache
def fla_kernel() -> Rule:
    """Return flash-linear-attention's chunked kernel for sequences of different lengths."""
    return importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
