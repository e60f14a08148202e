"""Define the query for a deployment, and the price of each GPU type."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from planner.errors import PlannerError
from planner.inputs import catalogue
from simulation.fleet import Tier
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.specs import BYTES, Provenance
from simulation.search.values import Requests

LIMITS = "limits"  # name of the tier
PERCENTILE = 95.0
MOST_TOKENS, MOST_MS, MOST_RPS, MOST_TOP = 10_000_000, 1e8, 1e6, 100
TOP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentQuery:
    """The request for a search: model, lengths, limits and allowed hardware.

    Empty ``gpus`` and ``precisions`` (of weights) mean all. ``prices`` are in USD per GPU-hour by
    GPU type. By default they are those of the catalogue.
    """

    model: str
    isl: int
    osl: int
    ttft_ms: float | None = None
    tbt_ms: float | None = None
    percentile: float = PERCENTILE
    rps: float | None = None
    gpus: tuple[str, ...] = ()
    engines: tuple[str, ...] = ENGINES
    precisions: tuple[str, ...] = ()
    top: int = TOP
    prices: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    disaggregated: bool = True  # search these too; they take most of the time

    def __post_init__(self) -> None:
        for name, minimum, maximum in (
            ("isl", 1, MOST_TOKENS), ("osl", 1, MOST_TOKENS), ("top", 1, MOST_TOP),
        ):  # fmt: skip
            if not minimum <= getattr(self, name) <= maximum:
                raise PlannerError(
                    f"{name} is {getattr(self, name):,}. Give a whole number from {minimum} to "
                    f"{maximum:,}."
                )
        for name, limit in (("ttft_ms", MOST_MS), ("tbt_ms", MOST_MS), ("rps", MOST_RPS)):
            value = getattr(self, name)
            if value is not None and not 0 < value <= limit:
                raise PlannerError(
                    f"{name} is {value:g}. Give a number above 0, up to {limit:,.0f}, or leave it "
                    "out."
                )
        if not 50 <= self.percentile < 100:
            raise PlannerError(
                f"percentile is {self.percentile:g}. Give one from 50 to below 100, such as 95."
            )
        for engine in self.engines:
            if engine not in ENGINES:
                raise PlannerError(f"engine {engine!r} is unknown. Use {', '.join(ENGINES)}.")
        for precision in self.precisions:
            if precision not in BYTES:
                raise PlannerError(f"precision {precision!r} is unknown. Use {', '.join(BYTES)}.")
        for gpu, price in self.prices.items():
            if not 0 < price <= 1e6:
                raise PlannerError(
                    f"price of {gpu} is {price:g}. Give dollars of an hour of one GPU, above 0."
                )

    @property
    def wanted(self) -> Requests:
        """Return the requests and limits in the format that the search uses."""
        tier = Tier(
            LIMITS,
            ttft_s=None if self.ttft_ms is None else self.ttft_ms / 1000,
            tbt_s=None if self.tbt_ms is None else self.tbt_ms / 1000,
            attainment=self.percentile / 100,
        )
        return Requests(self.isl, self.osl, tier, self.rps)


@dataclass(frozen=True, slots=True)
class HourPrice:
    """Price of one GPU in USD per hour; NaN if not known."""

    usd: float
    provenance: Provenance


def price_of(gpu: str, prices: Mapping[str, float]) -> HourPrice:
    """Return the price from ``prices``, or else the median of the catalogue's on-demand offers."""
    if gpu in prices:
        return HourPrice(prices[gpu], Provenance("assumed", "as given"))
    offers = [
        offer
        for offer in catalogue.prices()
        if offer.gpu == gpu and offer.usd_per_gpu_hour is not None
    ]
    usd = [offer.usd_per_gpu_hour for offer in offers if offer.usd_per_gpu_hour is not None]
    if not usd:
        return HourPrice(math.nan, Provenance("assumed", "no price is known. Give one"))
    span = f"${min(usd):.2f} to ${max(usd):.2f}"
    source = f"median of {len(usd)} on-demand offers, {span}. A plan uses the price of its region"
    return HourPrice(median(usd), Provenance(offers[0].provenance.kind, source))
