"""Plan replicas over time, by a forecast and an integer program."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import Field, ValidationError

from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.parallel import run_in_parallel
from planner.domain.pd.plan_ratios import StatedRatio, stated_ratios
from planner.domain.planning.figures import PlanFigures, window_figures
from planner.domain.planning.marginal_values import (
    LIMITS,
    marginal_values,
    with_looser_limits,
)
from planner.domain.planning.spare_replicas import spare_of
from planner.domain.preparation import planned_of, study_of
from planner.domain.progress import Progress, part
from planner.domain.recommend.test_days import TestDays
from planner.domain.replay.power_caps import plans_by_cap
from planner.domain.results import tables
from planner.domain.results.answer import schedule_tables
from planner.domain.results.basis import Forecasts, Frame, frame_of
from planner.domain.results.recommended_policy import RecommendedPlan, recommended_plan
from planner.domain.serialise import MERGED, OPTIONAL
from planner.domain.sizing.closed_form import begin_closed_rates
from planner.domain.study import Study
from planner.domain.verification.profile_error import (
    ProfileError,
    hardware_at_errors,
    profile_errors,
)
from planner.domain.verification.verify import Verification, verify
from planner.domain.whatif.plan_inputs import basis_of, request_samples
from planner.errors import ScenarioError
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import (
    Gap,
    Minimise,
    Objective,
    Periods,
    Solver,
    TimeLimit,
)
from planner.inputs.scenario.schema.test_days import LEVELS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlanResult:
    """The result of ``plan``.

    The figures are at the top, for scripts, and also under ``plan``, as in a comparison.
    """

    kind: str = "plan"
    frame: Frame = field(metadata={MERGED: True})
    figures: PlanFigures = field(metadata={MERGED: True})
    recommended: RecommendedPlan
    verification: Verification | None = field(metadata={OPTIONAL: True})
    pd_ratios: tuple[StatedRatio, ...]
    plan: PlanFigures
    profile_error: tuple[ProfileError, ...]
    forecast: Forecasts
    seconds: float


class Options(RunOptions):
    """Options of ``plan``; default: the scenario's objective."""

    solver: Solver | None = Field(None, title="Solver")
    """Solver. Default, as below: the scenario's."""
    gap: Gap | None = Field(None, title="Gap")
    """Allowed gap to the lowest cost, as a share."""
    time_limit_s: TimeLimit | None = Field(None, title="Time limit")
    """Seconds for each period."""
    verify: bool = Field(False, title="Verified by simulation")
    """Simulate the plan, correct its sizes, and name causes of SLO misses."""
    minimise: Minimise | None = Field(None, title="Minimise")
    """What the plan minimizes."""
    periods: Periods | None = Field(None, title="Periods")
    """One period at a time, or all in one program."""


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Return a plan of replicas over time; raise Infeasible with the reason if there is none.

    Arguments: see ``Kind`` in planner/domain/kinds/registry.py.
    """
    begun = time.perf_counter()
    scenario = with_objective(inputs.scenario, options)
    inputs = replace(inputs, scenario=scenario)
    study = study_of(inputs, part(progress, 0.0, 0.4))
    if not options.verify:  # a verification may change the sizes
        _begin_closed_forms(study)
    planned = planned_of(study, part(progress, 0.4, 0.5 if options.verify else 0.7))
    verification, replayed = None, None
    if options.verify:
        # Verification may correct the sizes and plan again, so it replaces study and plan.
        checked = verify(study, planned, seed=scenario.seed, progress=part(progress, 0.5, 0.7))
        study, planned, verification = checked.study, checked.planned, checked.report
        replayed = checked.run
    steps: list[Callable[[Progress], Any]] = [
        partial(profile_errors, study, planned.load, planned.plan),
        partial(marginal_values, study.plan_input, planned),
        partial(spare_of, study.plan_input, planned),
    ]
    errors, worth, spare = run_in_parallel(steps, part(progress, 0.7, 0.9))
    caps = plans_by_cap(study, planned, scenario.seed, part(progress, 0.9, 1.0))
    figures = window_figures(study.plan_input, planned, worth, spare, caps)
    days = TestDays(study, scenario.test_days, scenario.seed)
    lacks_spare = spare is None and days.spare_at(LEVELS.index(scenario.assurance))
    recommended = recommended_plan(
        study, planned.plan, figures.totals, replayed,
        lacks_spare=scenario.assurance if lacks_spare else "",
    )  # fmt: skip
    return Outcome(
        PlanResult(
            frame=frame_of(study, simulated=False),
            figures=figures,  # at the top for scripts, and under ``plan`` as in a comparison
            recommended=recommended,
            verification=verification,
            pd_ratios=stated_ratios(study, planned.plan.target),
            plan=figures,
            profile_error=errors,
            forecast=Forecasts(planned.forecasts, planned.quantiles),
            seconds=time.perf_counter() - begun,
        ),
        tables.planned_tables(study, planned) | schedule_tables(recommended.timetable),
        basis_of(study, planned),
    )


def _begin_closed_forms(study: Study) -> None:
    """Begin to compute the closed forms of capacity that later steps need, in other processes."""
    traffic, pools = study.traffic, study.sizes.capacity
    samples = request_samples(traffic)
    begin_closed_rates(
        study.hardware,
        pools,
        [sample.lengths for sample in samples],
        [sample.shared_prompts for sample in samples],
    )
    looser = [with_looser_limits(study.hardware, limit) for limit in LIMITS]
    for hardware in (*looser, *hardware_at_errors(study.hardware)):
        begin_closed_rates(hardware, pools, traffic.lengths, traffic.shared)


def with_objective(scenario: Scenario, options: Options) -> Scenario:
    """Return ``scenario`` with the objective changed by the options.

    Raises ScenarioError if the options contradict limits of the scenario.
    """
    stated = options.model_dump(exclude={"verify"}, exclude_none=True)
    try:
        objective = Objective.model_validate(scenario.objective.model_dump() | stated)
    except ValidationError as error:  # the scenario's limits contradict the options
        raise ScenarioError(f"objective: {error.errors()[0]['msg']}.") from None
    return scenario.model_copy(update={"objective": objective})
