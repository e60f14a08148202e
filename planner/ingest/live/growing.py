"""A series that grows by parts: every reading is a part, and what was read twice counts once.

``bins-MOMENT.parquet`` and ``histograms-MOMENT.parquet`` in a folder, in the order they were
written. A later part replaces what an earlier one of the same origin
said of a bin, but for what it says nothing of (null): late data is merged, and a reading of nothing
wipes out no measurement. NaN takes back what was said: a process went on and nobody saw how. Of a
bin that several origins saw in part (files that end in its middle) the amounts add up.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from planner.damage import damage_reported
from planner.errors import Damaged
from planner.ingest.live.samples import (
    AMOUNTS,
    BINS,
    COUNTED,
    GAUGES,
    HISTOGRAMS,
    KEYS,
    Samples,
    no_histograms,
)
from planner.whole import whole_file

AGAIN = "restore a backup, or remove this live source and make it anew"
TRIES = 3
MOST_PARTS = 64  # from which on they are written as one
_PLACE = (*KEYS, "bin_start")


@dataclass(frozen=True, slots=True)
class GrowingSeries:
    folder: Path
    bin_s: int

    def append(self, samples: Samples) -> None:
        """Keep a reading; several processes may at once."""
        if samples.bin_s != self.bin_s:
            raise ValueError(f"bins of {samples.bin_s} s do not go with bins of {self.bin_s} s")
        if samples.bins.is_empty() and samples.histograms.is_empty():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        for kind, table in (("histograms", samples.histograms), ("bins", samples.bins)):
            if not table.is_empty():
                _write(table, self.folder / f"{kind}-{stem}")
        if len(self._parts("bins")) > MOST_PARTS:
            with suppress(Damaged):  # whoever reads is told; the reading is kept
                self._compact()

    def read(self, until_s: float | None = None, since_s: float | None = None) -> Samples:
        """What is known of the bins that end by ``until_s`` and begin from ``since_s`` on (epoch),
        one row per model, region, tier and bin, in order; amounts of bins seen only in part are
        null."""
        bins, counted = self.bins(until_s, since_s), self.histograms(until_s, since_s)
        return Samples(self.bin_s, bins, counted)

    def bins(self, until_s: float | None = None, since_s: float | None = None) -> pl.DataFrame:
        """As ``read`` has them."""
        return _joined_bins(
            _before(_latest_bins(self._read("bins", BINS, since_s)), self.bin_s, until_s)
        )

    def histograms(
        self, until_s: float | None = None, since_s: float | None = None
    ) -> pl.DataFrame:
        """As ``read`` has them; they are many times as many rows, so ask for the days you need."""
        latest = _latest_histograms(self._read("histograms", HISTOGRAMS, since_s))
        return _joined_histograms(_before(latest, self.bin_s, until_s))

    def told(self) -> pl.DataFrame:
        """Which origin told of which bin of which key, and whether it saw the whole bin."""
        bins = _latest_bins(self._read("bins", BINS, None))
        return bins.select(*_PLACE, "origin", "whole")

    def _parts(self, kind: str) -> list[Path]:
        return sorted(self.folder.glob(f"{kind}-*.parquet"), key=_stem)

    def _read(
        self, kind: str, schema: dict[str, type[pl.DataType]], since_s: float | None
    ) -> pl.DataFrame:
        """All parts under each other, with their place in ``part``."""
        for _ in range(TRIES):
            with suppress(FileNotFoundError):  # another process has just written them as one
                return _stacked(self._parts(kind), schema, since_s)
        return _stacked(self._parts(kind), schema, since_s)

    def _compact(self) -> None:
        """Parts as one; what is appended meanwhile comes after it, and a reader who sees both the
        parts and the one of them reads the same."""
        for kind, schema, latest in (
            ("histograms", HISTOGRAMS, _latest_histograms),
            ("bins", BINS, _latest_bins),
        ):
            parts = self._parts(kind)
            if len(parts) < 2:
                continue
            _write(
                latest(_stacked(parts, schema)).select(*schema),
                parts[-1].with_name(f"{_stem(parts[-1])}-all"),
            )
            for path in parts:
                path.unlink(missing_ok=True)


def _stacked(
    parts: list[Path], schema: dict[str, type[pl.DataType]], since_s: float | None = None
) -> pl.DataFrame:
    """Parts and row groups that end before ``since_s`` are not read."""
    tables = []
    for i, path in enumerate(parts):
        if not path.exists():
            raise FileNotFoundError(path)
        with damage_reported(f"The stored file {path.name}", AGAIN):
            rows = pl.scan_parquet(path)
            if since_s is not None:
                rows = rows.filter(pl.col("bin_start") >= since_s)
            tables.append(_whole(rows.collect(), schema).with_columns(part=pl.lit(i, pl.Int64)))
    return pl.concat(tables) if tables else pl.DataFrame(schema={**schema, "part": pl.Int64})


def _whole(rows: pl.DataFrame, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """With the columns that came after it was written, of which it says nothing."""
    lacking = [pl.lit(None, kind).alias(n) for n, kind in schema.items() if n not in rows.columns]
    return rows.with_columns(lacking).select(*schema)


def _write(table: pl.DataFrame, stem: Path) -> None:
    """Write a part atomically."""
    with whole_file(stem.with_name(f"{stem.name}.parquet")) as draft:
        table.write_parquet(draft, compression="zstd")


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]  # earlier versions wrote a checksum after the dot


def _latest_bins(parts: pl.DataFrame) -> pl.DataFrame:
    """Per origin and bin what was said last of each column."""
    last = [pl.col(name).drop_nulls().last() for name in (*AMOUNTS, *GAUGES)]
    return (
        parts.sort("part", maintain_order=True)
        .group_by(*_PLACE, "origin", maintain_order=True)
        .agg(pl.col("whole").any(), *last)
    )


def _latest_histograms(parts: pl.DataFrame) -> pl.DataFrame:
    """Per origin, bin and quantity the histogram of the last part that has one."""
    of = [*_PLACE, "origin", "what"]
    return parts.filter(pl.col("part") == pl.col("part").max().over(of)).drop("part")


def _before(table: pl.DataFrame, bin_s: int, until_s: float | None) -> pl.DataFrame:
    return table if until_s is None else table.filter(pl.col("bin_start") + bin_s <= until_s)


def _joined_bins(bins: pl.DataFrame) -> pl.DataFrame:
    """Origins added up. A bin that one of them saw in part is known where another goes on in it."""
    known = pl.col("whole").any() | (pl.len() > 1)
    amounts = [
        pl.when(known & pl.col(name).is_not_null().any())
        .then(pl.col(name).sum().fill_nan(None))
        .alias(name)
        for name in AMOUNTS
    ]
    gauges = [pl.col(name).drop_nulls().last() for name in GAUGES]
    return bins.group_by(*_PLACE).agg(*amounts, *gauges).sort(*_PLACE)


def _joined_histograms(counted: pl.DataFrame) -> pl.DataFrame:
    if counted.is_empty():
        return no_histograms().drop("origin")
    order = pl.Enum(COUNTED)
    return (
        counted.group_by(*_PLACE, "what", "least", "most")
        .agg(pl.col("count").sum())
        .sort(*KEYS, "bin_start", pl.col("what").cast(order), "most")
    )
