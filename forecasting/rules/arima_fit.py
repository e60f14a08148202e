"""Fit an ARIMA to one series: d by a unit-root test, then p and q by AIC.

Candidates are estimated by Hannan and Rissanen's regressions (1982, Biometrika 69), in which the
residuals of a long autoregression stand for the shocks. Gauss-Newton steps make the best candidates
as good as maximum likelihood (Brockwell and Davis 1991, section 8.11). The AIC of these is that of
their exact likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view

from forecasting.arrays import BoolArray, FloatArray
from forecasting.harmonics import NormalEquations, carry_forward, least_squares
from forecasting.recursion import recursion

Order = tuple[int, int, int]  # (p, d, q)

FINALISTS = 4  # orders whose exact likelihood is computed
GAUSS_NEWTON_STEPS = 2  # Gauss-Newton steps
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
    dropped.
    """
    seen = ~np.isnan(values)
    residual = values[seen] - design[seen] @ least_squares(design[seen], values[seen])
    sums = np.cumsum(residual)
    # The KPSS statistic is sums @ sums / n^2 over the long-run variance.
    variance = max(_long_run_variance(residual), np.finfo(float).tiny)
    return int(sums @ sums > KPSS_CRITICAL * residual.size * variance)


def _long_run_variance(residual: FloatArray) -> float:
    """Return the long-run variance times the number of residuals, with Bartlett's weights.

    The bandwidth is the longer one of Kwiatkowski et al. 1992 (l12): the short one mistakes strong
    stationary autocorrelation for a unit root.
    """
    n = residual.size
    lags = min(int(np.ceil(12 * (n / 100) ** 0.25)), n - 1)
    variance = float(residual @ residual)
    for lag in range(1, lags + 1):
        bartlett_weight = 1 - lag / (lags + 1)
        variance += 2 * bartlett_weight * float(residual[lag:] @ residual[:-lag])
    return variance


def fit_orders(values: FloatArray, d: int, max_p: int, max_q: int) -> FittedOrder:
    """Return the fit with the least AIC over ``p <= max_p``, ``q <= max_q``.

    ``values [bins]`` are scaled so that they (``d = 0``) or their differences (``d = 1``) have a
    mean square of 1. Gaps have the value before them as regressors and are dropped as targets.
    Orders that are not stationary and invertible are skipped. (0, d, 0) always remains.
    """
    seen = ~np.isnan(values)
    differenced = np.diff(carry_forward(values), n=d)
    target = seen[d:] & seen[: values.size - d]
    finalists = _hannan_rissanen(differenced, target, d, max_p, max_q)[:FINALISTS]
    refined = [_with_exact_aic(_refine(fit, differenced, target), differenced) for fit in finalists]
    return min(refined, key=lambda fit: fit.aic)


def _hannan_rissanen(
    differenced: FloatArray, target: BoolArray, d: int, max_p: int, max_q: int
) -> list[FittedOrder]:
    """Return the fits of all orders up to ``max_p`` and ``max_q``, the least AIC first.

    The fits are regressions of ``differenced`` on its earlier values and on estimated shocks.
    ``differenced`` are the values differenced ``d`` times, and ``target`` is the mask of those to
    explain.
    """
    equations = _equations_with_shocks(differenced, target, max_p, max_q)
    fits = []
    for p, q in product(range(max_p + 1), range(max_q + 1)):
        columns = [*range(p), *range(max_p, max_p + q)]
        parameters, aic = _least_squares_fit(equations, columns)
        if is_regular(parameters, p):
            fits.append(FittedOrder((p, d, q), parameters, aic))
    return sorted(fits, key=lambda fit: fit.aic)


def _equations_with_shocks(
    differenced: FloatArray, target: BoolArray, max_p: int, max_q: int
) -> NormalEquations:
    """Return the regression of each target bin on the last ``max_p`` values and ``max_q`` shocks.

    Shocks are the residuals of a long autoregression (Hannan and Rissanen).
    """
    long_lags = min(round(10 * np.log10(differenced.size)), differenced.size // 4)
    shocks = _long_autoregression_residuals(differenced, target, long_lags)
    # The first bin with all regressors. No shock is known in the first ``long_lags`` bins.
    first = max(max_p, max_q) + (long_lags if max_q else 0)
    first = min(first, differenced.size // 2)
    lagged_values = _lagged_values(differenced, max_p)[first - max_p :]
    lagged_shocks = _lagged_values(shocks, max_q)[first - max_q :]
    is_target = target[first:]
    regressors = np.hstack([lagged_values, lagged_shocks])[is_target]
    return NormalEquations.of(regressors, differenced[first:][is_target])


def _long_autoregression_residuals(
    differenced: FloatArray, target: BoolArray, lags: int
) -> FloatArray:
    """Return the residuals of a regression on the ``lags`` last values, ``[bins]``.

    They are 0 in bins that are no ``target``, and in the first ``lags`` bins.
    """
    lagged, later, is_target = _lagged_values(differenced, lags), differenced[lags:], target[lags:]
    residual = later - lagged @ least_squares(lagged[is_target], later[is_target])
    shocks = np.zeros_like(differenced)
    shocks[lags:] = np.where(is_target, residual, 0.0)
    return shocks


def _least_squares_fit(equations: NormalEquations, columns: list[int]) -> tuple[FloatArray, float]:
    """Return the parameters of a regression on some ``columns``, and its AIC."""
    moments = equations.moments[columns]
    parameters = np.linalg.solve(equations.normal[np.ix_(columns, columns)], moments)
    residual_square = equations.total_square - float(parameters @ moments)
    residual_square = max(residual_square, np.finfo(float).tiny)
    n = equations.count
    aic = n * float(np.log(residual_square / n)) + 2 * (len(columns) + 1)
    return np.asarray(parameters, np.float64), aic


def _refine(fit: FittedOrder, differenced: FloatArray, target: BoolArray) -> FittedOrder:
    """Return the fit after Gauss-Newton steps that reduce the sum of squared shocks.

    ``differenced`` are the differenced values, and ``target`` is the mask of those that the sum
    includes.
    """
    p, _, q = fit.order
    if not q:  # without MA terms, the regression has the least sum already
        return fit
    parameters = fit.parameters
    for _ in range(GAUSS_NEWTON_STEPS):
        refined = parameters + _gauss_newton_step(parameters, p, differenced, target)
        if not is_regular(refined, p):
            break
        parameters = refined
    return replace(fit, parameters=parameters)


def _gauss_newton_step(
    parameters: FloatArray, p: int, differenced: FloatArray, target: BoolArray
) -> FloatArray:
    """Return the change of ``p`` AR and further MA coefficients that reduces the squared shocks."""
    ar, ma = parameters[:p], parameters[p:]
    values_without_ar = np.convolve(differenced, np.r_[1.0, -ar])[: differenced.size]
    # The negative derivative of a shock by the AR coefficient of lag i is ``by_ar``, i bins before.
    # That by an MA coefficient is ``by_ma``.
    by_ar, shocks = recursion(np.stack([differenced, values_without_ar]), ma)
    (by_ma,) = recursion(shocks[None], ma)
    first = max(p, ma.size)  # the first bin with all lags
    ar_slopes = _lagged_values(by_ar, p)[first - p :]
    ma_slopes = _lagged_values(by_ma, ma.size)[first - ma.size :]
    # The change solves the linear approximation: slopes @ change = shocks.
    is_target = target[first:]
    return least_squares(np.hstack([ar_slopes, ma_slopes])[is_target], shocks[first:][is_target])


def _with_exact_aic(fit: FittedOrder, differenced: FloatArray) -> FittedOrder:
    """Return the fit with the AIC of the exact likelihood of the ``differenced`` values.

    The variance of the shocks is that of maximum likelihood.
    """
    p, _, q = fit.order
    shocks, log_variances = exact_shocks(differenced, fit.parameters[:p], fit.parameters[p:])
    mean_square = max(float(np.mean(shocks**2)), np.finfo(float).tiny)
    minus_two_log_likelihood = (
        differenced.size * (np.log(2 * np.pi * mean_square) + 1) + log_variances
    )
    return FittedOrder(fit.order, fit.parameters, minus_two_log_likelihood + 2 * (p + q + 1))


def exact_shocks(
    differenced: FloatArray, ar: FloatArray, ma: FloatArray
) -> tuple[FloatArray, float]:
    """Return the standardised one-step errors of the values, and the sum of their log variances.

    Variances are relative to that of the shocks of the process with the coefficients ``ar`` and
    ``ma``. From the value number max(p, q) on, the AR part is subtracted. The covariance of the
    result is a band matrix, so a banded Cholesky factor gives the exact likelihood (Ansley 1979,
    Biometrika 66). statsmodels computes the same, but its import takes a second.
    """
    first = max(ar.size, ma.size)
    factor = scipy.linalg.cholesky_banded(_covariance_bands(differenced.size, ar, ma), lower=True)
    without_ar = np.r_[
        differenced[:first], np.convolve(differenced, np.r_[1.0, -ar])[first : differenced.size]
    ]
    shocks, _ = scipy.linalg.lapack.dtbtrs(factor, without_ar[:, None], uplo="L")
    return shocks[:, 0], 2 * float(np.log(factor[0]).sum())


def _covariance_bands(bins: int, ar: FloatArray, ma: FloatArray) -> FloatArray:
    """Return the covariance matrix of the first max(p, q) values and of the MA part after them.

    In the result ``[lags, bins]``, (lag, t) is the covariance of bins t and t + lag: each row is a
    diagonal of the matrix (Brockwell and Davis 1991, equation 5.3.5).
    """
    first = max(ar.size, ma.size)
    lags = range(first + 1)
    theta = np.r_[1.0, ma, np.zeros(first - ma.size)]  # MA polynomial
    (psi,) = recursion(theta[None], -ar)  # weights of past shocks in a value

    # Autocovariances by lag: of the MA part (values without their AR part), of the MA part with
    # the values, and of the values.
    ma_covariance = np.array([theta[lag:] @ theta[: first + 1 - lag] for lag in lags])
    cross_covariance = np.array([theta[lag:] @ psi[: first + 1 - lag] for lag in lags])
    value_covariance = _yule_walker(ar, cross_covariance)

    bands = np.repeat(ma_covariance[:, None], bins, axis=1)
    bands[:, :first] = cross_covariance[:, None]  # of one of the first values and a later MA part
    for lag in lags:  # both bins are among the first
        bands[lag, : first - lag] = value_covariance[lag]
    return bands


def _yule_walker(ar: FloatArray, cross_covariance: FloatArray) -> FloatArray:
    """Return the autocovariances of the values by lag, which solve the Yule-Walker equations."""
    lags = cross_covariance.size
    equations = np.zeros((lags, lags))
    for lag in range(lags):
        np.add.at(equations[lag], np.abs(lag - np.arange(ar.size + 1)), np.r_[1.0, -ar])
    return np.asarray(np.linalg.solve(equations, cross_covariance), np.float64)


def is_regular(parameters: FloatArray, p: int) -> bool:
    """Return whether the inverse roots of the AR and MA polynomials are below their limits.

    ``parameters`` are ``p`` AR coefficients, then MA coefficients.
    """
    ar, ma = parameters[:p], parameters[p:]
    if not _has_roots_within(LARGEST_AR_ROOT, (-ar).tolist()):
        return False
    return _has_roots_within(LARGEST_MA_ROOT, ma.tolist())


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
