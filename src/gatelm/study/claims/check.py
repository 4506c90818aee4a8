"""The check of published statements against studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from gatelm.study.claims import predicates
from gatelm.study.claims.added import added_parameters
from gatelm.study.claims.data import Point, StudyData, find_arms
from gatelm.study.claims.predicates import Evidence, Verdict
from gatelm.study.claims.registry import (
    SIZES,
    BestTest,
    Claim,
    DegradationTest,
    OrderTest,
    ParametersTest,
    Registry,
    StepTest,
    SurvivalTest,
    ValueTest,
    names,
)
from gatelm.study.results.schema import StudyResults

Names = Callable[[str], Sequence[str]]
"""The names that an arm of the registry may have in a study."""

Found = tuple[Point, list[str]]
"""A point, and its own names of the arms that a claim compares."""


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict: `reason` says why, `evidence` with which figures."""

    name: str
    claim: Claim
    verdict: Verdict
    reason: str
    evidence: tuple[Evidence, ...] = ()
    commands: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding as `gatelm study claims --json` prints it."""
        return {
            "name": self.name,
            "statement": self.claim.statement,
            "source": self.claim.source,
            "published": self.claim.published,
            "verdict": self.verdict,
            "reason": self.reason,
            "evidence": [asdict(evidence) for evidence in self.evidence],
            "commands": list(self.commands),
            "contradicts": list(self.claim.contradicts),
        }


def check(registry: Registry, studies: Sequence[StudyResults]) -> dict[str, Finding]:
    """Findings on every claim that the studies speak to, by the claims' names.

    A claim is tested on the studies that it names. A study of a name that no claim knows is asked
    about every claim whose arms and metric it has.
    """
    data = [StudyData.of(results) for results in studies]
    known = {study for claim in registry.all().values() for study in claim.studies}
    out: dict[str, Finding] = {}
    for name, claim in registry.all().items():
        asked = [s for study in claim.studies for s in data if s.name == study]
        others = [s for s in data if s.name not in known]
        alone = without_runs(name, claim)
        if alone is not None:
            if asked:
                out[name] = alone
            continue
        finding = _tested(name, claim, registry, [*asked, *others])
        if asked or any(e.verdict != "no data" for e in finding.evidence):
            out[name] = finding
    return out


def without_runs(name: str, claim: Claim) -> Finding | None:
    """Return the finding on a claim that needs no run or that no run can test; else None."""
    if claim.test is None:
        return Finding(name, claim, "not testable at this scale", claim.why)
    if not isinstance(claim.test, ParametersTest):
        return None
    evidence = added_parameters(claim.test)
    return Finding(name, claim, evidence.verdict, "counted from the config", (evidence,))


def _tested(name: str, claim: Claim, registry: Registry, studies: Sequence[StudyData]) -> Finding:
    fit = [s for s in studies if s.size in claim.scales or s.size not in SIZES]
    if studies and not fit:
        where = " and ".join(claim.scales)
        reason = f"needs the size {where}" + (f": {claim.why}" if claim.why else "")
        return Finding(name, claim, "not testable at this scale", reason)
    evidence: list[Evidence] = []
    commands: list[str] = []
    missing: list[str] = []
    parts = [(study, part) for study in fit for part in _parts(claim, registry, study, missing)]
    fresh = _fresh([part for _, part in parts])
    for study in fit:
        found: list[Evidence] = []
        for (owner, _), part in zip(parts, fresh, strict=True):
            if owner is study:
                found += _evidence(claim, registry, study, part, missing)
        if len(fit) > 1:
            found = [replace(e, where=f"{study.name}: {e.where}") for e in found]
        evidence += found
        commands += [study.command] * bool(found)
    verdict, reason = _verdict(evidence, missing)
    return Finding(name, claim, verdict, reason, tuple(evidence), tuple(dict.fromkeys(commands)))


def _verdict(evidence: Sequence[Evidence], missing: Sequence[str]) -> tuple[Verdict, str]:
    """Combine all points into one verdict: reproduced only if each tested point says so."""
    tested = [e for e in evidence if e.verdict in ("reproduced", "not reproduced")]
    held = [e for e in tested if e.verdict == "reproduced"]
    if tested:
        reason = f"holds at {len(held)} of {len(tested)} points" if len(tested) > 1 else ""
        return ("reproduced" if len(held) == len(tested) else "not reproduced"), reason
    if any(e.verdict == "not testable at this scale" for e in evidence):
        return "not testable at this scale", ""
    return "no data", "" if evidence else "; ".join(dict.fromkeys(missing))


def _parts(
    claim: Claim, registry: Registry, study: StudyData, missing: list[str]
) -> Iterator[list[Found]]:
    """Select the points of each part on which the claim is tested; adds to `missing`."""
    named = study.name in claim.studies
    names_of = partial(registry.names_of, study=study.name)
    whole: dict[str, list[Found]] = {}
    for point in study.points:
        if not _meant(claim, point, in_any_part=not named):
            continue
        arms, absent = find_arms(point, arms_of(claim), names_of)
        if absent:
            missing.append(f"{study.name}, {point.part}: no arm {', '.join(absent)}")
        else:
            whole.setdefault(point.part, []).append((point, arms))
    for part, points in whole.items():
        speaking = _speaking(claim, points)
        if speaking:
            yield speaking
        else:
            known = names(claim.metric)[0]
            missing.append(f"{study.name}, {part}: no finished run has {known}")


def _fresh(parts: Sequence[Sequence[Found]]) -> list[list[Found]]:
    """Keep each seed's runs only in the largest point that has them.

    Studies reuse runs, and a run that counted twice would be evidence of its own the second time.
    Points without any run of their own are left out.
    """
    found = [(point, arms) for part in parts for point, arms in part]
    seen: set[tuple[str, int]] = set()
    kept: dict[int, Found] = {}
    for point, arms in sorted(found, key=_num_runs, reverse=True):
        runs = {seed: _identities(point, arms, seed) for seed in _seeds(point, arms)}
        again = [seed for seed, known in runs.items() if known and known <= seen]
        seen |= set().union(*runs.values())
        if len(again) < len(runs):
            kept[id(point)] = (point.without_seeds(again, arms), arms)
    return [[kept[id(point)] for point, _ in part if id(point) in kept] for part in parts]


def _num_runs(found: Found) -> int:
    point, arms = found
    return sum(point.planned(arm) for arm in arms)


def _seeds(point: Point, arms: Sequence[str]) -> set[int]:
    return {seed for arm in arms for seed in point.runs[arm]}


def _identities(point: Point, arms: Sequence[str], seed: int) -> set[tuple[str, int]]:
    """Return the runs of a seed by hash and seed; empty if the hash of one is not known."""
    runs = [point.runs[arm][seed] for arm in arms if seed in point.runs[arm]]
    hashes = {run.config_hash for run in runs}
    return set() if "" in hashes else {(known, seed) for known in hashes}


def _evidence(
    claim: Claim, registry: Registry, study: StudyData, part: Sequence[Found], missing: list[str]
) -> Iterator[Evidence]:
    """Collect the evidence of one part of a study."""
    if not part:
        return
    metric = next((m for m in names(claim.metric) if any(p.has(m) for p, _ in part)), "")
    names_of = partial(registry.names_of, study=study.name)
    yield from _of_part(claim, names_of, part, metric)


def _speaking(claim: Claim, points: Sequence[Found]) -> list[Found]:
    """Return points that have a metric of the claim; survival is tested on runs, not grids."""
    if isinstance(claim.test, SurvivalTest):
        return [(point, arms) for point, arms in points if not point.swept]
    metrics = names(claim.metric)
    return [(point, arms) for point, arms in points if any(point.has(m) for m in metrics)]


def _of_part(
    claim: Claim, names_of: Names, part: Sequence[Found], metric: str
) -> Iterator[Evidence]:
    test = claim.test
    if isinstance(test, SurvivalTest):
        yield predicates.survival(part[0][1], [point for point, _ in part])
        return
    for point, arms in part:
        lacking = _lacking(claim, names_of, point)
        if lacking:
            yield Evidence(point.where, "not testable at this scale", lacking)
        elif isinstance(test, (DegradationTest, StepTest)):
            start = _start(test, point, [p for p, _ in part])
            if start is not None and isinstance(test, StepTest):
                yield predicates.step(test, arms, start, point, metric)
            elif start is not None and isinstance(test, DegradationTest):
                yield predicates.degradation(test, arms, start, point, metric)
        else:
            assert test is not None
            yield predicates.ONE_POINT[test.kind](test, arms, point, metric)


def _start(test: DegradationTest | StepTest, end: Point, points: Sequence[Point]) -> Point | None:
    """Return the point at which the step to `end` began; None if `end` ends no step."""
    if end.coordinate(test.axis) != test.end:
        return None
    rest = end.without(test.axis)
    return next(
        (
            point
            for point in points
            if point.coordinate(test.axis) == test.start and point.without(test.axis) == rest
        ),
        None,
    )


def _meant(claim: Claim, point: Point, *, in_any_part: bool) -> bool:
    in_part = in_any_part or not claim.parts or point.part in claim.parts
    return in_part and all(point.coordinate(axis) == value for axis, value in claim.at.items())


def _lacking(claim: Claim, names_of: Names, point: Point) -> str:
    """Return what the claim needs and the point lacks."""
    for need in claim.needs:
        arms, absent = find_arms(point, [need.arm], names_of)
        metric = next((m for m in names(need.metric) if point.has(m)), names(need.metric)[0])
        mean = None if absent else point.mean(arms[0], metric).mean
        if mean is None:
            return f"needs {metric} of {need.arm}, which is not there"
        low = need.at_least is not None and mean < need.at_least
        if low or (need.at_most is not None and mean > need.at_most):
            wanted = predicates.bounds_text(need)
            return f"needs {metric} of {need.arm} {wanted}, and here it is {mean:.4g}"
    return ""


def arms_of(claim: Claim) -> list[str]:
    """Return the arms that a claim's test compares, in its order."""
    match claim.test:
        case OrderTest(arms=arms):
            return list(arms)
        case BestTest(arm=arm, others=others):
            return [arm, *others]
        case ValueTest(arm=arm) | StepTest(arm=arm):
            return [arm]
        case ParametersTest() | None:
            return []
        case test:
            return [test.arm, test.baseline]
