"""NVIDIA Dynamo's Planner: its targets, predictors, and budgets of GPUs and power.

A unit is what one Planner scales: an aggregated pool, or the prefill and decode pools of a service.

Source: the package ``ai-dynamo`` 1.6.1 (github.com/ai-dynamo/dynamo), ``dynamo/planner``:
``core/load_scaling.py``, ``core/throughput_scaling.py``, ``core/state_machine.py`` (pending
replicas), ``core/load/predictors.py``, ``core/budget.py``, ``core/perf_model/engine_query.py``
(capacity of an engine) and ``config/defaults.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, isfinite
from typing import Literal

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.performance.profile import Profile, iteration_s
from simulation.policies.parts.arima_predictor import ArimaPredictor
from simulation.policies.parts.endpoints import initial_counts, services
from simulation.policies.parts.stability import ROUNDING
from simulation.policy import ComputedParameter, Gauge, Observation, ScalingPolicy

Target = Literal["throughput", "latency", "load", "sla"]
Predictor = Literal["constant", "arima", "kalman"]
LOAD_INTERVAL_S, THROUGHPUT_INTERVAL_S = 5.0, 180.0  # intervals of the two loops
TTFT_LIMIT, TBT_LIMIT = "limit of TTFT, ms", "limit of TBT, ms"  # computed parameters
POWER_BUDGET = "power budget, W"
MAX_BATCH_SIZES_TRIED = 128  # most batch sizes that the search of a capacity tries
# Scale out above, and in below: queued prompt tokens over the context, and KV memory in use.
PREFILL_THRESHOLDS: dict[Target, tuple[float, float]] = {
    "throughput": (1.0, 0.1),
    "latency": (0.1, 0.0),
}
DECODE_THRESHOLDS: dict[Target, tuple[float, float]] = {
    "throughput": (1.0, 0.6),
    "latency": (0.4, 0.1),
}


def engine_rps(
    profile: Profile, role: str, isl: float, osl: float, ttft_s: float, itl_s: float
) -> float:
    """Return the largest requests/s of one engine over all batch sizes within the SLO.

    ``isl`` and ``osl`` are mean input and output tokens. A prefill engine must meet ``ttft_s``, a
    decode engine ``itl_s`` (the limit of TBT), and one that does both must meet both. If no batch
    meets the SLO, the result is the largest over all batches, as in the source.
    """
    isl, osl = max(1.0, isl), max(1.0, osl)
    if role == "prefill":
        largest_batch = max(1, min(profile.max_batch, int(profile.max_batch_tokens // isl)))
        batch = np.arange(1, largest_batch + 1)
        prefill_s = _prompt_s(profile, np.asarray(isl * batch, np.float64), isl, 0, 0)
        return _best_rps(batch / prefill_s, prefill_s <= ttft_s)
    budget, context = profile.max_batch_tokens, isl + osl // 2
    largest_batch = min(profile.max_batch, int(profile.kv_capacity_tokens // context))
    if role == "decode":
        batch = _batch_sizes(largest_batch)
        prompt_tokens = np.zeros(len(batch))
    else:
        batch = _batch_sizes(min(largest_batch, budget - 1))
        # Prompt tokens per iteration: each sequence that ends is replaced by a new prompt.
        prompt_tokens = np.ceil(batch * isl / osl)
    fits = (batch == 1) | (prompt_tokens <= budget - batch)
    attention_pairs = prompt_tokens * isl / 2
    step_s = iteration_s(profile, batch, batch * context, prompt_tokens, attention_pairs)
    meets_slo = (step_s <= itl_s) & fits
    if role == "both":
        prefill_s = _prompt_s(profile, prompt_tokens + isl, isl, batch, batch * context)
        meets_slo &= prefill_s <= ttft_s
    return _best_rps(np.where(fits, batch / (osl * step_s), 0.0), meets_slo)


def _batch_sizes(largest: int) -> IntArray:
    """Return the batch sizes from 1 to ``largest`` to try, at most ``MAX_BATCH_SIZES_TRIED``."""
    return np.unique(np.linspace(1, max(largest, 1), MAX_BATCH_SIZES_TRIED).astype(np.int64))


def _best_rps(rps: FloatArray, meets_slo: BoolArray) -> float:
    """Return the largest ``rps [batch size]`` within the SLO, or of all if none is."""
    return float(rps[meets_slo].max() if meets_slo.any() else rps.max())


def _prompt_s(
    profile: Profile, tokens: FloatArray, isl: float, decodes: object, context: object
) -> FloatArray:
    """Return the seconds to compute ``tokens`` prompt tokens in chunks of the token budget.

    Each prompt has ``isl`` tokens. ``decodes`` sequences with ``context`` tokens in total run in
    the same iterations.
    """
    budget = profile.max_batch_tokens

    def chunk_s(size: object) -> FloatArray:
        """Return the seconds of one iteration with a chunk of ``size`` tokens."""
        pairs = np.asarray(size, np.float64) * isl / 2
        return iteration_s(profile, decodes, context, size, pairs)  # type: ignore[arg-type]

    full, tail = np.divmod(tokens, budget)
    seconds: FloatArray = full * chunk_s(budget) + np.where(tail > 0, chunk_s(tail), 0.0)
    return seconds


class Kalman:
    """The Planner's Kalman filter of a value and its trend; it predicts one interval ahead.

    ``level`` and ``trend`` are the variances by which value and trend change in an interval.
    ``noise`` is the variance of a reading. Before ``points`` values, the prediction is the last
    value.
    """

    def __init__(self, level: float, trend: float, noise: float, points: int = 5) -> None:
        self._drift, self._noise = np.diag([level, trend]), noise
        self._min_values = points
        self._transition = np.array([[1.0, 1.0], [0.0, 1.0]])  # the trend is added to the value
        self._covariance = np.eye(2) * 1000.0  # the first state is nearly unknown
        self._state: FloatArray | None = None  # value and trend; None: before the first value
        self._values_seen, self._last_value = 0, 0.0
        self._advanced = False  # whether the state is that of the next interval already

    def add(self, value: float) -> None:
        """Update the filter by an interval's value; skip zeros before the first request."""
        if value == 0 and not self._values_seen:
            return
        self._values_seen, self._last_value = self._values_seen + 1, value
        if self._state is None:
            self._state = np.array([value, 0.0])
        else:
            if not self._advanced:
                self._advance()
            # The Kalman gain of value and trend, since only the value is read.
            gain = self._covariance[:, 0] / (self._covariance[0, 0] + self._noise)
            self._state = self._state + gain * (value - self._state[0])
            self._covariance = self._covariance - np.outer(gain, self._covariance[0])
        self._advanced = False

    def predict(self) -> float:
        """Return the value of the next interval."""
        if self._state is None or self._values_seen < self._min_values:
            return self._last_value
        if not self._advanced:
            self._advance()
            self._advanced = True
        return max(0.0, float(self._state[0]))

    def _advance(self) -> None:
        """Advance the state and its covariance by one interval."""
        self._state = self._transition @ self._state
        self._covariance = self._transition @ self._covariance @ self._transition.T + self._drift


def fit_to_budget(
    current: Sequence[int],
    requested: Sequence[int],
    cost: Sequence[float],
    budget: float,
    least: int,
) -> tuple[int, ...]:
    """Return the counts of replicas nearest to ``requested`` that cost at most ``budget``.

    ``cost`` is of one replica of each pool, in the unit of ``budget`` (GPUs or watts). Each count
    is between its ``current`` and its ``requested`` value. At a full budget, nothing grows unless
    something else shrinks. If the ``current`` counts cost more than the budget, all shrink in
    proportion, to at least ``least`` each.
    """

    def distance(counts: Sequence[int]) -> int:
        """Return by how many replicas ``counts`` differ from the requested ones."""
        return sum(abs(target - count) for target, count in zip(requested, counts, strict=True))

    total = _price(current, cost)
    if total > budget + ROUNDING:
        return tuple(max(least, int(count * budget / total)) for count in current)
    pairs = list(zip(current, requested, strict=True))
    grows = any(target > count for count, target in pairs)
    shrinks = any(target < count for count, target in pairs)
    if total >= budget - ROUNDING and grows and not shrinks:
        return tuple(current)
    choices = [range(min(pair), max(pair) + 1) for pair in pairs]  # of each pool
    affordable = [n for n in product(*choices) if _price(n, cost) <= budget + ROUNDING]
    return min(affordable, key=distance, default=tuple(current))


def _price(counts: Sequence[int], cost: Sequence[float]) -> float:
    """Return the cost of ``counts`` replicas, each at the ``cost`` of one."""
    return sum(n * replica_cost for n, replica_cost in zip(counts, cost, strict=True))


@dataclass(eq=False)
class DynamoPlanner(ScalingPolicy):
    """One Planner per aggregated pool, and one per pair of prefill and decode pools.

    With the targets throughput, latency and load, a Planner adds a replica to a pool if the load of
    its fullest engine is above a threshold. It removes one if that load is below a lower threshold,
    and the remaining replicas would stay below the upper one. With the target sla, it divides the
    predicted demand by the capacity of an engine within the SLO. While replicas start, nothing is
    added. A lower request cancels the starts.

    ``prefill_tokens`` and ``decode_kv`` are the thresholds of the target load, for scale-out and
    scale-in. ``context_tokens`` is the context length of the workers. ``lengths [pools]`` are mean
    input and output tokens. ``max_gpus`` and ``power_w`` limit each Planner. A replica draws its
    GPUs times ``gpu_w``. Without ``power_w``, each Planner has an equal share of its site's power
    limit.
    """

    target: Target = "throughput"
    predictor: Predictor = "kalman"
    prefill_tokens: tuple[float, float] = (8192.0, 1024.0)
    decode_kv: tuple[float, float] = (0.8, 0.4)
    context_tokens: float = 8192.0
    lengths: Sequence[tuple[float, float]] = ()
    ttft_s: float | FloatArray = 0.5
    itl_s: float | FloatArray = 0.05
    kalman: tuple[float, float, float] = (1.0, 0.1, 10.0)  # noise of level, trend and reading
    max_step: int = 8  # replicas per decision of sla
    min_replicas: int = 1
    max_gpus: float | None = None
    power_w: float | None = None
    gpu_w: float | None = None  # None: the TDP of the GPU type
    interval_s: float = 0.0  # 0: the default of the source
    name: str = ""

    def __post_init__(self) -> None:
        self.interval_s = self.interval_s or (
            THROUGHPUT_INTERVAL_S if self.target == "sla" else LOAD_INTERVAL_S
        )
        self.name = self.name or f"dynamo-{self.target}"
        self._prefill_thresholds = PREFILL_THRESHOLDS.get(self.target, self.prefill_tokens)
        self._decode_thresholds = DECODE_THRESHOLDS.get(self.target, self.decode_kv)

    def reset(self, fleet: Fleet) -> IntArray:
        """Group the pools that one Planner scales; for ``sla``, size their engines."""
        self._units: list[tuple[int, ...]] = []
        for service in services(fleet):
            if service.has_separate_roles:
                self._units.append((service.prefill[0], service.decode[0]))
            else:
                self._units += [(p,) for p in service.pools]
        self._roles = [pool.role for pool in fleet.pools]
        self._gpus = [float(pool.gpus_per_instance) for pool in fleet.pools]
        self._watts = [  # of one replica
            float(pool.gpus_per_instance * (self.gpu_w or pool.gpu.tdp_w or pool.gpu.prefill_w))
            for pool in fleet.pools
        ]
        self._budgets_w = self._power_budgets(fleet)
        self._forecasts = [
            ArimaPredictor() if self.predictor == "arima" else Kalman(*self.kalman)
            for _ in self._units
        ]
        self._capacity = self._engine_capacities(fleet)
        return initial_counts(fleet)

    def _engine_capacities(self, fleet: Fleet) -> FloatArray:
        """Return the requests/s of an engine within its limits, ``[pools]``; NaN unless ``sla``."""
        pools = len(fleet.pools)
        capacities = np.full(pools, np.nan)
        if self.target == "sla":
            # A limit of NaN is none, so the engine may take any time.
            ttft_s, itl_s = (
                np.broadcast_to(np.nan_to_num(limit, nan=np.inf), pools)
                for limit in (self.ttft_s, self.itl_s)
            )
            for p, pool in enumerate(fleet.pools):
                capacities[p] = engine_rps(
                    pool.profile, pool.role, *self.lengths[p], float(ttft_s[p]), float(itl_s[p])
                )
        return capacities

    def decide(self, observation: Observation) -> IntArray:
        """Return the targets, ``[pools]``: by predicted demand for ``sla``, else by engine load."""
        targets = observation.present
        for i, unit in enumerate(self._units):  # a unit has one pool, or prefill and decode
            ready = [int(observation.ready[p]) for p in unit]
            starting = [int(observation.starting[p]) for p in unit]
            requested: Sequence[int | None]
            if self.target == "sla":
                requested = self._by_demand(i, unit, ready, observation)
            else:
                requested = [
                    self._by_load(p, pool_ready, pool_starting, observation)
                    for p, pool_ready, pool_starting in zip(unit, ready, starting, strict=True)
                ]
            targets[list(unit)] = self._limit_targets(i, ready, starting, requested)
        return targets

    def gauge(self, observation: Observation) -> Gauge:
        """Return the requests over the capacity for target "sla", else the load, by pool."""
        if self.target == "sla":
            load = observation.input_tps / np.array([isl for isl, _ in self.lengths])
            used_share = load / (np.maximum(observation.ready, 1) * self._capacity)
            return Gauge("requests over the capacity of the replicas", True, used_share, 1.0, 1.0)
        pools = range(len(self._roles))
        out_above, in_below = np.array([self._thresholds(p) for p in pools]).T
        values = np.array([self._engine_load(p, observation) for p in pools])
        return Gauge("load of the fullest engine", True, values, out_above, in_below)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the power budgets by site, and for target "sla" the capacity and the limits."""
        pools = len(self._roles)
        budgets = np.full(pools, np.nan)
        for unit, budget in zip(self._units, self._budgets_w, strict=True):
            budgets[list(unit)] = budget if isfinite(budget) else np.nan
        parameters = []
        # A stated power budget is not computed.
        if self.power_w is None and np.isfinite(budgets).any():
            parameters.append(ComputedParameter(POWER_BUDGET, budgets))
        if self.target == "sla":
            parameters.append(ComputedParameter("capacity of an engine, req/s", self._capacity))
            for name, limit_s in ((TTFT_LIMIT, self.ttft_s), (TBT_LIMIT, self.itl_s)):
                limit_ms = np.full(pools, np.multiply(limit_s, 1000))
                parameters.append(ComputedParameter(name, limit_ms))
        return tuple(parameters)

    def _power_budgets(self, fleet: Fleet) -> list[float]:
        """Return the watts that the GPUs of each Planner may draw.

        By default, the Planners of a region share its site's power limit equally, less the power of
        servers and the PUE. ``power_w`` replaces this.
        """
        if self.power_w is not None:
            return [self.power_w] * len(self._units)
        regions = {region.name: region for region in fleet.regions}
        unit_regions = [fleet.pools[unit[0]].region for unit in self._units]
        budgets = []
        for unit, name in zip(self._units, unit_regions, strict=True):
            server_share = 0.0  # power of servers over that of their GPUs
            for p in unit:
                if self._watts[p] > 0:
                    server_w = fleet.pools[p].host_w * fleet.pools[p].gpus_per_instance
                    server_share = max(server_share, server_w / self._watts[p])
            site_w = 1000 * regions[name].site_kw / regions[name].pue
            budgets.append(site_w / (1 + server_share) / unit_regions.count(name))
        return budgets

    def _thresholds(self, p: int) -> tuple[float, float]:
        """Return the thresholds of pool ``p``: to scale out, and to scale in."""
        return self._prefill_thresholds if self._roles[p] == "prefill" else self._decode_thresholds

    def _engine_load(self, p: int, observation: Observation) -> float:
        """Return the load of the fullest engine of pool ``p``, in the unit of ``_thresholds``.

        Prefill: queued prompt tokens, over ``context_tokens`` unless the target is load. Others:
        the share of KV memory in use or needed.
        """
        if self._roles[p] != "prefill":
            return 0.0 if observation.fullest is None else float(observation.fullest[p])
        queued = 0.0 if observation.longest is None else float(observation.longest[p])
        return queued if self.target == "load" else queued / self.context_tokens

    def _by_load(self, p: int, ready: int, starting: int, observation: Observation) -> int | None:
        """Return the replicas of pool ``p`` that its engines' load requires; None: no change.

        ``ready`` replicas serve, and ``starting`` ones do not yet.
        """
        if not ready:
            return None
        load = self._engine_load(p, observation)
        out_above, in_below = self._thresholds(p)
        # As in the source, whether a load at a threshold counts depends on role and target.
        is_prefill, by_load = self._roles[p] == "prefill", self.target == "load"
        if load > out_above or (load == out_above and (is_prefill or by_load)):
            return ready + 1
        equal_counts = by_load or (is_prefill and self.target == "latency")
        is_low = load < in_below or (load == in_below and equal_counts)
        if not is_low or (ready == 1 and not starting):
            return None
        requested = max(ready - 1, self.min_replicas)
        # The rest must not be above the threshold at once.
        if 0 < requested < ready and load * ready / requested >= out_above:
            return ready
        return requested

    def _by_demand(
        self, i: int, unit: tuple[int, ...], ready: list[int], observation: Observation
    ) -> Sequence[int]:
        """Return the replicas of each pool of unit ``i`` that the predicted demand requires.

        Each differs from the ``ready`` replicas by at most ``max_step``, unless ``min_replicas``
        needs more.
        """
        first_pool = unit[0]
        isl, _ = self.lengths[first_pool]
        requests = float(observation.input_tps[first_pool]) / isl * self.interval_s
        self._forecasts[i].add(requests)
        if self.predictor != "constant":
            requests = self._forecasts[i].predict()
        demand_rps = requests / self.interval_s
        requested = []
        for p, pool_ready in zip(unit, ready, strict=True):
            needed = ceil(demand_rps / self._capacity[p])
            bounded = min(max(needed, pool_ready - self.max_step), pool_ready + self.max_step)
            requested.append(max(bounded, self.min_replicas))
        return requested

    def _limit_targets(
        self, i: int, ready: list[int], starting: list[int], requested: Sequence[int | None]
    ) -> list[int]:
        """Return the targets of unit ``i`` within its minimum and its budgets.

        Each list has a number per pool: replicas that are ``ready``, replicas that start, and
        ``requested`` replicas (None: no change). Nothing is added while replicas start.
        """
        targets = []
        for serving, pool_starting, request in zip(ready, starting, requested, strict=True):
            if not any(starting):
                targets.append(max(serving if request is None else request, self.min_replicas))
            elif request is None or request > serving:
                targets.append(serving + pool_starting)  # the starts go on, and nothing is added
            else:
                targets.append(request)  # a lower request cancels the starts
        if any(starting):
            return targets
        max_gpus = np.inf if self.max_gpus is None else self.max_gpus
        for budget, cost in ((max_gpus, self._gpus), (self._budgets_w[i], self._watts)):
            if isfinite(budget):
                unit_cost = [cost[p] for p in self._units[i]]
                targets = [*fit_to_budget(ready, targets, unit_cost, budget, self.min_replicas)]
        return targets
