"""Model the Planner of NVIDIA Dynamo."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from planner.policies.base import Above, Group, Interval, Policy, Traits, TunedParameter, factors
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Count, Milliseconds, Share
from simulation.policies.dynamo_planner import (
    LOAD_INTERVAL_S,
    THROUGHPUT_INTERVAL_S,
    Predictor,
    Target,
)
from simulation.policies.dynamo_planner import DynamoPlanner as Rule
from simulation.policies.feedback import TBT, TTFT

Amount = Annotated[float, Field(gt=0, le=1e9)]
FACTORS = TunedParameter("target_factor", factors(1.5, 0.4, 10))
TARGETS: dict[str, Target] = {
    "dynamo-throughput": "throughput",
    "dynamo-latency": "latency",
    "dynamo-load": "load",
    "dynamo-sla": "sla",
}


class DynamoPlanner(Policy):
    """NVIDIA Dynamo's Planner with one of its targets."""

    kinds: ClassVar = {
        "dynamo-throughput": Traits(
            "NVIDIA Planner, throughput",
            "Dynamo's Planner: changes one replica at a time, by queues and KV memory.",
            Group.OPPONENT,
            complexity=13,
        ),
        "dynamo-latency": Traits(
            "NVIDIA Planner, latency",
            "Dynamo's Planner, with lower thresholds than “NVIDIA Planner, throughput”.",
            Group.OPPONENT,
            complexity=13,
        ),
        "dynamo-load": Traits(
            "NVIDIA Planner, load",
            "Dynamo's Planner, with thresholds set in the scenario.",
            Group.OPPONENT,
            complexity=14,
        ),
        "dynamo-sla": Traits(
            "NVIDIA Planner, SLA",
            "Dynamo's Planner: predicted demand ÷ SLO capacity per engine.",
            Group.OPPONENT,
            complexity=16,
        ),
    }

    name: Literal["dynamo-throughput", "dynamo-latency", "dynamo-load", "dynamo-sla"]
    # Forecast of sla: the last interval, ARIMA, or a Kalman filter of level and trend.
    predictor: Predictor = Rule.predictor
    # Load: queued prompt tokens of an engine that add a prefill replica.
    prefill_out_tokens: Amount = Rule.prefill_tokens[0]
    prefill_in_tokens: Amount = Rule.prefill_tokens[1]  # that allow one fewer
    decode_out_kv: Share = Rule.decode_kv[0]  # load: KV memory in use that adds a replica
    decode_in_kv: Share = Rule.decode_kv[1]  # that allows one fewer
    context_tokens: Amount = Rule.context_tokens  # context length of the workers
    ttft_ms: Milliseconds | None = None  # SLO of sla. Default of both: the tightest tier
    itl_ms: Milliseconds | None = None  # the same for TBT
    target_factor: Above = 1.0  # factor on the thresholds of load, or on the SLO of sla
    max_step: Count = Rule.max_step  # most replicas that one decision of sla adds or removes
    min_replicas: Count = Rule.min_replicas  # smallest count of each role
    max_gpus: Count | None = None  # GPU budget of each service. Default: none
    # Power budget of each service, watts. Default: an equal share of the site's power limit
    power_w: Amount | None = None
    gpu_w: Amount | None = None  # power cap of a GPU, watts. Default: its TDP
    # Seconds between decisions. Default: 180 for sla, else 5.
    interval_s: Interval | None = None

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        if self.prefill_in_tokens >= self.prefill_out_tokens:
            raise ValueError("prefill_in_tokens must be below prefill_out_tokens")
        if self.decode_in_kv >= self.decode_out_kv:
            raise ValueError("decode_in_kv must be below decode_out_kv")
        return self

    @property
    def decision_interval_s(self) -> float:
        """Return the seconds between decisions."""
        return self.interval_s or (
            THROUGHPUT_INTERVAL_S if self.name == "dynamo-sla" else LOAD_INTERVAL_S
        )

    @property
    def tuned_parameter(self) -> TunedParameter | None:
        return FACTORS if self.name in ("dynamo-load", "dynamo-sla") else None

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy on the current fleet; by default with the tiers' tightest limits."""
        factor = self.target_factor
        ttft_s = context.tightest_s(TTFT) if self.ttft_ms is None else self.ttft_ms / 1000
        itl_s = context.tightest_s(TBT) if self.itl_ms is None else self.itl_ms / 1000
        return context.with_current_fleet(Rule(
            target=TARGETS[self.name],
            prefill_tokens=(self.prefill_out_tokens * factor, self.prefill_in_tokens * factor),
            decode_kv=(self.decode_out_kv * factor, self.decode_in_kv * factor),
            lengths=context.lengths,
            ttft_s=ttft_s * factor,
            itl_s=itl_s * factor,
            **{name: getattr(self, name) for name in (
                "predictor", "context_tokens", "max_step", "min_replicas", "max_gpus", "power_w",
                "gpu_w",
            )},
            interval_s=self.decision_interval_s,
            name=self.key,
        ))  # fmt: skip
