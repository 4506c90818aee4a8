"""Config of the measurements after training on rows longer than those of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from gatelm.config import Config, choice
from gatelm.data.config import AssociativeRecallConfig, DataConfig
from gatelm.longcontext.scaling import METHODS

if TYPE_CHECKING:
    Method = str
else:
    Method = choice(METHODS, "method")


class LongerConfig(Config):
    """Measurements of the trained model on longer rows, under several scalings of its positions."""

    methods: tuple[Method, ...] = ("none", "linear", "ntk", "yarn")
    """Scalings by their names in `gatelm extend --method`; none must be among them, since the
    others are compared with it."""
    factors: tuple[int, ...] = (2, 4, 8, 16)
    """Lengths of the rows, as multiples of `data.seq_len`."""
    sequences: int = Field(default=16, ge=1)
    """Number of held-out rows of each measurement."""
    train_steps: int | None = Field(default=None, ge=1)
    """Number of further training steps on rows of the new length. Each of `train_methods` begins
    with the trained weights, and a step has as many tokens as before. None: no more training."""
    train_methods: tuple[Method, ...] = ("none", "linear", "yarn")
    train_factor: int = Field(default=4, ge=2)
    """The length of that training, one of `factors`."""
    train_lr_ratio: float = Field(default=0.1, gt=0)
    """The constant learning rate of that training, as a fraction of `optim.lr`."""

    @field_validator("methods", "factors", "train_methods")
    @classmethod
    def _no_repeats(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError(f"each once, and at least one (got {list(value)})")
        return value

    @field_validator("methods", "train_methods")
    @classmethod
    def _has_none(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "none" not in value:
            raise ValueError("none is missing, with which the others are compared")
        return value

    @field_validator("factors")
    @classmethod
    def _longer(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if min(value) < 2:
            raise ValueError(f"2 or more times the training length (got {min(value)})")
        return value


def longer_data(data: DataConfig, factor: int) -> DataConfig:
    """Return the data with rows of `factor` times the length, and recall with `factor` x pairs.

    Raises:
        ValueError: when the task has fewer keys than pairs.
    """
    tree = {**data.tree(), "seq_len": data.seq_len * factor}
    if isinstance(data, AssociativeRecallConfig):
        tree["num_pairs"] = data.num_pairs * factor
    return type(data).parse(tree, f"longer.factors: {factor} times data.seq_len")
