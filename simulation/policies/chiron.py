"""Chiron's hierarchical backpressure (methods.md E8; arXiv 2501.08090).

Two points are ours, since the source leaves them open. ``grow`` and ``shrink`` are the factors by
which a batch changes in a step. And throughput is compared with the previous one only while the
batch is full, since otherwise throughput just follows the load.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.performance.profile import iteration_s
from simulation.policies.parts.endpoints import Endpoints, cheapest_first, count_in, initial_counts
from simulation.policies.parts.stability import ROUNDING
from simulation.policies.parts.tier_pools import BATCH, INTERACTIVE, pool_kind
from simulation.policy import Actions, Observation, ScalingPolicy, Signals

DAY_S = 86_400.0
FULL_BATCH_SHARE = 0.9  # share of the largest batch above which the mean batch is full
QUEUE_GROUP_S = 300.0  # batch requests that are queued within this time are one group


@dataclass(eq=False)
class Chiron(ScalingPolicy):
    """Scale a fleet of interactive, mixed and batch pools (``tier_pools.chiron_fleet``).

    Local: the largest batch of each pool grows while backpressure is below 1 and shrinks above.
    Backpressure is the larger of two ratios: observed over target TBT, and previous over present
    throughput. The target is the tightest TBT limit of the pool's tiers. Without one, only
    throughput counts.

    Interactive: the busy share of the interactive and mixed instances together is kept at
    ``theta``. Above it, instances are added at once. Below it, they are removed one at a time,
    interactive ones first. An instance that runs batch requests only is busy too.

    Batch: instances are added if queued groups of requests would miss their deadline, which is the
    tightest limit of the deferrable tiers, else a day. ``lengths`` are mean input and output tokens
    of a request, one pair or one per pool; they give the requests/s of an instance. All instances
    are removed when the queue is empty and no request runs.
    """

    wants_signals = True

    lengths: tuple[float, float] | Sequence[tuple[float, float]]
    theta: float = 0.6
    grow: float = 1.1
    shrink: float = 0.8
    tune_batch: bool = True
    interval_s: float = 15.0
    name: str = "chiron"

    def reset(self, fleet: Fleet) -> IntArray:
        """Group pools by their tiers, and read the limits; return the first counts."""
        pools = len(fleet.pools)
        self._fleet, self._endpoints = fleet, Endpoints(fleet)
        kinds = [pool_kind(pool, fleet) for pool in fleet.pools]
        self._latency_pools = _latency_pools(fleet, kinds)
        self._batch_pools = _batch_pools(fleet, kinds)
        self._queues: list[deque[list[float]]] = [deque() for _ in self._batch_pools]
        self._max_batch = np.array([pool.profile.max_batch for pool in fleet.pools], np.float64)
        self._batch_limits = self._max_batch.copy()  # what ``tune_batch`` changes
        self._last_throughput = np.zeros(pools)  # tokens/s per instance, last decision
        self._tbt_limit_s = np.array([_tightest_tbt_s(fleet, p) for p in range(pools)])
        deferrable = [tier for tier in fleet.tiers if tier.deferrable]
        deadlines = [limit for tier in deferrable for limit in (tier.e2e_s, tier.ttft_s)]
        self._deadline_s = min((limit for limit in deadlines if limit is not None), default=DAY_S)
        self._isl, self._osl = np.broadcast_to(np.asarray(self.lengths, np.float64), (pools, 2)).T
        return initial_counts(fleet)

    def decide(self, observation: Observation) -> Actions:
        """Scale interactive and mixed pools by region, then batch pools by queue."""
        targets = observation.present
        for interactive, mixed in self._latency_pools:
            self._scale_interactive(targets, interactive, mixed, observation)
        for pools, queue in zip(self._batch_pools, self._queues, strict=True):
            self._scale_batch(targets, queue, pools, observation)
        return Actions(
            targets, max_batch=self._largest_batches(observation) if self.tune_batch else None
        )

    def _scale_interactive(
        self,
        targets: IntArray,
        interactive: tuple[int, ...],
        mixed: tuple[int, ...],
        observation: Observation,
    ) -> None:
        """Change ``targets [pools]`` of the interactive and mixed pools of a model and region.

        Their new number is the mean number of busy instances over ``theta``. If it is below the
        present number, one instance is removed. Without instances, one starts if a request waits.
        """
        pools, growing = [*interactive, *mixed], interactive or mixed
        present, ready = count_in(targets, pools), observation.ready[pools]
        if observation.signals is None or not ready.any():
            if not present and observation.waiting[pools].any():
                self._endpoints.move(targets, growing, 1)
            return
        busy = np.nan_to_num(observation.signals.busy[pools])
        needed = max(1, ceil(float((busy * ready).sum()) / self.theta - ROUNDING))
        if needed > present:
            self._endpoints.move(targets, growing, needed - present)
        elif needed < present and not self._endpoints.move(targets, interactive, -1):
            self._endpoints.move(targets, mixed, -1)

    def _scale_batch(
        self,
        targets: IntArray,
        queue: deque[list[float]],
        pools: tuple[int, ...],
        observation: Observation,
    ) -> None:
        """Change ``targets [pools]`` of the batch pools of a model, so that deadlines are kept.

        ``pools`` are those of regions that share a queue. ``queue`` has the requests that wait for
        them, as in ``_update_queue``.
        """
        pool_list = list(pools)
        deferred = 0 if observation.deferred is None else int(observation.deferred[pools[0]])
        waiting = count_in(observation.waiting, pool_list)
        self._update_queue(queue, deferred + waiting, observation.time_s)
        present = count_in(targets, pool_list)
        if queue:
            needed = self._instances_for_deadlines(queue, pools[0], observation.time_s)
            if needed > present:
                self._endpoints.move(targets, pools, needed - present)
        elif present and not (observation.utilisation[pool_list] > 0).any():
            self._endpoints.move(targets, pools, -present)

    def _instances_for_deadlines(self, queue: deque[list[float]], p: int, now: float) -> int:
        """Return the instances of pool ``p`` that complete each group of ``queue`` in time."""
        instance_rps = self._requests_s(p)
        requests, needed = 0.0, 1
        for queued_s, count in queue:
            requests += count  # of this group and of those before it
            # A missed deadline counts as one at the next decision.
            left_s = max(queued_s + self._deadline_s - now, self.interval_s)
            needed = max(needed, ceil(requests / (instance_rps * left_s) - ROUNDING))
        return needed

    @staticmethod
    def _update_queue(queue: deque[list[float]], queued: int, now: float) -> None:
        """Change ``queue`` so that its groups contain ``queued`` requests in total.

        A group is the time at which it was queued and a number of requests. The oldest comes first.
        New requests form a group, and completed ones leave the oldest group.
        """
        new_requests = queued - sum(count for _, count in queue)
        if new_requests > 0:
            if queue and now - queue[-1][0] < QUEUE_GROUP_S:
                queue[-1][1] += new_requests
            else:
                queue.append([now, new_requests])
        completed = -new_requests
        while completed > 0 and queue:
            _, oldest_count = queue[0]
            taken = min(oldest_count, completed)
            queue[0][1] -= taken
            completed -= taken
            if not queue[0][1]:
                queue.popleft()

    def _requests_s(self, p: int) -> float:
        """Return the requests/s of one instance of pool ``p`` with a full batch.

        A request takes the time of its prefill, and its share of the batch's decode iterations.
        """
        profile = self._fleet.pools[p].profile
        isl, osl = float(self._isl[p]), float(self._osl[p])
        fits = profile.kv_capacity_tokens / (isl + osl)
        batch = max(1.0, min(float(self._batch_limits[p]), fits))
        context = isl + osl / 2
        decode_s = float(iteration_s(profile, batch, batch * context, 0, 0))
        prefill_s = float(iteration_s(profile, 0, 0, isl, isl * isl / 2))
        return 1.0 / (prefill_s + osl * decode_s / batch)

    def _largest_batches(self, observation: Observation) -> IntArray:
        """Return the largest batch of each pool after this decision's backpressure, ``[pools]``.

        Pools that computed no token since the last decision keep theirs.
        """
        signals = observation.signals
        if signals is not None:
            throughput = signals.decode_tps / np.maximum(observation.ready, 1)
            pressure = self._backpressure(signals, throughput)
            factor = np.select([pressure < 1, pressure > 1], [self.grow, self.shrink], 1.0)
            changed = np.clip(self._batch_limits * factor, 1.0, self._max_batch)
            served = (observation.ready > 0) & (signals.decode_tps > 0)
            self._batch_limits = np.where(served, changed, self._batch_limits)
            self._last_throughput = np.where(served, throughput, self._last_throughput)
        return np.floor(self._batch_limits).astype(np.int64)

    def _backpressure(self, signals: Signals, throughput: FloatArray) -> FloatArray:
        """Return the backpressure ``[pools]``; instances serve ``throughput`` tokens/s each.

        It is the larger of two ratios: observed TBT over its limit, and, with a full batch, the
        throughput at the last decision over ``throughput``.
        """
        is_full = signals.batch >= FULL_BATCH_SHARE * self._batch_limits
        with np.errstate(invalid="ignore", divide="ignore"):
            tbt_ratio = np.nan_to_num(signals.tbt_s / self._tbt_limit_s)
            # A full batch that serves less than before is too large.
            throughput_ratio = self._last_throughput / throughput
        throughput_ratio = np.where(is_full & (throughput > 0), throughput_ratio, 0.0)
        return np.asarray(np.maximum(tbt_ratio, throughput_ratio))


def _latency_pools(
    fleet: Fleet, kinds: Sequence[str]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the interactive and the mixed pools of each model and region, by ``kinds [pools]``."""
    groups: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for p, pool in enumerate(fleet.pools):
        interactive, mixed = groups.setdefault((pool.model, pool.region), ([], []))
        if kinds[p] == INTERACTIVE:
            interactive.append(p)
        elif kinds[p] != BATCH:
            mixed.append(p)
    return [
        (cheapest_first(fleet, interactive), cheapest_first(fleet, mixed))
        for interactive, mixed in groups.values()
    ]


def _batch_pools(fleet: Fleet, kinds: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the batch pools of each model and group of regions that share requests."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    islands = fleet.islands.tolist()
    for p, pool in enumerate(fleet.pools):
        if kinds[p] == BATCH:
            groups[pool.model, islands[p]].append(p)
    return [cheapest_first(fleet, pools) for pools in groups.values()]


def _tightest_tbt_s(fleet: Fleet, p: int) -> float:
    """Return the tightest TBT limit of the tiers of pool ``p`` in seconds; inf without one."""
    limits = [tier.tbt_s for tier in fleet.tiers if fleet.pools[p].takes(tier.name)]
    return min((limit for limit in limits if limit is not None), default=float("inf"))
