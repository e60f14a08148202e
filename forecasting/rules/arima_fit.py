"""Fit an ARIMA to one series: d by a unit-root test, then p and q by AIC.

Candidates are estimated by Hannan and Rissanen's regressions (1982, Biometrika 69), in which the
residuals of a long autoregression stand for the shocks. Gauss-Newton steps make the best candidates
as good as maximum likelihood (Brockwell and Davis 1991, section 8.11). The AIC of these is that of
their exact likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view

from forecasting.arrays import BoolArray, FloatArray
from forecasting.harmonics import RIDGE, carry_forward, least_squares
from forecasting.recursion import recursion

Order = tuple[int, int, int]  # (p, d, q)

FINALISTS = 4  # orders whose exact likelihood is computed
STEPS = 2  # Gauss-Newton steps
LARGEST_MA_ROOT = 0.95  # of inverse roots; closer to 1, shocks would be remembered for too long
LARGEST_AR_ROOT = 0.999  # of inverse roots; 1 is a unit root, which ``d`` is for
KPSS_CRITICAL = 0.463  # at 5%, level stationarity (Kwiatkowski et al. 1992, table 1)


@dataclass(frozen=True, slots=True, eq=False)
class FittedOrder:
    """One order with its parameters; ``aic`` is that of values with a mean square around 1."""

    order: Order
    parameters: FloatArray  # [p + q] AR then MA coefficients
    aic: float


def choose_differences(values: FloatArray, design: FloatArray) -> int:
    """Return 1 if a KPSS test rejects level stationarity around ``design`` at 5%, else 0.

    AIC cannot choose ``d``, since models of different ``d`` explain different data. Gaps are
    dropped. The bandwidth is the longer one of Kwiatkowski et al. 1992 (l12): the short one
    mistakes strong stationary autocorrelation for a unit root.
    """
    seen = ~np.isnan(values)
    residual = values[seen] - design[seen] @ least_squares(design[seen], values[seen])
    n = residual.size
    sums = np.cumsum(residual)
    lags = min(int(np.ceil(12 * (n / 100) ** 0.25)), n - 1)
    # Long-run variance times n, with Bartlett's weights of the autocovariances.
    variance = float(residual @ residual)
    for lag in range(1, lags + 1):
        bartlett_weight = 1 - lag / (lags + 1)
        variance += 2 * bartlett_weight * float(residual[lag:] @ residual[:-lag])
    # The statistic is sums @ sums / (n * variance).
    return int(sums @ sums > KPSS_CRITICAL * n * max(variance, np.finfo(float).tiny))


def fit_orders(values: FloatArray, d: int, max_p: int, max_q: int) -> FittedOrder:
    """Return the fit with the least AIC over ``p <= max_p``, ``q <= max_q``.

    ``values [bins]`` are scaled so that they (``d = 0``) or their differences (``d = 1``) have a
    mean square of 1. Gaps have the value before them as regressors and are dropped as targets.
    Orders that are not stationary and invertible are skipped. (0, d, 0) always remains.
    """
    seen = ~np.isnan(values)
    w = np.diff(carry_forward(values), n=d)
    target = seen[d:] & seen[: values.size - d]
    finalists = _hannan_rissanen(w, target, d, max_p, max_q)[:FINALISTS]
    refined = [_with_exact_aic(_refine(fit, w, target), w) for fit in finalists]
    return min(refined, key=lambda fit: fit.aic)


def _hannan_rissanen(
    w: FloatArray, target: BoolArray, d: int, max_p: int, max_q: int
) -> list[FittedOrder]:
    """Return the fits of all orders up to ``max_p`` and ``max_q``, the least AIC first.

    The fits are regressions of ``w`` on its earlier values and on estimated shocks. ``w`` are the
    values differenced ``d`` times, and ``target`` is the mask of those to explain.
    """
    # Residuals of a long autoregression stand for the shocks.
    long_lags = min(round(10 * np.log10(w.size)), w.size // 4)
    lagged, later, is_target = _lagged_values(w, long_lags), w[long_lags:], target[long_lags:]
    residual = later - lagged @ least_squares(lagged[is_target], later[is_target])
    shocks = np.zeros_like(w)
    shocks[long_lags:] = np.where(is_target, residual, 0.0)

    # Regressors of each target bin: the last ``max_p`` values, then the last ``max_q`` shocks.
    first = max(max_p, max_q) + (long_lags if max_q else 0)
    first = min(first, w.size // 2)
    lagged_w = _lagged_values(w, max_p)[first - max_p :]
    lagged_shocks = _lagged_values(shocks, max_q)[first - max_q :]
    regressors = np.hstack([lagged_w, lagged_shocks])[target[first:]]
    y = w[first:][target[first:]]

    # Normal equations of all regressors. Each order is a regression on some of them.
    normal, moments = regressors.T @ regressors, regressors.T @ y
    normal += RIDGE * np.trace(normal) / max(1, len(normal)) * np.eye(len(normal))
    total_square, n = float(y @ y), max(1, y.size)
    fits = []
    for p in range(max_p + 1):
        for q in range(max_q + 1):
            columns = [*range(p), *range(max_p, max_p + q)]
            normal_of_order = normal[np.ix_(columns, columns)]
            parameters = np.asarray(np.linalg.solve(normal_of_order, moments[columns]), np.float64)
            if not is_regular(parameters, p):
                continue
            residual_square = total_square - float(parameters @ moments[columns])
            residual_square = max(residual_square, np.finfo(float).tiny)
            aic = n * float(np.log(residual_square / n)) + 2 * (p + q + 1)
            fits.append(FittedOrder((p, d, q), parameters, aic))
    return sorted(fits, key=lambda fit: fit.aic)


def _refine(fit: FittedOrder, w: FloatArray, target: BoolArray) -> FittedOrder:
    """Return the fit after Gauss-Newton steps that reduce the sum of squared shocks.

    ``w`` are the differenced values, and ``target`` is the mask of those that the sum includes.
    """
    p, d, q = fit.order
    if not q:  # without MA terms, the regression has the least sum already
        return fit
    parameters, first = fit.parameters, max(p, q)
    for _ in range(STEPS):
        ar, ma = parameters[:p], parameters[p:]
        unexplained = np.convolve(w, np.r_[1.0, -ar])[: w.size]  # w without its AR part
        # Lags of ``by_ar`` and ``by_ma`` are the negative derivatives of the shocks by the AR and
        # MA coefficients.
        by_ar, shocks = recursion(np.stack([w, unexplained]), ma)
        (by_ma,) = recursion(shocks[None], ma)
        ar_slopes = _lagged_values(by_ar, p)[first - p :]
        ma_slopes = _lagged_values(by_ma, q)[first - q :]
        rows = target[first:]
        step = least_squares(np.hstack([ar_slopes, ma_slopes])[rows], shocks[first:][rows])
        if not is_regular(parameters + step, p):
            break
        parameters = parameters + step
    return FittedOrder((p, d, q), parameters, fit.aic)


def _with_exact_aic(fit: FittedOrder, w: FloatArray) -> FittedOrder:
    """Return the fit with the AIC of the exact likelihood of ``w``, the differenced values.

    The variance of the shocks is that of maximum likelihood.
    """
    p, _, q = fit.order
    shocks, log_variances = exact_shocks(w, fit.parameters[:p], fit.parameters[p:])
    mean_square = max(float(np.mean(shocks**2)), np.finfo(float).tiny)
    minus_two_log_likelihood = w.size * (np.log(2 * np.pi * mean_square) + 1) + log_variances
    return FittedOrder(fit.order, fit.parameters, minus_two_log_likelihood + 2 * (p + q + 1))


def exact_shocks(w: FloatArray, ar: FloatArray, ma: FloatArray) -> tuple[FloatArray, float]:
    """Return the standardised one-step errors of ``w``, and the sum of their log variances.

    Variances are relative to that of the shocks of the process with the coefficients ``ar`` and
    ``ma``. From the value number max(p, q) on, the AR part is subtracted. The covariance of the
    result is a band matrix, so a banded Cholesky factor gives the exact likelihood (Ansley 1979,
    Biometrika 66; covariances as in Brockwell and Davis 1991, equation 5.3.5). statsmodels computes
    the same, but its import takes a second.
    """
    first = max(ar.size, ma.size)
    lags = range(first + 1)
    ar_polynomial = np.r_[1.0, -ar]
    theta = np.r_[1.0, ma, np.zeros(first - ma.size)]  # MA polynomial
    (psi,) = recursion(theta[None], -ar)  # weights of past shocks in a value

    # Autocovariances by lag: of the MA part (values without their AR part), of the MA part with
    # the values, and of the values, which solve the Yule-Walker equations.
    ma_covariance = np.array([theta[lag:] @ theta[: first + 1 - lag] for lag in lags])
    cross_covariance = np.array([theta[lag:] @ psi[: first + 1 - lag] for lag in lags])
    equations = np.zeros((first + 1, first + 1))
    for lag in lags:
        np.add.at(equations[lag], np.abs(lag - np.arange(ar.size + 1)), ar_polynomial)
    value_covariance = np.linalg.solve(equations, cross_covariance)

    # Covariance of the ``first`` values and the MA part after them: row ``lag`` is a diagonal.
    bands = np.repeat(ma_covariance[:, None], w.size, axis=1)
    bands[:, :first] = cross_covariance[:, None]
    for lag in lags:
        bands[lag, : first - lag] = value_covariance[lag]
    factor = scipy.linalg.cholesky_banded(bands, lower=True)
    without_ar = np.r_[w[:first], np.convolve(w, ar_polynomial)[first : w.size]]
    shocks, _ = scipy.linalg.lapack.dtbtrs(factor, without_ar[:, None], uplo="L")
    return shocks[:, 0], 2 * float(np.log(factor[0]).sum())


def is_regular(parameters: FloatArray, p: int) -> bool:
    """Return whether the inverse roots of the AR and MA polynomials are below their limits.

    ``parameters`` are ``p`` AR coefficients, then MA coefficients.
    """
    return _has_roots_within(LARGEST_AR_ROOT, [-phi for phi in parameters[:p].tolist()]) and (
        _has_roots_within(LARGEST_MA_ROOT, parameters[p:].tolist())
    )


def _has_roots_within(radius: float, coefficients: list[float]) -> bool:
    """Return whether all roots of ``z^n + c1 z^(n - 1) + ... + cn`` are within ``radius``.

    The recursion of Schur and Cohn tests the unit circle, so roots are divided by ``radius``.
    """
    scaled = np.array([c / radius**i for i, c in enumerate(coefficients, start=1)])
    while scaled.size:
        scaled, last = scaled[:-1], scaled[-1]
        if abs(last) >= 1:
            return False
        scaled = (scaled - last * scaled[::-1]) / (1 - last**2)  # the same, one degree lower
    return True


def _lagged_values(values: FloatArray, lags: int) -> FloatArray:
    """Return the ``lags`` values before each bin from bin ``lags`` on, the latest first.

    The shape is ``[bins - lags, lags]``.
    """
    if not lags:
        return np.empty((values.size, 0))
    return sliding_window_view(values[:-1], lags)[:, ::-1]
