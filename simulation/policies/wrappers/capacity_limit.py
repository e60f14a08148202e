"""Limit a policy to the GPUs and power that pools share (docs/methods.md D4, E7; HeteroScale)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet, replica_switch_key
from simulation.policies.parts.endpoints import Service, services
from simulation.policies.parts.stability import ROUNDING
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Hold, Observation, ScalingPolicy, actions_of


class SharedLimit(NamedTuple):
    """GPUs, or another amount such as watts, that a group of pools shares.

    Comments of CapacityLimit say GPUs for every such amount.
    """

    pools: Sequence[int]  # indices of the group's pools
    amount: int  # in total
    per_instance: IntArray | None = None  # [pools of the fleet] of an instance; None: its GPUs


class CapacityLimit(Wrapper):
    """Reject growth of ``policy`` that exceeds one of ``limits``, such as the GPUs of a region.

    ``worth [pools]`` is the priority of each pool's service; None: all are equal. Services with a
    higher priority grow first. Services of one priority get the same share of their growth, rounded
    down to instances; what is left goes to the pools that lost most by rounding.

    Draining and lent instances still occupy their GPUs, so growth waits until they are free. Lent
    instances are called back for it. Some growth needs no GPUs: it restores a draining instance, or
    uses a lent one if ``start_up`` allows it. If one role of a service with prefill and decode
    pools is refused growth, the other role gets the same share, since alone it would serve no more
    (HeteroScale, section 3.4).

    If growth with a higher priority is refused, the services with the lowest priority shrink
    ("temporarily reducing non-critical services"). Both roles shrink alike, to at least their
    minimum and one instance. Their instances stop as soon as their requests are done, without soft
    scale-in. They grow again when GPUs are free. Services of equal priority do not shrink for each
    other.

    ``refused`` counts the refused instances since the start. An instance that is refused at several
    decisions in a row counts once.
    """

    def __init__(
        self, policy: ScalingPolicy, limits: Sequence[SharedLimit], worth: FloatArray | None = None
    ) -> None:
        super().__init__(policy)
        self._limits = [SharedLimit(*limit) for limit in limits]
        self._groups = [list(limit.pools) for limit in self._limits]
        self._worth = worth
        self.refused = 0

    def reset(self, fleet: Fleet) -> IntArray:
        """Note limits, GPUs and priorities of the pools; return the counts of the policy."""
        self.refused = 0
        self._minimum = np.array([pool.minimum for pool in fleet.pools], np.int64)
        self._maximum = np.array([pool.maximum for pool in fleet.pools], np.int64)
        # Instances that the last decision refused, ``[pools]``.
        self._last_refused = self._nothing = np.zeros(len(fleet.pools), np.int64)
        gpus = np.array([pool.gpus_per_instance for pool in fleet.pools], np.int64)
        # By group, the GPUs of an instance of each pool, ``[pools]``
        self._per_instance = [
            gpus if limit.per_instance is None else limit.per_instance for limit in self._limits
        ]
        self._can_start_on_lent = _can_start_on_lent(fleet)
        self._by_priority = self._services_by_priority(fleet)
        return super().reset(fleet)

    def _services_by_priority(self, fleet: Fleet) -> list[list[Service]]:
        """Return the services of each priority, the highest first."""
        worth = np.ones(len(fleet.pools)) if self._worth is None else np.asarray(self._worth)
        by_priority: dict[float, list[Service]] = defaultdict(list)
        for service in services(fleet):
            by_priority[float(worth[list(service.pools)].max())].append(service)
        return [by_priority[priority] for priority in sorted(by_priority, reverse=True)]

    def decide(self, observation: Observation) -> Actions:
        """Return the actions of the wrapped policy, with targets that fit the available GPUs.

        The highest priority is served first. If it lacks GPUs, lower priorities give some up and
        lent instances are called back.
        """
        actions = actions_of(self._policy.decide(observation))
        present = observation.present
        if not (actions.targets > present).any():  # without growth no GPU is missing
            self._last_refused = self._nothing
            return actions
        draining = observation.draining
        # ``lent`` are the lent instances that nothing uses yet: ``_limit_growth`` reduces it.
        lent = np.zeros_like(present) if observation.spare is None else observation.spare.copy()
        targets = actions.targets.copy()  # changed in place from here on
        missing = self._limit_growth(targets, present, draining, lent)
        called_back = self._call_back(lent, missing)
        firm = self._shrink_lower_priorities(targets, present, draining, called_back, missing)
        self._count_refused(actions.targets, targets, present)
        keep_lent = actions.keep_lent
        if called_back.any() and observation.spare is not None:
            still_lent = observation.spare - called_back
            keep_lent = still_lent if keep_lent is None else np.minimum(keep_lent, still_lent)
        if not firm.any():
            return replace(actions, targets=targets, keep_lent=keep_lent)
        return replace(actions, targets=targets, firm=firm, keep_lent=keep_lent)

    def _limit_growth(
        self, targets: IntArray, present: IntArray, draining: IntArray, lent: IntArray
    ) -> IntArray:
        """Reduce ``targets`` in place to those that free GPUs allow, the highest priority first.

        ``lent`` is reduced by the instances that growth uses. Returns the GPUs that refused growth
        would need, ``[priorities, groups]``. A group is the pools of one limit.
        """
        requested = targets.copy()
        amounts = np.array([limit.amount for limit in self._limits], np.int64)
        free = amounts - self._gpus_of(present + draining + lent)  # [groups] held by no instance
        missing = np.zeros((len(self._by_priority), len(self._groups)), np.int64)
        for priority, priority_services in enumerate(self._by_priority):
            pools = list(dict.fromkeys(p for service in priority_services for p in service.pools))
            for g in np.flatnonzero(missing.any(axis=0)).tolist():
                # Do not take back draining instances, whose GPUs a higher priority waits for.
                blocked = [p for p in self._groups[g] if p in pools]
                targets[blocked] = np.minimum(targets[blocked], present[blocked])
            # Growth first takes draining and lent instances; only the rest needs free GPUs.
            needing = self._needing_free_gpus(targets - present - draining, pools, lent)
            missing[priority] = self._grant(targets, pools, needing, free)
            # If one role was refused growth, reduce the other role too.
            _keep_ratios(targets, requested, present, priority_services)
            # Take the GPUs of what starts from those that lower priorities may use.
            growth = np.maximum(targets - present - draining, 0)
            free -= self._gpus_of(np.minimum(needing, growth))
        return missing

    def _count_refused(self, requested: IntArray, targets: IntArray, present: IntArray) -> None:
        """Count the refused instances, ``requested`` less ``targets``.

        An instance that the last decision refused too counts once.
        """
        reached = np.maximum(np.minimum(targets, self._maximum), present)
        refused = np.maximum(requested - reached, 0)
        newly_refused = np.maximum(refused - self._last_refused, 0)
        self.refused += int(newly_refused.sum())
        self._last_refused = refused

    def hold(self, time_s: float) -> Hold | None:
        return None if self._last_refused.any() else super().hold(time_s)

    def _gpus_of(self, instances: IntArray) -> IntArray:
        """Return the GPUs ``[groups]`` of ``instances [pools]``."""
        return np.array([
            instances[group] @ per_instance[group]
            for group, per_instance in zip(self._groups, self._per_instance, strict=True)
        ], np.int64)  # fmt: skip

    def _call_back(self, lent: IntArray, missing: IntArray) -> IntArray:
        """Return how many of the ``lent`` instances to call back, ``[pools]``; last pools first.

        ``missing [priorities, groups]`` are the GPUs that refused growth would need.
        """
        called_back = np.zeros_like(lent)
        for group, per_instance, missing_gpus in zip(
            self._groups, self._per_instance, missing.sum(axis=0).tolist(), strict=True
        ):
            for p in reversed(group):
                gpus = max(1, int(per_instance[p]))
                back = min(int(lent[p]), -(-max(0, missing_gpus) // gpus))  # rounded up
                # An instance that one group calls back frees its GPUs in every group.
                called_back[p] = max(back, int(called_back[p]))
                missing_gpus -= back * gpus
        return called_back

    def _needing_free_gpus(
        self, growth: IntArray, pools: Sequence[int], lent: IntArray
    ) -> IntArray:
        """Return the instances of ``growth`` that need free GPUs, ``[pools]``.

        Only pools in ``pools`` count. Growth first uses ``lent`` instances, those of the same pool
        before others. ``lent`` is reduced in place.
        """
        needing = np.zeros_like(growth)
        for p in pools:
            count = max(0, int(growth[p]))
            others = np.flatnonzero(self._can_start_on_lent[p]).tolist()
            for q in (p, *(q for q in others if q != p)):
                on_lent = min(count, int(lent[q]))
                lent[q] -= on_lent
                count -= on_lent
            needing[p] = count
        return needing

    def _grant(
        self, targets: IntArray, pools: Sequence[int], needing: IntArray, free: IntArray
    ) -> IntArray:
        """Reduce ``targets`` in place by the instances for which there are no GPUs.

        Only ``pools`` are changed. ``needing [pools]`` are their instances that need free GPUs; it
        is reduced too. ``free [groups]`` are free GPUs. All pools of a group get the same share of
        their need, in whole instances. Returns the missing GPUs, ``[groups]``.
        """
        missing = np.zeros(len(self._groups), np.int64)
        for g, group in enumerate(self._groups):
            growing = [p for p in group if p in pools and needing[p]]
            gpus, requested = self._per_instance[g][growing], needing[growing]
            demand, free_gpus = int(requested @ gpus), max(0, int(free[g]))
            if demand > free_gpus:
                missing[g] = demand - free_gpus
                granted = _granted_instances(requested, gpus, free_gpus)
                targets[growing] -= requested - granted
                needing[growing] = granted  # for the next group with these pools
        return missing

    def _shrink_lower_priorities(
        self,
        targets: IntArray,
        present: IntArray,
        draining: IntArray,
        called_back: IntArray,
        missing: IntArray,
    ) -> BoolArray:
        """Lower ``targets`` of lower priorities, so that GPUs missing for higher ones become free.

        ``missing [priorities, groups]`` are GPUs. GPUs that become free anyway count, by
        ``draining`` and ``called_back`` instances for example. The lowest priority shrinks first.
        Returns the mask of pools that shrink, ``[pools]``; their instances stop without a soft
        scale-in.
        """
        leaving = np.maximum(present - targets, 0)
        restored = np.maximum(targets - present, 0)  # growth takes draining instances first
        leaving += np.maximum(draining - restored, 0) + called_back
        becoming_free = self._gpus_of(leaving)
        granted = targets.copy()
        for priority in reversed(range(1, len(self._by_priority))):
            need = missing[:priority].sum(axis=0) - becoming_free
            for g in np.flatnonzero(need > 0).tolist():
                for service in self._by_priority[priority]:
                    reduction = self._reduction(service, targets, g, int(need[g]))
                    targets -= reduction
                    freed = self._gpus_of(reduction)
                    need[g] -= freed[g]
                    becoming_free += freed
        return targets < granted

    def _reduction(
        self, service: Service, targets: IntArray, group: int, needed_gpus: int
    ) -> IntArray:
        """Return the instances ``[pools]`` that a service gives up to free ``needed_gpus``.

        ``group`` is the index of the pools' group. The pools give up the same share, but keep their
        minimum and one instance.
        """
        spare = np.zeros_like(targets)
        pools = list(service.pools)
        spare[pools] = np.maximum(targets[pools] - np.maximum(self._minimum[pools], 1), 0)
        spare_gpus = self._gpus_of(spare)[group]
        if needed_gpus <= 0 or not spare_gpus:
            return np.zeros_like(targets)
        share = min(1.0, needed_gpus / spare_gpus)
        return np.asarray(np.ceil(spare * share - ROUNDING), np.int64)


def _granted_instances(requested: IntArray, gpus: IntArray, free_gpus: int) -> IntArray:
    """Return the instances of each pool that start on ``free_gpus``, fewer than ``requested``.

    ``gpus`` are those of an instance of each pool. All pools get the same share, rounded down. The
    pools that rounding cost most get one instance more, as GPUs allow.
    """
    exact = requested * (free_gpus / int(requested @ gpus))
    granted = np.asarray(np.floor(exact + ROUNDING), np.int64)
    left = free_gpus - int(granted @ gpus)
    for i in np.argsort(granted - exact, kind="stable"):
        if granted[i] < requested[i] and gpus[i] <= left:
            granted[i] += 1
            left -= int(gpus[i])
    return granted


def _keep_ratios(
    targets: IntArray, requested: IntArray, present: IntArray, services: Sequence[Service]
) -> None:
    """Reduce ``targets`` so that both roles of a service get the same share of their growth.

    Both get the smaller one of the shares that they were granted of their ``requested`` growth.
    """
    wanted = np.maximum(requested - present, 0)
    granted = np.maximum(targets - present, 0)
    for service in services:
        grows = [p for p in service.pools if wanted[p]] if service.has_separate_roles else []
        share = min((granted[p] / wanted[p] for p in grows), default=1.0)
        for p in grows:
            targets[p] = present[p] + min(granted[p], ceil(wanted[p] * share))


def _can_start_on_lent(fleet: Fleet) -> BoolArray:
    """Return whether pool p can start on a lent instance of pool q, ``[p, q]``.

    The rule is that of ``simulation.start_times``.
    """
    can_start = np.zeros((len(fleet.pools), len(fleet.pools)), np.bool_)
    for p, pool in enumerate(fleet.pools):
        start = pool.start_up
        any_model = start is not None and start.other_model_s is not None
        any_of_architecture = start is not None and start.same_architecture_s is not None
        for q, other in enumerate(fleet.pools):
            # The keys have the model, then what the GPUs of both must share.
            if replica_switch_key(pool)[1:] != replica_switch_key(other)[1:]:
                continue
            same_model = pool.model == other.model
            same_architecture = bool(pool.architecture) and pool.architecture == other.architecture
            can_start[p, q] = same_model or any_model or (any_of_architecture and same_architecture)
    return can_start
