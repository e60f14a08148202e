"""Read a request file without output lengths.

The requests are counted per bin, and the prompt lengths are kept as a sample. Only the output
lengths are left to assume.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl

from planner.inputs.ingest import clock
from planner.inputs.ingest.checks import Names, first_reasons, labels, token_counts
from planner.inputs.ingest.columns import request_layout
from planner.inputs.ingest.demand import series_reports, total
from planner.inputs.ingest.file_content import Content, Reading, read_times
from planner.inputs.ingest.grid import AMOUNTS, Grid, lay_out, number_keys
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.requests import clock_notes
from planner.inputs.ingest.rows import Batch
from planner.inputs.ingest.source import base_name
from planner.inputs.ingest.store import write_demand, write_lengths

BIN_S = 10  # as in public traces of counts; a study sums them to its own bins
BIN_NS = BIN_S * 1_000_000_000
SAMPLE = 20_000  # largest number of prompt lengths kept per series


def read_arrivals(reading: Reading) -> Content:
    """Read one row per request, and count the requests in bins of ten seconds.

    An empty bin between others is 0, not a gap.
    """
    reader = _Reader(reading)
    for batch in reading.table.batches(reader.columns):
        reader.take(batch)
        reading.on_batch()
    reading.tally.require_some(reader.rows)
    return reader.finish()


class _Reader:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        table = reading.table
        self._layout = request_layout(
            table.probe, reading.options, reading.name, reading.format.columns, answers=False
        )
        self._clock = reading.clock(self._layout.arrival, self._layout.arrival_unit)
        fields = self._layout.fields
        self._labels = {label: fields[label] for label in LABELS if label in fields}
        self._prompt = self._layout.tokens["input_tokens"]
        self.columns = list(
            dict.fromkeys([*self._clock.columns, *self._prompt.columns, *self._labels.values()])
        )
        self._order = clock.Order()
        self.names = {label: Names(label, reading.name) for label in LABELS}
        self.rows = 0
        self._offsets: set[str] = set()
        self._cells: list[pl.DataFrame] = []  # per batch: requests and tokens by bin
        self._prompts: list[pl.DataFrame] = []  # per batch: requests by prompt length

    def take(self, batch: Batch) -> None:
        """Check one batch, and count its accepted requests by bin and by prompt length."""
        frame, options = batch.frame, self._reading.options
        times = read_times(self._reading, batch, self._clock, self._order)
        prompt, bad_in = token_counts(
            self._prompt.series(frame),
            "input tokens",
            options.max_tokens,
            "input tokens zero",
        )
        bad, faults = first_reasons([times.refused, bad_in], batch.lines, batch.text)
        for fault in (*batch.faults, *faults):
            self._reading.tally.add(fault)
        self._reading.tally.close_batch()
        self.rows += batch.lines.size + sum(fault.lines.size for fault in batch.faults)
        self._offsets |= times.offsets
        constants = {label: options.constant(label) for label in LABELS}
        requests = pl.DataFrame({"ns": times.ns // BIN_NS * BIN_NS, "tokens": prompt}).with_columns(
            labels(frame[self._labels[label]]).alias(label)
            if label in self._labels
            else pl.lit(constants[label], dtype=pl.String).alias(label)
            for label in LABELS
        )
        if bad is not None:
            requests = requests.filter(~bad)
        if not requests.height:
            return
        for label, names in self.names.items():
            if label in self._labels or constants[label]:
                names.add(requests[label])
        self._cells.append(
            requests.group_by(*LABELS, "ns", maintain_order=True).agg(
                pl.len().cast(pl.Float64).alias("requests"),
                pl.col("tokens").sum().cast(pl.Float64).alias("input_tokens"),
            )
        )
        self._prompts.append(requests.group_by(*LABELS, "tokens").agg(pl.len().alias("requests")))

    def finish(self) -> Content:
        """Write the demand and the sample of prompt lengths; return the content."""
        reading = self._reading
        cells = pl.concat(self._cells).group_by(*LABELS, "ns", maintain_order=True).sum()
        unknown = [name for name in AMOUNTS if name not in cells.columns]
        cells, keys = number_keys(
            cells.with_columns(
                pl.lit(0).alias("line"), *(pl.lit(np.nan).alias(name) for name in unknown)
            ),
            LABELS,
        )
        identities = [
            {"name": " / ".join(filter(None, labels.values())) or base_name(reading.name), **labels}
            for labels in keys.select(LABELS).iter_rows(named=True)
        ]
        grids, _ = lay_out(
            cells,
            identities,
            BIN_NS,
            reading.name,
            reading.table.unit,
            zero=True,
            rates=[{}] * len(identities),
        )
        write_demand(reading.folder, grids)
        write_lengths(reading.folder, self._sample(keys, grids))
        return Content(
            kind="demand",
            rows=self.rows,
            requests=total(grids, "requests"),
            clock=self._clock,
            start_ns=min(grid.start_ns for grid in grids),
            end_ns=max(grid.end_ns for grid in grids),
            input_tokens=total(grids, "input_tokens"),
            output_tokens=None,
            names=self.names,
            columns=self._layout.columns,
            notes=(
                *clock_notes(self._clock, self._offsets),
                f"Its requests are counted by {BIN_S} s and their prompts kept as a sample. The "
                "file has no output lengths, so a scenario assumes them.",
            ),
            extras={"sample": self._reading.options.one_in or 1.0},
            series=series_reports(grids, self._clock.kind),
            bin_s=BIN_S,
        )

    def _sample(self, keys: pl.DataFrame, grids: list[Grid]) -> pl.DataFrame:
        """Return a sample of prompt lengths for each series, at evenly spaced ranks.

        A series with few requests gives all its lengths.
        """
        counted = pl.concat(self._prompts).group_by(*LABELS, "tokens").sum()
        counted = counted.join(keys, on=list(LABELS), how="left", nulls_equal=True)
        counted = counted.sort("number", "tokens")
        number, requests = counted["number"].to_numpy(), counted["requests"].to_numpy()
        edges = np.searchsorted(number, np.arange(len(grids) + 1))
        rows, points = [], []
        for first, end in pairwise(edges.tolist()):
            upto = np.cumsum(requests[first:end])
            points.append(min(SAMPLE, int(upto[-1])))
            ranks = (np.arange(points[-1]) + 0.5) / points[-1] * upto[-1]
            rows.append(first + np.searchsorted(upto, ranks))
        names = pl.Series("series", [grid.identity["name"] for grid in grids], dtype=pl.String)
        return pl.DataFrame(
            {
                "series": names.gather(np.repeat(np.arange(len(grids)), points)),
                "field": pl.Series(["input_tokens"]).new_from_index(0, sum(points)),
                "tokens": counted["tokens"].cast(pl.Float64).gather(np.concatenate(rows)),
            }
        )
