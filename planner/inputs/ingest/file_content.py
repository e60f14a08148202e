"""Define the interface between the readers of a file and the store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from planner.errors import Choice, IngestError
from planner.inputs.ingest import clock as clocks
from planner.inputs.ingest import row_filter
from planner.inputs.ingest.checks import Names, RefusedRowCounts
from planner.inputs.ingest.connectors import Connector
from planner.inputs.ingest.consistency import (
    Finding,
    Question,
    clock_change,
    report_finding,
    time_unit,
    unsorted_offsets,
    zone_choices,
)
from planner.inputs.ingest.names import compact_name
from planner.inputs.ingest.options import AUTO, IngestOptions
from planner.inputs.ingest.report import Figures
from planner.inputs.ingest.rows import Batch
from planner.inputs.ingest.tables import Table
from simulation.arrays import BoolArray

# Times that jump back by about an hour may follow a change of clocks.
LEAST_JUMP_NS, MOST_JUMP_NS = 30 * clocks.UNITS_NS["min"], 90 * clocks.UNITS_NS["min"]
# A condition, and why other rows are left out.
ConditionAndReason = tuple[row_filter.Condition, str]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The state of reading one file into ``folder``, where its trace will be stored."""

    name: str  # name of the file
    table: Table
    format: Connector
    options: IngestOptions
    tally: RefusedRowCounts
    folder: Path
    on_batch: Callable[[], None]  # called after each batch; may raise to cancel
    findings: dict[str, str] = field(default_factory=dict)  # check to its sentence

    def check(self, name: str, finding: Finding | bool | None, column: str = "") -> None:
        """Store the sentence of the ``finding`` of the rule ``name``; "" without a finding.

        ``column`` is named in it. An earlier sentence stays. Raise Question if the rule asks the
        user, and IngestError if it refuses the file.
        """
        words = report_finding(name, finding, name=self.name, column=column)
        self.findings[name] = self.findings.get(name) or words

    def time_format(self, columns: tuple[str, ...], unit: str | None) -> clocks.TimeFormat:
        """Return the notation of times in ``columns``; raise Question if several are possible."""
        options = self.options
        column = columns[0]
        try:
            time_format = clocks.choose_time_format(
                self.table.probe,
                columns,
                name=self.name,
                unit=unit,
                default=self.format.unit,
                zone=options.timezone or "",
                dates="" if options.dates == AUTO else options.dates,
            )
        except clocks.AmbiguousDates as problem:
            orders = {"the day first": clocks.DAY_FIRST, "the month first": clocks.MONTH_FIRST}
            choices = [Choice(words, "dates", order) for words, order in orders.items()]
            raise Question(str(problem), choices) from None
        if zones := clocks.possible_zones(self.table.probe, time_format):
            words = f"{self.name}: {column} has no offset, and names a zone other than UTC."
            raise Question(words, zone_choices(zones))
        if len(columns) == 1:
            numbers = clocks.time_numbers(self.table.probe[column])
            declared, bins = bool(self.format.unit), self.format.kind == "demand"
            unit_finding = time_unit(time_format, numbers, declared=declared, bins=bins)
            self.check("time_unit", unit_finding, column)
            if not bins:
                unsorted = options.filter is None and unsorted_offsets(time_format, numbers)
                self.check("unsorted_offsets", unsorted, column)
        return time_format

    def times(
        self, batch: Batch, time_format: clocks.TimeFormat, order: clocks.Order
    ) -> clocks.Times:
        """Return the times of a batch; ``order`` keeps the order of local times across batches.

        Raise IngestError if a number is in another unit, and Question for the time zone if local
        times jump back by about an hour.
        """
        times = clocks.read_times(batch.frame, time_format, order)
        if times.other_unit is not None:
            row, words = times.other_unit
            raise IngestError(f"{self.name}, {self.table.unit} {batch.lines[row]}: {words}")
        back_ns = -np.diff(times.ns)
        after_jump = times.ns[1:][(back_ns >= LEAST_JUMP_NS) & (back_ns <= MOST_JUMP_NS)]
        if time_format.may_be_local and after_jump.size:
            finding = clock_change(time_format, jump_ns=after_jump.tolist())
            self.check("clock_change", finding, time_format.columns[0])
        return times

    def conditions(self) -> tuple[ConditionAndReason, ...]:
        """Return the caller's conditions, or else the format's, each with the reason of other rows.

        Conditions of the format on columns that this file lacks are left out. Raise IngestError if
        the caller names such a column.
        """
        stated = self.options.filter
        column_by_name = {compact_name(column): column for column in self.table.columns}
        conditions = []
        for text, reason in self.format.where if stated is None else [(stated, "")]:
            for condition in row_filter.parse(text):
                if stated is None:
                    column = column_by_name.get(compact_name(condition.column))
                    if column is None:  # a format may name columns that this file lacks
                        continue
                    condition = replace(condition, column=column)
                elif condition.column not in self.table.columns:
                    columns = ", ".join(column[:40] for column in self.table.columns[:20])
                    raise IngestError(
                        f"{self.name} has no column {condition.column!r} to filter by (where); its "
                        f"columns are {columns}."
                    )
                conditions.append((condition, reason or f"excluded by where: {condition.text}"))
        return tuple(conditions)

    def filter_rows(self, batch: Batch, conditions: Sequence[ConditionAndReason]) -> Batch:
        """Return the rows of a batch that meet every condition; count the other rows as no load."""
        for condition, reason in conditions:
            fails = ~condition.keeps(batch.frame[condition.column])
            batch = self.leave_out_rows(batch, fails, reason)
        return batch

    def leave_out_rows(self, batch: Batch, excluded: BoolArray, reason: str) -> Batch:
        """Return the batch without the rows in ``excluded``; count these as no load."""
        if not excluded.any():
            return batch
        self.tally.leave_out(batch.refuse(reason, excluded))
        return batch.select(~excluded)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Content(Figures):
    """The content of a file; times in ns since the epoch or the trace's origin."""

    time_format: clocks.TimeFormat
    names: Mapping[str, Names]  # by label
