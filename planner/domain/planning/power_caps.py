"""Plan the same demand with each power cap alone: energy, cost, power and latency of each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from planner.domain.planning.inputs import Load, PlanInput
from planner.domain.planning.planning import plan_load
from planner.domain.planning.program import instance_kw
from planner.domain.progress import Progress
from planner.errors import Infeasible
from planner.inputs.scenario.build import Hardware
from simulation.arrays import BoolArray

MOST_CAPS = 36  # combinations of a prefill and a decode cap


@dataclass(frozen=True, slots=True)
class CapPlan:
    """The plan of the window with one power cap for each role; figures are None if infeasible.

    Latencies are those of a replica at its largest rate within the SLO, the highest of any model.
    """

    mixed: float | None  # share of TDP; 1: no cap; None: no such pools
    prefill: float | None
    decode: float | None
    usd: float | None
    kwh: float | None
    gpu_hours: float | None
    peak_kw: float | None  # peak power of all replicas at rated load
    replicas: int | None  # most at once
    ttft_ms: float | None
    tbt_ms: float | None
    conflict: str = ""


def plans_by_cap(inputs: PlanInput, load: Load, progress: Progress) -> tuple[CapPlan, ...]:
    """Plan the window once for each combination of power caps; empty if only one is stated."""
    hardware = inputs.hardware
    chosen = list(_combinations(hardware))
    plans = []
    for done, caps in enumerate(chosen if len(chosen) > 1 else ()):
        progress(done / len(chosen), "Planning each power cap")
        plans.append(_plan_with(inputs, load, caps))
    return tuple(plans)


def _combinations(hardware: Hardware) -> Iterator[dict[str, float]]:
    """Yield each combination of the stated power caps, as role to cap, at most ``MOST_CAPS``."""
    by_role: dict[str, set[float]] = {}
    for (_, g), section in hardware.sections.items():
        by_role.setdefault(hardware.role(g), set()).add(section.power_cap or 1.0)
    values = [sorted(caps, reverse=True) for caps in by_role.values()]
    for _, caps in zip(range(MOST_CAPS), product(*values), strict=False):
        yield dict(zip(by_role, caps, strict=True))


def _plan_with(inputs: PlanInput, load: Load, caps: dict[str, float]) -> CapPlan:
    """Plan with only the columns that have these ``caps`` by role, without power limits.

    It starts from an empty fleet. Today's replicas have one cap and would make the others dear.
    """
    hardware = inputs.hardware
    kept = _with_caps(hardware, caps)  # [l, g]
    most = np.where(kept[:, None, :], hardware.maximum, 0)
    only = replace(
        hardware,
        maximum=most,
        minimum=np.minimum(hardware.minimum, most),
        rack_kw=np.full_like(hardware.rack_kw, np.inf),
        regions=tuple(replace(region, site_kw=np.inf) for region in hardware.regions),
    )
    shares = caps.get("mixed"), caps.get("prefill"), caps.get("decode")
    latencies = [capacity for (m, g), (_, capacity) in inputs.sizes.capacity.items() if kept[m, g]]
    ttft, tbt = (
        max((1000 * s for s in values if np.isfinite(s)), default=None)
        for values in (
            [capacity.ttft_s for capacity in latencies],
            [capacity.tbt_s for capacity in latencies],
        )
    )
    limited = replace(inputs, hardware=only, current=np.zeros_like(inputs.current))
    try:
        plan = plan_load(limited, load, lambda *_: None)
    except Infeasible as error:
        return CapPlan(*shares, None, None, None, None, None, ttft, tbt, str(error))
    hours, windows = plan.period_s / 3600, [window.totals for window in plan.windows]
    kw = instance_kw(limited)
    return CapPlan(
        *shares,
        usd=sum(w.usd for w in windows) * hours,
        kwh=sum(w.kwh for w in windows) * hours,
        gpu_hours=sum(w.gpu_hours for w in windows) * hours,
        peak_kw=float((plan.target * kw).sum(axis=(1, 2, 3)).max()),
        replicas=int(plan.target.sum(axis=(1, 2, 3)).max()),
        ttft_ms=ttft,
        tbt_ms=tbt,
    )


def _with_caps(hardware: Hardware, caps: dict[str, float]) -> BoolArray:
    """Return a mask of the columns that have the cap of their role, by model, ``[l, g]``."""
    kept = np.zeros((len(hardware.models), len(hardware.columns)), np.bool_)
    for (m, g), section in hardware.sections.items():
        kept[m, g] = (section.power_cap or 1.0) == caps[hardware.role(g)]
    return kept
