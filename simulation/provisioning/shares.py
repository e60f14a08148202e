"""Operators that are confined to a share of a GPU's multiprocessors each (equation 6).

A share is arithmetic that an operator keeps to itself: those on a device come to all of it at most,
whether they run or not, so nothing slows an operator by its arithmetic, and each takes as long as
its share makes it. Bandwidth is still shared. Of every choice (batch, GPUs) the share is the
smallest with which it takes at most so many times as long as with all multiprocessors; how many is
what plans are made for, and requests decide (``judged``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.performance.efficiency import KINDS
from simulation.provisioning.interference import (
    Demand,
    latency_at_share,
    measured_at_share,
)
from simulation.provisioning.workload import PhaseProblem

SHARES = np.arange(1, 11) / 10.0  # that there are to choose from: MPS takes whole percents
ROUNDING = 1.0 + 1e-9


def slower(demand: Demand, share: float) -> FloatArray:
    """Times as long that operators take with ``share`` of the multiprocessors, ``[V, B, P]``: as a
    file measured it, else by the model."""
    times = latency_at_share(1.0, demand.compute, demand.bandwidth, share)
    if demand.table is not None and demand.kinds is not None:
        for v, kinds in enumerate(demand.kinds):
            measured = float(measured_at_share(demand.table, KINDS[int(kinds.argmax())], share))
            if np.isfinite(measured):
                times[v] = measured
    return times


def confined(phase: PhaseProblem, most: float) -> PhaseProblem:
    """``phase`` with operators in the smallest shares that make them at most ``most`` times as
    slow."""
    demand, problem = phase.demand, phase.problem
    share, times = np.ones_like(demand.compute), np.ones_like(demand.compute)
    for share_of_sms in SHARES[::-1]:
        times_slower = slower(demand, float(share_of_sms))
        able = times_slower <= most * ROUNDING
        share[able], times[able] = share_of_sms, times_slower[able]
    return replace(
        phase,
        problem=replace(problem, latency_s=problem.latency_s * times),
        demand=replace(
            demand,
            compute=share,
            bandwidth=demand.bandwidth / times,
            board=None if demand.board is None else demand.board / times,
            table=None,  # of pairs that contend for arithmetic
            apart=True,
            slower=times,
        ),
        power=replace(phase.power, above_w=phase.power.above_w / times),
    )
