"""Define the result figures of P:D ratios and of their pools."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.domain.pd.service_pools import PairColumns
from planner.domain.serialise import MERGED, milliseconds
from planner.inputs.scenario.build import Hardware
from simulation.sizing.pd_ratio import BestRatio, PdService, RatioCapacity


def ratio_name(prefill: int, decode: int) -> str:
    """Return a ratio of prefill to decode replicas as text, such as 13P:3D."""
    return f"{prefill}P:{decode}D"


@dataclass(frozen=True, slots=True)
class RatioFigures:
    """The capacity of a P:D ratio within the SLO, and its latencies at that load."""

    prefill: int  # replicas
    decode: int
    max_tps: float  # input and output tokens/s
    max_rps: float
    bound_by: str
    ttft_ms: float | None
    tbt_ms: float | None
    transfer_ms: float | None  # transfer time of the KV cache

    @classmethod
    def of(cls, ratio: RatioCapacity) -> RatioFigures:
        """Return the figures of a ratio."""
        return cls(
            ratio.prefill, ratio.decode, ratio.max_tps, ratio.max_rps, ratio.bound_by,
            milliseconds(ratio.ttft_s), milliseconds(ratio.tbt_s), milliseconds(ratio.transfer_s),
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Return the ratio as text, such as 13P:3D."""
        return ratio_name(self.prefill, self.decode)


@dataclass(frozen=True, slots=True)
class BestFigures:
    """The best P:D ratio, and the share of its capacity that each neighbouring ratio loses.

    A neighbour has one prefill replica more or less.
    """

    figures: RatioFigures = field(metadata={MERGED: True})
    lost_with_fewer_prefill: float | None  # None: there is no such ratio
    lost_with_more_prefill: float | None

    @classmethod
    def of(cls, best: BestRatio) -> BestFigures:
        """Return the figures of the best ratio."""
        return cls(RatioFigures.of(best.ratio), best.fewer_prefill, best.more_prefill)


@dataclass(frozen=True, slots=True)
class RatioRow:
    """A P:D ratio with its capacities by all methods; ``figures`` are by the most exact one."""

    figures: RatioFigures = field(metadata={MERGED: True})
    side: str  # the pool that limits the capacity
    by: str  # method of ``figures``: simulation, each pool or closed forms
    pools_tps: float  # tokens/s of the weaker of the two pools, each simulated alone
    closed_tps: float
    prediction_error: float | None  # error of closed forms against simulation

    @classmethod
    def of(
        cls, closed: RatioCapacity, pools: RatioCapacity, simulated: RatioCapacity | None
    ) -> RatioRow:
        """Return the figures of a ratio from its capacities by several methods.

        ``closed`` is by closed forms, ``pools`` with each pool simulated alone, and ``simulated``
        with both pools simulated together; None: not simulated.
        """
        ratio = simulated or pools
        error = None
        if simulated is not None and simulated.max_tps > 0:
            error = closed.max_tps / simulated.max_tps - 1.0
        by = "closed forms" if pools is closed else "each pool"
        if simulated:
            by = "simulation"
        return cls(RatioFigures.of(ratio), ratio.side, by, pools.max_tps, closed.max_tps, error)


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A pair of GPU columns, for prefill and for decode, and its best ratio by closed forms."""

    hardware: Hardware
    columns: PairColumns
    service: PdService
    instances: int
    best: RatioCapacity

    @property
    def usd_per_hour(self) -> float:
        """Return the dollars per hour of the best ratio, in the cheapest region of each column."""
        prices = self.hardware.usd_per_gpu_hour.min(axis=0)  # by column
        prefill_gpus = self.best.prefill * self.service.prefill.tp
        decode_gpus = self.best.decode * self.service.decode.tp
        return float(
            prefill_gpus * prices[self.columns.prefill] + decode_gpus * prices[self.columns.decode]
        )

    @property
    def usd_per_million_tokens(self) -> float:
        """Return the dollars per million input and output tokens at full load."""
        return 1e6 * self.usd_per_hour / (3600 * self.best.max_tps)


@dataclass(frozen=True, slots=True)
class PairRow:
    """A pair of GPU types with its best ratio by closed forms, and its price."""

    instances: int
    prefill_on: str
    decode_on: str
    prefill: int
    decode: int
    max_tps: float
    usd_per_hour: float
    usd_per_million_tokens: float

    @classmethod
    def of(cls, pair: Pair) -> PairRow:
        """Return the figures of a pair."""
        columns = pair.hardware.columns
        return cls(
            pair.instances, columns[pair.columns.prefill].label, columns[pair.columns.decode].label,
            pair.best.prefill, pair.best.decode, pair.best.max_tps, pair.usd_per_hour,
            pair.usd_per_million_tokens,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """The latency limits of a tier; None: no limit."""

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
class AggregatedCapacity:
    """The capacity of the same number of replicas with aggregated serving."""

    max_tps: float
    max_rps: float
    bound_by: str
    note: str = ""
