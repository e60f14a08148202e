"""Store a series that grows in parts, so that data read twice counts once.

Each reading is a part: ``bins-MOMENT.parquet`` and ``histograms-MOMENT.parquet`` in one folder, in
the order of writing. A later part replaces the values that an earlier part of the same origin has
for a bin. Its nulls replace nothing. Late data is so merged, and an empty reading deletes no
measurement. NaN withdraws a value: the process went on, but its amount is not known.

If several origins saw parts of a bin (files that end within it), their amounts add up.
"""

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from planner.errors import DamagedFile
from planner.files.atomic_write import replace_file
from planner.files.damage import damage_reported
from planner.inputs.live.samples import (
    AMOUNTS,
    BINS,
    COUNTED,
    GAUGES,
    HISTOGRAMS,
    KEYS,
    Samples,
    no_histograms,
)

AGAIN = "restore a backup, or remove this live source and add it again"
TRIES = 3
MOST_PARTS = 64  # more are merged into one
_BIN_KEYS = (*KEYS, "bin_start")  # columns that identify a bin of a series


@dataclass(frozen=True, slots=True)
class GrowingSeries:
    """The samples of a live source in bins of ``bin_s`` seconds, stored in a folder of parts.

    A part is the pair of files that one reading of the source adds (see the module).
    """

    folder: Path
    bin_s: int

    def append(self, samples: Samples) -> None:
        """Store the samples of one reading as a part; several processes may do so at once."""
        if samples.bin_s != self.bin_s:
            raise ValueError(f"bins of {samples.bin_s} s do not match bins of {self.bin_s} s")
        if samples.bins.is_empty() and samples.histograms.is_empty():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        for kind, table in (("histograms", samples.histograms), ("bins", samples.bins)):
            if not table.is_empty():
                _write(table, self.folder / f"{kind}-{stem}")
        if len(self._parts("bins")) > MOST_PARTS:
            with suppress(DamagedFile):  # the reading is stored; a reader reports the damage
                self._compact()

    def read(self, until_s: float | None = None, since_s: float | None = None) -> Samples:
        """Return the bins from ``since_s`` on that end by ``until_s`` (epoch s; None: no limit).

        The result has one row per model, region, tier and bin, in this order. Amounts of bins that
        were only partly seen are null.
        """
        bins, histograms = self.bins(until_s, since_s), self.histograms(until_s, since_s)
        return Samples(self.bin_s, bins, histograms)

    def bins(self, until_s: float | None = None, since_s: float | None = None) -> pl.DataFrame:
        """Return the bins from ``since_s`` on that end by ``until_s`` (epoch s; None: no limit).

        Amounts are sums over the origins of a bin, null if only a part of the bin was seen. Gauges
        are the last values.
        """
        # A bin that one origin saw in part is known if another origin has the rest.
        is_complete = pl.col("whole").any() | (pl.len() > 1)
        amounts = []
        for name in AMOUNTS:
            is_known = is_complete & pl.col(name).is_not_null().any()
            total = pl.col(name).sum().fill_nan(None)
            amounts.append(pl.when(is_known).then(total).alias(name))
        gauges = [pl.col(name).drop_nulls().last() for name in GAUGES]
        parts = self._read("bins", BINS, until_s, since_s)
        bins = _latest_bins(parts).group_by(*_BIN_KEYS).agg(*amounts, *gauges)
        return bins.sort(*_BIN_KEYS)

    def histograms(self, until_s: float | None, since_s: float | None) -> pl.DataFrame:
        """Return only the histograms of :meth:`read`, summed over their origins.

        They have many times more rows than the bins, so limit the time.
        """
        histograms = _latest_histograms(self._read("histograms", HISTOGRAMS, until_s, since_s))
        if histograms.is_empty():
            return no_histograms().drop("origin")
        return (
            histograms.group_by(*_BIN_KEYS, "what", "least", "most")
            .agg(pl.col("count").sum())
            .sort(*_BIN_KEYS, pl.col("what").cast(pl.Enum(COUNTED)), "most")
        )

    def origins(self) -> pl.DataFrame:
        """Return the bins of each origin; ``whole``: the origin saw the complete bin."""
        return _latest_bins(self._read("bins", BINS)).select(*_BIN_KEYS, "origin", "whole")

    def _parts(self, kind: str) -> list[Path]:
        return sorted(self.folder.glob(f"{kind}-*.parquet"), key=_stem)

    def _read(
        self,
        kind: str,
        schema: dict[str, type[pl.DataType]],
        until_s: float | None = None,
        since_s: float | None = None,
    ) -> pl.DataFrame:
        """Return the rows of the parts of a ``kind``, with the index of their part in ``part``.

        Only bins from ``since_s`` on that end by ``until_s`` are read (epoch s; None: no limit).
        """
        wanted = pl.lit(True)
        if since_s is not None:
            wanted &= pl.col("bin_start") >= since_s
        if until_s is not None:
            wanted &= pl.col("bin_start") + self.bin_s <= until_s
        for _ in range(TRIES):
            with suppress(FileNotFoundError):  # another process has just merged the parts
                return _rows_of_parts(self._parts(kind), schema, wanted)
        return _rows_of_parts(self._parts(kind), schema, wanted)

    def _compact(self) -> None:
        """Merge all parts into one.

        Parts that are appended meanwhile sort after the merged part. A reader that sees both the
        parts and the merged part reads the same values.
        """
        for kind, schema, latest in (
            ("histograms", HISTOGRAMS, _latest_histograms),
            ("bins", BINS, _latest_bins),
        ):
            parts = self._parts(kind)
            if len(parts) < 2:
                continue
            rows = _rows_of_parts(parts, schema, pl.lit(True))
            # This name sorts after the parts that it replaces and before all later ones.
            merged = parts[-1].with_name(f"{_stem(parts[-1])}-all")
            _write(latest(rows).select(*schema), merged)
            for path in parts:
                path.unlink(missing_ok=True)


def _rows_of_parts(
    parts: list[Path], schema: dict[str, type[pl.DataType]], wanted: pl.Expr
) -> pl.DataFrame:
    """Return the ``wanted`` rows of ``parts``, with the index of their part in ``part``.

    Raise FileNotFoundError if a part has gone, and DamagedFile if it cannot be read.
    """
    tables = [pl.DataFrame(schema={**schema, "part": pl.Int64})]
    for i, path in enumerate(parts):
        if not path.exists():
            raise FileNotFoundError(path)
        with damage_reported(f"The stored file {path.name}", AGAIN):
            rows = pl.scan_parquet(path).filter(wanted)
            tables.append(rows.with_columns(part=pl.lit(i, pl.Int64)).collect())
    # A column that is newer than a file is null there.
    return pl.concat(tables, how="diagonal_relaxed").select(*schema, "part")


def _write(table: pl.DataFrame, stem: Path) -> None:
    """Write a table to ``stem`` with the ending .parquet, as a whole or not at all."""
    with replace_file(stem.with_name(f"{stem.name}.parquet")) as draft:
        table.write_parquet(draft, compression="zstd")


def _stem(path: Path) -> str:
    """Return the name of a part without endings, by which parts sort in order of writing."""
    return path.name.partition(".")[0]  # earlier versions wrote a checksum after the dot


def _latest_bins(parts: pl.DataFrame) -> pl.DataFrame:
    """Return one row per bin and origin, with each value from the last part that has it."""
    last = [pl.col(name).drop_nulls().last() for name in (*AMOUNTS, *GAUGES)]
    return (
        parts.sort("part", maintain_order=True)
        .group_by(*_BIN_KEYS, "origin", maintain_order=True)
        .agg(pl.col("whole").any(), *last)
    )


def _latest_histograms(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the histograms of each origin and bin, each from the last part that has one."""
    keys = [*_BIN_KEYS, "origin", "what"]
    return parts.filter(pl.col("part") == pl.col("part").max().over(keys)).drop("part")
