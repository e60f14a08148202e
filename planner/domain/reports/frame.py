"""Report the basis that plans, backtests and outlooks share: window, inputs and sources."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.formats import when
from planner.domain.report import Head, Note, Section, sources_section, table
from planner.domain.results.basis import Frame, WindowFacts


def window_text(window: WindowFacts) -> str:
    """Return the begin and the end of the window."""
    return f"{when(window.start, window.clock)} to {when(window.end, window.clock)}"


def basis_sections(frame: Frame, notes: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return the sections of inputs and sources."""
    return (*_assumptions(frame), *sources_section(frame.provenance, (*notes, *frame.notes)))


def _assumptions(frame: Frame) -> tuple[Section, ...]:
    """Return the section of inputs, with the number of those that are assumed."""
    if not frame.assumptions:
        return ()
    assumed = sum(row.provenance == "assumed" for row in frame.assumptions)
    inputs = table(
        frame.assumptions,
        (Head("Input", wide=2), lambda row: row.what),
        (Head("Value", wide=2), lambda row: row.value),
        (Head("Kind"), lambda row: row.provenance),
        (Head("Source", wide=3), lambda row: row.source),
        (Head("Effect", wide=2), lambda row: row.matters),
        (Head("Scenario key", wide=2), lambda row: row.key),
    )
    title = f"Inputs: {assumed} of {len(frame.assumptions)} are assumed"
    note = Note("An assumed input is worth checking if its effect is large.")
    return (Section(title, (note, inputs), "Assumptions", folded=True),)
