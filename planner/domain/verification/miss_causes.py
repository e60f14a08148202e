"""Find why the replay of a plan missed the SLO of a tier, by counterfactual replays.

The same requests are replayed several times, with one more possible cause removed each time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_load, plan_window
from planner.domain.progress import Progress, part
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import IN_DETAIL, ReplayOptions, run_policy
from planner.domain.study import PolicyRun, Study
from planner.domain.verification.correction import PERFECT
from planner.errors import Infeasible
from planner.policies.choice import policy_of
from simulation.fleet import Fleet

FAULTS, START_UP, ROUTING, FORECAST, SIZE = "faults", "start-up", "routing", "forecast", "size"
ANY_SIZE = "no size"  # the rest: missed at any size
# How each cause is removed, in words that follow "met".
WORDS_WITHOUT_CAUSE = {
    FAULTS: "without faults",
    START_UP: "with instant starts of replicas",
    FORECAST: "planned on a perfect forecast",
    ROUTING: "with every region open to every request at no distance",
    SIZE: "with twice the replicas",
    ANY_SIZE: "by none of these",
}
GPU_FACTOR = 4  # factor on available GPUs and limits, enough for twice the replicas


@dataclass(frozen=True, slots=True)
class Cause:
    """The share of a tier's requests that missed their limits because of one cause.

    ``missed_before`` and ``missed_after`` are the shares that miss with and without this cause. In
    both, the causes listed earlier are removed.
    """

    tier: str
    cause: str
    changed: str  # how the cause is removed, in words
    missed_before: float
    missed_after: float
    share: float  # the difference of the two


def causes(
    study: Study, planned_window: PlannedWindow, run: PolicyRun, seed: int, progress: Progress
) -> tuple[Cause, ...]:
    """Return the causes of misses of each tier below its target in ``run``.

    ``run`` is the replay of ``planned_window``. Causes are in the order of removal: faults,
    start-up, routing, forecast, size. The shares of a tier add up to all its misses.
    """
    missed = _missed_shares(study, run)
    missed_tiers = [
        tier.name
        for tier in study.hardware.tiers
        if missed.get(tier.name, 0.0) > 1.0 - tier.attainment
    ]
    if not missed_tiers:
        return ()
    # (cause, missed shares by tier in the replay without it and without the causes before)
    replays = list(_replays(study, planned_window, seed, progress))
    replays.append((ANY_SIZE, dict.fromkeys(missed_tiers, 0.0)))
    rows = []
    for tier in missed_tiers:
        before = missed[tier]
        for cause, missed_without in replays:
            after = missed_without[tier]
            rows.append(
                Cause(tier, cause, WORDS_WITHOUT_CAUSE[cause], before, after, before - after)
            )
            before = after
    return tuple(rows)


def replay_plan(
    study: Study,
    planned_window: PlannedWindow,
    seed: int,
    progress: Progress,
    options: ReplayOptions = IN_DETAIL,
) -> PolicyRun:
    """Return the replay of a plan in its window."""
    policy, shared = policy_of("lt-i"), SharedInputs(planned_window)
    return run_policy(study, policy, seed=seed, progress=progress, shared=shared, options=options)


def _replays(
    study: Study, planned_window: PlannedWindow, seed: int, progress: Progress
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield (cause, missed shares by tier in a replay without it).

    The causes yielded earlier stay removed. A cause is left out if there is no plan without it.
    """
    changes: list[Callable[[Fleet], Fleet]] = []  # of the fleet, to remove the causes so far

    def apply_changes(fleet: Fleet) -> Fleet:
        """Return the fleet with all changes so far."""
        for change in changes:
            fleet = change(fleet)
        return fleet

    steps = _steps(study)
    for i, (cause, change) in enumerate(steps):
        step_progress = part(progress, i / len(steps), (i + 1) / len(steps))
        planning, replaying = part(step_progress, 0.0, 0.3), part(step_progress, 0.3, 1.0)
        try:
            if cause == FORECAST:
                planned_window = plan_window(study.plan_input, planning, method=PERFECT)
            elif cause == SIZE:
                study = _with_half_size(study)
                larger_plan = plan_load(study.plan_input, planned_window.load, planning)
                planned_window = replace(planned_window, plan=larger_plan)
        except Infeasible:  # the next causes get the share of this one
            continue
        if change is not None:  # None: the new plan above removes the cause
            changes.append(change)
        options = ReplayOptions(changed=apply_changes)
        run = replay_plan(study, planned_window, seed, replaying, options)
        yield cause, _missed_shares(study, run)


def _steps(study: Study) -> list[tuple[str, Callable[[Fleet], Fleet] | None]]:
    """Return the causes with the change of the fleet that removes them; None: a new plan does.

    Size is last, because more replicas make up for any cause.
    """
    steps: list[tuple[str, Callable[[Fleet], Fleet] | None]] = []
    if study.hardware.faults:
        steps.append((FAULTS, lambda fleet: replace(fleet, faults=())))
    steps.append((START_UP, without_start_up))
    if len(study.hardware.regions) > 1:
        steps.append((ROUTING, with_free_routing))
    if not study.window.after_traffic:  # in the future, requests are drawn from the forecast itself
        steps.append((FORECAST, None))
    return [*steps, (SIZE, None)]


def without_start_up(fleet: Fleet) -> Fleet:
    """Return the fleet with cold starts of zero seconds."""
    pools = tuple(replace(pool, startup_s=0.0, start_up=None) for pool in fleet.pools)
    return replace(fleet, pools=pools)


def with_free_routing(fleet: Fleet) -> Fleet:
    """Return the fleet with requests that go to the least used open region, without latency."""
    return replace(
        fleet,
        latency_s=np.where(np.isinf(fleet.latency_s), np.inf, 0.0),
        routing=replace(fleet.routing, region_threshold=0.0),
    )


def _with_half_size(study: Study) -> Study:
    """Return the study with half the assumed capacity per replica, so plans have twice as many.

    It also has enough GPUs for twice the replicas.
    """
    hardware = study.hardware
    half = study.sizes.scaled(np.full((len(hardware.models), len(hardware.columns)), 0.5))
    hardware = replace(
        hardware,
        capacity_gpus=GPU_FACTOR * hardware.capacity_gpus,
        maximum=GPU_FACTOR * hardware.maximum,
    )
    return replace(study, hardware=hardware, sizes=half)


def _missed_shares(study: Study, run: PolicyRun) -> dict[str, float]:
    """Return the share of requests that missed a limit, by interactive tier with requests."""
    interactive = {tier.name for tier in study.hardware.tiers if not tier.deferrable}
    return {
        name: 1.0 - share
        for name, share in run.summary.slo_attainment.items()
        if share is not None and name in interactive
    }
