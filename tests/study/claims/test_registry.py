import pytest

from gatelm.analysis.metrics.longer_metrics import parse_longer
from gatelm.analysis.metrics.registry import METRICS, split_mark
from gatelm.config import ConfigError
from gatelm.nn.gates.presets import GATE_PRESETS
from gatelm.study.claims.check import without_runs
from gatelm.study.claims.data import OF_THE_RUN
from gatelm.study.claims.registry import SIZES, Registry, load_registry, names

EVALUATED = {"hellaswag", "mmlu", "gsm8k", "c_eval", "ruler", "val_loss_long"}
"""Measured by `gatelm eval`, not in a run."""


def metrics_of(claim):
    needed = [m for need in claim.needs for m in names(need.metric)]
    return [*names(claim.metric), *needed]


def test_the_shipped_registry_reads_and_names_what_exists():
    registry = load_registry()
    claims = registry.all()
    assert len(claims) > 150
    known = {*METRICS, *OF_THE_RUN, *EVALUATED}
    for name, claim in claims.items():
        assert claim.source, name
        unknown = {
            m
            for m in metrics_of(claim)
            if split_mark(m)[0] not in known and parse_longer(m) is None
        }
        assert not unknown, name
        assert set(claim.scales) <= set(SIZES), name
        assert claim.test is None or claim.studies, name
        assert claim.scales == SIZES or claim.why, name
        small = not set(claim.scales) - {"paper"}
        assert small or not EVALUATED & set(names(claim.metric)) or "val_loss" in claim.metric, name
    others = {other for others in registry.aliases.values() for other in others}
    presets = {other for other in others if other.startswith("sdpa-")} - {"sdpa-element-qknorm"}
    assert presets <= set(GATE_PRESETS)


def test_contradictions_are_recorded_on_both_sides():
    claims = load_registry().all()
    for name, claim in claims.items():
        for other in claim.contradicts:
            assert name in claims[other].contradicts or claims[other].contradicts, (name, other)
    orders = {"positions-order", "positions-second-numbering"}
    assert orders <= set(claims)
    assert claims["a-third-of-all"].contradicts == (
        "under-one-percent-head",
        "under-one-percent-element",
    )


@pytest.mark.parametrize(
    ("name", "verdict", "figure"),
    [
        ("added-sdpa-element", "reproduced", "201,326,592"),
        ("added-sdpa-head", "reproduced", "1,572,864"),
        ("added-kv-heads", "reproduced", "50,331,648"),
        ("added-experts", "not reproduced", "453,"),
        ("added-value-head-table-6", "not reproduced", "196,608"),
        ("under-one-percent-head", "reproduced", "0.0533 %"),
        ("under-one-percent-element", "not reproduced", "6.82 %"),
        ("a-third-of-all", "not reproduced", "6.82 %"),
        ("a-third-of-attention", "reproduced", "33.3 %"),
    ],
)
def test_counted_claims_need_no_run(name, verdict, figure):
    finding = without_runs(name, load_registry().all()[name])
    assert finding is not None
    assert finding.verdict == verdict
    assert figure in finding.evidence[0].figure


def test_a_table_makes_a_claim_of_each_row():
    tree = {"source": "s", "what": "perplexity", "value": 6.0, "rows": {"a": 5.0, "b": 7.0}}
    claims = Registry.parse({"tables": {"t": tree}}).all()
    assert list(claims) == ["t/a", "t/b"]
    assert claims["t/a"].statement == "perplexity: a lower than none"
    assert claims["t/b"].statement == "perplexity: b higher than none"
    assert claims["t/b"].published == "7 against 6"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "neither `claims` nor `tables`"),
        ({"claims": {"c": {"statement": "x", "source": "s"}}}, "without a test it needs a `why`"),
        (
            {"claims": {"c": {"source": "s", "why": "w"}}},
            "claims.c.statement: this key is required",
        ),
        (
            {"claims": {"c": {"statement": "x", "source": "s", "why": "w", "contradicts": ["d"]}}},
            "no claim 'd'",
        ),
        (
            {
                "claims": {
                    "c": {"statement": "x", "source": "s", "test": {"kind": "value", "arm": "a"}}
                }
            },
            "at_least, at_most or both are needed",
        ),
        (
            {"claims": {"c": {"statement": "x", "source": "s", "test": {"arm": "a", "kind": "z"}}}},
            "claims.c.test",
        ),
    ],
)
def test_mistakes_name_the_place(tmp_path, tree, message):
    from gatelm.config.load import dump

    path = tmp_path / "mine.yaml"
    path.write_text(dump(tree or {"aliases": {}}))
    with pytest.raises(ConfigError, match="mine") as error:
        load_registry(path)
    assert message in str(error.value)
