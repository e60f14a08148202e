"""Compute the trade-off of two objectives over a window: plans of their Pareto front.

A front is a list of plans, none of which is better than another in both objectives. Its knee is
the plan that gains most in one objective for little of the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import polars as pl
from pydantic import Field, field_validator

from planner.domain.formats import signed_percent
from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.preparation import planned_of, study_of
from planner.domain.progress import Progress, part
from planner.domain.recommend.rule import TIE
from planner.domain.results.basis import Frame, frame_of
from planner.domain.serialise import KEY, MERGED, as_json
from planner.domain.traffic.forecasts import PlanningLevel
from planner.domain.whatif.answer import StoredPlan, answer_what_if
from planner.domain.whatif.figures import WhatIf
from planner.domain.whatif.objectives import NAMES, front, pair_of, total
from planner.domain.whatif.plan_inputs import Basis, basis_of
from planner.errors import Infeasible
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.settings import ALL, MEASURE, UNITS
from planner.optimizer.pareto_front import knee

POINTS, MOST_POINTS = 9, 25
SOLVE_S = 10.0  # time limit of the solver per point


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """One plan of a front: its two objectives, and its totals over the window."""

    first: float
    second: float
    # Lower bound of the first objective, of plans with at most ``second``; None: not known.
    first_bound: float | None
    status: str
    cost: float
    gpu_hours: float = field(metadata={KEY: "gpu-hours"})
    energy: float
    carbon: float
    starts: int
    peak_instances: int  # over all regions
    seconds: float  # solver time, s

    @classmethod
    def of(cls, answer: WhatIf, pair: tuple[str, str], first_bound: float | None) -> FrontPlan:
        """Return the figures of ``answer``, which has a plan; ``pair`` are the two objectives."""
        first, second = pair
        assert answer.totals is not None
        return cls(
            first=total(answer, first),
            second=total(answer, second),
            first_bound=first_bound,
            status=answer.status,
            cost=total(answer, "cost"),
            gpu_hours=total(answer, "gpu-hours"),
            energy=total(answer, "energy"),
            carbon=total(answer, "carbon"),
            starts=answer.totals.starts,
            peak_instances=answer.most,
            seconds=answer.solve_seconds,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ParetoResult:
    """The result of ``pareto``."""

    kind: str = "pareto"
    frame: Frame = field(metadata={MERGED: True})
    of: tuple[str, str]
    units: tuple[str, str]
    points: tuple[FrontPlan, ...]
    knee: int | None
    planned_for: tuple[str, ...]  # parts of the forecast that every plan covers, such as P95
    headline: str
    seconds: float
    # The present plan, on the same demand; None: a result of an older version.
    as_planned: FrontPlan | None = None
    # Simulated cost of the present plan; None: not simulated.
    simulated_usd: float | None = None


class Options(RunOptions):
    of: str = Field(
        "cost,carbon",
        title="Objectives",
        max_length=40,
        description=f"Two of {', '.join(NAMES)}. Default: cost,carbon.",
    )
    points: int = Field(
        POINTS,
        title="Points",
        ge=2,
        le=MOST_POINTS,
        description=f"Number of plans. Default: {POINTS}.",
    )

    @field_validator("of")
    @classmethod
    def _pair(cls, value: str) -> str:
        """Return the two objectives as text, in the order of ``pair_of``; ValueError for others."""
        return ",".join(pair_of(value))


def run(
    inputs: Inputs,
    options: Options,
    progress: Progress,
    *,
    basis: Basis | None = None,
    simulated_usd: float | None = None,
) -> Outcome:
    """Return plans with the least of the first objective, under several bounds on the second.

    ``basis`` has the inputs of the plan that a comparison recommends, and ``simulated_usd`` is its
    simulated cost; None: take the scenario's own plan. All periods are planned together, because
    the bounds are on their sum. Raises Infeasible if there is no plan. Other arguments: see
    ``Kind`` in planner/domain/kinds/registry.py.
    """
    begun = time.perf_counter()
    scenario, user_facts = inputs.scenario, inputs.user_facts
    study = study_of(inputs, part(progress, 0.0, 0.3))
    if basis is None:
        basis = basis_of(study, planned_of(study, part(progress, 0.3, 0.5)))
    first, second = pair = pair_of(options.of)
    # The scenario's plan as it is, for comparison with the plans of the front.
    present = answer_what_if(StoredPlan(scenario, user_facts, basis, solve_s=SOLVE_S), {})
    # A recommended static fleet has no other plans, so the front follows the forecast.
    basis = replace(basis, flat=None)
    base = StoredPlan(planned_together(scenario), user_facts, basis, solve_s=SOLVE_S)
    front_points = front(base, pair, options.points, part(progress, 0.5, 1.0))
    points = undominated(
        [FrontPlan.of(point.plan[0], pair, point.first_bound) for point in front_points]
    )
    if not points or present.totals is None:
        raise Infeasible("There is no plan for either objective. Run plan to see what conflicts.")
    knee_index = knee([(point.first, point.second) for point in points])
    as_planned = FrontPlan.of(present, pair, None)
    planned_for = (str(PlanningLevel(series.level, series.times)) for series in basis.series)
    return Outcome(
        ParetoResult(
            frame=frame_of(study, simulated=False),
            of=pair,
            units=(UNITS[MEASURE[first]], UNITS[MEASURE[second]]),
            points=points,
            knee=knee_index,
            planned_for=tuple(dict.fromkeys(planned_for)),
            headline=_headline(*pair, points, knee_index, as_planned),
            seconds=time.perf_counter() - begun,
            as_planned=as_planned,
            simulated_usd=simulated_usd,
        ),
        {"front": pl.DataFrame(as_json(points), infer_schema_length=None)},
        basis,
    )


def planned_together(scenario: Scenario) -> Scenario:
    """Return ``scenario`` with all periods planned in one program, which must serve all demand."""
    objective = scenario.objective.model_copy(update={"periods": ALL, "limited": None})
    return scenario.model_copy(update={"objective": objective})


def undominated(plans: Sequence[FrontPlan]) -> tuple[FrontPlan, ...]:
    """Return the plans that no other beats in both objectives, rounded as pages show them.

    They are in rising order of the second objective.
    """

    def rounded(value: float) -> float:
        """Return an objective, rounded as pages show it."""
        return float(f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}")

    # In rising order of the second objective, a plan is undominated if its first one is lower than
    # that of every plan before.
    front: list[FrontPlan] = []
    for plan in sorted(plans, key=lambda plan: (rounded(plan.second), plan.first)):
        if not front or rounded(plan.first) < rounded(front[-1].first):
            front.append(plan)
    return tuple(front)


def has_trade_off(plans: tuple[FrontPlan, ...]) -> bool:
    """Return whether the plans of a front differ by more than ``TIE`` in one of the objectives.

    Plans are in rising order of the second objective, so the first one falls.
    """
    least_second, least_first = plans[0], plans[-1]
    first_differs = least_second.first > least_first.first * (1 + TIE)
    second_differs = least_first.second > least_second.second * (1 + TIE)
    return first_differs or second_differs


def _headline(
    first: str,
    second: str,
    plans: tuple[FrontPlan, ...],
    knee_index: int | None,
    as_planned: FrontPlan,
) -> str:
    """Return which plan to take, such as "Choose plan 2: carbon −12%, cost +3% vs the plan".

    If no plan of the front saves more than ``TIE`` of an objective, it is the present plan. Plans
    have numbers from 1, in rising order of the second objective.
    """
    least_second, least_first = plans[0], plans[-1]
    saves_first = as_planned.first > least_first.first * (1 + TIE)
    saves_second = as_planned.second > least_second.second * (1 + TIE)
    if not saves_first and not saves_second:
        return f"Keep the plan: no other saves more than {TIE:.0%} of {first} or {second}"
    index = knee_index
    if index is None:  # no knee: the end of the front that saves most of one objective
        index = 0 if saves_second else len(plans) - 1
    chosen, changes = plans[index], []
    for name, value, planned in (
        (second, chosen.second, as_planned.second),
        (first, chosen.first, as_planned.first),
    ):
        change = value / planned - 1 if planned else 0.0
        changes.append(f"{name} {signed_percent(change)}")
    return f"Choose plan {index + 1}: {', '.join(changes)} vs the plan"
