"""Measure how bursty arrivals are."""

import numpy as np

from simulation.arrays import FloatArray


def dispersion(arrival_s: FloatArray, scale_s: float, block_s: float) -> float:
    """Return variance over mean of the requests per ``scale_s``, within blocks of ``block_s``.

    It is 1 for a Poisson process. The mean is that of each block, so slower changes do not count.
    ``arrival_s`` must rise. The last block is left out, since it may be incomplete. The result is
    NaN without a whole block, or if a block is shorter than two times ``scale_s``.
    """
    cells_per_block = int(block_s // scale_s)
    blocks = int(arrival_s[-1] // block_s) if len(arrival_s) else 0
    if cells_per_block < 2 or not blocks:
        return float("nan")
    number = np.floor(arrival_s / block_s).astype(np.int64)
    cell = np.floor((arrival_s - number * block_s) / scale_s).astype(np.int64)
    inside = (number < blocks) & (cell < cells_per_block)
    counts = np.bincount(
        number[inside] * cells_per_block + cell[inside], minlength=blocks * cells_per_block
    )
    table = counts.reshape(blocks, cells_per_block)
    return float(table.var(axis=1, ddof=1).sum() / table.mean(axis=1).sum())
