"""Compute the cost of a static fleet with the same SLO attainment as a policy.

Savings are compared at equal attainment (methods.md X4).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.progress import Progress, part, silent
from planner.domain.replay.initial_fleet import fleet_from_today
from planner.domain.replay.replica_loss import gpus_used
from planner.domain.replay.smallest_counts import fewest
from planner.domain.study import PolicyRun, Study
from planner.inputs.scenario.faults import faults_of
from simulation.arrays import IntArray
from simulation.cells import per_cell, simulate_cell
from simulation.fleet import Fleet
from simulation.metrics import Summary
from simulation.policies.static import Static
from simulation.policies.wrappers.scale_in import ScaleInOptions
from simulation.trace_replay import summarise_replay

EQUAL_SLO = 0.002  # attainment within this of each other counts as equal
FAR_BELOW_TARGET = 0.1  # runs this far below a target get no equal-attainment cost
REFERENCE_FLEETS = ("flat-min", "flat-peak")  # proportions of the static fleets: the first that ran


def equally_good(summary: Summary, as_good: Summary) -> bool:
    """Return whether ``summary`` attains at least the SLO attainment of ``as_good`` in each tier.

    Attainments within ``EQUAL_SLO`` of each other count as equal.
    """
    return all(
        share is None or (summary.slo_attainment[tier] or 0.0) >= share - EQUAL_SLO
        for tier, share in as_good.slo_attainment.items()
    )


@dataclass(eq=False)
class FlatFleets:
    """Static fleets of all sizes, in the proportions of the replica counts ``base [pools]``.

    They show what a policy's SLO attainment would cost without scaling. They start from today's
    fleet and have the prices of the policy's fleet. Replays are kept, so none is repeated.
    """

    study: Study
    base: IntArray
    seed: int
    progress: Progress = silent
    _known: dict[bytes, Summary] = field(default_factory=dict, init=False)

    def as_good_as(self, as_good: Summary) -> Summary | None:
        """Return the smallest static fleet with the SLO attainment of ``as_good``, as a summary.

        It is found by replays. Return None if the GPUs do not suffice for such a fleet.
        """
        pools = self.study.fleet(self.base).pools
        least = np.where(self.base > 0, 1, 0)
        largest = np.where(self.base > 0, [pool.maximum for pool in pools], 0)
        counts = fewest(
            lambda counts: equally_good(self.replay(counts), as_good), self.base, least, largest
        )
        served = self.replay(counts)
        enough_gpus = (gpus_used(self.study, counts) <= self.study.hardware.capacity_gpus).all()
        return served if equally_good(served, as_good) and enough_gpus else None

    def replay(self, counts: IntArray) -> Summary:
        """Return the summary of the static fleet ``counts [pools]``, replayed once."""
        key = per_cell(counts, self.study.cells).tobytes()
        if key not in self._known:
            self._known[key] = self._replay(counts)
        return self._known[key]

    def record(self, run: PolicyRun) -> None:
        """Keep the summary of a static fleet's run, so that this fleet is not replayed again."""
        counts = np.array([pool.initial for pool in run.fleet.pools], np.int64)
        if not run.traits.flat or len(counts) != len(self.base):
            return
        fleet, _ = self._started_fleet(counts)
        if fleet.pools == run.fleet.pools:
            self._known[per_cell(counts, self.study.cells).tobytes()] = run.summary

    def _started_fleet(self, counts: IntArray) -> tuple[Fleet, ScaleInOptions]:
        """Return the static fleet ``counts [pools]``, begun from today's fleet, and its policy."""
        study, lend = self.study, self.study.settings.scale_in.lend
        fleet = study.fleet(counts)
        fleet = replace(fleet, faults=faults_of(study.hardware.faults, fleet.pools))
        policy = ScaleInOptions(Static(counts), lend=lend)
        return fleet_from_today(study, fleet, range(len(counts)), policy, lend=lend), policy

    def _replay(self, counts: IntArray) -> Summary:
        """Replay the static fleet ``counts [pools]`` and return its summary."""
        study = self.study
        self.progress(0.5, "Comparing at equal attainment")
        fleet, policy = self._started_fleet(counts)
        result = simulate_cell(
            study.trace,
            fleet,
            policy,
            cells=study.cells,
            seed=self.seed,
            duration_s=study.window.duration_s,
            brief=True,
            carried=study.carried,
        )
        return summarise_replay(result, brief=True)


def with_flat_costs(
    study: Study, runs: Sequence[PolicyRun], *, seed: int, progress: Progress
) -> list[PolicyRun]:
    """Return ``runs``, each with the cost of the smallest static fleet of equal SLO attainment.

    It is ``flat_usd``, in dollars; None for runs more than ``FAR_BELOW_TARGET`` below a tier's
    target. The runs are returned unchanged if none is a static fleet, or if all have equal
    attainment.
    """
    by_name = {run.name: run for run in runs}
    references = [by_name[name] for name in REFERENCE_FLEETS if name in by_name]
    if not references:
        return list(runs)
    reference = references[0]
    # If all attain the same, every cost is its own cost at equal attainment.
    differ = any(
        not equally_good(run.summary, reference.summary)
        or not equally_good(reference.summary, run.summary)
        for run in runs
    )
    counts = np.array([pool.initial for pool in reference.fleet.pools], np.int64)
    if not differ or not counts.any():
        return list(runs)
    fleets = FlatFleets(study, counts, seed)
    for run in runs:
        fleets.record(run)
    with_costs = []
    for i, run in enumerate(runs):
        fleets.progress = part(progress, i / len(runs), (i + 1) / len(runs))
        flat_summary = None if _misses_by_far(run) else fleets.as_good_as(run.summary)
        flat_usd = None if flat_summary is None else flat_summary.cost_usd
        with_costs.append(replace(run, flat_usd=flat_usd))
    return with_costs


def _misses_by_far(run: PolicyRun) -> bool:
    """Return whether a tier's attainment is more than FAR_BELOW_TARGET below its target."""
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    return any(
        share is not None and share < targets[tier] - FAR_BELOW_TARGET
        for tier, share in run.summary.slo_attainment.items()
    )
