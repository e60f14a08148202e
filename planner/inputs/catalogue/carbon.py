"""Look up the carbon of electricity: yearly factors, daily cycles and users' series.

A cycle is a harmonic regression by hour of the day, weekend and day of the year.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from statistics import fmean

import numpy as np
import numpy.typing as npt

from planner.errors import CatalogueError
from planner.files.documents import csv_rows
from planner.inputs.catalogue.files import read
from planner.inputs.numbers import finite_number
from simulation.arrays import FloatArray
from simulation.fleet import HOURS
from simulation.performance.specs import Provenance

# Grid of locations that do not match a country of ``cycles`` by name.
CYCLE_OF = {"Germany": "DE", "England": "GB", "London": "GB", "Cardiff": "GB", "France": "FR",
            "Paris": "FR", "United Kingdom": "GB"}  # fmt: skip
MOST_G_PER_KWH = 100_000
DAY_HARMONICS, YEAR_HARMONICS = 4, 2
DAYS = 365.25


def design(hour: npt.ArrayLike, weekend: npt.ArrayLike, day: npt.ArrayLike) -> FloatArray:
    """Return the regressors of the carbon cycle, ``[..., 26]``.

    The arguments have one shape: the UTC hour, 1 on a weekend and else 0 (or a mean of these), and
    the day of the year. The regressors are level, weekend, hour (four harmonics) and day (two).
    Two harmonics of the hour also interact with the weekend and with the season.
    """
    hours = np.asarray(hour, np.float64)
    weekends = np.asarray(weekend, np.float64)
    daily_waves = _waves(2 * np.pi * hours / 24, DAY_HARMONICS)
    yearly_waves = _waves(2 * np.pi * np.asarray(day, np.float64) / DAYS, YEAR_HARMONICS)
    columns = [np.ones_like(hours), weekends, *daily_waves, *yearly_waves]
    # Cosine and sine: of two harmonics of the day, and of one of the year.
    day_waves, year_waves = daily_waves[:4], yearly_waves[:2]
    columns += [weekends * wave for wave in day_waves]
    columns += [season * wave for season in year_waves for wave in day_waves]
    return np.stack(columns, axis=-1)


def _waves(angle: FloatArray, harmonics: int) -> list[FloatArray]:
    """Return cosine and sine of 1 to ``harmonics`` times the angle (radians)."""
    return [wave(k * angle) for k in range(1, harmonics + 1) for wave in (np.cos, np.sin)]


@dataclass(frozen=True, slots=True)
class Grid:
    """The yearly mean carbon of a cloud region's or country's electricity."""

    name: str
    provider: str  # cloud provider; empty for a country
    location: str
    carbon_g_per_kwh: float
    provenance: Provenance
    cycle: str | None  # grid that gives the daily cycle, if known

    @property
    def years(self) -> str:
        """Return the years of the mean, in words."""
        return "2020 to 2022" if self.provider else "by country"

    @property
    def publisher(self) -> str:
        """Return who publishes the mean."""
        return self.provenance.source.partition(", from ")[2] or "Green Algorithms"


@cache
def grids() -> tuple[Grid, ...]:
    """Return every cloud region, and then every country, with a published yearly factor."""
    document = read("carbon")
    sources, cycles_known = document["sources"], document["cycles"]
    regions = (
        Grid(
            name, provider, location, float(grams),
            Provenance("published", f"{sources['regions']}, from {source}"),
            cycle=CYCLE_OF.get(location),
        )
        for provider, regions in document["regions"].items()
        for name, (location, grams, source) in regions.items()
    )  # fmt: skip
    published = Provenance("published", sources["countries"])
    countries = (
        Grid(
            code, "", location, float(grams), published,
            cycle=code if code in cycles_known else None,
        )
        for code, (location, grams) in document["countries"].items()
    )  # fmt: skip
    return (*regions, *countries)


def grid(name: str, provider: str = "") -> Grid:
    """Return the grid of a cloud region by its name, or of a country by its code (``DE``).

    Raise CatalogueError for an unknown name, or if several providers have a region of this name
    with different carbon and ``provider`` is "".
    """
    plain = name.lower().replace(" ", "")
    matching = [g for g in grids() if g.name.lower() == plain and provider in ("", g.provider)]
    if not matching:
        raise CatalogueError(
            f"Region {name!r} has no published carbon factor. Give carbon_g_per_kwh yourself."
        )
    if len({each.carbon_g_per_kwh for each in matching}) > 1:
        providers = ", ".join(each.provider for each in matching)
        raise CatalogueError(f"Region {name!r} is one of {providers}. Name the provider.")
    return matching[0]


def cycle_source() -> Provenance:
    """Return the source of the fitted cycles of carbon intensity."""
    return Provenance("modelled", read("carbon")["sources"]["cycles"])


def carbon_by_hour(name: str, mean_g_per_kwh: float) -> tuple[float, ...]:
    """Return 24 values by UTC hour in g CO2e per kWh, with this mean and the cycle of a grid."""
    return tuple(np.maximum(mean_g_per_kwh * _relative_values(name), 0.0).tolist())


@cache
def _relative_values(name: str) -> FloatArray:
    """Return a grid's carbon by UTC hour over its yearly mean, ``[24]``; many regions share it."""
    known_cycles = read("carbon")["cycles"]
    if name not in known_cycles:
        raise CatalogueError(
            f"Grid {name!r} has no daily cycle here. Choose from {', '.join(known_cycles)}, "
            "or give 24 values yourself."
        )
    # The model is linear in ``weekend``, so its mean over a week is at a weekend of 2/7.
    hours, days = np.meshgrid(np.arange(HOURS), np.arange(1, 366), indexing="ij")
    values = design(hours, np.full(hours.shape, 2 / 7), days)
    means = (values @ np.array(known_cycles[name]["coefficients"])).mean(axis=1)
    return np.asarray(means / means.mean(), np.float64)


def hourly_of_csv(text: str, name: str = "carbon.csv") -> tuple[float, ...]:
    """Return 24 means by UTC hour from a CSV with an ISO time first and g per kWh last.

    Raise CatalogueError for a row without them, and for an hour without a value.
    """
    grams_by_hour: dict[int, list[float]] = defaultdict(list)
    for number, row in csv_rows(text, name, CatalogueError):
        is_header = number == 1 and finite_number(row[-1] if row else None) is None
        if not row or is_header:
            continue
        try:
            time, grams = datetime.fromisoformat(row[0].strip()), float(row[-1])
            utc_time = time.astimezone(UTC) if time.tzinfo else time
        except (ValueError, OverflowError):  # OverflowError: beyond year 1 or 9999 in UTC
            raise CatalogueError(
                f"{name}, line {number}: expected a time such as 2024-05-01T13:00:00Z and a number "
                f"in g CO2e per kWh, not {','.join(row)[:80]!r}."
            ) from None
        if not 0 <= grams <= MOST_G_PER_KWH:
            raise CatalogueError(
                f"{name}, line {number}: {row[-1]} g per kWh is not between 0 and "
                f"{MOST_G_PER_KWH:,}."
            )
        grams_by_hour[utc_time.hour].append(grams)
    missing = [str(hour) for hour in range(HOURS) if hour not in grams_by_hour]
    if missing:
        raise CatalogueError(
            f"{name}: no value for UTC hour {', '.join(missing[:5])}; a whole day is needed."
        )
    return tuple(fmean(grams_by_hour[hour]) for hour in range(HOURS))
