"""Model llm-d's autoscaling: KEDA on the signals of the endpoint picker."""

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from planner.policies.base import (
    Above,
    Factor,
    Group,
    Interval,
    Policy,
    Traits,
    TunedParameter,
    factors,
)
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Count, Delay, Milliseconds, Section
from simulation.policies.endpoint_picker import SETTINGS, Signal
from simulation.policies.endpoint_picker import EndpointPicker as Rule
from simulation.policies.feedback import TBT, TTFT
from simulation.policies.parts.hpa_behaviour import DirectionLimits

Target = Annotated[float, Field(gt=0, le=1e9)]
FACTORS = TunedParameter("target_factor", factors(1.5, 0.25, 10))
SIGNALS: dict[str, Signal] = {f"epp-{signal}": signal for signal in get_args(Signal)}


class ScalingWay(Section):
    """The ``behavior`` of a horizontal pod autoscaler in one direction."""

    percent: Factor = 0.0  # step in per cent of the replicas; the larger of both steps applies
    replicas: Count = 0  # step in replicas
    period_s: Annotated[float, Field(ge=1, le=1800)] = 15.0  # seconds per step
    window_s: Delay = 0.0  # stabilization window, seconds

    def rule(self) -> DirectionLimits:
        """Return the limits for the simulation."""
        return DirectionLimits(self.percent, self.replicas, self.period_s, self.window_s)


class EndpointPicker(Policy):
    """KEDA on a signal of llm-d's endpoint picker, with its second trigger."""

    kinds: ClassVar = {
        "epp-queue": Traits(
            "llm-d, KEDA on queue",
            "Scales on requests that llm-d's endpoint picker holds, and on running requests.",
            Group.OPPONENT,
            complexity=14,
        ),
        "epp-queue-guard": Traits(
            "llm-d, KEDA on queue with guard",
            "As “llm-d, KEDA on queue”. Subtracts starting replicas from its target.",
            Group.OPPONENT,
            complexity=15,
        ),
        "epp-inflight": Traits(
            "llm-d, KEDA on in-flight requests",
            "Scales on running requests, as counted by the endpoint picker.",
            Group.OPPONENT,
            complexity=13,
        ),
        "epp-saturation": Traits(
            "llm-d, KEDA on pool saturation",
            "Scales on the pool saturation of the endpoint picker, and on running requests.",
            Group.OPPONENT,
            complexity=14,
        ),
        "epp-tokens": Traits(
            "llm-d, KEDA on queued tokens",
            "Scales on queued tokens, as seconds to prefill them, and on KV memory.",
            Group.OPPONENT,
            complexity=14,
        ),
        "epp-latency": Traits(
            "llm-d, KEDA on latency",
            "Scales on P90 latency ÷ SLO limit, averaged within bounds.",
            Group.OPPONENT,
            complexity=15,
        ),
    }

    name: Literal[
        "epp-queue", "epp-queue-guard", "epp-inflight", "epp-saturation", "epp-tokens",
        "epp-latency",
    ]  # fmt: skip
    # Per replica: requests held, running requests, saturation, seconds of backlog. Latency: share
    # of the SLO that scales out. Default: 1, 16, 0.7, 1.5 and 0.55, as published.
    target: Target | None = None
    # Per replica: running requests of queue and saturation, KV memory of tokens. Latency: share of
    # the SLO that scales in. Default: 16, 0.8 and 0.4.
    second_target: Target | None = None
    target_factor: Above = 1.0  # factor on both targets
    prefill_tps: Target | None = None  # prompt tokens/s of a replica. Default: of its profile
    # SLO of the latency signal. Default of both: the tightest of the interactive tiers.
    ttft_ms: Milliseconds | None = None
    tbt_ms: Milliseconds | None = None  # the same for TBT
    tolerance: Factor = Rule.tolerance  # deviation without action
    min_replicas: Count = Rule.min_replicas  # smallest count
    # How fast it scales out: percent, replicas, period_s, window_s. Default: as published.
    up: ScalingWay | None = None
    down: ScalingWay | None = None  # the same for scale-in
    interval_s: Interval = Rule.interval_s  # seconds between decisions

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        scale_out, scale_in = self.targets
        if self.name == "epp-latency" and scale_in >= scale_out:
            raise ValueError("second_target of epp-latency must be below target")
        return self

    @property
    def targets(self) -> tuple[float, float]:
        """Return the targets of both triggers, given or published, times ``target_factor``."""
        setting = SETTINGS[SIGNALS[self.name]]
        first, second = self.target or setting.target, self.second_target or setting.second_target
        return first * self.target_factor, second * self.target_factor

    @property
    def tuned_parameter(self) -> TunedParameter:
        return FACTORS

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy on the current fleet; limits default to the tiers' tightest ones."""
        first, second = self.targets
        return context.with_current_fleet(Rule(
            signal=SIGNALS[self.name],
            target=first,
            second_target=second,
            prefill_tps=self.prefill_tps,
            tolerance=self.tolerance,
            min_replicas=self.min_replicas,
            ttft_s=context.tightest_s(TTFT) if self.ttft_ms is None else self.ttft_ms / 1000,
            tbt_s=context.tightest_s(TBT) if self.tbt_ms is None else self.tbt_ms / 1000,
            up=None if self.up is None else self.up.rule(),
            down=None if self.down is None else self.down.rule(),
            interval_s=self.interval_s,
            name=self.key,
        ))  # fmt: skip
