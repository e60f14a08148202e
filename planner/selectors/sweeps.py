"""Read sweeps and the figures of their runs as a grid."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product

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
    """Return the figures of a run's recommended policy, or else of its plan, by name."""
    result = stored_result(run)
    policy = result.policies.get(result.default_policy)
    totals = result.plan.totals if result.plan else None
    attainment = policy.slo_attainment if policy else None
    if not attainment and result.recommended:
        attainment = result.recommended.attainment
    values: dict[str, float | None] = {
        name: policy.columns.get(simulated) if policy else getattr(totals, planned, None)
        for name, (simulated, planned) in SOURCES.items()
    }
    shares = [share for share in (attainment or {}).values() if share is not None]
    plan = typed_result(run, PlannedReplicas).plan
    replicas = Counter[datetime]()  # by period
    for decision in plan.decisions if plan else ():
        replicas[decision.period] += decision.target
    values |= {
        "attainment": min(shares, default=None),
        "replicas": float(max(replicas.values())) if replicas else None,
    }
    return {
        shown.name: None if (value := values[shown.name]) is None else float(value)
        for shown in FIGURES
    }


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
        texts = [
            "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            for value in axis["values"]
        ]
        texts = [f"{text} {unit}".rstrip() for text in texts]
        varied.append(VariedSetting(label, axis["values"], texts, relative=unit == TIMES))
    return varied


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
    return " to ".join(dict.fromkeys(figure(end, "$") for end in (min(known), max(known))))


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
    columns = len(sweep.axes[1]["values"]) if sweep.axes[1:] else 1
    states = [cell.state for cell in cells if cell.run is not None]
    going = sum(state in Run.ACTIVE_STATES for state in states)
    completed = states.count(Run.State.COMPLETED)
    return Grid(
        figure=figure.name,
        unit=figure.unit,
        rows=tuple(tuple(cells[i : i + columns]) for i in range(0, len(cells), columns)),
        done=completed,
        failed=len(states) - going - completed,
        going=going,
        seconds_left=_seconds_left(list(_runs(sweep)), going),
    )


def _seconds_left(runs: list[Run], going: int) -> float | None:
    """Return the estimated seconds until the ``going`` runs have ended, from the pace so far.

    None if no run is going on, or if none has ended yet.
    """
    spans = [(run.started_at, run.finished_at) for run in runs]
    ended = [(begun, end) for begun, end in spans if begun is not None and end is not None]
    if not ended or not going:
        return None
    took = max(end for _, end in ended) - min(begun for begun, _ in ended)
    return float(took.total_seconds() / len(ended) * going)
