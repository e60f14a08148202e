"""Build the context of the results page from a run's result document and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from planner.domain.formats import percent
from planner.models import Run
from planner.outputs.policy_tables import (
    assurance_table,
    hour_table,
    policy_label,
    policy_table,
    request_table,
    start_table,
    table_of_test_days,
)
from planner.selectors.policies import default_policy, policies_in_order
from planner.selectors.runs import run_result, run_table, run_tables
from planner.selectors.savings import MEASURES, savings
from planner.web.charts.over_time import forecast_figure, replica_figure

ALL = ""  # the choice "all models and regions"

# Words of the provenance table that mark the inputs of each measure.
RESTS_ON = {
    "gpu_hours": ("profile", "speed"),
    "cost_usd": ("price",),
    "energy_kwh": ("power", "pue"),
    "carbon_kg": ("carbon", "power", "pue"),
}
ASSUMED = "assumed"
BORROWED = " borrowed"  # ending of an arrangement whose GPUs hold copies for others
HOURS_NOTE = (
    "Busy: an iteration runs. Idle: up, and nothing to do. Starting: asked for and not serving "
    "yet, which burns GPU time. These three are paid for; hours lent as spot come beside them."
)


@dataclass(frozen=True, slots=True)
class Card:
    """One saving: the values of the policy and of the baseline, and their provenance."""

    measure: str
    value: float
    baseline: float
    saved: float
    fraction: float | None
    equal: float | None  # fraction at the baseline's attainment, if the attainments differ
    kind: str  # provenance: modelled or assumed
    sources: str


def results_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that the templates of a completed run need.

    ``params`` are the user's choices.
    """
    result = run_result(run)
    names = run_tables(run)
    window = result.get("window") or {}
    context: dict[str, Any] = {
        "run": run,
        "result": result,
        "tables": names,
        "window": window,
        "clock": window.get("clock", "utc"),
    }
    context |= savings_context(result, params)
    context |= charts_context(run, names, context, params)
    context |= tables_context(run, names, result)
    return context


def savings_context(result: dict[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
    """Return the cards of one policy against one baseline.

    The cards are missing for kinds of run without policies to compare.
    """
    policies = policies_in_order(result)
    policy = params.get("policy", "")
    if policy not in policies:
        policy = default_policy(result)
    baselines = [name for name in result.get("baselines") or [] if name in policies]
    baseline = params.get("baseline", "")
    if baseline not in baselines:
        baseline = result.get("baseline") or (baselines[0] if baselines else "")
    context: dict[str, Any] = {"policies": policies, "policy": policy, "baseline": baseline}
    context["baselines"] = baselines
    met = (policies.get(policy) or {}).get("slo_met") or {}
    context["missed_tiers"] = sorted(tier for tier, in_time in met.items() if not in_time)
    if policy and baseline in policies and len(policies) > 1:
        against: dict[str, Any] = savings(result, baseline)[policy]
        context["cards"] = [
            Card(measure, **against[measure], **rests_on(result, measure)) for measure in MEASURES
        ]
    return context


def rests_on(result: dict[str, Any], measure: str) -> dict[str, Any]:
    """Return the provenance of a measure.

    Every figure is simulated, so it is "modelled" at best. It is "assumed" if one of its inputs is.
    """
    used = [
        fact
        for fact in result.get("provenance") or []
        if any(word in fact["what"].lower() for word in RESTS_ON[measure])
    ]
    assumed = any(fact["kind"] == ASSUMED for fact in used)
    lines = dict.fromkeys(f"{fact['what']}: {fact['kind']}, {fact['source']}" for fact in used)
    sources = "; ".join(["Simulated by this run", *lines])
    return {"kind": ASSUMED if assumed else "modelled", "sources": sources}


def charts_context(
    run: Run, names: list[str], context: dict[str, Any], params: Mapping[str, str]
) -> dict[str, Any]:
    """Return the figures over time, for all models and regions or for the chosen pair."""
    clock, result = context["clock"], context["result"]
    forecast, unit, units = forecast_lines(run, names, params.get("unit", ""))
    steps, labels = replica_steps(run, names, context["policies"])
    pools = pool_names(forecast, steps)
    pool = params.get("pool", ALL)
    chosen = pools.get(pool)
    out: dict[str, Any] = {
        "pools": pools,
        "pool": pool if chosen else ALL,
        "unit": unit,
        "units": units,
    }
    if steps is not None:
        out["replica_figure"] = replica_figure(
            steps,
            demand_lines(run, names, context["result"]),
            labels=labels,
            shown=[context["policy"], context["baseline"]] if context["policies"] else list(labels),
            pool=chosen,
            clock=clock,
            capacity=capacity_lines(run, names),
            forecast=_to_its_end(at_once(run_table(run, "forecast"), result), result)
            if "forecast" in names
            else None,
        )
    if forecast is not None and not forecast.is_empty():
        out["forecast_figure"] = forecast_figure(
            forecast, pool=chosen, clock=clock, unit=units.get(unit, unit)
        )
        out["forecast_label"] = (
            f"Actual demand, mean forecast and its 10 to 90 percent band, {units.get(unit, unit)}"
        )
    return out


def forecast_lines(
    run: Run, names: list[str], chosen: str
) -> tuple[pl.DataFrame | None, str, dict[str, str]]:
    """Return the forecast table, its unit and the units to choose from.

    A scenario has one unit, so its units are empty. A trace has several: the result uses
    ``chosen``, or the first one if the trace does not have ``chosen``.
    """
    if "forecast" in names:
        # Extend a single bin to a line over its duration: one point would be invisible.
        table = _to_its_end(run_table(run, "forecast"), run_result(run))
        return table, "input tokens/s", {}
    if "series" in names:
        table = run_table(run, "series")
        units = {
            unit: f"{unit.replace('_', ' ')} per bin"
            for unit in table["unit"].unique(maintain_order=True)
        }
        unit = chosen if chosen in units else next(iter(units))
        return table.filter(pl.col("unit") == unit), unit, units
    return None, "", {}


def at_once(table: pl.DataFrame, result: dict[str, Any]) -> pl.DataFrame:
    """Drop deferrable tiers, and so keep the demand that must be served on arrival."""
    waiting = result.get("deferrable") or []
    return table.filter(~pl.col("tier").is_in(waiting)) if waiting else table


def capacity_lines(run: Run, names: list[str]) -> pl.DataFrame | None:
    """Return the capacity of each policy's replicas: as simulated, else as planned."""
    if "capacity" in names:
        return run_table(run, "capacity")
    if "plan" in names and "replicas" not in names:
        plan = plan_to_its_end(run)
        columns = plan.select(pl.lit("lt-i").alias("policy"), "time", "model", "region",
                           "capacity_tps")  # fmt: skip
        return columns.unique(["time", "model", "region"])
    return None


def plan_to_its_end(run: Run) -> pl.DataFrame:
    """Return the plan by period, with its last rows repeated at the end of the window."""
    return _to_its_end(run_table(run, "plan").rename({"period_start": "time"}), run_result(run))


def _to_its_end(table: pl.DataFrame, result: dict[str, Any]) -> pl.DataFrame:
    """Repeat the last rows at the end of the window, since a bin or period lasts until the next."""
    end = (result.get("window") or {}).get("end")
    if end is None or table.is_empty():
        return table
    until = pl.lit(datetime.fromisoformat(end)).cast(table.schema["time"])
    last = table.filter(pl.col("time") == pl.col("time").max(), pl.col("time") < until)
    return pl.concat([table, last.with_columns(until.alias("time"))])


def demand_lines(run: Run, names: list[str], result: dict[str, Any]) -> pl.DataFrame | None:
    """Return the input tokens per second of the tiers that are not deferrable.

    Use measured demand, or the forecast for a window in the future.
    """
    window = result.get("window") or {}
    if "demand" in names and window:
        start, end = (datetime.fromisoformat(window[key]) for key in ("start", "end"))
        inside = (pl.col("time") >= start) & (pl.col("time") < end)
        rate = (pl.col("input_tokens") / window["bin_s"]).alias("input_tps")
        demand = run_table(run, "demand").filter(inside).with_columns(rate)
        if not demand.is_empty():
            return _to_its_end(at_once(demand, result), result)
    if "forecast" in names:
        ahead = at_once(run_table(run, "forecast"), result).rename({"mean": "input_tps"})
        return _to_its_end(ahead, result)
    return None


def replica_steps(
    run: Run, names: list[str], policies: dict[str, Any]
) -> tuple[pl.DataFrame | None, dict[str, str]]:
    """Return replicas over time and the labels of the policies.

    Use the simulated replicas, or the planned ones without a simulation.
    """
    if "replicas" in names:
        labels = {name: policy_label(figures) for name, figures in policies.items()}
        steps = run_table(run, "replicas")
        steps = steps.filter(~pl.col("arrangement").str.ends_with(BORROWED))  # serve nobody
        return steps, labels or {name: name for name in steps["policy"].unique().sort()}
    if "plan" in names:
        plan = plan_to_its_end(run).rename({"target": "ready"})
        return plan.with_columns(pl.lit("lt-i").alias("policy")), {"lt-i": "Planned replicas"}
    return None, {}


def pool_names(*tables: pl.DataFrame | None) -> dict[str, tuple[str, str]]:
    """Map each choice of the pool menu above the charts to its (model, region)."""
    pairs = {
        (row[0], row[1])
        for table in tables
        if table is not None
        for row in table.select("model", "region").unique().iter_rows()
    }
    return {f"{model} / {region}": (model, region) for model, region in sorted(pairs)}


def tables_context(run: Run, names: list[str], result: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables on the page."""
    policies = policies_in_order(result)
    ranking = [name for name in result.get("ranking") or [] if name in policies]
    order = dict.fromkeys([*ranking, *policies])
    rows = [(name, policy_label(policies[name]), policies[name]) for name in order]
    tiers = run_table(run, "tiers").to_dicts() if "tiers" in names else []
    decisions = (result.get("plan") or {}).get("decisions") or []
    first = min((decision["period"] for decision in decisions), default=None)
    return {
        "policy_table": policy_table(
            rows,
            list(dict.fromkeys(row["tier"] for row in tiers)),
            {row["tier"]: f"target {percent(row['target'], 0)}" for row in tiers},
        ),
        "test_day_table": table_of_test_days(result),
        "assurance_table": assurance_table(result),
        "request_table": request_table(rows),
        "start_table": start_table(rows),
        "hour_table": hour_table(rows),
        "hour_note": HOURS_NOTE,
        "next_period": first,
        "next_decisions": [row for row in decisions if row["period"] == first],
        "periods": len({row["period"] for row in decisions}),
    }


def headline_context(run: Run) -> dict[str, Any]:
    """Return the part of a comparison that the first page shows."""
    result = run_result(run)
    window = result.get("window") or {}
    context = {"result": result, "window": window, "clock": window.get("clock", "utc")}
    context |= savings_context(result, {})
    names = run_tables(run)
    steps, labels = replica_steps(run, names, context["policies"])
    if steps is not None:
        chosen = [context["policy"], context["baseline"]]
        context["replica_figure"] = replica_figure(
            steps,
            demand_lines(run, names, result),
            labels={name: labels[name] for name in labels if name in chosen},
            shown=chosen,
            pool=None,
            clock=context["clock"],
            capacity=capacity_lines(run, names),
            height=360,
        )
    return context
