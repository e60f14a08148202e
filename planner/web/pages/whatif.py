"""Build the page of what-ifs: its settings, and the answers as a table and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from math import prod
from typing import Any

import numpy as np
from django.http import QueryDict
from django.urls import reverse

from planner.domain.columns import LESS
from planner.domain.formats import NOTHING, figure, signed_percent
from planner.domain.whatif.figures import FIGURES, Cell, Figure, WhatIf, grades, planned_cell
from planner.domain.whatif.objectives import BOUNDS, NAMES
from planner.domain.whatif.settings import Setting, is_address
from planner.domain.whatif.variations import MOST_AXES, Axis, cells_of
from planner.errors import NotReady, PlannerError
from planner.inputs.scenario.document import values_of
from planner.inputs.scenario.settings import ALL, MEASURE, UNITS
from planner.models import Run, Sweep
from planner.optimizer.pareto_front import SLACK
from planner.outputs.render.figure import BLUE, GREY, ORANGE, line, points
from planner.outputs.render.figure import figure as chart
from planner.outputs.table_text import shown
from planner.selectors.runs import run_result, run_tables
from planner.selectors.sweeps import (
    figure_by_name,
    sweep_cells,
    sweep_grid,
)
from planner.services.whatif import base_of, scenario_settings, what_if_cells
from planner.templatetags.headroom import setting

LINES, MOST_LINES, STEPS, MOST_ON_PAGE = 2, 6, 5, 49
WITHIN_S = 0.8  # time for new answers in one request; the page asks again for the rest
SHADES = 8  # of static/css/headroom.css
TPS = "input tokens/s"
TRADE_OFFS = tuple(
    (f"{a},{b}", f"{a.capitalize()} against {b}")
    for a, b in (("cost", "carbon"), ("gpu-hours", "carbon"), ("energy", "cost"))
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the form; ``to`` makes it a range of ``steps`` values."""

    name: str = ""
    value: str = ""
    to: str = ""
    steps: str = ""

    @property
    def fields(self) -> tuple[tuple[str, str, str], ...]:
        """Return the name, the label and the value of each input."""
        return ("value", "Value", self.value), ("to", "To", self.to), ("steps", "Steps", self.steps)


@dataclass(frozen=True, slots=True)
class Question:
    """The values asked for: ``fixed`` ones, and up to two settings that take several values."""

    lines: tuple[Line, ...]
    fixed: Mapping[str, Any]
    axes: tuple[Axis, ...]

    @property
    def cells(self) -> list[dict[str, Any]]:
        """Return the values of each cell by name of the setting, row by row."""
        if not self.axes:
            return [dict(self.fixed)]
        keys = [axis.key for axis in self.axes]
        return [
            {**self.fixed, **dict(zip(keys, values, strict=True))} for values in cells_of(self.axes)
        ]

    @property
    def sent(self) -> list[tuple[str, str]]:
        """Return the lines as fields of a form."""
        return [
            pair
            for line in self.lines
            for pair in (("setting", line.name), ("value", line.value), ("to", line.to),
                         ("steps", line.steps))
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One cell as text, with what a form sends to simulate it; ``shade`` is of a heat map."""

    labels: tuple[str, ...]
    figures: list[str]
    cell: Cell
    mark: str = ""
    sent: Sequence[tuple[str, str]] = ()
    text: str = ""  # of the figure that is drawn
    shade: int = 0  # 1 to SHADES; 0 without a value


def question_of(settings: Mapping[str, Setting], params: QueryDict) -> Question:
    """Read the question of a request; raise PlannerError for values that are not numbers.

    ``setting``, ``value``, ``to`` and ``steps`` are repeated for each line. A parameter with the
    name of a setting is a line too.
    """
    fields = [
        [str(v) for v in params.getlist(name)] for name in ("setting", "value", "to", "steps")
    ]
    lines = [Line(*values) for values in zip_longest(*fields, fillvalue="")]
    lines += [Line(name, str(params[name])) for name in settings if name in params]
    lines = [line for line in lines if line.name and line.value.strip()][:MOST_LINES]
    fixed: dict[str, Any] = {}
    axes: list[Axis] = []
    for one in lines:
        setting_of = settings.get(one.name)
        if setting_of is None:  # an address, as the plans of a front send
            if not is_address(one.name):
                raise PlannerError(f"{one.name[:80]}: no such setting. Choose one from the list.")
            fixed[one.name] = next(iter(values_of(one.value, one.name)), None)
        elif one.to.strip():
            axes.append(Axis(one.name, _range(setting_of, one)))
        else:
            fixed[one.name] = _number(setting_of.label, one.value)
    if len(axes) > MOST_AXES:
        raise PlannerError(f"{len(axes)} settings have a range. Use at most {MOST_AXES}.")
    if prod(len(axis.values) for axis in axes) > MOST_ON_PAGE:
        raise PlannerError(f"More than {MOST_ON_PAGE} combinations. Use fewer steps.")
    return Question(tuple(lines), fixed, tuple(axes))


def _range(setting_of: Setting, one: Line) -> tuple[float, ...]:
    """Return the values of a range, equally spaced, each once."""
    first, last = _number(setting_of.label, one.value), _number(setting_of.label, one.to)
    steps = int(_number(f"{setting_of.label}, steps", one.steps or str(STEPS)))
    if not 2 <= steps <= MOST_ON_PAGE:
        raise PlannerError(f"{setting_of.label}: use 2 to {MOST_ON_PAGE} steps.")
    values = [float(f"{value:.4g}") for value in np.linspace(first, last, steps)]
    if setting_of.whole and not setting_of.relative:
        values = [float(round(value)) for value in values]
    return tuple(dict.fromkeys(values))


def _number(label: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise PlannerError(f"{label}: {text[:40]!r} is not a number.") from None
    if not abs(value) < 1e9:
        raise PlannerError(f"{label}: {text[:40]!r} is too large.")
    return value


def page_context(run: Run, params: QueryDict) -> dict[str, Any]:
    """Return the context of the page of a run's what-ifs."""
    result = run_result(run)
    return {
        "run": run,
        "result": result,
        "tables": run_tables(run),
        "clock": (result.get("window") or {}).get("clock", "utc"),
        "address": reverse("web:run-what-if", args=[run.pk]),
        **answers_context(run, params),
        **form_context(run, params),
    }


def form_context(run: Run, params: QueryDict) -> dict[str, Any]:
    """Return the context of the form, with the lines of the request and empty ones."""
    base = base_of(run)
    offered = [s for s in base.settings.values() if s.name != "quantile" or _forecast(run)]
    lines = question_of(base.settings, params).lines
    empty = max(LINES - len(lines), int(len(lines) < MOST_LINES))
    return {
        "groups": {
            group: [(s.name, f"{s.label} ({_present(s)})") for s in offered if s.group == group]
            for group in dict.fromkeys(s.group for s in offered)
        },
        "lines": [*lines, *[Line()] * empty],
        "steps": STEPS,
        "trade_offs": TRADE_OFFS,
    }


def _forecast(run: Run) -> bool:
    """Return whether the plan follows a forecast, so that its percentile matters."""
    basis = base_of(run).plan.basis
    return bool(basis.series) and basis.flat is None


def _present(one: Setting) -> str:
    if one.relative:
        return one.unit
    return (
        f"now {figure(one.value)} {one.unit}" if one.value is not None else f"{one.unit}, not set"
    )


def answers_context(run: Run, params: QueryDict) -> dict[str, Any]:
    """Return the context of the answers: of the question, or of a front that has none."""
    settings = base_of(run).settings
    question = question_of(settings, params)
    if run.kind == Run.Kind.PARETO and not question.lines:
        return front_context(run)
    before, *found = what_if_cells(run, [{}, *question.cells], WITHIN_S)
    if not isinstance(before, WhatIf):
        raise before or NotReady("The plan of this run is being prepared. Try again.")
    context = {
        "before": before,
        "question": question,
        "going": sum(answer is None for answer in found),
    }
    if not question.axes:
        return context | _one_context(before, found[0], question)
    names = [axis.key for axis in question.axes]
    cells = [
        planned_cell(values, answer)
        if isinstance(answer, WhatIf)
        else Cell(values, {}, "planned" if answer else "pending", str(answer or ""))
        for values, answer in zip(cells_of(question.axes), found, strict=True)
    ]
    sent = [_sent(cell) for cell in question.cells]
    axes = [
        (settings[name].label, [f"{figure(v)} {settings[name].unit}" for v in axis.values])
        for name, axis in zip(names, question.axes, strict=True)
    ]
    notes = dict.fromkeys(n for answer in found if isinstance(answer, WhatIf) for n in answer.notes)
    shown_figures = tuple(one for one in FIGURES if one.name != "attainment")
    context |= grid_context(cells, axes, params, shown_figures, sent)
    return context | {"notes": list(notes)}


def grid_context(
    cells: Sequence[Cell],
    axes: Sequence[tuple[str, Sequence[str]]],
    params: QueryDict,
    figures: Sequence[Figure],
    sent: Sequence[Sequence[tuple[str, str]]] = (),
) -> dict[str, Any]:
    """Return the context of a grid: a table of all cells, and a line or a heat map of a figure.

    ``axes`` are labels with the texts of their values. ``sent`` is what a form sends per cell.
    """
    chosen = figure_by_name(params.get("figure") or figures[0].name)
    ranked = grades(cells, chosen)
    labels = list(product(*(texts for _, texts in axes)))
    word = "lowest" if chosen.better == LESS else "highest"
    rows = [
        Row(labels[i], [_value(one, cell.figures.get(one.name)) for one in figures], cell,
            word if ranked[i].best else "", sent[i] if sent else (),
            _value(chosen, ranked[i].value),
            0 if (place := ranked[i].place) is None else 1 + round(place * (SHADES - 1)))
        for i, cell in enumerate(cells)
    ]  # fmt: skip
    context: dict[str, Any] = {
        "rows": rows,
        "heads": [*(label for label, _ in axes), *(f"num:{one.label}" for one in figures)],
        "figures": figures,
        "chosen": chosen,
    }
    columns = len(axes[1][1]) if len(axes) > 1 else 1
    if columns > 1 or len(rows) < 2:
        lines = [rows[i : i + columns] for i in range(0, len(rows), columns)]
        return context | {"heat": list(zip(axes[0][1], lines, strict=True)), "axes": axes}
    x = [cell.values[0] for cell in cells]
    drawn = line(
        x, [grade.value for grade in ranked], chosen.label, BLUE, mode="lines+markers",
        marker_size=8,
    )  # fmt: skip
    looks = {"rangemode": "normal"}
    plot = chart([drawn], height=320, xaxis=looks, x=axes[0][0], y=f"{chosen.label}, {chosen.unit}")
    return context | {"chart": plot, "chart_label": f"{chosen.label} by {axes[0][0]}"}


def sweep_context(sweep: Sweep, params: QueryDict) -> dict[str, Any]:
    """Return the context of a stored grid of runs."""
    cells = sweep_cells(sweep)
    keys = [axis["key"] for axis in sweep.axes]
    settings = {} if all(map(is_address, keys)) else scenario_settings(sweep.document)
    labels = [settings[key].label if key in settings else key for key in keys]
    texts = [[_text(value) for value in axis["values"]] for axis in sweep.axes]
    grid = sweep_grid(sweep)
    context = grid_context(cells, list(zip(labels, texts, strict=True)), params, FIGURES)
    return context | {"sweep": sweep, "grid": grid, "going": grid.going}


def _one_context(
    before: WhatIf, found: WhatIf | PlannerError | None, question: Question
) -> dict[str, Any]:
    """Return the context of a single answer: each figure before and now, and the periods."""
    now = found if isinstance(found, WhatIf) else None
    compared = [
        (one.label, _value(one, was), _value(one, is_), _change(was, is_))
        for one in FIGURES
        if (was := one.planned(before)) is not None
        for is_ in [None if now is None else one.planned(now)]
    ]
    compared += [
        (f"Capacity, {size.model} on {size.replica}", figure(size.before_tps, TPS),
         figure(size.input_tps, TPS), _change(size.before_tps, size.input_tps))
        for size in (now.sizes if now else ())
        if size.input_tps != size.before_tps
    ]  # fmt: skip
    problem = str(found or "") if now is None else now.conflict if now.totals is None else ""
    return {
        "now": now,
        "problem": problem,
        "compared": compared,
        "notes": now.notes if now else (),
        "cell": _sent(question.fixed),
        "chart": _periods_chart(before, now) if now and now.periods else None,
        "chart_label": "Replicas by period",
    }  # fmt: skip


def _sent(chosen: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return values by setting or address as fields of a form."""
    return [
        pair
        for name, value in chosen.items()
        for pair in (("setting", name), ("value", "null" if value is None else str(value)))
    ]


def _value(one: Figure, value: float | None) -> str:
    return NOTHING if value is None else shown(value, one.unit)


def _change(was: float | None, now: float | None) -> str:
    """Return the relative change; "" if there is none."""
    return "" if not was or now is None or now == was else signed_percent(now / was - 1)


def _text(value: Any) -> str:
    return "not set" if value is None else setting(value)


def _periods_chart(before: WhatIf, now: WhatIf) -> dict[str, Any]:
    """Draw the replicas of each period, before and now."""
    drawn = [
        line(
            [period.begins for period in answer.periods],
            [period.replicas for period in answer.periods],
            name, colour, width=width, dash=dash, line_shape="hv",
        )
        for answer, name, colour, width, dash in (
            (before, "Before", GREY, 2, "dot"), (now, "Now", BLUE, 3, "solid"),
        )
    ]  # fmt: skip
    return chart(drawn, height=260, y="Replicas", together=True)


def front_context(run: Run) -> dict[str, Any]:
    """Return the context of a Pareto front: each plan, and its bound in the scenario."""
    result = run_result(run)
    first, second = result["of"]
    places = {name: UNITS[MEASURE[name]] for name in NAMES}
    rows = [
        Row((str(i + 1),), [figure(plan[name]) for name in NAMES],
            Cell((), {}, "planned"), "knee" if i == result["knee"] else "",
            _sent({"objective.minimise": first, "objective.weights": None,
                   "objective.periods": ALL, BOUNDS[second]: plan["second"] * (1 + SLACK)}))
        for i, plan in enumerate(result["points"])
    ]  # fmt: skip
    return {
        "headline": result["headline"],
        "rows": rows,
        "heads": ["Plan", *(f"num:{name.capitalize()}, {places[name]}" for name in NAMES)],
        "chart": front_chart(result) if len(rows) > 1 else None,
        "chart_label": f"{first} of plans by their {second}",
        "notes": ["All periods are planned together, on data from before the window."],
    }


def front_chart(result: Mapping[str, Any]) -> dict[str, Any]:
    """Draw the first objective over the second, its proven lower bound, and the knee."""
    (first, second), plans, bend = result["of"], result["points"], result["knee"]
    x, y = [plan["second"] for plan in plans], [plan["first"] for plan in plans]
    units = UNITS[MEASURE[first]], UNITS[MEASURE[second]]
    hover = f"%{{x:,.4~g}} {units[1]}, %{{y:,.4~g}} {units[0]}"
    bounds = [plan["first_bound"] for plan in plans]
    drawn = [
        line(x, bounds, "Proven lower bound", GREY, width=1, dash="dot", hover=hover),
        line(x, y, "Plans", BLUE, mode="lines+markers", marker_size=8, hover=hover),
    ]
    if bend is not None:
        drawn.append(
            points([x[bend]], [y[bend]], "Knee", ORANGE, size=14, symbol="diamond", hover=hover)
        )
    return chart(
        drawn, height=360, yaxis={"rangemode": "normal"}, xaxis={"rangemode": "normal"},
        x=f"{second.capitalize()}, {units[1]}", y=f"{first.capitalize()}, {units[0]}",
    )  # fmt: skip
