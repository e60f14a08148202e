"""Build the comparison page of several runs: rows of figures, and charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from planner.domain.columns import SHARE, TEXT
from planner.domain.formats import NOTHING, figure, parameter_text, signed_percent
from planner.domain.reports.over_time import BORROWED, to_end
from planner.models import Run
from planner.outputs.render.figure import Figure
from planner.outputs.table_text import figure_text
from planner.selectors.run_comparison import RunComparison, compare_runs
from planner.selectors.run_comparison_figures import BETTER, ComparedFigure, Group, Setting
from planner.selectors.runs import run_table, run_tables, stored_result
from planner.web.charts.run_comparison import Course, course_figure
from planner.web.request import TemplateContext


@dataclass(frozen=True, slots=True)
class Cell:
    """The value of one run in a line, and how it compares with that of the first run."""

    text: str
    change: str = ""  # difference from the first run
    mark: str = ""  # better or worse; of a setting: changed
    good: bool | None = None  # None: neither better nor worse


@dataclass(frozen=True, slots=True)
class Line:
    """A figure or a setting, with one cell per run."""

    label: str
    cells: tuple[Cell, ...]
    help: str = ""
    numeric: bool = True


def page_context(runs: Sequence[Run], params: Mapping[str, str]) -> TemplateContext:
    """Return the context of the page that compares ``runs``."""
    comparison = compare_runs(runs, params.get("policy", ""))
    results = [stored_result(run) for run in runs]
    windows = {(compared.start, compared.end) for compared in comparison.runs}
    clocks = {result.clock for result in results}
    return {
        "beside": comparison,
        "columns": [*zip(comparison.runs, (result.clock for result in results), strict=True)],
        "numbers": [run.pk for run in runs],
        "differences": [setting_line(row) for row in comparison.differences],
        "groups": [
            (group.title, group.note, rows, any_differs(group))
            for group in comparison.groups
            if (rows := [figure_line(row) for row in group.rows])
        ],
        "policy": params.get("policy", ""),
        "policies": {name: label for each in results for name, label in each.labels.items()},
        **charts(runs, comparison, next(iter(clocks)), apart=len(windows) > 1 or len(clocks) > 1),
    }


def any_differs(group: Group) -> bool:
    """Return whether any figure of the group differs between the runs."""
    return any(value != row.values[0] for row in group.rows for value in row.values)


def setting_line(row: Setting) -> Line:
    """Return a setting as a line of the table, with one cell per run."""
    cells = tuple(
        Cell(_setting_text(value), mark="" if value == row.values[0] else "changed")
        for value in row.values
    )
    return Line(row.key, cells)


def _setting_text(value: Any) -> str:
    """Return the value of a setting as text."""
    if value is None:
        return NOTHING
    if isinstance(value, list):
        return ", ".join(parameter_text(item) for item in value)
    return parameter_text(value)


def figure_line(row: ComparedFigure) -> Line:
    """Return a figure as a line of the table, with one cell per run."""
    cells = tuple(
        Cell(
            figure_text(value, row.unit, 2) if value is not None else NOTHING,
            _change_text(row, change),
            mark,
            None if not mark else mark == BETTER,
        )
        for value, change, mark in zip(row.values, row.changes, row.marks, strict=True)
    )
    return Line(row.label, cells, row.help, row.unit != TEXT)


def _change_text(row: ComparedFigure, change: float | None) -> str:
    """Return a change as text: points for shares, else percent of the first run; "" if none."""
    if change is None or change == 0:
        return ""
    if row.unit == SHARE:
        points = f"{figure(abs(100 * change))} points"
        return f"+{points}" if change > 0 else f"−{points}"
    return signed_percent(change, 0 if abs(change) >= 1 else 1)


def charts(
    runs: Sequence[Run], comparison: RunComparison, clock: str, *, apart: bool
) -> dict[str, Figure | None]:
    """Return the charts of ready replicas and of cost over time, with a line per run.

    ``comparison`` says which policy of each run counts. With ``apart``, the runs have different
    windows, so each line begins at hour 0.
    """
    courses = [
        course
        for run, compared in zip(runs, comparison.runs, strict=True)
        if (course := course_of(run, compared.policy)) is not None
    ]
    return {
        "replica_figure": course_figure(courses, "ready", "replicas", clock=clock, apart=apart),
        "cost_figure": course_figure(
            courses, "usd_per_hour", "$ an hour", clock=clock, apart=apart
        ),
    }


def replica_steps(run: Run) -> tuple[pl.DataFrame | None, dict[str, str]]:
    """Return replicas over time and the labels of policies: as simulated, else as planned.

    The table has columns time, policy, ready and those of a pool. It is None if the run has none.
    A page asks for several policies, so the table stays with the row.
    """
    if "replica_steps" not in vars(run):
        vars(run)["replica_steps"] = _read_replica_steps(run)
    steps: tuple[pl.DataFrame | None, dict[str, str]] = vars(run)["replica_steps"]
    return steps


def _read_replica_steps(run: Run) -> tuple[pl.DataFrame | None, dict[str, str]]:
    """Return what ``replica_steps`` returns, from the tables of the run."""
    names, result = run_tables(run), stored_result(run)
    if "replicas" in names:
        steps = run_table(run, "replicas")
        steps = steps.filter(~pl.col("arrangement").str.ends_with(BORROWED))  # serve nobody
        return steps, result.labels or {name: name for name in steps["policy"].unique().sort()}
    if "plan" in names:
        plan = run_table(run, "plan").rename({"period_start": "time", "target": "ready"})
        assert result.window is not None  # runs with a plan have one
        plan = to_end(plan, result.window.end).with_columns(pl.lit("lt-i").alias("policy"))
        return plan, {"lt-i": "Planned replicas"}
    return None, {}


def course_of(run: Run, policy: str) -> Course | None:
    """Return the replicas of a run over time, summed over pools: as simulated, else as planned.

    With ``policy`` "", the run's first one counts. None if the run has no replicas over time.
    """
    steps, labels = replica_steps(run)
    if steps is None:
        return None
    name = policy or next(iter(labels), "")
    rows = steps.filter(pl.col("policy") == name)
    if rows.is_empty():
        return None
    sums = [pl.col(column).sum() for column in ("ready", "usd_per_hour") if column in rows.columns]
    label = f"Run {run.pk}, {labels.get(name, name)}" if name else f"Run {run.pk}"
    return Course(label, rows.group_by("time").agg(sums).sort("time"))
