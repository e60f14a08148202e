"""Read sweeps and the figures of their runs as a grid."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

from django.db.models import Count, QuerySet
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from planner.domain.formats import figure
from planner.domain.reports.whatif import VariedSetting
from planner.domain.results.stored import PlannedReplicas
from planner.domain.whatif.figures import (
    FIGURES,
    PLANNED,
    SIMULATED,
    Cell,
    Figure,
    RankedCell,
    rank_cells,
)
from planner.domain.whatif.settings import TIMES, label_and_unit
from planner.errors import PlannerError
from planner.models import Run, Sweep
from planner.selectors.lookup import row_by_number
from planner.selectors.runs import stored_result, typed_result

DEFAULT = FIGURES[0]
# By figure: its column in a simulated policy, and its attribute in the totals of a plan.
SOURCES = {
    "cost_usd": ("cost_usd", "usd"),
    "gpu_hours": ("gpu_hours", "gpu_hours"),
    "energy_kwh": ("energy_kwh", "kwh"),
    "carbon_kg": ("carbon_kg", "carbon_kg"),
    "starts": ("starts_total", "starts"),
}


def run_figures(run: Run) -> dict[str, float | None]:
    """Return the FIGURES of a run by name, None where unknown.

    They are those of the recommended policy, or of the plan if it was not simulated. Attainment is
    that of the worst tier. Replicas are the most that the plan has in a period.
    """
    result = stored_result(run)
    policy = result.policies.get(result.default_policy)
    totals = result.plan.totals if result.plan else None
    attainment = policy.slo_attainment if policy else None
    if not attainment and result.recommended:
        attainment = result.recommended.attainment
    values: dict[str, float | None] = {}
    for name, (column, total) in SOURCES.items():
        values[name] = policy.columns.get(column) if policy else getattr(totals, total, None)
    shares = [share for share in (attainment or {}).values() if share is not None]
    values["attainment"] = min(shares, default=None)
    plan = typed_result(run, PlannedReplicas).plan
    replicas_by_period = Counter[datetime]()
    for decision in plan.decisions if plan else ():
        replicas_by_period[decision.period] += decision.target
    values["replicas"] = max(replicas_by_period.values(), default=None)
    figures = {}
    for shown in FIGURES:
        value = values[shown.name]
        figures[shown.name] = None if value is None else float(value)
    return figures


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of a sweep: a row per value of the first setting, a column per second value."""

    figure: str
    unit: str
    rows: tuple[tuple[RankedCell, ...], ...]
    done: int
    failed: int
    going: int
    seconds_left: float | None  # from the pace of the finished runs


def sweeps_list() -> QuerySet[Sweep]:
    """Return all sweeps with the number of their runs, without their large documents."""
    rows = Sweep.objects.select_related("scenario", "owner").defer("document")
    return rows.annotate(cells=Count("runs")).order_by("-created_at", "-pk")


def sweep_figures(sweep: Sweep) -> tuple[Figure, ...]:
    """Return the figures that the runs of a sweep have, named as planned or as simulated."""
    return PLANNED if sweep.kind == Run.Kind.PLAN else SIMULATED


def varied_settings(sweep: Sweep) -> list[VariedSetting]:
    """Return the settings that a sweep varies, with their labels and the texts of their values."""
    varied = []
    for axis in sweep.axes:
        label, unit = label_and_unit(axis["key"])
        texts = [f"{_value_text(value)} {unit}".rstrip() for value in axis["values"]]
        varied.append(VariedSetting(label, axis["values"], texts, relative=unit == TIMES))
    return varied


def _value_text(value: Any) -> str:
    """Return the value of a setting as text."""
    if value is None:
        return "not set"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """A sweep in a list: its varied settings, its completed runs, and the range of their cost."""

    sweep: Sweep
    varied: list[VariedSetting]
    done: int
    cost: str  # "" if not known


def sweep_summaries(sweeps: Sequence[Sweep]) -> list[SweepSummary]:
    """Return the summaries of sweeps of ``sweeps_list``, without loading the results of runs."""
    costs: dict[int, list[float | None]] = {sweep.pk: [] for sweep in sweeps}
    completed = Run.objects.filter(sweep__in=costs, state=Run.State.COMPLETED)
    # The cost of a recommended policy, of a simulation, or of a plan.
    paths = ("recommended__cost_usd", "cost_usd", "totals__usd", "plan__totals__usd")
    usd = Coalesce(*(KT(f"result__{path}") for path in paths))
    for sweep_pk, cost in completed.values_list("sweep", usd):
        costs[sweep_pk].append(None if cost is None else float(cost))
    return [
        SweepSummary(sweep, varied_settings(sweep), len(costs[sweep.pk]), _range(costs[sweep.pk]))
        for sweep in sweeps
    ]


def _range(costs: Sequence[float | None]) -> str:
    """Return the lowest and the highest known cost in words; "" if none is known."""
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ""
    lowest, highest = figure(min(known), "$"), figure(max(known), "$")
    return lowest if lowest == highest else f"{lowest} to {highest}"


def sweep_get(number: int) -> Sweep:
    """Return a sweep by number; raise NotFound."""
    return row_by_number(Sweep.objects.select_related("scenario", "owner"), "sweep", number)


def figure_by_name(name: str, figures: Sequence[Figure] = FIGURES) -> Figure:
    """Return the figure with this name; raise PlannerError that lists the known names."""
    by_name = {shown.name: shown for shown in figures}
    if name in by_name:
        return by_name[name]
    known = ", ".join(by_name)
    raise PlannerError(f"figure: unknown value {name!r}. Choose from {known}.")


def sweep_cells(sweep: Sweep) -> list[Cell]:
    """Return the cells of a sweep, row by row, each with the figures of its completed run."""
    runs, cells = {run.cell: run for run in _runs(sweep)}, []
    for index, values in enumerate(product(*(axis["values"] for axis in sweep.axes))):
        run = runs.get(index)
        if run is None:
            cells.append(Cell(values, {}, "removed"))
            continue
        is_completed = run.state == Run.State.COMPLETED
        figures = run_figures(run) if is_completed else {}
        cells.append(Cell(values, figures, run.state, run.problem, run.pk))
    return cells


def _runs(sweep: Sweep) -> QuerySet[Run]:
    return sweep.runs.defer("document", "log", "traceback")


def sweep_grid(sweep: Sweep, figure: Figure = DEFAULT) -> Grid:
    """Return the grid of one figure of the runs of a sweep."""
    cells = rank_cells(sweep_cells(sweep), figure)
    _first_axis, *second_axis = sweep.axes
    columns = len(second_axis[0]["values"]) if second_axis else 1
    states = [cell.state for cell in cells if cell.run is not None]
    going = sum(state in Run.ACTIVE_STATES for state in states)
    completed = states.count(Run.State.COMPLETED)
    return Grid(
        figure=figure.name,
        unit=figure.unit,
        rows=tuple(
            tuple(cells[start : start + columns]) for start in range(0, len(cells), columns)
        ),
        done=completed,
        failed=len(states) - going - completed,
        going=going,
        seconds_left=_seconds_left(list(_runs(sweep)), going),
    )


def _seconds_left(runs: list[Run], going: int) -> float | None:
    """Return the estimated seconds until the ``going`` runs have ended, from the pace so far.

    None if no run is going on, or if none has ended yet.
    """
    starts, ends = [], []
    for run in runs:
        if run.started_at is not None and run.finished_at is not None:
            starts.append(run.started_at)
            ends.append(run.finished_at)
    if not ends or not going:
        return None
    elapsed = max(ends) - min(starts)
    return float(elapsed.total_seconds() / len(ends) * going)
