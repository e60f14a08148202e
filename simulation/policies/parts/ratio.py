"""Ratio of prefill to decode instances (methods.md D2, D3, D8)."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import ceil

import numpy as np

from simulation.arrays import FloatArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Service
from simulation.policies.parts.stability import ROUNDING
from simulation.policy import Observation, Signals

FIXED, OBSERVED = "fixed", "observed"
BEST_RATIO = "best"  # ratio with the highest capacity in a pressure test (Algorithm 1)
WIDEST_RATIO = 9.0  # largest ratio of either role to the other, as the source runs in production


@dataclass(eq=False)
class PdRatio:
    """The ratio of prefill to decode instances of each service.

    The kind ``fixed``, as in the source, keeps ``value``: one number, or one per pool. A service
    uses that of its first prefill pool. Without a value, or with NaN, it is the ratio of the
    initial fleet.

    The kind ``observed`` (the source's future work) starts with the same ratio and estimates it
    from load. The prefill instances in use are the prefill tokens/s over ``prefill_tps``, those of
    one instance. The decode instances in use are computed in the same way. Both are smoothed with a
    half-life. Their ratio replaces the present one once it differs by ``tolerance``.
    """

    kind: str = FIXED
    value: float | Sequence[float] | FloatArray | None = None
    _: KW_ONLY
    prefill_tps: float | Sequence[float] | FloatArray | None = None
    decode_tps: float | Sequence[float] | FloatArray | None = None
    half_life_s: float = 900.0
    tolerance: float = 0.1

    def reset(self, fleet: Fleet, services: Sequence[Service]) -> None:
        """Set each service's ratio: the stated one, else that of its initial instances."""
        pools = len(fleet.pools)
        stated = np.full(pools, np.nan if self.value is None else self.value)
        self._ratios: list[float] = []
        for service in services:
            prefills = sum(fleet.pools[p].initial for p in service.prefill)
            decodes = sum(fleet.pools[p].initial for p in service.decode)
            initial_ratio = prefills / decodes if prefills and decodes else 1.0
            ratio = float(stated[service.prefill[0]])
            self._ratios.append(ratio if ratio > 0 else initial_ratio)
        # By service: smoothed prefill and decode instances in use; None: not observed yet.
        self._smooth: list[tuple[float, float] | None] = [None] * len(services)
        self._last_decision_s = 0.0
        if self.kind == OBSERVED:
            self._prefill_tps = np.full(pools, self.prefill_tps, np.float64).tolist()
            self._decode_tps = np.full(pools, self.decode_tps, np.float64).tolist()

    def observe(self, observation: Observation, services: Sequence[Service]) -> None:
        """Update an observed ratio with the signals since the last decision; keep a fixed one."""
        since_s = observation.time_s - self._last_decision_s
        self._last_decision_s = observation.time_s
        if self.kind != OBSERVED or observation.signals is None:
            return
        old_weight = 0.5 ** (since_s / self.half_life_s)
        for i, service in enumerate(services):
            if service.has_separate_roles:
                prefills, decodes = self._in_use(service, observation.signals)
                if np.isfinite(prefills) and np.isfinite(decodes):
                    self._update(i, prefills, decodes, old_weight)

    def _update(self, i: int, prefills: float, decodes: float, old_weight: float) -> None:
        """Smooth the instances in use of service ``i``; adopt their ratio if it differs enough."""
        old_prefills, old_decodes = self._smooth[i] or (prefills, decodes)
        prefills = old_weight * old_prefills + (1 - old_weight) * prefills
        decodes = old_weight * old_decodes + (1 - old_weight) * decodes
        self._smooth[i] = prefills, decodes
        if min(prefills, decodes) > 0:  # no ratio without load on both roles
            estimate = min(max(prefills / decodes, 1 / WIDEST_RATIO), WIDEST_RATIO)
            if abs(estimate / self._ratios[i] - 1) > self.tolerance:
                self._ratios[i] = estimate

    def _in_use(self, service: Service, signals: Signals) -> tuple[float, float]:
        """Return the prefill and decode instances that the tokens/s of a service require."""
        prefills = sum(signals.prefill_tps[p] / self._prefill_tps[p] for p in service.prefill)
        decodes = sum(signals.decode_tps[p] / self._decode_tps[p] for p in service.decode)
        return prefills, decodes

    def prefills_per_decode(self, i: int) -> float:
        """Return the ratio of service ``i``: prefill instances per decode instance."""
        return self._ratios[i]

    def prefill_for(self, i: int, decode: int) -> int:
        """Return the prefill instances that ``decode`` instances of service ``i`` require."""
        return max(1, ceil(decode * self._ratios[i] - ROUNDING))

    def decode_for(self, i: int, prefill: int) -> int:
        """Return the decode instances that ``prefill`` instances of service ``i`` require."""
        return max(1, ceil(prefill / self._ratios[i] - ROUNDING))
