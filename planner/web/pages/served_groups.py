"""Show how each tier, model and region was served: rows of one table that the user selects."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from planner.domain.replay.detail import ALL, GROUPED
from planner.domain.report import Head, Table, table
from planner.domain.reports.policies import Row, columns_of
from planner.domain.results.figures import GROUP_TABLE, GROUPS
from planner.models import Run
from planner.outputs.render.html import shown_table
from planner.selectors.runs import run_table, run_tables, stored_result
from planner.web.request import TemplateContext

EACH = "each"  # value of a field: a row for every tier, model or region
MOST_ROWS = 200  # rows on the page; the CSV has all


@dataclass(frozen=True, slots=True)
class GroupField:
    """A field by which rows are grouped, the chosen value, and the values that it has."""

    name: str  # tier, model or region
    value: str  # ALL, EACH or one of ``there``
    there: list[str]


def groups_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the rows for the chosen policy and grouping; the default grouping is by tier."""
    if "groups" not in run_tables(run):
        return {"run": run, "group_table": None}
    result, groups = stored_result(run), run_table(run, "groups")
    labels = result.labels
    policy = params.get("policy", "")
    if policy not in labels:
        policy = result.default_policy or groups["policy"][0]
    rows = groups.filter(pl.col("policy") == policy)
    fields = []
    for name in GROUPED:
        values = [value for value in rows[name].unique().sort() if value != ALL]
        chosen = params.get(name, EACH if name == "tier" else ALL)
        value = chosen if chosen in (ALL, EACH, *values) else ALL
        rows = rows.filter(pl.col(name) != ALL if value == EACH else pl.col(name) == value)
        fields.append(GroupField(name, value, values))
    rows = rows.with_columns(lost=pl.col("arrived") - pl.col("completed"))
    return {
        "run": run,
        "group_policies": labels or {policy: policy},
        "group_policy": policy,
        "group_fields": fields,
        "group_table": shown_table(_table(rows.head(MOST_ROWS)), result.clock, live=True),
        "group_more": max(0, rows.height - MOST_ROWS),
        "group_all": ALL,
        "group_each": EACH,
    }


def _table(rows: pl.DataFrame) -> Table:
    """Return the table of groups, a row per tier, model and region."""
    items = [Row(row["tier"], row) for row in rows.to_dicts()]
    tier = (Head("Tier"), lambda row: row.title)
    return table(items, tier, *columns_of(GROUP_TABLE, items, GROUPS))
