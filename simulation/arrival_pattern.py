"""Resample the arrivals of a trace: the same bursts at any rate.

A plan covers the demand of each bin, so what counts for a size is how requests arrive within a
bin. A pattern holds the arrivals of many bins as blocks. New arrivals are blocks drawn at random,
each stretched to one request per second. This is a block bootstrap: Künsch, "The Jackknife and the
Bootstrap for General Stationary Observations", Annals of Statistics 17, 1989.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, IntArray

LEAST = 50  # requests of a block; fewer show no bursts
MOST = 200_000  # requests of a pattern
BATCH = 64  # blocks drawn at a time; a longer draw begins with a shorter one


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalPattern:
    """Arrivals within blocks of equal length.

    ``place`` ``[requests]`` is the position of each arrival in its block, from 0 to 1, in order.
    Block b holds the requests ``start[b]:start[b + 1]``.
    """

    place: FloatArray
    start: IntArray

    def unit_arrivals(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return ``n`` arrival times at one request per second on average.

        A block of k requests lasts a gamma time of mean k seconds, so blocks of evenly spread
        requests are a Poisson process.
        """
        size = np.diff(self.start)
        parts: list[FloatArray] = []
        drawn, now = 0, 0.0
        while drawn < n:
            blocks = rng.integers(len(size), size=BATCH)
            counts = size[blocks]
            lasts = rng.gamma(counts)
            begins = now + np.concatenate([[0.0], np.cumsum(lasts)])
            of_block = np.repeat(np.arange(BATCH), counts)
            first = np.cumsum(counts) - counts
            rows = self.start[blocks][of_block] + np.arange(len(of_block)) - first[of_block]
            parts.append(begins[of_block] + self.place[rows] * lasts[of_block])
            drawn, now = drawn + len(rows), float(begins[-1])
        return np.concatenate(parts)[:n] if parts else np.zeros(0)


def pattern_of(
    arrival_s: FloatArray, series: IntArray, block_s: float, start_s: float = 0.0
) -> ArrivalPattern | None:
    """Return the pattern of arrivals in blocks of ``block_s`` seconds from ``start_s`` on.

    ``series`` ``[requests]`` numbers independent streams, such as regions. They share no block.
    Blocks with fewer than ``LEAST`` requests are left out. Return None without any other. Of very
    many requests, blocks at equal distances are kept.
    """
    since = (np.asarray(arrival_s, np.float64) - start_s) / block_s
    number = np.floor(since).astype(np.int64)
    order = np.lexsort((since, number, series))
    number, of_series, place = number[order], series[order], (since - number)[order]
    new = np.ones(len(number), np.bool_)
    new[1:] = (np.diff(number) != 0) | (np.diff(of_series) != 0)
    block = np.cumsum(new) - 1
    size = np.bincount(block, minlength=1)
    able = np.flatnonzero(size >= LEAST)
    if not len(able):
        return None
    every = -(-int(size[able].sum()) // MOST)
    kept = np.zeros(len(size), np.bool_)
    kept[able[::every]] = True
    starts = np.concatenate([[0], np.cumsum(size[kept])])
    return ArrivalPattern(place[kept[block]], starts)


def dispersion(arrival_s: FloatArray, scale_s: float, block_s: float) -> float:
    """Return variance over mean of the requests per ``scale_s``, within blocks of ``block_s``.

    It is 1 for a Poisson process. The mean is that of each block, so slower changes do not count.
    Arrivals are in order, and the last block is left out, since it is seen in part. NaN without a
    whole block, or if no block holds two scales.
    """
    each = int(block_s // scale_s)
    blocks = int(arrival_s[-1] // block_s) if len(arrival_s) else 0
    if each < 2 or not blocks:
        return float("nan")
    number = np.floor(arrival_s / block_s).astype(np.int64)
    cell = np.floor((arrival_s - number * block_s) / scale_s).astype(np.int64)
    inside = (number < blocks) & (cell < each)
    counts = np.bincount(number[inside] * each + cell[inside], minlength=blocks * each)
    table = counts.reshape(blocks, each)
    return float(table.var(axis=1, ddof=1).sum() / table.mean(axis=1).sum())
