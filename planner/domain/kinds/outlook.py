"""Plan a week to a year ahead: cost by month, and how many GPUs to commit to.

Each month is planned as a representative week, times the growth of demand.
"""

import time
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from planner.domain.formats import compact
from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.outlook.calendar import (
    WEEK_S,
    HorizonName,
    Month,
    months_of,
    occurrences_of_periods,
)
from planner.domain.outlook.commitments import (
    Commitment,
    UseStep,
    choose_commitment,
    usage_steps,
)
from planner.domain.outlook.figures import (
    MonthFigures,
    PlannedMonth,
    PoolMonth,
    gpu_uses,
    month_figures,
    pool_months,
)
from planner.domain.planning.inputs import Load, PlanInput
from planner.domain.planning.planning import forecast_load, plan_load
from planner.domain.preparation import study_at
from planner.domain.progress import Progress, part
from planner.domain.results.assumptions import REQUESTS
from planner.domain.results.basis import Frame, frame_of
from planner.domain.run_parts import IN_PROCESS, Part, Parts
from planner.domain.serialise import MERGED, moments
from planner.domain.sources import Fact, facts_of
from planner.domain.study import Study
from planner.errors import Infeasible
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import Horizon
from planner.inputs.scenario.settings import ALL, NO_GROWTH
from planner.optimizer.problem import ScalingPlan
from simulation.fleet import HOUR_S

RHYTHM_S = 2 * WEEK_S  # shortest traffic that shows a weekly rhythm
PLANNED = Fact(
    "Replicas, GPU-hours, energy, cost, carbon",
    "modelled",
    "plan of one representative week with the inputs above, not simulated",
)
TERM_WORDS = {"one_year": "a year", "three_years": "three years"}


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of cost, energy and GPU-hours over all months that have a plan."""

    cost_usd: float
    cost_committed_usd: float | None
    gpu_hours: float
    energy_kwh: float
    carbon_kg: float
    days: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OutlookResult:
    """The result of ``outlook``."""

    kind: str = "outlook"
    frame: Frame = field(metadata={MERGED: True})
    headline: str
    horizon: str
    months: tuple[MonthFigures, ...]
    totals: Totals
    commitments: tuple[Commitment, ...]
    recommended_commitments: tuple[Commitment, ...]
    use: tuple[UseStep, ...]
    basis: tuple[str, ...]  # method and limitations
    seconds: float


class Options(RunOptions):
    horizon: HorizonName = Field("year", title="Horizon")
    """Length of time after the traffic. Default: year."""


def run(inputs: Inputs, options: Options, progress: Progress, parts: Parts = IN_PROCESS) -> Outcome:
    """Plan the months after the traffic; raise Infeasible if none has a plan.

    Arguments: see ``Kind`` in planner/domain/kinds/registry.py.
    """
    begun = time.perf_counter()
    scenario = inputs.scenario
    # Plan the week after the traffic, in the scenario's periods if a week has a whole number.
    period_s = scenario.horizon.period_s
    if not period_s or WEEK_S % period_s:
        period_s = HOUR_S
    lead_s = scenario.horizon.lead_s
    week = Horizon(start="end", duration_s=WEEK_S, period_s=period_s, lead_s=lead_s)
    inputs = replace(inputs, scenario=scenario.model_copy(update={"horizon": week}))
    study = study_at(inputs, part(progress, 0.0, 0.4))
    hardware, growth, start_s = study.hardware, study.window.growth, study.window.start_s
    # The week is planned period by period and without growth, which is left to the months. Limits
    # on a whole window do not apply to it.
    week_settings = study.plan_input.settings.with_objective(periods="one", lend_share=None)
    week_window = replace(study.window, growth=NO_GROWTH)
    week_inputs = replace(study.plan_input, settings=week_settings, window=week_window)
    load = forecast_load(week_inputs, part(progress, 0.4, 0.6)).load
    months = months_of(start_s, options.horizon, study.traffic.clock)
    month_growth = [(month, float(growth.at(month.middle_s - start_s))) for month in months]
    planned = plan_months(week_inputs, load, month_growth, part(progress, 0.6, 1.0), parts)
    parts.close()
    if all(outcome.plan is None for outcome in planned):
        raise Infeasible(planned[0].conflict)
    gpus_in_use = gpu_uses(planned, hardware)
    commitments = tuple(
        choose_commitment(use, offer.term, offer.usd_per_gpu_hour)
        for use in gpus_in_use
        for offer in hardware.committed
        if (offer.region, offer.gpu) == (use.region, use.gpu)
    )
    recommended = _shortest_terms(commitments)
    rows = tuple(month_figures(outcome, hardware, recommended) for outcome in planned)
    totals = _totals(rows)
    pools = [row for outcome in planned for row in pool_months(outcome, hardware)]
    frame = frame_of(study, simulated=False)
    return Outcome(
        OutlookResult(
            frame=replace(
                frame,
                # Nothing is simulated here, so this assumption does not apply.
                assumptions=tuple(a for a in frame.assumptions if a.what != REQUESTS),
                notes=study.traffic.notes + study.sizes.notes,
                provenance=(*facts_of(hardware.provenance), PLANNED),
            ),
            headline=_headline(rows, totals, recommended, options.horizon),
            horizon=options.horizon,
            months=rows,
            totals=totals,
            commitments=commitments,
            recommended_commitments=recommended,
            use=usage_steps(gpus_in_use),
            basis=tuple(_basis(scenario, study, options.horizon, commitments)),
            seconds=time.perf_counter() - begun,
        ),
        {
            "months": _table_of(rows, MonthFigures),
            "pools": _table_of(pools, PoolMonth),
            "week": _weekly_schedules(planned, hardware),
            **({"commitments": _table_of(commitments, Commitment)} if commitments else {}),
            "use": _table_of(usage_steps(gpus_in_use), UseStep),
        },
    )


def plan_months(
    inputs: PlanInput,
    load: Load,
    months: list[tuple[Month, float]],
    progress: Progress,
    parts: Parts = IN_PROCESS,
) -> list[PlannedMonth]:
    """Return the plan of the representative week of each month.

    ``inputs`` and ``load`` are those of a week. ``months`` are (month, growth factor on ``load``);
    months with equal factors share a plan.
    """
    # By growth factor: the first month that has it. A later item of a dict replaces an earlier one.
    first_month = {growth: month for month, growth in reversed(months)}
    plans = parts.map(
        [
            Part(f"Plan: {month.label}", partial(_plan_of_steady_week, inputs, load.scaled(growth)))
            for growth, month in first_month.items()
        ],
        progress,
    )
    plan_at_growth = dict(zip(first_month, plans, strict=True))
    planned = []
    for month, growth in months:
        occurrences = occurrences_of_periods(month, inputs.window.start_s, inputs.window.period_s)
        plan_or_conflict = plan_at_growth[growth]
        if isinstance(plan_or_conflict, str):
            planned.append(PlannedMonth(month, growth, occurrences, None, plan_or_conflict))
        else:
            planned.append(PlannedMonth(month, growth, occurrences, plan_or_conflict))
    return planned


def _plan_of_steady_week(inputs: PlanInput, load: Load, progress: Progress) -> ScalingPlan | str:
    """Return the plan of a week that follows an equal week, or a sentence on why there is none.

    The week is planned twice: the second plan starts with the fleet at the end of the first.
    """
    try:
        first = plan_load(inputs, load, part(progress, 0.0, 0.5))
        last_fleet = np.asarray(first.target[-1], np.int64)
        return plan_load(replace(inputs, current=last_fleet), load, part(progress, 0.5, 1.0))
    except Infeasible as problem:
        return str(problem)


def _shortest_terms(commitments: tuple[Commitment, ...]) -> tuple[Commitment, ...]:
    """Return the commitment with the shortest term for each GPU type and region, if it pays.

    Longer terms are not recommended: a horizon of at most a year says little about three years.
    """
    shortest: dict[tuple[str, str], Commitment] = {}
    for row in commitments:  # one_year before three_years
        shortest.setdefault((row.region, row.gpu), row)
    # ``gpus`` is 0 if the commitment saves nothing.
    return tuple(row for row in shortest.values() if row.gpus)


def _totals(rows: tuple[MonthFigures, ...]) -> Totals:
    """Return the sums over the months that have a plan."""
    with_plan = [row for row in rows if row.cost_usd is not None]

    def total(name: str) -> float:
        """Return the sum of the figure ``name``; None counts as 0."""
        return float(sum(getattr(row, name) or 0.0 for row in with_plan))

    committed = any(row.cost_committed_usd is not None for row in with_plan)
    return Totals(
        cost_usd=total("cost_usd"),
        cost_committed_usd=total("cost_committed_usd") if committed else None,
        gpu_hours=total("gpu_hours"),
        energy_kwh=total("energy_kwh"),
        carbon_kg=total("carbon_kg"),
        days=total("days"),
    )


def _headline(
    rows: tuple[MonthFigures, ...],
    totals: Totals,
    recommended: tuple[Commitment, ...],
    horizon: str,
) -> str:
    """Return the cost over the horizon, months without a plan, and commitments, in sentences."""
    without_plan = [row for row in rows if row.cost_usd is None]
    with_plan = [row for row in rows if row.cost_usd is not None]
    span = f"the {horizon}" if not without_plan else f"{totals.days:,.0f} days"
    parts = [f"{compact(totals.cost_usd, '$')} for {span}"]
    first, last = with_plan[0], with_plan[-1]
    if last.growth != first.growth:
        parts[0] += f", with demand x{last.growth:.3g} at the end"
    if without_plan:
        other_months = f" and {len(without_plan) - 1} more" if without_plan[1:] else ""
        parts.append(f"No plan for {without_plan[0].month}{other_months}")
    parts += [
        f"Commit to {row.gpus:,} {row.gpu} in {row.region} for {TERM_WORDS[row.term]}: "
        f"saves {compact(row.saving_usd, '$')}"
        for row in recommended
    ]
    return ". ".join(parts)


def _basis(
    scenario: Scenario, study: Study, horizon: str, commitments: tuple[Commitment, ...]
) -> list[str]:
    """Return sentences on the method of the outlook and its limitations."""
    window, traffic = study.window, study.traffic
    sentences = [
        "Planned, not simulated. The forecast week after the trace, at the planned percentile, "
        "represents every week. Simulate one week for SLO attainment."
    ]
    if window.growth:
        sentences.append(
            f"{window.growth.words}: each month is planned at the growth of its middle day, by "
            "traffic.growth (assumed)."
        )
    elif horizon != "week":
        sentences.append("traffic.growth is not set, so every month has the first month's demand.")
    span_s = traffic.demand.end_s - traffic.demand.start_s
    if span_s < RHYTHM_S and not traffic.all_launched:
        sentences.append(
            f"The trace is {span_s / 86_400:,.3g} days long. It shows at most one weekly cycle and "
            "no yearly season."
        )
    elif not traffic.all_launched:
        sentences.append("The forecast excludes seasons of the year, holidays and campaigns.")
    sentences.append(
        "Cost includes replica starts of every week, but not the switch from the earlier fleet."
    )
    if scenario.objective.periods == ALL:
        sentences.append(
            "objective.periods: all applies to one window. Here periods follow one another."
        )
    if commitments:
        sentences.append(
            "Commitments are priced for this schedule. The plan does not consider them, so it does "
            "not shift load to regions with committed GPUs."
        )
        if horizon != "year":
            sentences.append(f"This {horizon} represents the whole term of a commitment.")
        if any(row.term == "three_years" for row in commitments):
            sentences.append("A three-year term pays only if all three years are like this one.")
    return sentences


def _table_of(rows: Any, kind: type) -> pl.DataFrame:
    """Return rows of the dataclass ``kind`` as a table, with a column for each of its fields."""
    columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(kind)}
    return pl.DataFrame(columns, strict=False)


def _weekly_schedules(planned: list[PlannedMonth], hardware: Hardware) -> pl.DataFrame:
    """Return a table of the weekly schedules of the first and the last month that have a plan."""
    frames = []
    plans = [(row.month.label, row.plan) for row in planned if row.plan is not None]
    # As keys of a dict, the first and the last month become one if only one has a plan.
    for label, plan in dict((plans[0], plans[-1])).items():
        since_start_s = np.asarray(plan.period_s * np.arange(len(plan.windows)), np.float64)
        replicas_by_pool = {
            f"{hardware.models[m].name} {hardware.regions[r].name} {hardware.arrangement(m, g)}":
            plan.target[:, m, r, g]
            for m, r, g in hardware.model_region_gpu
        }  # fmt: skip
        frames.append(
            pl.DataFrame({
                "month": [label] * len(since_start_s),
                "hour_of_week": (since_start_s / 3600).tolist(),
                "time": moments(float(plan.period_start_s[0]), since_start_s),
                **replicas_by_pool,
            })
        )  # fmt: skip
    return pl.concat(frames)
