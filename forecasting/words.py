"""Why a method was chosen, in words."""

from __future__ import annotations

import numpy as np

from forecasting.choice import MARGIN
from forecasting.forecast import PanelForecast
from forecasting.rules.registry import ENSEMBLE, NAIVE

SHOWN = 0.05  # least share of an ensemble that is named


def made_of(forecast: PanelForecast, row: int) -> str:
    """What an ensemble rests on, largest share first; "" of any other method."""
    if forecast.methods[row] != ENSEMBLE:
        return ""
    shares = forecast.shares[:, row]
    order = [m for m in np.argsort(-shares, kind="stable") if shares[m] >= SHOWN]
    return ", ".join(f"{forecast.candidates[m]} {shares[m]:.0%}" for m in order)


def chosen_because(forecast: PanelForecast, row: int) -> str:
    """One sentence with the recent errors of the chosen method and of those it was chosen over."""
    errors = dict(zip(forecast.candidates, forecast.errors[:, row], strict=True))
    chosen = forecast.methods[row]
    known = {name: error for name, error in errors.items() if np.isfinite(error)}
    if chosen not in known:
        return f"{chosen}: too little was seen to try any method."
    naive = [f"{name} {known[name]:.1%}" for name in NAIVE if name in known and name != chosen]
    beside = f" ({', '.join(naive)})" if naive else ""
    if chosen == ENSEMBLE:
        why = f"no single method was {MARGIN:.0%} better"
    else:
        why = f"at least {MARGIN:.0%} better than all together"
    return (
        f"{chosen}: lately its peaks were off by {known[chosen]:.1%} of mean demand; {why}{beside}."
    )
