"""Any policy, kept within the GPUs that pools share (E7's region caps, ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from simulation.arrays import BoolArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import services
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Observation, ScalingPolicy, actions_of


class WithinCapacity(Wrapper):
    """``policy``, with growth taken back where a group of pools would pass its GPUs.

    ``groups`` holds (indices of pools, GPUs they share). What is up stays up: only instances asked
    for beyond the present count are refused, the last pool's first. An instance that drains or is
    lent out still holds its GPUs, so one pool's growth waits until another has let go; growth that
    takes back what drains, or takes what is lent where starts may (``start_up``), needs none.
    Where prefill and decode are apart and one of them is refused growth, the other gets the same
    share of its own: one without the other would serve no more (HeteroScale, section 3.4).
    """

    def __init__(self, policy: ScalingPolicy, groups: Sequence[tuple[Sequence[int], int]]) -> None:
        super().__init__(policy)
        self._groups = [(list(pools), gpus) for pools, gpus in groups]
        self._gpus_each = np.zeros(0, np.int64)
        self._may_take = np.zeros((0, 0), np.bool_)
        self._paired: list[list[int]] = []

    def reset(self, fleet: Fleet) -> IntArray:
        self._gpus_each = np.array([pool.gpus_per_instance for pool in fleet.pools], np.int64)
        self._may_take = _may_take(fleet)
        self._paired = [list(one.pools) for one in services(fleet) if one.paired]
        return super().reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        asked = actions_of(self._policy.decide(observation))
        targets = asked.targets.copy()
        present = observation.ready + observation.starting
        held = present + observation.draining  # what goes now may drain first
        lent = np.zeros_like(held) if observation.spare is None else observation.spare.copy()
        held += lent
        for pools, gpus in self._groups:
            fresh = self._fresh(targets - present - observation.draining, pools, lent)
            over = int(held[pools] @ self._gpus_each[pools])
            over += sum(count * int(self._gpus_each[p]) for p, count in fresh.items()) - gpus
            for p in reversed(pools):
                if over <= 0:
                    break
                each = int(self._gpus_each[p])
                back = min(fresh[p], -(-over // each))
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

    def _fresh(self, growth: IntArray, pools: Sequence[int], lent: IntArray) -> dict[int, int]:
        """Instances by pool that need GPUs of their own: growth beyond what of ``lent`` they take,
        their own first, in the order of the pools; ``lent`` is what is left of it."""
        fresh = {}
        for p in pools:
            wanted = max(0, int(growth[p]))
            for q in (p, *(q for q in pools if q != p and self._may_take[p, q])):
                taken = min(wanted, int(lent[q]))
                lent[q] -= taken
                wanted -= taken
            fresh[p] = wanted
        return fresh


def _may_take(fleet: Fleet) -> BoolArray:
    """Whether a start of a pool may take what another has lent, ``[pools, pools]``: as the engine
    starts instances (simulation.starting)."""
    may = np.zeros((len(fleet.pools), len(fleet.pools)), np.bool_)
    for p, pool in enumerate(fleet.pools):
        start = pool.start_up
        for q, other in enumerate(fleet.pools):
            if (pool.region, pool.gpu.name, pool.spot, pool.gpus_per_instance) != (
                *(other.region, other.gpu.name, other.spot),
                other.gpus_per_instance,
            ):
                continue
            alike = bool(pool.architecture) and pool.architecture == other.architecture
            may[p, q] = (
                pool.model == other.model
                or (start is not None and start.other_model_s is not None)
                or (alike and start is not None and start.same_architecture_s is not None)
            )
    return may
