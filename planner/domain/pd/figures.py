"""Define the result figures of P:D ratios and of their pools."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from planner.domain.columns import COUNT, NUMBER, SHARE, TEXT, USD, Column, Columns
from planner.domain.pd.plan_ratios import BEST
from planner.domain.pd.service_pools import PairColumns
from planner.inputs.scenario.build import Hardware
from simulation.sizing.pd_ratio import PdService, RatioCapacity


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRatio:
    """A ratio by closed forms, by the capacities of its two pools, and by simulation of both.

    If it was simulated, the simulation counts.
    """

    closed: RatioCapacity
    pools: RatioCapacity
    simulated: RatioCapacity | None

    @property
    def ratio(self) -> RatioCapacity:
        """Return the ratio that counts: the simulated one, if there is one."""
        return self.simulated or self.pools

    @property
    def by(self) -> str:
        """Return the method that ``ratio`` comes from."""
        if self.simulated:
            return "simulation"
        return "each pool" if self.pools is not self.closed else "closed forms"

    @property
    def prediction_error(self) -> float | None:
        """Return the relative error of the closed forms, or None without a simulated capacity."""
        if self.simulated is None or self.simulated.max_tps <= 0:
            return None
        return self.closed.max_tps / self.simulated.max_tps - 1.0


RATIOS = Columns(
    (
        *BEST.columns[:5],  # columns that do not depend on other ratios
        Column("side", TEXT, "of which more would help", attrgetter("ratio.side")),
        *BEST.columns[5:8],
        Column("by", TEXT, "which it is judged"),
        Column("pools_tps", NUMBER, "tokens/s that the lesser of the two pools carries by itself",
               attrgetter("pools.max_tps")),
        Column("closed_tps", NUMBER, "tokens/s by closed forms", attrgetter("closed.max_tps")),
        Column("prediction_error", SHARE, "of closed forms, where simulation was run"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A pair of columns, for prefill and for decode, and its best ratio by closed forms."""

    hardware: Hardware
    columns: PairColumns
    service: PdService
    instances: int
    best: RatioCapacity

    @property
    def usd_per_hour(self) -> float:
        """Return the price of the best ratio per hour, in the cheapest region of each column."""
        sides = ((self.best.prefill, self.columns.prefill), (self.best.decode, self.columns.decode))
        prices, profiles = (
            self.hardware.usd_per_gpu_hour,
            (self.service.prefill, self.service.decode),
        )
        return sum(
            n * profile.tp * float(prices[:, g].min())
            for (n, g), profile in zip(sides, profiles, strict=True)
        )

    @property
    def usd_per_million_tokens(self) -> float:
        return 1e6 * self.usd_per_hour / (3600 * self.best.max_tps)


PAIRS = Columns(
    (
        Column("instances", COUNT, "in all"),
        Column("prefill_on", TEXT, "GPUs",
               lambda pair: pair.hardware.columns[pair.columns.prefill].label),
        Column("decode_on", TEXT, "GPUs",
               lambda pair: pair.hardware.columns[pair.columns.decode].label),
        Column("prefill", COUNT, "instances of the best ratio", attrgetter("best.prefill")),
        Column("decode", COUNT, "instances of it", attrgetter("best.decode")),
        Column("max_tps", NUMBER, "tokens/s that it carries", attrgetter("best.max_tps")),
        Column("usd_per_hour", USD, "of it"),
        Column("usd_per_million_tokens", USD, "of it"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a tier; None: no limit."""

    ttft_ms: float | None
    tbt_ms: float | None
    e2e_ms: float | None


@dataclass(frozen=True, slots=True)
class PdPool:
    """The GPUs and the profile of one of the two pools."""

    gpu: str
    tp: int
    arrangement: str
    profile: str
    provenance: str
    source: str


@dataclass(frozen=True, slots=True)
class Mixed:
    """The capacity of the same number of instances with aggregated serving."""

    max_tps: float
    max_rps: float
    bound_by: str
    note: str = ""
