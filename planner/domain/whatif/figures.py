"""Define the answer to a what-if, and the figures that tables and charts show of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.domain.columns import COUNT, HOURS, KG, KWH, LESS, MORE, SHARE, USD
from planner.domain.formats import lower_first
from planner.domain.planning.figures import PlanTotals
from planner.policies.registry import traits_of


@dataclass(frozen=True, slots=True)
class SizeChange:
    """The capacity of a single replica in input tokens/s, after and before the change."""

    model: str
    replica: str
    input_tps: float
    before_tps: float


@dataclass(frozen=True, slots=True)
class PeriodPlan:
    """Replicas, demand and capacity (input tokens/s) of a period, over all models and regions."""

    begins: str
    replicas: int
    demand_tps: float
    capacity_tps: float


@dataclass(frozen=True, slots=True)
class PeakGpus:
    """Peak number of GPUs of a type in a region, and of all types together in that region."""

    region: str
    gpu: str
    spot: bool
    most: int  # GPUs of this type
    of_all: int  # GPUs of all types: the same in all rows of a region


@dataclass(frozen=True, slots=True)
class SimulatedPolicy:
    """The recommended policy of a comparison, with its simulated cost.

    ``replicas`` are the (fewest, most) of its schedule; None if it scales by its own rule.
    """

    policy: str
    label: str
    cost_usd: float
    replicas: tuple[int, int] | None


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """The answer to a what-if. Without a plan, ``totals`` is None and ``conflict`` says why."""

    status: str
    totals: PlanTotals | None = None
    gap: float | None = None
    least: int = 0  # fewest replicas of a period
    most: int = 0
    periods: tuple[PeriodPlan, ...] = ()
    sizes: tuple[SizeChange, ...] = ()
    gpus: tuple[PeakGpus, ...] = ()
    binding: tuple[str, ...] = ()
    conflict: str = ""
    notes: tuple[str, ...] = ()  # uncertainties, and values that need a simulation
    flat: bool = False  # answers for the recommended static fleet, which follows no plan
    bound: float | None = None  # lower bound on the objective over the window
    solve_seconds: float = 0.0
    recommended: SimulatedPolicy | None = None  # recommended policy of the comparison, unchanged


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a grid can show; ``planned`` reads it from an answer without a simulation.

    ``better`` is LESS or MORE.
    """

    name: str
    label: str
    unit: str
    better: int
    planned: Callable[[WhatIf], float | None]


def _total(name: str) -> Callable[[WhatIf], float | None]:
    """Return a function that reads the total ``name`` of an answer; None if it has no plan."""
    return lambda answer: None if answer.totals is None else float(getattr(answer.totals, name))


FIGURES = (
    Figure("cost_usd", "Cost", USD, LESS, _total("usd")),
    Figure("gpu_hours", "GPU-hours", HOURS, LESS, _total("gpu_hours")),
    Figure("attainment", "Lowest SLO attainment", SHARE, MORE, lambda answer: None),
    Figure("energy_kwh", "Energy", KWH, LESS, _total("kwh")),
    Figure("carbon_kg", "Carbon", KG, LESS, _total("carbon_kg")),
    Figure("starts", "Starts", COUNT, LESS, _total("starts")),
    Figure(
        "replicas", "Peak replicas", COUNT, LESS,
        lambda answer: None if answer.totals is None else float(answer.most),
    ),
)  # fmt: skip
NOT_PLANNED, RATED = "attainment", ("energy_kwh", "carbon_kg")


def _named(basis: str, figure: Figure) -> Figure:
    """Return a figure with its basis in the label, such as "Planned cost".

    SLO attainment is always simulated, so its label stays. Planned energy and carbon are at rated
    load, which is above the simulated load.
    """
    if figure.name == NOT_PLANNED:
        return figure
    if basis == "Planned" and figure.name in RATED:
        return replace(figure, label=f"{figure.label} at rated load")
    label = figure.label if figure.label.startswith("GPU") else lower_first(figure.label)
    return replace(figure, label=f"{basis} {label}")


PLANNED = tuple(_named("Planned", figure) for figure in FIGURES if figure.name != NOT_PLANNED)


def planned_figures(recommended: SimulatedPolicy | None) -> tuple[Figure, ...]:
    """Return the planned figures. The cost has no replicas of the ``recommended`` guard, if any."""
    if recommended is None or not traits_of(recommended.policy).may_exceed_plan:
        return PLANNED
    cost, *others = PLANNED
    return replace(cost, label=f"{cost.label} without guard"), *others


# The peak of a simulated run is that of its plan.
SIMULATED = tuple(
    _named("Planned" if figure.name == "replicas" else "Simulated", figure) for figure in FIGURES
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of settings in a grid, with its figures by name, planned or from a run."""

    values: tuple[Any, ...]  # one per setting
    figures: Mapping[str, float | None]
    state: str = "planned"  # or the state of its run; "removed": the run was deleted
    problem: str = ""  # why it has no figures
    run: int | None = None


@dataclass(frozen=True, slots=True)
class RankedCell:
    """A cell with one figure (``value``), for a chart.

    ``place`` is from 0 (smallest value of the grid) to 1 (largest); None without a value.
    """

    run: int | None
    state: str
    values: tuple[Any, ...]
    value: float | None
    place: float | None
    best: bool
    problem: str


def rank_cells(cells: Sequence[Cell], figure: Figure) -> list[RankedCell]:
    """Return the cells, in their order, with one figure and its place among all values.

    The best is marked, unless all are equal.
    """
    values = [cell.figures.get(figure.name) for cell in cells]
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    best = low if figure.better == LESS else high
    spread = (high - low) or 1.0
    return [
        RankedCell(
            run=cell.run,
            state=cell.state,
            values=cell.values,
            value=value,
            place=None if value is None else (value - low) / spread,
            best=low < high and value == best,
            problem=cell.problem,
        )
        for cell, value in zip(cells, values, strict=True)
    ]


def planned_cell(values: tuple[Any, ...], answer: WhatIf) -> Cell:
    """Return the cell of a combination of settings that was answered without a simulation."""
    figures = {figure.name: figure.planned(answer) for figure in FIGURES}
    return Cell(values, figures, problem="" if answer.totals else answer.conflict)
