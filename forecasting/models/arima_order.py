"""Choose the orders of an ARIMA model: d by a unit-root test, then p and q by AIC."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from statsmodels.tsa.arima.model import ARIMA
from statsmodels.tsa.stattools import kpss

from forecasting.arrays import FloatArray
from forecasting.models.state_space import StateSpace

Order = tuple[int, int, int]  # (p, d, q)


@dataclass(frozen=True, slots=True, eq=False)
class FittedOrder:
    """Maximum-likelihood fit of one order, with the state after each bin."""

    order: Order
    aic: float
    parameters: FloatArray  # [p + q] AR then MA coefficients
    model: StateSpace  # after the last bin
    means: FloatArray  # [bins + 1, m] of each bin's state, given the bins before it
    covs: FloatArray  # [bins + 1, m, m]

    def at(self, bins: int) -> StateSpace:
        """Return the model after the first ``bins`` bins."""
        return replace(self.model, mean=self.means[bins], cov=self.covs[bins])


def choose_differences(values: FloatArray) -> int:
    """Return 1 if the KPSS test rejects level stationarity at 5%, else 0; gaps are dropped.

    AIC cannot choose ``d``, since models of different ``d`` explain different data. The bandwidth
    is the longer one of Kwiatkowski et al. 1992 (l12): the short one mistakes strong stationary
    autocorrelation for a unit root.
    """
    observed = values[~np.isnan(values)]
    with _no_warnings():
        statistic, _, _, critical = kpss(
            observed, regression="c", nlags="legacy", result_object=False
        )
    return int(statistic > critical["5%"])


def fit_orders(values: FloatArray, d: int, max_p: int, max_q: int) -> FittedOrder:
    """Return the fit with the least AIC over ``p <= max_p``, ``q <= max_q``.

    ``values`` are standardised: deviations (``d = 0``) or differences (``d = 1``) of mean square
    1. NaN bins add nothing to the likelihood. Orders that do not converge are skipped. (0, d, 0)
    always remains, since it has nothing to estimate.
    """
    best = _white_noise_fit(values, d)
    for p in range(max_p + 1):
        for q in range(max_q + 1):
            candidate = _fit(values, (p, d, q)) if p + q else None
            if candidate is not None and candidate.aic < best.aic:
                best = candidate
    return best


def _white_noise_fit(values: FloatArray, d: int) -> FittedOrder:
    with _no_warnings():
        results = ARIMA(values, order=(0, d, 0), trend="n").filter([1.0])
    return _fitted_order(results, (0, d, 0))


def _fit(values: FloatArray, order: Order) -> FittedOrder | None:
    """Fit one order; return None if the optimiser did not converge."""
    with _no_warnings():
        try:
            model = ARIMA(values, order=order, trend="n", concentrate_scale=True)
            results = model.fit(cov_type="none", method_kwargs={"maxiter": 200})
        except (np.linalg.LinAlgError, ValueError):
            return None
    if not results.mle_retvals["converged"] or not np.isfinite(results.llf):
        return None
    return _fitted_order(results, order)


def _fitted_order(results: Any, order: Order) -> FittedOrder:
    p, _, q = order
    ssm = results.model.ssm
    selection = ssm["selection"]
    return FittedOrder(
        order=order,
        aic=-2 * float(results.llf) + 2 * (p + q + 1),  # + 1 for the variance
        parameters=np.array(results.params[: p + q]),
        model=StateSpace(
            transition=np.array(ssm["transition"]),
            design=np.array(ssm["design"][0]),
            shock_cov=results.scale * (selection @ ssm["state_cov"] @ selection.T),
            mean=np.array(results.predicted_state[:, -1]),
            cov=np.array(results.predicted_state_cov[:, :, -1]),
        ),
        means=np.array(results.predicted_state.T),
        covs=np.array(results.predicted_state_cov.transpose(2, 0, 1)),
    )


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress warnings, since an order that fits badly loses by its AIC anyway."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
