"""What seconds of operators and interference rest on, operator by operator and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from planner.catalogue.efficiency import efficiencies
from simulation.arrays import FloatArray
from simulation.provisioning.interference import BANDWIDTH_SATURATES_AT
from simulation.provisioning.levels import Level
from simulation.provisioning.workload import PhaseProblem

if TYPE_CHECKING:
    from planner.studies.commands.provision import Case

MEASURED, BEYOND, MIXED, MODELLED = (
    "measured", "beyond what was measured", "measured in part", "modelled",
)  # fmt: skip


def word(shares: FloatArray) -> str:
    """What seconds rest on, from the shares of them among measured calls and beyond them."""
    inside, beyond = (float(share) for share in shares)
    if inside + beyond < 0.005:
        return MODELLED
    if inside > 0.995:
        return MEASURED
    return BEYOND if inside < 0.005 and beyond > 0.995 else MIXED


def shares(phase: PhaseProblem, level: Level) -> FloatArray:
    """Shares of the time of one pass of a plan that were measured and lie beyond, ``[2]``."""
    if level.plan is not None:
        cut = level.cut(phase) if level.cut else phase
        batch, parallel = level.plan.batch, level.plan.parallel
    else:
        assert level.replicas is not None
        cut = phase
        batch = np.full(len(phase.problem.names), level.replicas.batch)
        parallel = np.full(len(phase.problem.names), level.replicas.parallel)
    at = (
        np.arange(len(cut.problem.names)),
        np.searchsorted(cut.problem.batches, batch),
        np.searchsorted(cut.problem.parallel, parallel),
    )
    seconds = cut.problem.latency_s[at]
    return np.asarray((cut.measured[:, *at] * seconds).sum(axis=1) / seconds.sum())


def timing(phase: PhaseProblem, level: Level) -> dict[str, float]:
    """Shares of a pass by what they rest on; they add up to 1."""
    inside, beyond = (float(share) for share in shares(phase, level))
    return {"measured": inside, "beyond": beyond, "modelled": max(0.0, 1.0 - inside - beyond)}


def timing_facts(cases: list[Case]) -> list[dict[str, Any]]:
    """Provenance of seconds by GPU type."""
    found = []
    errors = "; ".join(
        f"error {check.mape:.0%} on {check.rows} rows ({check.against})"
        for check in efficiencies().checks
    )
    modelled = f"published peaks times the shares of them that measured kernels reach; {errors}"
    for gpu, mine in _by_gpu(cases).items():
        kernels = mine[0].measured.kernels
        what = f"Seconds of operators on {gpu}"
        if kernels is None:
            found.append({"what": what, "kind": "modelled", "source": modelled})
            continue
        read = np.mean(
            [shares(case.problem, one) for case in mine for one in case.levels.values()], axis=0
        )
        source = f"kernels from {kernels.source}: {read[0]:.0%} of the time of a pass"
        if read[1] >= 0.005:
            source += f", {read[1]:.0%} beyond the sizes that were measured"
        kind = "measured" if read[0] > 0.5 else "modelled"
        found.append({"what": what, "kind": kind, "source": f"{source}; the rest: {modelled}"})
    return found


def interference_facts(cases: list[Case]) -> list[dict[str, Any]]:
    """Provenance of what operators on one GPU do to each other, by GPU type."""
    physical = (
        "arithmetic and memory bandwidth are divided by use (roofline shares times the time each "
        "operator runs), not measured; a share of the SMs draws all bandwidth from "
        f"{BANDWIDTH_SATURATES_AT:.0%} on (assumed)"
    )
    found = []
    for gpu, mine in _by_gpu(cases).items():
        table, what = mine[0].measured.interference, f"Interference on a shared {gpu}"
        if table is None:
            found.append({"what": what, "kind": "modelled", "source": physical})
            continue
        pairs = ", ".join(
            f"{one.replace('_', ' ')} beside {other.replace('_', ' ')} {times:.2f} times"
            for (one, other), times in sorted(table.pairs.items())
        )
        found.append(
            {
                "what": what,
                "kind": "measured",
                "source": f"{table.source}: {pairs or 'shares of the SMs alone'}; other pairs: "
                f"{physical}",
            }
        )
    return found


def _by_gpu(cases: list[Case]) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.gpu, []).append(case)
    return found
