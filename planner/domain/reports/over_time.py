"""Chart demand, capacity and replicas over the window, from the tables of a run.

Demand is what must be served on arrival: work that may wait is drawn on top of it. Capacity is
what the replicas of a model sustain within the SLO. Both are in input tokens per second.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from planner.domain.formats import figure
from planner.domain.planning.purchases import DeferrableWork
from planner.domain.report import Axis, Chart, Form, Role, Series, Shape, shortfall
from planner.domain.reports.tables import Tables
from planner.domain.results.basis import Frame
from planner.policies.base import TODAY

TOKENS = Axis(unit="input tokens/s")
REPLICAS = Axis(unit="replicas", form=Form.COUNT)
MOST_POOLS = 5  # areas in a chart of replicas: more are hard to tell apart
BORROWED = " borrowed"  # ending of an arrangement whose GPUs hold copies for other replicas
MOST_POINTS = 1500  # points of a line; a screen has fewer pixels
CURRENT_CAPACITY = "Current capacity"  # the line of the current fleet
OFF_SCALE = 1.8  # a baseline higher than the other lines by this factor is cut off
OTHER_POOLS = "other pools"


@dataclass(frozen=True, slots=True)
class Load:
    """Demand and capacity of a plan per bin in input tokens/s, summed over models.

    ``short`` is the demand above capacity: each model has its own capacity, so it may be positive
    where the sums show enough. ``models`` are those that lack capacity at some time.
    """

    times: tuple[datetime, ...]
    demand: tuple[float, ...]
    capacity: tuple[float, ...]
    short: tuple[float, ...]
    models: tuple[str, ...] = ()

    @property
    def capacity_words(self) -> str:
        """Return "capacity", and of which models if the sum over all models is large enough."""
        sum_hides_shortage = any(
            short > 0 and demand <= capacity
            for short, demand, capacity in zip(self.short, self.demand, self.capacity, strict=True)
        )
        return f"capacity of {' and '.join(self.models)}" if sum_hides_shortage else "capacity"

    @property
    def hours_short(self) -> float:
        """Return the hours in which demand exceeds capacity."""
        if len(self.times) < 2:
            return 0.0
        bin_h = (self.times[1] - self.times[0]).total_seconds() / 3600
        # The last row only marks the end of the last bin.
        return bin_h * sum(short > 0 for short in self.short[:-1])

    @property
    def largest_share(self) -> float:
        """Return the largest share of a bin's demand that exceeds capacity."""
        shares = (
            short / demand
            for short, demand in zip(self.short, self.demand, strict=True)
            if demand > 0
        )
        return max(shares, default=0.0)


def demand_of(tables: Tables, frame: Frame, *, deferrable: bool = False) -> pl.DataFrame:
    """Return a table of the demand by model and time, in input tokens/s (column "tps").

    It is the measured demand, or the forecast if none was measured. With ``deferrable``, only
    deferrable tiers count, else only the others. A last row at the end of the window repeats the
    last bin. The table is empty if the run has no demand.
    """
    window, demand = frame.window, tables("demand")
    if not demand.is_empty():
        demand = demand.filter(pl.col("time") >= window.start, pl.col("time") < window.end)
    if not demand.is_empty():
        rate = pl.col("input_tokens") / window.bin_s
    else:  # a window in the future has no measured demand
        demand, rate = tables("forecast"), pl.col("mean")
    if demand.is_empty():
        return demand
    wanted = demand.filter(pl.col("tier").is_in(list(frame.deferrable)) == deferrable)
    by_model = wanted.group_by("time", "model").agg(rate.sum().alias("tps")).sort("time")
    return to_end(by_model, window.end)


def capacity_of(tables: Tables, policy: str) -> pl.DataFrame:
    """Return a table of the capacity by model and time of change, in input tokens/s ("tps").

    It is that of the replicas that serve under ``policy``; "": those of a plan alone.
    """
    stored = tables("capacity") if policy else tables("plan")
    if stored.is_empty():
        return stored
    # Rows of model, region and time; a plan has one for each pool, all with the same capacity.
    if policy:
        rows = stored.filter(pl.col("policy") == policy).sort("time")
    else:
        columns = ("time", "model", "region", "capacity_tps")
        rows = stored.rename({"period_start": "time"}).select(columns).unique().sort(columns)
    rows = rows.rename({"capacity_tps": "tps"})
    totals = [
        _summed_over(model_rows, "region").with_columns(model=pl.lit(model_rows["model"][0]))
        for model_rows in rows.partition_by("model")
    ]
    return pl.concat(totals) if totals else rows.clear()


def _summed_over(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the column "tps" by "time", summed over the values of ``column``, such as regions.

    A rate applies until the next row of its region. Regions change at different times, so each is
    read at the times of all changes.
    """
    moments = rows.select("time").unique().sort("time")
    parts = [
        moments.join_asof(part.select("time", "tps").sort("time"), on="time")
        for part in rows.partition_by(column)
    ]
    return pl.concat(parts).group_by("time").agg(pl.col("tps").sum()).sort("time")


def load_of(demand: pl.DataFrame, capacity: pl.DataFrame) -> Load | None:
    """Return demand and capacity at the times of ``demand``; None if one of them is empty.

    Both tables have one row per model and time, with the rate in column "tps".
    """
    if demand.is_empty() or capacity.is_empty():
        return None
    time = pl.col("time").cast(demand.schema["time"])
    capacity_changes = capacity.select(time, "model", pl.col("tps").alias("capacity")).sort("time")
    # A capacity applies until the next change. Before the first, it is 0.
    joined = demand.sort("time").join_asof(
        capacity_changes, on="time", by="model", check_sortedness=False
    )
    joined = joined.with_columns(pl.col("capacity").fill_null(0.0))
    shortage = (pl.col("tps") - pl.col("capacity")).clip(lower_bound=0).alias("short")
    joined = joined.with_columns(shortage)
    totals = joined.group_by("time").agg(pl.col("tps", "capacity", "short").sum().round(1))
    totals = totals.sort("time")
    return Load(
        times=tuple(totals["time"]),
        demand=tuple(totals["tps"]),
        capacity=tuple(totals["capacity"]),
        short=tuple(totals["short"]),
        models=tuple(joined.filter(pl.col("short") > 0)["model"].unique().sort()),
    )


def demand_chart(
    tables: Tables,
    frame: Frame,
    policy: str,
    label: str,
    today: str | None,
    work: Sequence[DeferrableWork] = (),
    *,
    meets_slo: bool = False,
) -> tuple[Chart | None, Load | None]:
    """Return (chart, load) of demand and capacity over time.

    The chart shows the forecast band, the capacity of ``policy`` (named ``label``) and of the
    baseline ``today``, and the demand above capacity. Deferrable demand is on top: as it arrives,
    or as the plan moves it (``work``). If a simulation ``meets_slo``, queues absorb the demand
    above capacity. The chart is None without demand, the load is None without a capacity over time.
    """
    demand = demand_of(tables, frame)
    if demand.is_empty():
        return None, None
    total = thin(demand.group_by("time").agg(pl.col("tps").sum().round(1)).sort("time"), "tps")
    demand_label = "Latency-sensitive demand" if frame.deferrable else "Demand"
    series = [
        *_band(tables("forecast"), frame),
        *_deferrable(total, tables, frame, work),
        Series(demand_label, tuple(total["time"]), tuple(total["tps"]), Role.DEMAND),
        *_capacity_line(tables, policy, frame, f"Capacity, {label}", Role.RECOMMENDED),
    ]
    load = load_of(demand, capacity_of(tables, policy))
    if load is not None:
        served = [needed - short for needed, short in zip(load.demand, load.short, strict=True)]
        unserved = shortfall(load.times, load.demand, served)
        if unserved and meets_slo:
            series.append(replace(unserved, label="Demand in queues", role=Role.RISK))
        elif unserved:
            series.append(replace(unserved, label=f"Demand above {load.capacity_words}"))
    # A baseline far above the other lines is cut off at the top of the y axis; None: not cut.
    top = None
    if today is not None and today != policy:
        name = CURRENT_CAPACITY if today == TODAY else "Capacity, baseline"
        for line in _capacity_line(tables, today, frame, name, Role.BASELINE):
            top = _top_below(line, series)
            if top is not None:
                line = replace(line, label=f"{name}: {figure(_highest([line]))}, off scale")
            series.append(line)
    y_axis = replace(TOKENS, top=top)
    return Chart("Demand and capacity", Axis(), y_axis, tuple(series), bare=True), load


def _highest(series: Sequence[Series]) -> float:
    """Return the highest value of ``series``."""
    return max((y or 0.0 for line in series for y in line.y), default=0.0)


def _top_below(baseline: Series, series: Sequence[Series]) -> float | None:
    """Return the top of the y axis if ``baseline`` is much higher than ``series``; else None.

    The whole baseline would press everything else into the lowest part of the chart.
    """
    highest = _highest(series)
    is_off_scale = highest > 0 and _highest([baseline]) > OFF_SCALE * highest
    return 1.1 * highest if is_off_scale else None


def _deferrable(
    total: pl.DataFrame, tables: Tables, frame: Frame, work: Sequence[DeferrableWork]
) -> Iterator[Series]:
    """Yield the deferrable demand as a band on top of ``total``, the other demand.

    The capacity serves both. With ``work``, the band is the work that the plan does in each period.
    """
    deferrable = total.clear()
    label = "Deferrable demand (stacked)"
    if work:
        first_period, next_time = [*sorted({row.period for row in work}), frame.window.end][:2]
        period_s = (next_time - first_period).total_seconds()
        rates = [row.planned / period_s for row in work]  # all periods have this length
        deferrable = pl.DataFrame({"time": [row.period for row in work], "tps": rates})
        label = "Deferrable demand as moved (stacked)"
    elif frame.deferrable:
        deferrable = demand_of(tables, frame, deferrable=True)
    if deferrable.is_empty():
        return
    time = pl.col("time").cast(total.schema["time"])
    sums = deferrable.group_by(time).agg(pl.col("tps").sum().alias("deferrable")).sort("time")
    # A rate applies until the next. Before the first, it is 0.
    joined = total.join_asof(sums, on="time").with_columns(pl.col("deferrable").fill_null(0.0))
    base, top = joined["tps"], (joined["tps"] + joined["deferrable"]).round(1)
    yield Series(label, tuple(joined["time"]), tuple(top), Role.DEFERRABLE, Shape.BAND, tuple(base))


def replicas_chart(tables: Tables, frame: Frame, policy: str) -> Chart | None:
    """Return a stacked chart of the serving replicas of each pool; None if the run has none.

    They are those under ``policy``; "": those of a plan alone. All policies of a run have the same
    pools in the same order, and so the same colours.
    """
    rows = _simulated_replicas(tables) if policy else tables("plan")
    if rows.is_empty():
        return None
    if not policy:
        rows = rows.rename({"period_start": "time", "target": "ready"})
    # Name the pools over all policies, before those of this policy are chosen.
    rows = rows.with_columns(_pool_name(rows).alias("pool"))
    rows, pools = _with_other_pools(rows)
    shown = rows.filter(pl.col("policy") == policy) if policy else rows
    if shown.is_empty():
        return None
    counts = [pl.col("ready").filter(pl.col("pool") == pool).sum().alias(pool) for pool in pools]
    wide = shown.group_by("time").agg(counts).sort("time")
    wide = changes(to_end(wide, frame.window.end), pools)
    times = tuple(wide["time"])
    series = [Series(pool, times, tuple(wide[pool].round(0)), shape=Shape.AREA) for pool in pools]
    title = "Replicas per pool"
    return Chart(title, Axis(), REPLICAS, tuple(series), stacked=True, half=True, bare=True)


def _with_other_pools(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Return (rows, pools): of too many pools for a chart, the smallest become one pool."""
    totals = rows.group_by("pool", maintain_order=True).agg(pl.col("ready").sum())
    pools = totals["pool"].to_list()
    if len(pools) <= MOST_POOLS:
        return rows, pools
    largest = set(totals.top_k(MOST_POOLS - 1, by="ready")["pool"])
    is_shown = pl.col("pool").is_in(largest)
    rows = rows.with_columns(pl.when(is_shown).then("pool").otherwise(pl.lit(OTHER_POOLS)))
    return rows, [*(pool for pool in pools if pool in largest), OTHER_POOLS]


def replicas_of(tables: Tables, policy: str) -> pl.DataFrame:
    """Return the table of simulated replicas of a policy, without borrowed GPUs; may be empty."""
    simulated = _simulated_replicas(tables)
    return simulated if simulated.is_empty() else simulated.filter(pl.col("policy") == policy)


def _simulated_replicas(tables: Tables) -> pl.DataFrame:
    """Return the table of simulated replicas of all policies, without borrowed GPUs."""
    simulated = tables("replicas")
    if simulated.is_empty():
        return simulated
    return simulated.filter(~pl.col("arrangement").str.ends_with(BORROWED))


def _pool_name(rows: pl.DataFrame) -> pl.Expr:
    """Return the expression of a pool's name: the values of the columns that tell pools apart."""
    columns = ["model"]
    for column in ("region", "role", "arrangement"):
        longer = [*columns, column]
        if column in rows.columns and rows.n_unique(longer) > rows.n_unique(columns):
            columns = longer
    name = pl.concat_str([pl.col(column) for column in columns], separator=" ")
    # Leave out "mixed". Arrangements end with the role, which is a column of its own.
    return name.str.replace(" mixed( |$)", "${1}").str.replace("(, prefill|, decode)$", "")


def _band(forecast: pl.DataFrame, frame: Frame) -> Iterator[Series]:
    """Yield the band of the forecast, from its 10th to its 90th percentile."""
    if forecast.is_empty() or "p10" not in forecast.columns:
        return
    rows = forecast.filter(~pl.col("tier").is_in(list(frame.deferrable)))
    label = band_label(rows)
    rows = rows.group_by("time").agg(pl.col("p10", "p90").sum().round(1)).sort("time")
    rows = thin(to_end(rows, frame.window.end), "p10", "p90")
    if not rows.is_empty():
        times = tuple(rows["time"])
        yield Series(label, times, tuple(rows["p90"]), Role.FORECAST, Shape.BAND,
                     tuple(rows["p10"]))  # fmt: skip


def band_label(rows: pl.DataFrame) -> str:
    """Return the label of the band from P10 to P90, marked if it is summed over several series.

    Such a band is wider than that of the total demand, because series do not peak together.
    """
    several = rows["time"].is_duplicated().any()
    return "Forecast P10 to P90 (summed over series)" if several else "Forecast P10 to P90"


def _capacity_line(
    tables: Tables, policy: str, frame: Frame, label: str, role: Role
) -> Iterator[Series]:
    """Yield the capacity of a policy over time, summed over models; nothing if not known."""
    rows = capacity_of(tables, policy)
    if rows.is_empty():
        return
    total = changes(to_end(_summed_over(rows, "model"), frame.window.end), ["tps"])
    yield Series(label, tuple(total["time"]), tuple(total["tps"].round(1)), role, Shape.STEP)


def changes(rows: pl.DataFrame, values: Sequence[str]) -> pl.DataFrame:
    """Return the rows where one of the columns ``values`` changes, and the last row.

    Too many rows for a chart are averaged as in ``thin``.
    """
    changed = pl.any_horizontal(
        (pl.col(name) != pl.col(name).shift(1)).fill_null(value=True) for name in values
    )
    is_last = pl.int_range(pl.len()) == pl.len() - 1
    return thin(rows.filter(changed | is_last), *values)


def thin(rows: pl.DataFrame, *values: str) -> pl.DataFrame:
    """Return the rows, or if a chart cannot show so many, means of the columns ``values``.

    The means are over equal spans of time.
    """
    if rows.height <= MOST_POINTS:
        return rows
    epoch_ms = rows["time"].dt.epoch("ms")
    span_ms = max(1, round((epoch_ms[-1] - epoch_ms[0]) / MOST_POINTS))  # of one point
    means = (pl.col(name).mean() for name in values)
    return rows.group_by_dynamic("time", every=f"{span_ms}ms").agg(means)


def to_end(rows: pl.DataFrame, end: datetime) -> pl.DataFrame:
    """Return ``rows`` with those of the latest time repeated at ``end``, the end of the chart."""
    if rows.is_empty():
        return rows
    until = pl.lit(end).cast(rows.schema["time"])
    last = rows.filter(pl.col("time") == pl.col("time").max(), pl.col("time") < until)
    return pl.concat([rows, last.with_columns(until.alias("time"))])
