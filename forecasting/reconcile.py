"""Forecasts of parts and of their total made to agree.

Weighted least squares with a diagonal covariance (Wickramasuriya, Athanasopoulos and Hyndman 2019,
JASA 114, MinT's WLS): what parts and total disagree by is shared out by how uncertain each is. For
one total over its parts that has the closed form below.
"""

from __future__ import annotations

import numpy as np

from forecasting.arrays import FloatArray


def reconciled(
    parts: FloatArray, total: FloatArray, variances: FloatArray, total_variance: FloatArray
) -> FloatArray:
    """``parts [p, steps]`` moved so that their sum is the reconciled total; never negative.

    ``total [steps]`` is the total's own forecast; variances are those of the errors of each part
    and of the total, of the same shapes. The reconciled total is the sum of what is answered: with
    ``d = total - sum parts`` part i moves by ``d v_i / (sum v + v_total)``. Where a part would fall
    below 0 it stays there and the others take the rest in proportion.
    """
    missing = total - parts.sum(axis=0)
    known = variances.sum(axis=0) + total_variance
    share = np.where(known > 0, variances / np.where(known > 0, known, 1.0), 0.0)
    wanted = parts.sum(axis=0) + missing * share.sum(axis=0)
    moved = np.maximum(0.0, parts + missing * share)
    sums = moved.sum(axis=0)
    return np.asarray(moved * (np.maximum(wanted, 0.0) / np.where(sums > 0, sums, 1.0)))
