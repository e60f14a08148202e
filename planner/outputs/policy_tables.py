"""Build the tables of policies that pages and the command line show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.domain.columns import HOURS
from planner.domain.formats import percent
from planner.domain.results.figures import (
    HOUR_TABLE,
    POLICIES,
    POLICY_TABLE,
    REQUEST_TABLE,
    START_TABLE,
)
from planner.outputs.table_text import (
    Cell,
    FigureTable,
    Head,
    Line,
    figure_table,
    shown,
    text_table,
)
from planner.templatetags.headroom import setting
from simulation.results import SOURCES

Policies = Sequence[tuple[str, str, Mapping[str, Any]]]  # name, label, figures as JSON


def labelled(row: Mapping[str, Any]) -> str:
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
            Cell(shown(row[kind.name], HOURS), percent(row[kind.name] / every if every else None))
            for kind in kinds
        ]
        lines.append(Line(name, label, (*cells, Cell(shown(every, HOURS)))))
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


def policy_words(result: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the figures of policies as lines of a terminal."""
    policies = [
        (name, labelled(result["policies"][name]), result["policies"][name]) for name in names
    ]
    tables = (
        policy_table(policies, list(policies[0][2]["slo_attainment"])),
        request_table(policies),
        start_table(policies),
    )
    return [line for table in tables if table.lines for line in (*text_table(table, "Policy"), "")]
