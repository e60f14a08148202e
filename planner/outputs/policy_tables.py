"""Build the tables of policies that pages and the command line show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.domain.columns import HOURS
from planner.domain.formats import NOTHING, figure, percent
from planner.domain.results.figures import (
    HOUR_TABLE,
    POLICIES,
    POLICY_TABLE,
    REQUEST_TABLE,
    START_TABLE,
)
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.outputs.table_text import (
    Cell,
    FigureTable,
    Head,
    Line,
    figure_table,
    figure_text,
    text_table,
)
from planner.templatetags.headroom import setting
from simulation.results import SOURCES

Policies = Sequence[tuple[str, str, Mapping[str, Any]]]  # name, label, figures as JSON


def policy_label(row: Mapping[str, Any]) -> str:
    """Return the label of a policy, marked if the policy uses future data."""
    return f"{row['label']}, in hindsight" if row.get("hindsight") else str(row["label"])


def policy_table(
    policies: Policies, tiers: Sequence[str], targets: Mapping[str, str] | None = None
) -> FigureTable:
    """Return the table that compares policies; ``targets`` are texts by tier."""
    spread = {"slo_attainment": tiers, "ttft_p95_ms": tiers}
    return figure_table(POLICIES, POLICY_TABLE, policies, spread=spread, notes=targets, note="note")


def request_table(policies: Policies) -> FigureTable:
    """Return the request totals of policies."""
    return figure_table(POLICIES, REQUEST_TABLE, policies)


def start_table(policies: Policies) -> FigureTable:
    """Return the starts and failures of the policies that have any."""
    began = [
        (name, label, row)
        for name, label, row in policies
        if any((row.get("starts") or {}).values())
        or row.get("failures")
        or row.get("refused_starts")
    ]
    return figure_table(POLICIES, START_TABLE, began, spread={"starts": SOURCES})


def hour_table(policies: Policies) -> FigureTable:
    """Return the GPU-hours of each policy by kind, each with its share of the total.

    The table omits kinds that no policy uses, and policies of earlier releases without these
    figures.
    """
    policies = [policy for policy in policies if "idle_gpu_hours" in policy[2]]
    kinds = [
        column
        for column in POLICIES.on(HOUR_TABLE)
        if any(row[column.name] for _, _, row in policies)
    ]
    heads = tuple(Head(text) for text in (*(kind.heads[HOUR_TABLE] for kind in kinds), "All"))
    lines = []
    for name, label, row in policies:
        every = row["gpu_hours"] + row["donated_gpu_hours"]
        cells = [
            Cell(
                figure_text(row[kind.name], HOURS),
                percent(row[kind.name] / every if every else None),
            )
            for kind in kinds
        ]
        lines.append(Line(name, label, (*cells, Cell(figure_text(every, HOURS)))))
    return FigureTable(heads, tuple(lines))


def settings_words(result: Mapping[str, Any], name: str) -> list[str]:
    """Return the parameters of a policy as lines of a terminal."""
    row = result["policies"][name]
    if not row.get("settings"):
        return []
    lines = [
        f"  {' of '.join(filter(None, (setting_row['what'], setting_row['where'])))}: "
        f"{setting(setting_row['value'])}"
        for setting_row in row["settings"]
    ]
    return [f"What to copy of {row['label']}:", *lines]


def table_of_test_days(result: Mapping[str, Any]) -> FigureTable:
    """Return a row per test day; each policy has its cost there, and its SLO attainment below."""
    days = result.get("test_days") or []
    names = list(dict.fromkeys(name for day in days for name in day["policies"]))
    known = result.get("policies") or {}
    labels = [known[name]["label"] if name in known else name for name in names]
    heads = (Head("Required", numeric=False), *(Head(f"{label} ($)") for label in labels))
    lines = [
        Line(
            day["kind"],
            day["name"],
            (
                Cell("yes" if day["required"] else "no", numeric=False),
                *(_on_day(day["policies"].get(name)) for name in names),
            ),
            day["not_applicable"],
        )
        for day in days
    ]
    return FigureTable(heads, tuple(lines))


def _on_day(figures: Mapping[str, Any] | None) -> Cell:
    """Return the cell of a policy on a test day; NOTHING if it was not simulated there."""
    if figures is None:
        return Cell(NOTHING)
    return Cell(
        figure(figures["cost_usd"]), _attainment_text(figures["attainment"]), figures["passes"]
    )


def levels_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recommendations by level of assurance, in order; the database keeps no order."""
    known = result.get("assurance") or {}
    return {level: known[level] for level in LEVELS if level in known}


def assurance_table(result: Mapping[str, Any]) -> FigureTable:
    """Return a row per level of assurance: its policy, expected cost and expected attainment."""
    levels = levels_of(result)
    heads = (
        Head("Policy", numeric=False),
        Head("Parameters", numeric=False),
        Head("Passes required days", numeric=False),
        Head("Expected cost ($)", ("80% interval",)),
        Head("Expected SLO attainment", numeric=False),
    )
    lines = [
        Line(
            level,
            level,
            (
                Cell(row["label"], numeric=False),
                Cell(parameter_words(row["parameters"]), numeric=False),
                Cell("yes" if row["qualifies"] else "no", numeric=False, met=row["qualifies"]),
                _interval(row["expected"]["cost_usd"]),
                Cell(
                    _attainment_text({
                        tier: interval and interval["mean"]
                        for tier, interval in row["expected"]["attainment"].items()
                    }),
                    numeric=False,
                ),
            ),
            f"Fails: {', '.join(row['failing'])}" if row["failing"] else "",
        )
        for level, row in levels.items()
    ]  # fmt: skip
    return FigureTable(heads, tuple(lines))


def parameter_words(parameters: Mapping[str, Any]) -> str:
    """Return the parameters of a policy as text."""
    return ", ".join(f"{name} {setting(value)}" for name, value in parameters.items()) or NOTHING


def _interval(interval: Mapping[str, Any] | None) -> Cell:
    """Return the mean of a figure with the ends of its interval below."""
    if interval is None:
        return Cell(NOTHING)
    ends = f"{figure(interval['low'])} to {figure(interval['high'])}"
    return Cell(figure(interval["mean"]), ends)


def _attainment_text(attainment: Mapping[str, float | None]) -> str:
    """Return the SLO attainment of the tiers that have requests."""
    known = [f"{tier} {percent(share)}" for tier, share in attainment.items() if share is not None]
    return ", ".join(known) or NOTHING


def recommendation_words(result: Mapping[str, Any]) -> list[str]:
    """Return the test days and the levels of assurance as lines of a terminal."""
    tables = (("Test day", table_of_test_days(result)), ("Assurance", assurance_table(result)))
    return [line for first, table in tables if table.lines
            for line in (*text_table(table, first), "")]  # fmt: skip


def policy_words(result: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the figures of policies as lines of a terminal."""
    policies = [
        (name, policy_label(result["policies"][name]), result["policies"][name]) for name in names
    ]
    tables = (
        policy_table(policies, list(policies[0][2]["slo_attainment"])),
        request_table(policies),
        start_table(policies),
    )
    return [line for table in tables if table.lines for line in (*text_table(table, "Policy"), "")]
