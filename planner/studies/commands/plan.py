"""Replicas over time, by forecast and integer program."""

from __future__ import annotations

import time

from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.checks.profile_error import profile_errors
from planner.studies.checks.verify import verify
from planner.studies.outcome import Outcome, Traces
from planner.studies.pd.stated import stated_ratios
from planner.studies.planning.worth import worth_document
from planner.studies.preparing import frame, plan_figures, planned_of, study_of
from planner.studies.progress import Progress, part
from planner.studies.results import documents as doc
from planner.studies.results import tables


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
    verification: doc.Document = {}
    if verified:
        found = verify(study, planned, seed=scenario.seed, progress=part(progress, 0.5, 0.7))
        study, planned = found.study, found.planned
        verification = {"verification": found.document()}
    errors = profile_errors(study, planned, part(progress, 0.7, 0.85))
    worth = worth_document(study, planned, part(progress, 0.85, 1.0))
    figures = plan_figures(study, planned) | {"worth": worth}
    return Outcome(
        {
            "kind": "plan",
            **frame(study),
            **figures,
            **verification,
            "pd_ratios": stated_ratios(study.hardware, study.traffic.lengths),
            "plan": figures,
            "profile_error": errors,
            "forecast": {"series": doc.forecast_document(planned.forecasts)},
            "seconds": time.perf_counter() - begun,
        },
        {
            "demand": tables.demand_table(study.traffic.demand),
            "forecast": tables.forecast_table(planned.forecasts),
            "plan": tables.plan_table(planned.plan, study.hardware, study.sizes.theta_tps),
        },
    )
