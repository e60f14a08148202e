"""Chart plans and replays for their reports: replicas and demand over time, cost by policy."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import ceil
from typing import Any

import polars as pl

from planner.domain.formats import digits
from planner.domain.report import Axis, Chart, Role, Series, Shape
from planner.models import Run
from planner.outputs.policy_tables import policy_label
from planner.selectors.runs import run_table, run_tables

MOST = 600  # most steps of a line; more would not be visible


def charts_of(run: Run, result: dict[str, Any]) -> tuple[Chart, ...]:
    """Return the charts over time: replicas and demand."""
    names = run_tables(run)
    drawn = (
        _replicas(run, result) if "replicas" in names else None,
        _demand(run) if "forecast" in names else None,
    )
    return tuple(chart for chart in drawn if chart is not None)


def _replicas(run: Run, result: dict[str, Any]) -> Chart | None:
    """Return the ready replicas of all pools for the recommended policy and the baseline."""
    policies = result.get("policies") or {}
    take = (result.get("recommended") or {}).get("policy")
    shown = [name for name in dict.fromkeys((take, result.get("baseline"))) if name in policies]
    table = run_table(run, "replicas")
    if not shown:
        shown = table["policy"].unique(maintain_order=True).to_list()[:2]
    lines = []
    for name, role in zip(shown, (Role.RECOMMENDED, Role.BASELINE), strict=False):
        of_policy = table.filter(pl.col("policy") == name)
        ready = of_policy.group_by("time").agg(pl.col("ready").sum().round(2)).sort("time")
        label = policy_label(policies[name]) if name in policies else name
        lines.append(step_line(label, ready["time"].to_list(), ready["ready"].to_list(), role))
    note = "Serving replicas of all models and regions, in the replay."
    return Chart("Replicas over time", Axis(), Axis(unit="replicas"), tuple(lines), note)


def _demand(run: Run) -> Chart | None:
    """Return the actual, forecast and planned demand."""
    table = run_table(run, "forecast")
    columns = [column for column in ("actual", "mean", "planned") if column in table.columns]
    table = table.group_by("time").agg(pl.col(columns).sum()).sort("time")
    if table.is_empty():
        return None
    labels = {"actual": ("Actual", Role.DEMAND), "mean": ("Forecast", Role.FORECAST),
              "planned": ("Planned for", Role.CAPACITY)}  # fmt: skip
    lines = tuple(
        step_line(label, table["time"].to_list(), table[name].to_list(), role)
        for name, (label, role) in labels.items()
        if name in columns and table[name].sum()
    )
    return Chart(
        "Demand", Axis(), Axis(unit="input tokens/s"), lines, "All models, regions and tiers."
    )


def step_line(label: str, times: list[datetime], values: list[float], role: Role) -> Series:
    """Return a step line with the points at which its value changes, and its end.

    Long lines are thinned: each stretch keeps its largest value, so that peaks stay visible.
    """
    drawn = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    if len(drawn) > MOST:
        size = ceil(len(drawn) / MOST)
        drawn = [
            max(drawn[i : i + size], key=lambda k: values[k]) for i in range(0, len(drawn), size)
        ]
    last = times[-1] + (times[-1] - times[-2] if len(times) > 1 else timedelta(0))
    return Series(
        label, (*(times[i] for i in drawn), last), (*(values[i] for i in drawn), values[-1]),
        role, Shape.STEP,
    )  # fmt: skip


def costs_of(result: dict[str, Any]) -> tuple[Chart, ...]:
    """Return the chart of costs by policy; empty for a single policy."""
    policies = result.get("policies") or {}
    if len(policies) < 2:
        return ()
    take = (result.get("recommended") or {}).get("policy")
    groups: dict[tuple[str, Role], list[dict[str, Any]]] = {
        ("Recommended", Role.RECOMMENDED): [],
        ("Meets every SLO", Role.CAPACITY): [],
        ("Misses an SLO", Role.SHORTFALL): [],
    }
    recommended, meets, misses = groups.values()
    for name, figures in policies.items():
        group = recommended if name == take else meets if figures.get("meets_slo") else misses
        group.append(figures)
    series = tuple(
        Series(
            label,
            tuple(policy_label(row) for row in rows),
            tuple(float(row["cost_usd"]) for row in rows),
            role,
            Shape.BAR,
            notes=tuple(f"${digits(row['cost_usd'])}" for row in rows),
        )
        for (label, role), rows in groups.items()
        if rows
    )
    note = "Blue: recommended. Green: meets every SLO. Red: misses one."
    return (Chart("Cost of each policy", Axis(), Axis(unit="$"), series, note, horizontal=True),)
