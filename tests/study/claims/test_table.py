from gatelm.study.claims.check import Finding
from gatelm.study.claims.predicates import Evidence
from gatelm.study.claims.registry import Registry
from gatelm.study.claims.table import shortened, tally


def test_rows_of_a_table_that_came_to_nothing_stand_together():
    tree = {"source": "s", "what": "MMLU", "value": 1.0, "rows": {"a": 2.0, "b": 3.0, "c": 4.0}}
    other = {"statement": "x", "source": "s", "why": "w"}
    claims = Registry.parse({"tables": {"t": tree}, "claims": {"o": other}}).all()
    found = (Evidence("text", "reproduced", "figure"),)
    findings = {
        "o": Finding("o", claims["o"], "not testable at this scale", "w"),
        "t/a": Finding("t/a", claims["t/a"], "no data", "no arm a"),
        "t/b": Finding("t/b", claims["t/b"], "reproduced", "", found),
        "t/c": Finding("t/c", claims["t/c"], "no data", "no arm c"),
    }
    shown = shortened(findings)
    assert list(shown) == ["o", "t", "t/b"]
    assert shown["t"].claim.statement == "MMLU of 2 arms: a, c"
    assert shown["t"].reason == "no study here has these arms and the metric"
    assert shown["t/b"] is findings["t/b"]
    assert tally(findings.values()) == ("1 reproduced, 1 not testable at this scale, 2 no data")
