"""Read a demand file: amounts per bin, checked and laid on a regular grid.

Absent bins become gaps. All cells are held in memory (a few tens of bytes each), because a grid
needs every row of a series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest import checks, clock, consistency
from planner.inputs.ingest.checks import Names, amounts, labels, points_group
from planner.inputs.ingest.columns import Expression, Resolver
from planner.inputs.ingest.connectors import Connector
from planner.inputs.ingest.consistency import HOUR_NS, Finding, only_grows
from planner.inputs.ingest.demand_columns import (
    DemandLayout,
    SeriesColumns,
    declared_layout,
    demand_layout,
)
from planner.inputs.ingest.file_content import Content, Reading
from planner.inputs.ingest.grid import (
    AMOUNTS,
    Grid,
    bin_width,
    grids_of,
    number_keys,
    rows_on_grid,
)
from planner.inputs.ingest.names import NAMED, SYNONYMS, compact_name
from planner.inputs.ingest.options import AUTO, COUNTER, LABELS, RATES
from planner.inputs.ingest.report import RELATIVE, SeriesReport, int_if_whole, moment_text
from planner.inputs.ingest.requests import CACHED, offset_notes
from planner.inputs.ingest.rows import Batch, RefusedRows
from planner.inputs.ingest.source import base_name
from planner.inputs.ingest.store import write_demand
from simulation.arrays import BoolArray, FloatArray, IntArray

MAX_CELLS = 20_000_000
BY_CHANCE = 10_000  # amounts below this may equal the sum of two others by chance


def read_demand_file(reading: Reading) -> Content:
    """Read every series of a demand file, and write it as amounts on a regular time grid.

    Return what the report needs: rows, times, totals and notes.
    """
    connector = reading.format
    format_columns = dict(connector.columns)
    if connector.metric:
        format_columns["requests"] = connector.value
    if connector.series and not reading.options.mapping:
        layout = declared_layout(connector)
    else:
        layout = demand_layout(reading.table.probe, reading.options, reading.name, format_columns)
    reader = _DemandReader(reading, layout)
    for batch in reading.table.batches(reader.columns):
        reader.add_batch(batch)
        reading.on_batch()
    reading.tally.require_some(reader.rows)
    return reader.finish()


class _DemandReader:
    """Collects and checks the rows of a demand file by batch; then puts them on time grids."""

    def __init__(self, reading: Reading, layout: DemandLayout) -> None:
        """Prepare to read the file of ``reading``, whose columns are as of ``layout``."""
        self._reading = reading
        self._metrics = _Metrics.of(reading)  # None: the file has no row per metric
        if self._metrics:
            layout = self._metrics.layout(layout)
        self._layout = layout
        # The notation of times, by the columns of the times.
        self._time_formats = {
            series.time: reading.time_format(series.time, series.time_unit)
            for series in layout.series
        }
        self._expressions = [
            expression for series in layout.series for expression in series.amounts.values()
        ]
        self._amount_columns = [
            column for expression in self._expressions for column in expression.columns
        ]
        probe = reading.table.probe
        has_rates = layout.unknown_unit or any(series.basis for series in layout.series)
        self._has_grouping_points = points_group(
            [probe[column] for column in self._amount_columns],
            probe[layout.series[0].time[0]],
            counts=not has_rates,
        )
        self._conditions = reading.conditions()
        if reading.options.filter is None:
            self._check_planned(probe)
        self.names = {label: Names(label, reading.name) for label in LABELS}
        self.columns = self._needed_columns()
        # The state so far, over all batches.
        self.rows = 0
        self._cells = 0  # bins of all series
        # Where the local times of each column have come to, and their offsets from UTC.
        self._orders = {columns: clock.Order() for columns in self._time_formats}
        self._offsets: set[str] = set()
        self._frames: list[pl.DataFrame] = []  # accepted rows, with the columns _TABLE

    def _needed_columns(self) -> list[str]:
        """Return the columns to read: of times, labels, amounts, conditions and parts."""
        needed = [column for columns in self._time_formats for column in columns]
        needed += self._layout.labels.values()
        needed += self._amount_columns
        needed += [condition.column for condition, _ in self._conditions]
        if self._metrics:
            needed += self._metrics.columns
        needed += self._layout.parts
        return list(dict.fromkeys(needed))

    def _check_planned(self, probe: pl.DataFrame) -> None:
        """Check the first rows for a column that marks some of them as forecast or planned."""
        for column in probe.columns:
            words = labels(probe[column]).drop_nulls().unique().head(10)
            planned = words.filter(words.str.contains(NAMED["planned"].pattern))
            if 0 < planned.len() < words.len() < 10:
                finding = Finding(values={"value": planned[0]})
                self._reading.check("planned_rows", finding, column)

    def add_batch(self, batch: Batch) -> None:
        """Check one batch and add its good rows to the table; a bad cell refuses its whole row."""
        tally = self._reading.tally
        self.rows += tally.count_rows(batch)
        batch = self._rows_of_load(batch)
        times = {
            columns: self._reading.times(batch, time_format, self._orders[columns])
            for columns, time_format in self._time_formats.items()
        }
        refused = [times_of_column.refused for times_of_column in times.values()]
        amounts_read: dict[Expression, FloatArray] = {}
        for expression in self._expressions:
            amounts_read[expression], reasons = amounts(
                expression.series(batch.frame), str(expression), points=self._has_grouping_points
            )
            refused.append(reasons)
        good = ~tally.refuse(refused, batch)
        tally.raise_if_strict()
        if good.any():
            good_ns = {columns: read.ns[good] for columns, read in times.items()}
            good_amounts = {each: values[good] for each, values in amounts_read.items()}
            self._offsets = self._offsets.union(*(read.offsets for read in times.values()))
            self._append_rows(batch.select(good), good_ns, good_amounts)
        if self._cells > MAX_CELLS:
            raise IngestError(f"{self._reading.name}: over {MAX_CELLS:,} bins. Use wider bins.")

    def _append_rows(
        self,
        batch: Batch,
        ns_by_columns: Mapping[tuple[str, ...], IntArray],
        amounts_read: Mapping[Expression, FloatArray],
    ) -> None:
        """Append a batch of accepted rows to the table, once per series of columns.

        ``ns_by_columns`` has the times of the rows by the columns of times, and ``amounts_read``
        the amounts ``[rows]`` by expression.
        """
        keys = self._keys(batch.frame)
        for number, series in enumerate(self._layout.series):
            values = {
                field: pl.Series(amounts_read[expression])
                for field, expression in series.amounts.items()
            }
            for field in series.means:
                values[field] = values[field] * values["requests"]
            if self._metrics:
                values = self._metrics.amounts_by_field(values, batch.frame)
            ns = ns_by_columns[series.time]
            table = pl.DataFrame({"line": batch.lines, "ns": ns, **keys, **values})
            absent = {name: value for name, value in _ABSENT.items() if name not in table.columns}
            table = table.with_columns(layout_series=pl.lit(number, pl.Int32), **absent)
            self._frames.append(table.select(_TABLE))
            self._cells += table.height

    def _keys(self, frame: pl.DataFrame) -> dict[str, pl.Series]:
        """Return the labels of each row by field, and as "counter" a hash of its counter.

        "counter" is absent if only the labels tell rows of one bin apart.
        """
        keys = {field: labels(frame[column]) for field, column in self._layout.labels.items()}
        model = keys.get("model")
        if model is not None and model.str.contains(r"model\w*[:=]").any():  # env:prod,model:a
            name = r'model(?:_name|_id|name)?\s*[:=]\s*"?([^",}\s]+)'
            keys["model"] = model.str.extract(name, 1)
        # Rows of one counter agree in all these columns, and get the same hash.
        identifying = self._layout.parts
        if self._metrics:
            identifying = tuple(frame.drop(self._metrics.time, self._metrics.value).columns)
        if identifying:
            keys["counter"] = frame.select(identifying).hash_rows(seed=0)
        return keys

    def _rows_of_load(self, batch: Batch) -> Batch:
        """Return the rows that are demand, without those that a condition leaves out."""
        batch = self._reading.filter_rows(batch, self._conditions)
        for part in self._layout.parts:
            batch = self._without_sums_and_failures(batch, part)
        if self._metrics:
            others = self._metrics.rows_of_other_metrics(batch.frame)
            self.rows -= int(others.sum())
            batch = batch.select(~others)
        return batch

    def _without_sums_and_failures(self, batch: Batch, part: str) -> Batch:
        """Return the rows that are demand by the words in ``part``; count the others as left out.

        ``part`` is a column that splits a bin into rows. Its words show sums of other rows, answers
        from a cache, and failed requests, which are no demand. With a caller's filter, only sums
        are left out.
        """
        leave_out = self._reading.leave_out_rows
        is_sum = labels(batch.frame[part]).str.contains(f"(?i){NAMED['total'].pattern}")
        is_sum_mask = is_sum.fill_null(False).to_numpy()
        batch = leave_out(batch, is_sum_mask, f"the sum of other rows ({part})")
        if self._reading.options.filter is not None:
            return batch
        words, column_name = batch.frame[part], compact_name(part)
        if column_name in SYNONYMS["cache_hit"]:
            return leave_out(batch, checks.cache_hits(words), f"{CACHED} ({part})")
        if column_name in SYNONYMS["status"]:
            return leave_out(batch, checks.is_failed(words, part), f"failed requests ({part})")
        return batch

    def finish(self) -> Content:
        """Put the series on their grids, write them, and return the content.

        Raises IngestError if no bin of any series has a number.
        """
        grids = self._grids()
        time_format = next(iter(self._time_formats.values()))
        figures = demand_figures(grids, time_format.kind)
        if all(series.gaps == series.bins for series in figures["series"]):
            columns = " or ".join(sorted(set(map(str, self._expressions))))
            raise IngestError(
                f"{self._reading.name}: no row has a number in {columns}. Map the columns that do."
            )
        write_demand(self._reading.folder, grids)
        for label, names in self.names.items():
            names.add(pl.Series([grid.identity[label] for grid in grids], dtype=pl.String))
        notes, unanswered = self._notes(), 0
        if figures["output_tokens"] == 0 and figures["requests"]:
            unanswered = int(figures["requests"])
            notes.append(UNANSWERED)
        return Content(
            rows=self.rows,
            time_format=time_format,
            names=self.names,
            columns=self._layout.columns,
            notes=tuple(notes),
            unanswered=unanswered,
            sample=self._reading.options.one_in or 1.0,
            **figures,
        )

    def _grids(self) -> list[Grid]:
        """Return one time grid of amounts per series, in the order of the file.

        Raise IngestError if no row was accepted, and if the times fit no grid.
        """
        reading = self._reading
        if not self._frames:
            raise IngestError(
                f"{reading.name}: no row has an amount that is known. Map its columns."
            )
        table = self._without_sums(pl.concat(self._frames))
        table = self._amounts_per_bin(self._with_second_passes(table))
        # Number the series; ``keys`` has the columns and labels of each.
        table, keys = number_keys(table, ["layout_series", *_KEYS])
        series_of_row, ns = table["number"].to_numpy(), table["ns"].to_numpy()
        width_ns = bin_width(series_of_row, ns, reading.name, reading.options.bin_s)
        self._check_ends(width_ns / 1e9)
        # The columns of each series in the file, and below its names.
        series_columns = [self._layout.series[index] for index in keys["layout_series"]]
        missing = reading.options.missing
        if missing == AUTO:
            missing = reading.format.missing or AUTO
        identities = list(map(self._identity, keys.rows(named=True), series_columns))
        names = [str(identity["name"]) for identity in identities]
        place = f"{reading.name}: {reading.table.unit}s"
        rows, faults = rows_on_grid(table, names, width_ns, place)
        rates = [columns.rates for columns in series_columns]
        grids = grids_of(
            rows, identities, width_ns, reading.name, zero=missing == "zero", rates=rates
        )
        for fault in faults:
            reading.tally.add(fault)
        reading.tally.raise_if_strict()
        self._check_absent_bins(grids, unsure=missing == AUTO)
        return grids

    def _identity(self, labels: Mapping[str, Any], columns: SeriesColumns) -> dict[str, str | None]:
        """Return the name, model, region and tier of a series.

        ``labels`` are those of its rows. Labels that the caller or the column states come first.
        """
        options = self._reading.options
        parts = [*(labels[key] for key in _KEYS), columns.name]
        title = " / ".join(filter(None, parts)) or base_name(self._reading.name)
        stated = {label: options.constant(label) or labels[label] for label in LABELS}
        stated["model"] = options.model or columns.model or stated["model"]
        return {"name": title, **stated}

    def _check_absent_bins(self, grids: Sequence[Grid], *, unsure: bool) -> None:
        """Check the gaps of the first field that has an amount, if ``unsure`` what gaps mean."""
        finding = None
        for field in AMOUNTS:
            amounts = np.concatenate([grid.amounts[field] for grid in grids])
            if unsure and np.isfinite(amounts).any():
                finding = consistency.absent_bins(amounts)
                break
        self._reading.check("absent_bins", finding)

    def _check_ends(self, bin_s: float) -> None:
        """Check the lengths of the first bins by a column of their ends, if there is one."""
        probe, time = self._reading.table.probe, self._layout.series[0].time
        ends = [column for column in probe.columns if compact_name(column) in BIN_ENDS]
        if not ends or len(time) > 1 or ends[0] in time:
            return
        column = ends[0]
        finding = None
        if self._reading.options.amounts == AUTO:
            time_format = self._time_formats[time]
            begin = clock.read_times(probe, time_format)
            end = clock.read_times(probe, replace(time_format, columns=(column,)))
            lengths_s = (end.ns - begin.ns)[begin.good & end.good] / 1e9
            finding = consistency.bin_ends(lengths_s, bin_s)
        self._reading.check("bin_ends", finding, column)

    def _without_sums(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the table without rows that sum up all others, such as those of model "Total".

        Raise Question if a label (series, model, region or tier) has a name whose amounts are the
        sum of the others, but the name does not say so. With a caller's filter, or a row per
        metric, all rows are returned.
        """
        fields = _known_fields(table)
        if not fields or self._metrics or self._reading.options.filter is not None:
            return table
        for label in _KEYS:
            names = pl.col(label).fill_null("")  # a row without a label may be their sum too
            amounts = table.group_by(names).agg(pl.col(fields[0]).fill_nan(0).sum())
            name = _name_of_sum(dict(amounts.rows()))
            if name is None:
                continue
            column = self._layout.labels.get(label)
            if column and not NAMED["total"].search(name):
                self._reading.check("sum_rows", Finding(values={"value": name}), column)
            is_sum = table[label].fill_null("") == name
            lines = table["line"].filter(is_sum)
            reason = f"the sum of the other rows ({label} {name})"
            text_of_row = lines.cast(pl.String).__getitem__  # the line number stands for the text
            self._reading.tally.leave_out(RefusedRows(reason, lines.to_numpy(), text_of_row))
            table = table.filter(~is_sum)
        return table

    def _with_second_passes(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the table with the bins of a second pass moved to one hour later.

        In autumn a clock shows one hour twice. Of two rows with a local time in that hour, the
        later row is in the second pass. Times whose zone is unknown are checked instead for a
        change of clocks, and for 12-hour times without AM and PM.
        """
        time_format = next(iter(self._time_formats.values()))
        has_no_local_times = time_format.kind == RELATIVE or (
            time_format.certain and not time_format.zone
        )
        if self._metrics or has_no_local_times:
            return table
        # Rows with the local time of an earlier row of the same counter.
        ns = table["ns"]
        is_repeated = ~table.select(*_COUNTER, "ns").to_struct("key").is_first_distinct()
        repeated_ns = ns.filter(is_repeated).unique().to_list()
        if not time_format.zone:
            column, check = time_format.columns[0], self._reading.check
            rows_by_hour = dict((ns // HOUR_NS).value_counts().sort("ns").rows())
            change = consistency.clock_change(
                time_format, jump_ns=repeated_ns, hours=rows_by_hour, bins=True
            )
            check("clock_change", change, column)
            check("twelve_hours", consistency.twelve_hours(time_format, rows_by_hour), column)
            return table
        first_pass_ns = [t for t in repeated_ns if clock.is_first_pass(t, time_format.zone)]
        in_second_pass = is_repeated & ns.is_in(first_pass_ns)
        return table.with_columns(ns + HOUR_NS * in_second_pass.cast(pl.Int64))

    def _amounts_per_bin(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the table with counters as growth per bin, and rows of one bin added up."""
        reading = self._reading
        rows_are_instants = self._metrics is not None
        stated_amounts = reading.options.amounts
        if stated_amounts == AUTO:
            stated_amounts = reading.format.amounts
        counters = set(AMOUNTS) if stated_amounts == COUNTER else set()
        if stated_amounts in ("", AUTO):
            counters = self._counters(table)
        if counters:
            table, missing = counter_growth(
                table, sorted(counters), reading.name, instants=rows_are_instants
            )
            if missing:
                reading.findings["missing_readings"] = (
                    f"{missing:,} readings of counters are missing. The growth across each gap is "
                    "spread evenly over its bins."
                )
        if rows_are_instants or self._layout.parts or reading.format.repeated == "sum":
            bins = table.group_by("layout_series", *_KEYS, "ns", maintain_order=True)
            table = bins.agg(pl.col("line").first(), *map(_sum_without_gaps, AMOUNTS))
        return table

    def _counters(self, table: pl.DataFrame) -> set[str]:
        """Return the fields of AMOUNTS that are counters; raise Question if it is unclear.

        Also checks whether amounts are counts: they may be rates, means or estimates.
        """
        counters = set()
        amounts_by_field = {field: table[field].to_numpy() for field in _known_fields(table)}
        pairs_by_field = _neighbours(table, amounts_by_field.keys())
        # Counters of one table grow together.
        all_grow = all(only_grows(before, after) for before, after in pairs_by_field.values())
        for field, (before, after) in pairs_by_field.items():
            column, unsure = self._column_of(field)
            if self._layout.unknown_unit:
                self._reading.check("bare_amounts", unsure, column)
            if all_grow:
                finding = consistency.counter(column, before, after) if unsure else None
                self._reading.check("counter", finding, column)
            else:  # amounts that only fall may be a counter that was written in reverse
                only_falls = unsure and only_grows(after, before, restarts=False)
                self._reading.check("falling_amounts", only_falls, column)
            if self._reading.findings.get("counter"):  # of the check above, or of the field before
                counters.add(field)
            else:
                self._check_counts(field, amounts_by_field)
        return counters

    def _column_of(self, field: str) -> tuple[str, bool]:
        """Return the column of a field, and whether nothing states if its amounts are rates."""
        columns = self._layout.series[0]
        return str(columns.amounts.get(field, field)), field not in columns.basis

    def _check_counts(self, field: str, amounts_by_field: Mapping[str, FloatArray]) -> None:
        """Check whether requests are counts, or whether tokens are sums and not means per request.

        The amounts have shape ``[rows]``.
        """
        column, unsure = self._column_of(field)
        amounts, requests = amounts_by_field[field], amounts_by_field.get("requests")
        if field == "requests":
            has_fractions = unsure and consistency.fractional_counts(amounts)
            self._reading.check("whole_counts", has_fractions, column)
        elif requests is not None and not self._metrics:
            are_means = unsure and consistency.sums_or_means(requests, amounts)
            self._reading.check("sums_or_means", are_means, column)

    def _notes(self) -> list[str]:
        """Return sentences on what was not read, on times, and on how amounts were converted."""
        notes = [*self._layout.notes, *self._notes_on_unread()]
        time_notes = (time_format.note for time_format in self._time_formats.values())
        notes += dict.fromkeys(note for note in time_notes if note)
        notes += offset_notes(self._offsets)
        means: list[str] = []
        columns_by_basis: dict[str, set[str]] = defaultdict(set)
        for series in self._layout.series:
            means += [str(series.amounts[field]) for field in series.means]
            for field, basis in series.basis.items():
                columns_by_basis[basis].add(str(series.amounts[field]))
        if means:
            notes.append(f"{' and '.join(means)}: means per request, times the requests.")
        for rate in RATES:
            if columns := sorted(columns_by_basis[rate]):
                verb = f"{'are' if len(columns) > 1 else 'is'} {rate.replace('_', ' ')}"
                listed = " and ".join(columns[:5])
                notes.append(f"{listed} {verb}; multiplied by the bin width.")
        if self._reading.options.missing == "zero":
            notes.append(ZEROS)
        return notes

    def _notes_on_unread(self) -> list[str]:
        """Return a sentence on the metrics or the columns of tokens that are not read; else []."""
        if self._metrics:
            names = list(self._metrics.others)
            words = "Metrics that do not measure load are ignored"
        else:
            used = " ".join(self._layout.columns.values())
            columns = self._reading.table.probe.columns
            names = [c for c in columns if "tok" in c.lower() and c not in used]
            words = "Columns of tokens that are not read"
        return [f"{words}: {', '.join(names[:5])}."] if names else []


ZEROS = "Absent bins are read as zero."
UNANSWERED = "No request has output tokens, so only prompts count, as for embeddings."
_KEYS = ("series", *LABELS)
# Columns that tell counters apart; ``layout_series`` is an index in ``DemandLayout.series``.
_COUNTER = ("layout_series", *_KEYS, "counter")
_TABLE = ("line", "ns", *_COUNTER, *AMOUNTS)
_ABSENT = {  # columns that a table of one source may lack
    "counter": pl.lit(0, pl.UInt64),
    **dict.fromkeys(_KEYS, pl.lit(None, pl.String)),
    **dict.fromkeys(AMOUNTS, pl.lit(np.nan)),
}
BIN_ENDS = (
    "windowend", "binend", "intervalend", "intervalendutc", "periodend", "bucketend", "endtime",
    "timeend", "end", "endtimestamp",
)  # fmt: skip
# A counter's first value up to this many times its usual growth is the growth in its first bin.
FIRST_TIMES = 3


def _neighbours(
    table: pl.DataFrame, fields: Iterable[str]
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return the amounts before and after of all neighbouring rows of one counter, by field."""
    ordered = table.sort(*_COUNTER, "ns", nulls_last=True)
    counter_hash = ordered.select(_COUNTER).hash_rows()
    is_same_counter = (counter_hash == counter_hash.shift(1)).fill_null(False).to_numpy()[1:]
    pairs = {}
    for field in fields:
        amounts = ordered[field].to_numpy()
        pairs[field] = (amounts[:-1][is_same_counter], amounts[1:][is_same_counter])
    return pairs


def _known_fields(table: pl.DataFrame) -> list[str]:
    """Return the fields of AMOUNTS that have a known amount in some row."""
    return [field for field in AMOUNTS if table[field].is_not_nan().any()]


def _name_of_sum(amounts: Mapping[str, float]) -> str | None:
    """Return the label whose amount is the sum of all others; None without one.

    ``amounts`` are by label. The label has a name such as "Total", or else the largest amount.
    Without such a name, it must be the sum of two others or more, and below BY_CHANCE of three.
    """
    ranks = [(bool(NAMED["total"].search(name)), amount, name) for name, amount in amounts.items()]
    is_named, amount, name = max(ranks)
    is_total = is_named and name != ""
    sum_of_others = sum(amounts.values()) - amount
    tolerance = 0.02 if is_total else 1e-9  # share of the amount
    if abs(amount - sum_of_others) > tolerance * amount:
        return None
    # Few amounts, with their sum, add up by chance; small ones more often.
    most_by_chance = 2 if is_named or amount >= BY_CHANCE else 3
    if len(amounts) < 2 or (not is_total and len(amounts) <= most_by_chance):
        return None
    return name


def counter_growth(
    table: pl.DataFrame, fields: Sequence[str], name: str, *, instants: bool
) -> tuple[pl.DataFrame, int]:
    """Return the table with the growth of its counters per bin, and the number of missing readings.

    ``fields`` are the columns with counters. A value below the value before follows a restart. The
    growth across missing readings is spread evenly over their bins. With ``instants``, a row is a
    reading, and the growth until the next belongs to its bin. Otherwise a row is a bin, and its
    value is the counter at the end of the bin. ``name`` is the file's name, for errors.
    """
    unknown = {field: pl.lit(np.nan) for field in fields}
    tables = [] if instants else [table.with_columns(**unknown)]
    missing = 0
    # The number of bins that a reading covers, and the index of a bin among them.
    index, bins = pl.col("bin"), pl.col("bins")
    for field in fields:
        readings, step_ns = _growth_between_readings(table, field, name, instants=instants)
        missing += int(readings["bins"].sum()) - readings.height
        # One row for each bin that a reading covers.
        bins_of_readings = readings.with_columns(bin=pl.int_ranges("bins")).explode("bin")
        # A reading is in the last of its bins, or with ``instants`` in the bin after.
        bin_ns = pl.col("ns") + (index + 1 - bins - int(instants)) * step_ns
        growth_in_bin = _growth_at_edge(index + 1) - _growth_at_edge(index)
        columns = unknown | {"ns": bin_ns, field: growth_in_bin}
        tables.append(bins_of_readings.with_columns(**columns).select(table.columns))
    # Join the rows of one bin, each with one field.
    by_bin = pl.concat(tables).group_by(*_COUNTER, "ns", maintain_order=True)
    return by_bin.agg(pl.col("line").last(), *map(_sum_without_gaps, AMOUNTS)), missing


def _growth_at_edge(edge: pl.Expr) -> pl.Expr:
    """Return how much a counter has grown at an edge of a bin since the reading before.

    ``edge`` is the number of bins since that reading. The growth is rounded at all edges but the
    last, so that whole counts stay whole in each bin and add up.
    """
    grown, bins = pl.col("grown"), pl.col("bins")
    return pl.when(edge == bins).then(grown).otherwise((grown * edge / bins).round())


def _growth_between_readings(
    table: pl.DataFrame, field: str, name: str, *, instants: bool
) -> tuple[pl.DataFrame, int]:
    """Return the readings of the counter ``field``, and the usual time between two (ns).

    New columns: ``grown`` is the growth since the reading before, and ``bins`` is the number of
    bins that it covers. A value below the one before is new growth. ``instants`` is as for
    ``counter_growth``. Raise IngestError for too many bins, or for a gap of years.
    """
    value, ns = pl.col(field), pl.col("ns")
    value_before = value.shift(1).over(_COUNTER)
    rows = table.filter(value.is_not_nan()).sort(*_COUNTER, "ns", nulls_last=True)
    # Growth and time since the reading before; both are null for the first one of a counter.
    rows = rows.with_columns(
        grown=pl.when(value < value_before).then(value).otherwise(value - value_before),
        since=ns - ns.shift(1).over(_COUNTER),
    )
    steps_ns = rows["since"].filter(rows["since"] > 0).mode().sort()
    step_ns = int(steps_ns[0]) if steps_ns.len() else 1
    # A series that begins later, such as that of a new replica, began at 0 in its first bin. Its
    # first value is then small.
    grown, since = pl.col("grown"), pl.col("since")
    is_small_first = since.is_null() & (value <= FIRST_TIMES * grown.median())
    begins_later = ns > table["ns"].min() if instants else pl.lit(True)
    rows = rows.with_columns(
        grown=pl.when(is_small_first & begins_later).then(value).otherwise(grown),
        bins=(since / step_ns).round().cast(pl.Int64).clip(1).fill_null(1),
    )
    rows = rows.filter(grown.is_not_null())
    _check_readings(rows, step_ns, name)
    return rows, step_ns


def _check_readings(rows: pl.DataFrame, step_ns: int, name: str) -> None:
    """Raise IngestError if a counter has too many bins of ``step_ns``, or a gap of years."""
    bins = int(rows["bins"].sum())
    if bins > MAX_CELLS:
        raise IngestError(
            f"{name}: a counter has {bins:,} bins of {step_ns / 1e9:g} s. Check the times."
        )
    gaps_ns = rows["since"].filter(rows["since"] > consistency.FAR_HOURS * HOUR_NS)
    if gaps_ns.len():
        years = int(gaps_ns[0]) / HOUR_NS / consistency.HOURS_PER_YEAR
        raise IngestError(f"{name}: no counter reading for {years:,.1f} years. Correct the time.")


def _sum_without_gaps(field: str) -> pl.Expr:
    """Return the sum of the known amounts of a group of rows; NaN if none is known."""
    amounts = pl.col(field)
    is_any_known = amounts.is_not_nan().any()
    return pl.when(is_any_known).then(amounts.fill_nan(0.0).sum()).otherwise(np.nan).alias(field)


@dataclass(frozen=True, slots=True)
class _Metrics:
    """How to read a table with one row per metric and time.

    The columns besides the metric's name, its value and the time are labels.
    """

    reading: Reading
    connector: Connector
    metric: str  # the column of names
    value: str
    time: str
    others: dict[str, None]  # names of metrics that are not read

    @classmethod
    def of(cls, reading: Reading) -> _Metrics | None:
        """Return the metrics of a file whose format has one row per metric and time; else None."""
        connector = reading.format
        if not connector.metric:
            return None
        columns = reading.table.columns
        column_by_name = {compact_name(column): column for column in columns}

        def first_present(declared: str) -> str:
            """Return the file's column of the first declared name (name|name) that it has."""
            names = map(compact_name, declared.split("|"))
            return next((column_by_name[n] for n in names if n in column_by_name), declared)

        metric, value = first_present(connector.metric), first_present(connector.value)
        resolver = Resolver(columns, reading.options.mapping, reading.name, connector.columns)
        (time, *_), _ = resolver.time("time")
        return cls(reading, connector, metric, value, time, {})

    @property
    def columns(self) -> tuple[str, ...]:
        return self.reading.table.columns

    def layout(self, layout: DemandLayout) -> DemandLayout:
        """Return ``layout`` with every amount read from the column of values."""
        stated_amounts = self.reading.options.amounts
        amounts = dict.fromkeys(self.connector.metrics, Expression(((self.value,),)))
        basis = dict.fromkeys(amounts, stated_amounts) if stated_amounts in RATES else {}
        series = replace(layout.series[0], name="", model=None, amounts=amounts, basis=basis)
        return DemandLayout(
            (series,),
            {label: column for label, column in layout.labels.items() if label != "series"},
            layout.notes,
            unknown_unit=self.metric not in self.columns and stated_amounts == AUTO,
        )

    def rows_of_other_metrics(self, frame: pl.DataFrame) -> BoolArray:
        """Return a mask of the rows whose metric is no amount; a note will name these metrics.

        Raise IngestError if no row has a metric that is an amount.
        """
        if self.metric not in frame.columns:
            return np.zeros(frame.height, np.bool_)
        is_other = self.fields(frame).is_null()
        if is_other.all():
            metrics = ", ".join(frame[self.metric].drop_nulls().unique()[:10].to_list())
            raise IngestError(
                f"{self.reading.name}: none of its metrics is known ({metrics}). Export a metric "
                f"of {', '.join(self.connector.metrics)}."
            )
        self.others.update(dict.fromkeys(map(str, frame[self.metric].filter(is_other).unique())))
        return is_other.to_numpy()

    def amounts_by_field(
        self, values: dict[str, pl.Series], frame: pl.DataFrame
    ) -> dict[str, pl.Series]:
        """Return ``values`` by field, with NaN where the row's metric measures another field."""
        if self.metric not in frame.columns:  # all rows count requests
            return {"requests": values["requests"]}
        field_of_row, unknown = self.fields(frame), pl.Series([np.nan])
        return {
            field: amounts.zip_with(field_of_row == field, unknown)
            for field, amounts in values.items()
        }

    def fields(self, frame: pl.DataFrame) -> pl.Series:
        """Return the field that each row's metric is read as; null for other metrics.

        Raise IngestError if two metrics are read as one field.
        """
        metrics = frame[self.metric].cast(pl.String)
        field_by_metric: dict[str, str] = {}
        for metric in sorted(metrics.drop_nulls().unique().to_list()):
            for field, endings in self.connector.metrics.items():
                if compact_name(metric).endswith(tuple(map(compact_name, endings))):
                    field_by_metric.setdefault(metric, field)
        for field in set(field_by_metric.values()):
            same = [metric for metric, own_field in field_by_metric.items() if own_field == field]
            if len(same) > 1:
                raise IngestError(
                    f"{self.reading.name}: {' and '.join(same[:3])} are both {field}. Keep one: "
                    f'where={self.metric} = "{same[0]}".'
                )
        return metrics.replace_strict(field_by_metric, default=None, return_dtype=pl.String)


def total(grids: Sequence[Grid], field: str) -> float | None:
    """Return the sum of a field's amounts over the bins of all series; None if no bin is known."""
    amounts = (grid.amounts[field] for grid in grids)
    known = [values[~np.isnan(values)] for values in amounts]
    sums = [float(values.sum()) for values in known if values.size]
    return int_if_whole(sum(sums)) if sums else None


def demand_figures(grids: Sequence[Grid], kind: str) -> dict[str, Any]:
    """Return the fields of a report that follow from its series; ``kind`` is UTC or RELATIVE."""
    series = tuple(
        SeriesReport(
            name=str(grid.identity["name"]),
            bins=grid.bins,
            gaps=grid.gaps,
            bin_s=int_if_whole(grid.bin_ns / 1e9),
            start=moment_text(grid.start_ns, kind),
            end=moment_text(grid.end_ns, kind),
            requests=total([grid], "requests"),
            input_tokens=total([grid], "input_tokens"),
            output_tokens=total([grid], "output_tokens"),
            **{label: grid.identity[label] for label in LABELS},
        )
        for grid in grids
    )
    return {
        "kind": "demand",
        "start_ns": min(grid.start_ns for grid in grids),
        "end_ns": max(grid.end_ns for grid in grids),
        "bin_s": int_if_whole(grids[0].bin_ns / 1e9),
        "series": series,
        **{field: total(grids, field) for field in AMOUNTS},
    }
