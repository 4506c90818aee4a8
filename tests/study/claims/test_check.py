"""Every test of a claim, on numbers that make it hold, fail, and be impossible."""

import pytest

from gatelm.config import ConfigError
from gatelm.study.claims.check import check
from gatelm.study.claims.registry import Registry
from gatelm.study.results.schema import StudyResults, read_results

LOW = [1.00, 1.01, 0.99]
HIGH = [2.00, 2.02, 1.99]
WIDE = [0.5, 2.0, 3.5]


def ask(results, test, **claim):
    """The finding on one claim."""
    scope = {"statement": "x", "source": "s", "studies": ["own"], **claim}
    registry = Registry.parse(
        {"aliases": {"gate": ["sdpa"]}, "claims": {"c": {**scope, "test": test}}}
    )
    several = results if isinstance(results, list) else [results]
    studies = [StudyResults.model_validate(one) for one in several]
    return check(registry, studies).get("c")


def losses(**arms):
    return {name.replace("_", "-"): {"val_loss": values} for name, values in arms.items()}


def test_compare_takes_the_corrected_verdict_of_the_study(make_results):
    test = {"kind": "compare", "arm": "gate"}
    found = ask(make_results(losses(none=HIGH, gate=LOW)), test)
    assert found.verdict == "reproduced"
    assert "gate minus none: -1.003 [" in found.evidence[0].figure
    assert found.commands == ("gatelm study run own",)
    other_way = ask(make_results(losses(none=LOW, gate=HIGH)), test)
    assert other_way.verdict == "not reproduced"
    null = ask(make_results(losses(none=WIDE, gate=[1.0, 2.2, 3.0])), test)
    assert null.verdict == "not reproduced"
    assert "smallest found 80% of the time" in null.evidence[0].figure
    many = {f"a{i}": [1.01, 1.00, 0.99] for i in range(40)}
    alone = [v - 0.02 - 0.004 * i for i, v in enumerate(LOW)]
    assert ask(make_results(losses(none=LOW, gate=alone)), test).verdict == "reproduced"
    crowded = ask(make_results(losses(none=LOW, gate=alone, **many)), test)
    assert crowded.verdict == "not reproduced"
    assert "no difference, corrected for 41 comparisons (p 0.3" in crowded.evidence[0].figure


def test_compare_with_an_arm_that_is_not_the_baseline(make_results):
    results = make_results(losses(none=WIDE, gate=LOW, other=HIGH))
    test = {"kind": "compare", "arm": "gate", "baseline": "other"}
    assert ask(results, test).verdict == "reproduced"
    test["direction"] = "higher"
    assert ask(results, test).verdict == "not reproduced"


def test_order_needs_every_step(make_results):
    test = {"kind": "order", "arms": ["gate", "b", "none"]}
    third = [v + 1 for v in HIGH]
    held = ask(make_results(losses(none=third, b=HIGH, gate=LOW)), test)
    assert held.verdict == "reproduced"
    assert (
        "found, lowest first: gate 1, b 2.003, none 3.003; 2 of 2 steps" in held.evidence[0].figure
    )
    swapped = ask(make_results(losses(none=HIGH, b=third, gate=LOW)), test)
    assert swapped.verdict == "not reproduced"
    assert "1 of 2 steps" in swapped.evidence[0].figure
    assert "1 the other way" in swapped.evidence[0].figure
    tied = ask(make_results(losses(none=third, b=LOW, gate=LOW)), test)
    assert tied.verdict == "not reproduced"
    short = ask(make_results(losses(none=HIGH, gate=LOW)), test)
    assert short.verdict == "no data"
    assert short.reason == "own, text: no arm b"


def test_best_is_better_than_each(make_results):
    test = {"kind": "best", "arm": "gate", "others": ["none", "b"]}
    assert ask(make_results(losses(none=HIGH, b=HIGH, gate=LOW)), test).verdict == "reproduced"
    tied = ask(make_results(losses(none=HIGH, b=LOW, gate=LOW)), test)
    assert tied.verdict == "not reproduced"
    assert "lower than 1 of 2" in tied.evidence[0].figure


def test_value_and_ratio_ask_the_whole_interval(make_results):
    results = make_results(losses(none=HIGH, gate=LOW))
    assert ask(results, {"kind": "value", "arm": "gate", "at_most": 1.03}).verdict == "reproduced"
    assert (
        ask(results, {"kind": "value", "arm": "gate", "at_most": 1.01}).verdict == "not reproduced"
    )
    assert ask(results, {"kind": "value", "arm": "gate", "at_least": 0.9}).verdict == "reproduced"
    inside = {"kind": "ratio", "arm": "gate", "at_least": 0.45, "at_most": 0.55}
    found = ask(results, inside)
    assert found.verdict == "reproduced"
    assert "gate 1, none 2.003; ratio 0.4992 [" in found.evidence[0].figure
    assert found.evidence[0].figure.endswith("(asked: at least 0.45 and at most 0.55)")
    crossing = ask(results, {**inside, "at_least": 0.499})
    assert crossing.verdict == "not reproduced"
    assert "it reaches beyond" in crossing.evidence[0].figure
    beyond = ask(results, {**inside, "at_least": 0.54})
    assert "all of it lies outside" in beyond.evidence[0].figure
    zero = make_results(losses(none=[0.0, 0.0, 0.0], gate=LOW))
    assert ask(zero, inside).verdict == "no data"


def test_fewer_than_three_seeds_settle_nothing(make_results):
    results = make_results(losses(none=HIGH[:2], gate=LOW[:2]))
    for test in (
        {"kind": "compare", "arm": "gate"},
        {"kind": "value", "arm": "gate", "at_most": 9},
    ):
        found = ask(results, test)
        assert found.verdict == "no data"
        assert "2 seeds, and a claim takes 3" in found.evidence[0].figure


def test_degradation_compares_what_a_step_adds(along):
    start = losses(none=LOW, gate=LOW)
    worse = {"none": losses(none=HIGH)["none"], "gate": {"val_loss": [v + 0.1 for v in LOW]}}
    results = along("eval.extension", {"none": start, "yarn": worse, "pi": start})
    test = {
        "kind": "degradation",
        "arm": "gate",
        "axis": "extension",
        "start": "none",
        "end": "yarn",
    }
    found = ask(results, test)
    assert found.verdict == "reproduced"
    assert found.evidence[0].figure.startswith(
        "extension from none to yarn adds 0.1 with gate, 1.003"
    )
    assert len(found.evidence) == 1
    assert ask(results, {**test, "arm": "none", "baseline": "gate"}).verdict == "not reproduced"


def test_a_step_of_one_arm_lies_within_bounds(along):
    results = along("eval.extension", {"pi": losses(gate=LOW), "none": losses(gate=HIGH)})
    test = {"kind": "step", "arm": "gate", "axis": "extension", "start": "pi", "end": "none"}
    assert ask(results, {**test, "at_least": 0.9}).verdict == "reproduced"
    assert ask(results, {**test, "at_most": 0.9}).verdict == "not reproduced"
    assert ask(results, {**test, "end": "yarn", "at_most": 0.9}).verdict == "no data"


def test_survival_counts_divergence_at_each_point(along):
    fine = losses(none=LOW, gate=LOW)
    test = {"kind": "survival", "arm": "gate"}
    lost = {"none": None, "gate": fine["gate"]}
    found = ask(along("optim.lr", {0.01: fine, 0.1: lost}), test)
    assert found.verdict == "reproduced"
    assert "diverged: gate 0 of 6, none 3 of 6; only text (lr=0.1)" in found.evidence[0].figure
    assert ask(along("optim.lr", {0.01: fine, 0.1: fine}), test).verdict == "not reproduced"
    both = {"none": None, "gate": None}
    assert ask(along("optim.lr", {0.01: fine, 0.1: both}), test).verdict == "not reproduced"
    turned = {"none": fine["none"], "gate": None}
    mixed = ask(along("optim.lr", {0.01: turned, 0.1: lost}), test)
    assert mixed.verdict == "not reproduced"
    assert "the other way round at text (lr=0.01)" in mixed.evidence[0].figure


def test_what_a_claim_needs_is_looked_for_first(make_results):
    test = {"kind": "ratio", "arm": "gate", "at_most": 0.6}
    needs = [{"arm": "none", "metric": ["share", "val_loss"], "at_least": 5}]
    found = ask(make_results(losses(none=HIGH, gate=LOW)), test, needs=needs)
    assert found.verdict == "not testable at this scale"
    assert found.evidence[0].figure == ("needs val_loss of none at least 5, and here it is 2.003")
    needs[0]["at_least"] = 1
    assert ask(make_results(losses(none=HIGH, gate=LOW)), test, needs=needs).verdict == "reproduced"


def test_scales_studies_parts_and_points_are_kept_apart(make_results, along):
    test = {"kind": "compare", "arm": "gate"}
    results = make_results(losses(none=HIGH, gate=LOW))
    paper = ask(results, test, scales=["paper"], why="tokens")
    assert paper.verdict == "not testable at this scale"
    assert paper.reason == "needs the size paper: tokens"
    sized = make_results(losses(none=HIGH, gate=LOW), size="paper")
    assert ask(sized, test, scales=["paper"]).verdict == "reproduced"
    assert ask(results, test, parts=["other"]).verdict == "no data"
    assert ask(results, test, parts=["text"]).verdict == "reproduced"
    swept = along("optim.lr", {1: losses(none=HIGH, gate=LOW), 2: losses(none=LOW, gate=HIGH)})
    both = ask(swept, test)
    assert (both.verdict, both.reason) == ("not reproduced", "holds at 1 of 2 points")
    assert [e.where for e in both.evidence] == ["text (lr=1)", "text (lr=2)"]
    assert ask(swept, test, at={"lr": 1}).verdict == "reproduced"


def test_a_study_of_ones_own_is_asked_whatever_it_has(make_results):
    test = {"kind": "compare", "arm": "gate"}
    mine = make_results(losses(none=HIGH, sdpa=LOW), study="mine", part="p")
    found = ask(mine, test, parts=["text"])
    assert found.verdict == "reproduced"
    assert "sdpa minus none" in found.evidence[0].figure
    assert ask(make_results(losses(none=HIGH), study="mine"), test) is None
    assert ask(make_results({"none": {}, "gate": {}}), test).reason == (
        "own, text: no finished run has val_loss"
    )
    two = ask([make_results(losses(none=HIGH, gate=LOW)), mine], test)
    assert len(two.evidence) == 2
    assert two.commands == ("gatelm study run own", "gatelm study run mine")


def test_reused_runs_are_evidence_once(make_results):
    test = {"kind": "compare", "arm": "gate"}

    def hashed(study, salt):
        results = make_results(losses(none=HIGH, gate=LOW), study=study)
        for run in results["runs"]:
            run["config_hash"] = f"{salt} {run['arm']} {run['seed']}"
        return results

    studies = ["second", "own"]
    reused = ask([hashed("own", "a"), hashed("second", "a")], test, studies=studies)
    assert [e.where for e in reused.evidence] == ["second: text"]
    assert reused.commands == ("gatelm study run second",)
    apart = ask([hashed("own", "a"), hashed("second", "b")], test, studies=studies)
    assert [e.where for e in apart.evidence] == ["second: text", "own: text"]
    assert apart.reason == "holds at 2 of 2 points"


@pytest.mark.parametrize("first", ["own", "second"])
def test_a_run_counts_once_also_where_a_study_reused_some_of_anothers(make_results, first):
    """Three seeds of five are no second point; the two that are left settle nothing."""
    test = {"kind": "compare", "arm": "gate"}
    losses_of = {"none": [2.0, 2.1, 1.9, 2.05, 1.95], "gate": [1.7, 2.0, 1.85, 1.7, 1.6]}

    def hashed(study, seeds):
        values = {arm: [v[seed] for seed in seeds] for arm, v in losses_of.items()}
        results = make_results(losses(**values), study=study)
        for run in results["runs"]:
            run["seed"] = seeds[run["seed"]]
            run["config_hash"] = run["arm"]
        return results

    whole, part = hashed("own", range(5)), hashed("second", range(3))
    alone = ask(part, test, studies=["second"])
    assert alone.verdict == "not reproduced"
    studies = sorted(["own", "second"], key=lambda name: name != first)
    found = ask([whole, part], test, studies=studies)
    assert [e.where for e in found.evidence] == ["own: text"]
    assert (found.verdict, found.commands) == ("reproduced", ("gatelm study run own",))

    overlapping = hashed("second", range(2, 7 - 2))
    found = ask([hashed("own", range(4)), overlapping], test, studies=studies)
    settled = [e.where for e in found.evidence if e.verdict != "no data"]
    assert settled == ["own: text"]


def test_metrics_of_the_run_and_alternatives(make_results):
    values = losses(none=HIGH, gate=LOW)
    values["gate"]["seconds"] = [1.05, 1.06, 1.07]
    values["none"]["seconds"] = [1.0, 1.0, 1.0]
    test = {"kind": "ratio", "arm": "gate", "at_most": 1.02}
    assert ask(make_results(values), test, metric="seconds").verdict == "not reproduced"
    found = ask(make_results(values), {**test, "at_most": 0.6}, metric=["other", "val_loss"])
    assert found.verdict == "reproduced"


def test_what_a_grid_of_learning_rates_says_stands_apart(along):
    results = along(
        "optim.lr", {0.01: losses(none=LOW, gate=LOW), 0.1: losses(none=HIGH, gate=LOW)}
    )
    results["sweeps"] = [
        {"part": "text", "arm": arm, "axes": {}, "seed": seed, "metrics": {"largest_stable_lr": lr}}
        for arm, lr in (("none", 0.01), ("gate", 0.1))
        for seed in range(3)
    ]
    test = {"kind": "ratio", "arm": "gate", "at_least": 3}
    found = ask(results, test, metric="largest_stable_lr")
    assert found.verdict == "reproduced"
    assert [e.where for e in found.evidence] == ["text"]
    assert ask(results, {**test, "at_least": 11}, metric="largest_stable_lr").verdict == (
        "not reproduced"
    )
    compared = ask(results, {"kind": "compare", "arm": "gate"})
    assert [e.where for e in compared.evidence] == ["text (lr=0.01)", "text (lr=0.1)"]
    assert "of 6" in ask(results, {"kind": "survival", "arm": "gate"}).evidence[0].figure


def test_results_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="no results"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a study's results"):
        read_results(tmp_path)
