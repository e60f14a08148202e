"""Draw requests for a window after the end of the trace, from the forecast.

No requests are observed there.
"""

from __future__ import annotations

import numpy as np

from forecasting.demand import REQUESTS
from forecasting.errors import SeriesTooShort
from forecasting.selection import forecaster
from planner.domain.random_streams import (
    Stream,
    generator,
)
from planner.domain.traffic.binned import all_from
from planner.domain.traffic.sources import (
    MAX_DRAWN,
    check_requests,
)
from planner.domain.traffic.traffic import (
    FORECAST,
    Traffic,
    merge,
)
from planner.domain.traffic.window import Window
from simulation.synthesis import EmpiricalLengths
from simulation.trace import Trace

DRAWN = (
    "Nothing of what follows the traffic is known yet: requests are drawn at random around the "
    "mean of the forecast, so neither its error nor bursts within a bin are in what is in time."
)


def requests_ahead(
    traffic: Traffic, window: Window, method: str, seed: int, *, cells: int = 1
) -> tuple[Trace, tuple[str, ...]]:
    """Return Poisson arrivals at the forecast mean, and notes for the result.

    The mean is forecast for every model x region x tier. For traffic that the scenario describes,
    the mean is the described rate. It is multiplied by ``Window.grown``. Lengths are drawn from
    the model's own requests. With ``cells`` above 1, only one of that many equal parts is drawn.

    A series that is too short for ``method`` is drawn at the last-value forecast, with a note.
    Raise ScenarioError if more than ``MAX_DRAWN`` requests are expected.
    """
    rng = generator(seed, Stream.AHEAD)
    bins = round(window.duration_s / window.bin_s)
    pieces: list[Trace] = []
    notes = [DRAWN]
    expected = 0.0
    for i, key in enumerate(traffic.demand.keys):
        series = traffic.demand.series(i, REQUESTS)
        mean = traffic.described(key.model, key.region, {key.tier}, REQUESTS, window)
        try:
            if mean is None:
                model = forecaster(method, horizon_bins=window.bins_per_period)
                mean = model.fit(series).predict(bins).mean
        except SeriesTooShort:
            mean = forecaster("last-value").fit(series).predict(bins).mean
            notes.append(
                f"{key} is too short for {method}: what follows it is drawn at its last value."
            )
        mean = mean * window.grown / cells
        expected += float(mean.sum())
        check_requests(expected, "horizon.duration_s", "horizon.duration_s or scale", MAX_DRAWN)
        counts = rng.poisson(mean)
        edges = np.repeat(np.arange(bins) * window.bin_s, counts)
        arrival = np.sort(edges + rng.random(len(edges)) * window.bin_s)
        m = traffic.models.index(key.model)
        isl, osl = EmpiricalLengths(*traffic.lengths[m]).sample(len(arrival), rng)
        place = m, traffic.regions.index(key.region), traffic.tiers.index(key.tier)
        pieces.append(all_from(traffic.measured, place, window.start_s, arrival, isl, osl))
    return merge(pieces, replay=FORECAST), tuple(notes)
