"""Build the page of a sweep, with its grid as a heat map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.models import Sweep
from planner.outputs.table_text import shown
from planner.selectors.sweeps import FIGURES, SweepCell, figure_named, sweep_grid
from planner.templatetags.headroom import setting

SHADES = 8  # of static/css/headroom.css


@dataclass(frozen=True, slots=True)
class Shown:
    cell: SweepCell
    text: str
    shade: int  # 1 to SHADES; 0 without a value


def page_context(sweep: Sweep, name: str) -> dict[str, Any]:
    figure = figure_named(name)
    grid = sweep_grid(sweep, figure)
    first, second = sweep.axes[0], (sweep.axes[1] if len(sweep.axes) > 1 else None)
    return {
        "sweep": sweep,
        "grid": grid,
        "figure": figure,
        "figures": FIGURES,
        "first": first["key"],
        "second": second["key"] if second else "",
        "heads": [words(value) for value in second["values"]] if second else [""],
        "lines": [
            (words(value), [_shown(cell, figure.unit) for cell in row])
            for value, row in zip(first["values"], grid.rows, strict=True)
        ],
    }


def words(value: Any) -> str:
    return "left out" if value is None else setting(value)


def _shown(cell: SweepCell, unit: str) -> Shown:
    if cell.value is None or cell.place is None:
        return Shown(cell, "", 0)
    return Shown(cell, shown(cell.value, unit, 2), 1 + round(cell.place * (SHADES - 1)))
