"""Read sweeps and the figures of their runs as a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from planner.domain.columns import (
    COUNT,
    HOURS,
    KG,
    KWH,
    LESS,
    MORE,
    SHARE,
    USD,
)
from planner.errors import PlannerError
from planner.models import Run, Sweep
from planner.selectors.lookup import row_numbered
from planner.selectors.policies import default_policy

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a cell can show; ``of`` reads it from a result document (None: missing)."""

    name: str
    label: str
    unit: str
    better: int
    of: Callable[[Figures], float | None]


def _replayed(name: str, planned: str) -> Callable[[Figures], float | None]:
    """Return a reader of the recommended policy's figure.

    If nothing was simulated, it reads the plan's figure.
    """

    def of(result: Figures) -> float | None:
        row = (result.get("policies") or {}).get(default_policy(dict(result)))
        totals = (result.get("plan") or {}).get("totals") or {}
        value = row.get(name) if row else totals.get(planned)
        return None if value is None else float(value)

    return of


def _attainment(result: Figures) -> float | None:
    """Return the lowest SLO attainment of all tiers."""
    row = (result.get("policies") or {}).get(default_policy(dict(result))) or {}
    attained = row.get("slo_attainment") or (result.get("recommended") or {}).get("attainment")
    shares = [share for share in (attained or {}).values() if share is not None]
    return min(shares, default=None)


def _most(result: Figures) -> float | None:
    """Return the largest number of replicas in one period of the plan."""
    periods: dict[str, int] = {}
    for row in (result.get("plan") or {}).get("decisions") or []:
        periods[row["period"]] = periods.get(row["period"], 0) + row["target"]
    return float(max(periods.values())) if periods else None


FIGURES = (
    Figure("cost_usd", "Cost of the window", USD, LESS, _replayed("cost_usd", "usd")),
    Figure("gpu_hours", "GPU-hours", HOURS, LESS, _replayed("gpu_hours", "gpu_hours")),
    Figure("attainment", "In time, of the tier with least", SHARE, MORE, _attainment),
    Figure("energy_kwh", "Energy", KWH, LESS, _replayed("energy_kwh", "kwh")),
    Figure("carbon_kg", "Carbon", KG, LESS, _replayed("carbon_kg", "carbon_kg")),
    Figure("starts", "Starts", COUNT, LESS, _replayed("starts_total", "starts")),
    Figure("replicas", "Most replicas of the plan", COUNT, LESS, _most),
)
DEFAULT = FIGURES[0]


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One run of the grid; ``run`` is None if it was removed.

    ``place`` runs from 0, the least value, to 1, the largest. It is None without a value.
    """

    run: int | None
    state: str
    values: tuple[Any, ...]  # of the settings, by axis
    value: float | None
    place: float | None
    best: bool
    problem: str


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells by value of the first setting, and in each row by value of the second."""

    figure: str
    unit: str
    rows: tuple[tuple[SweepCell, ...], ...]
    done: int
    failed: int
    going: int
    seconds_left: float | None  # from the pace of the finished runs


def sweeps_list() -> QuerySet[Sweep]:
    """Return all sweeps without their documents, which are large."""
    return Sweep.objects.select_related("scenario", "owner").defer("document")


def sweep_get(number: int) -> Sweep:
    """Return a sweep by number; raise NotFound."""
    return row_numbered(Sweep.objects.select_related("scenario", "owner"), "sweep", number)


def figure_named(name: str) -> Figure:
    """Return the figure of that name; raise PlannerError with the known names."""
    for figure in FIGURES:
        if figure.name == name:
            return figure
    known = ", ".join(figure.name for figure in FIGURES)
    raise PlannerError(f"figure: there is no {name!r}; choose from {known}.")


def lengths_of(sweep: Sweep) -> tuple[int, int]:
    """Return the number of values of the first and of the second setting; 1 without a second."""
    counts = [len(axis["values"]) for axis in sweep.axes]
    return counts[0], (counts[1] if len(counts) > 1 else 1)


def values_at(sweep: Sweep, cell: int) -> tuple[Any, ...]:
    """Return the values of the settings in a cell."""
    places = divmod(cell, lengths_of(sweep)[1])
    return tuple(axis["values"][place] for axis, place in zip(sweep.axes, places, strict=False))


def sweep_grid(sweep: Sweep, figure: Figure = DEFAULT) -> Grid:
    """Return the grid of a figure of the runs, with the best cells and the time left."""
    runs = {run.cell: run for run in sweep.runs.defer("document", "log", "traceback")}
    rows, columns = lengths_of(sweep)
    values = {
        cell: figure.of(run.result)
        for cell, run in runs.items()
        if run.state == Run.State.COMPLETED
    }
    known = [value for value in values.values() if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    best = low if figure.better == LESS else high

    def cell(cell_number: int) -> SweepCell:
        run, value = runs.get(cell_number), values.get(cell_number)
        spread = None if value is None else (value - low) / (high - low) if high > low else 0.0
        return SweepCell(
            run=None if run is None else run.pk,
            state="removed" if run is None else run.state,
            values=values_at(sweep, cell_number),
            value=value,
            place=spread,
            best=low != high and value is not None and value == best,
            problem="" if run is None else run.problem,
        )

    states = [run.state for run in runs.values()]
    going = sum(state in (Run.State.PENDING, Run.State.RUNNING) for state in states)
    return Grid(
        figure=figure.name,
        unit=figure.unit,
        rows=tuple(tuple(cell(r * columns + c) for c in range(columns)) for r in range(rows)),
        done=sum(state == Run.State.COMPLETED for state in states),
        failed=len(states) - going - sum(state == Run.State.COMPLETED for state in states),
        going=going,
        seconds_left=_left(list(runs.values()), going),
    )


def _left(runs: list[Run], going: int) -> float | None:
    """Return the seconds until the rest is done.

    The pace is that from the first start to the last end.
    """
    spans = [(run.started_at, run.finished_at) for run in runs]
    ended = [(begun, end) for begun, end in spans if begun is not None and end is not None]
    if not ended or not going:
        return None
    first, last = min(begun for begun, _ in ended), max(end for _, end in ended)
    return float((last - first).total_seconds() / len(ended) * going)
