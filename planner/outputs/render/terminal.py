"""Write a report as text for a terminal: the answer first, then facts, tables and notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from planner.domain.report import Facts, Meaning, Note, Report, Section, Table
from planner.outputs.render.document import EXPLAINS
from planner.outputs.table_text import align_cells

COLOURS = {Meaning.MET: 32, Meaning.SAVING: 32, Meaning.RISK: 33, Meaning.MISSED: 31}
BOLD = 1
NARROWEST = 14  # characters of a text column that is wrapped
GAP = 2  # blanks between columns


def terminal_text(
    report: Report, *, colour: bool = False, width: int | None = None, wraps_text: bool = True
) -> str:
    """Return a report as text for a terminal.

    With ``colour``, the text has ANSI colour codes. ``width`` wraps it to that many characters;
    without ``wraps_text``, only tables.
    """
    return "\n".join(_Terminal(colour, width, wraps_text).report(report))


@dataclass(frozen=True, slots=True)
class _Terminal:
    """A writer of reports as text: with or without colour, and with a width in characters."""

    colour: bool
    width: int | None
    wraps_text: bool

    def report(self, report: Report) -> Iterator[str]:
        """Yield the lines of a report."""
        yield from self._text(report.answer, report.meaning, painted=True)
        for line in filter(None, (report.opening, report.why, report.about)):
            yield from self._text(line)
        for warning in report.warnings:
            yield from self._text(f"warning: {warning}", Meaning.RISK, painted=True)
        if report.facts:
            yield ""
            yield from self._facts(Facts((*report.facts, *report.trust)))
        if report.alternatives:
            yield from ("", self._paint("Alternatives"))
            yield from self._facts(
                Facts(tuple(alternative.price for alternative in report.alternatives))
            )
        for section in report.sections:
            if body := list(self._section(section, report.clock)):
                yield from ("", self._paint(section.title), *body)

    def _section(self, section: Section, clock: str) -> Iterator[str]:
        """Yield the lines of a section, without charts.

        A section of details prints only its notes, unless it is marked as printed.
        """
        is_shown = section.printed or section.group is None
        for i, block in enumerate(section.blocks):
            match block:
                case Note():
                    yield from self._text(f"- {block.text}")
                case Facts() if is_shown:
                    yield from self._facts(block)
                case Table() if is_shown:
                    if i and block.title:
                        yield ""
                    yield from self._table(block, clock)

    def _facts(self, facts: Facts) -> Iterator[str]:
        """Yield a line for each fact, its value in the colour of its meaning."""
        rows = [[fact.label, fact.text, fact.change_and_note] for fact in facts.items]
        lines = align_cells(rows, [False, True, False])
        for fact, line in zip(facts.items, lines, strict=True):
            if fact.meaning is Meaning.NEUTRAL:
                yield line
            else:
                yield line.replace(fact.text, self._paint(fact.text, fact.meaning), 1)

    def _table(self, table: Table, clock: str) -> Iterator[str]:
        """Yield the lines of a table; marked rows begin with a star.

        A table that is too wide loses its explanatory columns. If it is still too wide, its columns
        become rows.
        """
        if table.title:
            yield table.title
        heads, texts = table.display_heads, list(table.texts(clock))
        grid = Grid([[head.full for head in heads], *texts], [head.numeric for head in heads])
        marks = ["", *("*" if i in table.marked else "" for i in range(len(texts)))]
        room = self.width and self.width - 2 * bool(table.marked)
        if room and grid.min_width > room:
            grid = grid.columns([i for i, h in enumerate(heads) if not i or h.wide < EXPLAINS])
        if room and grid.min_width > room:
            for i, part in enumerate(grid.transposed_grids(marks, room)):
                if i:
                    yield ""
                yield from part.lines(room)
        else:
            yield from grid.lines(room, marks if table.marked else None)
        if table.note:
            yield from self._text(table.note)

    def _text(
        self, text: str, meaning: Meaning = Meaning.NEUTRAL, *, painted: bool = False
    ) -> Iterable[str]:
        """Return a sentence as lines.

        ``painted`` lines have the colour of their ``meaning``.
        """
        lines = wrap(text, self.width) if self.width and self.wraps_text else [text]
        return [self._paint(line, meaning) for line in lines] if painted else lines

    def _paint(self, text: str, meaning: Meaning = Meaning.NEUTRAL) -> str:
        """Return text in the colour of its meaning; neutral text is bold."""
        code = COLOURS.get(meaning, BOLD)
        return f"\033[{code}m{text}\033[0m" if self.colour else text


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of text cells; the first row is the head, and ``right`` columns align right."""

    rows: Sequence[Sequence[str]]
    right: Sequence[bool]

    @property
    def min_width(self) -> int:
        """Return the smallest width in characters at which no word of the grid is broken."""
        return sum(self._min_widths()) + GAP * (len(self.right) - 1)

    def _min_widths(self) -> list[int]:
        """Return the width of the longest word of each column; short texts stay whole."""
        widths = []
        for column, right in zip(zip(*self.rows, strict=True), self.right, strict=True):
            longest_word = max([0, *(len(word) for text in column for word in text.split())])
            longest_text = max(map(len, column))
            widths.append(
                max(1, longest_word) if right else min(longest_text, max(NARROWEST, longest_word))
            )
        return widths

    def columns(self, indices: Sequence[int]) -> Grid:
        """Return the grid with only the columns at ``indices``."""
        return Grid(
            [[row[i] for i in indices] for row in self.rows], [self.right[i] for i in indices]
        )

    def transposed_grids(self, marks: Sequence[str], room: int) -> Iterator[Grid]:
        """Yield transposed grids, with as many of the original rows each as fit into ``room``."""
        turned = [list(column) for column in zip(*self.rows, strict=True)]  # a row per head
        turned[0] = [
            f"{mark} {text}" if mark else text for mark, text in zip(marks, turned[0], strict=True)
        ]
        first, items = max(len(column[0]) for column in turned), len(turned[0]) - 1
        values = " ".join(text for column in turned for text in column[1:])
        column_width = max([NARROWEST, *map(len, values.split())])
        per_grid = max(1, (room - first) // (column_width + GAP))
        for begin in range(1, items + 1, per_grid):
            part = [[column[0], *column[begin : begin + per_grid]] for column in turned]
            yield Grid(part, [False, *[True] * (len(part[0]) - 1)])

    def lines(self, room: int | None, marks: Sequence[str] | None = None) -> Iterator[str]:
        """Yield the lines of the grid; cells wrap if it is wider than ``room`` characters.

        ``room`` None: any width. ``marks`` has a character to put before each row.
        """
        widths = self._widths(room)
        for i, row in enumerate(self.rows):
            cells = [
                wrap(text, width, break_on_hyphens=False) or [""]
                for text, width in zip(row, widths, strict=True)
            ]
            for k in range(max(map(len, cells))):  # a row is as high as its longest cell
                texts = [cell[k] if k < len(cell) else "" for cell in cells]
                line = (" " * GAP).join(
                    text.rjust(width) if right else text.ljust(width)
                    for text, width, right in zip(texts, widths, self.right, strict=True)
                )
                mark = f"{(marks[i] if not k else '') or ' '} " if marks else ""
                yield f"{mark}{line}".rstrip()

    def _widths(self, room: int | None) -> list[int]:
        """Return the column widths; the widest columns shrink until the grid fits ``room``."""
        widths = [max(1, *map(len, column)) for column in zip(*self.rows, strict=True)]
        minimum_widths = self._min_widths()
        while room is not None and sum(widths) + GAP * (len(widths) - 1) > room:
            shrinking = [i for i, width in enumerate(widths) if width > minimum_widths[i]]
            if not shrinking:
                break
            widths[max(shrinking, key=lambda i: widths[i])] -= 1
        return widths
