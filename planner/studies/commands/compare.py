"""Forecast, plan, and every policy replayed side by side."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pydantic import Field

from planner.errors import Infeasible, ScenarioError
from planner.policies.choice import ALL
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.checks.profile_error import ProfileError, profile_errors
from planner.studies.options import PolicyKeyOrAll, RunOptions, Seed
from planner.studies.outcome import Outcome, Traces
from planner.studies.pd.stated import StatedRatio, stated_ratios
from planner.studies.plain import MERGED
from planner.studies.planning.figures import PlanFigures, plan_figures
from planner.studies.preparing import planned_of, seeded, study_of
from planner.studies.progress import Progress, part
from planner.studies.replay.chosen import policies_chosen
from planner.studies.replay.pressure import PressureTests
from planner.studies.replay.replay import run_policy
from planner.studies.results import tables
from planner.studies.results.frame import Forecasts, Frame, frame_of
from planner.studies.results.verdict import PolicyComparison, compare
from planner.studies.values import PolicyRun
from simulation.errors import SimulationError


class Options(RunOptions):
    policies: tuple[PolicyKeyOrAll, ...] = Field(
        (),
        title="Policies",
        min_length=1,
        max_length=100,
        description="Left out: the scenario's policies; all by itself: every policy there is.",
    )
    seed: Seed | None = Field(None, title="Seed", description="Left out: the scenario's seed.")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CompareResult:
    kind: str = "compare"
    frame: Frame = field(metadata={MERGED: True})
    forecast: Forecasts
    plan: PlanFigures
    pd_ratios: tuple[StatedRatio, ...]
    profile_error: tuple[ProfileError, ...]
    comparison: PolicyComparison = field(metadata={MERGED: True})
    seconds: float


def run(
    scenario: Scenario,
    traces: Traces,
    options: Options,
    *,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """Forecast, plan, and replay every policy (the scenario's, or those named) side by side."""
    begun = time.perf_counter()
    scenario = seeded(scenario, options.seed)
    study = study_of(scenario, traces, known, part(progress, 0.0, 0.15))
    chosen, left_out = policies_chosen(scenario, study, options.policies)
    planned = planned_of(study, part(progress, 0.15, 0.3))
    errors = profile_errors(study, planned, part(progress, 0.3, 0.4))
    runs: list[PolicyRun] = []
    tests = PressureTests(study)
    for i, policy in enumerate(chosen):
        step = 0.6 / len(chosen)
        try:
            runs.append(
                run_policy(
                    study,
                    policy,
                    seed=scenario.seed,
                    progress=part(progress, 0.4 + step * i, 0.4 + step * (i + 1)),
                    planned=planned,
                    tests=tests,
                )
            )
        except Infeasible as problem:  # of a yardstick; the plan itself has been made above
            left_out.append(f"{policy.title} is left out: {problem}")
        except (ScenarioError, SimulationError) as problem:
            if list(options.policies) != [ALL]:
                raise
            left_out.append(f"{policy.title} is left out: {problem}")
    if not runs:
        raise Infeasible(" ".join(left_out))
    comparison = compare(runs, scenario.objective.baseline, left_out)
    return Outcome(
        CompareResult(
            frame=frame_of(study),
            forecast=Forecasts(planned.forecasts),
            plan=plan_figures(study.plan_input, planned.plan),
            pd_ratios=stated_ratios(study.hardware, study.traffic.lengths),
            profile_error=errors,
            comparison=comparison,
            seconds=time.perf_counter() - begun,
        ),
        tables.planned_tables(study, planned) | tables.replayed_tables(comparison),
    )
