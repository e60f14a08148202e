"""Plan the same demand with each combination of power caps, and replay each plan.

A power cap limits a GPU's power, as a share of its rated power. Columns of the hardware (GPU type,
arrangement and role) may have different caps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from planner.domain.planning.figures import CapPlan
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_load
from planner.domain.planning.program import instance_kw
from planner.domain.progress import Progress, silent
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import BRIEF, run_policy
from planner.domain.study import Study
from planner.errors import Infeasible
from planner.inputs.scenario.build import Hardware
from planner.optimizer.problem import ScalingPlan
from planner.policies.choice import policy_of
from simulation.arrays import BoolArray, FloatArray

MOST_REQUESTS = 3_000_000  # of all replays together, so that they take seconds


def plans_by_cap(
    study: Study, planned_window: PlannedWindow, seed: int, progress: Progress
) -> tuple[CapPlan, ...]:
    """Plan the window once for each combination of the caps by role; empty if there is only one.

    Each plan is replayed, unless all replays together have more than ``MOST_REQUESTS`` requests.
    """
    combinations = list(_combinations(study.hardware))
    if len(combinations) < 2:
        return ()
    has_replays = len(combinations) * len(study.trace) <= MOST_REQUESTS
    plans = []
    for done, caps in enumerate(combinations):
        progress(done / len(combinations), "Planning each power cap")
        plans.append(_plan_with(study, planned_window, caps, seed if has_replays else None))
    return tuple(plans)


def _combinations(hardware: Hardware) -> Iterator[dict[str, float]]:
    """Yield each combination of the stated power caps, as a map of role to cap."""
    by_role: dict[str, set[float]] = {}
    for (_, g), section in hardware.sections.items():
        by_role.setdefault(hardware.role(g), set()).add(section.power_cap or 1.0)
    values = [sorted(caps, reverse=True) for caps in by_role.values()]
    for caps in product(*values):
        yield dict(zip(by_role, caps, strict=True))


def _plan_with(
    study: Study, planned_window: PlannedWindow, caps: dict[str, float], seed: int | None
) -> CapPlan:
    """Plan with only the GPU columns that have these ``caps`` by role, without power limits.

    The plan starts from an empty fleet, so that today's caps do not save the cost of starts.
    Without a ``seed``, the plan is not replayed. An infeasible plan gives a result with a reason
    (``conflict``).
    """
    has_caps = _with_caps(study.hardware, caps)  # [model, GPU column]
    by_model_column = study.sizes.capacity.items()  # values are (tier, capacity)
    capacities = [capacity for (m, g), (_, capacity) in by_model_column if has_caps[m, g]]
    capped = CapPlan(
        mixed=caps.get("mixed"),
        prefill=caps.get("prefill"),
        decode=caps.get("decode"),
        ttft_ms=_longest_ms(capacity.ttft_s for capacity in capacities),
        tbt_ms=_longest_ms(capacity.tbt_s for capacity in capacities),
    )
    capped_study = _without_other_columns(study, has_caps)
    try:
        plan = plan_load(capped_study.plan_input, planned_window.load, silent)
    except Infeasible as error:
        return replace(capped, conflict=str(error))
    capped = _with_totals(capped, plan, instance_kw(capped_study.plan_input))
    if seed is None:
        return capped
    shared = SharedInputs(replace(planned_window, plan=plan))
    summary = run_policy(
        capped_study, policy_of("lt-i"), seed=seed, progress=silent, shared=shared, options=BRIEF
    ).summary
    return replace(capped, slo_attainment=summary.slo_attainment, simulated_kwh=summary.energy_kwh)


def _without_other_columns(study: Study, has_caps: BoolArray) -> Study:
    """Return the study without power limits and today's fleet, with only some GPU columns.

    They are those where ``has_caps [model, GPU column]`` is True.
    """
    hardware = study.hardware
    maximum = np.where(has_caps[:, None, :], hardware.maximum, 0)
    capped_hardware = replace(
        hardware,
        today=np.zeros_like(study.today),
        maximum=maximum,
        minimum=np.minimum(hardware.minimum, maximum),
        rack_kw=np.full_like(hardware.rack_kw, np.inf),
        regions=tuple(replace(region, site_kw=np.inf) for region in hardware.regions),
    )
    return replace(study, hardware=capped_hardware)


def _with_totals(capped: CapPlan, plan: ScalingPlan, replica_kw: FloatArray) -> CapPlan:
    """Return the figures of a plan: totals of all periods, and the peaks of power and replicas.

    ``replica_kw`` is ``[model, region, GPU column]``.
    """
    hours = plan.period_s / 3600
    hourly = [window.totals for window in plan.windows]
    pool_axes = 1, 2, 3  # target is [period, model, region, GPU column]
    return replace(
        capped,
        usd=sum(totals.usd for totals in hourly) * hours,
        kwh=sum(totals.kwh for totals in hourly) * hours,
        gpu_hours=sum(totals.gpu_hours for totals in hourly) * hours,
        peak_kw=float((plan.target * replica_kw).sum(axis=pool_axes).max()),
        replicas=int(plan.target.sum(axis=pool_axes).max()),
    )


def _longest_ms(seconds: Iterable[float]) -> float | None:
    """Return the longest finite time in milliseconds; None without one."""
    return max((1000 * time_s for time_s in seconds if np.isfinite(time_s)), default=None)


def _with_caps(hardware: Hardware, caps: dict[str, float]) -> BoolArray:
    """Return which GPU columns have the cap of their role, ``[model, GPU column]``."""
    has_caps = np.zeros((len(hardware.models), len(hardware.columns)), np.bool_)
    for (m, g), section in hardware.sections.items():
        has_caps[m, g] = (section.power_cap or 1.0) == caps[hardware.role(g)]
    return has_caps
