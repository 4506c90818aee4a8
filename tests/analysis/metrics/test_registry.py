import pytest

from gatelm.analysis.measure import analyze_batches, health
from gatelm.analysis.metrics.metric import Metric
from gatelm.analysis.metrics.registry import METRICS, describe, split_mark
from gatelm.config.base import ConfigError
from gatelm.report.metrics import describe as describe_in_report
from gatelm.study.planning.plan import plan
from gatelm.study.planning.spec import StudyConfig


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


def test_an_entry_stands_under_its_name():
    assert all(metric.name == name for name, metric in METRICS.items())


def planned(metric):
    layer = {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 32}}
    base = {
        "model": {"hidden_dim": 16, "num_layers": 1, "layer": layer},
        "data": {"kind": "bigram_backcopy", "num_tokens": 16, "num_triggers": 2, "seq_len": 8},
        "optim": {"lr": 0.01},
        "train": {"total_steps": 3, "batch_size": 2, "precision": "fp32"},
    }
    part = {"base": base, "arms": {"a": {}, "b": {}}, "baseline": "a", "metrics": [metric]}
    return plan(StudyConfig.parse({"name": "tiny", "parts": {"main": part}}))


def test_one_entry_is_all_that_a_metric_needs(build, batch, monkeypatch):
    """The entry's number is in an analysis and in the health pass, with marks; reports know its
    label, and a study may name it."""
    rows = batch(rows=2, tokens=20)
    rows.marks["odd"] = rows.tokens % 2 == 1
    with pytest.raises(ConfigError, match="part main: metrics: unknown metric 'sequences_odd'"):
        planned("sequences_odd")
    entry = Metric(
        "sequences",
        "Sequences",
        "Number of rows, or of marks.",
        "higher",
        "rows",
        read=lambda totals, mark="": float(len(totals.marks) if mark else totals.num_sequences),
        by_mark=True,
        in_health=True,
    )
    monkeypatch.setitem(METRICS, "sequences", entry)
    for found in (analyze_batches(build(), [rows]).metrics(), health(build(), [rows])):
        assert (found["sequences"], found["sequences_odd"]) == (2.0, 1.0)
    assert describe("sequences_odd").label == "Sequences, odd positions"
    assert describe_in_report("sequences").axis == "Sequences (rows)"
    assert planned("sequences_odd").runs
