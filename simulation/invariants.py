"""Invariants of every simulation; a violation is a bug in the engine."""

from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray, count_codes
from simulation.errors import InvariantViolated
from simulation.lifecycle import DRAINING, LENT, OFF, READY, STARTING, STATUSES
from simulation.results import (
    COMPLETED,
    NOT_DUE,
    REJECTED,
    UNFINISHED,
    Replay,
    RequestLog,
    SimulationResult,
)

# Relative tolerance for sums of millions of durations in seconds.
TOLERANCE = 1e-6


def check_invariants(result: SimulationResult) -> None:
    """Raise ``InvariantViolated`` if ``result`` violates an invariant.

    The invariants cover conservation of requests, causality, hours, and closed paths between
    regions.
    """
    log, arrived = result.requests, len(result.trace)
    _check_conservation(log, arrived)
    _check_causality(log, result.duration_s)
    _check_paths(result)
    check_totals(
        result,
        arrived=arrived,
        rejected=int((log.outcome == REJECTED).sum()),
        last_s=float(np.nanmax(log.last_token_s, initial=0.0)),
    )


def _check_paths(result: SimulationResult) -> None:
    """Check that no request was served over a closed path."""
    closed = np.isinf(result.fleet.latency_s)
    if not closed.any():
        return
    names = [region.name for region in result.fleet.regions]
    home_regions = np.array([names.index(name) for name in result.trace.regions], np.int64)
    regions_of_pools = np.array([names.index(pool.region) for pool in result.fleet.pools], np.int64)
    served = result.requests.pool >= 0
    home_region = home_regions[result.trace.region[served]]
    serving_region = regions_of_pools[result.requests.pool[served]]
    _require(
        ~closed[home_region, serving_region],
        "a request was served where the way from its region is closed",
    )


def check_totals(result: Replay, *, arrived: int, rejected: int, last_s: float) -> None:
    """Raise ``InvariantViolated`` unless hours and rejections add up.

    ``arrived`` and ``rejected`` are numbers of requests, ``last_s`` the time of the last token.
    """
    refused = sum(result.reject_reasons.values())
    _require(rejected == refused <= arrived, "rejections by reason do not add up")
    _check_hours(result, last_s)


def check_state(pools: npt.NDArray[Any], instances: npt.NDArray[Any], open_requests: int) -> None:
    """Raise ``InvariantViolated`` if the engine's records at the end are impossible.

    ``open_requests`` is the number of requests neither completed nor rejected. The invariants are:

    - No instance ever used more KV tokens than its memory, or ran before it was ready.
    - The five kinds of hours add up to the time from the start to the end of each instance.
    - The counts of pools by status are those of their instances.
    - Without open requests, no instance has memory in use, work, or waiting requests.
    """
    _require(
        pools["kv_peak"] <= pools["kv_capacity_tokens"], "an instance held more KV than its memory"
    )
    _require(pools["too_early"] == 0, "an iteration ran on an instance that was not ready")
    hours_s = pools["starting_s"] + pools["idle_s"] + pools["prefill_s"] + pools["decode_s"]
    hours_s += pools["donated_s"]
    _require(
        _nearly_equal(hours_s, pools["lifetime_s"]),
        "hours by kind do not add up to instance lifetimes",
    )
    alive = instances[instances["status"] != OFF]
    counts = np.zeros((len(pools), STATUSES), np.int64)
    np.add.at(counts, (alive["pool"], alive["status"]), 1)  # [pools, statuses]
    statuses = {"starting": STARTING, "ready": READY, "draining": DRAINING, "lent": LENT}
    for name, status in statuses.items():
        is_right = counts[:, status] == pools[name]
        _require(is_right, f"a pool miscounts its instances that are {name}")
    if not open_requests:
        memory_fields = ("kv_tokens", "context_tokens", "queued_kv_tokens", "kv_transfers")
        work_fields = ("decodes", "running", "waiting", "remaining_tokens", "pending_tokens")
        for name in (*memory_fields, *work_fields):
            _require(instances[name] == 0, f"an idle instance is left with {name}")


def _check_conservation(log: RequestLog, arrived: int) -> None:
    """Check that every request has exactly one outcome and consistent columns."""
    times = ("first_token_s", "last_token_s", "ttft_s", "tbt_s", "e2e_s")
    for name in ("outcome", "reason", "pool", *times):
        _require(len(getattr(log, name)) == arrived, f"{name} does not have one row per request")
    counts = count_codes(log.outcome, 4)
    total = counts[COMPLETED] + counts[REJECTED] + counts[UNFINISHED] + counts[NOT_DUE]
    _require(
        total == arrived == counts.sum(),
        "arrived is not completed + rejected + unfinished + not yet due",
    )
    _require(
        (log.reason >= 0) == (log.outcome == REJECTED), "a rejection without reason, or the reverse"
    )
    completed = log.outcome == COMPLETED
    _require(
        np.isfinite(log.last_token_s) == completed,
        "a last token without completion, or the reverse",
    )
    _require(np.isfinite(log.first_token_s) | ~completed, "a completed request has no first token")
    _require((log.pool >= 0) | ~completed, "a completed request was served nowhere")
    _require((log.pool < 0) | (log.outcome != REJECTED), "a rejected request was served")


def _check_causality(log: RequestLog, duration_s: float) -> None:
    """Check the order of arrival, first token and last token."""
    started = np.isfinite(log.first_token_s)
    # One ulp of slack: iteration boundaries are products, while arrivals are given.
    slack = 1e-9 * (1.0 + duration_s)
    _require((log.ttft_s >= -slack) | ~started, "a first token came before its arrival")
    completed = log.outcome == COMPLETED
    _require(
        (log.last_token_s >= log.first_token_s) | ~completed, "a last token came before the first"
    )
    _require((log.e2e_s >= log.ttft_s) | ~completed, "end to end is shorter than the first token")


def _check_hours(result: Replay, last_s: float) -> None:
    """Check that instance-hours agree between totals, series and the work after the window.

    They are busy, idle, starting and lent hours. ``last_s`` is the time of the last token in
    seconds.
    """
    series, totals = result.series, result.totals
    starts_s = np.arange(series.ready.shape[1]) * series.interval_s
    width_s = np.minimum(starts_s + series.interval_s, result.duration_s) - starts_s
    serving = series.ready + series.draining
    busy_s = totals.prefill_s + totals.decode_s
    agree = _nearly_equal(totals.idle_s + busy_s, serving @ width_s)
    _require(agree, "idle and busy hours differ from the series")
    _require(_nearly_equal(series.busy @ width_s, busy_s), "busy hours differ from the series")
    _require(_nearly_equal(series.starting @ width_s, totals.starting_s), "starting hours differ")
    _require(_nearly_equal(series.lent @ width_s, totals.donated_s), "donated hours differ")
    _require(series.busy <= serving + TOLERANCE, "more busy than there are")
    _require(series.utilisation <= 1.0 + TOLERANCE, "more KV in use than there is")
    # After the window, an instance with work is paid (``kept_s``) to the end of its last iteration,
    # and no other is. There must be such work if a token came after the window.
    after = result.after
    work_s = after.prefill_s + after.decode_s
    paid_s = after.kept_s + TOLERANCE * (1 + after.kept_s)
    _require(work_s <= paid_s, "work after the window is not paid")
    is_right = (work_s > 0) | (after.kept_s == 0)
    _require(is_right, "an instance without work is paid after the window")
    finished_without_work = last_s > result.duration_s and not work_s.sum() > 0
    _require(not finished_without_work, "requests finished after the window for nothing")
    paid_starts = totals.before_s > 0
    _require(~paid_starts | (totals.starts.sum(axis=1) > 0), "starts were paid, none made")
    least_s = np.min([totals.starting_s, totals.idle_s, totals.prefill_s])
    _require(least_s >= -TOLERANCE, "hours are negative")


def _nearly_equal(a: FloatArray, b: FloatArray) -> BoolArray:
    """Return the mask of elements of ``a`` and ``b`` that are equal within TOLERANCE."""
    return np.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def _require(holds: Any, broken: str) -> None:
    """Raise ``InvariantViolated`` with the text ``broken`` unless all of ``holds`` are true."""
    if not np.all(holds):
        raise InvariantViolated(f"Broken law: {broken}.")
