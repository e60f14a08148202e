"""Build the page of what-ifs: the form of its settings, and the report of the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from math import prod
from typing import Any

import numpy as np
from django.http import QueryDict
from django.urls import reverse

from planner.domain.formats import figure
from planner.domain.kinds.pareto import ParetoResult, has_trade_off
from planner.domain.report import Report
from planner.domain.reports.policies import time_text
from planner.domain.reports.whatif import (
    VariedSetting,
    answer_report,
    grid_report,
)
from planner.domain.whatif.figures import Cell, WhatIf, planned_cell, planned_figures
from planner.domain.whatif.settings import MOST_AXES, Axis, Setting, cells_of
from planner.errors import NotReady, PlannerError
from planner.models import Run, Sweep
from planner.outputs.render.html import display_sections
from planner.outputs.reports import run_report
from planner.selectors.runs import run_result, run_tables, stored_result, typed_result
from planner.selectors.sweeps import (
    figure_by_name,
    sweep_cells,
    sweep_figures,
    sweep_grid,
    varied_settings,
)
from planner.services.whatif import (
    base_of,
    front_values,
    recommended_policy,
    sweep_report,
    what_if_cells,
)
from planner.web.request import TemplateContext

LINES, MOST_LINES = 2, 6  # lines of the form
STEPS, MOST_ON_PAGE = 5, 49  # default steps of a range; most combinations
WITHIN_S = 0.8  # time for new answers in one request; the page asks again for the rest
TRADE_OFFS = (
    ("cost,carbon", "Cost against carbon"),
    ("gpu-hours,carbon", "GPU-hours against carbon"),
    ("energy,cost", "Energy against cost"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A setting as the form sends it: one value, or with ``to`` a range of ``steps`` values."""

    name: str = ""
    value: str = ""
    to: str = ""
    steps: str = ""

    @property
    def fields(self) -> tuple[tuple[str, str, str], ...]:
        """Return the name, label and value of each input field."""
        return (
            ("value", "Value", self.value),
            ("to", "Range end (optional)", self.to),
            ("steps", "Steps", self.steps),
        )


@dataclass(frozen=True, slots=True)
class Question:
    """The changed settings of a what-if: ``fixed`` have one value, up to two ``axes`` several."""

    lines: tuple[Line, ...]
    fixed: Mapping[str, float]
    axes: tuple[Axis, ...]

    @property
    def cells(self) -> list[dict[str, float]]:
        """Return the changed values by setting name, for each combination of the axes' values."""
        if not self.axes:
            return [dict(self.fixed)]
        keys = [axis.key for axis in self.axes]
        return [
            {**self.fixed, **dict(zip(keys, values, strict=True))} for values in cells_of(self.axes)
        ]

    @property
    def sent(self) -> list[tuple[str, str]]:
        """Return the lines as (field, value) pairs, with which a form can be sent again."""
        pairs = []
        for line in self.lines:
            pairs.append(("setting", line.name))
            pairs += [(field, text) for field, _, text in line.fields]
        return pairs


def question_of(settings: Mapping[str, Setting], params: QueryDict) -> Question:
    """Return the what-if in a request; raise PlannerError for values that are not numbers.

    ``setting``, ``value``, ``to`` and ``steps`` are repeated for each line. A parameter with the
    name of a setting is a line too. A line with ``to`` is a range of values (an axis), one with the
    present value changes nothing, and others set a fixed value.
    """
    columns = [params.getlist(name) for name in ("setting", "value", "to", "steps")]
    sent = [Line(*map(str, texts)) for texts in zip_longest(*columns, fillvalue="")]
    sent += [Line(name, str(params[name])) for name in settings if name in params]
    lines = [line for line in sent if line.name and line.value.strip()][:MOST_LINES]
    fixed: dict[str, float] = {}
    axes: list[Axis] = []
    for line in lines:
        if line.name not in settings:
            raise PlannerError(f"{line.name[:80]}: no such setting. Choose one from the list.")
        setting = settings[line.name]
        if line.to.strip():
            axes.append(Axis(line.name, _range(setting, line)))
        elif line.value != present_text(setting):
            fixed[line.name] = _number(setting.label, line.value)
    if len(axes) > MOST_AXES:
        raise PlannerError(f"{len(axes)} settings have a range. Use at most {MOST_AXES}.")
    if prod(len(axis.values) for axis in axes) > MOST_ON_PAGE:
        raise PlannerError(f"More than {MOST_ON_PAGE} combinations. Use fewer steps.")
    return Question(tuple(lines), fixed, tuple(axes))


def present_text(setting: Setting) -> str:
    """Return the present value of a setting as its field shows it; "" if there is none."""
    return "" if setting.value is None else f"{setting.value:.6g}"


def _range(setting: Setting, line: Line) -> tuple[float, ...]:
    """Return the distinct values of a range at equal steps."""
    first, last = _number(setting.label, line.value), _number(setting.label, line.to)
    steps = int(_number(f"{setting.label}, steps", line.steps or str(STEPS)))
    if not 2 <= steps <= MOST_ON_PAGE:
        raise PlannerError(f"{setting.label}: use 2 to {MOST_ON_PAGE} steps.")
    values = [float(f"{value:.4g}") for value in np.linspace(first, last, steps)]
    if setting.whole and not setting.relative:
        values = [float(round(value)) for value in values]
    return tuple(dict.fromkeys(values))


def _number(label: str, text: str) -> float:
    """Return a text as a number; raise PlannerError with its label."""
    try:
        value = float(text)
    except ValueError:
        raise PlannerError(f"{label}: {text[:40]!r} is not a number.") from None
    if not abs(value) < 1e9:
        raise PlannerError(f"{label}: {text[:40]!r} is too large.")
    return value


def selected_values(run: Run, params: QueryDict) -> dict[str, Any]:
    """Return the changed values of the answer that a form selected, by name or key of the setting.

    ``cell`` in ``params`` is the index of the answer in the grid, or in the Pareto front of a run
    without changed settings. Raises PlannerError for an index that does not exist.
    """
    question = question_of(base_of(run).settings, params)
    chosen = int(_number("cell", params.get("cell") or "0"))
    # Without changed settings, the rows of a front are its points.
    if run.kind == Run.Kind.PARETO and not question.lines:
        return front_values(run, chosen)
    cells = question.cells
    if not 0 <= chosen < len(cells):
        raise PlannerError(f"cell: {chosen} is not a row. There are {len(cells)}.")
    return cells[chosen]


def page_context(run: Run, params: QueryDict) -> TemplateContext:
    """Return the context of the page of a run's what-ifs."""
    base = base_of(run)
    follows_forecast = bool(base.plan.basis.series) and base.plan.basis.flat is None
    offered = [
        setting
        for setting in base.settings.values()
        if follows_forecast or setting.name != "quantile"  # the percentile of the forecast
    ]
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for setting in offered:
        # The hint is the present value of a setting; of a relative setting, what it multiplies.
        unit = "" if setting.unit in setting.label.lower() else setting.unit
        if setting.relative:
            hint = setting.unit
        elif setting.value is None:
            hint = "not set"
        else:
            hint = f"now {figure(setting.value, unit)}"
        option = (setting.name, f"{setting.label} ({hint})", present_text(setting))
        groups.setdefault(setting.group, []).append(option)
    chosen = question_of(base.settings, params).lines
    lines = list(enumerate(chosen or [Line("growth", "1")], start=1))
    # Empty lines fill the form up to LINES. A full form gets one more, up to MOST_LINES.
    empty_lines = max(LINES - len(chosen), int(len(chosen) < MOST_LINES))
    first_empty = len(lines) + 1
    return {
        "result": run_result(run),
        "tables": run_tables(run),
        "groups": groups,
        "lines": lines,
        "more_lines": [(first_empty + i, Line()) for i in range(empty_lines)],
        "examples": [] if chosen else _examples(base.settings),
        "steps": STEPS,
        "trade_offs": TRADE_OFFS,
        **answers_context(run, params),
    }


def _examples(settings: Mapping[str, Setting]) -> list[tuple[str, str]]:
    """Return frequent questions as (label, query of the page)."""
    spare = settings["spare"].value or 0
    return [
        ("50% more demand", "growth=1.5"),
        ("One more spare replica", f"spare={spare + 1:g}"),
        ("1 to 2 × the demand", "setting=growth&value=1&to=2&steps=5"),
    ]


def answers_context(run: Run, params: QueryDict) -> TemplateContext:
    """Return the context of the answers to the what-if; without one, of the Pareto front.

    An error of a single answer is in ``problem``. Raises NotReady while the unchanged plan is being
    prepared, and its error if it has none.
    """
    question = question_of(base_of(run).settings, params)
    context = {"run": run, "address": reverse("web:run-what-if", args=[run.pk])}
    if run.kind == Run.Kind.PARETO and not question.lines:
        result = typed_result(run, ParetoResult)
        plans = len(result.points)
        choices = [(i, f"Plan {i + 1}") for i in range(plans)]
        if not has_trade_off(result.points):
            choices = []  # the run's own plan is as good
        chosen = plans - 1 if result.knee is None else result.knee
        return context | {"choices": choices, "cell": chosen, **_context_of(run_report(run))}
    unchanged, *answers = what_if_cells(run, [{}, *question.cells], WITHIN_S)
    if not isinstance(unchanged, WhatIf):
        raise unchanged or NotReady("The plan of this run is being prepared. Try again.")
    pending = answers.count(None)  # a later call continues with them
    recommended = None if unchanged.flat else recommended_policy(run)
    context |= {
        "question": question,
        "going": pending,
        "planned": len(answers) - pending,
        "asked": len(answers),
    }
    if question.axes:  # a grid of answers; otherwise there is one answer
        return context | _grid_context(run, question, answers, params.get("figure", ""))
    (answer,) = answers  # None: pending, and the unchanged plan is shown meanwhile
    if isinstance(answer, PlannerError):
        return context | {"problem": str(answer)}
    shown = replace(answer or unchanged, recommended=recommended)
    is_changed = bool(question.fixed and answer)
    compared_with = unchanged if is_changed else None
    planned = stored_result(run)
    time = time_text(planned.window.end - planned.window.start) if planned.window else ""
    report = answer_report(run.name, compared_with, shown, same=not is_changed, time=time)
    report = replace(report, clock=planned.clock)
    return context | {"choices": [(0, "")] if question.fixed else [], **_context_of(report)}


def _grid_context(
    run: Run, question: Question, answers: Sequence[WhatIf | PlannerError | None], figure_name: str
) -> TemplateContext:
    """Return the context of a what-if over ranges: a grid with one figure of every answer.

    An answer is None while it is pending. By default, the figure is the first one.
    """
    cells = []
    for values, answer in zip(cells_of(question.axes), answers, strict=True):
        if isinstance(answer, WhatIf):
            cells.append(planned_cell(values, answer))
        else:  # an error is the reason, None is pending
            cells.append(Cell(values, {}, "planned" if answer else "pending", str(answer or "")))
    settings = base_of(run).settings
    varied = []
    for axis in question.axes:
        setting = settings[axis.key]
        texts = [f"{figure(value)} {setting.unit}" for value in axis.values]
        varied.append(VariedSetting(setting.label, axis.values, texts, setting.relative))
    figures = planned_figures(recommended_policy(run))
    chosen = figure_by_name(figure_name or figures[0].name, figures)
    known = [answer for answer in answers if isinstance(answer, WhatIf)]
    notes = tuple(dict.fromkeys(note for answer in known for note in answer.notes))
    report = grid_report(run.name, cells, varied, chosen, figures, notes)
    combinations = product(*(setting.texts for setting in varied))
    choices = [(i, ", ".join(combination)) for i, combination in enumerate(combinations)]
    return {"choices": choices, "figures": figures, "chosen": chosen, **_context_of(report)}


def sweep_context(sweep: Sweep, params: QueryDict) -> TemplateContext:
    """Return the context of a stored grid (sweep) of runs."""
    figures, grid = sweep_figures(sweep), sweep_grid(sweep)
    chosen = figure_by_name(params.get("figure") or figures[0].name, figures)
    texts = product(*(setting.texts for setting in varied_settings(sweep)))
    return {
        "sweep": sweep,
        "kind": Run.Kind(sweep.kind).label,
        "address": reverse("web:what-if", args=[sweep.pk]),
        "cells": list(zip(map(", ".join, texts), sweep_cells(sweep), strict=True)),
        "grid": grid,
        "going": grid.going,
        "figures": figures,
        "chosen": chosen,
        **_context_of(sweep_report(sweep, chosen.name)),
    }


def _context_of(report: Report) -> TemplateContext:
    """Return the template context with a report and its sections."""
    return {"report": report, "sections": display_sections(report, live=True)}
