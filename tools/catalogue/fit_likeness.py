"""Fit how similar the errors of estimates are, for ``performance.estimate.measured_corrections``.

The variances maximize the marginal likelihood of the errors, with a weak pull to assumed values.
Each error comes from a fit without its model. A group (model, GPU type, engine, precision, mode)
gives at most ``EACH`` rows, so that the most measured one does not dominate.

The stated median and 9-of-10 are distances of rows from predictions by a few other rows of their
group, in posterior standard deviations. Errors have longer tails than a normal distribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from simulation.arrays import FloatArray, TextArray
from simulation.performance.estimate.measured_corrections import (
    FARTHEST,
    LEVELS,
    ErrorCovariance,
    ErrorQuantiles,
    Traits,
    learn_corrections,
    shared,
)
from tools.catalogue.error_table import LEAST

Rows = npt.NDArray[np.int64]

LIKENESS = tuple(field.name for field in fields(ErrorCovariance))
EACH = 12  # rows of a group in the fit
SEED = 20260101
# Assumed before the fit: a tenth for every part, a fifth for the load and for the own deployment,
# over a factor of 4.5 in users and lengths.
ASSUMED = ErrorCovariance(**dict.fromkeys(LEVELS, 0.1),
                          load=0.2, users=1.5, isl=1.5, osl=1.5, gpus=1.5,
                   noise=0.1, split=1.5)  # fmt: skip
STEPS = 20
DRAWS = 6  # draws of a few rows from each group
FEW = (1, 2, 5, 10)  # rows


def fit_likeness(rows: Traits, off: FloatArray) -> ErrorCovariance:
    """Return the variances of maximum marginal likelihood.

    ``off`` holds logarithms of measured over estimated values.
    """
    chosen = _sample(rows)
    common, part = shared(rows.take(chosen), rows.take(chosen)), rows.take(chosen)
    bounded = FARTHEST * np.tanh(off[chosen] / FARTHEST)
    start = np.log([getattr(ASSUMED, name) for name in LIKENESS])

    def unlikely(x: FloatArray) -> float:
        guess = ErrorCovariance(*np.exp(x).tolist())
        covariance = guess.covariance(common)
        covariance[np.diag_indices(part.size)] += guess.noise_of(part)
        try:
            factor = cho_factor(covariance, lower=True)
        except np.linalg.LinAlgError:
            return 1e9
        fits = 0.5 * float(bounded @ cho_solve(factor, bounded))
        size = float(np.log(np.diag(factor[0])).sum())
        return fits + size + 0.5 * float(((x - start) ** 2).sum())

    optimum = minimize(unlikely, start, method="L-BFGS-B", options={"maxiter": STEPS})
    return ErrorCovariance(*np.exp(optimum.x).tolist())


def _sample(rows: Traits) -> Rows:
    random = np.random.default_rng(SEED)
    names = rows.labels["deployment"]
    chosen = [random.permutation(np.flatnonzero(names == n))[:EACH] for n in np.unique(names)]
    return np.concatenate(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Few:
    """Rows predicted from a few rows of their group, in one draw."""

    row: Rows
    shift: FloatArray  # logarithm
    spread: FloatArray  # posterior standard deviation


def from_few(
    likeness: ErrorCovariance, rows: Traits, off: FloatArray, few: int, draws: int = DRAWS
) -> Iterator[Few]:
    """Predict the other rows of each larger group from ``few`` random rows, ``draws`` times."""
    random = np.random.default_rng(SEED)
    names = rows.labels["deployment"]
    for name in np.unique(names):
        members = np.flatnonzero(names == name)
        for _ in range(draws if members.size > few else 0):
            drawn = random.permutation(members)
            learned, rest = drawn[:few], drawn[few:]
            moved = learn_corrections(likeness, rows.take(learned), off[learned]).at(
                rows.take(rest)
            )
            yield Few(rest, moved.shift, moved.after)


def stated(likeness: ErrorCovariance, rows: Traits, off: FloatArray) -> ErrorQuantiles:
    """Return the median and 90th percentile of the distances of rows, with equal draws per group.

    A few models decide the tail. The 9-of-10 is therefore the largest one without any single model
    (a jackknife).
    """
    away: tuple[list[FloatArray], list[FloatArray]] = ([], [])
    models: tuple[list[TextArray], list[TextArray]] = ([], [])
    for few in FEW:
        for draw in from_few(likeness, rows, off, few, draws=2):
            mode = int(rows.split[draw.row[0]])
            away[mode].append(np.abs(off[draw.row] - draw.shift) / draw.spread)
            models[mode].append(rows.labels["model"][draw.row])
    agg, disagg = (
        _half_and_nine(np.concatenate(values), np.concatenate(names)) if values else (1.0, 1.0)
        for values, names in zip(away, models, strict=True)
    )
    return ErrorQuantiles((agg[0], disagg[0]), (agg[1], disagg[1]))


def _half_and_nine(away: FloatArray, models: TextArray) -> tuple[float, float]:
    parts = [away, *(away[models != name] for name in np.unique(models))]
    nine = max(
        float(np.quantile(part, 0.9)) for part in parts if part is away or part.size >= LEAST
    )
    return float(np.quantile(away, 0.5)), nine
