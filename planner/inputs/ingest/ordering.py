"""Sort more requests by arrival than fit in memory: sorted parts, merged by ranges of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from simulation.arrays import FloatArray

SAMPLE_ROWS = 4096  # rows of a part between two sampled arrivals
RANGE_ROWS = 2_000_000  # rows sorted in memory at a time, about
_GROUP_ROWS = 65_536  # rows of a Parquet row group, the least that a range must read


@dataclass(frozen=True, slots=True, eq=False)
class SortedPart:
    """A file of requests, sorted by arrival, with the arrival of every SAMPLE_ROWS-th row."""

    path: Path
    first_s: float
    last_s: float
    sample: FloatArray

    @classmethod
    def write(cls, frame: pl.DataFrame, folder: Path, number: int) -> SortedPart:
        """Write a sorted ``frame`` as part ``number`` in ``folder``; return it with a sample."""
        path = part_path(folder, number)
        frame.write_parquet(path, row_group_size=_GROUP_ROWS, compression="zstd")
        arrival = frame["arrival_s"].to_numpy()
        return cls(path, float(arrival[0]), float(arrival[-1]), arrival[::SAMPLE_ROWS].copy())


def part_path(folder: Path, number: int) -> Path:
    """Return the path of a part; the order of the names is that of the numbers."""
    return folder / f"part-{number:05d}.parquet"


def merge_in_order(
    parts: Sequence[SortedPart],
    folder: Path,
    shift_s: float,
    *,
    on_range: Callable[[], None],
    range_rows: int = RANGE_ROWS,
    first_s: float = -np.inf,
    end_s: float = np.inf,
) -> None:
    """Rewrite the files ``parts`` in ``folder`` so that they follow each other in time.

    Arrivals before ``first_s`` and from ``end_s`` on are dropped. Then ``shift_s`` is subtracted
    from all arrivals. Requests with the same arrival keep their order. Files stay as they are if
    nothing has to change. About ``range_rows`` rows are in memory at a time. ``on_range`` is called
    after each such range, and may raise to cancel.
    """
    in_order = all(part.last_s <= next_part.first_s for part, next_part in pairwise(parts))
    if in_order and shift_s == 0.0 and (first_s, end_s) == (-np.inf, np.inf):
        return
    # Cut time into ranges of about ``range_rows`` rows. Every SAMPLE_ROWS-th row is in a sample.
    sampled_s = np.sort(np.concatenate([part.sample for part in parts]))
    step = max(1, range_rows // SAMPLE_ROWS)
    cuts_s = np.unique(sampled_s[step::step])
    edges_s = [first_s, *cuts_s[(cuts_s > first_s) & (cuts_s < end_s)].tolist(), end_s]
    sorted_folder = folder / "sorted"
    sorted_folder.mkdir()
    arrival = pl.col("arrival_s")
    count = 0
    for low_s, high_s in pairwise(edges_s):
        overlapping = [p.path for p in parts if p.first_s < high_s and p.last_s >= low_s]
        if not overlapping:
            continue
        in_range = pl.scan_parquet(overlapping).filter(arrival >= low_s, arrival < high_s)
        frame = in_range.sort("arrival_s", maintain_order=True).collect()
        if frame.height:
            SortedPart.write(frame.with_columns(arrival - shift_s), sorted_folder, count)
            count += 1
        on_range()
    for part in parts:
        part.path.unlink()
    for number in range(count):
        part_path(sorted_folder, number).rename(part_path(folder, number))
    sorted_folder.rmdir()
