"""Runs of equal config are taken over from other studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatelm.config import ConfigError
from gatelm.study.running.reuse import take_over
from gatelm.study.running.run import run


@pytest.fixture
def source(make_fake_plan, tmp_path, trainer):
    """A finished study with the arms none and other."""
    root = tmp_path / "source"
    plan = make_fake_plan(arms={"none": {}, "other": {"optim.lr": 0.5}}, baseline="none")
    run(plan, root, workers=1, trainer=trainer)
    (root / plan.runs[0].folder / "checkpoints").mkdir()
    return root


def test_equal_runs_are_copied_and_the_rest_trained(make_fake_plan, source, tmp_path, trainer):
    plan = make_fake_plan()
    root = tmp_path / "root"
    outcome = run(plan, root, workers=1, reuse=[source], trainer=trainer)
    assert outcome.finished == list(plan.runs)
    copied = [r for r in plan.runs if r.arm == "none"]
    for planned in plan.runs:
        folder = root / planned.folder
        # output.log is what a run said as it trained here
        assert (folder / "output.log").exists() == (planned not in copied)
        assert not (folder / "checkpoints").exists()
        assert not folder.with_name(folder.name + ".tmp").exists()


def test_a_run_that_is_done_stays(make_fake_plan, source, tmp_path):
    plan, root = make_fake_plan(), tmp_path / "root"
    assert [r.arm for r in take_over(plan, root, [source])] == ["none", "none"]
    marked = root / plan.runs[0].folder / "mine"
    marked.touch()
    assert take_over(plan, root, [source]) == []
    assert marked.exists()


def test_a_result_cut_short_is_not_taken(make_fake_plan, source, tmp_path):
    plan = make_fake_plan()
    (source / plan.runs[0].folder / "result.json").write_text('{"config_ha')
    assert take_over(plan, tmp_path / "root", [source]) == [plan.runs[1]]


def test_a_folder_that_is_no_study(make_fake_plan, tmp_path):
    with pytest.raises(ConfigError, match=r"--reuse .*nothing: no runs there"):
        take_over(make_fake_plan(), tmp_path / "root", [tmp_path / "nothing"])


def test_links_are_not_followed(make_fake_plan, source, tmp_path):
    plan, root = make_fake_plan(), tmp_path / "root"
    folder = source / next(r.folder for r in plan.runs if r.arm == "none")
    (folder / "notes").symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match="notes is a link"):
        take_over(plan, root, [source])
    (folder / "notes").unlink()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    # a run behind a linked folder is not found, and is trained anew
    assert folder.name not in [Path(run.folder).name for run in take_over(plan, root, [source])]
