"""Draw requests for a window after the end of the trace, from the forecast.

No requests are observed there.
"""

from dataclasses import replace

import numpy as np

from forecasting.demand import REQUESTS
from forecasting.errors import SeriesTooShort
from forecasting.selection import forecaster
from planner.domain.random_streams import Stream, generator
from planner.domain.traffic.binned_source import trace_of_one_pool
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.sources import MAX_DRAWN, check_requests
from planner.domain.traffic.traffic import FORECAST, Traffic, merge
from planner.domain.traffic.window import Window
from simulation.arrays import FloatArray, Int32Array
from simulation.sizing.workload import Burstiness, unit_arrivals
from simulation.synthesis import EmpiricalLengths
from simulation.trace import PrefixBlocks, Prefixes, Trace

DEVIATIONS_BEYOND_MEAN = 6.0  # standard deviations of a Poisson count, drawn beyond the mean

DRAWN_NOTE = (
    "The window is after the traffic. Requests are drawn at random around the "
    "mean of the forecast, with the bursts of the traffic. SLO attainment ignores its error."
)


def requests_ahead(
    traffic: Traffic, window: Window, method: str, seed: int, *, cells: int = 1
) -> tuple[Trace, tuple[str, ...]]:
    """Draw the requests of a window from the mean forecast, and return them with notes.

    The mean is forecast for every model x region x tier. For traffic that the scenario describes,
    it is the described rate. It is multiplied by ``window.growth_factors``. Lengths are drawn from
    the model's own requests, and arrivals have the burstiness of its traffic. With ``cells`` above
    1, only the requests of one of that many equal cells (shards) of the fleet are drawn.

    A series that is too short for ``method`` uses the last-value forecast, with a note. Raise
    ScenarioError if more than ``MAX_DRAWN`` requests are expected.
    """
    rng = generator(seed, Stream.AHEAD)
    pieces: list[Trace] = []
    notes = [DRAWN_NOTE]
    expected = 0.0
    for i, key in enumerate(traffic.demand.keys):
        mean = traffic.described_demand(key, {key.tier}, REQUESTS, window)
        if mean is None:
            mean = _mean_ahead(traffic.demand, i, window, method, notes)
        mean = mean * window.growth_factors / cells
        expected += float(mean.sum())
        check_requests(expected, "horizon.duration_s", "horizon.duration_s or scale", MAX_DRAWN)
        pieces.append(_requests_around(traffic, traffic.codes(key), mean, window, rng))
    return merge(pieces, replay=FORECAST), tuple(notes)


def _requests_around(
    traffic: Traffic,
    codes: tuple[int, int, int],
    mean: FloatArray,
    window: Window,
    rng: np.random.Generator,
) -> Trace:
    """Draw requests around their ``mean [bins]``; ``codes`` are their model, region and tier."""
    m, _, _ = codes
    burstiness = traffic.arrivals[m] if traffic.arrivals else 1.0
    arrival = _arrivals(mean, window.bin_s, burstiness, rng)
    isl, osl, prefixes = draw_requests(traffic, m, len(arrival), rng)
    requests = trace_of_one_pool(traffic.measured, codes, window.start_s, arrival, isl, osl)
    return replace(requests, blocks=prefixes)


def _mean_ahead(
    demand: Demand, index: int, window: Window, method: str, notes: list[str]
) -> FloatArray:
    """Return the mean forecast of key number ``index`` in requests per bin of ``window``.

    If its history is too short for ``method``, forecast the last value, and append a note.
    """
    bins = round(window.duration_s / window.bin_s)
    series = demand.series(index, REQUESTS).since_launch(demand.end_s)
    try:
        fitted = forecaster(method, horizon_bins=window.bins_per_period).fit(series)
        return fitted.predict(bins).mean
    except SeriesTooShort:
        key = demand.keys[index]
        notes.append(f"{key} is too short for {method}: later times are drawn at its last value.")
        return forecaster("last-value").fit(series).predict(bins).mean


def draw_requests(
    traffic: Traffic, m: int, count: int, rng: np.random.Generator
) -> tuple[Int32Array, Int32Array, Prefixes | None]:
    """Draw input and output lengths of ``count`` requests from those of model ``m``.

    The third value says which prefixes their prompts share; None without prefix caching. Requests
    with prompt blocks keep the order of the trace, since their prefixes depend on it.
    """
    shared = traffic.shared[m] if traffic.shared else None
    if shared is None or not traffic.prefix_caching:
        return *EmpiricalLengths(*traffic.lengths[m]).sample(count, rng), None
    if isinstance(shared.blocks, PrefixBlocks):
        sequence = shared.repeat(count)
        return sequence.isl, sequence.osl, sequence.blocks
    rows = rng.integers(len(shared.isl), size=count)
    return shared.isl[rows], shared.osl[rows], shared.blocks.rows(rows)


def _arrivals(
    mean: FloatArray, bin_s: float, burstiness: Burstiness, rng: np.random.Generator
) -> FloatArray:
    """Return arrival times in seconds, with ``mean [bins]`` requests per bin on average."""
    expected = np.concatenate([[0.0], np.cumsum(mean)])  # requests up to each edge of bins
    total = float(expected[-1])
    if not total > 0:
        return np.zeros(0)
    # Arrivals of rate 1 are drawn up to the expected total. The arrival at u moves to the time by
    # which u requests are expected (time change of a point process).
    count = int(total + DEVIATIONS_BEYOND_MEAN * (total + 1.0) ** 0.5)
    unit_rate = unit_arrivals(count, burstiness, rng)
    while unit_rate[-1] < total:
        count = 2 * count
        unit_rate = unit_arrivals(count, burstiness, rng)
    edges = np.arange(len(expected)) * bin_s
    return np.asarray(np.interp(unit_rate[unit_rate < total], expected, edges), np.float64)
