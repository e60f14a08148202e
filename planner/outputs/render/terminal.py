"""Write a report as text for a terminal: the answer first, then facts, tables and notes."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.report import Facts, Meaning, Note, Report, Section, Table
from planner.outputs.table_text import align_cells

COLOURS = {Meaning.MET: 32, Meaning.SAVING: 32, Meaning.RISK: 33, Meaning.MISSED: 31}
BOLD = 1


def terminal_text(report: Report, *, colour: bool = False) -> str:
    """Return a report as lines of text; ``colour``: with the codes of a terminal."""

    def painted(text: str, meaning: Meaning = Meaning.NEUTRAL) -> str:
        code = COLOURS.get(meaning, BOLD)
        return f"\033[{code}m{text}\033[0m" if colour else text

    lines = [painted(report.answer, report.meaning)]
    lines += [line for line in (report.why, report.about) if line]
    lines += [painted(f"warning: {warning}", Meaning.RISK) for warning in report.warnings]
    if report.facts:
        lines += ["", *_facts(Facts(report.facts))]
    if report.alternatives:
        prices = Facts(tuple(each.price for each in report.alternatives))
        lines += ["", painted("Alternatives"), *_facts(prices)]
    for section in report.sections:
        if body := list(_section(section, report.clock)):
            lines += ["", painted(section.title), *body]
    return "\n".join(lines)


def _section(section: Section, clock: str) -> Iterator[str]:
    """Yield the lines of a section: no charts, and only the notes of what is not printed."""
    shown = section.printed or not section.folded
    for i, block in enumerate(section.blocks):
        match block:
            case Note():
                yield f"note: {block.text}"
            case Facts() if shown:
                yield from _facts(block)
            case Table() if shown:
                yield from [""] * bool(i and block.title)
                yield from table_lines(block, clock)


def _facts(facts: Facts) -> Iterator[str]:
    """Yield a line for each fact."""
    rows = [
        [fact.label, fact.text, " · ".join(filter(None, (fact.change, fact.note)))]
        for fact in facts.items
    ]
    yield from align_cells(rows, [False, True, False])


def table_lines(table: Table, clock: str = "utc") -> Iterator[str]:
    """Yield the lines of a table; marked rows begin with a star."""
    if table.title:
        yield table.title
    rows = [[head.full for head in table.heads]]
    rows += map(list, table.texts(clock))
    lines = align_cells(rows, [head.numeric for head in table.heads])
    if table.marked:
        lines = [
            f"{'*' if i - 1 in table.marked else ' '} {line}".rstrip()
            for i, line in enumerate(lines)
        ]
    yield from lines
    if table.note:
        yield f"note: {table.note}"
