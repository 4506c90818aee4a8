from gatelm.report.charts import heatmaps
from gatelm.report.charts.heatmaps import MAX_MAPS, MAX_TOKENS


def uniform(length: int) -> list[list[float]]:
    return [[1 / (q + 1)] * (q + 1) + [0.0] * (length - q - 1) for q in range(length)]


def test_shares_have_one_fixed_scale() -> None:
    cells = [{"label": "a", "layer": 0, "head": h, "column": str(h), "value": 0.1} for h in (0, 1)]
    for chart in (
        heatmaps.share_by_head(cells, title="a"),
        heatmaps.share_by_arm(cells, title="a"),
    ):
        scale = chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]
        assert scale["domain"] == [0, 1]


def test_maps_are_capped_and_keep_only_what_a_query_sees() -> None:
    length = MAX_TOKENS + 5
    maps = [{"layer": i, "head": 0, "weights": uniform(length)} for i in range(MAX_MAPS + 3)]
    spec = heatmaps.attention_map(["x"] * length, maps, title="a").to_dict()
    (rows,) = spec["datasets"].values()
    assert len(rows) == MAX_MAPS * MAX_TOKENS
    assert [len(row["w"]) for row in rows[:3]] == [1, 2, 3]
    assert rows[1]["w"] == [500, 500]
    params = {param["name"]: param["value"] for param in spec["params"]}
    assert params["first"] == "show"
    assert len(params["tokens"]) == MAX_TOKENS
