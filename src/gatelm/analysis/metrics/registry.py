"""Every metric by name, with its exact definition: printed wherever the number is."""

from __future__ import annotations

from gatelm.analysis.metrics.longer_metrics import DERIVED, KEPT, LongerName, parse_longer
from gatelm.analysis.metrics.metric import Metric
from gatelm.analysis.metrics.run_metrics import OF_STUDIES, OF_TRAINING
from gatelm.config.base import nearest

COUNTED = (
    "Queries: all but the first of each document (it can only look at itself) and padding. "
    "Documents are those of the batch; a row that starts in the middle of a text counts as one."
)

_ALL = (
    Metric(
        "val_loss",
        "Validation loss",
        "Mean negative log-likelihood of the next token: sum over all held-out targets, divided by "
        "their number. Padding and positions without a target are left out.",
        "lower",
        "nats per token",
    ),
    Metric(
        "val_ppl",
        "Validation perplexity",
        "exp(validation loss), so weighted by tokens, not by windows.",
        "lower",
    ),
    Metric(
        "val_bits_per_byte",
        "Validation bits per byte",
        "Validation loss / ln 2 / (UTF-8 bytes per token of the held-out text): comparable across "
        "tokenizers.",
        "lower",
        "bits per byte",
    ),
    Metric(
        "accuracy",
        "Next-token accuracy",
        "Share of targets to which the model gives its largest logit.",
        "higher",
    ),
    Metric(
        "first_token_share",
        "First-token share",
        "A_i1, the attention weight of query i on the first token of its document, averaged over "
        "all queries i >= 2, then over heads and layers (F-Attn of arXiv 2505.06708, which does "
        "not state its query range). Queries whose window does not reach the first token are left "
        "out. Read it beside the uniform value. " + COUNTED,
        None,
    ),
    Metric(
        "first_token_share_uniform",
        "First-token share, uniform attention",
        "The first-token share if each counted query spread its weight evenly over the keys it "
        "sees: (H_T - 1)/(T - 1) for one document of T tokens, H_T the harmonic number.",
        None,
    ),
    Metric(
        "sink_rate",
        "Sink rate",
        "Share of (document, layer, head) in which alpha_1 > 0.3, alpha_k being the mean of A_ik "
        "over the queries i >= k that see key k, query 1 included; the indicator is taken before "
        "the mean (arXiv 2410.10781). It falls as T grows. Documents under 16 tokens are left out.",
        None,
    ),
    Metric(
        "sink_rate_any",
        "Sink rate, any key",
        "As the sink rate, for the largest alpha_k over the keys of the document that at least 16 "
        "queries see: a sink need not be at the first token.",
        None,
    ),
    Metric(
        "attention_entropy",
        "Attention entropy",
        "-sum_j A_ij ln A_ij, averaged over queries, heads and layers (arXiv 2303.06296). "
        + COUNTED,
        None,
        "nats",
    ),
    Metric(
        "attention_entropy_normalized",
        "Normalised attention entropy",
        "Entropy of query i divided by ln(number of keys it sees), its largest value; averaged as "
        "the entropy.",
        None,
    ),
    Metric(
        "attention_entropy_without_first",
        "Attention entropy without the first token",
        "Entropy of the weights on all keys but the first, renormalised; averaged as the entropy. "
        "Unlike the entropy it does not fall because a sink grows.",
        None,
        "nats",
    ),
    Metric(
        "max_attention",
        "Largest attention weight",
        "max_j A_ij, averaged over queries, heads and layers. " + COUNTED,
        None,
    ),
    Metric(
        "max_logit",
        "Largest attention logit",
        "max over layers, heads, queries and visible keys of scale * q_i.k_j, after norm, RoPE and "
        "gates, in float32 (arXiv 2309.14322).",
        "lower",
    ),
    Metric(
        "max_activation",
        "Largest activation",
        "max |h| over the tokens and channels of a sequence (a row of the batch without padding), "
        "h the output of a layer (residual stream, before the final norm); mean over sequences; "
        "the layer where it is largest.",
        "lower",
    ),
    Metric(
        "massive_activation_mean",
        "Largest activation, mean over layers",
        "As the largest activation, but averaged over layers: M-Act of arXiv 2505.06708 (rounded "
        "there; whether the absolute value is taken is not stated).",
        "lower",
    ),
    Metric(
        "activation_ratio",
        "Largest over median activation",
        "max |h| / median |h| over all tokens and channels of a sequence, mean over sequences, the "
        "layer where it is largest. Massive by arXiv 2402.17762: above about 1000, and max |h| > "
        "100.",
        "lower",
    ),
    Metric(
        "activation_kurtosis",
        "Activation kurtosis",
        "E[(h - mean)^4] / Var(h)^2 over all tokens and channels of a sequence (3 for a normal "
        "distribution), mean over sequences and layers (after arXiv 2306.12929, there of the "
        "attention output; here h is the output of a layer).",
        "lower",
    ),
    Metric(
        "norm_ratio",
        "First token's norm ratio",
        "|h_1| / mean |h_t| over t >= 2, the means over documents taken first, the layer where it "
        "is largest (arXiv 2410.10781); the embedding is left out.",
        None,
    ),
    Metric(
        "value_norm_ratio",
        "First token's value norm ratio",
        "|v_1| / mean |v_t| over t >= 2 for each key/value head, the means over documents taken "
        "first, then the mean over heads and layers (arXiv 2410.10781). Near 0: the first token is "
        "a place to attend to without effect.",
        None,
    ),
    Metric(
        "key_norm_ratio",
        "First token's key norm ratio",
        "As the value norm ratio, of the keys after norm, RoPE and gates.",
        None,
    ),
    Metric(
        "gate_mean",
        "Mean gate score",
        "Mean over tokens, heads, channels, then over layers and sites. Padding is left out.",
        None,
    ),
    Metric(
        "gate_median",
        "Median gate score",
        "Median over tokens, heads and channels (to 1/2048 of the scores' range), then the mean "
        "over layers and sites.",
        None,
    ),
    Metric(
        "gate_below_0.1",
        "Gate scores below 0.1",
        "Share of scores < 0.1 over tokens, heads, channels; then the mean over layers and sites.",
        None,
    ),
    Metric(
        "gate_below_0.01",
        "Gate scores below 0.01",
        "Share of scores < 0.01, averaged as those below 0.1.",
        None,
    ),
    Metric(
        "gate_above_0.9",
        "Gate scores above 0.9",
        "Share of scores > 0.9, averaged as those below 0.1.",
        None,
    ),
    Metric(
        "gate_first_token",
        "Mean gate score at the first token",
        "As the mean gate score, at the first token of each document only.",
        None,
    ),
    Metric(
        "gate_token_std",
        "Gate's variation between tokens",
        "Standard deviation over tokens of each head's and channel's score, averaged over heads, "
        "channels, layers and sites. 0: the gate is a static scale.",
        None,
    ),
    Metric(
        "gate_dead_heads",
        "Dead heads",
        "Share of gated heads of which at least 99 % of the scores, over tokens and channels, are "
        "below 0.1.",
        None,
    ),
    Metric(
        "gate_open_heads",
        "Always-open heads",
        "Share of gated heads of which at least 99 % of the scores, over tokens and channels, are "
        "above 0.9: such a head could do without its gate.",
        None,
    ),
    Metric(
        "leading_4_share",
        "Share of the first four keys",
        "The attention weight of the first four tokens of the document together, averaged over "
        "the queries after them, then over heads and layers (the four tokens that arXiv 2309.17453 "
        "keeps).",
        None,
    ),
    Metric(
        "value_share",
        "First token's share of what is carried",
        "sum_i A_i1 |v_1| / sum_i sum_j A_ij |v_j| over queries i >= 2 and the heads of a layer, "
        "mean over layers: near 0 where the sink's value is small, however large its weight "
        "(norms as in arXiv 2004.10102).",
        None,
    ),
    Metric(
        "gated_share",
        "First token's share of what is carried, gated",
        "As the first token's share of what is carried, with |g_i * v_j| in place of |v_j|, g_i "
        "the gate's scores at the query: what passes the gate after attention.",
        None,
    ),
    Metric(
        "sinks_on_first_token",
        "Sinks that are first tokens",
        "Of all (key, head) with importance alpha_k > 0.3 among the keys that at least 16 queries "
        "see, the share whose key is the first of its document.",
        None,
    ),
    Metric(
        "sinks_on_delimiters",
        "Sinks on later delimiters",
        "Of all sinks (see sinks that are first tokens), the share on later tokens whose text has "
        "no letter and no digit (punctuation, white space, line ends).",
        None,
    ),
    Metric(
        "attention_output_inf_norm",
        "Attention output, infinity norm",
        "max |y| over tokens and channels of a sequence, y the output of W_o; mean over sequences, "
        "the layer where it is largest (arXiv 2306.12929).",
        "lower",
    ),
    Metric(
        "attention_output_kurtosis",
        "Attention output, kurtosis",
        "E[(y - mean)^4] / Var(y)^2 over tokens and channels of a sequence, y the output of W_o, "
        "mean over sequences and layers (arXiv 2306.12929).",
        "lower",
    ),
    Metric(
        "massive_count",
        "Massive activations in a sequence",
        "Entries of the residual stream with |h| > 100 and |h| > 1000 times the sequence's median "
        "(arXiv 2402.17762), mean over sequences, the layer that has most.",
        "lower",
    ),
    Metric(
        "heads_effective_rank",
        "Effective rank of the heads' outputs",
        "exp(-sum p ln p), p = s / sum s, s the singular values of all tokens' concatenated head "
        "outputs before W_o, after the gate if there is one; mean over layers. Never above the "
        "number of tokens or the width.",
        None,
    ),
    Metric(
        "heads_effective_rank_centred",
        "Effective rank of the heads' outputs, centred",
        "As that of the heads' outputs, after the mean over tokens is taken off.",
        None,
    ),
    Metric(
        "branch_effective_rank",
        "Effective rank of the attention output",
        "As that of the heads' outputs, after W_o.",
        None,
    ),
    Metric(
        "branch_effective_rank_centred",
        "Effective rank of the attention output, centred",
        "As that of the attention output, after the mean over tokens is taken off.",
        None,
    ),
    Metric(
        "gate_score_change",
        "Change of the gates' scores",
        "Mean of |score at the end - score at the start| over held-out tokens, heads, channels and "
        "gates, both models reading the same tokens. For runs that begin from a trained model.",
        None,
    ),
    Metric(
        "gate_mean_start",
        "Mean gate score at the start",
        "The mean gate score of the model that the run began from, over the same tokens.",
        None,
    ),
    Metric(
        "gate_weight_change",
        "Change of the gates' parameters",
        "Root mean square of the difference from the start, over all gate parameters.",
        None,
    ),
    Metric(
        "gate_weight_change_relative",
        "Relative change of the gates' parameters",
        "Norm of the difference from the start over the norm at the start, all gates together; "
        "absent where they start at zero.",
        None,
    ),
    Metric(
        "expert_load_max",
        "Load of the busiest expert",
        "num_experts times the share of all choices that fell on the expert chosen most often "
        "(1 for a balanced router, at most num_experts / top_k); mean over the layers with "
        "experts. Padding is left out.",
        "lower",
    ),
    Metric(
        "experts_rarely_used",
        "Experts rarely used",
        "Share of the experts of all layers that get less than a tenth of a balanced share of the "
        "choices.",
        "lower",
    ),
    Metric(
        "balance_loss",
        "Balance loss",
        "num_experts * sum_i f_i P_i, f_i the share of all choices that fell on expert i, P_i its "
        "mean probability over tokens, both over all held-out tokens; mean over the layers with "
        "experts (arXiv 2101.03961, eq. 4). 1 for a balanced router.",
        "lower",
    ),
)

CAUSAL_STEMS = ("val_loss", "first_token_share", "sink_rate")
"""Metrics that are measured again with the gates forced."""

FORCED_GATES = {
    "open": "every gate score set to 1, as if there were no gate (an added gate adds 1)",
    "shut": "every gate score set to 0",
    "mean": "every gate score set to its head's and channel's mean, so that no token matters",
}


def causal_name(stem: str, how: str) -> str:
    """The metric of `stem`'s change under a way of forcing: `loss_gates_shut_change`."""
    return f"{'loss' if stem == 'val_loss' else stem}_gates_{how}_change"


_CAUSAL = tuple(
    Metric(
        causal_name(metric.name, how),
        f"{metric.label}, gates {'at their mean' if how == 'mean' else how}: change",
        f"The {metric.label.lower()} of the trained model with {what}, minus that of the model as "
        "it was trained, both on the held-out sequences of a health pass.",
        None,
        metric.unit,
    )
    for metric in _ALL
    if metric.name in CAUSAL_STEMS
    for how, what in FORCED_GATES.items()
)

METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (*_ALL, *_CAUSAL, *OF_TRAINING, *OF_STUDIES)
}
"""Metrics of the final look and the health pass, of training, and of a study's runs taken together.
A name may carry a mark: `accuracy_trigger`."""

MARKABLE = (
    *("val_loss", "accuracy", "first_token_share", "first_token_share_uniform", "gate_mean"),
    *(causal_name(stem, how) for stem in ("val_loss", "first_token_share") for how in FORCED_GATES),
)
"""Metrics that are also computed over marked positions only."""

HEALTH_METRICS = (
    "first_token_share",
    "first_token_share_uniform",
    "sink_rate",
    "attention_entropy",
    "max_logit",
    "max_activation",
    "massive_activation_mean",
    "activation_ratio",
    "norm_ratio",
    "value_norm_ratio",
    "gate_mean",
    "gate_below_0.1",
)
"""What the health pass of a training run reports, marks included."""


def split_mark(name: str) -> tuple[str, str | None]:
    """("accuracy", "trigger") of "accuracy_trigger"; the mark is None for a plain name."""
    if name in METRICS:
        return name, None
    for stem in sorted(MARKABLE, key=len, reverse=True):
        if name.startswith(f"{stem}_"):
            return stem, name.removeprefix(f"{stem}_")
    return name, None


def describe(name: str) -> Metric:
    """The metric of a name in result.json, restricted to marked positions where the name says so.

    Raises:
        ValueError: no metric has this name.
    """
    if (longer := parse_longer(name)) is not None:
        return _describe_longer(name, longer)
    stem, mark = split_mark(name)
    metric = METRICS.get(stem)
    if metric is None:
        raise ValueError(f"unknown metric {name!r}; {nearest(name, METRICS)}")
    if mark is None:
        return metric
    words = mark.replace("_", "-")
    return Metric(
        name,
        f"{metric.label}, {words} positions",
        f"{metric.definition} Only {words} positions are counted.",
        metric.better,
        metric.unit,
    )


def _describe_longer(name: str, longer: LongerName) -> Metric:
    """The metric of a look at rows longer than those of training."""
    if longer.stem in DERIVED:
        label, definition = DERIVED[longer.stem]
        better, unit = "higher" if longer.stem == "scaling_gain" else "lower", "nats per token"
        metric = Metric(longer.stem, label, definition, better, unit)
    elif longer.stem in KEPT:
        metric = describe(longer.stem)
    else:
        raise ValueError(f"unknown metric {name!r}; on longer rows: {', '.join((*KEPT, *DERIVED))}")
    return Metric(
        name,
        f"{metric.label}, {longer.words}",
        f"{metric.definition} {longer.sentence}",
        metric.better,
        metric.unit,
    )
