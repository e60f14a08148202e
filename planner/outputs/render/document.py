"""Arrange a report as a document: what decides comes first, then the appendix."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.domain.report import Block, Note, Report, Section, Table

MOST_ROWS = 8  # of a table in the main part
MOST_WARNINGS = 4  # in the main part
EXPLAINS = 3  # relative width of a column that explains the others, and may be left out


@dataclass(frozen=True, slots=True)
class Document:
    """A printed report: the main part, and an appendix."""

    warnings: tuple[str, ...]  # of the main part
    decision: tuple[Section, ...]  # of the main part
    appendix: tuple[Section, ...]


def document_of(report: Report) -> Document:
    """Return the main part, with long tables cut, and the appendix with details."""
    decision = [section for section in report.sections if section.group is None]
    brief = [replace(part, blocks=tuple(map(_brief_block, part.blocks))) for part in decision]
    appendix = [  # first the sections whose tables were cut
        replace(section, title=f"{section.title}, in full", name=f"{section.sheet}, in full")
        for section in decision
        if any(map(_is_long, section.tables))
    ]
    further_warnings = report.warnings[MOST_WARNINGS:]
    if further_warnings:
        appendix.append(Section("More warnings", tuple(map(Note, further_warnings))))
    in_order = sorted(report.sections, key=lambda section: section.order)
    appendix += [section for section in in_order if section.group is not None]
    return Document(report.warnings[:MOST_WARNINGS], tuple(brief), tuple(appendix))


def _is_long(table: Table) -> bool:
    """Return whether a table has too many rows for the main part."""
    return len(table.rows) > MOST_ROWS


def _brief_block(block: Block) -> Block:
    """Return a long table cut to MOST_ROWS, without explanatory columns; other blocks unchanged."""
    if not isinstance(block, Table) or not _is_long(block):
        return block
    columns = columns_without_explanations(block)

    def cut(row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the cells of a row in the columns that stay."""
        return tuple(row[column] for column in columns)

    cut_rows = len(block.rows) - MOST_ROWS
    return replace(
        block,
        heads=cut(block.heads),
        rows=tuple(map(cut, block.rows[:MOST_ROWS])),
        marked=frozenset(row for row in block.marked if row < MOST_ROWS),
        note=f"{block.note} {cut_rows:,} more rows are in the appendix.".strip(),
        shades=tuple(map(cut, block.shades[:MOST_ROWS])),
    )


def columns_without_explanations(table: Table) -> list[int]:
    """Return the positions of the first column, and of those that do not explain others."""
    return [i for i, head in enumerate(table.heads) if i == 0 or head.width < EXPLAINS]
