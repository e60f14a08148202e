"""Percentiles of many numbers, at a fifth of the cost of numpy's, to the same bytes.

Numpy places all ranks at once, which its fast selection does not; here each rank is placed by
itself, above the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray


def percentiles(values: FloatArray, shares: Sequence[float]) -> list[float]:
    """At ``shares`` of 100 in rising order, linear between ranks; ``values`` are one at least, all
    finite."""
    values_at, above, below = [], values, 0  # so many are below what is ``above``
    for share in shares:
        place = (len(values) - 1) * (share / 100)
        rank = int(place)
        above, below = np.partition(above, rank - below)[rank - below :], rank
        low = float(above[0])
        high = float(above[1:].min()) if len(above) > 1 else low
        part, step = place - rank, high - low
        values_at.append(low + step * part if part < 0.5 else high - step * (1 - part))
    return values_at


def quantile(values: FloatArray, share: float) -> float:
    """Of those that are finite; NaN where none is."""
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else float("nan")
