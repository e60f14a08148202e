"""Show how each tier, model and region was served: rows of one table that the user selects."""

from collections.abc import Mapping

import polars as pl

from planner.domain.replay.detail import ALL, GROUPED
from planner.domain.report import Head, Table, table
from planner.domain.reports.policies import Row, columns_of
from planner.domain.results.figures import GROUP_TABLE, GROUPS
from planner.models import Run
from planner.outputs.render.html import display_table
from planner.selectors.runs import run_table, run_tables, stored_result
from planner.web.pages.selects import Select, policy_select
from planner.web.request import TemplateContext

EACH = "each"  # value of a field: a row for every tier, model or region
MOST_ROWS = 200  # rows on the page; the CSV has all


def groups_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the rows of served requests, for the policy and grouping that ``params`` choose.

    Rows are by tier, model and region. Each is grouped by EACH of its values (the default of tier),
    by ALL together (that of the others), or filtered by one value.
    """
    if "groups" not in run_tables(run):
        return {"run": run, "group_table": None}
    result, groups = stored_result(run), run_table(run, "groups")
    policy = policy_select(params, result, groups)
    rows = groups.filter(pl.col("policy") == policy.chosen)
    selects = [policy]
    for name in GROUPED:  # tier, model and region
        choices = {ALL: f"all {name}s", EACH: f"each {name}"}
        choices |= {value: value for value in rows[name].unique().sort() if value != ALL}
        default = EACH if name == "tier" and name not in params else ALL
        select = Select.of(params, name, name.title(), choices, default)
        selects.append(select)
        if select.chosen == EACH:
            rows = rows.filter(pl.col(name) != ALL)
        else:
            rows = rows.filter(pl.col(name) == select.chosen)
    rows = rows.with_columns(lost=pl.col("arrived") - pl.col("completed"))
    return {
        "run": run,
        "group_selects": selects,
        "group_table": display_table(_table(rows.head(MOST_ROWS)), result.clock, live=True),
        "group_more": max(0, rows.height - MOST_ROWS),
    }


def _table(rows: pl.DataFrame) -> Table:
    """Return the table of groups, a row per tier, model and region."""
    items = [Row(row["tier"], row) for row in rows.to_dicts()]
    tier = (Head("Tier"), lambda row: row.title)
    return table(items, tier, *columns_of(GROUP_TABLE, items, GROUPS))
