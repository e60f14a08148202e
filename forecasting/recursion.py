"""Linear recursions over time, solved by LAPACK as triangular systems.

``scipy.signal.lfilter`` does the same, but its import takes a second of every command.
"""

import numpy as np
import scipy

from forecasting.arrays import FloatArray


def recursion(inputs: FloatArray, lags: FloatArray) -> FloatArray:
    """Return ``y [series, bins]`` with ``y_t = inputs_t - sum_j lags_j y_(t-j)``.

    ``inputs`` is ``[series, bins]``, and y is 0 before the first bin.
    """
    bands = np.repeat(np.r_[1.0, lags][:, None], inputs.shape[1], axis=1)
    outputs, _ = scipy.linalg.lapack.dtbtrs(bands, inputs.T, uplo="L", diag="U")
    return np.asarray(outputs.T, np.float64)
