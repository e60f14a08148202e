"""Whether forecasts have of late been worse than before.

Absolute errors of past windows' peaks, as log ratios: each of late is ranked among those before,
the ranks become normal scores, and what of these is above REFERENCE is summed up for as long as the
sum stays above 0 (one-sided CUSUM, Page 1954, on conformal ranks). The sum at which it is a drift
follows from ALARMS by Siegmund's formula for the time between false alarms (1985): of series whose
errors are exchangeable, as those of a stationary series are that is forecast as well as can be, so
many are flagged by chance (0.5 to 1.1% by simulation, from 8 windows against 24 to 84 against 252);
errors that hang together are flagged more often (last value on white noise, where
each bin errs twice: four in a hundred). Of late is the last eighth, in whole days where
there are days enough, so that nights are not held against days. Where ranks say worse and the sum
of errors over demand does not, nothing is flagged: what has become worse is then of no weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray
from forecasting.backtest import wape
from forecasting.conformal import scores
from forecasting.said import Past

ALARMS = 0.01  # share of series without a drift that are flagged, errors being exchangeable
REFERENCE = 0.5  # standard deviations, of a normal score: what rises by twice as much is found best
RECENT = 1 / 8  # of the windows
WHOLE = 1 / 3  # of the windows, that a whole number of days may take up
FEWEST = 8  # windows of late, and three times as many before
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Drift:
    flagged: bool
    since_s: float | None  # about where it began, UTC epoch seconds; None where there is none
    sentence: str


def drift(past: Past) -> Drift:
    """Whether the windows of late were forecast worse than those before them."""
    seen = ~np.isnan(past.came) & ~np.isnan(past.told)
    starts, came, forecast = past.starts_s[seen], past.came[seen], past.told[seen]
    late = _late(starts)
    recent, before = int(late.sum()), int((~late).sum())
    if recent < FEWEST or before < 3 * FEWEST:
        return Drift(False, None, f"{len(starts)} past windows are too few to see a drift.")
    errors = np.abs(scores(came, forecast, np.array(past.scale)))
    now, then = (wape(came[None, part], forecast[None, part]) for part in (late, ~late))
    summed, began = _cusum(_normal_scores(errors[late], errors[~late]))
    what = (
        f"Peaks of the last {recent} windows were off by {now:.1%}, of the {before} before by "
        f"{then:.1%}"
    )
    if summed > _limit(recent) and now > then:
        since = float(starts[before + began])
        return Drift(True, since, f"{what}: more, for longer, than chance explains.")
    return Drift(False, None, f"{what}: no drift.")


def _late(starts: FloatArray) -> BoolArray:
    """Which windows are of late."""
    count = len(starts)
    if not count:
        return np.zeros(0, bool)
    size = max(FEWEST, round(RECENT * count))
    apart = float(np.median(np.diff(starts))) if count > 1 else DAY_S
    days = np.ceil(size * apart / DAY_S) * DAY_S
    if days <= WHOLE * count * apart:
        return np.asarray(starts > starts[-1] - days)
    return np.arange(count) >= count - size


def _normal_scores(errors: FloatArray, before: FloatArray) -> FloatArray:
    """Of each error its rank among those before as a standard normal: 0 in the middle."""
    ordered = np.sort(before)
    below = np.searchsorted(ordered, errors, side="left")
    upto = np.searchsorted(ordered, errors, side="right")
    return np.asarray(scipy.special.ndtri(((below + upto) / 2 + 0.5) / (len(before) + 1)))


def _cusum(normal: FloatArray) -> tuple[float, int]:
    """The largest sum of scores above the reference since it last was 0, and where that began."""
    path = np.concatenate([[0.0], np.cumsum(normal - REFERENCE)])
    least = np.minimum.accumulate(path)
    top = int(np.argmax(path - least))
    return float(path[top] - least[top]), int(np.argmin(path[: top + 1]))


def _limit(windows: int) -> float:
    """The sum that so many windows pass by chance in the share ALARMS: Siegmund's mean time to an
    alarm, ``(exp(2 k b) - 2 k b - 1) / (2 k^2)`` with ``b`` 1.166 above the limit, solved for b."""
    apart = windows / ALARMS
    rise = 2 * REFERENCE
    b = 1.0
    for _ in range(60):
        b = np.log1p(rise * b + apart * rise**2 / 2) / rise
    return float(b - 1.166)
