"""The device that a name stands for, and the memory that is free on it."""

from __future__ import annotations

import torch

from gatelm.config import ConfigError


def device_of(name: str | torch.device, option: str = "--device") -> torch.device:
    """Return the device of that name; `auto` is CUDA where there is one, else the CPU.

    Args:
        option: where the name was given, for the sentence.

    Raises:
        ConfigError: for a name that is no device, or a device that this machine cannot use.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no values")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or ["it is not there"])[0]
        raise ConfigError(
            f"{option}: {name} cannot be used here ({reason:.120}); use auto, cpu or cuda"
        ) from None
    return device


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes that are free for a process on this device; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
