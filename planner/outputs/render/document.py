"""Arrange a report as a document: what decides comes first, then the appendix."""

from dataclasses import dataclass, replace

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
    cut = [section for section in decision if any(map(_is_long, section.tables))]
    complete = [
        replace(section, title=f"{section.title}, in full", name=f"{section.sheet}, in full")
        for section in cut
    ]
    in_order = sorted(report.sections, key=lambda section: section.order)
    details = [section for section in in_order if section.group is not None]
    if further_warnings := report.warnings[MOST_WARNINGS:]:
        details.insert(0, Section("More warnings", tuple(map(Note, further_warnings))))
    brief = [
        replace(section, blocks=tuple(map(_brief_block, section.blocks))) for section in decision
    ]
    return Document(report.warnings[:MOST_WARNINGS], tuple(brief), (*complete, *details))


def _is_long(table: Table) -> bool:
    """Return whether a table has too many rows for the main part."""
    return len(table.rows) > MOST_ROWS


def _brief_block(block: Block) -> Block:
    """Return a long table cut to MOST_ROWS, without explanatory columns; other blocks unchanged."""
    if not isinstance(block, Table) or not _is_long(block):
        return block
    columns = [i for i, head in enumerate(block.heads) if not i or head.width < EXPLAINS]
    more = f"{len(block.rows) - MOST_ROWS:,} more rows are in the appendix."
    return replace(
        block,
        heads=tuple(block.heads[i] for i in columns),
        rows=tuple(tuple(row[i] for i in columns) for row in block.rows[:MOST_ROWS]),
        marked=frozenset(i for i in block.marked if i < MOST_ROWS),
        note=f"{block.note} {more}".strip(),
        shades=tuple(tuple(row[i] for i in columns) for row in block.shades[:MOST_ROWS]),
    )
