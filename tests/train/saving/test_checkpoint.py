import hashlib
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gatelm.train.saving import checkpoint
from gatelm.train.saving.checkpoint import CheckpointError


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(20, 30, generator=generator)
    return {
        "model": {"w": weight},
        "optim": {"w": {"step": torch.tensor(3.0)}},
    }


def names(root):
    return sorted(p.name for p in root.iterdir())


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_what_is_saved_is_loaded(tmp_path):
    path = checkpoint.save(tmp_path, 5, tensors(1), {"step": 5, "note": "x"}, keep=2)
    assert path.name == "step-00000005"
    checkpoint.verify(path)
    target = tensors(2)
    checkpoint.load(path, target)
    assert torch.equal(target["model"]["w"], tensors(1)["model"]["w"])
    assert checkpoint.read_state(path) == {"step": 5, "note": "x"}


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 10):
        checkpoint.save(tmp_path, step, tensors(), {}, keep=2)
    assert names(tmp_path) == ["step-00000003", "step-00000010"]


def test_the_newest_complete_one_is_never_deleted(tmp_path):
    checkpoint.save(tmp_path, 1, tensors(), {}, keep=1)
    (tmp_path / "step-00000002").mkdir()  # no manifest: not complete
    checkpoint.prune(tmp_path, keep=0)
    assert "step-00000001" in names(tmp_path)


def test_saving_a_step_again_keeps_the_sound_one_and_replaces_a_damaged_one(tmp_path):
    path = checkpoint.save(tmp_path, 1, tensors(1), {"n": 1}, keep=2)
    checkpoint.save(tmp_path, 1, tensors(2), {"n": 2}, keep=2)
    assert checkpoint.read_state(path) == {"n": 1}
    damage(path / "state.json")
    checkpoint.save(tmp_path, 1, tensors(2), {"n": 2}, keep=2)
    assert checkpoint.read_state(path) == {"n": 2}
    checkpoint.verify(path)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "state.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_every_damage_is_one_sentence_naming_the_file(tmp_path, name, how):
    path = checkpoint.save(tmp_path, 1, tensors(), {"a": 1}, keep=1)
    file = path / name
    if how == "flip":
        damage(file)
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match=rf"damaged \({name.replace('.', '.')}") as error:
        checkpoint.verify(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_manifest_is_damage(tmp_path):
    path = checkpoint.save(tmp_path, 1, tensors(), {}, keep=1)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpoint.verify(path)


def test_another_format_is_refused_by_number(tmp_path):
    path = checkpoint.save(tmp_path, 1, tensors(), {}, keep=1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoint.verify(path)


def test_a_damaged_newest_one_falls_back_with_a_warning(tmp_path):
    old = checkpoint.save(tmp_path, 1, tensors(), {}, keep=3)
    new = checkpoint.save(tmp_path, 2, tensors(), {}, keep=3)
    damage(new / "__0_0.distcp")
    said = []
    assert checkpoint.newest_sound(tmp_path, said.append) == old
    assert len(said) == 1
    assert str(new) in said[0]
    damage(old / "__0_0.distcp")
    with pytest.raises(CheckpointError, match="no older one is sound"):
        checkpoint.newest_sound(tmp_path, said.append)


def test_no_checkpoint_at_all_is_none(tmp_path):
    assert checkpoint.newest_sound(tmp_path / "none", pytest.fail) is None


def test_tensors_of_another_shape_are_refused(tmp_path):
    path = checkpoint.save(tmp_path, 1, tensors(), {}, keep=1)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        checkpoint.load(path, {"model": {"w": torch.zeros(2, 2)}})


def test_a_full_disk_is_one_sentence_and_earlier_checkpoints_stay(tmp_path):
    old = checkpoint.save(tmp_path, 1, tensors(), {}, keep=1)
    before = {p.name: p.read_bytes() for p in old.iterdir()}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A file-size limit makes write() fail in the middle, as a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(CheckpointError, match="untouched") as error:
            checkpoint.save(tmp_path, 2, {"w": torch.zeros(100_000)}, {}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "\n" not in str(error.value)
    assert names(tmp_path) == ["step-00000001"]
    assert {p.name: p.read_bytes() for p in old.iterdir()} == before


def test_too_little_space_is_noticed_before_writing(tmp_path, monkeypatch):
    free = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: free)
    with pytest.raises(CheckpointError, match="the disk is full"):
        checkpoint.save(tmp_path, 2, tensors(), {}, keep=1)
    assert names(tmp_path) == []


def test_a_checkpoint_appears_all_at_once(tmp_path, monkeypatch):
    rename = checkpoint.Path.rename

    def refuse(self, target):
        if self.name == ".metadata.tmp":  # torch's own
            return rename(self, target)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint.Path, "rename", refuse)
    with pytest.raises(CheckpointError, match="Input/output error"):
        checkpoint.save(tmp_path, 1, tensors(), {}, keep=1)
    assert checkpoint.list_checkpoints(tmp_path) == []


def test_a_failed_deletion_only_warns(tmp_path, monkeypatch, caplog):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, tensors(), {}, keep=2)

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint.shutil, "rmtree", refuse)
    checkpoint.prune(tmp_path, keep=1)
    assert "Permission denied" in caplog.text
    assert "step-00000002" in names(tmp_path)


KILLED_WRITER = """
    import sys, torch
    from pathlib import Path
    from gatelm.train.saving import checkpoint
    root = Path(sys.argv[1])
    tensors = {f"w{i}": torch.full((250_000,), 1.0) for i in range(20)}
    print("ready", flush=True)
    for step in range(2, 10_000):
        checkpoint.save(root, step, tensors, {"step": step}, keep=2)
        print(step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay_seconds", [0.005, 0.02, 0.04, 0.07])
def test_kill_in_the_middle_of_a_save_leaves_a_sound_checkpoint(tmp_path, delay_seconds):
    checkpoint.save(tmp_path, 1, tensors(), {"step": 1}, keep=2)
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED_WRITER), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    written = 1
    for _ in range(3):
        line = writer.stdout.readline().strip()
        written = int(line) if line.isdigit() else written
    time.sleep(delay_seconds)
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    newest = checkpoint.newest_sound(tmp_path, pytest.fail)
    assert newest is not None
    assert checkpoint.read_state(newest)["step"] >= written
    again = checkpoint.save(tmp_path, 99_999, tensors(), {}, keep=2)
    checkpoint.verify(again)
    assert not list(tmp_path.glob("*.tmp"))


class _Payload:
    """A pickle of this makes a file when it is read."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def sign(path):
    """Write the manifest anew, as whoever changes a checkpoint can."""
    manifest = json.loads((path / "manifest.json").read_text())
    for name in manifest["files"]:
        content = (path / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][name] = {"bytes": len(content), "sha256": digest}
    (path / "manifest.json").write_text(json.dumps(manifest))
    checkpoint.verify(path)


def test_a_pickle_in_the_place_of_the_metadata_is_not_run(tmp_path):
    path = checkpoint.save(tmp_path / "c", 1, tensors(), {}, keep=1)
    (path / ".metadata").write_bytes(pickle.dumps(_Payload(tmp_path / "ran")))
    sign(path)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        checkpoint.load(path, tensors())
    assert not (tmp_path / "ran").exists()


def test_an_entry_that_torch_would_unpickle_is_refused(tmp_path):
    path, content = tmp_path / "c", {"model": {"w": _Payload(tmp_path / "ran")}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(content, storage_writer=FileSystemWriter(path), no_dist=True)
        load({"model": {"w": 0}}, storage_reader=FileSystemReader(path), no_dist=True)
    assert (tmp_path / "ran").exists(), "torch's own reader runs it"
    (tmp_path / "ran").unlink()
    for target in ({"model": {"w": torch.zeros(2)}}, {"model": {"w": 0}}):
        with pytest.raises(CheckpointError, match="does not fit this model"):
            checkpoint.load(path, target)
    assert not (tmp_path / "ran").exists()


def test_tensors_outside_the_checkpoint_are_not_read(tmp_path):
    path = checkpoint.save(tmp_path / "c", 1, tensors(), {}, keep=1)
    (path / "__0_0.distcp").rename(tmp_path / "elsewhere.distcp")
    metadata = (path / ".metadata").read_bytes()
    reader = FileSystemReader(path).read_metadata()
    for index, info in reader.storage_data.items():
        there = str(tmp_path / "elsewhere.distcp")
        reader.storage_data[index] = replace(info, relative_path=there)
    (path / ".metadata").write_bytes(pickle.dumps(reader))
    assert (path / ".metadata").read_bytes() != metadata
    with pytest.raises(CheckpointError, match="does not fit this model"):
        checkpoint.load(path, tensors())
