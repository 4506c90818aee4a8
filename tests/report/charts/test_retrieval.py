from gatelm.report.charts.figures import svg
from gatelm.report.charts.retrieval import score_by_depth
from gatelm.report.page import Figure


def test_a_cell_for_every_length_and_depth_in_the_order_given():
    rows = [
        {"length": length, "depth": depth, "value": value}
        for length, values in (("8k", (1.0, 0.25)), ("16k", (0.5, 0.0)))
        for depth, value in zip((0.0, 100.0), values, strict=True)
    ]
    chart = score_by_depth(rows, title="model: passkey")
    drawn = svg(Figure("depth", chart, width=300))
    assert drawn.index(">8k<") < drawn.index(">16k<")
    for value in ("1.00", "0.25", "0.50", "0.00"):
        assert f">{value}<" in drawn
    spec = chart.to_dict()
    colour = spec["layer"][0]["encoding"]["color"]["scale"]
    assert colour["domain"] == [0, 1]
