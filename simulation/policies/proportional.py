"""Proportional control on one of six signals (methods.md D3; HeteroScale, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.coordinated import DECODE, PREFILL, Coordinated, pool_mean
from simulation.policies.parts.endpoints import Service
from simulation.policies.parts.ratio import Ratio
from simulation.policies.parts.stability import OUT, STAY, Stability, damped, direction_of
from simulation.policy import Observation, Signals

# Signal: which role it is read from and drives, and whether it adds up over instances (tokens/s)
# or is a share of each one's time.
SIGNALS = {
    "decode-tps": (DECODE, True),
    "prefill-tps": (PREFILL, True),  # tokens the prefix cache missed
    "prefill-gpu": (PREFILL, False),
    "prefill-sm": (PREFILL, False),
    "decode-gpu": (DECODE, False),
    "decode-sm": (DECODE, False),
}


class Proportional(Coordinated):
    """``expected = instances * metric per instance / target per instance``, and the other role
    through the P/D ratio.

    ``target`` is what one instance should show: tokens/s of its own for the two throughput signals,
    a share in (0, 1] for the four of hardware; one number, or one per pool (GPU types differ). The
    source takes it from a pressure test. The metric per instance is over ready ones, and starting
    ones count among the instances there are: a shortage is asked for once. With instances that do
    both, prefill and decode GPU (and SM) are one and the same reading.
    """

    def __init__(
        self,
        signal: str,
        target: float | Sequence[float] | FloatArray,
        stability: Stability | None = None,
        ratio: Ratio | None = None,
        interval_s: float = 60.0,
        name: str | None = None,
    ) -> None:
        if signal not in SIGNALS:
            raise SimulationError(f"There is no signal {signal!r}; use {', '.join(SIGNALS)}.")
        drives, self._adds_up = SIGNALS[signal]
        super().__init__(name or signal, drives, stability, ratio, interval_s)
        self._signal = signal
        self._given = np.asarray(target, np.float64)
        if self._given.ndim > 1 or not np.all(self._given > 0):
            raise SimulationError(f"Policy {self.name!r}: every target must be above 0.")
        self._target = self._given

    def reset(self, fleet: Fleet) -> IntArray:
        counts = super().reset(fleet)
        try:
            self._target = np.broadcast_to(self._given, len(fleet.pools))
        except ValueError:
            raise SimulationError(
                f"Policy {self.name!r} has {self._given.size} targets for {len(fleet.pools)} "
                "pools; give one, or one per pool."
            ) from None
        return counts

    def wanted(self, i: int, observation: Observation) -> tuple[int, int]:
        service = self.services[i]
        pools = self.driving(service)
        at = list(pools)
        present = int((observation.ready + observation.starting)[at].sum())
        if not observation.ready[at].any():  # nothing to read: the first instance is called for
            calls = not present and bool(observation.waiting[list(service.pools)].any())
            return (OUT, 1) if calls else (STAY, present)
        expected = self.expected(service, observation)
        if not np.isfinite(expected):
            return STAY, present
        direction = direction_of(expected, present, self.stability)
        return direction, max(1, damped(expected, present, self.stability.damping))

    def expected(self, service: Service, observation: Observation) -> float:
        """Instances of the driving role that would show the target."""
        pools = self.driving(service)
        if observation.signals is None:
            return float("nan")
        values = self._values(observation.signals)
        if self._adds_up:
            # Pools of other speeds in instances of the mean target, weighted by what is ready.
            each = pool_mean(self._target, observation.ready, pools)
            return float(np.nansum(values[list(pools)])) / each
        share = pool_mean(values / self._target, observation.ready, pools)
        return share * int(observation.ready[list(pools)].sum())

    def _values(self, signals: Signals) -> FloatArray:
        return {
            "decode-tps": signals.decode_tps,
            "prefill-tps": signals.prefill_tps,
            "prefill-gpu": signals.busy,
            "decode-gpu": signals.busy,
            "prefill-sm": signals.sm_activity,
            "decode-sm": signals.sm_activity,
        }[self._signal]
