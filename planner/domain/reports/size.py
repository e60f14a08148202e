"""Report the capacity of replicas and of pools."""

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
import polars as pl

from planner.domain.formats import figure
from planner.domain.kinds.size import SizedPool, SizeResult, headline_of, name_of
from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Form,
    Group,
    Head,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    TableColumns,
    limit_name,
    sources_section,
    table,
    table_section,
)
from planner.domain.reports.tables import Tables
from planner.domain.sizing.splits import SplitSize

TICKS = tuple(2.0**n for n in range(12))  # labelled pool sizes
MOST_FACTS = 5  # pools whose capacity is among the facts at the top
LINE_COLOURS = (0, 2, 3, 5)  # numbers of colours that differ from that of simulated points
SECONDS_FROM_MS = 5000  # latencies are in seconds if the limit or the largest is above this
PEAK = (
    "Peak: busiest bin before the planned window. "
    "Schedules may have fewer replicas and rely on the guard."
)
CURVES = "Dot: simulation, used by plans. Curves: queueing formulas"
LATENCIES = {"ttft": "TTFT", "tbt": "TPOT"}


def report(result: SizeResult, tables: Tables) -> Report:
    """Return the report of ``size``."""
    curve = tables("curve")
    return Report(
        title=result.scenario,
        answer=result.headline or headline_of(result.pools),
        about=PEAK if any(pool.replicas_by_region for pool in result.pools) else "",
        facts=tuple(_capacity_fact(pool) for pool in result.pools[:MOST_FACTS]),
        sections=(
            Section("Pools", (_pools(result), *_pool_chart(result.pools))),
            *table_section(
                "Attention and expert GPUs",
                result.splits,
                *SPLIT_COLUMNS,
                name="Splits",
                note="Set the best split as attention_ffn of the profile.",
                marked=lambda split: split.best,
            ),
            *_latencies(result.pools, curve),
            *table_section(
                "Latency at capacity",
                result.pools,
                *REPLICA_COLUMNS,
                *CAPACITY_COLUMNS,
                group=Group.BASIS,
                printed=True,
                note="The last two columns are for a profile that is slower or faster by its "
                "error.",
            ),
            Section("Accuracy", (_profiles(result), _closed_forms(result)), group=Group.BASIS),
            *sources_section(
                result.provenance,
                (
                    f"Method: {result.sized_by}.",
                    f"Sampling error of capacity: median {result.size_error.median:.1%}, "
                    f"P95 {result.size_error.p95:.1%} ({result.size_error.basis}).",
                    *result.notes,
                ),
            ),
        ),
    )  # fmt: skip


def _capacity_fact(pool: SizedPool) -> Fact:
    """Return the capacity of each replica in a pool that is large enough for the demand.

    If the demand is unknown, or needs more replicas than were sized, return the capacity of one
    replica alone.
    """
    limit, count = limit_name(pool.sized.bound_by), pool.replicas or 1
    alone_rps, in_pool_rps = pool.sized.max_rps, _rps_per_replica(count, pool)
    if count == 1 or in_pool_rps is None:
        note = f"single replica, limited by {limit}"
        return Fact(name_of(pool), alone_rps, "req/s", note=note)
    alone = f"Single replica: {figure(alone_rps, 'req/s')}"
    note = f"in a pool of {count:,}, limited by {limit}. {alone}"
    return Fact(name_of(pool), in_pool_rps, "req/s per replica", note=note)


def _rps_per_replica(count: int | None, pool: SizedPool) -> float | None:
    """Return the requests/s per replica in a pool of ``count`` replicas.

    None if ``count`` is None, or if no pool of that size was sized.
    """
    pool_tps = pool.sized.pool_tps  # capacity of pools of 1, 2, ... replicas
    if not count or count > len(pool_tps):
        return None
    mean_isl = pool.sized.input_tps / pool.sized.max_rps
    return pool_tps[count - 1] / count / mean_isl


REPLICA_COLUMNS = (
    (Head("Model", width=2), lambda pool: pool.sized.replica.model),
    (
        Head("GPUs", width=2),
        lambda pool: pool.sized.replica.arrangement.removesuffix(f", {pool.sized.replica.role}"),
    ),
    (Head("Role"), lambda pool: pool.sized.replica.role.replace("mixed", "")),
)


def _pools(result: SizeResult) -> Table:
    """Return a table of the capacity per replica in pools, and the replicas that demand needs."""
    return table(
        result.pools,
        *REPLICA_COLUMNS,
        (Head("Limited by"), lambda pool: limit_name(pool.sized.bound_by)),
        (Head("Single replica", Form.NUMBER, "req/s"), lambda pool: pool.sized.max_rps),
        (
            Head("Per replica in the pool", Form.NUMBER, "req/s"),
            lambda pool: _rps_per_replica(pool.replicas, pool),
        ),
        (Head("Busiest region's peak", Form.NUMBER, "req/s"), lambda pool: pool.demand_rps),
        (
            Head("Replicas", Form.COUNT),
            lambda pool: sum(pool.replicas_by_region.values()) or pool.replicas,
        ),
        (Head("By region", width=2), _replicas_by_region),
        note="Replicas: all regions, without spares. A replica of a larger pool serves more.",
    )


def _profiles(result: SizeResult) -> Table:
    """Return a table of the error of each profile, and what that was measured on."""
    return table(
        result.pools,
        *REPLICA_COLUMNS,
        (Head("Error", Form.SHARE), lambda pool: pool.expected_error),
        (Head("Basis of the error", width=3), lambda pool: pool.error_basis),
        (Head("Profile", width=3), lambda pool: f"{pool.profile}, {pool.provenance.kind}"),
        title="Profile error",
    )


def _closed_forms(result: SizeResult) -> Table:
    """Return a table of the closed forms (queueing formulas) at the simulated capacity."""
    return table(
        result.pools,
        *REPLICA_COLUMNS,
        (Head("Capacity", Form.NUMBER, "req/s"), lambda pool: pool.closed.predicted_rps),
        (Head("Error", Form.CHANGE), lambda pool: pool.closed.prediction_error),
        (Head("Share of saturation throughput", Form.SHARE), lambda pool: pool.closed.load),
        (Head("Mean wait", Form.NUMBER, "ms"), lambda pool: pool.closed.wait_ms),
        (Head("Mean E2E", Form.NUMBER, "ms"), lambda pool: pool.closed.e2e_mean_ms),
        title="Queueing formulas",
        note="Formulas need no simulation. Errors are relative to simulation.",
    )


def _replicas_by_region(pool: SizedPool) -> str:
    """Return the replicas that the peak of each region needs; "" unless there are several."""
    counts = [f"{region} {count:,}" for region, count in pool.replicas_by_region.items()]
    return ", ".join(counts) if len(counts) > 1 else ""


def _remark(split: SplitSize) -> str:
    """Return the remarks on a split, such as that it is the best; "" without any."""
    remarks = (
        "best" if split.best else "",
        "in the scenario" if split.stated else "",
        split.note,
    )
    return ", ".join(filter(None, remarks))


CAPACITY_COLUMNS: TableColumns[SizedPool] = (
    (Head("Tier"), lambda pool: f"{pool.sized.tier} p{pool.percentile:g}"),
    (Head("Capacity", Form.NUMBER, "req/s"), lambda pool: pool.sized.max_rps),
    (Head("Input", Form.NUMBER, "tokens/s"), lambda pool: pool.sized.input_tps),
    (Head("Limited by"), lambda pool: limit_name(pool.sized.bound_by)),
    (Head("TTFT", Form.COUNT, "ms"), lambda pool: pool.sized.ttft_ms),
    (Head("TTFT limit", Form.COUNT, "ms"), lambda pool: pool.ttft_limit_ms),
    (Head("TPOT", Form.NUMBER, "ms"), lambda pool: pool.sized.tbt_ms),
    (Head("TPOT limit", Form.COUNT, "ms"), lambda pool: pool.tbt_limit_ms),
    (Head("Profile error", Form.SHARE), lambda pool: pool.expected_error),
    (Head("Capacity if slower", Form.NUMBER, "req/s"), lambda pool: pool.max_rps_if_slower),
    (Head("Capacity if faster", Form.NUMBER, "req/s"), lambda pool: pool.max_rps_if_faster),
)
SPLIT_COLUMNS: TableColumns[SplitSize] = (
    (Head("Model", width=2), lambda split: split.model),
    (Head("GPUs", width=2), lambda split: f"{split.gpus} x {split.gpu}, {split.role}"),
    (Head("Attention GPUs", Form.COUNT), lambda split: split.attention),
    (Head("FFN GPUs", Form.COUNT), lambda split: split.ffn),
    (Head("Queueing formulas", Form.NUMBER, "req/s"), lambda split: split.predicted_rps),
    (Head("Simulation", Form.NUMBER, "req/s"), lambda split: split.max_rps),
    (Head("Limited by"), lambda split: limit_name(split.bound_by)),
    (Head("KV cache", Form.COUNT, "tokens"), lambda split: split.kv_capacity_tokens),
    (Head("Remark", width=2), _remark),
)


def _latencies(pools: Sequence[SizedPool], all_curves: pl.DataFrame) -> Iterator[Section]:
    """Yield the section with charts of latency over the request rate of a replica.

    There is a chart for each latency that has a limit, or for all if none has. ``all_curves`` is
    the table "curve".
    """
    if all_curves.is_empty():
        return
    charts: list[Chart] = []
    for pool in pools:
        curve = all_curves
        for name in ("model", "arrangement", "role"):
            curve = curve.filter(pl.col(name) == getattr(pool.sized.replica, name))
        curve = curve.sort("rate")
        # A prefill replica has no TPOT, and a decode replica no TTFT.
        known = [name for name in LATENCIES if curve[f"{name}_ms"].null_count() < curve.height]
        limited = [name for name in known if getattr(pool, f"{name}_limit_ms") is not None]
        charts += [_latency_chart(pool, curve, name) for name in limited or known]
    if charts:
        yield Section("Latency by request rate", tuple(charts), "Latencies", Group.BASIS)


def _latency_chart(pool: SizedPool, curve: pl.DataFrame, name: str) -> Chart:
    """Return the chart of a latency over the rate, with its limit and the simulated capacity.

    ``name`` is the key of the latency, such as "ttft". ``curve`` has the latencies by rate.
    """
    limit_ms = getattr(pool, f"{name}_limit_ms")
    simulated_ms = getattr(pool.sized, f"{name}_ms")
    formula_ms = curve[f"{name}_ms"]
    highest_ms = max(formula_ms.drop_nulls())
    in_seconds = (limit_ms or highest_ms) > SECONDS_FROM_MS
    unit_ms, unit = (1000, "s") if in_seconds else (1, "ms")
    rates = tuple(curve["rate"])
    means = tuple(curve[f"{name}_mean_ms"] / unit_ms)
    series = [
        Series(f"P{pool.percentile:g}, formula", rates, tuple(formula_ms / unit_ms)),
        Series("Mean, formula", rates, means, Role.BASELINE),
    ]
    top = None
    if limit_ms is not None:
        limit = limit_ms / unit_ms
        series.append(Series("Limit", (0.0, rates[-1]), (limit, limit), Role.LIMIT))
        # Near saturation the closed forms rise without bound and would flatten the rest.
        if highest_ms > 3 * limit_ms:
            top = 3 * limit
    note = ""
    if simulated_ms is not None:
        rate, latency = (pool.sized.max_rps,), (simulated_ms / unit_ms,)
        series.append(Series("Capacity, simulated", rate, latency, Role.MEASURED, Shape.POINTS))
        note = _formula_note(pool.sized.max_rps, simulated_ms, curve["rate"], formula_ms)
    title = f"{LATENCIES[name]}, {name_of(pool)}"
    x_axis, y_axis = Axis("rate of one replica", "req/s"), Axis(unit=unit, top=top)
    return Chart(title, x_axis, y_axis, tuple(series), note=note, small=True)


def _formula_note(rate: float, simulated_ms: float, rates: pl.Series, formula_ms: pl.Series) -> str:
    """Return how far the latency by formula is from the simulated one, at ``rate``."""
    is_known = formula_ms.is_not_null()
    formula_ms_at_rate = np.interp(rate, rates.filter(is_known), formula_ms.filter(is_known))
    error = formula_ms_at_rate / simulated_ms - 1
    return f"{CURVES}, {abs(error):.0%} {'below' if error < 0 else 'above'} the simulation there."


def _pool_chart(pools: Sequence[SizedPool]) -> Iterator[Chart]:
    """Yield the chart of the capacity of a replica over the number of replicas in its pool.

    It is relative to a single replica, so that pools of any speed compare. It has a line per pool,
    with dots where pools were simulated. Nothing if no pool of several replicas is known.
    """
    lines: list[Series] = []
    simulated: list[tuple[int, float]] = []  # replicas, capacity per replica
    colours = cycle(LINE_COLOURS)
    for pool in pools:
        pool_tps, alone_rps = pool.sized.pool_tps, pool.sized.max_rps
        if pool_tps:
            replicas = tuple(range(1, len(pool_tps) + 1))
            gains = tuple(
                tps / count / pool_tps[0] for count, tps in zip(replicas, pool_tps, strict=True)
            )
            lines.append(Series(name_of(pool), replicas, gains, colour=next(colours)))
            simulated += [
                (point.instances, point.max_rps / point.instances / alone_rps)
                for point in pool.simulated_pools
            ]
    if not lines:
        return
    simulated_counts = tuple(count for count, _ in simulated)
    simulated_gains = tuple(gain for _, gain in simulated)
    points = Series("Simulated", simulated_counts, simulated_gains, Role.MEASURED, Shape.POINTS)
    most_replicas = max(len(line.x) for line in lines)
    ticks = tuple(tick for tick in TICKS if tick <= most_replicas)
    x_axis = Axis("replicas in the pool", log=True, ticks=ticks)
    y_axis = Axis(unit="times that of a single replica")
    yield Chart("Capacity per replica", x_axis, y_axis, (*lines, points))
