from gatelm.report.sections.attention import average


def test_average_over_seeds_by_layer_and_head() -> None:
    assert average([[[0.2, 0.4], [0.6, 0.8]], [[0.4, 0.0], [0.2, 0.8]]]) == [
        [0.30000000000000004, 0.2],
        [0.4, 0.8],
    ]


def test_matrices_of_another_shape_or_with_holes_are_left_out() -> None:
    assert average([[[0.5]], [[0.1, 0.2]], None, [[None]], []]) == [[0.5]]
    assert average([None]) == []
