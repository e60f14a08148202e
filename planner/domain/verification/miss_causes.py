"""Find why the replay of a plan missed a tier, by counterfactual replays.

The same requests are replayed again and again, with one more cause removed each time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_load, plan_window
from planner.domain.progress import Progress, part
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import ReplayOptions, run_policy
from planner.domain.study import PolicyRun, Study
from planner.domain.verification.correction_windows import PERFECT
from planner.errors import Infeasible
from planner.policies.choice import policy_of
from simulation.fleet import Fleet

FAULTS, START_UP, ROUTING, FORECAST, SIZE = "faults", "start-up", "routing", "forecast", "size"
ANY_SIZE = "no size"
# Changes in words that follow "met" in a sentence.
CHANGED = {
    FAULTS: "without faults",
    START_UP: "with instant starts of replicas",
    FORECAST: "planned on a perfect forecast",
    ROUTING: "with every region open to every request at no distance",
    SIZE: "with twice the replicas",
    ANY_SIZE: "by none of these",
}
ROOM = 4  # factor on the GPUs and limits, enough for twice the replicas


@dataclass(frozen=True, slots=True)
class Cause:
    """The share of a tier's requests that missed because of one cause.

    ``missed_before`` and ``missed_after`` are the shares that miss with and without this cause. In
    both, the causes listed earlier are removed.
    """

    tier: str
    cause: str
    changed: str
    missed_before: float
    missed_after: float
    share: float


def causes(
    study: Study, planned: PlannedWindow, run: PolicyRun, seed: int, progress: Progress
) -> tuple[Cause, ...]:
    """Return the causes of the misses of ``run``, the replay of ``planned``, for each missed tier.

    The order is faults, start-up, routing, forecast, then size. The shares add up to all misses.
    Size comes last because more replicas make up for any cause. Causes that need a new plan come
    after those that keep the plan.
    """
    missed = _missed_shares(study, run)
    short = [
        tier.name
        for tier in study.hardware.tiers
        if tier.name in missed and missed[tier.name] > 1.0 - tier.attainment
    ]
    due: list[Cause] = []
    if not short:
        return ()
    for cause, after in _replays(study, planned, seed, progress):
        due += [_cause(tier, cause, missed[tier], after[tier]) for tier in short]
        missed = after
    due += [_cause(tier, ANY_SIZE, missed[tier], 0.0) for tier in short]
    return tuple(sorted(due, key=lambda cause: short.index(cause.tier)))


def _cause(tier: str, cause: str, before: float, after: float) -> Cause:
    """Return a cause from the shares of a tier that miss with and without it."""
    return Cause(tier, cause, CHANGED[cause], before, after, before - after)


def _replays(
    study: Study, planned: PlannedWindow, seed: int, progress: Progress
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each cause with the misses by tier after it is removed, like all before it."""
    changes: list[Callable[[Fleet], Fleet]] = []
    # Causes with the change of the fleet that removes them; None: they need another plan.
    steps: list[tuple[str, Callable[[Fleet], Fleet] | None]] = [(START_UP, without_start_up)]
    if study.hardware.faults:
        steps.insert(0, (FAULTS, without_faults))
    if len(study.hardware.regions) > 1:
        steps.append((ROUTING, without_routing))
    if not study.window.ahead:  # ahead, requests are drawn from the forecast
        steps.append((FORECAST, None))
    steps.append((SIZE, None))

    def changed(fleet: Fleet) -> Fleet:
        """Return the fleet with all changes so far."""
        for change in changes:
            fleet = change(fleet)
        return fleet

    for i, (cause, change) in enumerate(steps):
        step = part(progress, i / len(steps), (i + 1) / len(steps))
        try:
            if cause == FORECAST:
                planned = plan_window(study.plan_input, part(step, 0.0, 0.3), method=PERFECT)
            elif cause == SIZE:
                study = _with_half_size(study)
                again = plan_load(study.plan_input, planned.load, part(step, 0.0, 0.3))
                planned = replace(planned, plan=again)
        except Infeasible:  # its share goes to the causes after it
            continue
        if change is not None:
            changes.append(change)
        run = run_policy(
            study,
            policy_of("lt-i"),
            seed=seed,
            progress=part(step, 0.3, 1.0),
            shared=SharedInputs(planned),
            options=ReplayOptions(changed=changed),
        )
        yield cause, _missed_shares(study, run)


def without_start_up(fleet: Fleet) -> Fleet:
    """Return the fleet with cold starts of zero seconds."""
    pools = tuple(replace(pool, startup_s=0.0, start_up=None) for pool in fleet.pools)
    return replace(fleet, pools=pools)


def without_faults(fleet: Fleet) -> Fleet:
    """Return the fleet without faults."""
    return replace(fleet, faults=())


def without_routing(fleet: Fleet) -> Fleet:
    """Return the fleet without network latency between regions.

    Requests may go to every region with an open route, whatever its load.
    """
    return replace(
        fleet,
        latency_s=np.where(np.isinf(fleet.latency_s), np.inf, 0.0),
        routing=replace(fleet.routing, region_threshold=0.0),
    )


def _with_half_size(study: Study) -> Study:
    """Return the study with half the capacity per replica, and GPUs for twice the replicas."""
    hardware = study.hardware
    half = study.sizes.times(np.full((len(hardware.models), len(hardware.columns)), 0.5))
    hardware = replace(
        hardware, capacity_gpus=ROOM * hardware.capacity_gpus, maximum=ROOM * hardware.maximum
    )
    return replace(study, hardware=hardware, sizes=half)


def _missed_shares(study: Study, run: PolicyRun) -> dict[str, float]:
    """Return the share of requests that missed a limit, by interactive tier."""
    interactive = {tier.name for tier in study.hardware.tiers if not tier.deferrable}
    return {
        name: 1.0 - share
        for name, share in run.summary.slo_attainment.items()
        if share is not None and name in interactive
    }
