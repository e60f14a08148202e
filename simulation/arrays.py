"""Names of array types, and loops over long columns by blocks of rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # of records, or of any numbers
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
CodeArray = npt.NDArray[np.int16]
ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]
TextArray = npt.NDArray[np.str_]

BLOCK_ROWS = 1 << 20  # of a long column, processed at a time so that temporary arrays stay small
# Codes counted at a time: numpy makes each an integer of 8 bytes, which should stay in the cache.
COUNTED_ROWS = 1 << 16


def row_slices(rows: int) -> Iterator[slice]:
    """Yield slices of at most ``BLOCK_ROWS`` rows that together cover ``rows`` rows, in order."""
    return (slice(i, min(i + BLOCK_ROWS, rows)) for i in range(0, rows, BLOCK_ROWS))


def ratio(amounts: Array, per: Array, otherwise: float) -> FloatArray:
    """Return ``amounts / per``, element by element; ``otherwise`` where ``per`` is not above 0."""
    shape = np.broadcast_shapes(amounts.shape, per.shape)
    result = np.full(shape, otherwise)
    np.divide(amounts, per, out=result, where=per > 0)
    return result


def count_codes(codes: Array, kinds: int) -> IntArray:
    """Return how often each of the codes 0 to ``kinds - 1`` occurs in ``codes``, ``[kinds]``.

    The codes are counted by blocks, which keeps memory use small.
    """
    if kinds == 1:
        return np.array([len(codes)], np.int64)
    counts = np.zeros(kinds, np.int64)
    for i in range(0, len(codes), COUNTED_ROWS):
        counts += np.bincount(codes[i : i + COUNTED_ROWS], minlength=kinds)
    return counts
