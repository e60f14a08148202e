"""Chiron's hierarchical backpressure (methods.md E8; arXiv 2501.08090).

Two points are ours, since the source leaves them open. ``grow`` and ``shrink`` are the factors by
which a batch changes in a step. And throughput is compared with the previous one only while the
batch is full, since otherwise throughput just follows the load.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.performance.profile import iteration_s
from simulation.policies.parts.endpoints import Endpoints, cheapest_first, initial_counts
from simulation.policies.parts.stability import ROUNDING
from simulation.policies.parts.tier_pools import BATCH, INTERACTIVE, pool_kind
from simulation.policy import Actions, Observation, ScalingPolicy

DAY_S = 86_400.0
FULL = 0.9  # share of the largest batch above which the mean batch is full
GROUP_S = 300.0  # batch requests that are queued within this time are one group


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
        self._fleet, self._endpoints = fleet, Endpoints(fleet)
        kinds = [pool_kind(pool, fleet) for pool in fleet.pools]
        # Interactive and mixed pools of each model and region.
        self._latency_pools: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for model_and_region in dict.fromkeys((pool.model, pool.region) for pool in fleet.pools):
            pools_here = [
                p for p, q in enumerate(fleet.pools) if (q.model, q.region) == model_and_region
            ]
            interactive = [p for p in pools_here if kinds[p] == INTERACTIVE]
            mixed = [p for p in pools_here if kinds[p] not in (INTERACTIVE, BATCH)]
            self._latency_pools.append(
                (cheapest_first(fleet, interactive), cheapest_first(fleet, mixed))
            )
        # Batch pools of each model and group of regions that share requests, with their queue.
        batch_pools: dict[tuple[str, int], list[int]] = {}
        for p, (pool, island) in enumerate(zip(fleet.pools, fleet.islands.tolist(), strict=True)):
            if kinds[p] == BATCH:
                batch_pools.setdefault((pool.model, island), []).append(p)
        self._batch_pools = [cheapest_first(fleet, pools) for pools in batch_pools.values()]
        self._queues: list[deque[list[float]]] = [deque() for _ in self._batch_pools]
        self._max_batch = np.array([pool.profile.max_batch for pool in fleet.pools], np.float64)
        self._batch_limits = self._max_batch.copy()  # what ``tune_batch`` changes
        self._throughput = np.zeros(len(fleet.pools))  # tokens/s per instance, last decision
        self._tbt = np.array([_tbt_limit(fleet, p) for p in range(len(fleet.pools))])
        batch_tiers = [tier for tier in fleet.tiers if tier.deferrable]
        limits = [limit for t in batch_tiers for limit in (t.e2e_s, t.ttft_s) if limit is not None]
        self._deadline_s = min(limits, default=DAY_S)
        self._isl, self._osl = np.broadcast_to(
            np.asarray(self.lengths, np.float64), (len(fleet.pools), 2)
        ).T
        return initial_counts(fleet)

    def decide(self, observation: Observation) -> Actions:
        """Scale interactive and mixed pools by region, then batch pools by queue."""
        targets = observation.ready + observation.starting
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
        pools = [*interactive, *mixed]
        present = int(targets[pools].sum())
        if observation.signals is None or not observation.ready[pools].any():
            if not present and observation.waiting[pools].any():
                self._endpoints.move(targets, interactive or mixed, 1)
            return
        busy = np.nan_to_num(observation.signals.busy[pools])
        running = float((busy * observation.ready[pools]).sum())
        needed = max(1, ceil(running / self.theta - ROUNDING))
        if needed > present:
            self._endpoints.move(targets, interactive or mixed, needed - present)
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
        now, pool_list = observation.time_s, list(pools)
        deferred = 0 if observation.deferred is None else int(observation.deferred[pools[0]])
        self._update_queue(queue, deferred + int(observation.waiting[pool_list].sum()), now)
        present = int(targets[pool_list].sum())
        if not queue:
            idle = not (observation.utilisation[pool_list] > 0).any()
            if idle and present:
                self._endpoints.move(targets, pools, -present)
            return
        rps = self._requests_s(pools[0])
        due, needed = 0.0, 1
        for queued_s, count in queue:
            due += count  # requests of this group and of those before it
            # A missed deadline counts as one at the next decision.
            left_s = max(queued_s + self._deadline_s - now, self.interval_s)
            needed = max(needed, ceil(due / (rps * left_s) - ROUNDING))
        if needed > present:
            self._endpoints.move(targets, pools, needed - present)

    @staticmethod
    def _update_queue(queue: deque[list[float]], queued: int, now: float) -> None:
        """Change ``queue`` so that its groups contain ``queued`` requests in total.

        A group is the time at which it was queued and a number of requests. The oldest comes first.
        New requests form a group, and completed ones leave the oldest group.
        """
        change = queued - sum(count for _, count in queue)
        if change > 0:
            if queue and now - queue[-1][0] < GROUP_S:
                queue[-1][1] += change
            else:
                queue.append([now, change])
        while change < 0 and queue:
            completed = min(queue[0][1], -change)
            queue[0][1] -= completed
            change += completed
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
            with np.errstate(invalid="ignore", divide="ignore"):
                tbt_ratio = np.nan_to_num(signals.tbt_s / self._tbt)
                throughput = signals.decode_tps / np.maximum(observation.ready, 1)
                full = signals.batch >= FULL * self._batch_limits
                # A full batch that serves less than before is too large.
                throughput_ratio = np.where(
                    full & (throughput > 0), self._throughput / throughput, 0.0
                )
            pressure = np.maximum(tbt_ratio, throughput_ratio)
            served = (observation.ready > 0) & (signals.decode_tps > 0)
            factor = np.where(pressure < 1, self.grow, np.where(pressure > 1, self.shrink, 1.0))
            changed = np.clip(self._batch_limits * factor, 1.0, self._max_batch)
            self._batch_limits = np.where(served, changed, self._batch_limits)
            self._throughput = np.where(served, throughput, self._throughput)
        return np.floor(self._batch_limits).astype(np.int64)


def _tbt_limit(fleet: Fleet, p: int) -> float:
    """Return the tightest TBT limit of the tiers of pool ``p``; infinite without one."""
    limits = [tier.tbt_s for tier in fleet.tiers if fleet.pools[p].takes(tier.name)]
    return min((limit for limit in limits if limit is not None), default=float("inf"))
