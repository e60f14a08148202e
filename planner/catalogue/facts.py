"""What the catalogue knows beyond the specifications of ``simulation.performance``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation.performance.specs import Provenance

KINDS = ("measured", "published", "modelled", "assumed")  # from the surest to the least sure
ProfileKey = tuple[str, str, int]  # model, GPU type, GPUs of one instance


@dataclass(frozen=True, slots=True)
class CatalogueRegion:
    """A region of a cloud provider; only GPU types with a known price are priced.

    ``sources`` has the keys ``carbon_g_per_kwh``, ``pue``, one per GPU type priced on demand and
    ``spot GPU`` for those with a spot price. ``carbon_hourly`` has 24 values by UTC hour, yearly
    means, where the grid's cycle is known.
    """

    name: str
    provider: str
    location: str
    carbon_g_per_kwh: float  # of the grid, yearly mean
    pue: float
    usd_per_gpu_hour: Mapping[str, float]  # on demand, by GPU type
    sources: Mapping[str, Provenance]
    spot_usd_per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    carbon_hourly: tuple[float, ...] | None = None
    cycle: str | None = None  # the grid whose daily cycle ``carbon_hourly`` follows

    @property
    def provenance(self) -> Provenance:
        """All figures of the region in one: the least sure kind, and every source once."""
        kind = max((source.kind for source in self.sources.values()), key=KINDS.index)
        texts = dict.fromkeys(source.source for source in self.sources.values())
        return Provenance(kind, "; ".join(texts))


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one GPU costs; None where no such offer is known."""

    provider: str
    region: str
    gpu: str
    usd_per_gpu_hour: float | None  # on demand
    spot_usd_per_gpu_hour: float | None
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Grid:
    """Carbon of a cloud region's or a country's electricity, as a yearly mean."""

    name: str
    provider: str  # of the cloud; empty for a country
    location: str
    carbon_g_per_kwh: float
    provenance: Provenance
    cycle: str | None  # the grid whose daily cycle it follows, where that is known


@dataclass(frozen=True, slots=True)
class Cycle:
    """How a grid's carbon intensity moves with hour, weekday and season, over its yearly mean.

    The errors are mean absolute ones over the observed value, as fractions: of the fit, of months
    left out of it, and of assuming the yearly mean at every hour.
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
    """Where the numbers of a built-in profile come from; its errors are the profile's own checks.

    ``intervals``: 95% confidence of alpha, beta, gamma and delta in seconds, by their names; those
    that were not fitted but carried over are absent.
    """

    decode: Provenance
    prefill: Provenance
    limits: Provenance  # of max_batch and max_batch_tokens
    intervals: Mapping[str, tuple[float, float]]
