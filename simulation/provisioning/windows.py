"""Aggregate the demand of a trace by window, actual and as known at planning time."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError

STEP = 1.05


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Demand of a trace by window, arrays of shape ``[W]``."""

    seconds: float  # window length
    requests_s: FloatArray
    isl: FloatArray  # mean input tokens
    osl: FloatArray  # mean output tokens


def windows_of(
    arrival_s: FloatArray, isl: npt.ArrayLike, osl: npt.ArrayLike, seconds: float
) -> Windows:
    """Return requests/s and mean lengths by window; empty windows use the lengths before them.

    Raises SimulationError for an empty trace.
    """
    if arrival_s.size == 0:
        raise SimulationError("The trace has no requests to plan for.")
    window = (arrival_s // seconds).astype(np.int64)
    count = np.bincount(window)

    def mean(lengths: npt.ArrayLike) -> FloatArray:
        """Return the mean length in each window, or of the last window with requests, ``[W]``."""
        total = np.bincount(window, weights=np.asarray(lengths, np.float64))
        means = np.divide(total, count, out=np.full(count.size, np.nan), where=count > 0)
        with_requests = np.flatnonzero(count > 0)
        last = np.searchsorted(with_requests, np.arange(count.size), side="right") - 1
        return np.asarray(means[with_requests[np.maximum(last, 0)]], np.float64)

    return Windows(seconds, count / seconds, mean(isl), mean(osl))


def block_means(windows: Windows, every: int) -> Windows:
    """Return the mean demand over blocks of ``every`` windows, repeated for each window.

    A plan for that many windows is made for this mean. Lengths are weighted by requests.
    """
    if every <= 1:
        return windows
    count = windows.requests_s.size
    block = np.arange(count) // every
    rate = np.bincount(block, windows.requests_s) / np.bincount(block)
    weight = np.maximum(windows.requests_s, 1e-12)

    def mean(lengths: FloatArray) -> FloatArray:
        """Return the mean length in the block of each window, weighted by requests, ``[W]``."""
        block_mean = np.bincount(block, lengths * weight) / np.bincount(block, weight)
        return np.asarray(block_mean[block], np.float64)

    return Windows(windows.seconds, rate[block], mean(windows.isl), mean(windows.osl))


def demand_known(windows: Windows, every: int) -> Windows:
    """Return the demand that is known when each block of ``every`` windows is planned.

    It is the mean demand of the previous block. The first block has none, so it uses its own.
    """
    blocks = block_means(windows, every)
    first_of_previous_block = np.maximum(np.arange(blocks.requests_s.size) // every - 1, 0) * every
    rate, isl, osl = (
        values[first_of_previous_block] for values in (blocks.requests_s, blocks.isl, blocks.osl)
    )
    return Windows(blocks.seconds, rate, isl, osl)


def demand_keys(windows: Windows, phase: str, headroom: float = 0.0) -> IntArray:
    """Return the rounded demand of each window, ``[W, 2]``: operator rate and tokens of a pass.

    The rate times 1 + ``headroom`` and the tokens are rounded up to powers of STEP. The result has
    their exponents.
    """
    if phase == "prefill":
        rate, tokens = windows.requests_s, windows.isl
    else:
        rate, tokens = windows.requests_s * windows.osl, windows.isl + windows.osl / 2.0
    # At least one request per window and one token: the logarithm of 0 does not exist.
    smallest = [1.0 / windows.seconds, 1.0]
    demand = np.stack([rate, tokens], axis=1)
    steps = np.log(np.maximum(demand, smallest) * [1.0 + headroom, 1.0]) / np.log(STEP)
    return np.asarray(np.ceil(steps - 1e-9), np.int64)
