"""Report what a trace is like: amounts, lengths, days, bursts, sessions and outages.

A label is a value of the column that splits the traffic, such as one model or one region.
"""

from collections.abc import Iterator, Sequence

from planner.domain.formats import duration
from planner.domain.report import (
    Form,
    Group,
    Head,
    Note,
    Report,
    Section,
    TableColumns,
    table,
    table_section,
)
from planner.domain.serialise import moment
from planner.domain.trace_statistics.figures import Burstiness, Character, Lengths, Sessions, Volume

MOST_ROWS = 12  # of a table, the largest first; the API has all
TOKENS = "tokens"
MILLIONS = "millions"
AMOUNTS = (
    (Head("Requests", Form.NUMBER), lambda row: row.requests),
    (Head("Input tokens", Form.NUMBER, MILLIONS), lambda row: _millions(row.input_tokens)),
    (Head("Output tokens", Form.NUMBER, MILLIONS), lambda row: _millions(row.output_tokens)),
)


def trace_report(character: Character, by: str) -> Report:
    """Return the report on a trace.

    ``by`` is the column that splits its traffic: "model", "region" or "tier"; "all": not split.
    """
    lengths = [row for row in character.lengths if row.by in ("all", by)][: 2 * MOST_ROWS]
    sections = (
        *_amounts(character, by),
        *table_section("Length of requests", lengths, *LENGTH_COLUMNS, name="Lengths"),
        *_days(character),
        *table_section(
            "Bursts, by time scale",
            character.burstiness,
            *BURST_COLUMNS,
            name="Bursts",
            note="Variance/mean of counts per bin (Poisson: 1). Daily cycle removed for bins up to "
            "10 min.",
        ),
        *table_section(
            "Sessions",
            filter(None, [character.sessions]),
            *SESSION_COLUMNS,
            note="Sessions have two turns or more. Each simulated turn waits for the previous "
            "answer and its think time.",
        ),
        *_outages(character),
        *_combinations(character),
    )
    return Report(character.trace, "", sections, clock=character.clock)


def _millions(amount: float | None) -> float | None:
    """Return an amount in millions; None if it is not known."""
    return None if amount is None else amount / 1e6


def _smaller_rows_note(shown: Sequence[object], count: int) -> str:
    """Return a note on rows that a table leaves out: it shows ``shown`` of ``count`` rows.

    Return "" if it shows all.
    """
    left_out = count - len(shown)
    return f"And {left_out:,} smaller ones, in the API." if left_out > 0 else ""


LENGTH_COLUMNS: TableColumns[Lengths] = (
    (Head("Tokens of a request", width=2), lambda row: row.field.replace("_", " ").capitalize()),
    (Head("Label", width=2), lambda row: "All" if row.by == "all" else row.label),
    (Head("Mean", Form.NUMBER), lambda row: row.mean),
    (Head("CV", Form.NUMBER), lambda row: row.cv),
    (Head("P50", Form.NUMBER), lambda row: row.p50),
    (Head("P95", Form.NUMBER), lambda row: row.p95),
    (Head("P99", Form.NUMBER), lambda row: row.p99),
)
BURST_COLUMNS: TableColumns[Burstiness] = (
    (Head("Bin length", Form.SECONDS), lambda row: row.bin_s),
    (Head("Variance / mean", Form.NUMBER), lambda row: row.dispersion),
    (Head("Within 10 min", Form.NUMBER), lambda row: row.within_10_min),
    (Head("Peak / mean", Form.NUMBER), lambda row: row.peak_to_mean),
    (Head("Empty", Form.SHARE), lambda row: row.empty),
)
SESSION_COLUMNS: TableColumns[Sessions] = (
    (Head("Sessions", Form.COUNT), lambda row: row.sessions),
    (Head("Share of requests", Form.SHARE), lambda row: row.share),
    (Head("Turns, mean", Form.NUMBER), lambda row: row.turns_mean),
    (Head("Turns, P95", Form.NUMBER), lambda row: row.turns_p95),
    (Head("Turns, most", Form.COUNT), lambda row: row.turns_most),
    (Head("Time between turns, P50", Form.SECONDS), lambda row: row.gap_s_p50),
    (Head("Time between turns, P95", Form.SECONDS), lambda row: row.gap_s_p95),
    (Head("Think time, P50", Form.SECONDS), lambda row: row.think_s_p50),
    (Head("Think time, P95", Form.SECONDS), lambda row: row.think_s_p95),
    (Head("Turns with a growing prompt", Form.SHARE), lambda row: row.growing),
    (Head("Growth per turn, P50", Form.NUMBER, TOKENS), lambda row: row.growth_p50),
)


def _amounts(character: Character, by: str) -> Iterator[Section]:
    """Yield the section on the volume of the whole trace, and of the largest labels of ``by``."""
    labels = [volume for volume in character.volumes if volume.by == by]
    shown: list[Volume] = [character.total, *labels[:MOST_ROWS]]
    unit = f"{character.unit.replace('_', ' ')}/s"
    label, title = by.capitalize(), f"Volume by {by}"
    if by == "all":
        label, title = "Traffic", "Amounts"
    rows = table(
        shown,
        (Head(label, width=3), lambda row: "All" if row.by == "all" else row.label),
        (Head("Share", Form.SHARE), lambda row: row.share),
        *AMOUNTS,
        (Head("Mean", Form.NUMBER, unit), lambda row: row.mean),
        (Head("Peak", Form.NUMBER, unit), lambda row: row.peak),
        (Head("Similarity to the previous day", Form.SHARE), lambda row: row.autocorrelation_day),
        (Head("Similarity to the previous week", Form.SHARE), lambda row: row.autocorrelation_week),
        (Head("Value per request", Form.NUMBER), lambda row: row.utility_per_request),
        note=_smaller_rows_note(shown[1:], len(labels)),
    )
    note = f"Peak: busiest {duration(character.bin_s)}."
    if any(volume.autocorrelation_day is not None for volume in shown):
        has_weeks = any(volume.autocorrelation_week is not None for volume in shown)
        note += f" Similarity: correlation with the previous day{' or week' * has_weeks}."
    yield Section(title, (rows, Note(note)), "Amounts")


def _days(character: Character) -> Iterator[Section]:
    """Yield the section on each day and its rank, if there are several days."""
    days = character.days.days
    if len(days) < 2:
        return
    yield from table_section(
        "Days, with their rank",
        days,
        (Head("Day", width=2), lambda row: row.name),
        (Head("Rank", Form.COUNT), lambda row: row.rank),
        (Head("Volume vs busiest day", Form.SHARE), lambda row: row.of_busiest),
        *AMOUNTS,
        (Head("Bins with data", Form.SHARE), lambda row: row.seen),
        name="Days",
        group=Group.BASIS,
        printed=True,
    )


def _outages(character: Character) -> Iterator[Section]:
    """Yield the section on the largest outages, if there are any."""
    shown = character.outages[:MOST_ROWS]
    unit = character.unit.replace("_", " ")
    left_out = _smaller_rows_note(shown, character.outages_found)
    yield from table_section(
        "Outages",
        shown,
        (Head("Series", width=2), lambda row: row.series),
        (Head("From", Form.MOMENT, width=2), lambda row: moment(row.start_s)),
        (Head("Lasts", Form.SECONDS), lambda row: row.end_s - row.start_s),
        (Head("Missing", Form.NUMBER, unit), lambda row: row.missing),
        (Head("Next bin, of the usual", Form.SHARE), lambda row: row.after),
        note=f"Empty bins that cannot be chance. {left_out}".strip(),
    )


def _combinations(character: Character) -> Iterator[Section]:
    """Yield the section on the largest combinations of model, region and tier."""
    shown = character.cells[:MOST_ROWS]
    yield from table_section(
        "Volume by model, region and tier",
        shown,
        (Head("Model", width=2), lambda row: row.model),
        (Head("Region", width=2), lambda row: row.region),
        (Head("Tier", width=2), lambda row: row.tier),
        (Head(character.unit.replace("_", " ").capitalize(), Form.NUMBER), lambda row: row.amount),
        (Head("Share", Form.SHARE), lambda row: row.share),
        name="Cells",
        note=_smaller_rows_note(shown, len(character.cells)),
    )
