"""One policy, replayed request by request."""

from __future__ import annotations

import time

from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.outcome import REQUESTS, Outcome, Traces
from planner.studies.preparing import frame, seeded, study_of
from planner.studies.progress import Progress, part
from planner.studies.replay.chosen import policy_chosen
from planner.studies.replay.replay import run_policy
from planner.studies.results import documents as doc
from planner.studies.results import tables
from planner.studies.results.comparison import compare


def run(
    scenario: Scenario,
    traces: Traces,
    *,
    policy: str,
    seed: int | None = None,
    requests: bool = False,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """One policy replayed on the scenario's requests; ``seed`` stands in for the scenario's, with
    ``requests`` a table has a row per request."""
    begun = time.perf_counter()
    scenario = seeded(scenario, seed)
    study = study_of(scenario, traces, known, part(progress, 0.0, 0.3))
    replay = run_policy(
        study,
        policy_chosen(scenario, policy),
        seed=scenario.seed,
        progress=part(progress, 0.3, 1.0),
        requests=requests,
    )
    comparison = compare([replay])
    return Outcome(
        {
            "kind": "simulate",
            "policy": replay.name,
            **frame(study),
            **doc.policy_document(replay),
            **doc.comparison_document(comparison),
            "headline": f"{replay.label}: {replay.summary.gpu_hours:,.1f} GPU-hours.",
            "seconds": time.perf_counter() - begun,
        },
        {
            "demand": tables.demand_table(study.traffic.demand),
            **tables.replayed_tables(comparison),
            **({} if replay.detail.requests is None else {REQUESTS: replay.detail.requests}),
        },
    )
