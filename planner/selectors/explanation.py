"""Explain a recommended number of replicas from the data of its run.

The chain has demand, forecast, size, plan, provenance and error of each pool.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from planner.domain.sizing.size_errors import SIMULATION
from planner.domain.traffic.window import words_of
from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_tables

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an explanation; ``about`` is the part of the page with its details."""

    name: str
    sentence: str
    about: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Why a pool has its largest number of replicas: the steps that lead to it."""

    model: str
    region: str
    replica: str
    replicas: int
    steps: tuple[Step, ...]


def explanation_chains(run: Run) -> tuple[Chain, ...]:
    """Return the steps from demand to its count for every pool; empty without a plan."""
    result = run_result(run)
    recommended, plan = result.get("recommended"), result.get("plan") or {}
    if not recommended or not plan.get("decisions"):
        return ()
    table = run_table(run, "plan") if "plan" in run_tables(run) else None
    counts = _largest_counts(result)
    chains = []
    for (model, region, replica), count in counts.items():
        pool = {"model": model, "region": region, "arrangement": replica}
        rows = [row for row in plan["decisions"] if _matches(row, pool)]
        busiest = max(rows, key=lambda row: row["target"], default=None)
        steps = (
            *_demand_steps(table, pool, busiest, result),
            *_forecast_steps(result, pool),
            *_size_steps(result, pool),
            *_plan_steps(result, recommended, table, pool, busiest, count),
            *_provenance_steps(result, pool),
            *_error_steps(result, pool),
        )
        chains.append(Chain(model, region, replica, count, steps))
    return tuple(chains)


def _largest_counts(result: Row) -> dict[tuple[str, str, str], int]:
    """Return the largest recommended number of replicas of each pool over time."""
    timetable = result["recommended"].get("timetable")
    if timetable and timetable["pools"]:
        return {
            (pool["replica"]["model"], pool["region"], pool["replica"]["arrangement"]): largest
            for i, pool in enumerate(timetable["pools"])
            if (largest := max((row["replicas"][i] for row in timetable["rows"]), default=0))
        }
    counts: dict[tuple[str, str, str], int] = {}
    for row in result["plan"]["decisions"]:
        key = row["model"], row["region"], row.get("arrangement", row["gpu"])
        counts[key] = max(counts.get(key, 0), row["target"])
    return {key: count for key, count in counts.items() if count}


def _matches(row: Row, pool: Row) -> bool:
    return all(row.get(name, value) == value for name, value in pool.items())


def _planned_row(table: pl.DataFrame | None, pool: Row, peak: Row | None) -> Row | None:
    """Return the pool's row of the plan with the most replicas, then the most demand."""
    if table is None or peak is None:
        return None
    rows = [row for row in table.to_dicts() if _matches(row, pool)]
    return max(rows, key=lambda row: (row["target"], row["demand_tps"]), default=None)


def _demand_steps(
    table: pl.DataFrame | None, pool: Row, peak: Row | None, result: Row
) -> Iterator[Step]:
    """Yield the step on the demand in the period with the most replicas."""
    row = _planned_row(table, pool, peak)
    if row is None:
        return
    clock = (result.get("window") or {}).get("clock", "utc")
    recommended = result["recommended"]
    factor = (recommended.get("parameters") or {}).get("load_factor", 1)
    factor_words = ""
    if recommended.get("follows_plan") and factor != 1:
        factor_words = f" This is {factor:g} times the forecast planned for: a tuned load_factor."
    largest = max(r["demand_tps"] for r in table.to_dicts() if _matches(r, pool))  # type: ignore[union-attr]
    yield Step(
        "Demand",
        f"{pool['model']} in {pool['region']} is planned for at most {largest:,.0f} input tokens/s "
        f"of the window, and {row['demand_tps']:,.0f} in the period from "
        f"{words_of(row['period_start'].timestamp(), clock)}, in which the plan has most replicas."
        f"{factor_words}",
        "charts",
    )


def _forecast_steps(result: Row, pool: Row) -> Iterator[Step]:
    """Yield a step for each forecast of the pool's model and region: method, error, quantile."""
    forecast = result.get("forecast") or {}
    percentiles = {row["tier"]: row for row in forecast.get("quantile") or []}
    for series in forecast.get("series") or []:
        if (series["model"], series["region"]) != (pool["model"], pool["region"]):
            continue
        percentile = percentiles.get(series["tier"])
        sentence = ""
        if percentile is not None:
            level = percentile["quantile"]
            level_words = "its mean" if level is None else f"its quantile {level:g}"
            times = "" if percentile["times"] == 1 else f"{percentile['times']:g} times "
            sentence = f" Planned for is {times}{level_words}. {percentile['why']}"
        peak_error = series.get("peak_wape")
        error_words = (
            "" if peak_error is None else f", with a peak error of {peak_error:.0%} in this window"
        )
        yield Step(
            "Forecast",
            f"Of {series['tier']} requests by {series['method']}{error_words}.{sentence}",
            "forecast",
        )


def _sized_row(result: Row, pool: Row) -> Row | None:
    """Return the capacity row of the pool's arrangement, or None."""
    rows = result.get("capacity") or []
    key = {name: pool[name] for name in ("model", "arrangement")}
    return next((row for row in rows if _matches(row, key)), None)


def _size_steps(result: Row, pool: Row) -> Iterator[Step]:
    """Yield the step on the capacity of one replica."""
    size = _sized_row(result, pool)
    if size is None:
        return
    yield Step(
        "Size",
        f"One {size.get('arrangement', size['gpu'])} alone sustains {size['input_tps']:,.0f} "
        f"input tokens/s ({size['max_rps']:.3g} requests/s) within {size['tier']}, "
        f"bound by {size['bound_by'].upper()}, by simulation.",
        "capacity",
    )


def _plan_steps(
    result: Row,
    recommended: Row,
    table: pl.DataFrame | None,
    pool: Row,
    peak: Row | None,
    count: int,
) -> Iterator[Step]:
    """Yield why another policy is recommended, if so, and the plan's replicas at ``peak``."""
    if not recommended.get("follows_plan"):
        reason = recommended.get("why") or recommended["sentence"]
        yield Step(
            "Policy",
            f"{recommended['label']} is recommended instead of the plan, with {count:,} replicas "
            f"here. {reason}",
            "policies",
        )
    row, size = _planned_row(table, pool, peak), _sized_row(result, pool)
    if row is None:
        return
    pool_sentence = ""
    pools = (size or {}).get("pool_tps") or []
    if 0 < row["target"] <= len(pools):
        pool_rate = pools[row["target"] - 1]
        pool_sentence = f" {row['target']:,} of these together are counted on for {pool_rate:,.0f}."
    binding = [
        limit["sentence"]
        for limit in result["plan"].get("binding") or []
        if pool["model"] in limit["sentence"] and pool["region"] in limit["sentence"]
    ]
    yield Step(
        "Plan",
        f"{row['target']:,} replicas then; all of {pool['model']} in {pool['region']} carry "
        f"{row['capacity_tps']:,.0f} input tokens/s."
        f"{pool_sentence} {' '.join(binding[:2])}".rstrip(),
        "plan",
    )


def _provenance_steps(result: Row, pool: Row) -> Iterator[Step]:
    """Yield the step on the sources of the pool's speed and price."""
    size = _sized_row(result, pool)
    facts = []
    if size is not None:
        facts.append(f"its speed is {size['provenance']} ({size['source']})")
        price = f"Price of {size['gpu']} in {pool['region']}"
        facts += [
            f"its price is {fact['kind']} ({fact['source']})"
            for fact in result.get("provenance") or []
            if fact["what"] == price
        ]
    if facts:
        words = "; ".join(facts)
        yield Step("Where from", f"{words[:1].upper()}{words[1:]}.", "sources")


def _error_steps(result: Row, pool: Row) -> Iterator[Step]:
    """Yield the step on the errors of simulation and profile."""
    words = [f"A simulated size is off by {SIMULATION.median:.1%} (1 in 20: {SIMULATION.p95:.1%})"]
    key = {name: pool[name] for name in ("model", "arrangement")}
    row = next(
        (error_row for error_row in result.get("profile_error") or [] if _matches(error_row, key)),
        None,
    )
    if row is not None and row["error"] is None:
        words.append(f"the error of its profile is unknown: {row['basis']}")
    elif row is not None:
        sensitivity = ""
        if row["replicas_if_slower"] is not None and row["replicas_if_faster"] is not None:
            sensitivity = (
                f"; a plan for the whole forecast has at most {row['replicas']:,} of it in all "
                f"regions, {row['replicas_if_slower']:,} if it is slower by its error, "
                f"{row['replicas_if_faster']:,} if faster"
            )
        words.append(f"its profile is off by {row['error']:.1%} ({row['basis']}){sensitivity}")
    yield Step(
        "How sure", ". ".join(word[:1].upper() + word[1:] for word in words) + ".", "profiles"
    )
