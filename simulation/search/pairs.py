"""Match prefill and decode instances of one GPU type, and choose how many of each."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from simulation.arrays import FloatArray, IntArray

MOST_EACH = 8  # most instances of a side
MOST_GPUS = 64  # most GPUs of one copy of a pair; a deployment may have many copies

SMALLER = 1.03  # a larger ratio must have this many times the capacity per GPU to be chosen
RATIOS = sorted(
    ((x, y) for x in range(1, MOST_EACH + 1) for y in range(1, MOST_EACH + 1) if gcd(x, y) == 1),
    key=sum,
)


@dataclass(frozen=True, slots=True, eq=False)
class RatioTable:
    """The best integer ratio of every prefill with every decode instance, ``[p, d]``."""

    rate: FloatArray  # requests/s of both sides together; 0 if no ratio fits
    prefills: IntArray
    decodes: IntArray
    gpus: IntArray

    @property
    def rps_per_gpu(self) -> FloatArray:
        return np.asarray(self.rate / self.gpus)


def best_ratios(
    prefill_rps: FloatArray, prefill_gpus: IntArray, decode_rps: FloatArray, decode_gpus: IntArray
) -> RatioTable:
    """Return the integer ratio with the highest capacity per GPU for each pair.

    x prefill and y decode instances carry min(x rp, y rd). A larger ratio is chosen only if it
    carries ``SMALLER`` times as much per GPU.
    """
    shape = (len(prefill_rps), len(decode_rps))
    best, rate = np.zeros(shape), np.zeros(shape)
    prefills, decodes = np.ones(shape, np.int64), np.ones(shape, np.int64)
    # Small ratios first: a larger one must beat them clearly.
    for many, few in RATIOS:
        together = np.minimum.outer(many * prefill_rps, few * decode_rps)
        gpus = np.add.outer(many * prefill_gpus, few * decode_gpus)
        each = np.where(gpus <= MOST_GPUS, together / gpus, 0.0)
        better = each > SMALLER * best
        best = np.where(better, each, best)
        rate = np.where(better, together, rate)
        prefills = np.where(better, many, prefills)
        decodes = np.where(better, few, decodes)
    gpus = prefills * prefill_gpus[:, None] + decodes * decode_gpus[None, :]
    return RatioTable(rate, prefills, decodes, gpus)
