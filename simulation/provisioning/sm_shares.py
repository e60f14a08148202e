"""Confine operators to shares of a GPU's multiprocessors (equation 6).

A share is arithmetic reserved for one operator. The shares on a device sum to 1 at most, whether
operators run or not. No operator is slowed by the arithmetic of others; each takes the time of its
share. Bandwidth is still shared.

For every choice (batch, GPUs), the share is the smallest one within an allowed slowdown. Plans are
made for several slowdowns, and a replay decides between them (``judged``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.performance.efficiency import KINDS
from simulation.provisioning.interference import Demand, latency_at_share, measured_at_share
from simulation.provisioning.workload import PhaseProblem

SHARES = np.arange(1, 11) / 10.0  # available shares; MPS accepts whole percents
ROUNDING = 1.0 + 1e-9


def slowdown_at_share(demand: Demand, share: float) -> FloatArray:
    """Return the slowdown of operators with ``share`` of the multiprocessors, ``[V, B, P]``.

    It is measured if a file has it, else modelled.
    """
    times = latency_at_share(1.0, demand.compute, demand.bandwidth, share)
    if demand.table is not None and demand.kinds is not None:
        for v, kinds in enumerate(demand.kinds):
            measured = float(measured_at_share(demand.table, KINDS[int(kinds.argmax())], share))
            if np.isfinite(measured):
                times[v] = measured
    return times


def confined_to_shares(phase: PhaseProblem, max_slowdown: float) -> PhaseProblem:
    """Return ``phase`` with operators in their smallest shares with at most ``max_slowdown``."""
    demand, problem = phase.demand, phase.problem
    share, times = np.ones_like(demand.compute), np.ones_like(demand.compute)
    for share_of_sms in SHARES[::-1]:
        times_slower = slowdown_at_share(demand, float(share_of_sms))
        acceptable = times_slower <= max_slowdown * ROUNDING
        share[acceptable], times[acceptable] = share_of_sms, times_slower[acceptable]
    return replace(
        phase,
        problem=replace(problem, latency_s=problem.latency_s * times),
        demand=replace(
            demand,
            compute=share,
            bandwidth=demand.bandwidth / times,
            board=None if demand.board is None else demand.board / times,
            table=None,  # its pairs compete for arithmetic, which is reserved here
            apart=True,
            slower=times,
        ),
        power=replace(phase.power, above_w=phase.power.above_w / times),
    )
