"""The policies to compare, with their parameters: a type for each, chosen by ``name``.

What is left out has the source's value (docs/policies.md has the sources); a test holds these
defaults against those of the classes in ``simulation.policies``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, field_validator, model_validator

from planner.scenario.own import own_policies
from planner.scenario.schema.types import Count, Delay, Milliseconds, Name, Section, Share

Factor = Annotated[float, Field(ge=0, le=1000)]
Above = Annotated[float, Field(gt=0, le=1000)]
Interval = Annotated[float, Field(ge=1, le=86_400)]  # s between looks
Tps = Annotated[float, Field(gt=0, le=1e9)]  # tokens/s of one instance
RatioGiven = Annotated[float, Field(gt=0, le=100)]
ALL = "all"  # in place of names: every policy there is
SEPARATOR = ":"  # between a policy's name and its label


class Chosen(Section):
    """What every policy has."""

    label: Name | None = None  # tells several of one name apart, and is what tables show

    @property
    def key(self) -> str:
        """What tells it apart in a comparison."""
        name: str = getattr(self, "name")  # noqa: B009 - every subclass has one
        return name if self.label is None else f"{name}{SEPARATOR}{self.label}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Its parameters: as given, else by default."""
        return {k: v for k, v in self.model_dump().items() if k not in ("name", "label")}


class FixedFleet(Chosen):
    """The same fleet all the time."""

    name: Literal["today", "flat-peak", "flat-min"]


class Planned(Chosen):
    """The plan, followed at once (LT-I); lt-h is the plan of all periods together."""

    name: Literal["lt-i", "lt-h", "lt-i-last-value", "lt-i-perfect"]


class TimetableStep(Section):
    """From a time of day (UTC) on, so many replicas per pool that the row is about."""

    at: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]  # "08:00", in quotes
    replicas: Count
    model: Name | None = None  # left out: every model, region and GPU type
    region: Name | None = None
    gpu: Name | None = None


class Periodic(Chosen):
    """Counts by the time of day; without a timetable, planned for the day before."""

    name: Literal["periodic"]
    timetable: Annotated[list[TimetableStep], Field(max_length=1000)] = []


class Hpa(Chosen):
    """The rules of Kubernetes' autoscaler."""

    name: Literal["hpa"]
    metric: Literal["memory", "gpu"] = "memory"
    target: Share = 0.8
    tolerance: Factor = 0.1
    stabilisation_s: Delay = 300
    scale_up_factor: Factor = 1.0
    scale_up_instances: Count = 4
    interval_s: Interval = 15


class _Reactive(Chosen):
    scale_out_above: Share = 0.7  # effective memory utilisation
    scale_in_below: Share = 0.3
    cooldown_s: Delay = 15
    interval_s: Interval = 15

    @model_validator(mode="after")
    def _apart(self) -> _Reactive:
        if self.scale_in_below >= self.scale_out_above:
            raise ValueError("scale_in_below must be below scale_out_above")
        return self


class Reactive(_Reactive):
    """One pool for all tiers, scaled by its memory utilisation."""

    name: Literal["reactive"]


class Siloed(_Reactive):
    """Interactive and deferrable tiers on instances of their own."""

    name: Literal["siloed"]
    batch_share: Share = 0.2


class LtU(_Reactive):
    """The plan, reached as utilisation asks for it."""

    name: Literal["lt-u"]


class LtUa(_Reactive):
    """LT-U that passes the plan late in a period where the forecast is far off."""

    name: Literal["lt-ua"]
    last_share: Share = 1 / 3  # of a period: 20 minutes of an hour
    underestimated: Above = 5.0
    overestimated: Factor = 0.5
    observed_s: Annotated[float, Field(gt=0, le=86_400)] = 300


class Chiron(Chosen):
    """Backpressure, local and global."""

    name: Literal["chiron"]
    theta: Share = 0.6
    interactive: Count = 10  # instances at the start, per model and region
    mixed: Count = 5
    batch: Count = 5
    scale: Annotated[float, Field(gt=0, le=100)] = 1.0  # of those three
    tune_batch: bool = True
    grow: Annotated[float, Field(ge=1, le=10)] = 1.1
    shrink: Share = 0.8
    interval_s: Interval = 15


class _Steady(Chosen):
    """Stability and the P/D ratio of HeteroScale's controllers."""

    theta_out: Factor = 0.1
    theta_in: Annotated[float, Field(ge=0, lt=1)] = 0.2
    cool_out_s: Delay = 60
    cool_in_s: Delay = 300
    damping: Share = 1.0
    soft_s: Delay = 0
    # Prefill per decode instance: as today's fleet has them, a number, or re-estimated all along.
    ratio: Literal["fixed", "observed"] | RatioGiven = "fixed"
    half_life_s: Annotated[float, Field(gt=0, le=31 * 86_400)] = 900
    interval_s: Interval = 60


class Proportional(_Steady):
    """Algorithm 2 on one signal."""

    name: Literal[
        "decode-tps", "prefill-tps", "prefill-gpu", "prefill-sm", "decode-gpu", "decode-sm"
    ]
    # Of one instance, tokens/s or a share of its time; left out: what a pressure test shows.
    target: Tps | None = None

    @model_validator(mode="after")
    def _share(self) -> Proportional:
        if self.target is not None and not self.name.endswith("-tps") and self.target > 1:
            raise ValueError("target of a GPU signal is a share of time, at most 1")
        return self


class _Thresholds(_Steady):
    alpha_out: Above = 1.0
    beta_out: Above = 0.8
    gamma_in: Factor = 0.5
    urgent: Annotated[float, Field(ge=1, le=10)] = 1.2
    moderate: Annotated[float, Field(ge=1, le=10)] = 1.1
    shrink: Share = 0.95

    @model_validator(mode="after")
    def _ordered(self) -> _Thresholds:
        if not self.gamma_in < self.beta_out <= self.alpha_out:
            raise ValueError("thresholds must be gamma_in < beta_out <= alpha_out")
        return self


class Feedback(_Thresholds):
    """Algorithm 3 on one latency."""

    name: Literal["ttft-feedback", "tbt-feedback"]
    target_ms: Milliseconds | None = None  # left out: the tightest limit of the interactive tiers


class HeteroScale(_Thresholds):
    """Algorithm 2 as the driver, Algorithm 3 as the safety layer."""

    name: Literal["heteroscale"]
    signal: Literal[
        "decode-tps", "prefill-tps", "prefill-gpu", "prefill-sm", "decode-gpu", "decode-sm"
    ] = "decode-tps"
    target: Tps | None = None


class KvAware(_Steady):
    """KV memory, preemptions, and a prefix cache that loses what it held."""

    name: Literal["kv-aware"]
    target: Share = 0.7
    preemptions_per_min: Factor = 1.0
    evicted_share: Factor = 0.5
    hit_drop: Share = 0.1
    memory_s: Delay = 3600
    step: Annotated[float, Field(ge=1, le=10)] = 1.1


class Own(Chosen):
    """A class that the operator of this installation lists."""

    name: Name
    parameters: Annotated[dict[Name, bool | int | float | str], Field(max_length=100)] = {}

    @field_validator("name")
    @classmethod
    def _listed(cls, name: str) -> str:
        if name not in own_policies():
            raise ValueError(f"there is no such policy; choose from {', '.join(policy_names())}")
        return name

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.parameters)


Policy = (
    FixedFleet
    | Planned
    | Periodic
    | Hpa
    | Reactive
    | Siloed
    | LtU
    | LtUa
    | Chiron
    | Proportional
    | Feedback
    | HeteroScale
    | KvAware
    | Own
)
PolicyName = Literal[
    "today",
    "flat-peak",
    "flat-min",
    "periodic",
    "hpa",
    "siloed",
    "reactive",
    "lt-i",
    "lt-h",
    "lt-u",
    "lt-ua",
    "lt-i-last-value",
    "lt-i-perfect",
    "chiron",
    "decode-tps",
    "prefill-tps",
    "prefill-gpu",
    "prefill-sm",
    "decode-gpu",
    "decode-sm",
    "ttft-feedback",
    "tbt-feedback",
    "heteroscale",
    "kv-aware",
]
POLICIES: dict[PolicyName, str] = {
    "today": "Today's fleet",
    "flat-peak": "Flat at peak",
    "flat-min": "Smallest flat fleet that meets the SLO",
    "periodic": "Periodic",
    "hpa": "Kubernetes autoscaler",
    "siloed": "Siloed reactive",
    "reactive": "Unified reactive",
    "lt-i": "Planned (LT-I)",
    "lt-h": "Planned, all periods at once (LT-H)",
    "lt-u": "Planned, by utilisation (LT-U)",
    "lt-ua": "Planned, by utilisation and load (LT-UA)",
    "lt-i-last-value": "Planned on last value",
    "lt-i-perfect": "Planned on a perfect forecast",
    "chiron": "Chiron",
    "decode-tps": "Proportional to decode TPS",
    "prefill-tps": "Proportional to prefill TPS",
    "prefill-gpu": "Proportional to prefill GPU use",
    "prefill-sm": "Proportional to prefill SM activity",
    "decode-gpu": "Proportional to decode GPU use",
    "decode-sm": "Proportional to decode SM activity",
    "ttft-feedback": "Feedback on TTFT",
    "tbt-feedback": "Feedback on TBT",
    "heteroscale": "Decode TPS with latency as safety (HeteroScale)",
    "kv-aware": "KV-cache-aware",
}
# How lists show them: a group, what it is about, and a line on each.
GROUPS: tuple[tuple[str, dict[PolicyName, str]], ...] = (
    (
        "Fixed",
        {
            "today": "What runs now, all the time.",
            "flat-peak": "Sized in hindsight for the peak of the window.",
            "flat-min": "Searched by replay: what any policy has to beat.",
            "periodic": "Counts by the time of day: a timetable, or the day before.",
        },
    ),
    (
        "Reactive",
        {
            "hpa": "Kubernetes' formula, each pool by itself.",
            "siloed": "70% out, 30% in, interactive and deferrable tiers apart.",
            "reactive": "70% out, 30% in, one pool for all tiers.",
            "chiron": "Backpressure on batches, interactive instances and queue; overprovisions.",
            "kv-aware": "KV memory, preemptions and cache evictions.",
        },
    ),
    (
        "Planned on a forecast",
        {
            "lt-i": "The plan's count, at once.",
            "lt-h": "The same, of all periods in one program, on one forecast.",
            "lt-u": "The plan's count, as utilisation asks for it.",
            "lt-ua": "As LT-U, past the plan where the forecast is far off.",
            "lt-i-last-value": "The plan, had the last period been repeated.",
            "lt-i-perfect": "The plan, had the future been known.",
        },
    ),
    (
        "Coordinated prefill and decode",
        {
            "decode-tps": "Output tokens a second over what one instance gives.",
            "prefill-tps": "Prompt tokens computed a second over what one takes.",
            "prefill-gpu": "Share of time prefill instances run.",
            "prefill-sm": "Share of time their SMs compute.",
            "decode-gpu": "Share of time decode instances run; says little of load.",
            "decode-sm": "Share of time their SMs compute; says little of load.",
            "ttft-feedback": "Fixed steps by time to first token.",
            "tbt-feedback": "Fixed steps by time between tokens.",
            "heteroscale": "Decode TPS drives, latency only ever adds.",
        },
    ),
)
OWN_GROUP = "This installation's own"
_TYPES: dict[str, type[Chosen]] = {
    "today": FixedFleet, "flat-peak": FixedFleet, "flat-min": FixedFleet,
    "lt-i": Planned, "lt-h": Planned, "lt-i-last-value": Planned, "lt-i-perfect": Planned,
    "periodic": Periodic, "hpa": Hpa, "siloed": Siloed, "reactive": Reactive,
    "lt-u": LtU, "lt-ua": LtUa, "chiron": Chiron,
    **dict.fromkeys(
        ("decode-tps", "prefill-tps", "prefill-gpu", "prefill-sm", "decode-gpu", "decode-sm"),
        Proportional,
    ),
    "ttft-feedback": Feedback, "tbt-feedback": Feedback,
    "heteroscale": HeteroScale, "kv-aware": KvAware,
}  # fmt: skip


def _type_of(value: Any) -> str:
    """Tag of the type that a row is of."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return _TYPES.get(name, Own).__name__ if isinstance(name, str) else "Own"


AnyPolicy = Annotated[
    Annotated[FixedFleet, Tag("FixedFleet")]
    | Annotated[Planned, Tag("Planned")]
    | Annotated[Periodic, Tag("Periodic")]
    | Annotated[Hpa, Tag("Hpa")]
    | Annotated[Reactive, Tag("Reactive")]
    | Annotated[Siloed, Tag("Siloed")]
    | Annotated[LtU, Tag("LtU")]
    | Annotated[LtUa, Tag("LtUa")]
    | Annotated[Chiron, Tag("Chiron")]
    | Annotated[Proportional, Tag("Proportional")]
    | Annotated[Feedback, Tag("Feedback")]
    | Annotated[HeteroScale, Tag("HeteroScale")]
    | Annotated[KvAware, Tag("KvAware")]
    | Annotated[Own, Tag("Own")],
    Discriminator(_type_of),
]
TAGS = frozenset({kind.__name__ for kind in _TYPES.values()} | {"Own"})  # in a fault's path
_ADAPTER: TypeAdapter[Policy] = TypeAdapter(AnyPolicy)


def policy_of(name: str, **given: Any) -> Policy:
    """A policy by name, with what is given and defaults else; raises pydantic's ValidationError."""
    return _ADAPTER.validate_python({"name": name, **given})


def policy_groups() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Groups of (name, label, a line on it) for lists, the operator's own last."""
    groups: list[tuple[str, list[tuple[str, str, str]]]] = [
        (title, [(name, POLICIES[name], line) for name, line in lines.items()])
        for title, lines in GROUPS
    ]
    own: list[tuple[str, str, str]] = [(name, name, "") for name in own_policies()]
    return [*groups, (OWN_GROUP, own)] if own else groups


def policy_names() -> list[str]:
    """Names of every policy there is here, the operator's own last."""
    return [*POLICIES, *own_policies()]


def known_policy(key: str) -> bool:
    """Whether a name, or one with a label after it, may be a policy; which labels there are only
    the scenario says."""
    return key.partition(SEPARATOR)[0] in policy_names()


def label_of(policy: Policy) -> str:
    """What tables show."""
    named = POLICIES.get(policy.name, policy.name)  # type: ignore[call-overload]
    return str(policy.label or named)
