"""Groups of pools that scale together: those of one model and region with the same work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet, Pool
from simulation.performance.profile import iteration_s
from simulation.policy import Gauge, Observation

Sees = Literal["queues", "memory"]  # with waiting requests, or only the KV memory in use
QUEUES: Sees = "queues"
MEAN_CONTEXT = 1_000  # tokens per sequence at which pools are compared


class Endpoints:
    """The endpoints of a fleet: pools of one model, region, role and set of tiers.

    ``pools[e]`` are the indices of the pools of endpoint ``e``, the cheapest per output token
    first. ``endpoint_of_pool [pools]`` is the index of each pool's endpoint.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Group the pools of ``fleet``, and note their limits."""
        groups: dict[tuple[str, str, str, tuple[str, ...] | None], list[int]] = {}
        for p, pool in enumerate(fleet.pools):
            groups.setdefault((pool.model, pool.region, pool.role, pool.tiers), []).append(p)
        self.keys = list(groups)
        self.pools = [cheapest_first(fleet, pools) for pools in groups.values()]
        self.endpoint_of_pool = np.zeros(len(fleet.pools), np.int64)
        for e, pools in enumerate(self.pools):
            self.endpoint_of_pool[list(pools)] = e
        # Endpoints of one pool use its values unchanged, so that results do not depend on others.
        self._has_one_pool = np.bincount(self.endpoint_of_pool) == 1
        self._first_pools = np.array([pools[0] for pools in self.pools], np.int64)
        # If so, arrays ``[pools]`` and ``[endpoints]`` are the same.
        self._all_have_one_pool = bool(self._has_one_pool.all())
        self._kv_capacity_tokens = np.array(
            [pool.profile.kv_capacity_tokens for pool in fleet.pools], np.float64
        )
        self._min_instances = np.array([pool.minimum for pool in fleet.pools], np.int64)
        self._max_instances = np.array([pool.maximum for pool in fleet.pools], np.int64)
        self._last_reading: tuple[Observation, Sees, FloatArray] | None = None

    def __len__(self) -> int:
        """Return the number of endpoints."""
        return len(self.pools)

    def total(self, values: FloatArray | IntArray) -> FloatArray:
        """Return the sum of ``values [pools]`` over the pools of each endpoint, ``[endpoints]``."""
        if self._all_have_one_pool:
            return values.astype(np.float64, copy=False)
        return np.bincount(self.endpoint_of_pool, values, len(self.pools)).astype(
            np.float64, copy=False
        )

    def utilisation(self, observation: Observation) -> FloatArray:
        """Return the used share of KV memory of each endpoint's ready instances, ``[endpoints]``.

        If none is ready, it is the largest utilization of its pools, which is 1 while requests
        wait.
        """
        if self._all_have_one_pool:
            return observation.utilisation
        pool_tokens = observation.ready * self._kv_capacity_tokens
        tokens = self.total(pool_tokens)
        largest = np.zeros(len(self.pools))
        np.maximum.at(largest, self.endpoint_of_pool, observation.utilisation)
        used = self.total(pool_tokens * observation.utilisation)
        means = np.where(tokens > 0, used / np.where(tokens > 0, tokens, 1.0), largest)
        return np.where(self._has_one_pool, observation.utilisation[self._first_pools], means)

    def reading(self, observation: Observation, sees: Sees) -> FloatArray:
        """Return the utilization that a policy compares with its thresholds, ``[endpoints]``.

        - ``sees`` queues: the used share of an iteration of the ready instances, waiting requests
          included (``Observation.load``). It exceeds 1 if requests wait.
        - ``sees`` memory: the used share of KV memory. It stays low on models with grouped-query
          attention, however long the queue is.
        """
        if self._last_reading is not None:
            read_from, read_with, utilization = self._last_reading
            if read_from is observation and read_with == sees:  # cached for gauge()
                return utilization
        utilization = self._reading(observation, sees)
        self._last_reading = observation, sees, utilization
        return utilization

    def _reading(self, observation: Observation, sees: Sees) -> FloatArray:
        """Compute ``reading``, which caches the result."""
        memory = self.utilisation(observation)
        if sees != QUEUES or observation.load is None:
            return memory
        if self._all_have_one_pool:
            return np.maximum(observation.load, memory)
        ready = self.total(observation.ready)
        mean_load = self.total(observation.ready * observation.load) / np.maximum(ready, 1)
        larger = np.where(ready > 0, np.maximum(mean_load, memory), memory)
        of_first_pool = np.maximum(observation.load[self._first_pools], memory)
        return np.where(self._has_one_pool, of_first_pool, larger)

    def limits(self, sees: Sees, in_below: FloatArray, out_above: FloatArray) -> FloatArray | None:
        """Return thresholds of ``reading`` by endpoint as ``Hold.limits``, ``[2, pools]``.

        None if the engine cannot compare them: an endpoint has several pools, or ``sees`` is
        memory.
        """
        unlimited = np.isneginf(in_below).all() and np.isposinf(out_above).all()
        if not unlimited and (sees != QUEUES or not self._all_have_one_pool):
            return None
        return np.stack([in_below[self.endpoint_of_pool], out_above[self.endpoint_of_pool]])

    def gauge(
        self, observation: Observation, sees: Sees, out_above: float, in_below: float
    ) -> Gauge:
        """Return ``reading`` as a gauge with its thresholds."""
        return Gauge(
            "How full an iteration is" if sees == QUEUES else "KV memory in use",
            True,
            np.where(self.total(observation.ready) > 0, self.reading(observation, sees), np.nan),
            out_above=out_above,
            in_below=in_below,
        )

    def move(self, targets: IntArray, pools: Sequence[int], change: int) -> int:
        """Add ``change`` instances to ``targets [pools]`` in place; return how many were added.

        A negative ``change`` removes instances. Of ``pools``, the cheapest grow first and the most
        expensive shrink first, within their limits.
        """
        remaining = change
        for p in pools if change > 0 else reversed(pools):
            present = int(targets[p])
            target = min(
                max(present + remaining, int(self._min_instances[p])), int(self._max_instances[p])
            )
            if (target - present) * change <= 0:  # at its limit already, or beyond it
                continue
            targets[p] = target
            remaining -= target - present
            if not remaining:
                break
        return change - remaining

    def move_all(self, targets: IntArray, change: IntArray) -> BoolArray:
        """Add ``change [endpoints]`` instances to ``targets`` in place, as ``move`` does.

        Returns the mask of endpoints that changed.
        """
        if not self._all_have_one_pool:
            moved = np.zeros(len(self.pools), np.bool_)
            for e in np.flatnonzero(change):
                moved[e] = self.move(targets, self.pools[e], int(change[e])) != 0
            return moved
        # Each endpoint has one pool, in the same order, so the arrays of both match.
        reached = np.minimum(np.maximum(targets + change, self._min_instances), self._max_instances)
        # A count outside its limits may have been brought back against the wanted direction.
        moved = np.asarray((reached - targets) * change > 0)
        targets[moved] = reached[moved]
        return moved


@dataclass(frozen=True, slots=True)
class Service:
    """The pools of a model in a region that one scaling decision changes.

    ``prefill`` and ``decode`` are equal if each instance does both.
    """

    model: str
    region: str
    prefill: tuple[int, ...]
    decode: tuple[int, ...]

    @property
    def has_separate_roles(self) -> bool:
        """Return whether prefill and decode have separate instances."""
        return self.prefill != self.decode

    @property
    def pools(self) -> tuple[int, ...]:
        """Return all pools of the service, each once."""
        return (*self.prefill, *self.decode) if self.has_separate_roles else self.prefill


def services(fleet: Fleet) -> list[Service]:
    """Return every service of the fleet, pools cheapest first.

    A model with aggregated and disaggregated instances in a region is two services there.
    """
    endpoints = Endpoints(fleet)
    pools_by_key = dict(zip(endpoints.keys, endpoints.pools, strict=True))
    result = []
    for key, pools in pools_by_key.items():
        model, region, role, tiers = key
        if role == "both":
            result.append(Service(model, region, pools, pools))
        elif role == "prefill":
            decode = pools_by_key.get((model, region, "decode", tiers))
            if decode is None:  # the decode pool serves more tiers: any of the model and region
                decode = next(
                    other_pools
                    for other_key, other_pools in pools_by_key.items()
                    if other_key[:3] == (model, region, "decode")
                )
            result.append(Service(model, region, pools, decode))
    return result


def allowed_late_share(fleet: Fleet, pools: Sequence[int]) -> float:
    """Return the share of late requests that the strictest tier of ``pools`` allows.

    Deferrable tiers do not count; infinite if there is no other.
    """
    allowed = [
        1.0 - tier.attainment
        for tier in fleet.tiers
        if not tier.deferrable and any(fleet.pools[p].takes(tier.name) for p in pools)
    ]
    return min(allowed, default=np.inf)


def cheapest_first(fleet: Fleet, pools: Sequence[int]) -> tuple[int, ...]:
    """Return ``pools`` in order of price per output token."""
    return tuple(sorted(pools, key=lambda p: _usd_per_token_rate(fleet.pools[p])))


def count_in(counts: IntArray, pools: Sequence[int]) -> int:
    """Return the sum of ``counts [pools of the fleet]`` over ``pools``."""
    return int(counts[list(pools)].sum())


def initial_counts(fleet: Fleet) -> IntArray:
    """Return the initial instances of each pool."""
    return np.array([pool.initial for pool in fleet.pools], np.int64)


def _usd_per_token_rate(pool: Pool) -> float:
    """Return a price proportional to dollars per output token, at the largest batch.

    Only its order among pools has a meaning.
    """
    profile = pool.profile
    batch = profile.max_batch
    seconds = float(iteration_s(profile, batch, batch * MEAN_CONTEXT, 0, 0))
    return pool.usd_per_gpu_hour * pool.gpus_per_instance * seconds / batch
