"""Plan the same demand with each combination of power caps, and replay each plan.

A power cap limits a GPU's power, as a share of its rated power. Columns of the hardware (GPU type,
arrangement and role) may have different caps.
"""

from collections.abc import Iterator
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
from planner.policies.choice import policy_of
from simulation.arrays import BoolArray

MOST_REQUESTS = 3_000_000  # of all replays together, so that they take seconds


def plans_by_cap(
    study: Study, planned_window: PlannedWindow, seed: int, progress: Progress
) -> tuple[CapPlan, ...]:
    """Plan the window once for each combination of the caps by role; empty if there is only one.

    Each plan is replayed, unless all replays together have more than ``MOST_REQUESTS`` requests.
    """
    chosen = list(_combinations(study.hardware))
    if len(chosen) < 2:
        return ()
    replays = len(chosen) * len(study.trace) <= MOST_REQUESTS
    plans = []
    for done, caps in enumerate(chosen):
        progress(done / len(chosen), "Planning each power cap")
        plans.append(_plan_with(study, planned_window, caps, seed if replays else None))
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
    hardware = study.hardware
    kept = _with_caps(hardware, caps)  # [model, GPU column]
    maximum = np.where(kept[:, None, :], hardware.maximum, 0)
    capped_hardware = replace(
        hardware,
        today=np.zeros_like(study.today),
        maximum=maximum,
        minimum=np.minimum(hardware.minimum, maximum),
        rack_kw=np.full_like(hardware.rack_kw, np.inf),
        regions=tuple(replace(region, site_kw=np.inf) for region in hardware.regions),
    )
    latencies = [capacity for (m, g), (_, capacity) in study.sizes.capacity.items() if kept[m, g]]
    ttft, tbt = (
        max((1000 * s for s in values if np.isfinite(s)), default=None)
        for values in (
            [capacity.ttft_s for capacity in latencies],
            [capacity.tbt_s for capacity in latencies],
        )
    )
    shares = caps.get("mixed"), caps.get("prefill"), caps.get("decode")
    limited = replace(study, hardware=capped_hardware)
    try:
        plan = plan_load(limited.plan_input, planned_window.load, silent)
    except Infeasible as error:
        return CapPlan(*shares, ttft_ms=ttft, tbt_ms=tbt, conflict=str(error))
    hours, windows = plan.period_s / 3600, [window.totals for window in plan.windows]
    kw = instance_kw(limited.plan_input)
    summary = None if seed is None else run_policy(
        limited, policy_of("lt-i"), seed=seed, progress=silent,
        shared=SharedInputs(replace(planned_window, plan=plan)), options=BRIEF,
    ).summary  # fmt: skip
    return CapPlan(
        *shares,
        usd=sum(w.usd for w in windows) * hours,
        kwh=sum(w.kwh for w in windows) * hours,
        gpu_hours=sum(w.gpu_hours for w in windows) * hours,
        peak_kw=float((plan.target * kw).sum(axis=(1, 2, 3)).max()),
        replicas=int(plan.target.sum(axis=(1, 2, 3)).max()),
        ttft_ms=ttft,
        tbt_ms=tbt,
        slo_attainment=None if summary is None else summary.slo_attainment,
        simulated_kwh=None if summary is None else summary.energy_kwh,
    )


def _with_caps(hardware: Hardware, caps: dict[str, float]) -> BoolArray:
    """Return which GPU columns have the cap of their role, ``[model, GPU column]``."""
    kept = np.zeros((len(hardware.models), len(hardware.columns)), np.bool_)
    for (m, g), section in hardware.sections.items():
        kept[m, g] = (section.power_cap or 1.0) == caps[hardware.role(g)]
    return kept
