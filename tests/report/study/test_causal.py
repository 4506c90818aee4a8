import re

from gatelm.report.charts.theme import Palette
from gatelm.report.load import read_study
from gatelm.report.page import Page
from gatelm.report.study.causal import add_causal, causal_table

TAG = re.compile(r"<[^>]+>")


def forced(results):
    for run in results["runs"]:
        if run["gate_parameters"]:
            run["metrics"]["loss_gates_shut_change"] = 0.5 + 0.25 * run["seed"]
            run["metrics"]["first_token_share_gates_open_change"] = -0.125


def test_changes_are_means_with_the_lowest_and_highest_seed(study_writer):
    root = study_writer("mechanism", ["none", "sdpa-head"], (0, 1), edit=forced)
    (part,) = read_study(root).parts
    table = causal_table(part)
    assert table is not None
    assert table.arms == [("sdpa-head", "sdpa-head")]
    assert table.rows == [
        ["+0.625 (+0.500 to +0.750)", "\u22120.125 (\u22120.125 to \u22120.125)"],
    ]
    assert "gates shut (nats per token)" in table.head[0]
    page = Page("t")
    add_causal(page, part, Palette.of_arms(part.arms))
    text = " ".join(TAG.sub(" ", page.html()).split())
    assert "Gates forced open, shut, or to their mean" in text
    assert "+0.625 (+0.500 to +0.750)" in text


def test_runs_that_were_not_checked_have_no_table(study_writer):
    (part,) = read_study(study_writer("text", ["none", "sdpa-head"], (0,))).parts
    assert causal_table(part) is None
    page = Page("t")
    add_causal(page, part, Palette.of_arms(part.arms))
    assert "forced" not in page.html()
