"""Simulate one policy request by request."""

import time
from dataclasses import dataclass, field

from pydantic import Field

from planner.domain.formats import figure
from planner.domain.module_figures import ModuleFigures
from planner.domain.options import PolicyKey, RunOptions, Seed
from planner.domain.outcome import REQUESTS, Inputs, Outcome
from planner.domain.preparation import study_of, with_seed
from planner.domain.progress import Progress, part
from planner.domain.replay.module_report import module_figures
from planner.domain.replay.policy_selection import policy_chosen
from planner.domain.replay.replay import ReplayOptions, run_policy
from planner.domain.results import tables
from planner.domain.results.basis import Frame, frame_of
from planner.domain.results.figures import POLICIES
from planner.domain.results.plan_versus_replay import plan_and_replay
from planner.domain.results.ranking import PolicyComparison, compare
from planner.domain.serialise import COLUMNS, MERGED, OPTIONAL
from planner.domain.study import PolicyRun
from planner.errors import ScenarioError

MOST_KEPT = 50_000_000  # most requests to keep a row of: all rows are in memory at once


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SimulateResult:
    """The result of ``simulate``.

    The policy's figures are at the top, for scripts, and also under ``policies``, as in a
    comparison.
    """

    kind: str = "simulate"
    frame: Frame = field(metadata={MERGED: True})
    figures: PolicyRun = field(metadata={COLUMNS: POLICIES, MERGED: True})
    comparison: PolicyComparison = field(metadata={MERGED: True})
    headline: str
    modules: tuple[ModuleFigures, ...] | None = field(metadata={OPTIONAL: True})
    seconds: float


class Options(RunOptions):
    policy: PolicyKey = Field(title="Policy")
    """Policy, as name or name:label."""
    seed: Seed | None = Field(None, title="Seed")
    """Seed of the simulation. Default: the scenario's."""
    requests: bool = Field(False, title="Store the result of every request")
    """Keep a table with a row per request, at most 50 million."""


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Return the figures of one policy, simulated on the scenario's requests.

    Raises ScenarioError if a row per request is asked for, and there are more than ``MOST_KEPT``.
    """
    begun = time.perf_counter()
    inputs = with_seed(inputs, options.seed)
    scenario = inputs.scenario
    study = study_of(inputs, part(progress, 0.0, 0.3))
    requests = len(study.trace)
    if options.requests and requests > MOST_KEPT:
        raise ScenarioError(
            f"requests: the window has {requests:,} requests, and a row for each can be kept of "
            f"{MOST_KEPT:,}. Leave out the option (on the command line: --out) to replay them "
            "as a stream, or choose a shorter horizon.duration_s."
        )
    replay = run_policy(
        study,
        policy_chosen(scenario, options.policy),
        seed=scenario.seed,
        progress=part(progress, 0.3, 1.0),
        options=ReplayOptions(requests=options.requests, spare=True),
    )
    comparison = compare([replay], left_out=plan_and_replay([replay]))
    requests_table = replay.detail.requests
    return Outcome(
        SimulateResult(
            frame=frame_of(study, has_all_requests=options.requests),
            figures=replay,
            comparison=comparison,
            headline=f"{replay.label}: {figure(replay.summary.cost_usd, '$')}.",
            modules=module_figures([replay]),
            seconds=time.perf_counter() - begun,
        ),
        {
            "demand": tables.demand_table(study.traffic.demand),
            **tables.replayed_tables(comparison),
            **({} if requests_table is None else {REQUESTS: requests_table}),
        },
    )
