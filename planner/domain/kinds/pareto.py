"""Compute the Pareto front of two objectives over a window: one plan per point, and the knee."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from pydantic import Field, field_validator

from planner.domain.columns import (
    COUNT,
    NUMBER,
    SECONDS,
    TEXT,
    Column,
    Columns,
)
from planner.domain.options import RunOptions
from planner.domain.outcome import (
    Outcome,
    Traces,
)
from planner.domain.planning.inputs import Load
from planner.domain.planning.planning import plan_window
from planner.domain.planning.solving import Periods
from planner.domain.preparation import study_of
from planner.domain.progress import (
    Progress,
    part,
)
from planner.domain.results.basis import (
    Frame,
    frame_of,
)
from planner.domain.serialise import (
    COLUMNS,
    MERGED,
)
from planner.errors import Infeasible
from planner.inputs.scenario.own_hardware import (
    NOTHING,
    Known,
)
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.settings import (
    MEASURE,
    UNITS,
)
from planner.optimizer.horizon.pareto_front import (
    FrontPoint,
    horizon_front,
    knee,
)

POINTS, MOST_POINTS = 9, 25
GAP, RESOLVE_S = 1e-3, 10.0  # solver gap and time limit per point
NAMES = tuple(MEASURE)  # cost, gpu-hours, energy, carbon
# One of the two objectives must be one of these. It is capped while the other is minimised.
CAPPED = ("cost", "carbon")


def _total(measure: str, point: FrontPoint) -> float:
    return float(sum(getattr(period, measure) for period in point.plan.totals))


FRONT = Columns(
    (
        Column("first", NUMBER, "of the first objective, over the window"),
        Column("second", NUMBER, "of the second"),
        Column("first_bound", NUMBER, "no plan has less of the first at that much of the second"),
        Column("status", TEXT, "of the plan", attrgetter("plan.status")),
        *(Column(name, NUMBER, UNITS[measure], partial(_total, measure))
          for name, measure in MEASURE.items()),
        Column("starts", COUNT, "of instances", lambda point: int(_total("starts", point))),
        Column("peak_instances", COUNT, "at a time, over all regions",
               lambda point: point.plan.target.sum(axis=(1, 2, 3)).max()),
        Column("seconds", SECONDS, "of the solver", attrgetter("plan.solve_seconds")),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ParetoResult:
    """The result of ``pareto``."""

    kind: str = "pareto"
    frame: Frame = field(metadata={MERGED: True})
    of: tuple[str, str]
    units: tuple[str, str]
    points: tuple[FrontPoint, ...] = field(metadata={COLUMNS: FRONT})
    knee: int | None
    headline: str
    seconds: float


def pair_of(pair: str) -> tuple[str, str]:
    """Parse a pair such as ``cost,carbon`` into two names, the capped one last.

    Raises ValueError for an unknown name, or if neither objective can be capped.
    """
    names = [name.strip() for name in pair.split(",")]
    wrong = [name for name in names if name not in NAMES]
    if wrong or len(names) != 2 or names[0] == names[1]:
        raise ValueError(f"give two different ones of {', '.join(NAMES)}, such as cost,carbon")
    if names[1] not in CAPPED:
        names.reverse()
    if names[1] not in CAPPED:
        raise ValueError(f"one of the two must be {' or '.join(CAPPED)}")
    return names[0], names[1]


class Options(RunOptions):
    of: str = Field(
        "cost,carbon",
        title="Objectives",
        max_length=40,
        description=f"Two of {', '.join(NAMES)}, with a comma; left out: cost,carbon.",
    )
    points: int = Field(
        POINTS, title="Points", ge=2, le=MOST_POINTS, description=f"Left out: {POINTS}."
    )

    @field_validator("of")
    @classmethod
    def _pair(cls, value: str) -> str:
        return ",".join(pair_of(value))


def run(
    scenario: Scenario,
    traces: Traces,
    options: Options,
    *,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """Minimise the first objective at several levels of the second, over all periods at once.

    Raises Infeasible if there is no plan.
    """
    begun = time.perf_counter()
    first, second = pair_of(options.of)
    study = study_of(scenario, traces, known, part(progress, 0.0, 0.3))
    inputs, settings = study.plan_input.at_once(), study.settings.plan
    planned = plan_window(inputs, part(progress, 0.3, 0.5))
    front = horizon_front(
        Periods.of(inputs, Load(planned.load.tps)).together(),
        MEASURE[first],
        MEASURE[second],
        points=options.points,
        solver=settings.solver,
        gap=max(GAP, settings.gap),
        time_limit_s=min(RESOLVE_S, settings.time_limit_s),
        progress=lambda done, total: progress(
            0.5 + 0.5 * done / total, f"Plan {min(done + 1, total)} of {total}"
        ),
    )
    if not front:
        raise Infeasible("There is no plan for either objective; run plan to see what conflicts.")
    best = knee([(point.first, point.second) for point in front])
    return Outcome(
        ParetoResult(
            frame=frame_of(study),
            of=(first, second),
            units=(UNITS[MEASURE[first]], UNITS[MEASURE[second]]),
            points=front,
            knee=best,
            headline=_headline(first, second, front, best),
            seconds=time.perf_counter() - begun,
        ),
        {"front": FRONT.table(front)},
    )


def _headline(first: str, second: str, front: tuple[FrontPoint, ...], best: int | None) -> str:
    """Return the ends of the front and its knee in sentences."""
    low, high = front[0], front[-1]
    units = UNITS[MEASURE[first]], UNITS[MEASURE[second]]
    if len(front) == 1:
        return f"One plan is best in {first} and {second}: there is nothing to trade."
    sentence = (
        f"From {amount(high.second, units[1])} to {amount(low.second, units[1])} of {second}, "
        f"{first} goes from {amount(high.first, units[0])} to {amount(low.first, units[0])}."
    )
    if best is None:
        return sentence
    bend = front[best]
    return (
        f"{sentence} The curve bends at {amount(bend.first, units[0])} and "
        f"{amount(bend.second, units[1])}."
    )


def amount(value: float, unit: str) -> str:
    """Format a value of an objective: the dollar sign before, other units after it."""
    return f"${value:,.2f}" if unit == "$" else f"{value:,.2f} {unit}".rstrip()
