"""Measurements of this machine, remembered between commands."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gatelm.data.prepare import default_cache
from gatelm.io.files import write_json

Values = Mapping[str, float]

_in_process: dict[tuple[Path, str], Values] = {}


def remembered(name: str, key: Any, device: torch.device, measure: Callable[[], Values]) -> Values:
    """Return the result of `measure` on this machine, new or remembered under the same key.

    Args:
        name: name of the file below the user's cache folder.
        key: plain data; everything besides the machine that the values depend on.
    """
    file = default_cache() / f"{name}.json"
    text = json.dumps([_machine(device), key], separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if (file, digest) not in _in_process:
        _in_process[file, digest] = _on_disk(file, digest) or _measured(file, digest, measure)
    return _in_process[file, digest]


def _measured(file: Path, digest: str, measure: Callable[[], Values]) -> Values:
    values = measure()
    with suppress(OSError):  # a cache that cannot be written is none
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**_read(file), digest: dict(values)})
    return values


def _on_disk(file: Path, digest: str) -> Values | None:
    found = _read(file).get(digest)
    if isinstance(found, dict) and all(isinstance(v, int | float) for v in found.values()):
        return found
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _machine(device: torch.device) -> list[str]:
    """Return the facts of the machine, and its environment, on which speeds depend."""
    if device.type == "cuda":
        return [torch.cuda.get_device_name(device), torch.__version__]
    limits = [os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")]
    capability = torch.backends.cpu.get_cpu_capability()
    return [device.type, *_cpu(), capability, *limits, torch.__version__]


def _cpu() -> list[str]:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return sorted({line for line in lines if line.startswith(("model name", "flags"))})
    return [platform.machine(), platform.processor()]
