"""Metrics of attention weights and logits, and of the first token's keys and values."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gatelm.analysis.metrics.metric import (
    COUNTED,
    Metric,
    largest_known,
    mean,
    of_subject,
)
from gatelm.analysis.metrics.metric import mean_over_heads as _mean
from gatelm.analysis.statistics.attention import AttentionTotals
from gatelm.analysis.statistics.totals import HEADLINE_THRESHOLD, Totals


def uniform_share(totals: Totals, mark: str = "") -> float:
    """Mean over layers of the first-token share under uniform attention; windows change it."""
    return mean(layer.uniform_share(mark) for layer in totals.attention.values())


def _layers(totals: Totals) -> Collection[AttentionTotals]:
    return totals.attention.values()


def _of(name: str) -> Callable[[Totals], float]:
    """Return the reader of one of the means that `AttentionTotals` keeps by head."""
    return lambda totals: _mean(layer.mean(name) for layer in _layers(totals))


ATTENTION = of_subject(
    "attention",
    Metric(
        "first_token_share",
        "First-token share",
        "A_i1, the attention weight of query i on the first token of its document, averaged over "
        "all queries i >= 2, then over heads and layers (F-Attn of arXiv 2505.06708, which does "
        "not state its query range). Queries whose window does not reach the first token are left "
        "out. Read it beside the uniform value. " + COUNTED,
        read=lambda totals, mark="": _mean(layer.share(mark) for layer in _layers(totals)),
        by_mark=True,
        in_health=True,
        forced=True,
    ),
    Metric(
        "first_token_share_uniform",
        "First-token share, uniform attention",
        "The first-token share if each counted query spread its weight evenly over the keys it "
        "sees: (H_T - 1)/(T - 1) for one document of T tokens, H_T the harmonic number.",
        read=uniform_share,
        by_mark=True,
        in_health=True,
    ),
    Metric(
        "sink_rate",
        "Sink rate",
        "Share of (document, layer, head) in which alpha_1 > 0.3, alpha_k being the mean of A_ik "
        "over the queries i >= k that see key k, query 1 included; the indicator is taken before "
        "the mean (arXiv 2410.10781). It falls as T grows. Documents under 16 tokens are left out.",
        read=lambda totals: _mean(
            layer.sink_rate(HEADLINE_THRESHOLD)[0] for layer in _layers(totals)
        ),
        in_health=True,
        forced=True,
    ),
    Metric(
        "sink_rate_any",
        "Sink rate, any key",
        "As the sink rate, for the largest alpha_k over the keys of the document that at least 16 "
        "queries see: a sink need not be at the first token.",
        read=lambda totals: _mean(
            layer.sink_rate_any(HEADLINE_THRESHOLD) for layer in _layers(totals)
        ),
    ),
    Metric(
        "attention_entropy",
        "Attention entropy",
        "-sum_j A_ij ln A_ij, averaged over queries, heads and layers (arXiv 2303.06296). "
        + COUNTED,
        None,
        "nats",
        read=_of("entropy"),
        in_health=True,
    ),
    Metric(
        "attention_entropy_normalized",
        "Normalised attention entropy",
        "Entropy of query i divided by ln(number of keys it sees), its largest value; averaged as "
        "the entropy.",
        read=_of("normalized_entropy"),
    ),
    Metric(
        "attention_entropy_without_first",
        "Attention entropy without the first token",
        "Entropy of the weights on all keys but the first, renormalised; averaged as the entropy. "
        "Unlike the entropy it does not fall because a sink grows.",
        None,
        "nats",
        read=_of("entropy_without_first"),
    ),
    Metric(
        "max_attention",
        "Largest attention weight",
        "max_j A_ij, averaged over queries, heads and layers. " + COUNTED,
        read=_of("max_weight"),
    ),
    Metric(
        "max_logit",
        "Largest attention logit",
        "max over layers, heads, queries and visible keys of scale * q_i.k_j, after norm, RoPE and "
        "gates, in float32 (arXiv 2309.14322).",
        "lower",
        read=lambda totals: largest_known(float(a.max_logit.max()) for a in _layers(totals)),
        in_health=True,
    ),
)

NORMS = of_subject(
    "attention",
    Metric(
        "value_norm_ratio",
        "First token's value norm ratio",
        "|v_1| / mean |v_t| over t >= 2 for each key/value head, the means over documents taken "
        "first, then the mean over heads and layers (arXiv 2410.10781). Near 0: the first token is "
        "a place to attend to without effect.",
        read=lambda totals: _mean(ratio.ratio() for ratio in totals.values.values()),
        in_health=True,
    ),
    Metric(
        "key_norm_ratio",
        "First token's key norm ratio",
        "As the value norm ratio, of the keys after norm, RoPE and gates.",
        read=lambda totals: _mean(ratio.ratio() for ratio in totals.keys.values()),
    ),
)
