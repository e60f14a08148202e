"""The first answer of a comparison: the plan before any simulation, and what is found so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.domain.planning.figures import plan_figures
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.recommend.rule import Candidate
from planner.domain.recommend.test_days import TestDay
from planner.domain.results.assurance import AssuranceFigures
from planner.domain.study import Study
from planner.inputs.scenario.schema.test_days import LEVELS


@dataclass(frozen=True, slots=True)
class PoolRange:
    """The fewest and the most replicas of a pool in the plan."""

    pool: str
    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """The plan of a window before any simulation; dollars and GPU-hours are of the whole window.

    ``attainment`` is the expected SLO attainment, by tier of the forecast. It is the share of past
    demand that a plan at this percentile of the forecast would have covered, since replicas are
    sized to serve covered demand within the SLO.
    """

    pools: tuple[PoolRange, ...]
    cost_usd: float
    gpu_hours: float
    attainment: dict[str, float]


@dataclass(frozen=True, slots=True)
class DayProgress:
    """A test day, with whether each policy passes it (by label) at the parameter value tried last.

    ``level`` is the lowest level of assurance that requires the day; "": none.
    """

    name: str
    level: str
    passes: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Preview:
    """What a comparison shows until it is finished.

    ``assurance`` has the recommendation of each level of assurance whose search has ended.
    """

    answer: FirstAnswer
    test_days: tuple[DayProgress, ...] = ()
    assurance: dict[str, AssuranceFigures] = field(default_factory=dict)


def first_answer(study: Study, planned_window: PlannedWindow) -> FirstAnswer:
    """Return the plan of a window, with the attainment expected from the forecasts of past days."""
    plan, hardware, pools = planned_window.plan, study.hardware, []
    for m, r, g in hardware.model_region_gpu:
        counts = plan.target[:, m, r, g]  # by period
        if counts.any():
            place = f"{hardware.models[m].name} in {hardware.regions[r].name}"
            name = f"{place} on {hardware.arrangement(m, g)}"
            pools.append(PoolRange(name, int(counts.min()), int(counts.max())))
    quantiles = planned_window.quantiles
    attainment = {row.tier: row.covered for row in quantiles if row.covered is not None}
    totals = plan_figures(study.plan_input, plan).totals
    return FirstAnswer(tuple(pools), totals.usd, totals.gpu_hours, attainment)


def days_so_far(
    days: Sequence[TestDay], candidates: Sequence[Candidate]
) -> tuple[DayProgress, ...]:
    """Return which candidates pass each test day, as far as they were simulated.

    Days that do not apply are left out.
    """
    progress = []
    for i, day in enumerate(days):
        if not day.cases:
            continue
        passes = {}
        for candidate in candidates:
            result = candidate.on(i, day)
            if result is not None:
                passes[candidate.label] = result.passes
        level = "" if day.level is None else LEVELS[day.level]
        progress.append(DayProgress(day.name, level, passes))
    return tuple(progress)
