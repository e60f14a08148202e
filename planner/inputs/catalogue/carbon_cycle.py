"""Model the daily, weekly and yearly cycle of a grid's carbon intensity by harmonic regression."""

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray

DAY_HARMONICS, YEAR_HARMONICS = 4, 2
DAYS = 365.25


def design(hour: npt.ArrayLike, weekend: npt.ArrayLike, day: npt.ArrayLike) -> FloatArray:
    """Return the regressors of the carbon cycle for each hour given, ``[n, 26]``.

    They are level, weekend, hour of the day (four harmonics) and day of the year (two harmonics).
    Two harmonics of the day also interact with the weekend and with the season.
    """
    hours = np.asarray(hour, np.float64)
    weekends = np.asarray(weekend, np.float64)
    daily = _waves(2 * np.pi * hours / 24, DAY_HARMONICS)
    yearly = _waves(2 * np.pi * np.asarray(day, np.float64) / DAYS, YEAR_HARMONICS)
    columns = [np.ones_like(hours), weekends, *daily, *yearly]
    columns += [weekends * wave for wave in daily[:4]]
    columns += [season * wave for season in yearly[:2] for wave in daily[:4]]
    return np.stack(columns, axis=-1)


def _waves(angle: FloatArray, harmonics: int) -> list[FloatArray]:
    """Return cosine and sine of 1 to ``harmonics`` times the angle (radians)."""
    return [wave(k * angle) for k in range(1, harmonics + 1) for wave in (np.cos, np.sin)]
