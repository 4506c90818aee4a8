"""The registry of published statements: `claims.yaml` beside this file, or one of your own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gatelm.config.base import Config, ConfigError, nearest
from gatelm.config.load import read_yaml

SHIPPED = Path(__file__).with_name("claims.yaml")

WRITTEN = "laptop"
"""Name of the size of a study that runs as its recipe is written."""

SIZES = (WRITTEN, "gpu", "paper")


class Bounds(Config):
    """Bounds within which a number must lie with its whole interval."""

    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("at_least, at_most or both are needed")
        return self


class CompareTest(Config):
    """`arm` has a lower (or higher) metric than `baseline`, paired by seed."""

    kind: Literal["compare"] = "compare"
    arm: str
    baseline: str = "none"
    direction: Literal["lower", "higher"] = "lower"


class OrderTest(Config):
    """Each arm has a lower metric than the next."""

    kind: Literal["order"]
    arms: tuple[str, ...] = Field(min_length=2)


class BestTest(Config):
    """`arm` has a lower (or higher) metric than each of `others`."""

    kind: Literal["best"]
    arm: str
    others: tuple[str, ...] = Field(min_length=1)
    direction: Literal["lower", "higher"] = "lower"


class ValueTest(Bounds):
    """The metric of `arm` itself lies within bounds."""

    kind: Literal["value"]
    arm: str


class RatioTest(Bounds):
    """The metric of `arm`, divided by that of `baseline` in the same seed, lies within bounds."""

    kind: Literal["ratio"]
    arm: str
    baseline: str = "none"


class DegradationTest(Config):
    """What going from one point of an axis to another adds to the metric is less in `arm`."""

    kind: Literal["degradation"]
    arm: str
    baseline: str = "none"
    axis: str
    """The last step of the axis's config path."""
    start: Any
    end: Any


class SurvivalTest(Config):
    """At some point of the axes every run of `baseline` diverged and none of `arm`, and at no
    point the other way round."""

    kind: Literal["survival"]
    arm: str
    baseline: str = "none"


class StepTest(Bounds):
    """What going from one point of an axis to another adds to the metric of `arm` lies within
    bounds."""

    kind: Literal["step"]
    arm: str
    axis: str
    """The last step of the axis's config path."""
    start: Any
    end: Any


class ParametersTest(Bounds):
    """Parameters that a change adds to a model, counted from its config: no run is needed."""

    kind: Literal["parameters"]
    model: dict[str, Any]
    """The model's config; `extends: FILE` (below the recipes) takes a shipped one."""
    change: dict[str, Any]
    """Config paths below the model, and their new values."""
    share_of: Literal["total", "attention"] | None = None
    """Divide by the parameters of the unchanged model, or of its attention; null: the count."""


Test = Annotated[
    CompareTest
    | OrderTest
    | BestTest
    | ValueTest
    | RatioTest
    | DegradationTest
    | StepTest
    | SurvivalTest
    | ParametersTest,
    Field(discriminator="kind"),
]


def names(metric: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one metric or several as a tuple."""
    return (metric,) if isinstance(metric, str) else metric


class Need(Bounds):
    """Condition for a test: the mean of an arm's metric lies within bounds."""

    arm: str
    metric: str | tuple[str, ...]
    """Of several the first that runs have."""


class Scope(Config):
    """Scope of statements: the studies, parts and points at which they are tested."""

    source: str
    """Document and table."""
    metric: str | tuple[str, ...] = "val_loss"
    """In result.json, or `seconds`, `parameters`, `flops`; of several the first that runs have."""
    studies: tuple[str, ...] = ()
    """Names of the studies that test it."""
    parts: tuple[str, ...] = ()
    """Only in these parts; empty: in every part that has the arms."""
    at: dict[str, Any] = Field(default_factory=dict)
    """Only at these points of the axes, `{last step of the config path: value}`."""
    scales: tuple[str, ...] = SIZES
    """Sizes of a study at which it can be tested."""
    why: str = ""
    """Why not at the others, or what the test leaves out."""
    needs: tuple[Need, ...] = ()


class Claim(Scope):
    """One statement and its test."""

    statement: str
    published: str = ""
    """The figure as printed."""
    test: Test | None = None
    """null: nothing that a study measures can test it, and `why` says what would."""
    contradicts: tuple[str, ...] = ()
    """Names of claims that cannot hold at the same time."""


class ClaimTable(Scope):
    """A column of a published table: each row is the claim that its arm lies on the printed side of
    the baseline."""

    what: str
    """Names the column, as in `perplexity`."""
    baseline: str = "none"
    value: float
    """Printed for the baseline."""
    rows: dict[str, float]
    """Printed for each arm."""

    @field_validator("rows")
    @classmethod
    def _some(cls, rows: dict[str, float]) -> dict[str, float]:
        if not rows:
            raise ValueError("a table needs at least one row")
        return rows

    def claims(self) -> dict[str, Claim]:
        """Make one claim for each row, by the arm's name."""
        scope = {name: getattr(self, name) for name in Scope.model_fields}
        out = {}
        for arm, value in self.rows.items():
            direction = "lower" if value < self.value else "higher"
            test = CompareTest(arm=arm, baseline=self.baseline, direction=direction)
            out[arm] = Claim(
                statement=f"{self.what}: {arm} {direction} than {self.baseline}",
                published=f"{value:g} against {self.value:g}",
                test=test,
                **scope,
            )
        return out


class Registry(Config):
    """Statements by name."""

    aliases: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Other names under which a study may have an arm; `study/name` holds in that study alone."""
    claims: dict[str, Claim] = Field(default_factory=dict)
    tables: dict[str, ClaimTable] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = self.all()
        for name, claim in known.items():
            if claim.test is None and not claim.why:
                raise ValueError(f"claims.{name}: without a test it needs a `why`")
            for other in claim.contradicts:
                if other not in known:
                    raise ValueError(
                        f"claims.{name}.contradicts: no claim {other!r}; {nearest(other, known)}"
                    )
        return self

    def all(self) -> dict[str, Claim]:
        """Return every claim, those of tables as `table/arm`."""
        rows = {
            f"{name}/{arm}": claim
            for name, table in self.tables.items()
            for arm, claim in table.claims().items()
        }
        return {**self.claims, **rows}

    def names_of(self, arm: str, study: str) -> tuple[str, ...]:
        """Return the names of an arm in a study."""
        others = self.aliases.get(arm, ())
        here = [name.removeprefix(f"{study}/") for name in others]
        return (arm, *(name for name in here if "/" not in name))


def load_registry(path: Path | None = None) -> Registry:
    """Load the shipped registry, or another one.

    Raises:
        ConfigError: it cannot be read, or an entry is wrong; the path in the file is named.
    """
    file = SHIPPED if path is None else path
    tree: Mapping[str, Any] = read_yaml(file)
    if not tree.get("claims") and not tree.get("tables"):
        raise ConfigError(f"{file}: neither `claims` nor `tables` there; not a registry of claims")
    return Registry.parse(tree, file.name)
