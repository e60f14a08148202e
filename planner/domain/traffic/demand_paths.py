"""Draw the demand of a window from the joint distribution of its forecast."""

from __future__ import annotations

import numpy as np

from forecasting.demand import REQUESTS
from forecasting.joint_paths import joint_paths, panel_forecast
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from simulation.arrays import FloatArray


def demand_paths(
    traffic: Traffic,
    window: Window,
    method: str,
    count: int,
    seed: int,
    unit: str = REQUESTS,
    *,
    with_lead: bool = False,
) -> FloatArray:
    """Return ``count`` paths of demand, ``[count, keys of the demand, bins of the window]``.

    Amounts are in ``unit`` per bin, as of the window's first decision. ``with_lead`` puts the bins
    from that decision to the window's start before those of the window. Errors stay together over
    hours, models, regions and tiers. The paths include the scenario's growth. If the scenario
    describes the traffic, the description is the mean, and paths keep their ratio to the mean of
    the forecast. Raise SeriesTooShort if a series is too short for ``method``.
    """
    known_s = float(window.origins_s[0])
    bins = round(window.duration_s / window.bin_s)
    lead = 0 if window.ahead else round((window.start_s - known_s) / window.bin_s)
    keys = traffic.demand.keys
    series = [traffic.demand.series(i, unit) for i in range(len(keys))]
    series = [demand.window(demand.start_s, known_s) for demand in series]
    forecast = panel_forecast(series, method, window.bins_per_period, lead + bins)
    paths = joint_paths(forecast, count, seed)
    for i, key in enumerate(keys):
        described = traffic.described(key.model, key.region, {key.tier}, unit, window)
        if described is not None:
            mean, drawn = forecast.mean[i, lead:], paths[:, i, lead:]
            ratio = np.divide(drawn, mean, out=np.ones_like(drawn), where=mean > 0)
            paths[:, i, lead:] = described * ratio
    paths[:, :, lead:] *= window.grown
    return np.asarray(paths if with_lead else paths[:, :, lead:], np.float64)
