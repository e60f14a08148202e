"""Replicas over time, by forecast and integer program."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.checks.profile_error import ProfileError, profile_errors
from planner.studies.checks.verify import Verification, verify
from planner.studies.outcome import Outcome, Traces
from planner.studies.pd.stated import StatedRatio, stated_ratios
from planner.studies.plain import MERGED, OPTIONAL
from planner.studies.planning.figures import PlanFigures, plan_figures
from planner.studies.planning.worth import worth_of
from planner.studies.preparing import planned_of, study_of
from planner.studies.progress import Progress, part
from planner.studies.results import tables
from planner.studies.results.frame import Forecasts, Frame, frame_of


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlanResult:
    """The plan's figures stand at the top, for scripts, and under ``plan`` as in a comparison."""

    kind: str = "plan"
    frame: Frame = field(metadata={MERGED: True})
    figures: PlanFigures = field(metadata={MERGED: True})
    verification: Verification | None = field(metadata={OPTIONAL: True})
    pd_ratios: tuple[StatedRatio, ...]
    plan: PlanFigures
    profile_error: tuple[ProfileError, ...]
    forecast: Forecasts
    seconds: float


def run(
    scenario: Scenario,
    traces: Traces,
    *,
    verified: bool = False,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """Replicas over time; raises Infeasible with the conflict in words. ``verified`` replays the
    plan and corrects sizes until both agree (planner.studies.checks.verify)."""
    begun = time.perf_counter()
    study = study_of(scenario, traces, known, part(progress, 0.0, 0.4))
    planned = planned_of(study, part(progress, 0.4, 0.5 if verified else 0.7))
    verification = None
    if verified:
        found = verify(study, planned, seed=scenario.seed, progress=part(progress, 0.5, 0.7))
        study, planned, verification = found.study, found.planned, found.told
    errors = profile_errors(study, planned, part(progress, 0.7, 0.85))
    worth = worth_of(study, planned, part(progress, 0.85, 1.0))
    figures = plan_figures(study, planned.plan, worth)
    return Outcome(
        PlanResult(
            frame=frame_of(study),
            figures=figures,
            verification=verification,
            pd_ratios=stated_ratios(study.hardware, study.traffic.lengths),
            plan=figures,
            profile_error=errors,
            forecast=Forecasts(planned.forecasts),
            seconds=time.perf_counter() - begun,
        ),
        tables.planned_tables(study, planned),
    )
