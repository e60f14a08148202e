"""Limit operators to shares of a GPU's multiprocessors (equation 6).

A share of the multiprocessors (SMs) is arithmetic reserved for one operator. The shares on a device
sum to at most 1, whether operators run or not. So no operator is slowed by the arithmetic of
others. Bandwidth is still shared, by a measured table or by the physical model.

For every batch size and parallelism, the share is the smallest one within an allowed slowdown.
Plans are made for several slowdowns, and a replay decides between them (``level_confirmation``).
"""

from dataclasses import replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.provisioning.interference import (
    SHARED_KINDS,
    Demand,
    latency_at_share,
    measured_at_share,
)
from simulation.provisioning.workload import PhaseProblem

SM_SHARES = np.arange(1, 11) / 10.0  # available shares; MPS accepts whole percents
ROUNDING = 1.0 + 1e-9


def slowdown_at_share(demand: Demand, share: float) -> FloatArray:
    """Return the slowdown factor of operators on a share of the multiprocessors, ``[V, B, P]``.

    Measured slowdowns of the operator's main kind are used if there are any, else modelled ones.
    """
    slowdown = latency_at_share(1.0, demand.compute, demand.bandwidth, share)
    if demand.table is not None and demand.kinds is not None:
        for v, kind_shares in enumerate(demand.kinds):
            main_kind = SHARED_KINDS[kind_shares.argmax()]
            measured = float(measured_at_share(demand.table, main_kind, share))
            if np.isfinite(measured):
                slowdown[v] = measured
    return slowdown


def confined_to_shares(phase: PhaseProblem, max_slowdown: float) -> PhaseProblem:
    """Return ``phase`` with each operator confined to a share of the multiprocessors.

    It is the smallest share that slows the operator by at most the factor ``max_slowdown``.
    """
    demand, problem = phase.demand, phase.problem
    share, slowdown = np.ones_like(demand.compute), np.ones_like(demand.compute)
    for sm_share in SM_SHARES[::-1]:  # from large to small, so that the smallest is set last
        slowdown_now = slowdown_at_share(demand, float(sm_share))
        acceptable = slowdown_now <= max_slowdown * ROUNDING
        share[acceptable], slowdown[acceptable] = sm_share, slowdown_now[acceptable]
    return replace(
        phase,
        problem=replace(problem, latency_s=problem.latency_s * slowdown),
        demand=replace(
            demand,
            compute=share,  # reserved, used or not
            bandwidth=demand.bandwidth / slowdown,
            board=demand.board / slowdown,
            table=None if demand.table is None else demand.table.on_reserved_shares(),
            compute_reserved=True,
            share_slowdown=slowdown,
        ),
        power=replace(phase.power, above_w=phase.power.above_w / slowdown),
    )
