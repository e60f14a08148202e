"""Resample the arrivals of a trace: the same bursts at any rate.

A plan covers the demand of each bin. So the size of a fleet also depends on how requests arrive
within a bin. A pattern stores the arrivals of many bins as blocks. New arrivals are blocks drawn at
random, each stretched to one request per second. This is a block bootstrap: Künsch, "The Jackknife
and the Bootstrap for General Stationary Observations", Annals of Statistics 17, 1989.
"""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, IntArray

LEAST = 50  # requests of a block; fewer show no bursts
MOST = 200_000  # requests of a pattern
BATCH = 64  # blocks drawn at a time; a longer draw begins with a shorter one


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalPattern:
    """Arrivals within equal blocks of time; block b has those from ``start[b]`` on."""

    place: FloatArray  # [requests] position of each arrival in its block, 0 to 1, ascending
    start: IntArray  # [blocks + 1]

    def unit_arrivals(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return ``n`` arrival times in seconds, at one request per second on average.

        A block of k requests lasts a random time of mean k seconds (gamma distribution). If the
        requests of each block are evenly spread, the arrivals are therefore a Poisson process.
        """
        block_sizes = np.diff(self.start)
        arrivals = [np.zeros(0)]
        drawn_count, end_s = 0, 0.0
        while drawn_count < n:
            # Draw a batch of blocks, one after the other, each with a random length.
            blocks = rng.integers(len(block_sizes), size=BATCH)
            counts = block_sizes[blocks]
            lengths_s = rng.gamma(counts)  # mean: counts
            ends_s = end_s + np.cumsum(lengths_s)
            # For each request: the begin of its block, and its position in the block.
            begins_s = np.repeat([end_s, *ends_s[:-1]], counts)
            places = np.concatenate([self.place[self.start[b] : self.start[b + 1]] for b in blocks])
            arrivals.append(begins_s + places * np.repeat(lengths_s, counts))
            drawn_count, end_s = drawn_count + int(counts.sum()), float(ends_s[-1])
        return np.concatenate(arrivals)[:n]


def pattern_of(
    arrival_s: FloatArray, series: IntArray, block_s: float, start_s: float = 0.0
) -> ArrivalPattern | None:
    """Return the pattern of arrivals in blocks of ``block_s`` seconds from ``start_s`` on.

    ``series [requests]`` is the number of the stream that a request belongs to, such as its region.
    A block has requests of one stream. Blocks with fewer than ``LEAST`` requests are left out. None
    if no block remains. If there are more than ``MOST`` requests, only every n-th block is kept.
    """
    # An interval is ``block_s`` seconds. Sort requests by series and interval, then by time, and
    # get the position of each in its interval, 0 to 1.
    since_start = (np.asarray(arrival_s, np.float64) - start_s) / block_s  # in blocks
    interval = np.floor(since_start).astype(np.int64)
    order = np.lexsort((since_start, interval, series))
    position = since_start[order] - interval[order]
    # A block is an interval of one series. Number the blocks in that order.
    begins_block = np.ones(len(order), np.bool_)
    begins_block[1:] = (np.diff(interval[order]) != 0) | (np.diff(series[order]) != 0)
    block_number = np.cumsum(begins_block) - 1
    block_sizes = np.bincount(block_number, minlength=1)
    large_blocks = np.flatnonzero(block_sizes >= LEAST)
    if not len(large_blocks):
        return None
    stride = -(-int(block_sizes[large_blocks].sum()) // MOST)
    is_kept = np.zeros(len(block_sizes), np.bool_)
    is_kept[large_blocks[::stride]] = True
    block_starts = np.concatenate([[0], np.cumsum(block_sizes[is_kept])])
    return ArrivalPattern(position[is_kept[block_number]], block_starts)


def dispersion(arrival_s: FloatArray, scale_s: float, block_s: float) -> float:
    """Return variance over mean of the requests per ``scale_s``, within blocks of ``block_s``.

    The result is 1 for a Poisson process. Variance and mean are taken within each block, so changes
    slower than a block do not count. ``arrival_s`` must not decrease. The last block may be
    incomplete and is left out. The result is NaN if no block is complete, or if a block is shorter
    than two times ``scale_s``.
    """
    bins_per_block = int(block_s // scale_s)
    block_count = int(arrival_s.max(initial=0.0) // block_s)
    if bins_per_block < 2 or not block_count:
        return float("nan")
    block_of_request = np.floor(arrival_s / block_s).astype(np.int64)
    bin_in_block = np.floor((arrival_s - block_of_request * block_s) / scale_s).astype(np.int64)
    is_complete = (block_of_request < block_count) & (bin_in_block < bins_per_block)
    bin_number = (block_of_request * bins_per_block + bin_in_block)[is_complete]
    counts = np.bincount(bin_number, minlength=block_count * bins_per_block)
    counts = counts.reshape(block_count, bins_per_block)  # requests
    return float(counts.var(axis=1, ddof=1).sum() / counts.mean(axis=1).sum())
