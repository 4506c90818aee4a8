from gatelm.report.load import read_study
from gatelm.report.page import Page
from gatelm.report.study.published import add_published


def body_of(root):
    page = Page("t")
    add_published(page, read_study(root))
    return page.html()


def test_statements_come_with_verdicts_and_figures(study_writer):
    html = body_of(study_writer("mechanism", ["none", "sdpa-element", "non-sparse"], (0, 1, 2)))
    assert "Published statements" in html
    assert '<span class="badge reproduced">reproduced</span>' in html
    assert "mechanism: sdpa-element 0.0" in html
    assert "0.467 to 0.048" in html


def test_a_study_that_no_claim_knows_has_no_section(study_writer):
    def other(results):
        results["study"] = "mine"
        results["runs"] = results["runs"][:1]
        results["comparisons"] = []

    assert "Published statements" not in body_of(study_writer("text", ["none"], (0,), edit=other))
