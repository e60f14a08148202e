"""Write a report as text for a terminal: the answer first, then facts, tables and notes.

Widths are in characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

from planner.domain.report import Facts, Meaning, Note, Report, Section, Table
from planner.outputs.render.document import columns_without_explanations
from planner.outputs.table_text import align_cells, justified

COLOURS = {Meaning.MET: 32, Meaning.SAVING: 32, Meaning.RISK: 33, Meaning.MISSED: 31}
BOLD = 1
NARROWEST = 14  # characters of a text column that is wrapped
GAP = 2  # blanks between columns


def terminal_text(
    report: Report, *, colour: bool = False, width: int | None = None, wraps_text: bool = True
) -> str:
    """Return a report as text, with ANSI ``colour`` and tables wrapped to ``width``."""
    return "\n".join(_Terminal(colour, width, wraps_text).report(report))


@dataclass(frozen=True, slots=True)
class _Terminal:
    """A writer of reports as text, with the options of ``terminal_text``."""

    colour: bool
    width: int | None
    wraps_text: bool

    def report(self, report: Report) -> Iterator[str]:
        """Yield the lines of a report."""
        yield from self._text(report.answer, report.meaning, painted=True)
        for sentence in (report.opening, report.why, report.about):
            if sentence:
                yield from self._text(sentence)
        for warning in report.warnings:
            yield from self._text(f"warning: {warning}", Meaning.RISK, painted=True)
        if report.facts:
            yield ""
            yield from self._facts(Facts((*report.facts, *report.trust)))
        if report.alternatives:
            yield from ("", self._paint("Alternatives"))
            prices = tuple(alternative.price for alternative in report.alternatives)
            yield from self._facts(Facts(prices))
        for section in report.sections:
            lines = list(self._section(section, report.clock))
            if lines:
                yield from ("", self._paint(section.title), *lines)

    def _section(self, section: Section, clock: str) -> Iterator[str]:
        """Yield a section's lines without charts; of unprinted details, only the notes."""
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
        """Yield the lines of a table.

        If it is wider than the terminal, it loses its columns of explanations. If it still is, its
        columns become rows. Without a known width, it stays as it is.
        """
        if table.title:
            yield table.title
        heads, texts = table.display_heads, list(table.texts(clock))
        grid = Grid([[head.full for head in heads], *texts], [head.numeric for head in heads])
        marks = ["", *("*" if row in table.marked else "" for row in range(len(texts)))]
        width = self.width  # None: not known
        if width and table.marked:
            width -= 2  # a mark and a blank stand before each row
        if width and grid.min_width > width:
            grid = grid.columns(columns_without_explanations(table))
        if not width or grid.min_width <= width:
            yield from grid.lines(width, marks if table.marked else None)
        else:
            for i, part in enumerate(grid.transposed_grids(marks, width)):
                if i:
                    yield ""
                yield from part.lines(width)
        if table.note:
            yield from self._text(table.note)

    def _text(
        self, text: str, meaning: Meaning = Meaning.NEUTRAL, *, painted: bool = False
    ) -> Iterable[str]:
        """Return a sentence as lines; with ``painted``, in the colour of its ``meaning``."""
        lines = [text]
        if self.width and self.wraps_text:
            lines = wrap(text, self.width)
        return [self._paint(line, meaning) for line in lines] if painted else lines

    def _paint(self, text: str, meaning: Meaning = Meaning.NEUTRAL) -> str:
        """Return text in the colour of its meaning, neutral text in bold, if colour is on."""
        code = COLOURS.get(meaning, BOLD)
        return f"\033[{code}m{text}\033[0m" if self.colour else text


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of text cells; the first row is the head."""

    rows: Sequence[Sequence[str]]
    right_aligned: Sequence[bool]  # by column

    @property
    def min_width(self) -> int:
        """Return the smallest width at which no word of the grid is broken."""
        return _width_with_gaps(self._min_widths())

    def _columns(self) -> list[tuple[str, ...]]:
        """Return the cells by column."""
        return list(zip(*self.rows, strict=True))

    def _min_widths(self) -> list[int]:
        """Return the smallest width of each column: its longest word, or more for short texts."""
        widths = []
        for cells, is_right in zip(self._columns(), self.right_aligned, strict=True):
            longest_cell = max(map(len, cells))
            longest_word = max([0, *map(len, " ".join(cells).split())])
            if is_right:
                widths.append(max(1, longest_word))
            else:
                widths.append(min(longest_cell, max(NARROWEST, longest_word)))
        return widths

    def columns(self, indices: Sequence[int]) -> Grid:
        """Return the grid with only the columns at ``indices``."""
        rows = [[row[i] for i in indices] for row in self.rows]
        return Grid(rows, [self.right_aligned[i] for i in indices])

    def transposed_grids(self, marks: Sequence[str], width: int) -> Iterator[Grid]:
        """Yield grids whose rows are the columns of this one, each grid at most ``width`` wide.

        A grid has the heads as its first column, then as many rows of this one as fit. ``marks``
        has the mark of each row, "" or "*", which stands before its name in the first column.
        """
        names, *other_columns = self._columns()
        marked_names = tuple(
            f"{mark} {name}" if mark else name for mark, name in zip(marks, names, strict=True)
        )
        columns = (marked_names, *other_columns)  # each has its head, and then a text for each row
        heads = [head for head, *_ in columns]
        texts_of_columns = [texts for _, *texts in columns]
        words = " ".join(text for texts in texts_of_columns for text in texts).split()
        # A text wraps between words, so a column needs the width of the longest word.
        column_width = max([NARROWEST, *map(len, words)])
        head_width = max(map(len, heads))
        rows_per_grid = max(1, (width - head_width) // (column_width + GAP))
        for begin in range(0, len(self.rows) - 1, rows_per_grid):
            end = begin + rows_per_grid
            part = [
                [head, *texts[begin:end]]
                for head, texts in zip(heads, texts_of_columns, strict=True)
            ]
            is_right_aligned = [False, *[True] * (len(part[0]) - 1)]
            yield Grid(part, is_right_aligned)

    def lines(self, width: int | None, marks: Sequence[str] | None = None) -> Iterator[str]:
        """Yield the lines of the grid, wrapped to ``width``; ``marks`` precede its rows."""
        widths = self._widths(width)
        for i, row in enumerate(self.rows):
            wrapped_cells = [
                wrap(text, column_width, break_on_hyphens=False) or [""]
                for text, column_width in zip(row, widths, strict=True)
            ]
            # A row is as high as its longest cell.
            for line_number, texts in enumerate(zip_longest(*wrapped_cells, fillvalue="")):
                line = justified(texts, widths, self.right_aligned)
                if marks:
                    mark = marks[i] if line_number == 0 else ""
                    line = f"{mark or ' '} {line}"
                yield line.rstrip()

    def _widths(self, width: int | None) -> list[int]:
        """Return the column widths; the widest columns shrink until the grid fits ``width``."""
        widths = [max(1, *map(len, column)) for column in self._columns()]
        minimum_widths = self._min_widths()
        while width is not None and _width_with_gaps(widths) > width:
            can_shrink = [i for i in range(len(widths)) if widths[i] > minimum_widths[i]]
            if not can_shrink:
                break
            widest = max(can_shrink, key=widths.__getitem__)
            widths[widest] -= 1
        return widths


def _width_with_gaps(widths: Sequence[int]) -> int:
    """Return the width of a line with columns of these widths."""
    return sum(widths) + GAP * (len(widths) - 1)
