"""The precision of a run: `auto` is measured once on this machine, and remembered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.config import RunConfig
from gatelm.train.measured import remembered
from gatelm.train.parallel import device_of

Precision = Literal["fp32", "bf16"]

PAYS = 1.5
"""bf16 is chosen where its products are this many times as fast as those of fp32. Casts between the
two take a part of the gain, and bf16 is less exact."""
_HOPELESS = 10.0
"""Where bf16 takes this many times the seconds of fp32, it is emulated; larger products, too, are
slow then."""
_SURE_TRIES = 5
"""Number of measurements before bf16 is given up: another process may hold up a single one."""
_MAX_WIDTH = 512
_MAX_ROWS = 4096
_FEW_ROWS = 16
_SECONDS = 0.3
"""Time for all measurements but the first, which takes a tenth of a second if bf16 is emulated."""

Product = tuple[int, int, int]
"""(matrices, out, in) of a weight; of several matrices, as of experts, each sees some rows."""


@dataclass(frozen=True)
class ProductSpeed:
    """FLOP/s of a model's matrix products, forward and backward, in each precision."""

    fp32: float
    bf16: float

    @property
    def best(self) -> Precision:
        """The faster precision, for which `auto` stands."""
        return "bf16" if self.bf16 >= PAYS * self.fp32 else "fp32"

    def of(self, precision: Precision) -> float:
        """Return the FLOP/s in `precision`."""
        return self.bf16 if precision == "bf16" else self.fp32


def resolved(cfg: RunConfig, precision: str | None = None) -> RunConfig:
    """Replace `auto` in the config by the given precision, else by the better one here."""
    if cfg.train.precision != "auto":
        return cfg
    return with_precision(cfg, precision if precision in ("fp32", "bf16") else choose(cfg))


def with_precision(cfg: RunConfig, precision: str) -> RunConfig:
    """Return the config with `train.precision` set."""
    return cfg.replace(train=cfg.train.replace(precision=precision))


def choose(cfg: RunConfig, threads: int | None = None) -> Precision:
    """Choose the precision for `auto` on this machine, for the products of this run."""
    return product_speed(cfg, threads).best


def product_speed(cfg: RunConfig, threads: int | None = None) -> ProductSpeed:
    """Measure the speed of products on the run's device within a second, or remember it.

    The products are `x W` and its two gradients for every shape of weight in the model, its sides
    cut to 512, and for as many rows as a microbatch has tokens, while time permits; in bf16 the
    weights are cast from fp32 as in training.

    Args:
        threads: CPU threads to measure with [default: the run's, else torch's].
    """
    rows = (cfg.train.micro_batch_size or cfg.train.batch_size) * cfg.data.seq_len
    threads = threads or cfg.train.threads or torch.get_num_threads()
    products = _products(cfg.model)
    rows, device = min(rows, _MAX_ROWS), device_of(cfg.train.device)
    found = remembered(
        "products",
        [threads, rows, sorted(products.items())],
        device,
        lambda: asdict(_on_threads(products, rows, device, threads)),
    )
    return ProductSpeed(**found)


def _products(cfg: ModelConfig) -> dict[Product, int]:
    """Count the model's weight matrices by shape."""
    with torch.device("meta"):
        model = Decoder(cfg.replace(vocab_size=cfg.vocab_size or _MAX_WIDTH))
    shapes: Counter[Product] = Counter()
    for parameter in model.parameters():
        if parameter.ndim >= 2 and min(parameter.shape[-2:]) >= _FEW_ROWS:
            out, width = (min(side, _MAX_WIDTH) for side in parameter.shape[-2:])
            shapes[parameter[..., 0, 0].numel(), out, width] += 1
    return dict(shapes)


def _on_threads(
    products: Mapping[Product, int], rows: int, device: torch.device, threads: int
) -> ProductSpeed:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measured(products, rows, device)
    finally:
        torch.set_num_threads(before)


def _measured(products: Mapping[Product, int], rows: int, device: torch.device) -> ProductSpeed:
    """Measure few rows first, in case bf16 is emulated; then more, until the time is up."""
    fp32 = partial(_seconds, products, device, torch.float32)
    bf16 = partial(_seconds, products, device, torch.bfloat16)
    now = min(rows, _FEW_ROWS)
    prepared = fp32(now), bf16(now)  # the first call of a kernel also sets it up
    started = time.perf_counter()
    best, tries = prepared, 0
    while time.perf_counter() - started < _SECONDS:
        hopeless = best[1] > _HOPELESS * best[0]
        if hopeless and tries >= _SURE_TRIES:
            break
        if not hopeless and now < rows and 8 * sum(best) < _SECONDS:
            now = min(rows, 4 * now)
            best = fp32(now), bf16(now)
        best, tries = (min(best[0], fp32(now)), min(best[1], bf16(now))), tries + 1
    flops = sum(6 * now * out * width * number for (_, out, width), number in products.items())
    return ProductSpeed(flops / best[0], flops / best[1])


def _seconds(
    products: Mapping[Product, int], device: torch.device, dtype: torch.dtype, rows: int
) -> float:
    """Measure the seconds of all products, forward and backward."""
    total = 0.0
    for (matrices, out, width), number in products.items():
        each = -(-rows // matrices)
        weight = torch.zeros(out, width, device=device, requires_grad=True)
        x = torch.zeros(each, width, device=device, dtype=dtype, requires_grad=True)
        gradient = torch.zeros(each, out, device=device, dtype=dtype)
        total += number * matrices * _product_seconds(x, weight, gradient)
    return total


def _product_seconds(x: Tensor, weight: Tensor, gradient: Tensor) -> float:
    _wait(x.device)
    begun = time.perf_counter()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype == torch.bfloat16):
        y = F.linear(x, weight)
    torch.autograd.grad(y, (x, weight), gradient)
    _wait(x.device)
    return time.perf_counter() - begun


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
