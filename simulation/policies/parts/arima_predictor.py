"""Forecast the next interval by ARIMA, as NVIDIA's Planner does with ``pmdarima``.

The Planner chooses the order (p, d, q) once, on the first five values. So p and q are at most 1,
and d is 0: the KPSS statistic of five values is at most 0.4, below its critical value of 0.463. At
each later value, the parameters change by a few steps of a search for the largest likelihood. Its
variables and limits are those of ``statsmodels``, since a search that ends early depends on them.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import expm1, inf, pi

import numpy as np
from threadpoolctl import threadpool_limits

from simulation.arrays import FloatArray
from simulation.compiler import cached_kernel

MIN_VALUES = 5  # values before the first fit
SEARCH = {"maxiter": 5, "maxcor": 12, "eps": 1e-5, "gtol": 1e-8, "ftol": 2e-14}
LARGEST_ROOT = 0.99  # inverse root of the last term: beyond it, an order is not chosen
LARGEST_COEFFICIENT = 1 - 1e-9  # bound of phi and theta
SMALLEST_VARIANCE = 1e-12


@cached_kernel
def _arma(values: FloatArray, phi: float, theta: float) -> tuple[float, float, float]:
    """Return two sums over ``values`` for the likelihood of an ARMA(1, 1), and the next value.

    The sums are of the squared forecast errors over their variance, and of the logarithms of these
    variances. The mean is 0. The innovations algorithm is used (Brockwell and Davis 1991, 5.3).
    """
    # Variance of the error of the next forecast, over that of the shocks.
    variance = (1.0 + 2.0 * phi * theta + theta * theta) / (1.0 - phi * phi)
    squares, logs, expected = 0.0, 0.0, 0.0
    for value in values:
        error = value - expected
        squares += error * error / variance
        logs += np.log(variance)
        expected = phi * value + theta * error / variance
        variance = 1.0 + theta * theta - theta * theta / variance
    return squares, logs, expected


def _negative_log_likelihood(values: FloatArray, parameters: FloatArray) -> float:
    """Return the negative log likelihood per value, which the search minimizes."""
    intercept, phi, theta, variance = parameters.tolist()
    squares, logs, _ = _arma(values - intercept / (1 - phi), phi, theta)
    terms = logs + squares / variance
    return 0.5 * float(np.log(2 * pi * variance) + terms / len(values))


@dataclass(frozen=True, slots=True)
class _Model:
    """An order with its parameters ``[4]``: intercept, phi, theta and variance of the shocks."""

    free: tuple[bool, bool, bool, bool]  # which parameters the order has; the others are 0
    parameters: FloatArray
    aic: float

    def refit(self, values: FloatArray) -> "_Model":
        """Return the model after a few search steps to the largest likelihood of ``values``."""
        from scipy.optimize import minimize  # slow to import

        free = list(self.free)

        def parameters(variables: FloatArray) -> FloatArray:
            """Return the parameters for the unbounded variables of the free ones."""
            all_variables = np.zeros(4)  # intercept, AR and MA term, standard deviation
            all_variables[free] = variables
            intercept, *terms, deviation = all_variables
            phi, theta = LARGEST_COEFFICIENT * np.array(terms) / np.hypot(1, terms)
            return np.array([intercept, phi, theta, max(deviation**2, SMALLEST_VARIANCE)])

        # The search starts at the variables of the present parameters.
        phi_theta = self.parameters[1:3] / LARGEST_COEFFICIENT
        unbounded = phi_theta / np.sqrt(1 - phi_theta**2)
        start = np.array([self.parameters[0], *unbounded, np.sqrt(self.parameters[3])])
        optimum = minimize(
            lambda variables: _negative_log_likelihood(values, parameters(variables)),
            start[free],
            method="L-BFGS-B",
            options=SEARCH,
        )
        return replace(self, parameters=parameters(optimum.x))

    def next(self, values: FloatArray) -> float:
        """Return the forecast of the value after ``values``."""
        intercept, phi, theta, _ = self.parameters.tolist()
        mean = intercept / (1 - phi)
        _, _, next_value = _arma(values - mean, phi, theta)
        return float(mean + next_value)


def _fit_order(values: FloatArray, intercept: bool, has_ar: bool, has_ma: bool) -> _Model:
    """Return the maximum-likelihood model with or without an intercept, an AR and an MA term.

    Its ``aic`` is infinite, so that it is never chosen, if its last coefficient is too close to 1.
    """
    from statsmodels.tsa.statespace.sarimax import SARIMAX  # slow to import

    # On busy cores, the threads of BLAS wait for each other for seconds.
    with threadpool_limits(limits=1, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # five values say little, which the Planner accepts
        model = SARIMAX(values, order=(has_ar, 0, has_ma), trend="c" if intercept else None)
        fit = model.fit(disp=0, maxiter=50, method="lbfgs", cov_type="none")
    free, parameters = (intercept, has_ar, has_ma, True), np.zeros(4)
    parameters[list(free)] = fit.params  # the others stay 0
    _, phi, theta, _ = parameters.tolist()
    last_coefficient = theta if has_ma else phi
    aic = inf if abs(last_coefficient) > LARGEST_ROOT else float(fit.aic)
    return _Model(free, parameters, aic)


def _best_model(values: FloatArray) -> _Model:
    """Return the model of least AIC among those that ``auto_arima`` tries."""

    def fitted_orders(intercept: bool) -> Iterator[_Model]:
        """Yield the fits with and without an AR term and an MA term."""
        for has_ar, has_ma in product((False, True), repeat=2):
            yield _fit_order(values, intercept, has_ar, has_ma)

    best = min(fitted_orders(True), key=lambda model: model.aic)
    _, has_ar, has_ma, _ = best.free
    if _fit_order(values, False, has_ar, has_ma).aic < best.aic:
        return min(fitted_orders(False), key=lambda model: model.aic)
    return best


class ArimaPredictor:
    """The Planner's ARIMA forecast of requests per interval, one interval ahead."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._model: _Model | None = None
        self._fits_logarithms = False  # whether the model is of log(1 + value)

    def add(self, value: float) -> None:
        """Append an interval's value; skip zeros before the first request."""
        if value or self._values:
            self._values.append(value)

    def predict(self) -> float:
        """Return the forecast of the next interval; the last value if there are too few values."""
        if len(self._values) < MIN_VALUES or len(set(self._values)) == 1:
            return self._values[-1] if self._values else 0.0
        values = np.array(self._values)
        if self._model is None:
            self._model = _best_model(values)
            _, has_ar, has_ma, _ = self._model.free
            # The order (0, 0, 0) follows nothing, so logarithms are tried.
            self._fits_logarithms = not has_ar and not has_ma
            if self._fits_logarithms:
                self._model = _best_model(np.log1p(values))
        else:
            self._model = self._model.refit(np.log1p(values) if self._fits_logarithms else values)
        if self._fits_logarithms:
            return max(0.0, expm1(self._model.next(np.log1p(values))))
        return max(0.0, self._model.next(values))
