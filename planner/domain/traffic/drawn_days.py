"""Draw random paths of demand from the forecast, and turn them into days to simulate.

A path is one possible course of the demand over time: requests per bin for each key (model, region
and tier).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from forecasting.joint_paths import joint_paths, panel_forecast
from planner.domain.random_streams import Stream, generator
from planner.domain.traffic.binned_source import trace_of_one_pool
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.forecast_requests import draw_requests
from planner.domain.traffic.forecasts import lead_bins
from planner.domain.traffic.prefixes import SESSION_TOKENS, blocks_of_sessions
from planner.domain.traffic.sessions import Groups
from planner.domain.traffic.traffic import AMOUNTS, Traffic, merge
from planner.domain.traffic.window import HOUR_S, Window
from simulation.arrays import BoolArray, FloatArray, IntArray, ratio
from simulation.trace import PrefixBlocks, Trace


@dataclass(frozen=True, slots=True, eq=False)
class DrawnDays:
    """Random paths of demand, from the first decision of a window to its end.

    ``requests [paths, keys, bins]`` are requests per bin. The bins have the width ``Demand.bin_s``
    and begin at ``start_s``.
    """

    start_s: float
    requests: FloatArray


def draw_days(traffic: Traffic, window: Window, method: str, paths: int, seed: int) -> DrawnDays:
    """Draw ``paths`` equally likely courses of the demand over ``window``.

    They begin at the first decision on the window, which may be before its start.
    """
    requests = demand_paths(traffic, window, method, paths, seed)
    return DrawnDays(window.first_decision_s, requests)


def busiest_hours(demand: Demand, window: Window, days: DrawnDays) -> FloatArray:
    """Return the tokens (input plus output) in the busiest hour of each path, ``[paths]``.

    A path is one random course of the demand in ``window``. Paths only count requests. Each request
    has the mean tokens of its key in ``demand``.
    """
    requests = np.nansum(demand.requests, axis=1)
    tokens = np.nansum(demand.input_tokens, axis=1) + np.nansum(demand.output_tokens, axis=1)
    bins_before = round((window.start_s - days.start_s) / window.bin_s)
    in_window = days.requests[:, :, bins_before:]
    # Tokens [path, bin] of all keys together.
    path_tokens = np.einsum("k,pkb->pb", ratio(tokens, requests, 1.0), in_window)
    bins_per_hour = min(max(1, round(HOUR_S / window.bin_s)), path_tokens.shape[1])
    # The sum of each hour is the difference of two cumulative sums.
    total = np.cumsum(np.pad(path_tokens, ((0, 0), (1, 0))), axis=1)
    tokens_of_hours = total[:, bins_per_hour:] - total[:, :-bins_per_hour]
    return np.asarray(tokens_of_hours.max(axis=1))


def with_path(demand: Demand, days: DrawnDays, path: int) -> Demand:
    """Return ``demand`` with its bins from ``days.start_s`` on replaced by path number ``path``.

    Tokens per request are the mean of the bins before. Bins after the path are dropped. If the path
    begins after the end of ``demand``, return ``demand`` unchanged.
    """
    first = round((days.start_s - demand.start_s) / demand.bin_s)
    bins = demand.bins - first
    if bins <= 0:
        return demand
    drawn = days.requests[path][:, :bins]
    requests = np.nansum(demand.requests[:, :first], axis=1)
    arrays: dict[str, Any] = {}
    for name in AMOUNTS:  # for requests themselves, the ratio is 1
        before = getattr(demand, name)[:, :first]
        per_request = ratio(np.nansum(before, axis=1), requests, 1.0)
        arrays[name] = np.concatenate([before, drawn * per_request[:, None]], axis=1)
    return replace(demand, **arrays)


def requests_of_path(
    traffic: Traffic, window: Window, days: DrawnDays, path: int, pattern: Trace, seed: int,
    *, cells: int = 1,
) -> Trace:  # fmt: skip
    """Return requests in ``window`` with the counts of path number ``path``.

    ``pattern`` are the requests of another window of equal length. They are left out or repeated to
    match the counts, so that bursts, lengths and prefixes keep their structure. In bins without a
    request of the pattern, arrivals are uniform and lengths are drawn from the model's requests.
    With ``cells`` above 1, return the traffic of one of so many equal cells (shards) of the fleet.
    """
    rng = generator(seed, Stream.DRAWN, path)
    bins_before = round((window.start_s - days.start_s) / window.bin_s)
    expected = days.requests[path][:, bins_before:] / cells
    # Round at random, up as often as the fraction says.
    counts = np.floor(expected + rng.random(expected.shape)).astype(np.int64)  # [key, bin]
    pieces: list[Trace] = []
    for key, key_counts in zip(traffic.demand.keys, counts, strict=True):
        pieces += _requests_of_key(traffic, pattern, key, key_counts, window, rng)
    pieces = [piece for piece in pieces if len(piece)]
    if not pieces:
        return replace(pattern.rows(slice(0)), start_s=window.start_s, provenance="drawn")
    return _merged_with_prefixes(pieces, pattern)


def _requests_of_key(
    traffic: Traffic,
    pattern: Trace,
    key: SeriesKey,
    counts: IntArray,
    window: Window,
    rng: np.random.Generator,
) -> list[Trace]:
    """Return about ``counts [bins]`` requests: of ``pattern``, and uniform where it has none."""
    model, region, tier = codes = traffic.codes(key)
    of_key = (pattern.model == model) & (pattern.region == region) & (pattern.tier == tier)
    rows = np.flatnonzero(of_key)
    bins = len(counts)
    bin_of = (pattern.arrival_s[rows] // window.bin_s).astype(np.int64)
    bin_of = np.minimum(bin_of, bins - 1)
    pieces = [_resample_requests(pattern, rows, bin_of, counts, window, rng)]
    missing = np.where(np.bincount(bin_of, minlength=bins) == 0, counts, 0)
    if missing.any():
        pieces.append(_uniform_requests(traffic, pattern, codes, missing, window, rng))
    return pieces


def _merged_with_prefixes(pieces: list[Trace], pattern: Trace) -> Trace:
    """Return one trace of all ``pieces``, which were drawn from the requests ``pattern``.

    If a piece has no prompt blocks, the result has none. Blocks of sessions are derived again.
    """
    blocks = pattern.blocks if isinstance(pattern.blocks, PrefixBlocks) else None
    if blocks and any(piece.blocks is None for piece in pieces):
        pieces = [replace(piece, blocks=None) for piece in pieces]
    trace = merge(pieces, "drawn from the forecast")
    from_sessions = blocks is not None and blocks.block_tokens == SESSION_TOKENS
    if pattern.session is None or not from_sessions:
        return trace
    # Copies of a session are separate sessions, so they must share no blocks.
    return replace(trace, blocks=blocks_of_sessions(trace))


def _uniform_requests(
    traffic: Traffic,
    pattern: Trace,
    codes: tuple[int, int, int],
    counts: IntArray,
    window: Window,
    rng: np.random.Generator,
) -> Trace:
    """Return ``counts [bins]`` requests that arrive uniformly in their bins.

    ``codes`` are the indices of their model, region and tier. Lengths are drawn from the requests
    of the model. Names are those of ``pattern``.
    """
    bin_start_s = np.repeat(np.arange(len(counts)) * window.bin_s, counts)
    arrival = np.sort(bin_start_s + rng.random(len(bin_start_s)) * window.bin_s)
    isl, osl, prefixes = draw_requests(traffic, codes[0], len(arrival), rng)
    requests = trace_of_one_pool(pattern, codes, window.start_s, arrival, isl, osl)
    return replace(requests, blocks=prefixes)


def _resample_requests(
    pattern: Trace,
    rows: IntArray,
    bin_of: IntArray,
    counts: IntArray,
    window: Window,
    rng: np.random.Generator,
) -> Trace:
    """Return about ``counts [bins]`` requests, drawn in each bin from those of ``pattern``.

    Only the requests number ``rows`` of the pattern are drawn, and ``bin_of`` is the bin of each. A
    session is kept, repeated or left out as a whole. It counts in the bin in which it begins.
    """
    bins, arrived = len(counts), pattern.arrival_s[rows]
    session = None if pattern.session is None else pattern.session[rows]
    groups = Groups.of(session, len(rows))  # sessions, and single requests without one
    # Draw groups by the bin in which they begin.
    bin_of_group = bin_of[groups.first_requests]
    groups_in_bin = np.bincount(bin_of_group, minlength=bins)
    to_draw = counts if session is None else _groups_to_draw(counts, bin_of, groups_in_bin, rng)
    drawn, is_repeat = _draw_groups(bin_of_group, groups_in_bin, to_draw, rng)
    original_begin_s = arrived[groups.first_requests[drawn]]
    begin_s = _move_repeats(original_begin_s, is_repeat, bin_of_group[drawn], window.bin_s, rng)
    # Copy the requests of these groups; ``original`` is an index in ``rows``.
    arrival_s, original, new_session = groups.copies(arrived, drawn, begin_s)
    in_order = np.argsort(arrival_s, kind="stable")
    in_window = arrival_s[in_order] < bins * window.bin_s  # leaves out late turns of sessions
    in_order = in_order[in_window]
    new_ids = None if session is None else new_session[in_order]
    drawn_rows = rows[original[in_order]]
    resampled = pattern.select_with_arrivals(drawn_rows, arrival_s[in_order], new_ids)
    return replace(resampled, start_s=window.start_s)


def _groups_to_draw(
    counts: IntArray, bin_of: IntArray, sessions_in_bin: IntArray, rng: np.random.Generator
) -> IntArray:
    """Return how many sessions to draw for ``counts`` requests, ``[bins]``, rounded at random.

    ``bin_of`` is the bin of each request, and ``sessions_in_bin [bins]`` counts the sessions.
    """
    requests_in_bin = np.bincount(bin_of, minlength=len(counts))
    expected = sessions_in_bin * ratio(counts, requests_in_bin, 0.0)
    return np.floor(expected + rng.random(len(counts))).astype(np.int64)


def _move_repeats(
    begin_s: FloatArray,
    is_repeat: BoolArray,
    bin_of: IntArray,
    bin_s: float,
    rng: np.random.Generator,
) -> FloatArray:
    """Return the begins of groups, with repeats a twentieth of a bin or less from the original.

    They stay in their bin, which has the number ``bin_of [groups]`` and lasts ``bin_s`` seconds.
    """
    jitter_s = rng.uniform(-0.05, 0.05, len(begin_s)) * bin_s
    bin_start_s = bin_of * bin_s
    moved = np.where(is_repeat, begin_s + jitter_s, begin_s)
    return np.clip(moved, bin_start_s, bin_start_s + bin_s * (1 - 1e-9))


def _draw_groups(
    bin_of: IntArray, groups_in_bin: IntArray, to_draw: IntArray, rng: np.random.Generator
) -> tuple[IntArray, BoolArray]:
    """Return the indices of ``to_draw [bins]`` groups, and which of them are repeats.

    ``bin_of`` is the bin of each group, and ``groups_in_bin [bins]`` counts the groups. All groups
    of a bin are drawn equally often. To reach ``to_draw``, some are drawn at random once more.
    """
    # The groups bin by bin, in random order within a bin.
    shuffled = np.lexsort((rng.random(len(bin_of)), bin_of))
    first_in_bin = np.cumsum(groups_in_bin) - groups_in_bin
    position_in_bin = np.arange(len(bin_of)) - np.repeat(first_in_bin, groups_in_bin)
    # How often to draw each group: all of a bin equally often, and the first ones once more.
    available = groups_in_bin[bin_of[shuffled]]
    needed = to_draw[bin_of[shuffled]]
    copies = needed // available + (position_in_bin < needed % available)
    drawn = np.repeat(shuffled, copies)
    first_copy = np.repeat(np.cumsum(copies) - copies, copies)  # position of each group's first
    return drawn, np.arange(len(drawn)) > first_copy


def demand_paths(
    traffic: Traffic, window: Window, method: str, count: int, seed: int
) -> FloatArray:
    """Return ``count`` random paths of demand, ``[count, keys of the demand, bins]``.

    Amounts are requests per bin, from the window's first decision to its end. They are drawn from
    the forecast at that decision, so errors are correlated over hours, models, regions and tiers.
    The scenario's growth is included. Traffic that the scenario describes replaces the mean of the
    forecast.
    """
    known_s = window.first_decision_s
    bins = round(window.duration_s / window.bin_s)
    lead = lead_bins(window)
    demand = traffic.demand
    series = [_requests_since_launch(demand, i, known_s) for i in range(len(demand.keys))]
    forecast = panel_forecast(series, method, window.bins_per_period, lead + bins)
    paths = joint_paths(forecast, count, seed)
    in_window = paths[:, :, lead:]  # a view without the lead time, so changes are in ``paths``
    for i, key in enumerate(demand.keys):
        described = traffic.described_demand(key, {key.tier}, REQUESTS, window)
        if described is not None:
            in_window[:, i] = described * ratio(in_window[:, i], forecast.mean[i, lead:], 1.0)
    in_window *= window.growth_factors
    return np.asarray(paths, np.float64)


def _requests_since_launch(demand: Demand, index: int, known_s: float) -> DemandSeries:
    """Return the requests of key number ``index`` up to ``known_s``, with gaps before its launch.

    The series begins when ``demand`` does, since series that are forecast together need the same
    bins.
    """
    series = demand.series(index, REQUESTS)
    launched = series.window(series.start_s, known_s).since_launch(known_s)
    before = round((launched.start_s - demand.start_s) / demand.bin_s)
    values = np.pad(launched.values, (before, 0), constant_values=np.nan)
    return replace(launched, start_s=demand.start_s, values=values)
