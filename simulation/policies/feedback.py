"""Negative feedback on a latency (methods.md D3; HeteroScale, Algorithm 3)."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Service, count_in
from simulation.policies.parts.service_controller import DECODE, PREFILL, ServiceController
from simulation.policies.parts.stability import IN, OUT, STAY, scale_count
from simulation.policy import ComputedParameter, Gauge, Observation

Latency = Literal["ttft", "tbt"]
TTFT: Latency = "ttft"
TBT: Latency = "tbt"


@dataclass(eq=False)
class Feedback(ServiceController):
    """Scale in fixed steps by the ratio of a latency to its target.

    At ``alpha_out`` times the target or above, add 20% instances. At ``beta_out`` times or above,
    add 10%. At ``gamma_in`` times or below, remove 5%.

    ``target_s`` is one number or one per pool. By default it is the tightest such limit among the
    tiers that are not deferrable. The latency of a service is the largest mean of its pools.
    Without requests it counts as 0, or else an idle fleet would never shrink. If requests wait and
    no instance is ready, it is infinite.

    A step of scale-out is a share of the ready instances, which the latency describes. So a breach
    that lasts while instances start does not add more at each decision (8 to 58 instances in ten
    minutes otherwise).

    Algorithm 3 as printed never tests the direction (a smaller size can result from a scale-out)
    and reads an undefined C_up. Here, scale-out has the cooldown ``cool_out_s`` and scale-in
    ``cool_in_s``. The source gives no thresholds; 1, 0.8 and 0.5 are ours.
    """

    signal: Latency
    target_s: float | Sequence[float] | FloatArray | None = None
    _: KW_ONLY
    alpha_out: float = 1.0
    beta_out: float = 0.8
    gamma_in: float = 0.5
    urgent: float = 1.2
    moderate: float = 1.1
    shrink: float = 0.95

    def __post_init__(self) -> None:
        self.name = self.name or f"{self.signal}-feedback"

    @property
    def driving_role(self) -> str:
        """Return the driving role: prefill for TTFT, decode for TBT."""
        return PREFILL if self.signal == TTFT else DECODE

    def reset(self, fleet: Fleet) -> IntArray:
        """Set the latency target in seconds, and return the first counts, ``[pools]``.

        The target is ``target_s``, or else the tightest limit of an interactive tier. Raises
        SimulationError if there is neither.
        """
        counts = super().reset(fleet)
        target_s = self.target_s
        if target_s is None:
            tiers = [tier for tier in fleet.tiers if not tier.deferrable]
            limits = [tier.ttft_s if self.signal == TTFT else tier.tbt_s for tier in tiers]
            target_s = min((limit for limit in limits if limit is not None), default=None)
        if target_s is None:
            raise SimulationError(
                f"Policy {self.name!r} needs a target: no interactive tier limits its "
                f"{self.signal.upper()}."
            )
        self._target = np.broadcast_to(np.asarray(target_s, np.float64), len(fleet.pools))
        return counts

    def direction_and_instances(self, i: int, observation: Observation) -> tuple[int, int]:
        """Return the direction of service ``i``, and the driving role's instances after one step.

        The ratio of latency to its limit decides the direction and the size of the step.
        """
        service = self.services[i]
        pools = list(self.driving_pools(service))
        ready = count_in(observation.ready, pools)
        present = ready + count_in(observation.starting, pools)
        ratio = self.latency_ratio(service, observation)
        if not present:
            return (OUT, 1) if ratio >= self.alpha_out else (STAY, 0)
        if ratio >= self.beta_out:
            factor = self.urgent if ratio >= self.alpha_out else self.moderate
            return OUT, max(present, scale_count(max(ready, 1), factor))
        if ratio <= self.gamma_in:
            return IN, max(1, scale_count(present, self.shrink))
        return STAY, present

    def gauge(self, observation: Observation) -> Gauge:
        """Return the gauge of latency over its target, with a value for each service."""
        return Gauge(
            f"mean {self.signal.upper()} over its limit",
            False,
            np.array([self.latency_ratio(service, observation) for service in self.services]),
            out_above=self.beta_out,
            in_below=self.gamma_in,
        )

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        targets = np.asarray(self._target * 1000, np.float64)
        return (
            ComputedParameter(f"limit of mean {self.signal.upper()}, ms", targets),
            *super().computed_parameters(),
        )

    def latency_ratio(self, service: Service, observation: Observation) -> float:
        """Return latency over its target: the largest ratio of the service's pools.

        0 if idle, inf if requests wait and no instance is ready, NaN if unknown.
        """
        pools = list(service.pools)
        waiting = bool(observation.waiting[pools].any())
        if not observation.ready[list(self.driving_pools(service))].any():
            return float("inf") if waiting else float("nan")
        if observation.signals is None:
            return float("nan")
        signals = observation.signals
        latency = signals.ttft_s if self.signal == TTFT else signals.tbt_s
        ratios = (latency / self._target)[pools]
        ratios = ratios[~np.isnan(ratios)]
        if len(ratios):
            return float(ratios.max())
        idle = not waiting and not (observation.utilisation[pools] > 0).any()
        return 0.0 if idle else float("nan")
