"""What a plan's document says beside its figures: what it minimises, splits, lends and leaves."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.optimizer.problem import FEASIBLE, OPTIMAL, TIMEOUT, ScalingPlan
from planner.scenario.build import Hardware
from planner.scenario.schema import Scenario
from planner.studies.planning.program import charged_in
from planner.studies.sizing.sizing import Sizes

Document = dict[str, Any]
ENERGY = (
    "every instance drawing all the time what it draws at the load it is sized for, host and PUE "
    "included (assumed; the simulation counts what is really drawn)"
)


def plan_more(plan: ScalingPlan, hardware: Hardware, scenario: Scenario, sizes: Sizes) -> Document:
    """Keys to join to ``plan_document``'s; money, GPU-hours, energy and carbon are of the whole
    window."""
    hours = plan.period_s / 3600
    taken = [window.totals for window in plan.windows]
    statuses = {window.status for window in plan.windows}
    status = next((s for s in (TIMEOUT, FEASIBLE) if s in statuses), OPTIMAL)
    objective = scenario.objective
    return {
        "status": status,
        "minimise": "weighted" if objective.weights else objective.minimise,
        "unit": charged_in(objective),
        "periods": "all" if plan.together else "one",
        "totals": {
            "usd": sum(one.usd for one in taken) * hours,
            "gpu_hours": sum(one.gpu_hours for one in taken) * hours,
            "kwh": sum(one.kwh for one in taken) * hours,
            "carbon_kg": sum(one.kg for one in taken) * hours,
            "starts": sum(one.starts for one in taken),
            "stops": sum(one.stops for one in taken),
            "energy_basis": ENERGY,
        },
        "conflicts": list(dict.fromkeys(one.conflict for one in plan.windows if one.conflict)),
        "limited": plan.policy,
        "unserved": _unserved(plan),
        "lent_gpu_hours": _lent(plan, hours),
        "rerouted": _rerouted(plan),
        "split": load_split(plan, hardware, sizes),
    }


def load_split(plan: ScalingPlan, hardware: Hardware, sizes: Sizes) -> list[Document]:
    """How each model's load is split in a region between variants that run at the same time: every
    one's share of what they carry together, on the mean of the periods that have several (C5).

    Requests go where there is room, so load is shared in proportion to theta times instances.
    Prefill and decode instances are variants of their own stage.
    """
    out = []
    target, stages = plan.target, hardware.stages
    for m, model in enumerate(plan.models):
        for r, region in enumerate(plan.regions):
            for stage in np.unique(stages):
                carried = target[:, m, r] * sizes.theta_tps[m] * (stages == stage)
                several = (carried > 0).sum(axis=1) > 1
                if not several.any():
                    continue
                shares = carried[several] / carried[several].sum(axis=1, keepdims=True)
                out += [
                    {
                        "model": model,
                        "region": region,
                        "arrangement": hardware.arrangement(m, int(g)),
                        "role": hardware.role(int(g)),
                        "share": float(shares[:, g].mean()),
                        "least": float(shares[:, g].min()),
                        "most": float(shares[:, g].max()),
                        "periods": int(several.sum()),
                    }
                    for g in np.flatnonzero(shares.any(axis=0))
                ]
    return out


def _unserved(plan: ScalingPlan) -> list[Document]:
    """By tier and model, over the periods in which any is left."""
    if plan.unserved_tps is None:
        return []
    rows = []
    for k, tier in enumerate(plan.tiers):
        for m, model in enumerate(plan.models):
            left = plan.unserved_tps[:, k, m]
            if left.any():
                rows.append(
                    {
                        "tier": tier,
                        "model": model,
                        "input_tps": float(left.max()),
                        "input_tokens": float(left.sum() * plan.period_s),
                        "periods": int((left > 0).sum()),
                    }
                )
    return rows


def _lent(plan: ScalingPlan, hours: float) -> float | None:
    if plan.lent is None:
        return None
    return float((plan.lent * plan.gpus_per_instance[None, :, None, :]).sum() * hours)


def _rerouted(plan: ScalingPlan) -> list[Document]:
    """From home region to where served, at the joint peaks: the largest of all periods, and the
    largest share of what the home region asks for at its models' peaks."""
    if plan.rerouted_tps is None:
        return []
    most = plan.rerouted_tps.max(axis=0)
    asked = plan.demand_tps.sum(axis=1)[:, :, None]  # [p, home, 1]
    share = np.divide(
        plan.rerouted_tps, asked, out=np.zeros_like(plan.rerouted_tps), where=asked > 0
    ).max(axis=0)
    return [
        {
            "from": plan.regions[home],
            "to": plan.regions[other],
            "input_tps": float(most[home, other]),
            "share": float(share[home, other]),
        }
        for home, other in np.argwhere(most > 0)
    ]
