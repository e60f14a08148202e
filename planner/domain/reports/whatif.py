"""Report what-ifs: one answer, and a grid. A cell of a grid is one combination of settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from planner.domain.columns import COUNT, LESS, SHARE
from planner.domain.formats import figure, percent, signed_percent
from planner.domain.report import (
    Axis,
    Block,
    Chart,
    Fact,
    Facts,
    Form,
    Group,
    Head,
    Note,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    Value,
    step_series,
    table,
)
from planner.domain.reports.policies import span_text
from planner.domain.whatif.figures import (
    Cell,
    Figure,
    RankedCell,
    SimulatedPolicy,
    WhatIf,
    planned_figures,
    rank_cells,
)
from planner.policies.registry import traits_of

FORMS = {SHARE: Form.SHARE, COUNT: Form.COUNT}  # of figures by unit; others: numbers
UNIT_TEXTS = {SHARE: "", COUNT: ""}  # other units are their own text
STATUS_TEXTS = {"flat": " (static)", "optimal": ""}  # others: the solver's word


@dataclass(frozen=True, slots=True)
class VariedSetting:
    """A setting that a grid varies, with its values as they are and as text.

    The values of a ``relative`` setting are factors on its present value.
    """

    label: str
    values: Sequence[Any]
    texts: Sequence[str]
    relative: bool = False


def answer_report(
    title: str, before: WhatIf | None, now: WhatIf, *, same: bool = False, time: str = ""
) -> Report:
    """Return the report of the what-if answer ``now``.

    ``before`` is the plan without the change; None: not known. ``same``: nothing is changed, so the
    headline also has the cost of the simulated plan, if there is one. ``time`` is the time that
    costs refer to, such as "per day". If no plan is possible, the report has the reason instead of
    figures and replicas.
    """
    blocks: list[Block] = []
    if now.totals is None:
        blocks.append(Note(now.conflict))
    else:
        figures = planned_figures(now.recommended)
        facts = (_fact(shown, before, now) for shown in figures if shown.name != "starts")
        blocks.append(Facts(tuple(facts)))
    if now.recommended is not None and not same:
        simulated_cost = figure(now.recommended.cost_usd, "$")
        sentence = (
            f"Recommended before the change: {now.recommended.label}, {simulated_cost} simulated. "
            "Simulate the change to compare with it."
        )
        blocks.append(Note(sentence))
    if now.totals is not None:
        blocks += _replicas_chart(before, now)
    changed = [size for size in now.sizes if size.input_tps != size.before_tps]
    if changed:
        title_of_sizes = "Capacity of one replica, input tokens"
        blocks.append(
            table(
                changed,
                (Head("Model"), lambda size: size.model),
                (Head("Replica"), lambda size: size.replica),
                (Head("Before", Form.NUMBER, "tokens/s"), lambda size: size.before_tps),
                (Head("After", Form.NUMBER, "tokens/s"), lambda size: size.input_tps),
                title=title_of_sizes,
            )
        )
    title_of_plan = "Before and after, as planned" if before else "Plan, not simulated"
    sections = (Section(title_of_plan, tuple(blocks)), _notes((*now.binding, *now.notes)))
    simulated = now.recommended if same else None
    return Report(title, _headline(before, now, simulated, time), sections)


def _headline(
    before: WhatIf | None, now: WhatIf, simulated: SimulatedPolicy | None, time: str
) -> str:
    """Return the planned cost and replicas, or that there is no such plan.

    The cost is compared with that of ``simulated``, else with that ``before`` the change. Without
    both (None), it is not compared.
    """
    if now.totals is None:
        return f"No such {'fleet' if now.flat else 'plan'}"
    usd = now.totals.usd
    before_usd = before.totals.usd if before and before.totals else None
    cost = f"{figure(usd, '$')} {time}".rstrip()
    noun = "replica" if now.most == 1 else "replicas"
    status = STATUS_TEXTS.get(now.status, f" ({now.status})")
    replicas = f"{span_text((now.least, now.most))} {noun}{status}"
    if simulated is not None:
        guard = " with the guard" if traits_of(simulated.policy).may_exceed_plan else ""
        simulated_cost = figure(simulated.cost_usd, "$")
        return f"Unchanged: {replicas}, {cost} as planned, {simulated_cost} simulated{guard}"
    name = planned_figures(now.recommended)[0].label
    if before_usd:
        cost = f"{figure(before_usd, '$')} → {cost} ({signed_percent(usd / before_usd - 1)})"
    return f"{name}: {cost}, {replicas}"


def _fact(shown: Figure, before: WhatIf | None, now: WhatIf) -> Fact:
    """Return the figure ``shown`` of the answer ``now``, and its change from ``before``."""
    value = shown.planned(now)
    old = None if before is None else shown.planned(before)
    fact = Fact(shown.label, value, _unit(shown), FORMS.get(shown.unit, Form.NUMBER))
    if value is None or old is None or value == old:
        return fact
    change = signed_percent(value / old - 1) if old else ""
    return replace(fact, change=change, note=f"from {figure(old, _unit(shown))}")


def _unit(shown: Figure) -> str:
    """Return the unit of a figure as text."""
    return UNIT_TEXTS.get(shown.unit, shown.unit)


def _replicas_chart(before: WhatIf | None, now: WhatIf) -> Iterator[Chart]:
    """Yield the chart of planned replicas before and after the change, of plans with periods."""
    after = "Planned, after" if before else "Planned"
    lines = []
    for plan, label, role in (
        (before, "Planned, before", Role.BASELINE),
        (now, after, Role.RECOMMENDED),
    ):
        if plan is not None and plan.periods:
            begins = [datetime.fromisoformat(period.begins) for period in plan.periods]
            replicas = [float(period.replicas) for period in plan.periods]
            lines.append(step_series(label, begins, replicas, role))
    if lines:
        yield Chart("Planned replicas", Axis(), Axis(form=Form.COUNT), tuple(lines))


def _notes(sentences: Sequence[str]) -> Section:
    """Return the section of notes, with a note for each sentence."""
    return Section("Limits and uncertainty", tuple(map(Note, sentences)), "Notes")


class CellRow(NamedTuple):
    """A cell of a grid with the texts of its settings; ``best`` cells are highlighted."""

    texts: tuple[str, ...]
    cell: Cell
    best: bool


def grid_report(
    title: str,
    cells: Sequence[Cell],
    varied: Sequence[VariedSetting],
    chosen: Figure,
    figures: Sequence[Figure],
    notes: Sequence[str] = (),
) -> Report:
    """Return the report of a grid: a chart of the figure ``chosen``, and a table of all cells.

    ``varied`` are its one or two settings: the chart is a line for one, and a heat map for two.
    ``figures`` are the columns of the table.
    """
    is_map = len(varied) > 1
    ranked = rank_cells(cells, chosen)
    # Cells are in the order of the product: the last setting varies fastest.
    texts_of_cells = list(product(*(setting.texts for setting in varied)))
    sections = []
    if any(cell.value is not None for cell in ranked):
        drawn = _heat_map(ranked, varied, chosen) if is_map else _curve(ranked, varied[0], chosen)
        effect = f"Effect of {' and '.join(setting.label.lower() for setting in varied)}"
        sections.append(Section(effect, (drawn,)))
    rows = [
        CellRow(texts, cell, cell_rank.best)
        for texts, cell, cell_rank in zip(texts_of_cells, cells, ranked, strict=True)
    ]
    # The table of one setting is an answer itself. Behind a heat map it only backs it.
    group = Group.BASIS if is_map else None
    all_cells = _cells_table(rows, varied, figures)
    sections.append(Section("All combinations", (all_cells,), group=group))
    if notes:
        sections.append(_notes(notes))
    # In a map, the best combination; on a line, the change from end to end.
    answer = _best_settings(rows, varied, chosen) if is_map else _effect(ranked, varied[0], chosen)
    problems = [cell.problem for cell in cells if cell.problem]
    warnings: tuple[str, ...] = ()
    if problems:
        count = f"{len(problems)} of {len(cells)}"
        warnings = (f"{count} combinations have no plan. {problems[0]}",)
    return Report(title, answer, tuple(sections), warnings=warnings)


def _best_settings(rows: Sequence[CellRow], varied: Sequence[VariedSetting], chosen: Figure) -> str:
    """Return the settings at which the figure ``chosen`` is best; "" if all cells are equal."""
    best = next((row for row in rows if row.best), None)
    if best is None:
        return ""
    pairs = zip(varied, best.texts, strict=True)
    settings = ", ".join(f"{setting.label} {text}" for setting, text in pairs)
    extreme = "lowest" if chosen.better == LESS else "highest"
    value = _text(chosen, best.cell.figures.get(chosen.name))
    return f"{chosen.label} {extreme} at {settings}: {value}"


def _cells_table(
    rows: Sequence[CellRow], varied: Sequence[VariedSetting], figures: Sequence[Figure]
) -> Table:
    """Return the table of all cells: their settings (as text), their known figures and problems."""

    def setting_text(i: int, row: CellRow) -> str:
        """Return the value of setting ``i``."""
        return row.texts[i]

    def figure_of(name: str, row: CellRow) -> float | None:
        """Return the figure ``name``; None if the cell lacks it."""
        return row.cell.figures.get(name)

    settings = (
        (Head(setting.label, width=2), partial(setting_text, i)) for i, setting in enumerate(varied)
    )
    values = (
        (Head(shown.label, FORMS.get(shown.unit, Form.NUMBER), _unit(shown)),
         partial(figure_of, shown.name))
        for shown in figures
    )  # fmt: skip
    problem = (Head("Problem", width=3), lambda row: _problem(row.cell))
    return table(rows, *settings, *values, problem, marked=lambda row: row.best)


def _effect(cells: Sequence[RankedCell], varied: VariedSetting, chosen: Figure) -> str:
    """Return how the figure ``chosen`` changes from the first to the last value of a setting.

    For a relative setting, that is also the mean change for 1% of it. "" if fewer than two cells
    have the figure.
    """
    known = [(i, cell.value) for i, cell in enumerate(cells) if cell.value is not None]
    if len(known) < 2:
        return ""
    (first, first_figure), (last, last_figure) = known[0], known[-1]
    setting = varied.label.lower()
    start = f"{_text(chosen, first_figure)} at {setting} {varied.texts[first]}"
    ends = f"{start}, {_text(chosen, last_figure)} at {varied.texts[last]}"
    if not varied.relative or first_figure == last_figure:
        return f"{chosen.label}: {ends}"
    # Values of a relative setting are factors: the change per 1 is divided by 100 to be per 1%.
    slope = (last_figure - first_figure) / (varied.values[last] - varied.values[first]) / 100
    change = percent(slope, 2) if chosen.unit == SHARE else figure(slope, _unit(chosen))
    sign = "+" if slope > 0 else ""
    return f"{chosen.label} {sign}{change} per 1% of {setting}: {ends}"


def _text(shown: Figure, value: float | None) -> str:
    """Return a value of a figure as text with its unit."""
    return Fact("", value, _unit(shown), FORMS.get(shown.unit, Form.NUMBER)).text


def _problem(cell: Cell) -> str:
    """Return why a cell has no figures, with the state of its run; "" if it has figures."""
    state = "" if cell.state in ("planned", "completed") else cell.state
    if cell.run and state:
        state = f"run {cell.run} {state}"
    return ": ".join(filter(None, (state, cell.problem)))


def _curve(cells: Sequence[RankedCell], varied: VariedSetting, chosen: Figure) -> Chart:
    """Return a chart of the figure ``chosen`` over the values of one setting."""
    numbers = all(isinstance(value, int | float) for value in varied.values)
    x = tuple(varied.values if numbers else varied.texts)
    y = tuple(cell.value for cell in cells)
    return Chart(
        chosen.label,
        Axis(varied.label),
        Axis(unit=_unit(chosen), form=FORMS.get(chosen.unit, Form.NUMBER)),
        (Series(chosen.label, x, y, Role.RECOMMENDED, Shape.MARKED),),
    )


def _heat_map(
    cells: Sequence[RankedCell], varied: Sequence[VariedSetting], chosen: Figure
) -> Table:
    """Return a heat map of the figure ``chosen``: first setting by row, second by column."""
    first, second = varied
    form, columns = FORMS.get(chosen.unit, Form.NUMBER), len(second.texts)
    rows: list[tuple[Value, ...]] = []
    shades: list[tuple[float | None, ...]] = []
    for i, text in enumerate(first.texts):
        cells_of_row = cells[i * columns : (i + 1) * columns]
        rows.append((text, *(cell.value for cell in cells_of_row)))
        shades.append((None, *(cell.place for cell in cells_of_row)))
    corner = Head(f"{first.label} by {second.label}")
    return Table(
        title=f"{chosen.label}, {_unit(chosen)}".removesuffix(", "),
        heads=(corner, *(Head(text, form) for text in second.texts)),
        rows=tuple(rows),
        shades=tuple(shades),
    )
