"""Every policy of a scenario replayed on the same requests and the same hardware."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import ScalingPlan
from planner.scenario.build import Hardware
from planner.scenario.faults import faults_of
from planner.scenario.schema import Policy, Scenario
from planner.scenario.schema.policies import label_of
from planner.studies.planning.planning import Planned, flat_at_peak
from planner.studies.progress import Progress, part
from planner.studies.replay.detail import Detail, detail_of
from planner.studies.replay.policies import make_ready
from planner.studies.sizing.sizing import Sizes
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window
from simulation.arrays import IntArray
from simulation.engine.run import simulate
from simulation.fleet import Fleet
from simulation.metrics import Summary, summarise
from simulation.policies.wrappers.released import Released
from simulation.results import PoolSeries
from simulation.trace import Trace

MAX_INTERVALS = 1440  # of the series kept per policy: by the minute for a day


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What all policies of one scenario share."""

    scenario: Scenario
    hardware: Hardware
    traffic: Traffic
    window: Window
    sizes: Sizes
    trace: Trace  # the requests of the window
    peak: IntArray  # [l, r, g] the flat fleet at peak
    misfit: str  # why that does not cover the peak, "" where it does
    kept: dict[str, Any] = field(default_factory=dict)  # computed once for several policies

    @property
    def today(self) -> IntArray:
        """What runs now; where the scenario does not say, a flat fleet at peak is assumed."""
        return self.peak if self.hardware.today is None else self.hardware.today

    def pools(self, counts: IntArray) -> IntArray:
        """``[..., l, r, g]`` to ``[..., pools]``."""
        index = tuple(np.array(self.hardware.pool_index).T)
        return np.asarray(counts[(..., *index)])


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRun:
    """One policy's outcome."""

    name: str
    label: str
    summary: Summary
    fleet: Fleet
    series: PoolSeries
    plan: ScalingPlan | None  # of the planned ones
    detail: Detail
    kind: str = ""  # the policy's name, where ``name`` tells several of it apart

    @property
    def meets_slo(self) -> bool:
        return all(self.summary.met.values())


def prepare(
    scenario: Scenario,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    sizes: Sizes,
    requests: Trace,
) -> Study:
    peak, misfit = flat_at_peak(scenario, hardware, traffic, window, sizes)
    return Study(scenario, hardware, traffic, window, sizes, requests, peak, misfit)


def run_policy(
    study: Study,
    policy: Policy,
    *,
    seed: int,
    progress: Progress,
    planned: Planned | None = None,
    requests: bool = False,
) -> PolicyRun:
    """Replay one policy; ``planned`` saves planning again where the caller has planned already,
    with ``requests`` a row per request is kept."""
    check_policy(study, policy.name)
    label = label_of(policy)
    ready = make_ready(study, policy, seed=seed, progress=progress, planned=planned)
    fleet = replace(ready.fleet, faults=faults_of(study.hardware.faults, ready.fleet.pools))
    given = study.scenario.fleet.scale_in
    chosen = Released(ready.policy, soft_s=given.soft_s, lend=given.lend)
    run = part(progress, ready.after, 1.0)
    interval = max(60.0, float(np.ceil(study.window.duration_s / MAX_INTERVALS / 60) * 60))
    result = simulate(
        study.trace,
        fleet,
        chosen,
        seed=seed,
        duration_s=study.window.duration_s,
        interval_s=interval,
        progress=lambda done: run(done, f"Replaying: {label}"),
    )
    arranged = [study.hardware.arrangement(m, g) for m, _, g in study.hardware.pool_index]
    labels = [arranged[p] for p in ready.whence]
    detail = detail_of(result, labels, requests=requests)
    summary = summarise(result)
    return PolicyRun(
        policy.key, label, summary, fleet, result.series, ready.plan, detail, policy.name
    )


def check_policy(study: Study, name: str) -> None:
    """Raise ScenarioError where the study does not have what the policy needs."""
    if name == "today" and study.hardware.today is None:
        raise ScenarioError("policies: 'today' needs fleet.today to say what runs today.")
    if name == "lt-i-perfect" and study.window.ahead:
        raise ScenarioError(
            "policies: 'lt-i-perfect' is told what came, which nobody knows of a window after the "
            "traffic; leave it out, or choose a horizon.start within the traffic."
        )
