"""Test whether recent forecasts are worse than earlier ones.

A one-sided CUSUM (Page 1954) on conformal ranks. The absolute log errors of recent peaks are ranked
among earlier ones. Ranks become normal scores, and the amounts of scores above REFERENCE are
summed. The limit of the sum follows from ALARMS by Siegmund's formula for the time between false
alarms (1985). In simulations, exchangeable errors raise 0.5 to 1.1% false alarms (8 recent against
24 earlier windows up to 84 against 252). Correlated errors raise more: 4% for the last value on
white noise. Recent windows are the last eighth, in whole days if there are enough, so that nights
are compared with days too. There is only a drift if the WAPE of recent peaks is higher too, so that
only errors that matter count.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray
from forecasting.backtest import wape
from forecasting.conformal import log_ratio_scores
from forecasting.past_forecasts import PastPeaks

FALSE_ALARM_SHARE = 0.01  # share of false alarms for exchangeable errors
CUSUM_REFERENCE = 0.5  # standard deviations: rises of twice as much are detected best
RECENT_SHARE = 1 / 8  # share of the windows that are recent
MAX_WHOLE_DAYS_SHARE = 1 / 3  # largest share of the windows that whole days may take
MIN_WINDOWS = 8  # recent windows; earlier ones must be three times as many
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Drift:
    """Result of the test, with a sentence for the user."""

    flagged: bool
    since_s: float | None  # approximate begin, UTC epoch seconds; None without a drift
    sentence: str


def detect_drift(past: PastPeaks) -> Drift:
    """Return whether the forecast errors of recent windows exceed those of the earlier ones."""
    seen = ~np.isnan(past.actual) & ~np.isnan(past.forecast)
    starts, actual, forecast = past.starts_s[seen], past.actual[seen], past.forecast[seen]
    is_recent = _recent_windows(starts)
    recent, earlier = int(is_recent.sum()), int((~is_recent).sum())
    if recent < MIN_WINDOWS or earlier < 3 * MIN_WINDOWS:
        return Drift(False, None, f"{len(starts)} past windows are too few to see a drift.")
    if not actual[is_recent].any() or not actual[~is_recent].any():
        return Drift(False, None, "Past windows without any demand show no drift.")
    recent_wape = wape(actual[is_recent], forecast[is_recent])
    earlier_wape = wape(actual[~is_recent], forecast[~is_recent])
    figures = (
        f"Peak WAPE of the last {recent} windows: {recent_wape:.1%}, of the {earlier} before: "
        f"{earlier_wape:.1%}"
    )
    errors = np.abs(log_ratio_scores(actual, forecast, np.array(past.scale)))
    normal_scores = _normal_scores(errors[is_recent], errors[~is_recent])
    cusum, begin = _cusum(normal_scores)
    if cusum <= _alarm_limit(recent) or recent_wape <= earlier_wape:
        return Drift(False, None, f"{figures}. No drift.")
    since_s = float(starts[earlier + begin])
    return Drift(True, since_s, f"{figures}. Chance does not explain this rise.")


def _recent_windows(starts: FloatArray) -> BoolArray:
    """Return the mask of the recent windows among those that begin at ``starts`` (epoch s).

    About the last eighth is recent. It is rounded up to whole days if these are at most the share
    MAX_WHOLE_DAYS_SHARE of all windows.
    """
    count = len(starts)
    recent_count = max(MIN_WINDOWS, round(RECENT_SHARE * count))
    if count > 1:
        stride_s = float(np.median(np.diff(starts)))
        whole_days_s = np.ceil(recent_count * stride_s / DAY_S) * DAY_S
        if whole_days_s <= MAX_WHOLE_DAYS_SHARE * count * stride_s:
            return np.asarray(starts > starts[-1] - whole_days_s)
    return np.arange(count) >= count - recent_count


def _normal_scores(errors: FloatArray, before: FloatArray) -> FloatArray:
    """Return the normal score of each error's rank among the errors ``before`` (ties: the mean)."""
    ordered = np.sort(before)
    smaller = np.searchsorted(ordered, errors, side="left")
    smaller_or_equal = np.searchsorted(ordered, errors, side="right")
    rank = (smaller + smaller_or_equal) / 2 + 0.5
    return np.asarray(scipy.special.ndtri(rank / (len(before) + 1)))


def _cusum(normal_scores: FloatArray) -> tuple[float, int]:
    """Return the CUSUM of ``normal_scores`` scores, and the index of the score at which it begins.

    The CUSUM is the largest sum of consecutive scores, less CUSUM_REFERENCE each; at least 0.
    """
    sums = np.concatenate([[0.0], np.cumsum(normal_scores - CUSUM_REFERENCE)])  # before each score
    rise = sums - np.minimum.accumulate(sums)  # largest sum of scores that ends here
    end = int(np.argmax(rise))
    return float(rise[end]), int(np.argmin(sums[: end + 1]))


def _alarm_limit(windows: int) -> float:
    """Return the limit that the CUSUM of ``windows`` scores exceeds by chance.

    Solves Siegmund's mean time to an alarm, ``(exp(2 k b) - 2 k b - 1) / (2 k^2)``, for ``b``,
    which is the limit plus 1.166. ``k`` is CUSUM_REFERENCE.
    """
    windows_per_alarm = windows / FALSE_ALARM_SHARE
    two_k = 2 * CUSUM_REFERENCE
    b = 1.0  # iterate b = log(...) / 2k, which converges from any start
    for _ in range(60):
        b = np.log1p(two_k * b + windows_per_alarm * two_k**2 / 2) / two_k
    return float(b - 1.166)
