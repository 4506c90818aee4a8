"""A reader of `torch.distributed.checkpoint` files that never runs code in them.

torch unpickles a checkpoint's `.metadata`, and every entry in it that is no tensor. A pickle can
run any code, so this reader admits the classes that describe tensors and nothing else.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

ADMITTED = {
    "torch": {"Size", *(n for n, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
}
"""The names that the metadata of tensors needs, by module."""


class TensorReader(FileSystemReader):
    """A `FileSystemReader` for checkpoints that hold tensors alone."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the metadata of the checkpoint.

        Raises:
            ValueError: for anything but tensors in files of the checkpoint's own folder.
        """
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _Unpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise ValueError(".metadata does not describe a checkpoint")
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise ValueError(f".metadata: {name} is no tensor, and only tensors are read")
        for info in metadata.storage_data.values():
            if Path(info.relative_path).name != info.relative_path or info.transform_descriptors:
                raise ValueError(f".metadata names {info.relative_path!r}, which is not read")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function of a name that is admitted.

        Raises:
            pickle.UnpicklingError: for any other name.
        """
        if name not in ADMITTED.get(module, ()):
            raise pickle.UnpicklingError(
                f".metadata names {module}.{name}, which could run code; it is not opened"
            )
        return super().find_class(module, name)
