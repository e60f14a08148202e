"""Define catalogue facts beyond the specifications of ``simulation.performance``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation.performance.specs import KINDS, Provenance

ProfileKey = tuple[str, str, int]  # model, GPU type, GPUs per instance


@dataclass(frozen=True, slots=True)
class CatalogueRegion:
    """A region of a cloud provider, with prices where they are known.

    ``sources`` has the keys ``carbon_g_per_kwh``, ``pue``, every GPU type with an on-demand price,
    and ``spot GPU`` for spot prices. ``carbon_hourly`` has 24 yearly means by UTC hour if the
    grid's cycle is known.
    """

    name: str
    provider: str
    location: str
    carbon_g_per_kwh: float  # yearly mean of the grid
    pue: float
    usd_per_gpu_hour: Mapping[str, float]  # on demand, by GPU type
    sources: Mapping[str, Provenance]
    spot_usd_per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    carbon_hourly: tuple[float, ...] | None = None
    cycle: str | None = None  # grid that gives the daily cycle of ``carbon_hourly``

    @property
    def provenance(self) -> Provenance:
        """Return the least certain kind and every distinct source of the region's figures."""
        kind = max((source.kind for source in self.sources.values()), key=KINDS.index)
        texts = dict.fromkeys(source.source for source in self.sources.values())
        return Provenance(kind, "; ".join(texts))


@dataclass(frozen=True, slots=True)
class Price:
    """The hourly price of one GPU. None: no such offer is known."""

    provider: str
    region: str
    gpu: str
    usd_per_gpu_hour: float | None  # on demand; null: no known offer
    spot_usd_per_gpu_hour: float | None  # null: no known offer
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Grid:
    """The yearly mean carbon of a cloud region's or country's electricity."""

    name: str
    provider: str  # cloud provider; empty for a country
    location: str
    carbon_g_per_kwh: float
    provenance: Provenance
    cycle: str | None  # grid that gives the daily cycle, if known


@dataclass(frozen=True, slots=True)
class Cycle:
    """The cycle of a grid's carbon intensity by hour, weekday and season.

    Values are relative to the yearly mean. Errors are mean absolute percentage errors, as
    fractions. ``mape`` is of the fit, and ``mape_unseen`` of months excluded from the fit.
    ``mape_constant`` is the error of using the yearly mean for every hour.
    """

    name: str
    coefficients: tuple[float, ...]
    rows: int
    r2: float
    mape: float
    mape_unseen: float
    mape_constant: float
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """Sources of a built-in profile's numbers. The errors are in the profile's checks.

    ``intervals`` are the 95% confidence intervals of alpha, beta, gamma and delta by name, in
    seconds. Parameters that were taken from a source without a fit are absent.
    """

    decode: Provenance
    prefill: Provenance
    limits: Provenance  # max_batch and max_batch_tokens
    intervals: Mapping[str, tuple[float, float]]
