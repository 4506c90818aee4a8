"""Study files: extends, overrides and the sentences that mistakes get."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatelm.config import ConfigError
from gatelm.config.load import dump
from gatelm.study.planning.spec import load_study

STUDY = """
name: tiny
parts:
  main:
    base:
      extends: {base}
      optim: {{lr: 0.01}}
    arms:
      none:
      gated: {{model.layer.gates: [sdpa-head]}}
    baseline: none
    seeds: [0, 1]
    axes: {{optim.weight_decay: [0, 1e-1]}}
"""


def write(folder: Path, base: str = "run.yaml", **runs: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(STUDY.format(base=base))
    for name, text in (runs or {"run": "optim: {lr: 1, betas: [0.9, 0.95]}"}).items():
        (folder / f"{name}.yaml").write_text(text)
    return path


def test_base_extends_a_file_beside_the_study(tmp_path):
    part = load_study(write(tmp_path)).parts["main"]
    assert part.base == {"optim": {"lr": 0.01, "betas": [0.9, 0.95]}}
    assert part.arms == {"none": {}, "gated": {"model.layer.gates": ["sdpa-head"]}}
    assert part.axes == {"optim.weight_decay": (0, 0.1)}
    assert part.primary == ("val_loss",)


def test_a_written_study_reads_back_equal(tmp_path):
    study = load_study(write(tmp_path))
    again = tmp_path / "again.yaml"
    again.write_text(dump(study.tree()))
    assert load_study(again) == study


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("parts.main.seeds=[7]", lambda p: p.seeds, (7,)),
        ("parts.main.base.optim.lr=3e-3", lambda p: p.base["optim"]["lr"], 3e-3),
        ("parts.main.base.optim.betas.1=0.9", lambda p: p.base["optim"]["betas"][1], 0.9),
        ("parts.main.axes.optim.lr=[1, 2]", lambda p: p.axes["optim.lr"], (1, 2)),
        ("parts.main.arms.none.optim.lr=5", lambda p: p.arms["none"], {"optim.lr": 5}),
        ("parts.main.arms.new={optim.lr: 5}", lambda p: p.arms["new"], {"optim.lr": 5}),
    ],
)
def test_overrides(tmp_path, override, read, value):
    part = load_study(write(tmp_path), [override]).parts["main"]
    assert read(part) == value


SIZES = "    sizes: {large: {seeds: [3], base: {extends: large.yaml}}}"


def test_a_size_changes_the_part(tmp_path):
    path = write(tmp_path, run="optim: {lr: 1}", large="optim: {betas: [0.8, 0.9]}")
    path.write_text(path.read_text() + SIZES)
    as_written = load_study(path)
    assert as_written.parts["main"].seeds == (0, 1)
    large = load_study(path, ["size=large", "parts.main.confidence=0.9"])
    assert (large.size, large.parts["main"].seeds) == ("large", (3,))
    assert large.parts["main"].base == {"optim": {"lr": 0.01, "betas": [0.8, 0.9]}}
    path.write_text(dump(large.tree()))
    assert load_study(path) == large


def test_a_size_that_is_none(tmp_path):
    path = write(tmp_path, run="optim: {lr: 1}", large="optim: {lr: 2}")
    with pytest.raises(ConfigError, match="no part of this study has sizes"):
        load_study(path, ["size=large"])
    path.write_text(path.read_text() + SIZES)
    with pytest.raises(ConfigError, match="no size 'lrage'; did you mean 'large'"):
        load_study(path, ["size=lrage"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parts.main.baseline=nonne", "baseline 'nonne' is no arm; did you mean 'none'"),
        ("parts.mian.seeds=[0]", "no part 'mian'; did you mean 'main'"),
        ("parts.main.sedes=[0]", "unknown key 'sedes'; did you mean 'seeds'"),
        ("parts.main.seeds=[]", r"parts\.main\.seeds: at least one"),
        ("parts.main.seeds=[1, 1]", "named twice"),
        ("parts.main.seeds=[-1]", r"parts\.main\.seeds\.0: "),
        ("parts.main.confidence=95", "between 0 and 1"),
        ("parts.main.primary_metrics=[val_los]", "'val_los' is not among metrics"),
        ("parts.main.axes.model.layer=[{}]", "arm 'gated' sets model.layer.gates, which the axis"),
        ("parts.main.axes.optim.lr=[1, 1]", "each only once"),
        ("parts.main.arms.a/b={}", "letters, digits"),
        ("name=../up", "letters, digits"),
        ("parts.main.arms={}", "at least one arm"),
        ("parts.main.match={multiple: 0}", r"match\.multiple: must be 1 or more"),
        ("seeds", "expected PATH=VALUE"),
    ],
)
def test_mistakes(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        load_study(write(tmp_path), [override])


def test_missing_base_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_study(write(tmp_path, base="nowhere.yaml"))


@pytest.mark.parametrize("sizes", ["{gpu: 5}", "5", "[gpu]", "{gpu: [1]}"])
def test_sizes_that_are_none_are_one_sentence(tmp_path, sizes):
    path = write(tmp_path)
    path.write_text(path.read_text() + f"    sizes: {sizes}\n")
    with pytest.raises(ConfigError, match="sizes"):
        load_study(path, ["size=gpu"])
