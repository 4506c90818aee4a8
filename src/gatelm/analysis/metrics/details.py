"""Metrics of an analysis in full detail: profiles, sinks by token, outputs, ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

from gatelm.analysis.metrics.metric import Metric, known_mean, largest_known, of_subject
from gatelm.analysis.statistics.details import Details
from gatelm.analysis.statistics.profile import Profile
from gatelm.analysis.statistics.totals import Totals


def _detail(read: Callable[[Details], float]) -> Callable[[Totals], float]:
    """The reader of something that only a full analysis has."""
    return lambda totals: math.nan if totals.details is None else read(totals.details)


def _of_profiles(read: Callable[[Profile], float]) -> Callable[[Totals], float]:
    """The reader of a number's mean over the layers that have a profile."""
    return _detail(lambda found: known_mean(map(read, found.profiles.values())))


def _of_sinks(kind: str) -> Callable[[Totals], float]:
    """The reader of the share of all sinks that are on this kind of token."""
    return _detail(lambda found: found.sinks.shares(found.display).get(kind, math.nan))


def _of_ranks(name: str, key: str) -> Callable[[Totals], float]:
    """The reader of a rank's mean over layers."""
    return _detail(
        lambda found: known_mean(
            of[name].ranks().get(key, math.nan) for of in found.ranks.values() if name in of
        )
    )


DETAILS = of_subject(
    "details",
    Metric(
        "leading_4_share",
        "Share of the first four keys",
        "The attention weight of the first four tokens of the document together, averaged over "
        "the queries after them, then over heads and layers (the four tokens that arXiv 2309.17453 "
        "keeps).",
        read=_of_profiles(lambda profile: float(profile.leading(4).mean())),
    ),
    Metric(
        "value_share",
        "First token's share of what is carried",
        "sum_i A_i1 |v_1| / sum_i sum_j A_ij |v_j| over queries i >= 2 and the heads of a layer, "
        "mean over layers: near 0 where the sink's value is small, however large its weight "
        "(norms as in arXiv 2004.10102).",
        read=_of_profiles(lambda profile: profile.carried_mean("value")),
    ),
    Metric(
        "gated_share",
        "First token's share of what is carried, gated",
        "As the first token's share of what is carried, with |g_i * v_j| in place of |v_j|, g_i "
        "the gate's scores at the query: what passes the gate after attention.",
        read=_of_profiles(lambda profile: profile.carried_mean("gated")),
    ),
    Metric(
        "sinks_on_first_token",
        "Sinks that are first tokens",
        "Of all (key, head) with importance alpha_k > 0.3 among the keys that at least 16 queries "
        "see, the share whose key is the first of its document.",
        read=_of_sinks("first token"),
    ),
    Metric(
        "sinks_on_delimiters",
        "Sinks on later delimiters",
        "Of all sinks (see sinks that are first tokens), the share on later tokens whose text has "
        "no letter and no digit (punctuation, white space, line ends).",
        read=_of_sinks("delimiter"),
    ),
    Metric(
        "attention_output_inf_norm",
        "Attention output, infinity norm",
        "max |y| over tokens and channels of a sequence, y the output of W_o; mean over sequences, "
        "the layer where it is largest (arXiv 2306.12929).",
        "lower",
        read=_detail(
            lambda found: largest_known(o.mean("max_abs") for o in found.outputs.values())
        ),
    ),
    Metric(
        "attention_output_kurtosis",
        "Attention output, kurtosis",
        "E[(y - mean)^4] / Var(y)^2 over tokens and channels of a sequence, y the output of W_o, "
        "mean over sequences and layers (arXiv 2306.12929).",
        "lower",
        read=_detail(lambda found: known_mean(o.mean("kurtosis") for o in found.outputs.values())),
    ),
    Metric(
        "massive_count",
        "Massive activations in a sequence",
        "Entries of the residual stream with |h| > 100 and |h| > 1000 times the sequence's median "
        "(arXiv 2402.17762), mean over sequences, the layer that has most.",
        "lower",
        read=_detail(lambda found: largest_known(m.count_per_sequence for m in found.massive[1:])),
    ),
    Metric(
        "heads_effective_rank",
        "Effective rank of the heads' outputs",
        "exp(-sum p ln p), p = s / sum s, s the singular values of all tokens' concatenated head "
        "outputs before W_o, after the gate if there is one; mean over layers. Never above the "
        "number of tokens or the width.",
        read=_of_ranks("heads", "effective_rank"),
    ),
    Metric(
        "heads_effective_rank_centred",
        "Effective rank of the heads' outputs, centred",
        "As that of the heads' outputs, after the mean over tokens is taken off.",
        read=_of_ranks("heads", "effective_rank_centred"),
    ),
    Metric(
        "branch_effective_rank",
        "Effective rank of the attention output",
        "As that of the heads' outputs, after W_o.",
        read=_of_ranks("branch", "effective_rank"),
    ),
    Metric(
        "branch_effective_rank_centred",
        "Effective rank of the attention output, centred",
        "As that of the attention output, after the mean over tokens is taken off.",
        read=_of_ranks("branch", "effective_rank_centred"),
    ),
)
