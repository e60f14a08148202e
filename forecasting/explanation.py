"""Name the methods that were compared, and give the reason of the choice."""

import numpy as np

from forecasting.forecast import MethodScore, PanelForecast
from forecasting.method_choice import MARGIN
from forecasting.rules.registry import ARIMA, ENSEMBLE, NAIVE

SMALLEST_SHARE = 0.05  # smallest weight in an ensemble that is named


def order_in_words(forecast: PanelForecast, row: int) -> str:
    """Return an ARIMA's order or an ensemble's weights as text; "" for other methods."""
    if forecast.methods[row] == ARIMA or forecast.candidates[0] == "arima-fourier":
        return forecast.orders[row]
    if forecast.methods[row] != ENSEMBLE:
        return ""
    shares = forecast.shares[:, row]
    order = [m for m in np.argsort(-shares, kind="stable") if shares[m] >= SMALLEST_SHARE]
    return ", ".join(f"{forecast.candidates[m]} {shares[m]:.0%}" for m in order)


def compared_methods(forecast: PanelForecast, row: int) -> tuple[MethodScore, ...]:
    """Return the methods whose recent errors are known, smallest error first."""
    shares, end_shares = forecast.shares[:, row].tolist(), forecast.end_shares[:, row].tolist()
    # The last candidate is the ensemble, which has no share in itself; it counts as whole.
    scores = [
        MethodScore(name, error, share, end_share, name == forecast.methods[row])
        for name, error, share, end_share in zip(
            forecast.candidates,
            forecast.errors[:, row].tolist(),
            (*shares, 1.0),
            (*end_shares, 1.0),
            strict=True,
        )
        if np.isfinite(error)
    ]
    return tuple(sorted(scores, key=lambda score: score.error))


def selection_reason(forecast: PanelForecast, row: int) -> str:
    """Return a sentence on the recent errors of the chosen, next best and naive methods."""
    chosen = forecast.methods[row]
    scores = {score.method: score for score in compared_methods(forecast, row)}
    if chosen not in scores:
        return f"{chosen}: too little was seen to try any method."
    if chosen == ENSEMBLE:
        why = f"no single method was {MARGIN:.0%} better"
    else:
        why = f"at least {MARGIN:.0%} better than all together"
    best = next((name for name in scores if name != chosen), "")
    rivals = dict.fromkeys((best, *(name for name in NAIVE if name in scores and name != chosen)))
    compared = ", ".join(f"{name} {scores[name].error:.1%}" for name in rivals if name)
    return (
        f"{chosen}: lately its peaks were off by {scores[chosen].error:.1%} of mean demand; {why}"
        f"{f' ({compared})' if compared else ''}."
    )
