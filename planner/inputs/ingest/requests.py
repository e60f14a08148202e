"""Read a request file: check rows, sort them by arrival and write them as Parquet parts."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from polars import selectors

from planner.errors import IngestError
from planner.inputs.ingest import checks, clock, consistency
from planner.inputs.ingest.checks import Names, labels, numbers, token_counts
from planner.inputs.ingest.columns import RequestLayout, request_layout
from planner.inputs.ingest.consistency import HOUR_NS, Finding, only_grows, stray_bounds
from planner.inputs.ingest.file_content import Content, Reading
from planner.inputs.ingest.names import compact_name
from planner.inputs.ingest.options import AUTO, LABELS
from planner.inputs.ingest.ordering import SortedPart, merge_in_order
from planner.inputs.ingest.report import UTC
from planner.inputs.ingest.rows import Batch, RefusedRows
from planner.inputs.ingest.store import REQUESTS, THINK
from simulation.arrays import BoolArray, FloatArray, IntArray

PARTS_OF_TOKENS = {"cached_tokens": "input_tokens", "reasoning_tokens": "output_tokens"}
CACHED = "answered by a proxy's cache"
REPEATED = "the same request again (id and time)"
LATENCY = re.compile(r"latency|duration|elapsed|e2e|response_?time|total_?time", re.IGNORECASE)
# If a larger share of the rows repeat an id, rows are parts of requests.
MOST_REPEATED_IDS = 0.3
LEAST_FITTING = 0.7  # share of the rows that have to fit another finding
PARENTS = ("parentspanid", "parentid", "parentrunid", "parentobservationid")
SPANS = ("spanid", "id", "runid", "observationid")
MOST_EVENTS = 10  # values of a column of events; more are not kinds of event
FEW_ROWS = 20  # different rows; if each comes again, files were joined
FEW_REPEATS = 5  # fewer repeated rows may be chance
FEW_PARENTS = 5  # spans with spans below them; fewer may be chance
STRAY = "time far from all other rows"


def read_request_file(reading: Reading, *, answers: bool = True) -> Content:
    """Read one row per request, write the requests by arrival, and return what the report needs.

    ``answers``: the file must have output tokens. Raise IngestError for a CSV file with hash_ids
    that the caller names.
    """
    table, format_columns = reading.table, reading.format.columns
    layout = request_layout(
        table.probe, reading.options, reading.name, format_columns, answers=answers
    )
    hash_ids = layout.fields.get("hash_ids")
    if hash_ids is not None and table.kind == "csv":
        if "hash_ids" in reading.options.mapping:
            raise IngestError(
                f"{reading.name}: hash_ids are lists, which CSV cannot hold. Use JSON lines."
            )
        hash_ids = None
    time_format = reading.time_format(layout.arrival, layout.arrival_unit)
    _check_first_rows(reading, layout, time_format)
    reader = _RequestReader(reading, layout, time_format)
    for batch in table.batches(reader.columns, ids=hash_ids):
        reader.add_batch(batch)
        reading.on_batch()
    reading.tally.require_some(reader.rows)
    return reader.finish()


def _check_first_rows(
    reading: Reading, layout: RequestLayout, time_format: clock.TimeFormat
) -> None:
    """Check whether the first rows are requests, and their times are those of arrivals.

    A caller's filter of rows may drop rows that are not. Most checks are then skipped.
    """
    _check_tokens(reading, layout)
    if reading.options.filter is None:
        _check_repeats(reading, layout, time_format)
        if time_format.kind == UTC:
            times = clock.read_times(reading.table.probe, time_format)
            valid_ns = times.ns[times.good & (times.ns >= 0)]
            coarse = consistency.coarse_times(valid_ns)
            reading.check("coarse_times", coarse, time_format.columns[0])
        _check_nesting(reading, layout)
    _check_latency(reading, time_format)


def _check_tokens(reading: Reading, layout: RequestLayout) -> None:
    """Check the first rows for token columns that are counters, totals, or sums over requests."""
    probe, options = reading.table.probe, reading.options
    is_stated = options.format != AUTO or bool(reading.format.known_by)
    unsure = not is_stated and "arrival" not in options.mapping
    tokens = {field: columns.values(probe) for field, columns in layout.tokens.items()}
    output_tokens = tokens["output_tokens"]
    # Counters, which grow together, so the one that grows least decides.
    least = min(tokens.values(), key=lambda values: (np.diff(values) > 0).sum())
    are_counters = unsure and only_grows(least[:-1], least[1:])
    if unsure and (session := layout.fields.get("session")):  # or a counter of each session
        turns = pl.DataFrame({"session": probe[session], "after": output_tokens})
        turns = turns.with_columns(before=pl.col("after").shift(1).over("session")).drop_nulls()
        grow_in_session = only_grows(turns["before"].to_numpy(), turns["after"].to_numpy())
        are_counters = are_counters or grow_in_session
    reading.check("growing_tokens", are_counters)
    # Rows with a weight, each of several requests.
    if layout.weight and "sample_rate" not in layout.fields and not options.sample:
        has_weights = unsure and consistency.row_weights(numbers(probe[layout.weight]))
        reading.check("row_weights", has_weights, layout.weight)
    # Totals of prompt and answer as input tokens.
    if layout.total and "input_tokens" not in options.mapping:
        beyond_prompt = layout.total.values(probe) - tokens["input_tokens"]
        are_totals = unsure and consistency.token_totals(output_tokens, beyond_prompt)
        reading.check("token_totals", are_totals, str(layout.tokens["input_tokens"]))


def _check_repeats(reading: Reading, layout: RequestLayout, time_format: clock.TimeFormat) -> None:
    """Check the first rows for requests that occur several times: by their ids, else as rows."""
    probe = reading.table.probe
    id_column = layout.fields.get("request_id") or ("id" if "id" in probe.columns else None)
    if id_column in layout.arrival:
        return
    if id_column:
        _check_repeated_ids(reading, layout, id_column)
    elif time_format.kind == UTC and len(layout.arrival) == 1 and not layout.fields.get("session"):
        flat = probe.select(~selectors.nested())  # nested cells cannot be compared
        distinct_rows = flat.n_unique()
        repeats = flat.height - distinct_rows
        # Equal rows are no chance if times are finer than a second, or if every row is repeated.
        ns = clock.read_times(probe, time_format).ns
        has_fine_times = (ns % clock.UNITS_NS["s"] != 0).mean() > LEAST_FITTING
        all_repeated = distinct_rows >= FEW_ROWS and bool(flat.is_duplicated().all())
        finding = None
        if (has_fine_times or all_repeated) and repeats >= FEW_REPEATS:
            finding = Finding(values={"repeats": repeats})
        reading.check("repeated_rows", finding, layout.arrival[0])


def _check_repeated_ids(reading: Reading, layout: RequestLayout, column: str) -> None:
    """Check the first rows for ids of requests in ``column`` that occur several times.

    Rows with equal id and different times are retries, which are stated. But if many rows have
    equal id and prompt length, and differ in time or answer, they are parts or events of one
    request. Then the user must choose one event, or the file is refused.
    """
    probe = reading.table.probe
    prompt, answer = layout.tokens["input_tokens"], layout.tokens["output_tokens"]
    rows = probe.filter(probe[column].is_not_null())
    if status := layout.fields.get("status"):  # failed attempts without an answer are no load
        is_failed = checks.is_failed(rows[status], status)
        rows = rows.filter(~is_failed | (answer.values(rows) > 0))
    rows_per_prompt = rows.group_by(column, *prompt.columns).len()
    repeated_rows = rows_per_prompt["len"].filter(rows_per_prompt["len"] > 1).sum()
    many_repeated = repeated_rows / max(1, rows.height) >= MOST_REPEATED_IDS
    # Distinct pairs of id and time, and of id and tokens. More than of id and prompt: they differ.
    with_time = rows.select(column, *layout.arrival).unique()
    with_tokens = rows.select(column, *prompt.columns, *answer.columns).unique()
    differ = max(with_time.height, with_tokens.height) > rows_per_prompt.height
    retries = with_time.height - with_time[column].n_unique()
    finding = consistency.repeated_ids(
        retries,
        parts=many_repeated and differ,
        events=_event_values(rows.drop(answer.columns), column),
    )
    reading.check("repeated_ids", finding, column)


def _check_nesting(reading: Reading, layout: RequestLayout) -> None:
    """Check the first rows for parent spans whose tokens are the sum of their child spans."""
    probe = reading.table.probe
    column_by_name = {compact_name(column): column for column in probe.columns}
    parents = [column_by_name[name] for name in PARENTS if name in column_by_name]
    ids = [column_by_name[name] for name in SPANS if name in column_by_name]
    if not parents or not ids:
        return
    tokens = pl.Series(layout.tokens["input_tokens"].values(probe))
    spans = pl.DataFrame({"id": probe[ids[0]], "parent": probe[parents[0]], "tokens": tokens})
    child_sums = spans.group_by("parent").agg(of_children=pl.col("tokens").fill_nan(0).sum())
    nested = spans.join(child_sums, left_on="id", right_on="parent")
    nested = nested.filter(pl.col("of_children") > 0)
    differences = (nested["tokens"] - nested["of_children"]).abs()
    equal_count = (differences <= 0.01 * nested["of_children"]).sum()
    are_sums = nested.height >= FEW_PARENTS and equal_count > LEAST_FITTING * nested.height
    reading.check("nested_rows", are_sums, parents[0])


def _event_values(rows: pl.DataFrame, id_column: str) -> tuple[tuple[str, str], ...]:
    """Return (column, value) pairs, such as event = end, that select one row of each request.

    All pairs are of the first column that has any; () if no column has.
    """
    requests = rows[id_column].n_unique()
    for column in rows.columns:
        rows_by_value = rows[column].value_counts(sort=True)
        if not 1 < rows_by_value.height <= MOST_EVENTS or column == id_column:
            continue
        once = []  # values that most requests have, and have once
        for value, count in rows_by_value.iter_rows():
            is_usual = value is not None and count >= 0.9 * requests
            if is_usual and rows.filter(pl.col(column) == value)[id_column].is_unique().all():
                once.append(value)
        if once:
            return tuple((column, str(value)) for value in once)
    return ()


def _check_latency(reading: Reading, time_format: clock.TimeFormat) -> None:
    """Check by a latency column with a unit whether requests start when others end."""
    probe = reading.table.probe
    columns = [c for c in probe.columns if LATENCY.search(c) and clock.unit_of(c)]
    if not columns or columns[0] in time_format.columns:
        return
    column = columns[0]
    unit_s = clock.UNITS_NS[clock.unit_of(column) or "s"] / 1e9
    latency_s = numbers(probe[column]) * unit_s
    times = clock.read_times(probe, time_format)
    good = times.good & np.isfinite(latency_s)
    start_s = (times.ns[good] - times.ns.min(initial=2**62)) / 1e9
    reading.check("latency_gaps", consistency.latency_gaps(start_s, latency_s[good]), column)


@dataclass(slots=True)
class _Totals:
    """The totals of the accepted rows of a file."""

    tokens: dict[str, int]  # by field
    cancelled: int = 0
    unanswered: int = 0
    no_utility: int = 0  # requests without a utility, in a file with utilities
    rows_by_hour: dict[int, int] = field(default_factory=dict)
    rates: set[float] = field(default_factory=set)  # sample rates
    weight: float = 0.0  # requests that the rows stand for, by their sample rates

    def add(self, ns: IntArray, tokens: dict[str, IntArray], is_cancelled: BoolArray) -> None:
        """Add the rows of a batch: tokens, requests without output, and rows by hour."""
        for name, values in tokens.items():
            self.tokens[name] += int(values.sum())
        is_unanswered = tokens["output_tokens"] == 0
        self.cancelled += int((is_unanswered & is_cancelled).sum())
        self.unanswered += int((is_unanswered & ~is_cancelled).sum())
        for hour, rows in pl.Series(ns // HOUR_NS).value_counts().iter_rows():
            self.rows_by_hour[hour] = self.rows_by_hour.get(hour, 0) + rows

    def add_rates(self, rates: FloatArray) -> None:
        """Add the sample rates of rows: shares, or n for one in n. NaN: the row is one request."""
        known = rates[np.isfinite(rates) & (rates > 0)]
        self.rates |= set(np.unique(known).tolist()[:50])
        # A rate of 0.01 is one in 100, and so is 100.
        one_in = np.where(known < 1, 1 / known, known)
        self.weight += float(one_in.sum()) + rates.size - known.size


class _RequestReader:
    """Checks the rows of a request file batch by batch, writes them as parts and counts them.

    A part is a Parquet file with the accepted rows of a batch, sorted by arrival.
    """

    def __init__(
        self, reading: Reading, layout: RequestLayout, time_format: clock.TimeFormat
    ) -> None:
        self._reading, self._layout, self._time_format = reading, layout, time_format
        self._folder = reading.folder / REQUESTS
        self._folder.mkdir()
        self.names = {label: Names(label, reading.name) for label in LABELS}
        self._conditions = reading.conditions()
        # A caller's filter replaces what is left out by itself.
        self._automatic = reading.options.filter is None
        ignored = () if self._automatic else ("cache_hit", "request_id")
        fields = {name: column for name, column in layout.fields.items() if name not in ignored}
        self._fields = fields
        # Fields that link the turns of a conversation: session, or the request before.
        self._links: tuple[str, ...] = ("session",) if "session" in fields else ()
        if not self._links and {"request_id", "parent"} <= fields.keys():
            self._links = ("request_id", "parent")
        self._think_column = fields.get("delay") if self._links else None
        self._think_unit_s = self._unit_of_think_s() if self._think_column else 1.0
        self.columns = self._needed_columns()
        self.rows = self.accepted = 0
        self.late = 0  # rows with an earlier arrival than a previous row
        # Arrivals: of the first accepted row, the earliest, and the latest so far.
        self.first_ns = self.start_ns = self.latest_ns = 0
        self._totals = _Totals(dict.fromkeys(layout.tokens, 0))
        self.parts: list[SortedPart] = []
        self.offsets: set[str] = set()
        # Time (ns), line and text of the first and the last row.
        self.ends: list[tuple[int, int, str]] = []
        self._order = clock.Order()
        # Time of the last turn of each session, for files whose turns state delays.
        session = fields.get("session", "")
        self._last_turns = pl.DataFrame(schema={session: pl.String, "time": pl.Float64})
        # By batch: first and last time (ns), and the sorted hashes of the ids and times.
        self._batches_seen: list[tuple[int, int, IntArray]] = []

    def _needed_columns(self) -> list[str]:
        """Return the columns to read: of times, fields (without hash_ids), tokens, conditions."""
        columns = [*self._time_format.columns]
        columns += [column for field, column in self._fields.items() if field != "hash_ids"]
        columns += [c for each in self._layout.tokens.values() for c in each.columns]
        columns += [condition.column for condition, _ in self._conditions]
        return list(dict.fromkeys(columns))

    def _unit_of_think_s(self) -> float:
        """Return the seconds per unit of the think-time column, and note its use.

        Without a unit in its name, the unit is that of numeric times. Otherwise it is the largest
        unit in which most think times end before the next turn arrives.
        """
        column = self._think_column or ""
        unit = clock.unit_of(column) or next(iter(self._time_format.units), None)
        if unit is None:
            probe = self._reading.table.probe
            turns = pl.DataFrame(
                {
                    "session": probe[self._fields[self._links[0]]].cast(pl.String),
                    "arrival_s": clock.read_times(probe, self._time_format).ns / 1e9,
                    "think": numbers(probe[column]),
                }
            )
            turns = turns.with_columns(gap_s=pl.col("arrival_s").diff().over("session"))
            turns = turns.filter(pl.col("gap_s").is_not_null(), pl.col("think") > 0)
            exceeds_gap = (turns["think"] > turns["gap_s"]).to_numpy()  # if it is in seconds
            unit = "ms" if exceeds_gap.size and exceeds_gap.mean() > 0.5 else "s"
        self._reading.findings["delays"] = (
            f"Each turn starts at least its {column} ({unit}) after the answer before it."
        )
        return clock.UNITS_NS[unit] / 1e9

    def add_batch(self, batch: Batch) -> None:
        """Check one batch and write its accepted rows as one part."""
        tally = self._reading.tally
        self.rows += tally.count_rows(batch)
        batch = self._with_delays(self._rows_of_load(batch))
        times = self._reading.times(batch, self._time_format, self._order)
        self.offsets |= times.offsets
        tokens, refused_tokens = self._tokens(batch.frame)
        is_refused = tally.refuse([times.refused, *refused_tokens], batch)
        is_repeated = self._repeated_rows(batch.frame, times.ns, ~is_refused)
        if is_repeated.any():
            tally.leave_out(batch.refuse(REPEATED, is_repeated))
            is_refused |= is_repeated
        tally.raise_if_strict()
        if is_refused.all():
            return
        ns = times.ns
        if is_refused.any():
            batch, ns = batch.select(~is_refused), ns[~is_refused]
            tokens = {name: values[~is_refused] for name, values in tokens.items()}
        self._accept(ns, tokens, batch)

    def _accept(self, ns: IntArray, tokens: dict[str, IntArray], batch: Batch) -> None:
        """Count and write the accepted rows of a batch, with arrival times ``ns`` ``[rows]``."""
        for row in (int(ns.argmin()), int(ns.argmax())):
            self.ends.append((int(ns[row]), int(batch.lines[row]), batch.text(row)))
        self.ends = [min(self.ends), max(self.ends)]
        self._totals.add(ns, tokens, self._cancelled_rows(batch.frame))
        if column := self._fields.get("sample_rate"):
            # 10%: a share. 1/100, 1:100 or 1 in 100: the last number. Else the text is the number.
            text = batch.frame[column].cast(pl.String, strict=False).str.strip_chars()
            share = numbers(text.str.extract(r"^([\d,.]+) ?%$")) / 100
            one_in = text.str.extract(r"^1 ?(?:/|:|in|of|out of) ?([\d,.]+)$")
            number = numbers(one_in.fill_null(text))
            self._totals.add_rates(np.where(np.isfinite(share), share, number))
        self._write(ns, tokens, batch.frame)

    def _with_delays(self, batch: Batch) -> Batch:
        """Return the batch with times for turns that only state a delay after the turn before.

        The time of the answer in between is unknown, so these turns come earlier than in reality.
        The batch is returned unchanged if no turn is like that, or if times are dates.
        """
        delay, session = self._think_column, self._fields.get("session")
        units = self._time_format.units
        if delay is None or session is None or not units or batch.frame.is_empty():
            return batch
        (arrival,), (unit,) = self._time_format.columns, units
        # Times and waits in the unit of the file's times.
        units_per_delay = 1e9 * self._think_unit_s / clock.UNITS_NS[unit]
        time = pl.col(arrival).cast(pl.Float64)
        wait = pl.col(delay).cast(pl.Float64) * units_per_delay
        # Column ``last_turn``: the time of the session's last turn in earlier batches.
        last_turns = self._last_turns.rename({"time": "last_turn"})
        frame = batch.frame.join(last_turns, on=session, how="left", nulls_equal=True)
        # Turns without a time of their own: it is absent, or that of the turn before.
        has_no_time = time.is_null() | (time == time.shift(1).over(session))
        is_untimed = has_no_time & wait.is_not_null()
        time_of_turn = _time_of_turns(session, time, wait, is_untimed)
        turns = frame.select(session, time=time_of_turn, is_untimed=is_untimed)
        last_turns = pl.concat([self._last_turns, turns.select(session, "time").drop_nulls()])
        self._last_turns = last_turns.unique(session, keep="last")
        if not turns["is_untimed"].any():
            return batch
        self._reading.findings["delays"] = (
            f"A turn starts {delay} after the start of the turn before it. A simulation also waits "
            "for the answer."
        )
        with_times = batch.frame.with_columns(turns["time"].alias(arrival))
        return Batch(with_times, batch.lines, batch.text, batch.faults)

    def _rows_of_load(self, batch: Batch) -> Batch:
        """Return the rows that pass the caller's filter, or without one those that load a GPU.

        Answers from a cache and failed requests without an answer load none.
        """
        reading = self._reading
        batch = reading.filter_rows(batch, self._conditions)
        if not self._automatic:
            return batch
        if column := self._fields.get("cache_hit"):
            is_hit = checks.cache_hits(batch.frame[column])
            batch = reading.leave_out_rows(batch, is_hit, f"{CACHED} ({column})")
        if column := self._fields.get("status"):
            has_answer = self._layout.tokens["output_tokens"].values(batch.frame) > 0
            is_failed = checks.is_failed(batch.frame[column], column) & ~has_answer
            reason = f"failed request without an answer ({column})"
            batch = reading.leave_out_rows(batch, is_failed, reason)
        return batch

    def _tokens(
        self, frame: pl.DataFrame
    ) -> tuple[dict[str, IntArray], list[dict[str, BoolArray]]]:
        """Return the tokens of each field ``[rows]``, and masks of refused rows by reason.

        Refused cells are 0. The masks are of the input and of the output tokens.
        """
        limit, columns = self._reading.options.max_tokens, self._layout.tokens
        prompt_cells = columns["input_tokens"].series(frame)
        answer_cells = self._output_cells(frame)
        prompt, bad_prompt = token_counts(prompt_cells, "input tokens", limit, "input tokens zero")
        answer, bad_answer = token_counts(answer_cells, "output tokens", limit)
        tokens = {"input_tokens": prompt, "output_tokens": answer}
        # Tokens that are also in another field, such as cached tokens of the prompt: at most those.
        for part, total in PARTS_OF_TOKENS.items():
            if part in columns:
                values = np.nan_to_num(columns[part].values(frame), posinf=0.0, neginf=0.0)
                tokens[part] = np.clip(values, 0, tokens[total]).astype(np.int64)
        return tokens, [bad_prompt, bad_answer]

    def _output_cells(self, frame: pl.DataFrame) -> pl.Series:
        """Return the cells of output tokens; an empty cell of a cancelled request becomes 0."""
        cells = self._layout.tokens["output_tokens"].series(frame)
        is_cancelled = pl.Series(self._cancelled_rows(frame))
        if not is_cancelled.any():
            return cells
        if cells.dtype == pl.String:
            is_empty = cells.is_null() | (cells.str.strip_chars() == "")
            return cells.set(is_cancelled & is_empty, "0")
        return cells.set(is_cancelled & cells.is_null(), 0)

    def _cancelled_rows(self, frame: pl.DataFrame) -> BoolArray:
        """Return a mask of the cancelled requests; False without a column of their status."""
        if column := self._fields.get("status"):
            return checks.is_cancelled(frame[column], column)
        return np.zeros(frame.height, np.bool_)

    def _repeated_rows(self, frame: pl.DataFrame, ns: IntArray, good: BoolArray) -> BoolArray:
        """Return a mask of the ``good`` rows that repeat the id and time of an earlier row.

        Earlier rows are good ones, of this batch and of batches that overlap it in time.
        Without a column of ids no row repeats another. ``ns`` are the times of the rows.
        """
        column, is_repeated = self._fields.get("request_id"), np.zeros(ns.size, dtype=np.bool_)
        if column is None:
            return is_repeated
        ids = frame[column]
        is_usable = ids.is_not_null().to_numpy() & good
        if not is_usable.any():
            return is_repeated
        hashes = pl.DataFrame({"id": ids, "ns": ns}).hash_rows(seed=0).to_numpy().view(np.int64)
        if (np.diff(ns) <= 0).any():  # rows at one time, or out of order
            is_repeated[is_usable] = ~pl.Series(hashes[is_usable]).is_first_distinct().to_numpy()
        first_ns, last_ns = int(ns[is_usable].min()), int(ns[is_usable].max())
        for first_seen_ns, last_seen_ns, seen in self._batches_seen:
            if first_seen_ns <= last_ns and first_ns <= last_seen_ns:
                # ``seen`` is sorted, so a hash is in it if it equals the one at its place.
                place = np.minimum(np.searchsorted(seen, hashes), seen.size - 1)
                is_repeated |= seen[place] == hashes
        self._batches_seen.append((first_ns, last_ns, np.sort(hashes[is_usable])))
        return is_repeated & is_usable

    def _write(self, ns: IntArray, tokens: dict[str, IntArray], frame: pl.DataFrame) -> None:
        """Write accepted rows (arrival times ``ns``) as one Parquet file, sorted by arrival."""
        if not self.accepted:
            self.first_ns = self.start_ns = self.latest_ns = int(ns[0])
        # The latest arrival before each row, and after the last row.
        latest_ns = np.maximum.accumulate(np.append(self.latest_ns, ns))
        late_rows = int((ns < latest_ns[:-1]).sum())
        part = self._stored_columns(ns, tokens, frame)
        # Most files are in order, so sort only parts with late rows.
        if late_rows:
            part = part.sort("arrival_s", maintain_order=True)
            self.start_ns = min(self.start_ns, int(ns.min()))
        self.late += late_rows
        self.latest_ns = int(latest_ns[-1])
        self.accepted += ns.size
        self.parts.append(SortedPart.write(part, self._folder, len(self.parts)))

    def _stored_columns(
        self, ns: IntArray, tokens: dict[str, IntArray], frame: pl.DataFrame
    ) -> pl.DataFrame:
        """Return accepted rows with the columns of a trace; count requests without a utility."""
        columns = [pl.Series("arrival_s", (ns - self.first_ns) / 1e9)]
        columns += [pl.Series(name, values.astype(np.int32)) for name, values in tokens.items()]
        columns += [self._label(label, frame) for label in LABELS]
        if (hash_ids := self._fields.get("hash_ids")) in frame.columns:
            columns.append(frame[hash_ids].alias("hash_ids"))
        for name in self._links:
            texts = frame[self._fields[name]].cast(pl.String).str.strip_chars()
            hashes = texts.hash(seed=0).reinterpret(signed=True)
            columns.append(hashes.set(texts.is_null() | (texts == ""), None).alias(name))
        if self._think_column:
            think_s = numbers(frame[self._think_column]) * self._think_unit_s
            think_s = np.nan_to_num(np.maximum(think_s, 0.0), nan=0.0, posinf=0.0)
            columns.append(pl.Series(THINK, think_s, dtype=pl.Float32))
        if utility_column := self._fields.get("utility"):
            utility = pl.Series("utility", numbers(frame[utility_column]))
            utility = utility.set(~utility.is_finite(), None)
            self._totals.no_utility += utility.null_count()
            columns.append(utility)
        return pl.DataFrame(columns)

    def _label(self, label: str, frame: pl.DataFrame) -> pl.Series:
        """Return a label's column (stated, of the file, or null), and collect the names in it."""
        constant = self._reading.options.constant(label)
        column = self._layout.fields.get(label)
        if constant is None and column is not None:
            values = labels(frame[column])
            self.names[label].add(values)
            return values.alias(label)
        values = pl.Series(label, [constant], dtype=pl.String)
        if constant is not None:
            self.names[label].add(values)
        return values.new_from_index(0, frame.height)

    def finish(self) -> Content:
        """Sort all parts by arrival, remove rows with a wrong clock, and return the content."""
        reading, time_format = self._reading, self._time_format
        rows_by_hour, column = self._totals.rows_by_hour, time_format.columns[0]
        change = consistency.clock_change(time_format, hours=rows_by_hour)
        reading.check("clock_change", change, column)
        reading.check("twelve_hours", consistency.twelve_hours(time_format, rows_by_hour), column)
        reading.check("stray_clocks", consistency.stray_clocks(time_format, rows_by_hour), column)
        # Rows within these limits stay. Seconds count from the first accepted row, as in the parts.
        low_s, high_s = -np.inf, np.inf
        if (bounds := stray_bounds(rows_by_hour)) is not None:
            first_hour, last_hour = bounds
            low_s = (first_hour * HOUR_NS - self.first_ns) / 1e9
            high_s = ((last_hour + 1) * HOUR_NS - self.first_ns) / 1e9
            self._remove_stray_rows(low_s, high_s)
        merge_in_order(
            self.parts,
            self._folder,
            (self.start_ns - self.first_ns) / 1e9,
            on_range=reading.on_batch,
            first_s=low_s,
            end_s=high_s,
        )
        tokens: dict[str, Any] = self._totals.tokens
        return Content(
            kind="requests",
            rows=self.rows,
            requests=self.accepted,
            time_format=time_format,
            start_ns=self.start_ns,
            end_ns=self.latest_ns,
            names=self.names,
            columns=self._layout.columns,
            notes=self._notes(),
            cancelled=self._totals.cancelled,
            unanswered=self._totals.unanswered,
            without_model=self.names["model"].blank if "model" in self._layout.fields else 0,
            sample=reading.options.one_in or max(1.0, self._totals.weight / self.accepted),
            **tokens,
        )

    def _remove_stray_rows(self, low_s: float, high_s: float) -> None:
        """Count the rows with a wrong clock, which arrive outside [low_s, high_s), as left out.

        Tokens, rows and times of the reader are set to those of the other rows. The parts
        themselves are not changed here.
        """
        arrival = pl.col("arrival_s")
        stored = pl.scan_parquet([part.path for part in self.parts])
        inside = stored.filter(arrival >= low_s, arrival < high_s)
        tokens = pl.col(*self._totals.tokens).cast(pl.Int64).sum()
        sums = inside.select(tokens, rows=pl.len(), begin=arrival.min(), end=arrival.max())
        totals = sums.collect().row(0, named=True)
        self._totals.tokens = {name: totals[name] for name in self._totals.tokens}
        stray_count = self.accepted - totals["rows"]
        lines, texts = [], []
        for ns, line, text in self.ends:
            if not low_s <= (ns - self.first_ns) / 1e9 < high_s:
                lines.append(line)
                texts.append(text)
        # Only the first and the last row have a text. The last sample stands for all other strays.
        lines += lines[-1:] * (stray_count - len(lines))
        texts += texts[-1:] * (stray_count - len(texts))
        stray_lines = np.array(lines[:stray_count], dtype=np.int64)
        self._reading.tally.leave_out(RefusedRows(STRAY, stray_lines, texts.__getitem__))
        self.accepted = totals["rows"]
        self.start_ns = self.first_ns + round(totals["begin"] * 1e9)
        self.latest_ns = self.first_ns + round(totals["end"] * 1e9)

    def _notes(self) -> tuple[str, ...]:
        """Return sentences on times, sorted rows, missing labels and sample rates."""
        notes = [self._time_format.note] if self._time_format.note else []
        notes += [*offset_notes(self.offsets), *self._layout.notes]
        if self.late:
            rows = "1 row" if self.late == 1 else f"{self.late:,} rows"
            notes.append(f"Sorted {rows} that arrived before a row above them.")
        fields, totals = self._layout.fields, self._totals
        if totals.no_utility:
            column = fields["utility"]
            notes.append(f"{totals.no_utility:,} requests have no utility (column {column}).")
        rate_column = self._fields.get("sample_rate")
        if rate_column and not totals.rates:
            notes.append(f"{rate_column} has no rate that can be read: each row counts once.")
        for label, names in self.names.items():
            if label in fields and names.blank:
                notes.append(f"{names.blank:,} requests have no {label} (column {fields[label]}).")
        rates = len(totals.rates)
        if self._reading.options.one_in is None and rates > 1:
            notes.append(f"The rows have {rates} sample rates. Each counts with their mean.")
        return tuple(notes)


def _time_of_turns(session: str, time: pl.Expr, wait: pl.Expr, is_untimed: pl.Expr) -> pl.Expr:
    """Return the times of turns: stated, or the last stated time plus the waits since then.

    The column ``last_turn`` is the time of the session's last turn in earlier batches.
    """
    stated_time = pl.when(is_untimed).then(None).otherwise(time)
    last_stated = stated_time.forward_fill().over(session).fill_null(pl.col("last_turn"))
    stated_times_before = stated_time.is_not_null().cum_sum().over(session)
    delays = pl.when(is_untimed).then(wait).otherwise(0.0)
    return last_stated + delays.cum_sum().over(session, stated_times_before)


def offset_notes(offsets: set[str]) -> list[str]:
    """Return a sentence on the ``offsets`` of times from UTC, such as +02:00; [] if all are 0."""
    if len(offsets) > 1:
        listed = ", ".join(sorted(offsets)[:5])
        return [f"Times have {len(offsets)} offsets ({listed}); all were converted to UTC."]
    if offsets and "+00:00" not in offsets:
        return [f"Times have the offset {min(offsets)}; converted to UTC."]
    return []
