import json
import pickle

import numpy as np
import pytest
import torch

from gatelm.config import ConfigError
from gatelm.study.results.curves import read_curve

STEPS, LOSSES = [10, 20, 30], [3.0, 2.5, 2.25]


def check(curve, column="loss"):
    assert curve.steps.tolist() == STEPS
    assert curve.values.tolist() == LOSSES
    assert curve.column == column


def records(**extra):
    return [
        {"kind": "train", "step": s, "loss": v, "grad_norm": 2 * v, **extra}
        for s, v in zip(STEPS, LOSSES, strict=True)
    ]


def test_the_log_of_a_run_or_its_folder(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [*records(), {"kind": "eval", "step": 30, "val_loss": 9.0}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tr')
    check(read_curve(path))
    check(read_curve(tmp_path))
    assert read_curve(tmp_path).name == tmp_path.name
    assert read_curve(path, "grad_norm").values.tolist() == [6.0, 5.0, 4.5]


def test_null_is_not_finite_and_the_last_record_of_a_step_counts(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [
        {"step": 2, "loss": 7.0},
        {"step": 1, "loss": None},
        {"step": 2, "loss": 1.0},
        {"x": 1},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    curve = read_curve(path)
    assert curve.steps.tolist() == [1, 2]
    assert np.isnan(curve.values[0])
    assert curve.values[1] == 1.0


def test_csv_of_a_run_or_a_dashboard(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("step,loss,lr\n20,2.5,1\n10,3.0,1\n30,2.25,1\n40,,1\n")
    check(read_curve(path))
    path.write_text("\ufeffWall time,Step,Value\n1,10,3.0\n2,20,2.5\n3,30,2.25\n")
    check(read_curve(path), "Value")
    path.write_text("Step,run - loss\n10,3.0\n20,2.5\n30,2.25\n")
    check(read_curve(path, "run - loss"), "run - loss")
    path.write_text("step,loss\n10,nan\n20,inf\n")
    assert not np.isfinite(read_curve(path).values).any()


def test_saved_dictionaries(tmp_path):
    tree = {"steps": STEPS, "lm_losses": LOSSES}
    (tmp_path / "a.json").write_text(json.dumps(tree))
    check(read_curve(tmp_path / "a.json"), "lm_losses")
    (tmp_path / "b.json").write_text(json.dumps(records()))
    check(read_curve(tmp_path / "b.json"))
    torch.save(tree, tmp_path / "c.pt")
    check(read_curve(tmp_path / "c.pt"), "lm_losses")
    torch.save({"step": torch.tensor(STEPS), "loss": torch.tensor(LOSSES)}, tmp_path / "d.pth")
    check(read_curve(tmp_path / "d.pth"))


class Trap:
    """Unpickling it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_is_never_run(tmp_path):
    mark = tmp_path / "ran"
    torch.save({"steps": STEPS, "losses": Trap(mark)}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Trap(mark)))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_curve(tmp_path / name)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "step,other\n1,2\n", "no column of values"),
        ("a.csv", "epoch,loss\n1,2\n", "no column of steps"),
        ("a.csv", "step,loss\n1,high\n", "are no numbers"),
        ("a.csv", "step,loss\n", "no column of steps"),
        ("a.csv", "step,loss\n1,\n", "no value of loss"),
        ("a.json", "[1, 2]", "cannot be read as .json"),
        ("a.json", "{", "cannot be read as .json"),
        ("a.json", '{"steps": [1], "losses": [1, 2]}', "1 steps, but 2 values of losses"),
        ("a.txt", "x", "unknown kind of file; known: .jsonl, .csv"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        read_curve(tmp_path / name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(tmp_path / name) in str(error.value)


def test_columns_and_files_that_are_not_there(tmp_path):
    (tmp_path / "a.csv").write_text("step,loss\n1,2\n")
    with pytest.raises(ConfigError, match="no column 'lss'; did you mean 'loss'"):
        read_curve(tmp_path / "a.csv", "lss")
    with pytest.raises(ConfigError, match="no such file"):
        read_curve(tmp_path)
