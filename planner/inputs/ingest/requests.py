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
MOST_REPEATED = 0.3
LEAST_FITTING = 0.7  # share of the rows that have to fit another finding
PARENTS = ("parentspanid", "parentid", "parentrunid", "parentobservationid")
SPANS = ("spanid", "id", "runid", "observationid")
MOST_EVENTS = 10  # values of a column of events; more are not kinds of event
FEW_ROWS = 20  # different rows; if each comes again, files were joined
FEW_REPEATS = 5  # fewer repeated rows may be chance
FEW_PARENTS = 5  # spans with spans below them; fewer may be chance
STRAY = "time far from all other rows"


def read_request_file(reading: Reading, *, answers: bool = True) -> Content:
    """Read one row per request into parts by arrival; ``answers``: with output tokens."""
    table, known = reading.table, reading.format.columns
    layout = request_layout(table.probe, reading.options, reading.name, known, answers=answers)
    ids = layout.fields.get("hash_ids")
    if ids is not None and table.kind == "csv":
        if "hash_ids" in reading.options.mapping:
            raise IngestError(
                f"{reading.name}: hash_ids are lists, which CSV cannot hold. Use JSON lines."
            )
        ids = None
    when = reading.clock(layout.arrival, layout.arrival_unit)
    _check_first_rows(reading, layout, when)
    reader = _Reader(reading, layout, when)
    for batch in table.batches(reader.columns, ids=ids):
        reader.take(batch)
        reading.on_batch()
    reading.tally.require_some(reader.rows)
    return reader.finish()


def _check_first_rows(reading: Reading, layout: RequestLayout, when: clock.Clock) -> None:
    """Check whether the first rows are requests; a caller's filter of rows skips most checks."""
    _check_tokens(reading, layout)
    if reading.options.filter is None:
        _check_repeats(reading, layout, when)
        if when.kind == UTC:
            times = clock.read(reading.table.probe, when)
            known_ns = times.ns[times.good & (times.ns >= 0)]
            reading.check("coarse_times", consistency.coarse_times(known_ns), when.columns[0])
        _check_nesting(reading, layout)
    _check_latency(reading, when)


def _check_tokens(reading: Reading, layout: RequestLayout) -> None:
    """Check the first rows for token columns that are counters, totals, or sums over requests."""
    probe, options = reading.table.probe, reading.options
    is_stated = options.format != AUTO or bool(reading.format.known_by)
    unsure = not is_stated and "arrival" not in options.mapping
    tokens = {field: each.values(probe) for field, each in layout.tokens.items()}
    answers = tokens["output_tokens"]
    # Counters of one table grow together, so the one that grows least decides.
    least = min(tokens.values(), key=lambda values: (np.diff(values) > 0).sum())
    grow = unsure and only_grows(least[:-1], least[1:])
    if unsure and (session := layout.fields.get("session")):  # from turn to turn
        turns = pl.DataFrame({"session": probe[session], "after": answers})
        turns = turns.with_columns(before=pl.col("after").shift(1).over("session")).drop_nulls()
        grow = grow or only_grows(turns["before"].to_numpy(), turns["after"].to_numpy())
    reading.check("growing_tokens", grow)
    if layout.weight and "sample_rate" not in layout.fields and not options.sample:
        several = unsure and consistency.row_weights(numbers(probe[layout.weight]))
        reading.check("row_weights", several, layout.weight)
    if layout.total and "input_tokens" not in options.mapping:
        beyond_prompt = layout.total.values(probe) - tokens["input_tokens"]
        equal = unsure and consistency.token_totals(answers, beyond_prompt)
        reading.check("token_totals", equal, str(layout.tokens["input_tokens"]))


def _check_repeats(reading: Reading, layout: RequestLayout, when: clock.Clock) -> None:
    """Check the first rows for requests that occur several times: by their ids, else as rows."""
    probe = reading.table.probe
    id_column = layout.fields.get("request_id") or ("id" if "id" in probe.columns else None)
    if id_column in layout.arrival:
        return
    if id_column:
        _check_repeated_ids(reading, layout, id_column)
    elif when.kind == UTC and len(layout.arrival) == 1 and not layout.fields.get("session"):
        flat = probe.select(~selectors.nested())  # nested cells cannot be compared
        different = flat.n_unique()
        # Equal rows are no chance if times are finer than a second, or if every row is repeated.
        ns = clock.read(probe, when).ns
        is_sure = (ns % clock.UNITS_NS["s"] != 0).mean() > LEAST_FITTING
        is_sure |= different >= FEW_ROWS and bool(flat.is_duplicated().all())
        repeats, finding = flat.height - different, None
        if is_sure and repeats >= FEW_REPEATS:
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
    by_prompt = rows.group_by(column, *prompt.columns).len()
    repeated = by_prompt["len"].filter(by_prompt["len"] > 1).sum() / max(1, rows.height)
    by_time = rows.select(column, *layout.arrival).unique()
    by_tokens = rows.select(column, *prompt.columns, *answer.columns).unique()
    differ = max(by_time.height, by_tokens.height) > by_prompt.height
    finding = consistency.repeated_ids(
        by_time.height - by_time[column].n_unique(),
        parts=repeated >= MOST_REPEATED and differ,
        events=_event_values(rows.drop(answer.columns), column),
    )
    reading.check("repeated_ids", finding, column)


def _check_nesting(reading: Reading, layout: RequestLayout) -> None:
    """Check the first rows for parent spans whose tokens are the sum of their child spans."""
    probe = reading.table.probe
    by_name = {compact_name(column): column for column in probe.columns}
    parents = [by_name[name] for name in PARENTS if name in by_name]
    ids = [by_name[name] for name in SPANS if name in by_name]
    if not parents or not ids:
        return
    tokens = pl.Series(layout.tokens["input_tokens"].values(probe))
    spans = pl.DataFrame({"id": probe[ids[0]], "parent": probe[parents[0]], "tokens": tokens})
    children = spans.group_by("parent").agg(below=pl.col("tokens").fill_nan(0).sum())
    nested = spans.join(children, left_on="id", right_on="parent").filter(pl.col("below") > 0)
    beyond_children = (nested["tokens"] - nested["below"]).abs()
    sums = (beyond_children <= 0.01 * nested["below"]).sum()
    are_sums = nested.height >= FEW_PARENTS and sums > LEAST_FITTING * nested.height
    reading.check("nested_rows", are_sums, parents[0])


def _event_values(rows: pl.DataFrame, ids: str) -> tuple[tuple[str, str], ...]:
    """Return (column, value) pairs, such as event = end, that select one row of each request."""
    requests = rows[ids].n_unique()
    for column in rows.columns:
        events = rows[column].value_counts(sort=True)
        if not 1 < events.height <= MOST_EVENTS or column == ids:
            continue
        usual = [e for e, count in events.iter_rows() if e is not None and count >= 0.9 * requests]
        once = [e for e in usual if rows.filter(pl.col(column) == e)[ids].is_unique().all()]
        if once:
            return tuple((column, str(event)) for event in once)
    return ()


def _check_latency(reading: Reading, when: clock.Clock) -> None:
    """Check by a latency column with a unit whether requests start when others end."""
    probe = reading.table.probe
    columns = [c for c in probe.columns if LATENCY.search(c) and clock.unit_of(c)]
    if not columns or columns[0] in when.columns:
        return
    column = columns[0]
    unit_s = clock.UNITS_NS[clock.unit_of(column) or "s"] / 1e9
    latency_s = numbers(probe[column]) * unit_s
    times = clock.read(probe, when)
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
    hours: dict[int, int] = field(default_factory=dict)  # rows by hour
    rates: set[float] = field(default_factory=set)  # sample rates
    weight: float = 0.0  # requests that the rows stand for, by their sample rates

    def add(self, ns: IntArray, tokens: dict[str, IntArray], is_cancelled: BoolArray) -> None:
        """Add the rows of a batch: tokens, requests without output, and rows by hour."""
        for name, values in tokens.items():
            self.tokens[name] += int(values.sum())
        empty = tokens["output_tokens"] == 0
        self.cancelled += int((empty & is_cancelled).sum())
        self.unanswered += int((empty & ~is_cancelled).sum())
        for hour, count in pl.Series(ns // HOUR_NS).value_counts().iter_rows():
            self.hours[hour] = self.hours.get(hour, 0) + count

    def add_rates(self, rates: FloatArray) -> None:
        """Add the sample rates of rows: shares, or n for one in n. NaN: the row is one request."""
        known = rates[np.isfinite(rates) & (rates > 0)]
        self.rates |= set(np.unique(known).tolist()[:50])
        # A rate of 0.01 is one in 100, and so is 100.
        one_in = np.where(known < 1, 1 / known, known)
        self.weight += float(one_in.sum()) + rates.size - known.size


class _Reader:
    """Checks the rows of a request file batch by batch, writes them as parts and counts them.

    A part is a Parquet file with the accepted rows of a batch, sorted by arrival.
    """

    def __init__(self, reading: Reading, layout: RequestLayout, when: clock.Clock) -> None:
        self._reading, self._layout, self._clock = reading, layout, when
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
        self._think = fields.get("delay") if self._links else None
        self._think_s = self._think_unit_s() if self._think else 1.0
        self.columns = self._needed_columns()
        self.rows = self.accepted = 0
        self.late = 0  # rows with an earlier arrival than a previous row
        # Arrivals: of the first accepted row, the earliest, and the latest so far.
        self.first_ns = self.start_ns = self.latest_ns = 0
        self._totals = _Totals(dict.fromkeys(layout.tokens, 0))
        self.parts: list[SortedPart] = []
        self.offsets: set[str] = set()
        # Time, line and text of the first and the last row.
        self.ends: list[tuple[int, int, str]] = []
        self._order = clock.Order()
        # Time of the last turn of each session, for files whose turns state delays.
        session = fields.get("session", "")
        self._last_turns = pl.DataFrame(schema={session: pl.String, "time": pl.Float64})
        # By batch: first and last time (ns), and the sorted hashes of the ids and times.
        self._seen: list[tuple[int, int, IntArray]] = []

    def _needed_columns(self) -> list[str]:
        """Return the columns to read: of times, fields (without hash_ids), tokens, conditions."""
        columns = [*self._clock.columns]
        columns += [column for field, column in self._fields.items() if field != "hash_ids"]
        columns += [c for each in self._layout.tokens.values() for c in each.columns]
        columns += [condition.column for condition, _ in self._conditions]
        return list(dict.fromkeys(columns))

    def _think_unit_s(self) -> float:
        """Return the seconds per unit of the think-time column, and note its use.

        Without a unit in its name, the unit is that of numeric times. Otherwise it is the largest
        unit in which most think times end before the next turn arrives.
        """
        column = self._think or ""
        unit = clock.unit_of(column) or next(iter(self._clock.units), None)
        if unit is None:
            probe = self._reading.table.probe
            turns = pl.DataFrame(
                {
                    "turn": probe[self._fields[self._links[0]]].cast(pl.String),
                    "at": clock.read(probe, self._clock).ns / 1e9,
                    "think": numbers(probe[column]),
                }
            )
            turns = turns.with_columns(gap=pl.col("at").diff().over("turn"))
            turns = turns.filter(pl.col("gap").is_not_null(), pl.col("think") > 0)
            exceeds_gap = (turns["think"] > turns["gap"]).to_numpy()
            unit = "ms" if exceeds_gap.size and exceeds_gap.mean() > 0.5 else "s"
        self._reading.findings["delays"] = (
            f"Each turn starts at least its {column} ({unit}) after the answer before it."
        )
        return clock.UNITS_NS[unit] / 1e9

    def take(self, batch: Batch) -> None:
        """Check one batch and write its accepted rows as one part."""
        tally = self._reading.tally
        self.rows += tally.begin(batch)
        batch = self._with_delays(self._rows_of_load(batch))
        times = self._reading.times(batch, self._clock, self._order)
        self.offsets |= times.offsets
        tokens, refused = self._tokens(batch.frame)
        bad = tally.refuse([times.refused, *refused], batch)
        repeated = self._repeated_rows(batch.frame, times.ns, ~bad)
        if repeated.any():
            tally.leave_out(batch.refuse(REPEATED, repeated))
            bad |= repeated
        tally.close_batch()
        if bad.all():
            return
        ns = times.ns
        if bad.any():
            batch, ns = batch.select(~bad), ns[~bad]
            tokens = {name: values[~bad] for name, values in tokens.items()}
        self._accept(ns, tokens, batch)

    def _accept(self, ns: IntArray, tokens: dict[str, IntArray], batch: Batch) -> None:
        """Count and write the accepted rows of a batch, with arrival times ``ns`` ``[rows]``."""
        for i in (int(ns.argmin()), int(ns.argmax())):
            self.ends.append((int(ns[i]), int(batch.lines[i]), batch.text(i)))
        self.ends = [min(self.ends), max(self.ends)]
        self._totals.add(ns, tokens, self._cancelled_rows(batch.frame))
        if column := self._fields.get("sample_rate"):
            # 10%, or 1/100, 1:100 or 1 in 100, or a number.
            text = batch.frame[column].cast(pl.String, strict=False).str.strip_chars()
            one_in = text.str.extract(r"^1 ?(?:/|:|in|of|out of) ?([\d,.]+)$")
            share = numbers(text.str.extract(r"^([\d,.]+) ?%$")) / 100
            rates = np.where(np.isfinite(share), share, numbers(one_in.fill_null(text)))
            self._totals.add_rates(rates)
        self._write(ns, tokens, batch.frame)

    def _with_delays(self, batch: Batch) -> Batch:
        """Return the batch with times for turns that only state a delay after the turn before.

        The time of the answer in between is unknown, so these turns come earlier than in reality.
        """
        delay, session = self._think, self._fields.get("session")
        if delay is None or session is None or not self._clock.units or batch.frame.is_empty():
            return batch
        (arrival,), (unit,) = self._clock.columns, self._clock.units
        units_per_delay = 1e9 * self._think_s / clock.UNITS_NS[unit]
        time = pl.col(arrival).cast(pl.Float64)
        wait = pl.col(delay).cast(pl.Float64) * units_per_delay
        last_turns = self._last_turns.rename({"time": "last_turn"})
        frame = batch.frame.join(last_turns, on=session, how="left", nulls_equal=True)
        # Turns without a time of their own: it is absent, or that of the turn before.
        untimed = (time.is_null() | (time == time.shift(1).over(session))) & wait.is_not_null()
        time_of_turn = _time_of_turns(session, time, wait, untimed)
        times = frame.select(session, time=time_of_turn, untimed=untimed)
        last_turns = pl.concat([self._last_turns, times.select(session, "time").drop_nulls()])
        self._last_turns = last_turns.unique(session, keep="last")
        if not times["untimed"].any():
            return batch
        self._reading.findings["delays"] = (
            f"A turn starts {delay} after the start of the turn before it. A simulation also waits "
            "for the answer."
        )
        with_times = batch.frame.with_columns(times["time"].alias(arrival))
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
            hits = checks.cache_hits(batch.frame[column])
            batch = reading.without(batch, hits, f"{CACHED} ({column})")
        if column := self._fields.get("status"):
            answer = self._layout.tokens["output_tokens"].values(batch.frame)
            failed = checks.is_failed(batch.frame[column], column) & ~(answer > 0)
            batch = reading.without(batch, failed, f"failed request without an answer ({column})")
        return batch

    def _tokens(
        self, frame: pl.DataFrame
    ) -> tuple[dict[str, IntArray], list[dict[str, BoolArray]]]:
        """Return the tokens of each field ``[rows]``, and the refused rows.

        Refused cells are 0. The refused rows are masks by reason, of the input and of the output.
        """
        limit, layout = self._reading.options.max_tokens, self._layout.tokens
        prompts = layout["input_tokens"].series(frame)
        prompt, bad_in = token_counts(prompts, "input tokens", limit, "input tokens zero")
        answer, bad_out = token_counts(self._answers(frame), "output tokens", limit)
        tokens = {"input_tokens": prompt, "output_tokens": answer}
        for name, total in PARTS_OF_TOKENS.items():
            if name in layout:
                part = np.nan_to_num(layout[name].values(frame), posinf=0.0, neginf=0.0)
                tokens[name] = np.clip(part, 0, tokens[total]).astype(np.int64)
        return tokens, [bad_in, bad_out]

    def _answers(self, frame: pl.DataFrame) -> pl.Series:
        """Return the cells of output tokens; an empty cell of a cancelled request becomes 0."""
        answers = self._layout.tokens["output_tokens"].series(frame)
        cancelled = self._cancelled_rows(frame)
        if not cancelled.any():
            return answers
        if answers.dtype == pl.String:
            empty = answers.is_null() | (answers.str.strip_chars() == "")
            return answers.set(pl.Series(cancelled) & empty, "0")
        return answers.set(pl.Series(cancelled) & answers.is_null(), 0)

    def _cancelled_rows(self, frame: pl.DataFrame) -> BoolArray:
        """Return a mask of the cancelled requests; False without a column of their status."""
        if column := self._fields.get("status"):
            return checks.is_cancelled(frame[column], column)
        return np.zeros(frame.height, np.bool_)

    def _repeated_rows(self, frame: pl.DataFrame, ns: IntArray, good: BoolArray) -> BoolArray:
        """Return the ``good`` rows that repeat an earlier id and time, in overlapping batches."""
        column, repeated = self._fields.get("request_id"), np.zeros(ns.size, dtype=np.bool_)
        if column is None:
            return repeated
        ids = frame[column]
        usable = ids.is_not_null().to_numpy() & good
        if not usable.any():
            return repeated
        key = pl.DataFrame({"id": ids, "ns": ns}).hash_rows(seed=0).to_numpy().view(np.int64)
        if (np.diff(ns) <= 0).any():  # rows at one time, or out of order
            repeated = ~pl.Series(key).is_first_distinct().to_numpy()
        first, last = int(ns[usable].min()), int(ns[usable].max())
        for low, high, hashes in self._seen:
            if low <= last and first <= high:
                nearest = np.minimum(np.searchsorted(hashes, key), hashes.size - 1)
                repeated |= hashes[nearest] == key
        self._seen.append((first, last, np.sort(key[usable])))
        return repeated & usable

    def _write(self, ns: IntArray, tokens: dict[str, IntArray], frame: pl.DataFrame) -> None:
        """Write accepted rows (arrival times ``ns``) as one Parquet file, sorted by arrival."""
        if not self.accepted:
            self.first_ns = self.start_ns = self.latest_ns = int(ns[0])
        latest = np.maximum.accumulate(np.append(self.latest_ns, ns))
        late = int((ns < latest[:-1]).sum())
        part = self._stored_columns(ns, tokens, frame)
        # Most files are in order, so sort only parts with late rows.
        if late:
            part = part.sort("arrival_s", maintain_order=True)
            self.start_ns = min(self.start_ns, int(ns.min()))
        self.late += late
        self.latest_ns = int(latest[-1])
        self.accepted += ns.size
        self.parts.append(SortedPart.write(part, self._folder, len(self.parts)))

    def _stored_columns(
        self, ns: IntArray, tokens: dict[str, IntArray], frame: pl.DataFrame
    ) -> pl.DataFrame:
        """Return accepted rows with the columns of a trace; count requests without a utility."""
        columns = [pl.Series("arrival_s", (ns - self.first_ns) / 1e9)]
        columns += [pl.Series(name, values.astype(np.int32)) for name, values in tokens.items()]
        columns += [self._label(label, frame) for label in LABELS]
        if (ids := self._fields.get("hash_ids")) in frame.columns:
            columns.append(frame[ids].alias("hash_ids"))
        for name in self._links:
            texts = frame[self._fields[name]].cast(pl.String).str.strip_chars()
            hashes = texts.hash(seed=0).reinterpret(signed=True)
            columns.append(hashes.set(texts.is_null() | (texts == ""), None).alias(name))
        if self._think:
            think = numbers(frame[self._think]) * self._think_s
            think = np.nan_to_num(np.maximum(think, 0.0), nan=0.0, posinf=0.0)
            columns.append(pl.Series(THINK, think, dtype=pl.Float32))
        if column := self._fields.get("utility"):
            utility = pl.Series("utility", numbers(frame[column]))
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
        self._check_hours()
        low_s, high_s = -np.inf, np.inf
        if (bounds := stray_bounds(self._totals.hours)) is not None:
            first_hour, last_hour = bounds
            low_s = (first_hour * HOUR_NS - self.first_ns) / 1e9
            high_s = ((last_hour + 1) * HOUR_NS - self.first_ns) / 1e9
            self._remove_stray_rows(low_s, high_s)
        merge_in_order(
            self.parts,
            self._folder,
            (self.start_ns - self.first_ns) / 1e9,
            on_range=self._reading.on_batch,
            first_s=low_s,
            end_s=high_s,
        )
        tokens: dict[str, Any] = self._totals.tokens
        return Content(
            kind="requests",
            rows=self.rows,
            requests=self.accepted,
            clock=self._clock,
            start_ns=self.start_ns,
            end_ns=self.latest_ns,
            names=self.names,
            columns=self._layout.columns,
            notes=self._notes(),
            cancelled=self._totals.cancelled,
            unanswered=self._totals.unanswered,
            sample=self._reading.options.one_in or max(1.0, self._totals.weight / self.accepted),
            **tokens,
        )

    def _check_hours(self) -> None:
        """Check the rows by hour for a change of clocks, 12-hour times, and wrong clocks."""
        reading, when, hours = self._reading, self._clock, self._totals.hours
        column = when.columns[0]
        reading.check("clock_change", consistency.clock_change(when, hours=hours), column)
        reading.check("twelve_hours", consistency.twelve_hours(when, hours), column)
        reading.check("stray_clocks", consistency.stray_clocks(when, hours), column)

    def _remove_stray_rows(self, low_s: float, high_s: float) -> None:
        """Leave out rows with a wrong clock, which arrive outside [low_s, high_s)."""
        arrival = pl.col("arrival_s")
        stored = pl.scan_parquet([part.path for part in self.parts])
        kept = stored.filter(arrival >= low_s, arrival < high_s)
        tokens = pl.col(*self._totals.tokens).cast(pl.Int64).sum()
        sums = kept.select(tokens, rows=pl.len(), begin=arrival.min(), end=arrival.max())
        totals = sums.collect().row(0, named=True)
        self._totals.tokens = {name: totals[name] for name in self._totals.tokens}
        count = self.accepted - totals["rows"]
        lines, texts = [], []
        for ns, line, text in self.ends:
            if not low_s <= (ns - self.first_ns) / 1e9 < high_s:
                lines.append(line)
                texts.append(text)
        # Only the first and the last row have a text. The last sample stands for all other strays.
        lines += lines[-1:] * (count - len(lines))
        texts += texts[-1:] * (count - len(texts))
        stray_lines = np.array(lines[:count], dtype=np.int64)
        self._reading.tally.leave_out(RefusedRows(STRAY, stray_lines, texts.__getitem__))
        self.accepted = totals["rows"]
        self.start_ns = self.first_ns + round(totals["begin"] * 1e9)
        self.latest_ns = self.first_ns + round(totals["end"] * 1e9)

    def _notes(self) -> tuple[str, ...]:
        """Return sentences on times, sorted rows, missing labels and sample rates."""
        notes = [self._clock.note] if self._clock.note else []
        notes += [*offset_notes(self.offsets), *self._layout.notes]
        if self.late:
            rows = "1 row" if self.late == 1 else f"{self.late:,} rows"
            notes.append(f"Sorted {rows} that arrived before a row above them.")
        fields = self._layout.fields
        without = self._totals.no_utility
        if without:
            notes.append(f"{without:,} requests have no utility (column {fields['utility']}).")
        if (rates := self._fields.get("sample_rate")) and not self._totals.rates:
            notes.append(f"{rates} has no rate that can be read: each row counts once.")
        for label, names in self.names.items():
            if label in fields and names.blank:
                notes.append(f"{names.blank:,} requests have no {label} (column {fields[label]}).")
        several = len(self._totals.rates)
        if self._reading.options.one_in is None and several > 1:
            notes.append(f"The rows have {several} sample rates. Each counts with their mean.")
        return tuple(notes)


def _time_of_turns(session: str, time: pl.Expr, wait: pl.Expr, untimed: pl.Expr) -> pl.Expr:
    """Return the times of turns: stated, or the last stated time plus the waits since then.

    The column ``last_turn`` is the time of the session's last turn in earlier batches.
    """
    stated_time = pl.when(untimed).then(None).otherwise(time)
    base = stated_time.forward_fill().over(session).fill_null(pl.col("last_turn"))
    stated_times_before = stated_time.is_not_null().cum_sum().over(session)
    delays = pl.when(untimed).then(wait).otherwise(0.0)
    return base + delays.cum_sum().over(session, stated_times_before)


def offset_notes(offsets: set[str]) -> list[str]:
    """Return a sentence on the ``offsets`` of times from UTC, such as +02:00; [] if all are 0."""
    if len(offsets) > 1:
        listed = ", ".join(sorted(offsets)[:5])
        return [f"Times have {len(offsets)} offsets ({listed}); all were converted to UTC."]
    if offsets and "+00:00" not in offsets:
        return [f"Times have the offset {min(offsets)}; converted to UTC."]
    return []
