"""The scenario file: one set of types for its checks, its JSON Schema and the code that reads it.

Sections and names are the contract of docs/scenario.md. Units sit in the names. GPUs, models and
profiles may be named from the built-in catalogue or given in full. Every number and list has a
largest value, far above any real one, so that no slip of the pen keeps a worker busy for days.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Delay = Annotated[float, Field(ge=0, le=31 * 86_400)]  # s
Milliseconds = Annotated[float, Field(gt=0, le=31 * 86_400_000)]
Watts = Annotated[float, Field(ge=0, le=100_000)]
Usd = Annotated[float, Field(ge=0, le=1_000_000)]
CoefficientMs = Annotated[float, Field(ge=0, le=1_000_000)]
LatencyMs = Annotated[float, Field(ge=0, le=60_000)]
Buffer = Annotated[float, Field(ge=0, le=100)]
Quantile = Annotated[float, Field(ge=0.05, le=0.95)]  # what forecasts hold; nothing beyond is known
BinS = Annotated[float, Field(ge=0.001, le=31 * 86_400)]
Peak = Annotated[float, Field(ge=0.1, le=1_000_000)]
PeakGb = Annotated[float, Field(ge=0.01, le=1_000_000)]
Width = Annotated[int, Field(ge=1, le=10_000_000)]
Grams = Annotated[float, Field(ge=0, le=100_000)]
Name = Annotated[
    str, Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/+-]*$")
]


class Section(BaseModel):
    """Unknown keys are refused; nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _named(value: Any) -> Any:
    """``- H100`` is short for ``- name: H100``."""
    return {"name": value} if isinstance(value, str) else value


def _all_or_none(what: Section, fields: tuple[str, ...]) -> None:
    missing = [name for name in fields if getattr(what, name) is None]
    if missing and len(missing) < len(fields):
        raise ValueError(
            f"{', '.join(missing)} missing: give all of {', '.join(fields)}, "
            "or none of them to use the built-in facts"
        )


class Gpu(Section):
    """A GPU type: built-in by any of its names alone, or your own with memory and power.

    Power is per GPU. What follows the watts is needed by profiles of ``kind: roofline``: peaks are
    dense, bandwidths one way.
    """

    name: Name
    memory_gb: Annotated[float, Field(gt=0, le=100_000)] | None = None
    idle_w: Watts | None = None
    prefill_w: Watts | None = None
    decode_w: Watts | None = None
    tdp_w: Watts | None = None
    bandwidth_gb_s: PeakGb | None = None  # of its memory
    bf16_tflops: Peak | None = None
    fp8_tflops: Peak | None = None
    fp4_tflops: Peak | None = None
    int8_tops: Peak | None = None
    int4_tops: Peak | None = None
    link_gb_s: PeakGb | None = None  # to its neighbours in a node
    network_gb_s: PeakGb | None = None  # to other nodes
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    family: Annotated[str, Field(max_length=40)] | None = None  # hopper, blackwell, cdna3 ...
    source: str = "scenario"

    @property
    def in_full(self) -> bool:
        return self.memory_gb is not None

    @model_validator(mode="after")
    def _complete(self) -> Gpu:
        _all_or_none(self, ("memory_gb", "idle_w", "prefill_w", "decode_w"))
        if not self.in_full and self.model_dump(exclude={"name", "source"}, exclude_none=True):
            raise ValueError("give memory_gb, idle_w, prefill_w and decode_w beside other facts")
        return self


class Shape(Section):
    """What a model computes, by the fields of its config.json; memory and speed follow from it.

    Other fields of ModelShape (simulation/performance/specs.py) go into ``config``.
    """

    layers: Width
    hidden: Width
    vocab: Width
    heads: Width
    kv_heads: Width
    head_dim: Width
    intermediate: Width
    max_context: Annotated[int, Field(ge=2, le=1_000_000_000)]
    gated: bool = True
    tied_embeddings: bool = False
    experts: Count = 0
    experts_per_token: Count = 0
    expert_intermediate: Count = 0
    shared_intermediate: Count = 0
    dense_layers: Count = 0
    window_layers: Count = 0
    window: Count = 0


class Model(Section):
    """A model: built-in by its short name or Hugging Face id alone, or your own, by its memory, by
    its ``shape`` or by its ``config``, the text of a Hugging Face config.json as YAML."""

    name: Name
    weight_gb: Annotated[float, Field(gt=0, le=100_000)] | None = None
    kv_bytes_per_token: Annotated[float, Field(ge=1, le=1e9)] | None = None
    max_context: Annotated[int, Field(ge=2, le=1_000_000_000)] | None = None
    shape: Shape | None = None
    config: dict[str, Any] | None = None
    source: str = "scenario"

    @property
    def in_full(self) -> bool:
        return self.weight_gb is not None

    @model_validator(mode="after")
    def _complete(self) -> Model:
        _all_or_none(self, ("weight_gb", "kv_bytes_per_token", "max_context"))
        if self.in_full + (self.shape is not None) + (self.config is not None) > 1:
            raise ValueError("give only one of weight_gb and the like, shape, and config")
        return self


class Profile(Section):
    """How fast a model runs on an arrangement of GPUs (linear, methods.md C1).

    Without ``alpha_ms`` to ``delta_ms`` the built-in profile of that model, GPU and tp is meant, or
    with a ``name`` the one that was fitted or imported here under that name. ``kind: roofline``
    needs no measurement: iterations are estimated from the shape and the published peaks, of any
    model on any GPU whose facts are known, on ``tp * pp * attention_dp`` GPUs.
    """

    model: Name
    gpu: Name
    tp: Annotated[int, Field(ge=1, le=1024)] = 1  # left out beside a name: the profile's own
    # A profile kept in this installation; without a version the newest when the run is made.
    name: Name | None = None
    version: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    kind: Literal["linear", "roofline"] = "linear"
    # Of the linear layers' weights; built-in linear profiles are of bf16.
    precision: Literal["bf16", "fp8", "fp4", "int8", "int4"] = "bf16"
    kv_precision: Literal["bf16", "fp8"] = "bf16"
    pp: Annotated[int, Field(ge=1, le=64)] = 1
    attention_dp: Annotated[int, Field(ge=1, le=1024)] = 1
    moe_tp: Annotated[int, Field(ge=1, le=1024)] = 1  # both 1: as attention
    moe_ep: Annotated[int, Field(ge=1, le=1024)] = 1
    alpha_ms: CoefficientMs | None = None
    beta_ms: CoefficientMs | None = None
    gamma_ms: CoefficientMs | None = None
    delta_ms: CoefficientMs | None = None
    # Left out: the built-in's, else 256 and 2048.
    max_batch: Annotated[int, Field(ge=1, le=65_536)] | None = None
    max_batch_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    source: str = "scenario"

    @property
    def in_full(self) -> bool:
        return self.alpha_ms is not None

    @model_validator(mode="after")
    def _one_origin(self) -> Profile:
        if self.name is not None and self.in_full:
            raise ValueError("name refers to a kept profile; leave out alpha_ms to delta_ms")
        if self.version is not None and self.name is None:
            raise ValueError("version is of a kept profile; give its name too")
        if self.kind == "roofline" and (self.name is not None or self.in_full):
            raise ValueError("kind: roofline is computed; leave out name and alpha_ms to delta_ms")
        spread = [f for f in ("pp", "attention_dp", "moe_tp", "moe_ep") if getattr(self, f) > 1]
        if self.kind == "linear" and spread:
            raise ValueError(f"{', '.join(spread)} above 1 needs kind: roofline")
        return self

    @model_validator(mode="after")
    def _complete(self) -> Profile:
        _all_or_none(self, ("alpha_ms", "beta_ms", "gamma_ms", "delta_ms"))
        for constant, slope in (("alpha_ms", "beta_ms"), ("gamma_ms", "delta_ms")):
            if getattr(self, constant) == 0 and getattr(self, slope) == 0:
                raise ValueError(f"{constant} and {slope} are both 0: work takes time; give one")
        return self


class Region(Section):
    """Where GPUs are. ``like`` takes price, carbon and PUE from a built-in region."""

    name: Name
    like: str | None = None
    capacity: dict[Name, Count]  # GPUs by type
    usd_per_gpu_hour: dict[Name, Usd] = {}
    # Yearly mean, or 24 values by UTC hour.
    carbon_g_per_kwh: Grams | Annotated[list[Grams], Field(min_length=24, max_length=24)] | None = (
        None
    )
    pue: Annotated[float, Field(ge=1, le=10)] | None = None
    latency_ms: dict[Name, LatencyMs] = {}  # one way, to other regions


class Tier(Section):
    """A class of requests and its limits; a limit left out does not apply."""

    name: Name
    ttft_ms: Milliseconds | None = None
    tbt_ms: Milliseconds | None = None  # mean gap between the tokens of a request
    e2e_ms: Milliseconds | None = None
    percentile: Annotated[float, Field(gt=0, lt=100)] = 95
    deferrable: bool = False  # may wait in the queue manager (NIW)

    @model_validator(mode="after")
    def _some_limit(self) -> Tier:
        if self.ttft_ms is None and self.tbt_ms is None and self.e2e_ms is None:
            raise ValueError("give at least one of ttft_ms, tbt_ms and e2e_ms")
        return self


class Lengths(Section):
    """Tokens per request where the file has none: log-normal with this mean and spread."""

    mean: Annotated[float, Field(gt=0, le=1_000_000)]
    cv: Annotated[float, Field(ge=0, le=100)] = 1.0


class Source(Section):
    """One trace or demand file, or a part of it, and where its requests go.

    ``model``, ``region`` and ``tier`` labels that the file itself carries are used when ``model``,
    ``regions`` and ``tiers`` are left out.
    """

    trace: str | None = None  # name of a stored trace
    file: str | None = None  # path beside the scenario file; command line only
    series: str | None = None  # one series of a demand file, or one model label of a trace
    model: Name | None = None
    regions: dict[Name, Share] = {}  # share of the requests by home region
    tiers: dict[Name, Share] = {}
    scale: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Source:
        if (self.trace is None) == (self.file is None):
            raise ValueError("give either trace (a stored trace's name) or file (a path)")
        for name in ("regions", "tiers"):
            shares = getattr(self, name)
            if shares and abs(sum(shares.values()) - 1) > 1e-6:
                raise ValueError(
                    f"the shares of {name} must add up to 1, not {sum(shares.values()):g}"
                )
        return self


class Traffic(Section):
    """What arrives."""

    sources: Annotated[list[Source], Field(min_length=1, max_length=1000)]
    bin_s: BinS | None = None  # left out: 900 s for days, 60 s for hours of trace


class Replicas(Section):
    """What one pool of the fleet is today and how far it may move."""

    model: Name
    region: Name
    gpu: Name
    replicas: Count
    minimum: Count | None = None  # left out: fleet.minimum, on the cheapest arrangement
    maximum: Count | None = None  # left out: as many as the region's GPUs allow


class Fleet(Section):
    """The fleet as it is. Without ``today`` a flat fleet sized for the peak is assumed."""

    today: Annotated[list[Replicas], Field(max_length=10_000)] = []
    startup_s: Delay = 600  # weights local, SageServe section 4
    minimum: Count = 1  # instances per model and region, where ``today`` does not say


PolicyName = Literal[
    "today", "flat-peak", "flat-min", "reactive", "lt-i", "lt-i-last-value", "lt-i-perfect"
]
POLICIES: dict[PolicyName, str] = {
    "today": "Today's fleet",
    "flat-peak": "Flat at peak",
    "flat-min": "Smallest flat fleet that meets the SLO",
    "reactive": "Unified reactive",
    "lt-i": "Planned (LT-I)",
    "lt-i-last-value": "Planned on last value",
    "lt-i-perfect": "Planned on a perfect forecast",
}


class Policy(Section):
    """A policy to compare, with its parameters; what is left out has the source's value."""

    name: PolicyName
    scale_out_above: Share | None = None  # reactive: effective memory utilisation
    scale_in_below: Share | None = None
    cooldown_s: Delay | None = None


class Forecast(Section):
    """How demand is forecast."""

    method: Literal["auto", "arima", "last-value", "seasonal-naive"] = "arima"
    quantile: Quantile | None = None  # left out: the mean, as the source
    niw_buffer: Buffer = 0.1  # beta: share of the last period's NIW load added


class Objective(Section):
    """What the plan minimises and how hard the solver tries."""

    minimise: Literal["cost"] = "cost"
    epsilon: Share = 0.8  # share of a region's peak served in the region
    solver: Literal["highs", "cbc"] = "highs"
    gap: Annotated[float, Field(ge=0, le=1)] = 1e-4  # of fleet cost
    time_limit_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    baseline: PolicyName | None = (
        None  # savings are counted against it; left out: today or flat-peak
    )


class Horizon(Section):
    """The window to plan; left out, the last day of a long trace or the last half of a short one.

    A window inside the trace is planned with what was known at each moment and replayed against
    what then came; a window after its end is planned and replayed on the forecast.
    """

    start: datetime | Literal["end"] | None = None  # "end": right after the trace
    duration_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    # Between decisions; left out: an hour, or less for short traces.
    period_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    lead_s: Delay | None = None  # decide this long before a period; left out: startup_s


class Scenario(Section):
    """Everything a study needs besides the traces themselves."""

    version: Literal[1]
    # Not digits alone: those are ids where a scenario is named.
    name: Annotated[str, Field(min_length=1, max_length=120, pattern=r"\D")] = "Scenario"
    description: str = ""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    # Built-in GPUs need not be listed.
    gpus: Annotated[list[Annotated[Gpu, BeforeValidator(_named)]], Field(max_length=100)] = []
    models: Annotated[
        list[Annotated[Model, BeforeValidator(_named)]], Field(min_length=1, max_length=200)
    ]
    profiles: Annotated[list[Profile], Field(min_length=1, max_length=500)]
    regions: Annotated[list[Region], Field(min_length=1, max_length=100)]
    tiers: Annotated[list[Tier], Field(min_length=1, max_length=100)]
    traffic: Traffic
    fleet: Fleet = Fleet()
    policies: Annotated[list[Annotated[Policy, BeforeValidator(_named)]], Field(min_length=1)] = [
        Policy(name="flat-peak"),
        Policy(name="flat-min"),
        Policy(name="reactive"),
        Policy(name="lt-i"),
    ]
    forecast: Forecast = Forecast()
    objective: Objective = Objective()
    horizon: Horizon = Horizon()
