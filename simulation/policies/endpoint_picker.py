"""llm-d's autoscaling: KEDA on the signals of the endpoint picker (EPP).

Sources, all in github.com/llm-d/llm-d: ``docs/architecture/autoscaling/keda-epp.md`` (signals) and
``slo-aware-keda.md`` (control law), and the ScaledObjects of
``guides/workload-autoscaling/keda-epp``, ``keda-epp-token-aware`` and ``slo-aware`` (thresholds and
behaviour), read in November 2026.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.performance.profile import Profile, iteration_s
from simulation.policies.parts.endpoints import initial_counts
from simulation.policies.parts.hpa_behaviour import DirectionLimits, HpaBehaviour
from simulation.policies.parts.stability import ROUNDING
from simulation.policy import (
    LATENCY_BOUNDS_S,
    QUEUE_DEPTH,
    ComputedParameter,
    Gauge,
    Observation,
    ScalingPolicy,
)

Signal = Literal["queue", "queue-guard", "inflight", "saturation", "tokens", "latency"]
TTFT_LIMIT, TBT_LIMIT = "limit of TTFT, ms", "limit of TBT, ms"  # computed parameters
VELOCITY = "prefill velocity, tokens/s"
POLLING_S = 15.0  # of the ScaledObjects, and sync period of the HPA controller
# Recording rules of the latency signal: seconds of a rate and of a mean, largest value, percentile
RATE_WINDOW_S, MEAN_WINDOW_S, MAX_SATURATION, PERCENTILE = 60.0, 45.0, 2.0, 0.9


@dataclass(frozen=True, slots=True)
class Setting:
    """The published thresholds and behaviour of a signal.

    For latency, ``target`` and ``second_target`` are the shares of the SLO above which it scales
    out, and below which it scales in.
    """

    words: str  # name of the signal for users
    target: float  # threshold of the first trigger
    second_target: float  # threshold of the second trigger
    up: DirectionLimits
    down: DirectionLimits


AFTER_5_MIN = DirectionLimits(
    100, 0, 15, 300
)  # also out, so that starting replicas are not asked for twice
SETTINGS: dict[Signal, Setting] = {
    "queue": Setting("requests in the picker's queue", 1.0, 16.0, AFTER_5_MIN, AFTER_5_MIN),
    "queue-guard": Setting(
        "requests in the picker's queue", 1.0, 16.0, DirectionLimits(100, 0, 15, 0), AFTER_5_MIN
    ),
    "inflight": Setting("running requests", 16.0, 16.0, AFTER_5_MIN, AFTER_5_MIN),
    "saturation": Setting("pool saturation", 0.7, 16.0, AFTER_5_MIN, AFTER_5_MIN),
    "tokens": Setting(
        "prefill backlog, s",
        1.5,
        0.8,
        DirectionLimits(0, 1, 180, 0),
        DirectionLimits(0, 1, 300, 300),
    ),
    "latency": Setting(
        "P90 latency over SLO",
        0.55,
        0.4,
        DirectionLimits(100, 4, 60, 30),
        DirectionLimits(0, 1, 120, 180),
    ),
}


def idle_prefill_tps(profile: Profile) -> float:
    """Return the prefill velocity V_P in tokens/s of an idle replica.

    It is the largest chunk (``max_batch_tokens``) over the TTFT of a prompt of that size.
    """
    chunk = profile.max_batch_tokens
    return chunk / (float(iteration_s(profile, 0, 0, chunk, chunk**2 / 2)) + profile.start_s)


def quantile(counts: IntArray, bounds_s: FloatArray) -> FloatArray:
    """Return ``histogram_quantile`` of Prometheus in seconds, ``[pools]``; NaN without counts.

    ``counts [pools, buckets]`` are per bucket, not cumulative, and ``bounds_s`` the upper bounds.
    Within a bucket, values are assumed evenly spread. The last bucket has no upper bound, so a
    quantile in it is its lower bound.
    """
    cumulative = counts.cumsum(axis=1)
    total = cumulative[:, -1]
    rank = PERCENTILE * total  # number of values up to the quantile
    # The first bucket up to whose upper bound there are that many values; argmax finds the first.
    bucket = np.argmax(cumulative >= rank[:, None] - ROUNDING, axis=1)
    bucket_of_pool = np.arange(len(counts)), bucket
    inside = counts[bucket_of_pool]
    below = cumulative[bucket_of_pool] - inside
    position = np.clip((rank - below) / np.maximum(inside, 1), 0, 1)  # in the bucket
    lower_s = np.append(0.0, bounds_s)[bucket]
    upper_s = np.append(bounds_s, bounds_s[-1])[bucket]
    return np.where(total > 0, lower_s + (upper_s - lower_s) * position, np.nan)


def replicas_by_latency(
    saturation: FloatArray, present: IntArray, ready: IntArray, out_above: float, in_below: float
) -> IntArray:
    """Return the replicas that the control law of the latency signal requests, ``[pools]``.

    ``saturation`` is latency over its limit, clamped and averaged. Above ``out_above`` the pool
    scales out, below ``in_below`` it scales in. ``present`` are ``ready`` and starting replicas. On
    scale-out, saturation is multiplied by ready / present, as if starting replicas served already.
    """
    some_start = (ready > 0) & (ready < present)
    ready_share = np.where(some_start, ready / np.maximum(present, 1), 1.0)
    excess = saturation * ready_share / out_above - 1  # above the threshold, relative to it
    vacancy = 1 - saturation / in_below  # below the threshold, relative to it
    scaled_out = present + np.ceil(present * excess - ROUNDING)
    scaled_in = present - np.floor(present * vacancy + ROUNDING)
    conditions = [saturation > out_above, saturation < in_below]
    return np.select(conditions, [scaled_out, scaled_in], present).astype(np.int64)


def replicas_guarded(demand: FloatArray, present: IntArray, ready: IntArray) -> FloatArray:
    """Return the replicas that the guard of the queue signal requests, ``[pools]``.

    The guard prevents a second request for replicas that already start. ``present`` replicas are
    ``ready`` or start. A ``demand`` (in replicas) above ``present`` is reduced by those that start,
    but not below ``present``.
    """
    guarded = np.maximum(demand - (present - ready), present)
    return np.asarray(np.where(demand <= present, demand, guarded), np.float64)


def replicas_by_total(
    total: FloatArray, target: float, present: IntArray, tolerance: float
) -> IntArray:
    """Return the replicas that an HPA requests with a trigger of type AverageValue.

    They are ``total / target``, or those ``present`` if that differs by at most ``tolerance``.
    """
    requested = total / target
    is_near = np.abs(requested - present) <= (tolerance + ROUNDING) * present
    return np.where(is_near, present, np.ceil(requested - ROUNDING)).astype(np.int64)


@dataclass(eq=False)
class EndpointPicker(ScalingPolicy):
    """Scale each pool by the KEDA triggers of llm-d, under the HPA that KEDA makes.

    ``signal`` selects the triggers, of which the larger request counts:

    - queue: requests that wait at the picker, and running requests, each per replica.
    - queue-guard: the same demand, less the replicas that start (``replicas_guarded``).
    - inflight: running requests alone.
    - saturation: the pool's saturation and running requests. The saturation is one number, so its
      trigger never requests more than saturation / target replicas.
    - tokens: seconds of prompts to compute at the prefill velocity, and KV memory in use, in
      replicas.
    - latency: the control law on P90 of TTFT and TBT over their limits, clamped and averaged.

    A replica takes at most ``QUEUE_DEPTH`` waiting requests; the others wait at the picker.
    ``target`` and ``second_target`` default to the published ones. ``prefill_tps`` defaults to a
    full chunk over its idle TTFT. ``ttft_s`` and ``tbt_s`` are limits, one or one per pool; NaN:
    none.
    """

    signal: Signal = "queue"
    target: float | None = None
    second_target: float | None = None
    prefill_tps: float | None = None
    ttft_s: float | FloatArray = np.nan
    tbt_s: float | FloatArray = np.nan
    tolerance: float = 0.1
    min_replicas: int = 1
    up: DirectionLimits | None = None
    down: DirectionLimits | None = None
    interval_s: float = POLLING_S
    name: str = ""
    wants_signals: bool = True

    def __post_init__(self) -> None:
        published = SETTINGS[self.signal]
        self._settings = replace(
            published,
            target=self.target or published.target,
            second_target=self.second_target or published.second_target,
            up=self.up or published.up,
            down=self.down or published.down,
        )
        self.name = self.name or f"epp-{self.signal}"

    def reset(self, fleet: Fleet) -> IntArray:
        """Reset the windows, read roles, speeds and limits; return the first counts."""
        counts = initial_counts(fleet)
        self._behaviour = HpaBehaviour(self._settings.up, self._settings.down, counts)
        self._min_replicas = np.where(counts > 0, self.min_replicas, 0)
        # The token triggers belong to one role each. The others apply to every pool.
        roles = np.array([pool.role for pool in fleet.pools])
        self._first_applies = (roles != "decode") | (self.signal != "tokens")
        self._second_applies = (roles != "prefill") | (self.signal != "tokens")
        velocities = [self.prefill_tps or idle_prefill_tps(pool.profile) for pool in fleet.pools]
        self._velocity = np.array(velocities)
        limits_s = (self.ttft_s, self.tbt_s)
        self._limits = [np.broadcast_to(limit_s, len(counts)) for limit_s in limits_s]
        if self.signal == "latency" and np.isnan(self._limits).all():
            raise SimulationError(f"Policy {self.name!r} needs a tier with a limit on TTFT or TBT.")
        rate_decisions = self._count_decisions(RATE_WINDOW_S)
        self._recent_counts: deque[tuple[IntArray, IntArray]] = deque(maxlen=rate_decisions)
        self._recent_saturation: deque[FloatArray] = deque(
            maxlen=self._count_decisions(MEAN_WINDOW_S)
        )
        return counts

    def decide(self, observation: Observation) -> IntArray:
        """Return the triggers' replicas within the HPA's limits, ``[pools]``."""
        present = observation.present
        requested = self._requested_replicas(observation, present)
        # KEDA wakes a pool without pods on requests that wait for it.
        requested = np.where(
            present > 0, np.maximum(requested, self._min_replicas), observation.waiting > 0
        )
        limited = [
            self._behaviour.limited_replicas(p, observation.time_s, int(count), int(target))
            for p, (count, target) in enumerate(zip(present, requested, strict=True))
        ]
        return np.array(limited, np.int64)

    def gauge(self, observation: Observation) -> Gauge:
        """Return the signal per replica, and its values above and below which pools scale."""
        settings = self._settings
        if self.signal == "latency":
            target, second = settings.target, settings.second_target
            return Gauge(settings.words, True, self.saturation, target, second)
        first_totals, _ = self._triggers(observation)
        per_replica = first_totals / np.maximum(observation.ready, 1)
        out_above = self._settings.target * (1 + self.tolerance)
        in_below = self._settings.target * (1 - self.tolerance)
        is_share = self.signal == "saturation"
        return Gauge(self._settings.words, is_share, per_replica, out_above, in_below)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        if self.signal == "latency":
            limits = zip((TTFT_LIMIT, TBT_LIMIT), self._limits, strict=True)
            return tuple(ComputedParameter(name, limit * 1000) for name, limit in limits)
        return (ComputedParameter(VELOCITY, self._velocity),) if self.signal == "tokens" else ()

    def _requested_replicas(self, observation: Observation, present: IntArray) -> IntArray:
        """Return the replicas that the triggers request, ``[pools]``."""
        settings, ready = self._settings, observation.ready
        if self.signal == "latency":
            saturation = self._saturation(observation)
            replicas = replicas_by_latency(
                saturation, present, ready, settings.target, settings.second_target
            )
            # The HPA reads the number of replicas as a metric with the target 1.
            return replicas_by_total(replicas.astype(np.float64), 1.0, present, self.tolerance)
        first_total, second_total = self._triggers(observation)
        if self.signal == "queue-guard":
            demand = np.maximum(
                first_total / settings.target, second_total / settings.second_target
            )
            guarded = replicas_guarded(demand, present, ready)
            return replicas_by_total(guarded, 1.0, present, self.tolerance)
        by_first = replicas_by_total(first_total, settings.target, present, self.tolerance)
        by_second = replicas_by_total(second_total, settings.second_target, present, self.tolerance)
        # A trigger that does not apply to a pool's role requests 0.
        by_first[~self._first_applies] = 0
        by_second[~self._second_applies] = 0
        return np.asarray(np.maximum(by_first, by_second))

    def _triggers(self, observation: Observation) -> tuple[FloatArray, FloatArray]:
        """Return the totals that the two triggers compare with their targets, each ``[pools]``.

        The autoscaler requests total / target replicas. The first and second total by signal:

        - tokens: seconds of work on prompts that wait, and KV memory in use, as full replicas.
        - inflight: running requests, and 0.
        - saturation: saturation, and running requests; as for queue if saturation is unknown.
        - queue: requests that wait at the picker, and running requests.
        """
        ready = observation.ready
        none = np.zeros(len(ready))
        if self.signal == "tokens":
            backlog = none if observation.backlog is None else observation.backlog
            return backlog / self._velocity, observation.utilisation * ready
        # Requests that the picker sent on and that wait in a replica count as running.
        dispatched = np.minimum(observation.waiting, QUEUE_DEPTH * ready)
        batch = none if observation.signals is None else observation.signals.batch
        running = np.nan_to_num(batch) * ready + dispatched
        if self.signal == "inflight":
            return running, none
        if self.signal == "saturation" and observation.saturation is not None:
            return observation.saturation, running
        return (observation.waiting - dispatched).astype(np.float64), running

    def _saturation(self, observation: Observation) -> FloatArray:
        """Return the clamped mean of P90 latency over its limit, ``[pools]``; 0 when idle.

        The larger of TTFT and TBT counts. P90 is over the last ``RATE_WINDOW_S`` seconds, at
        most ``MAX_SATURATION``. The mean is over the decisions of ``MEAN_WINDOW_S`` seconds.
        """
        if observation.ttft_counts is not None and observation.tbt_counts is not None:
            self._recent_counts.append((observation.ttft_counts, observation.tbt_counts))
        worst = np.zeros(len(self._velocity))
        if self._recent_counts:
            counts_by_latency = zip(*self._recent_counts, strict=True)
            ttft_counts, tbt_counts = (np.sum(counts, axis=0) for counts in counts_by_latency)
            ttft_limit_s, tbt_limit_s = self._limits
            ttft_share = quantile(ttft_counts, LATENCY_BOUNDS_S) / ttft_limit_s
            # The buckets of TBT are a tenth of those of TTFT.
            tbt_share = quantile(tbt_counts, LATENCY_BOUNDS_S * 0.1) / tbt_limit_s
            # fmax skips NaN: no limit or no traffic
            worst = np.fmax(np.fmax(worst, ttft_share), tbt_share)
        self._recent_saturation.append(np.minimum(worst, MAX_SATURATION))
        saturation: FloatArray = np.mean(self._recent_saturation, axis=0)
        self.saturation = saturation
        return saturation

    def _count_decisions(self, seconds: float) -> int:
        """Return the number of decisions within ``seconds``, at least 1."""
        return max(1, round(seconds / self.interval_s))
