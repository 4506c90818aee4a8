import pytest

from gatelm.analysis.metrics.registry import HEALTH_METRICS, MARKABLE, METRICS, describe, split_mark


def test_a_mark_is_split_from_the_longest_stem():
    assert split_mark("accuracy_trigger") == ("accuracy", "trigger")
    assert split_mark("first_token_share_uniform") == ("first_token_share_uniform", None)
    assert split_mark("first_token_share_uniform_non_trigger") == (
        "first_token_share_uniform",
        "non_trigger",
    )
    assert split_mark("gate_below_0.1") == ("gate_below_0.1", None)
    assert split_mark("max_logit_trigger") == ("max_logit_trigger", None)


def test_a_marked_metric_says_so():
    metric = describe("first_token_share_non_trigger")
    assert metric.label == "First-token share, non-trigger positions"
    assert metric.definition.endswith("Only non-trigger positions are counted.")


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(ValueError, match="unknown metric 'sinkrate'; did you mean 'sink_rate'"):
        describe("sinkrate")


def test_the_lists_name_metrics():
    assert set(MARKABLE) | set(HEALTH_METRICS) <= set(METRICS)
    assert all(metric.name == name for name, metric in METRICS.items())
