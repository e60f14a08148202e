"""Any policy, kept within the GPUs that pools share (E7's region caps, ours; D4's graceful
degradation, HeteroScale, section 3.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Service, services
from simulation.policies.parts.stability import ROUNDING
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Observation, ScalingPolicy, actions_of


class WithinCapacity(Wrapper):
    """``policy``, with growth taken back where a group of pools would pass its GPUs.

    ``groups`` holds (indices of pools, GPUs they share); ``worth`` ``[pools]`` says how much a
    pool's service matters, alike where it is left out. What matters more grows first; what matters
    alike gets the same share of what it asks for, whole instances by the largest remainder. An
    instance that drains or is lent out still holds its GPUs, so one pool's growth waits until
    another has let go, and what is lent of other pools is called back for it; growth that takes
    back what drains, or takes what is lent where starts may (``start_up``), needs none. Where
    prefill and decode are apart and one of them is refused growth, the other gets the same share of
    its own: one without the other would serve no more (HeteroScale, section 3.4).

    Where growth is refused that matters more than what is up, the least worthy services beside it
    are reduced, prefill and decode alike, down to their minimum and to no less than one instance,
    and grow again when there is room ("temporarily reducing non-critical services"). What they
    give up goes as soon as its requests are done, without a soft scale-in. Between services that
    matter alike what is up stays up.

    ``refused`` counts the instances that were asked for and refused since the start, each once
    until it is granted or no longer asked for.
    """

    def __init__(
        self,
        policy: ScalingPolicy,
        groups: Sequence[tuple[Sequence[int], int]],
        worth: FloatArray | None = None,
    ) -> None:
        super().__init__(policy)
        self._groups = [(list(pools), gpus) for pools, gpus in groups]
        self._worth = worth
        self.refused = 0

    def reset(self, fleet: Fleet) -> IntArray:
        self.refused = 0
        self._maximum = np.array([pool.maximum for pool in fleet.pools], np.int64)
        self._lacking = self._nothing = np.zeros(len(fleet.pools), np.int64)
        self._gpus_each = np.array([pool.gpus_per_instance for pool in fleet.pools], np.int64)
        self._minimum = np.array([pool.minimum for pool in fleet.pools], np.int64)
        self._may_take = _may_take(fleet)
        self._services = services(fleet)
        worth = np.ones(len(fleet.pools)) if self._worth is None else np.asarray(self._worth)
        # Services that matter alike, those that matter most first.
        of_service = [float(max(worth[p] for p in service.pools)) for service in self._services]
        self._classes = [
            [
                service
                for service, its in zip(self._services, of_service, strict=True)
                if its == level
            ]
            for level in sorted(set(of_service), reverse=True)
        ]
        return super().reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        asked = actions_of(self._policy.decide(observation))
        present = observation.ready + observation.starting
        if not (asked.targets > present).any():  # what does not grow needs no GPUs, and lacks none
            self._lacking = self._nothing
            return asked
        draining = observation.draining  # what goes now may drain first
        lent = np.zeros_like(present) if observation.spare is None else observation.spare.copy()
        gpus_held = (present + draining + lent) * self._gpus_each
        free = np.array([gpus - gpus_held[pools].sum() for pools, gpus in self._groups], np.int64)
        targets = asked.targets.copy()
        lacks = np.zeros((len(self._classes), len(self._groups)), np.int64)  # GPUs
        for level, alike in enumerate(self._classes):
            pools = list(dict.fromkeys(p for service in alike for p in service.pools))
            for g in np.flatnonzero(lacks.any(axis=0)).tolist():
                # What comes back from draining would keep GPUs that are waited for.
                blocked = [p for p in self._groups[g][0] if p in pools]
                targets[blocked] = np.minimum(targets[blocked], present[blocked])
            fresh = self._fresh(targets - present - draining, pools, lent)
            lacks[level] = self._grant(targets, pools, fresh, free)
            _keep_ratios(targets, asked.targets, present, alike)
            for g, (group, _) in enumerate(self._groups):
                grown = [p for p in group if p in pools]
                new = np.minimum(fresh[grown], np.maximum(targets - present - draining, 0)[grown])
                free[g] -= int(new @ self._gpus_each[grown])
        back = self._call_back(lent, lacks)
        firm = self._make_room(targets, present, draining, back, lacks)
        self._count(asked.targets, targets, present)
        keep = asked.keep_lent
        if back.any() and observation.spare is not None:
            spare = observation.spare - back
            keep = spare if keep is None else np.minimum(keep, spare)
        return replace(
            asked, targets=targets, firm=firm if firm.any() else asked.firm, keep_lent=keep
        )

    def _count(self, asked: IntArray, granted: IntArray, present: IntArray) -> None:
        """Instances that are lacking now and were not at the instant before, beyond what is up: by
        want of GPUs here, or of room in the pool."""
        up = np.maximum(np.minimum(granted, self._maximum), present)
        lacking = np.maximum(asked - up, 0)
        self.refused += int(np.maximum(lacking - self._lacking, 0).sum())
        self._lacking = lacking

    def _call_back(self, lent: IntArray, lacks: IntArray) -> IntArray:
        """Of what stays ``lent`` the instances whose GPUs are wanting, the last pool's first."""
        back = np.zeros_like(lent)
        for (group, _), lacking in zip(self._groups, lacks.sum(axis=0).tolist(), strict=True):
            for p in reversed(group):
                each = int(self._gpus_each[p])
                back[p] = min(int(lent[p]), -(-max(0, lacking) // each))
                lacking -= int(back[p]) * each
        return back

    def _fresh(self, growth: IntArray, pools: Sequence[int], lent: IntArray) -> IntArray:
        """Instances of ``pools`` that need GPUs of their own, ``[pools]``: growth beyond what of
        ``lent`` they take, their own first, in the order of the pools; ``lent`` is what is left."""
        fresh = np.zeros_like(growth)
        for p in pools:
            lacking = max(0, int(growth[p]))
            for q in (p, *(q for q in range(len(lent)) if q != p and self._may_take[p, q])):
                taken = min(lacking, int(lent[q]))
                lent[q] -= taken
                lacking -= taken
            fresh[p] = lacking
        return fresh

    def _grant(
        self, targets: IntArray, pools: Sequence[int], fresh: IntArray, free: IntArray
    ) -> IntArray:
        """Take back from ``targets`` what of ``fresh`` finds no GPUs; how many are lacking,
        ``[groups]``."""
        lacks = np.zeros(len(self._groups), np.int64)
        for g, (group, _) in enumerate(self._groups):
            asking = [p for p in group if p in pools and fresh[p]]
            each, asked = self._gpus_each[asking], fresh[asking]
            demand, left = int(asked @ each), max(0, int(free[g]))
            if demand <= left:
                continue
            lacks[g] = demand - left
            exact = asked * (left / demand)
            granted = np.floor(exact + ROUNDING).astype(np.int64)
            left -= int(granted @ each)
            for i in np.argsort(granted - exact, kind="stable"):
                if granted[i] < asked[i] and each[i] <= left:
                    granted[i] += 1
                    left -= int(each[i])
            targets[asking] -= asked - granted
        return lacks

    def _make_room(
        self,
        targets: IntArray,
        present: IntArray,
        draining: IntArray,
        back: IntArray,
        lacks: IntArray,
    ) -> BoolArray:
        """Reduce in ``targets`` what matters less than those that lack GPUs, the least worthy
        first, beyond what is about to be free anyway; which pools were reduced, ``[pools]``."""
        firm = np.zeros(len(targets), np.bool_)
        leaving = np.maximum(present - targets, 0)
        leaving += np.maximum(draining - np.maximum(targets - present, 0), 0) + back
        coming = np.array(
            [leaving[group] @ self._gpus_each[group] for group, _ in self._groups], np.int64
        )
        for level in reversed(range(1, len(self._classes))):
            need = lacks[:level].sum(axis=0) - coming
            for g in np.flatnonzero(need > 0):
                group = self._groups[g][0]
                for service in self._classes[level]:
                    places = list(service.pools)
                    spare = np.maximum(targets[places] - np.maximum(self._minimum[places], 1), 0)
                    there = np.array([p in group for p in places])
                    room = int(spare[there] @ self._gpus_each[places][there])
                    if need[g] <= 0 or not room:
                        continue
                    cut = np.ceil(spare * min(1.0, need[g] / room) - ROUNDING).astype(np.int64)
                    targets[places] -= cut
                    firm[places] |= cut > 0
                    need[g] -= int(cut[there] @ self._gpus_each[places][there])
                    for other, (pools, _) in enumerate(self._groups):
                        its = np.array([p in pools for p in places])
                        coming[other] += int(cut[its] @ self._gpus_each[places][its])
        return firm


def _keep_ratios(
    targets: IntArray, asked: IntArray, present: IntArray, services: Sequence[Service]
) -> None:
    """Growth of one role of a split service goes no further than that of the other."""
    wants = np.maximum(asked - present, 0)
    granted = np.maximum(targets - present, 0)
    for service in services:
        grows = [p for p in service.pools if wants[p]] if service.paired else []
        share = min((granted[p] / wants[p] for p in grows), default=1.0)
        for p in grows:
            targets[p] = present[p] + min(granted[p], ceil(wants[p] * share))


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
