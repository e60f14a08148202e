"""Names of array types, by what the numbers in them are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # of records, or of whatever numbers
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
CodeArray = npt.NDArray[np.int16]
ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]
TextArray = npt.NDArray[np.str_]
