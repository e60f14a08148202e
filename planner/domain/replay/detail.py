"""Tables of one simulation: by interval, by group of requests and by request."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain, product
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from planner.domain.serialise import moments, times
from planner.domain.study import Detail
from planner.inputs.scenario.columns import SHOWN
from simulation.arrays import FloatArray, IntArray
from simulation.energy import hours_of, pool_energy
from simulation.fleet import Pool
from simulation.metrics import meets_slo
from simulation.percentiles import percentiles
from simulation.results import (
    ANSWER_TOKENS,
    COMPLETED,
    NOT_DUE,
    PROMPT_TOKENS,
    REASONS,
    REJECTED,
    UNFINISHED,
    Replay,
    RequestLog,
    SimulationResult,
)
from simulation.stream.result import StreamResult
from simulation.trace_replay import Replayed

OUTCOMES = {
    COMPLETED: "completed",
    REJECTED: "rejected",
    UNFINISHED: "unfinished",
    NOT_DUE: "not_due",
}
COUNTS = ("arrived", *OUTCOMES.values())
ALL = "all"  # in a group: all tiers, models or regions together
GROUPED = ("tier", "model", "region")
LATENCIES = ("ttft_ms", "tbt_ms", "e2e_ms")
PERCENTILES = (50, 95, 99)
PERCENTILE_COLUMNS = {name: [f"{name}_p{p}" for p in PERCENTILES] for name in LATENCIES}
NUMBERS = ("attainment", "mean_isl", "mean_osl", *chain(*PERCENTILE_COLUMNS.values()))
GROUP_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(GROUPED, pl.String()),
    **dict.fromkeys(COUNTS, pl.Int64()),
    **dict.fromkeys(NUMBERS, pl.Float64()),
}
SERIES_COLUMNS = ("ready", "starting", "draining", "lent", "busy", "utilisation", "sm_activity")


def detail_of(result: Replayed, labels: Sequence[str], *, requests: bool) -> Detail:
    """Return the tables of a simulation: by interval, by group of requests, and by request.

    ``labels`` names the GPUs and engine of each pool. The table by request is None without
    ``requests``, or for a streamed replay, which keeps no requests.
    """
    labels = list(map(_pool_label, labels, result.fleet.pools))
    minutes = minutes_table(result, labels)
    if isinstance(result, StreamResult):
        return Detail(minutes, groups_of_stream(result), None)
    by_request = requests_table(result, labels) if requests else None
    return Detail(minutes, groups_table(result), by_request)


def _pool_label(label: str, pool: Pool) -> str:
    """Return the label of a pool, with "borrowed" or the tiers that a policy reserved it for."""
    if pool.lends:
        return f"{label} borrowed"
    return label if pool.tiers is None else f"{label} for {', '.join(pool.tiers)}"


def minutes_table(result: Replay, labels: Sequence[str]) -> pl.DataFrame:
    """Return a table with one row per pool and interval; ``labels`` names the pools.

    Replica counts, the batch size of a busy replica and shares are means over the interval. Waiting
    requests and held (deferred) ones are counted at its end. Rates are tokens/s. Power is that of
    GPUs and hosts in kW, including PUE. Dollars per hour cover paid replicas, without those lent
    out.
    """
    frames = [_minutes_of_pool(result, p, label) for p, label in enumerate(labels)]
    return pl.concat(frames).with_columns(pl.col("hit_rate").fill_nan(None))


def _minutes_of_pool(result: Replay, p: int, label: str) -> pl.DataFrame:
    """Return the rows of ``minutes_table`` of pool ``p``, which is named ``label``."""
    series, pool = result.series, result.fleet.pools[p]
    intervals = series.ready.shape[1]
    edges = np.append(np.arange(intervals) * series.interval_s, result.duration_s)
    seconds = np.diff(edges)
    hit_rates = getattr(series, "hit_rate", None)  # only engines with prefix caches have it
    paid_gpus = (series.ready[p] + series.starting[p] + series.draining[p]) * pool.gpus_per_instance
    hours = hours_of(intervals, result.start_s, series.interval_s)
    columns = {
        "time": times(result.start_s, series.interval_s, intervals),
        "model": pool.model,
        "region": pool.region,
        "gpu": pool.gpu.name,
        "role": SHOWN[pool.role],
        "arrangement": label,
        **{name: getattr(series, name)[p] for name in SERIES_COLUMNS},
        "hit_rate": np.full(intervals, np.nan) if hit_rates is None else hit_rates[p],
        "batch": series.batch[p],
        "waiting": series.waiting[p],
        "held": series.held[p],
        "input_tps": series.input_tokens[p] / seconds,
        "output_tps": series.output_tokens[p] / seconds,
        "power_kw": pool_energy(result, p).watts / 1000,
        "usd_per_hour": paid_gpus * (pool.usd_per_gpu_hour + pool.usd_above_mean[hours]),
    }
    return pl.DataFrame(columns)


def requests_table(result: SimulationResult, labels: Sequence[str]) -> pl.DataFrame:
    """Return a table with one row per replayed request, in order of arrival.

    Latencies are in milliseconds, null if the event did not happen. ``region`` is the origin of the
    request, ``pool`` is where it was served. ``labels`` names the pools.
    """
    pools = [
        f"{label} in {pool.region}" for pool, label in zip(result.fleet.pools, labels, strict=True)
    ]
    names = list(dict.fromkeys(pools))  # pools that a policy split share a name
    name_of_pool = np.array([*map(names.index, pools), -1])  # pool -1: served nowhere
    table = {
        **_request_columns(result),
        "reason": _refusal_reasons(result),
        "pool": _names_of_codes(name_of_pool[result.requests.pool], names),
    }
    return pl.DataFrame(table).with_columns(pl.col(pl.Float64).fill_nan(None))


def groups_table(result: SimulationResult) -> pl.DataFrame:
    """Return request counts and latency percentiles by tier, model and home region.

    Totals over tiers, models or regions have ``ALL`` in that column. Percentiles are exact, linear
    between ranks. ``attainment`` is the share of requests within every limit, among those due.
    """
    trace, log = result.trace, result.requests
    names = (trace.tiers, trace.models, trace.regions)
    shape = tuple(map(len, names))
    # A group is a combination of tier, model and region.
    group_of = np.ravel_multi_index((trace.tier, trace.model, trace.region), shape)
    groups = int(np.prod(shape))

    def total(values: npt.NDArray[Any] | None = None) -> FloatArray:
        """Return the sum of ``values`` per request, ``[tiers, models, regions]``; default: 1."""
        return np.bincount(group_of, values, minlength=groups).reshape(shape).astype(np.float64)

    sums = {
        "arrived": total(),
        **{outcome: total(log.outcome == code) for code, outcome in OUTCOMES.items()},
        "attainment": total(meets_slo(result)),
        "mean_isl": total(trace.input_tokens),
        "mean_osl": total(trace.output_tokens),
    }
    by_group = _latencies_by_group(log, group_of, sums["arrived"].ravel().astype(np.int64))
    indices = np.arange(groups).reshape(shape)
    # With a single tier, model or region, several slices have the same groups.
    percentiles_of = cache(partial(_exact_percentiles, by_group))

    def latency_percentiles(where: tuple[slice, ...]) -> Mapping[str, Sequence[float]]:
        """Return the percentiles, by latency, of the groups ``[tiers, models, regions][where]``."""
        return percentiles_of(tuple(indices[where].ravel().tolist()))

    return _group_rows(names, sums, latency_percentiles, result.cells)


def _exact_percentiles(
    by_group: Mapping[str, Sequence[FloatArray]], chosen: tuple[int, ...]
) -> dict[str, Sequence[float]]:
    """Return the percentiles, by latency, of all requests in the groups ``chosen``."""
    by_latency: dict[str, Sequence[float]] = {}
    for name, ms_by_group in by_group.items():
        values = np.concatenate([ms_by_group[i] for i in chosen])
        if len(values):
            by_latency[name] = percentiles(values, PERCENTILES)
    return by_latency


def _latencies_by_group(
    log: RequestLog, group_of: npt.NDArray[np.intp], counts: IntArray
) -> dict[str, list[FloatArray]]:
    """Return by latency the milliseconds of each group's requests that have it.

    ``group_of`` is the group of each request, and ``counts`` the requests of each group.
    """
    # Puts the requests of a group next to each other.
    order = np.argsort(group_of, kind="stable") if len(counts) > 1 else slice(None)
    ends = np.cumsum(counts)
    by_group = {}
    for name, seconds in zip(LATENCIES, (log.ttft_s, log.tbt_s, log.e2e_s), strict=True):
        ms_by_group = np.split(seconds[order] * 1000, ends[:-1])
        by_group[name] = [ms[np.isfinite(ms)] for ms in ms_by_group]
    return by_group


def groups_of_stream(result: StreamResult) -> pl.DataFrame:
    """Return the table of ``groups_table`` for a streamed replay.

    Its percentiles are estimates with the relative error ``tally.ERROR``.
    """
    tally = result.tally  # its figures are [group]
    # The group of each combination, [tiers, models, regions].
    group_of = np.moveaxis(result.groups, 2, 0)
    arrived = tally.outcomes.sum(axis=1)
    sums_by_group = {
        "arrived": arrived,
        **{outcome: tally.outcomes[:, code] for code, outcome in OUTCOMES.items()},
        "attainment": tally.met,
        "mean_isl": tally.asked[:, PROMPT_TOKENS],
        "mean_osl": tally.asked[:, ANSWER_TOKENS],
    }

    def latency_percentiles(where: tuple[slice, ...]) -> Mapping[str, Sequence[float]]:
        """Return the percentiles, by latency, of the groups ``[tiers, models, regions][where]``."""
        by_latency = {}
        for i, name in enumerate(LATENCIES):
            tail = tally.percentiles(group_of[where].ravel(), i)
            if tail.p50 is not None and tail.p95 is not None and tail.p99 is not None:
                by_latency[name] = tail.p50, tail.p95, tail.p99
        return by_latency

    names = (result.tiers, result.models, result.regions)
    # Indexing by ``group_of`` gives each figure the axes [tiers, models, regions].
    arrays = {name: values[group_of].astype(np.float64) for name, values in sums_by_group.items()}
    return _group_rows(names, arrays, latency_percentiles, result.cells)


def _group_rows(
    names: tuple[tuple[str, ...], ...],
    sums: dict[str, FloatArray],
    latency_percentiles: Callable[[tuple[slice, ...]], Mapping[str, Sequence[float]]],
    cells: int,
) -> pl.DataFrame:
    """Return a table with a row for every tier, model and home region that has requests.

    Totals over tiers, models or regions are rows too, with ``ALL`` in that column. ``sums`` has an
    array ``[tiers, models, regions]`` for each figure. ``latency_percentiles`` takes slices of
    these axes. Counts are multiplied by ``cells``, since only one of that many equal cells of the
    fleet was simulated.
    """
    rows: list[dict[str, Any]] = []
    # For tiers, models and regions: (ALL, slice of all), then (name, slice of its index).
    choices = []
    for axis_names in names:
        single = [(name, slice(i, i + 1)) for i, name in enumerate(axis_names)]
        choices.append([(ALL, slice(None)), *single])
    for chosen in product(*choices):
        where = tuple(indices for _, indices in chosen)
        total = {name: float(values[where].sum()) for name, values in sums.items()}
        if total["arrived"]:
            row = _group_figures(total, cells)
            row |= zip(GROUPED, (name for name, _ in chosen), strict=True)
            for name, values in latency_percentiles(where).items():
                row |= zip(PERCENTILE_COLUMNS[name], values, strict=True)
            rows.append(row)
    return pl.DataFrame(rows, GROUP_SCHEMA).sort(GROUPED)


def _group_figures(total: Mapping[str, float], cells: int) -> dict[str, Any]:
    """Return the counts of all ``cells`` and the means of a group, from its sums by name."""
    due = total["arrived"] - total["not_due"]
    return {
        **{name: int(total[name]) * cells for name in COUNTS},
        "attainment": total["attainment"] / due if due else None,
        "mean_isl": total["mean_isl"] / total["arrived"],
        "mean_osl": total["mean_osl"] / total["arrived"],
    }


def _request_columns(result: SimulationResult) -> dict[str, Any]:
    """Return what is known of each request, by column, with latencies in milliseconds.

    ``met`` is whether it met its SLO.
    """
    log, trace = result.requests, result.trace
    outcomes = tuple(OUTCOMES[code] for code in sorted(OUTCOMES))
    return {
        "arrival": moments(trace.start_s, trace.arrival_s),
        "model": _names_of_codes(trace.model, trace.models),
        "region": _names_of_codes(trace.region, trace.regions),
        "tier": _names_of_codes(trace.tier, trace.tiers),
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
        "outcome": _names_of_codes(log.outcome, outcomes),
        "ttft_ms": log.ttft_s * 1000,
        "tbt_ms": log.tbt_s * 1000,
        "e2e_ms": log.e2e_s * 1000,
        "met": meets_slo(result),
    }


def _refusal_reasons(result: SimulationResult) -> pl.Series:
    """Return for each request the reason why it was not served, or null."""
    log = result.requests
    still_open = (log.outcome == UNFINISHED) | (log.outcome == NOT_DUE)
    code = np.where(still_open, len(REASONS), log.reason)
    return _names_of_codes(code, (*REASONS, "the simulation ended before"))


def _names_of_codes(codes: npt.NDArray[Any], names: Sequence[str]) -> pl.Series:
    """Return the name of each code, ``names[code]``; null for a negative code."""
    signed = pl.Series(codes.astype(np.int32))
    indices = signed.set(signed < 0, None).cast(pl.UInt32)
    return pl.Series(names, dtype=pl.Enum(list(names))).gather(indices)
