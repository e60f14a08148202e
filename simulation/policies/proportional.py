"""Proportional control on one of six signals (methods.md D3; HeteroScale, Algorithm 2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Service, count_in
from simulation.policies.parts.service_controller import (
    DECODE,
    PREFILL,
    ServiceController,
    pool_mean,
)
from simulation.policies.parts.stability import PILED_UP, STAY, damp_change, direction_of
from simulation.policy import ComputedParameter, Gauge, Observation, Signals


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal of proportional control: a rate, or a share of the time of each instance."""

    driving_role: str  # that it scales
    reading: Literal["decode_tps", "prefill_tps", "busy", "sm_activity"]  # field of ``Signals``

    @property
    def words(self) -> str:
        """Return the name of the signal for the user."""
        return {
            "decode_tps": "output tokens/s per replica",
            "prefill_tps": "prompt tokens/s per replica",
            "busy": "time its GPUs are busy",
            "sm_activity": "SM activity",
        }[self.reading]

    @property
    def adds_up(self) -> bool:
        """Return whether the signal is a sum over instances."""
        return self.reading.endswith("_tps")

    def of(self, signals: Signals) -> FloatArray:
        """Return the signal's values, ``[pools]``."""
        values: FloatArray = getattr(signals, self.reading)
        return values


SignalName = Literal[
    "decode-tps", "prefill-tps", "prefill-gpu", "prefill-sm", "decode-gpu", "decode-sm"
]
SURGE = 4.0  # largest step, times the ready instances
SIGNALS: dict[SignalName, Signal] = {
    "decode-tps": Signal(DECODE, "decode_tps"),
    "prefill-tps": Signal(PREFILL, "prefill_tps"),  # tokens the prefix cache missed
    "prefill-gpu": Signal(PREFILL, "busy"),
    "prefill-sm": Signal(PREFILL, "sm_activity"),
    "decode-gpu": Signal(DECODE, "busy"),
    "decode-sm": Signal(DECODE, "sm_activity"),
}


@dataclass(eq=False)
class Proportional(ServiceController):
    """Scale the driving role to its ready instances times their mean signal over ``target``.

    The other role follows by the P/D ratio. ``target`` is the signal of one instance, one number or
    one per pool: tokens/s for the two throughput signals, and a share in (0, 1] for the four of
    hardware. In the source, it comes from a pressure test. Starting instances count as present, so
    that a shortage is answered once. If instances do both roles, the signals of prefill and decode
    are equal.

    A signal of served load cannot exceed what the instances can serve. At their limits it may be a
    tenth above the target, so that a fourfold load adds only a tenth after each start.
    ``in_flight`` (ours; None: off) prevents that. It is the number of requests, running or waiting,
    of one instance of the driving role at its target. If more than ``PILED_UP`` times as many are
    in flight, and more at each decision, the target is the instances that hold all of them, at most
    ``SURGE`` times the ready ones. Once they no longer grow, no more is added. Nothing is removed
    while they are piled up.
    """

    signal: SignalName
    target: float | Sequence[float] | FloatArray
    in_flight: float | Sequence[float] | FloatArray | None = None

    def __post_init__(self) -> None:
        self.name = self.name or self.signal

    @property
    def driving_role(self) -> str:
        return SIGNALS[self.signal].driving_role

    def reset(self, fleet: Fleet) -> IntArray:
        counts = super().reset(fleet)
        self._in_flight_at_target = np.broadcast_to(  # of one instance; inf: off
            np.inf if self.in_flight is None else np.asarray(self.in_flight), len(fleet.pools)
        )
        # Ready instances and requests in flight of each service at the last decision.
        self._last_seen = [(0, 0.0)] * len(self.services)
        self._target = np.broadcast_to(np.asarray(self.target, np.float64), len(fleet.pools))
        return counts

    def direction_and_instances(self, i: int, observation: Observation) -> tuple[int, int]:
        """Return the direction of service ``i``, and how many instances its driving role needs.

        The signal or piled-up requests decide, whichever need more instances. Without a signal,
        nothing changes.
        """
        service = self.services[i]
        pools = list(self.driving_pools(service))
        present = count_in(observation.present, pools)
        if not observation.ready[pools].any():  # no signal yet
            return self.start_first(service, observation, present)
        expected = self.instances_at_target(service, observation)
        for_requests = self._instances_for_requests(i, observation)  # also records the requests
        if not np.isfinite(expected):
            return STAY, present
        expected = max(expected, for_requests)
        direction = direction_of(expected, present, self.stability)
        return direction, max(1, damp_change(expected, present, self.stability.damping))

    def gauge(self, observation: Observation) -> Gauge:
        """Return the gauge: the signal per ready instance of the driving role, by service."""
        signal = SIGNALS[self.signal]
        values = [self._signal_value(service, observation) for service in self.services]
        pools = [self.driving_pools(service) for service in self.services]
        targets = np.array([pool_mean(self._target, observation.ready, p) for p in pools])
        return Gauge(
            signal.words,
            not signal.adds_up,
            np.array(values),
            out_above=targets * (1 + self.stability.theta_out),
            in_below=targets * (1 - self.stability.theta_in),
        )

    def _signal_value(self, service: Service, observation: Observation) -> float:
        """Return the signal per ready instance of the driving role of a service; NaN: unknown."""
        signal, pools = SIGNALS[self.signal], self.driving_pools(service)
        ready = count_in(observation.ready, pools)
        if not ready or observation.signals is None:
            return float("nan")
        read = signal.of(observation.signals)
        if signal.adds_up:
            return float(np.nansum(read[list(pools)])) / ready
        return pool_mean(read, observation.ready, pools)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the target of one instance for each pool, and the P/D ratios.

        Pools whose role does not decide have NaN.
        """
        targets = np.full(len(self._target), np.nan)
        for service in self.services:
            pool_list = list(self.driving_pools(service))
            targets[pool_list] = self._target[pool_list]
        words = SIGNALS[self.signal].words
        return (ComputedParameter(f"target of {words}", targets), *super().computed_parameters())

    def _instances_for_requests(self, i: int, observation: Observation) -> float:
        """Return the instances of service ``i`` for piled-up requests; 0 if none are piled up.

        Requests are piled up if more than PILED_UP times those that ready instances hold at their
        target are in flight. If they grow, instances for all of them are returned, else the present
        ones.
        """
        pools = self.driving_pools(self.services[i])
        ready = count_in(observation.ready, pools)
        ready_before, in_flight_before = self._last_seen[i]
        in_flight = float("nan")
        if observation.signals is not None:
            # The mean batch is over the instances that were ready at the last decision.
            batch = pool_mean(observation.signals.batch, observation.ready, pools)
            waiting = count_in(observation.waiting, pools)
            in_flight = np.nan_to_num(batch * ready_before) + waiting
        self._last_seen[i] = (ready, in_flight)
        instances_to_hold = in_flight / pool_mean(
            self._in_flight_at_target, observation.ready, pools
        )
        if not instances_to_hold > PILED_UP * ready:  # also if it is NaN, without signals
            return 0.0
        if in_flight > (1 + self.stability.theta_out) * in_flight_before:
            return min(instances_to_hold, SURGE * ready)
        return float(ready + count_in(observation.starting, pools))

    def instances_at_target(self, service: Service, observation: Observation) -> float:
        """Return how many instances of the driving role bring the mean signal to its target.

        It is the sum of a signal that adds up over instances, divided by their mean target. For
        other signals, it is the number of ready instances times the mean of signal over target. It
        is not rounded. NaN: no signal.
        """
        pools = self.driving_pools(service)
        if observation.signals is None:
            return float("nan")
        signal = SIGNALS[self.signal]
        values = signal.of(observation.signals)
        if signal.adds_up:
            # Convert pools of other speeds to instances of the mean target, weighted by ready ones.
            mean_target = pool_mean(self._target, observation.ready, pools)
            return float(np.nansum(values[list(pools)])) / mean_target
        ratio = pool_mean(values / self._target, observation.ready, pools)
        return ratio * count_in(observation.ready, pools)
