"""Tables of the result, made from the state at the end of a simulation."""

from dataclasses import fields

import numpy as np
import numpy.typing as npt

from simulation.arrays import Array, FloatArray
from simulation.engine.request_records import LogColumns, fill_log
from simulation.engine.state import (
    S_ARRIVED,
    S_BATCH,
    S_BUSY,
    S_DRAINING,
    S_HIT,
    S_INPUT,
    S_ITERATIONS,
    S_KV,
    S_LENT,
    S_LOOKED_UP,
    S_OUTPUT,
    S_READY,
    S_STARTING,
    State,
)
from simulation.results import REASONS, AfterWindow, PoolSeries, PoolTotals, RequestLog


def request_log(state: State, not_due: npt.NDArray[np.bool_]) -> RequestLog:
    """Return the log of all requests, one row each.

    Unfinished requests where ``not_due [request]`` is True get the outcome NOT_DUE.
    """
    n = len(state.requests)
    # One block of memory for all times: the system provides large blocks faster.
    columns = LogColumns(
        np.empty(n, np.int8), np.empty(n, np.int8), np.empty(n, np.int16), *np.empty((5, n))
    )
    fill_log(state.requests, not_due, seconds_away(state), columns)
    return RequestLog(**columns._asdict())


def seconds_away(state: State) -> FloatArray:
    """Return the seconds from each pool back to each home region, ``[home region, pool + 1]``.

    The serving stack's fixed time is included. The last column is for requests without a pool.
    """
    pools = len(state.pools)
    away = np.zeros((len(state.latency_s), pools + 1))
    away[:, :pools] = state.latency_s[:, state.pools["region"]] + state.pools["start_s"]
    return away


def rows(log: RequestLog, which: npt.NDArray[np.bool_] | slice) -> RequestLog:
    """Return the rows of a log that ``which``, a mask or a slice, selects."""
    return RequestLog(*(getattr(log, column.name)[which] for column in fields(log)))


def pool_series(
    state: State, duration_s: float, interval_s: float, waiting: Array, at_router: Array
) -> PoolSeries:
    """Return the series of each pool by interval, ``[pool, interval]`` each.

    ``waiting`` and ``at_router`` are queue lengths at the ends of the intervals (``run_window``).
    """
    series = state.series[:, :, :-1]  # the last column counts everything after the window
    starts = np.arange(series.shape[2]) * interval_s
    width = np.minimum(starts + interval_s, duration_s) - starts
    capacity = series[S_READY] * state.pools["kv_capacity_tokens"][:, None]
    serving = series[S_READY] + series[S_DRAINING]
    # Seconds that the tokens would take at the rate of a full prefill iteration (SM activity).
    computing_s = (series[S_INPUT] + series[S_OUTPUT]) * state.pools["token_s"][:, None]
    looked_up = series[S_LOOKED_UP]
    return PoolSeries(
        interval_s=interval_s,
        ready=series[S_READY] / width,
        starting=series[S_STARTING] / width,
        draining=series[S_DRAINING] / width,
        lent=series[S_LENT] / width,
        busy=series[S_BUSY] / width,
        utilisation=_share(series[S_KV], capacity),
        waiting=waiting,
        held=at_router,
        batch=_share(series[S_BATCH], series[S_BUSY]),
        sm_activity=_share(np.minimum(computing_s, series[S_BUSY]), serving),
        iterations=series[S_ITERATIONS].copy(),
        arrived_tokens=series[S_ARRIVED].copy(),
        input_tokens=series[S_INPUT].copy(),
        output_tokens=series[S_OUTPUT].copy(),
        hit_rate=series[S_HIT] / np.where(looked_up > 0, looked_up, np.nan),
    )


def _share(part: Array, total: Array) -> npt.NDArray[np.float64]:
    """Return ``part`` over ``total``, or over 1 where the total is 0."""
    return np.asarray(part / np.where(total > 0, total, 1.0))


def pool_totals(state: State) -> PoolTotals:
    """Return the totals over the simulation, ``[pool]`` each."""
    names = [field.name for field in fields(PoolTotals) if field.name != "starts"]
    return PoolTotals(
        **{name: state.pools[name].copy() for name in names}, starts=state.starts_by_source.copy()
    )


def after_window(state: State, until_s: float) -> AfterWindow:
    """Return the figures of each pool for the time after the window, until ``until_s``."""
    after = state.series[:, :, -1]  # the last column counts everything after the window
    return AfterWindow(
        until_s=until_s,
        kept_s=state.pools["kept_s"].copy(),
        prefill_s=state.pools["after_prefill_s"].copy(),
        decode_s=state.pools["after_decode_s"].copy(),
        iterations=after[S_ITERATIONS].copy(),
        input_tokens=after[S_INPUT].copy(),
        output_tokens=after[S_OUTPUT].copy(),
    )


def reject_reasons(log: RequestLog) -> dict[str, int]:
    """Return the number of rejected requests by reason."""
    counts = np.bincount(log.reason[np.flatnonzero(log.reason >= 0)], minlength=len(REASONS))
    return by_reason(counts)


def by_reason(counts: Array) -> dict[str, int]:
    """Return the numbers of rejected requests, ``counts [REASONS]``, by reason, without zeros."""
    return {reason: int(n) for reason, n in zip(REASONS, counts, strict=True) if n}
