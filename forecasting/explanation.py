"""Explain in one sentence why a method was chosen."""

from __future__ import annotations

import numpy as np

from forecasting.forecast import PanelForecast
from forecasting.method_choice import MARGIN
from forecasting.rules.registry import ENSEMBLE, NAIVE

SMALLEST_SHARE = 0.05  # of an ensemble, that is named


def ensemble_shares(forecast: PanelForecast, row: int) -> str:
    """Return the methods of an ensemble with their shares, largest first; "" for other methods."""
    if forecast.methods[row] != ENSEMBLE:
        return ""
    shares = forecast.shares[:, row]
    order = [m for m in np.argsort(-shares, kind="stable") if shares[m] >= SMALLEST_SHARE]
    return ", ".join(f"{forecast.candidates[m]} {shares[m]:.0%}" for m in order)


def selection_reason(forecast: PanelForecast, row: int) -> str:
    """Return a sentence with the recent errors of the chosen and of the naive methods."""
    errors = dict(zip(forecast.candidates, forecast.errors[:, row], strict=True))
    chosen = forecast.methods[row]
    finite_errors = {name: error for name, error in errors.items() if np.isfinite(error)}
    if chosen not in finite_errors:
        return f"{chosen}: too little was seen to try any method."
    naive = [
        f"{name} {finite_errors[name]:.1%}"
        for name in NAIVE
        if name in finite_errors and name != chosen
    ]
    compared = f" ({', '.join(naive)})" if naive else ""
    if chosen == ENSEMBLE:
        why = f"no single method was {MARGIN:.0%} better"
    else:
        why = f"at least {MARGIN:.0%} better than all together"
    return (
        f"{chosen}: lately its peaks were off by {finite_errors[chosen]:.1%} of mean demand; "
        f"{why}{compared}."
    )
