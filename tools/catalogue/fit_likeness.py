"""Fit how similar the errors of estimates are, for ``performance.estimate.measured_corrections``.

The variances maximize the marginal likelihood of the errors, with a weak pull to assumed values.
Each error comes from a fit without its model. A group (model, GPU type, engine, precision, mode)
gives at most ``EACH`` rows, so that the most measured one does not dominate.

The reach of a single row is the longest one with which hardly any group gets worse (conformal risk
control: Angelopoulos et al., arXiv 2208.02814). Each group is predicted by variances that were
fitted without its model.

The stated median and 9-of-10 are distances of rows from predictions by a few other rows of their
group, in posterior standard deviations. Errors have longer tails than a normal distribution.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.stats import binomtest

from simulation.arrays import FloatArray, TextArray
from simulation.performance.estimate.measured_corrections import (
    LEVELS,
    MAX_LOG_ERROR,
    ErrorCovariance,
    ErrorQuantiles,
    Traits,
    compare_traits,
    learn_corrections,
)
from tools.catalogue.error_table import LEAST

Rows = npt.NDArray[np.int64]

LIKENESS = tuple(field.name for field in fields(ErrorCovariance))
VARIANCES = LIKENESS[: LIKENESS.index("reach")]  # fitted by their likelihood
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
REACHES = 2.0 ** np.arange(3.0, -2.5, -0.5)
MORE_DRAWS = 12  # draws of a few rows that show whether they make a group worse
GAIN = 0.01  # median errors closer than this are the same
CHANCE = 0.05  # level of the test of draws, and largest share of groups that get worse


def fit_likeness(rows: Traits, log_errors: FloatArray) -> ErrorCovariance:
    """Return the variances of maximum marginal likelihood, and the reach of a single row.

    ``log_errors`` are ln(measured / estimated), ``[rows]``.
    """
    return replace(_fit_variances(rows, log_errors), reach=_fit_reach(rows, log_errors))


def _fit_variances(rows: Traits, log_errors: FloatArray) -> ErrorCovariance:
    """Return the variances of maximum marginal likelihood, with an unlimited reach."""
    sample = _sample(rows)
    part = rows.take(sample)
    common = compare_traits(part, part)
    bounded = MAX_LOG_ERROR * np.tanh(log_errors[sample] / MAX_LOG_ERROR)
    start = np.log([getattr(ASSUMED, name) for name in VARIANCES])

    def negative_log_posterior(logs: FloatArray) -> float:
        guess = ErrorCovariance(*np.exp(logs).tolist())
        covariance = guess.covariance(common)
        covariance[np.diag_indices(part.size)] += guess.noise_of(part)
        try:
            factor = cho_factor(covariance, lower=True)
        except np.linalg.LinAlgError:
            return 1e9
        # A normal density: the Mahalanobis distance, and the logarithm of the determinant.
        distance = 0.5 * float(bounded @ cho_solve(factor, bounded))
        log_determinant = float(np.log(np.diag(factor[0])).sum())
        return distance + log_determinant + 0.5 * float(((logs - start) ** 2).sum())

    optimum = minimize(negative_log_posterior, start, method="L-BFGS-B", options={"maxiter": STEPS})
    return ErrorCovariance(*np.exp(optimum.x).tolist())


def _fit_reach(rows: Traits, log_errors: FloatArray) -> float:
    """Return the longest of REACHES with which one row makes at most CHANCE of groups worse.

    One more group is counted as worse, so that the share also holds for a group not seen here. The
    same holds for all shorter reaches.
    """
    groups: dict[str, list[tuple[FloatArray, Few, FloatArray]]] = {}  # draws by group
    models = rows.labels["model"]
    for model in np.unique(models):
        part, errors = rows.take(models == model), log_errors[models == model]
        others = models != model
        variances = _fit_variances(rows.take(others), log_errors[others])
        for draw in from_few(variances, part, errors, 1, MORE_DRAWS):
            apart = np.linalg.norm(part.load[draw.row] - part.load[draw.learned], axis=1)
            name = str(part.labels["deployment"][draw.row[0]])
            groups.setdefault(name, []).append((errors[draw.row], draw, apart))
    longest = float(REACHES[-1])
    for reach in REACHES[::-1].tolist():
        worse = sum(
            clearly_worse([
                errors_of(measured, draw.shift * np.exp(-apart / reach))
                for measured, draw, apart in draws
            ])
            for draws in groups.values()
        )  # fmt: skip
        if (worse + 1) / (len(groups) + 1) > CHANCE:
            break
        longest = reach
    return longest


Errors = tuple[FloatArray, FloatArray]  # relative errors of rows without and with a correction


def errors_of(log_errors: FloatArray, shift: FloatArray) -> Errors:
    """Return |estimated / measured - 1| without a correction, and with that by ``shift``."""
    return np.abs(np.expm1(-log_errors)), np.abs(np.expm1(shift - log_errors))


def is_worse(draws: Sequence[Errors]) -> bool:
    """Return whether the median error of a group rises by more than GAIN over all ``draws``."""
    before, after = (np.concatenate(side) for side in zip(*draws, strict=True))
    return bool(np.median(after) > np.median(before) + GAIN)


def clearly_worse(draws: Sequence[Errors]) -> bool:
    """Return whether a group gets worse, and in more of the ``draws`` than by chance.

    By chance, as many draws would be better as worse (sign test at CHANCE).
    """
    rises = np.array([np.median(after) - np.median(before) for before, after in draws])
    worse, moved = int((rises > GAIN).sum()), int((np.abs(rises) > GAIN).sum())
    if not moved or not is_worse(draws):
        return False
    return float(binomtest(worse, moved, alternative="greater").pvalue) < CHANCE


def _sample(rows: Traits) -> Rows:
    """Return at most EACH random rows of each deployment."""
    random = np.random.default_rng(SEED)
    labels = rows.labels["deployment"]
    return np.concatenate(
        [random.permutation(np.flatnonzero(labels == name))[:EACH] for name in np.unique(labels)]
    )


@dataclass(frozen=True, slots=True, eq=False)
class Few:
    """Rows predicted from a few rows of their group, in one draw."""

    row: Rows  # indices
    learned: Rows  # indices of the few rows
    shift: FloatArray  # predicted ln(measured / estimated)
    spread: FloatArray  # posterior standard deviation


def from_few(
    likeness: ErrorCovariance, rows: Traits, log_errors: FloatArray, few: int, draws: int = DRAWS
) -> Iterator[Few]:
    """Predict the other rows of each larger group from ``few`` random rows, ``draws`` times."""
    random = np.random.default_rng(SEED)
    labels = rows.labels["deployment"]
    for name in np.unique(labels):
        members = np.flatnonzero(labels == name)
        for _ in range(draws if members.size > few else 0):
            drawn = random.permutation(members)
            learned, rest = drawn[:few], drawn[few:]
            corrections = learn_corrections(likeness, rows.take(learned), log_errors[learned])
            predicted = corrections.at(rows.take(rest))
            yield Few(rest, learned, predicted.shift, predicted.after)


def distance_quantiles(
    likeness: ErrorCovariance, rows: Traits, log_errors: FloatArray
) -> ErrorQuantiles:
    """Return median and 90th percentile of distances between rows and draws, by mode.

    Each group has the same number of draws. A distance is in posterior standard
    deviations. The quantiles are 1 for a mode without rows.
    """
    distances: tuple[list[FloatArray], list[FloatArray]] = ([], [])  # aggregated, disaggregated
    models: tuple[list[TextArray], list[TextArray]] = ([], [])
    for few in FEW:
        for draw in from_few(likeness, rows, log_errors, few, draws=2):
            mode = int(rows.split[draw.row[0]])
            distances[mode].append(np.abs(log_errors[draw.row] - draw.shift) / draw.spread)
            models[mode].append(rows.labels["model"][draw.row])
    agg, disagg = (
        _median_and_p90(np.concatenate(values), np.concatenate(names)) if values else (1.0, 1.0)
        for values, names in zip(distances, models, strict=True)
    )
    return ErrorQuantiles((agg[0], disagg[0]), (agg[1], disagg[1]))


def _median_and_p90(distances: FloatArray, models: TextArray) -> tuple[float, float]:
    """Return the median, and the largest 90th percentile without any single model (a jackknife).

    A few models decide the tail.
    """
    without_one = [distances[models != name] for name in np.unique(models)]
    parts = [distances, *(part for part in without_one if part.size >= LEAST)]
    return float(np.quantile(distances, 0.5)), max(float(np.quantile(part, 0.9)) for part in parts)
