import json

import pytest

from gatelm.train.watching.metrics import MetricsLog, read_metrics


def steps(path, kind=None):
    return [(r["kind"], r["step"]) for r in read_metrics(path, kind)]


def test_records_come_back_as_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write("train", 1, loss=2.5, note="a\u2028b")
        log.write("eval", 1, val_loss=3.0)
    assert list(read_metrics(path)) == [
        {"kind": "train", "step": 1, "loss": 2.5, "note": "a\u2028b"},
        {"kind": "eval", "step": 1, "val_loss": 3.0},
    ]
    assert steps(path, "eval") == [("eval", 1)]


def test_records_are_readable_before_the_file_is_closed(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write("train", 1, loss=1.0)
    assert steps(log.path) == [("train", 1)]
    log.close()


def test_resuming_drops_what_came_after_the_resumed_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in range(1, 6):
            log.write("train", step)
    with MetricsLog(path, keep_through_step=3) as log:
        log.write("train", 4)
    assert [step for _, step in steps(path)] == [1, 2, 3, 4]


@pytest.mark.parametrize("torn", ['{"kind": "train", "st', '{"kind": "tr\ufffd', "{", "17"])
def test_a_torn_last_line_is_skipped_and_removed(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write("train", 1)
    with path.open("a") as file:
        file.write(torn)
    assert steps(path) == [("train", 1)]
    with MetricsLog(path) as log:
        log.write("train", 2)
    assert steps(path) == [("train", 1), ("train", 2)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_damage_before_the_last_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\noops\n{"kind": "train", "step": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_metrics(path))


def test_non_finite_numbers_become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write("train", 1, loss=float("nan"), grads=[1.0, float("inf")])
    assert next(read_metrics(path)) == {
        "kind": "train",
        "step": 1,
        "loss": None,
        "grads": [1.0, None],
    }


def test_a_broken_line_in_the_middle_does_not_stop_a_run(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write("train", 1)
    broken = path.read_text() + "[" * 100_000 + '\n{"kind": "train", "step": 2}\n'
    path.write_text(broken)
    with pytest.raises(ValueError, match="line 2: not a metrics record"):
        list(read_metrics(path))
    with MetricsLog(path, keep_through_step=2) as log:
        log.write("train", 3)
    assert [step for _, step in steps(path)] == [1, 2, 3]
    assert path.with_suffix(".damaged.jsonl").read_text() == broken
    assert "line 2: not a metrics record" in caplog.text
