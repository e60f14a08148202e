"""Any policy, kept within the GPUs that pools share (E7's region caps, ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from simulation.fleet import Fleet
from simulation.policies.base import Actions, IntArray, Observation, ScalingPolicy, actions_of
from simulation.policies.endpoints import services


class WithinCapacity:
    """``policy``, with growth taken back where a group of pools would pass its GPUs.

    ``groups`` holds (indices of pools, GPUs they share). What is up stays up: only instances asked
    for beyond the present count are refused, the last pool's first. A draining instance still
    holds its GPUs, so one pool's growth waits until another has let go. Where prefill and decode
    are apart and one of them is refused growth, the other gets the same share of its own: one
    without the other would serve no more (HeteroScale, section 3.4).
    """

    def __init__(self, policy: ScalingPolicy, groups: Sequence[tuple[Sequence[int], int]]) -> None:
        self._policy = policy
        self._groups = [(list(pools), gpus) for pools, gpus in groups]
        self._gpus_each = np.zeros(0, np.int64)
        self._paired: list[list[int]] = []

    @property
    def name(self) -> str:
        return self._policy.name

    @property
    def interval_s(self) -> float:
        return self._policy.interval_s

    @property
    def wants_signals(self) -> bool:
        return bool(getattr(self._policy, "wants_signals", False))

    def reset(self, fleet: Fleet) -> IntArray:
        self._gpus_each = np.array([pool.gpus_per_instance for pool in fleet.pools], np.int64)
        self._paired = [list(one.pools) for one in services(fleet) if one.paired]
        return self._policy.reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        asked = actions_of(self._policy.decide(observation))
        targets = asked.targets.copy()
        present = observation.ready + observation.starting
        for pools, gpus in self._groups:
            kept = np.maximum(targets[pools], present[pools])  # what goes now may drain first
            held = kept + observation.draining[pools]
            over = int(held @ self._gpus_each[pools]) - gpus
            for p in reversed(pools):
                if over <= 0:
                    break
                growth = max(0, int(targets[p] - present[p]))
                each = int(self._gpus_each[p])
                back = min(growth, -(-over // each))
                targets[p] -= back
                over -= back * each
        wanted = np.maximum(asked.targets - present, 0)
        granted = np.maximum(targets - present, 0)
        for pools in self._paired:
            grows = [p for p in pools if wanted[p]]
            share = min((granted[p] / wanted[p] for p in grows), default=1.0)
            for p in grows:
                targets[p] = present[p] + min(granted[p], ceil(wanted[p] * share))
        return replace(asked, targets=targets)
