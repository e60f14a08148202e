"""The tables of policies that page and command line show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.exports.figure_table import (
    Cell,
    FigureTable,
    Head,
    Line,
    figure_table,
    shown,
    text_table,
)
from planner.studies.columns import HOURS
from planner.studies.results.figures import (
    HOUR_TABLE,
    POLICIES,
    POLICY_TABLE,
    REQUEST_TABLE,
    START_TABLE,
)
from planner.templatetags.headroom import percent, setting
from simulation.results import SOURCES

Policies = Sequence[tuple[str, str, Mapping[str, Any]]]  # name, label, figures as JSON


def labelled(row: Mapping[str, Any]) -> str:
    """A policy's label wherever figures of it stand: what looked ahead carries the word."""
    return f"{row['label']}, in hindsight" if row.get("hindsight") else str(row["label"])


def policy_table(
    policies: Policies, tiers: Sequence[str], targets: Mapping[str, str] | None = None
) -> FigureTable:
    """What policies are compared by; ``targets`` are words of each tier's."""
    spread = {"slo_attainment": tiers, "ttft_p95_ms": tiers}
    return figure_table(POLICIES, POLICY_TABLE, policies, spread=spread, notes=targets, note="note")


def request_table(policies: Policies) -> FigureTable:
    return figure_table(POLICIES, REQUEST_TABLE, policies)


def start_table(policies: Policies) -> FigureTable:
    """Of the policies that started or lost anything, or were refused a start."""
    began = [
        (name, label, row)
        for name, label, row in policies
        if any((row.get("starts") or {}).values())
        or row.get("failures")
        or row.get("refused_starts")
    ]
    return figure_table(POLICIES, START_TABLE, began, spread={"starts": SOURCES})


def hour_table(policies: Policies) -> FigureTable:
    """The GPU-hours of each policy by kind, each with its share of all; kinds that none has are
    left out, as are runs of before these were kept."""
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
    """What to copy of a policy, as lines of a terminal."""
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
    """The figures of these policies of a result, as lines of a terminal."""
    policies = [
        (name, labelled(result["policies"][name]), result["policies"][name]) for name in names
    ]
    tables = (
        policy_table(policies, list(policies[0][2]["slo_attainment"])),
        request_table(policies),
        start_table(policies),
    )
    return [line for table in tables if table.lines for line in (*text_table(table, "Policy"), "")]
