"""Correct an estimate by the user's measurements of the same and of similar deployments.

Model. The error of an estimate is ln(measured / estimated). It is a sum of independent normal
components with mean 0. Deployments share the component of each trait that they have in common:
engine, engine version, GPU type, model, and mode (aggregated or disaggregated). More components
belong to one deployment (model, GPU type, engine, precision and mode), one release of it, and one
arrangement of it. The last component changes slowly with the load and the lengths of a deployment.
This is a hierarchical model with shrinkage, and so a Gaussian process (Rasmussen and Williams,
*Gaussian Processes for Machine Learning*, 2006, sections 2.2, 2.3 and 4.2). Measured rows shift an
estimate only by the components that they share with it. Outlying rows weigh less: the noise has a
t distribution, fitted by reweighting (Lange, Little and Taylor 1989).

Belief. The model may be wrong for the user's deployment. So its leave-one-out errors are compared
with those of no shift. With double exponential errors at their likeliest scale, the likelihood of a
choice is its mean error to the power -n for n rows. Errors have long tails, so half a shift would
be wrong both for rows that need it and for the others. A shift is applied by as much as it is more
probable than no shift. The stated error includes the variance between the two. Fewer than
MIN_JUDGED_ROWS rows of a deployment cannot be judged, so they only move estimates of their own
arrangement. They move them by less the further the load is, since a single row says little about
other loads.

Stated errors. No single row narrows a stated error: it is computed without the row that would
narrow it most. At the load of a row, the stated error is at least that row's remaining error. If
two rows at one load contradict each other (``contradictions``), the stated error stays as it was
without the rows. A row of a defective measurement has more noise, by its ``trust``.

``tools/catalogue/fit_likeness.py`` fits the variances. It uses deployments of models that the fit
of the estimates had not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray, TextArray
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.specs import WIDTHS, ModelShape

Which = slice | BoolArray | IntArray

LEVELS = ("engine", "version", "gpu", "model", "mode", "deployment", "release", "arrangement")
LOADS = ("users", "isl", "osl", "gpus")  # distances between loads use their logarithms
MAX_LOG_ERROR = 1.5  # limit of a row's log error; larger errors saturate here
T_FREEDOM = 4.0  # degrees of freedom of the t distribution of the noise
REWEIGHTING_ROUNDS = 4  # of reweighting
BATCH_ROWS = 1024  # deployments per block, which limits the memory of the comparison
MIN_JUDGED_ROWS = 3  # smallest number of rows of a deployment for the leave-one-out check
CONTRADICTION = 3.0  # two rows contradict beyond this many standard deviations of their noise
SAME_LOAD = 0.1  # loads and lengths are the same within this difference of logarithms
# Relative errors: spread of a repeated measurement, and the cap of one row's error.
REPEAT_ERROR, ERROR_CAP = (0.02, 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """Properties of ``n`` deployments by which measured and estimated ones are compared."""

    labels: Mapping[str, TextArray]  # by LEVELS, [n]; "" equals no label
    load: FloatArray  # [n, 4], logarithms by LOADS
    split: BoolArray  # [n], True if disaggregated

    @property
    def size(self) -> int:
        return self.split.size

    def take(self, which: Which) -> Traits:
        """Return the traits of the deployments at a mask, a slice or indices."""
        labels = {name: values[which] for name, values in self.labels.items()}
        return Traits(labels, self.load[which], self.split[which])


def traits_of(deployments: Sequence[Deployment]) -> Traits:
    """Return the traits of deployments as given, before any default fills them in."""
    labels = [_labels(deployment) for deployment in deployments]
    loads = []
    for deployment in deployments:
        gpus = deployment.decode.gpus * (deployment.decode_workers or 1.0)
        loads.append((deployment.concurrency, deployment.isl, deployment.osl, gpus))
    return Traits(
        {level: np.array([by_level[level] for by_level in labels], np.str_) for level in LEVELS},
        load=np.log(np.array(loads, np.float64).reshape(len(deployments), len(LOADS))),
        split=np.array([deployment.prefill is not None for deployment in deployments], np.bool_),
    )


def layer_sizes_key(shape: ModelShape) -> str:
    """Return one name for all model releases with the same layer sizes as ``shape``."""
    sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.intermediate)
    return "-".join(map(str, (*sizes, shape.experts, shape.expert_intermediate)))


def _labels(deployment: Deployment) -> dict[str, str]:
    """Return the label of a deployment at each of LEVELS; equal labels mean a common trait."""
    mode = "disagg" if deployment.prefill else "agg"
    weights = deployment.decode.weights
    version = f"{deployment.engine} {deployment.version}" if deployment.version else ""
    model = layer_sizes_key(deployment.shape)
    deployment_name = "|".join((model, deployment.gpu.name, deployment.engine, weights, mode))
    widths = []
    for arrangement in (deployment.decode, deployment.prefill):
        if arrangement is not None:
            widths.append("-".join(str(getattr(arrangement, width)) for width in WIDTHS))
    return {
        "engine": deployment.engine,
        "version": version,
        "gpu": deployment.gpu.name,
        "model": model,
        "mode": mode,
        "deployment": deployment_name,
        "release": f"{deployment_name}|{version}" if version else "",
        "arrangement": f"{deployment_name}|{'|'.join(widths)}",
    }


@dataclass(frozen=True, slots=True, eq=False)
class SharedTraits:
    """Common traits of each pair of one of ``a`` deployments and one of ``b`` deployments."""

    same: tuple[BoolArray, ...]  # by LEVELS, [a, b] each
    load_distances: FloatArray  # [a, b, 4], differences of logarithms by LOADS
    disaggregated: FloatArray  # [a, b], number of disaggregated deployments in the pair

    @property
    def same_arrangement(self) -> BoolArray:
        """Return the mask of pairs of one deployment with the same arrangement, ``[a, b]``."""
        return self.same[LEVELS.index("arrangement")]

    @property
    def same_load(self) -> BoolArray:
        """Return the mask of pairs with the same arrangement, load and lengths, ``[a, b]``."""
        return self.same_arrangement & (self.load_distances < SAME_LOAD).all(axis=2)


def compare_traits(a: Traits, b: Traits) -> SharedTraits:
    """Compare every deployment of ``a`` with every deployment of ``b``.

    Returns for each pair the labels that are equal, the distance of loads, and how many of the two
    have separate prefill and decode.
    """
    return SharedTraits(
        same=tuple(_equal_labels(a.labels[name], b.labels[name]) for name in LEVELS),
        load_distances=np.abs(a.load[:, None] - b.load[None]),
        disaggregated=a.split[:, None].astype(np.float64) + b.split[None],
    )


def _equal_labels(a: TextArray, b: TextArray) -> BoolArray:
    """Return the mask of pairs with equal labels, ``[a, b]``. "" equals no label."""
    names, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
    codes_a, codes_b = codes[: a.size], codes[a.size :]
    return np.asarray((codes_a[:, None] == codes_b[None]) & (names[codes_a] != "")[:, None])


@dataclass(frozen=True, slots=True)
class ErrorCovariance:
    """Standard deviations of the components of ln(measured / estimated), and length scales."""

    engine: float
    version: float
    gpu: float
    model: float
    mode: float
    deployment: float
    release: float
    arrangement: float
    load: float  # of the component that changes with the load
    users: float  # length scale of that component in ln(users); the next three are alike
    isl: float
    osl: float
    gpus: float
    noise: float  # of a row, shared with no other
    split: float  # factor on all standard deviations of disaggregated deployments
    # Distance of loads, in logarithms, over which the effect of rows that cannot be judged falls to
    # 1 / e
    reach: float = np.inf

    def covariance(self, pairs: SharedTraits) -> FloatArray:
        """Return the prior covariance ``[a, b]`` of the log errors of pairs, without noise."""
        lengths = np.array([self.users, self.isl, self.osl, self.gpus])
        # Euclidean distance of the loads of each pair, each of LOADS in its own length scale
        distance = np.sqrt(3.0 * np.einsum("ijk,k->ij", pairs.load_distances**2, lengths**-2.0))
        smooth = (1.0 + distance) * np.exp(-distance)  # Matern, 3/2
        total = self.load**2 * smooth * pairs.same[LEVELS.index("deployment")]
        for name, same in zip(LEVELS, pairs.same, strict=True):
            total += getattr(self, name) ** 2 * same
        return np.asarray(total * self.split**pairs.disaggregated)

    def variance(self, traits: Traits) -> FloatArray:
        """Return the prior variance of each deployment's error, noise included, ``[n]``."""
        shared = sum(getattr(self, name) ** 2 * (traits.labels[name] != "") for name in LEVELS)
        scale = np.where(traits.split, self.split, 1.0) ** 2
        return np.asarray((shared + self.load**2 + self.noise**2) * scale)

    def noise_of(self, traits: Traits) -> FloatArray:
        """Return the variance of each row's noise, ``[n]``."""
        return np.asarray(np.where(traits.split, self.split, 1.0) ** 2 * self.noise**2)


@dataclass(frozen=True, slots=True)
class ErrorQuantiles:
    """Multiples of the standard deviation of a log error that covered 50% and 90% of measurements.

    They are measured and not taken from the normal distribution, since errors have longer tails.
    Each pair is for aggregated and disaggregated deployments.
    """

    half: tuple[float, float]
    nine: tuple[float, float]

    def errors(self, split: BoolArray, spread: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the relative errors that cover 50% and 90% of measurements, ``[n]`` each.

        ``split [n]`` marks disaggregated deployments. ``spread [n]`` are posterior standard
        deviations of the log error.
        """
        mode = split.astype(np.int64)
        half, nine = (np.array(values)[mode] for values in (self.half, self.nine))
        return np.expm1(half * spread), np.expm1(nine * spread)

    def of_shift(self, split: BoolArray, shift: Shift) -> tuple[FloatArray, FloatArray]:
        """Return the relative errors to state for corrected estimates: for 50% and 90% of them.

        Each is at least the error that remains at the user's own rows of the same load. ``split
        [n]`` marks disaggregated deployments. ``shift`` has the corrections of the ``n`` estimates.
        """
        half, nine = self.errors(split, shift.stated)
        own_rows_error = np.expm1(shift.residual)
        return np.maximum(half, own_rows_error), np.maximum(nine, own_rows_error)


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """Corrections of ``n`` estimates by measured rows, in logarithms, ``[n]`` each."""

    shift: FloatArray  # add to the logarithm of the estimate
    before: FloatArray  # standard deviation of ln(measured / estimated) without the rows
    after: FloatArray  # the same with the rows
    stated: FloatArray  # the same without the row that narrows it most
    residual: FloatArray  # largest log error that remains of a row at this load; 0 without one


@dataclass(frozen=True, slots=True, eq=False)
class LearnedCorrections:
    """Measured rows of one quantity, prepared to correct any estimate of it."""

    likeness: ErrorCovariance
    rows: Traits
    log_errors: FloatArray  # ln(measured / estimated), [rows]
    inverse: FloatArray  # of the rows' covariance, noise included, [rows, rows]
    belief: FloatArray  # probability that the shift of a row's deployment is right, [rows]
    contradicted: tuple[str, ...]  # deployments with rows that contradict each other
    sound: Traits  # the measured rows without a defect
    errors: FloatArray  # ln(measured / estimated) of those

    @property
    def alone(self) -> BoolArray:
        """Return the mask of rows whose deployment has too few rows to judge them, ``[rows]``."""
        labels = self.rows.labels["deployment"]
        names, counts = np.unique(labels, return_counts=True)
        return np.isin(labels, names[counts < MIN_JUDGED_ROWS])

    @property
    def weight(self) -> FloatArray:
        """Return the share of each row's correction that estimates move by, 0 to 1, ``[rows]``.

        The share is ``2 * belief - 1``, at least 0: how much more probable the correction of the
        row's deployment is than no correction.
        """
        return np.maximum(2.0 * self.belief - 1.0, 0.0)

    @property
    def outlier_weights(self) -> dict[str, float]:
        """Return the weights below 0.5, by deployment (label of ``_labels``)."""
        doubtful = self.weight < 0.5
        names = self.rows.labels["deployment"][doubtful].tolist()
        return dict(zip(names, self.weight[doubtful].tolist(), strict=True))

    def at(self, traits: Traits) -> Shift:
        """Return the corrections of the estimates of ``traits``, with the errors before and after.

        A correction is a sum over measured rows, weighted by their likeness (kriging). No single
        row decides the stated error: it is the error that remains without the most helpful row.
        """
        size = traits.size
        blocks = [slice(start, start + BATCH_ROWS) for start in range(0, max(size, 1), BATCH_ROWS)]
        shifts = [self._at(traits.take(block)) for block in blocks]
        names = [correction.name for correction in fields(Shift)]
        return Shift(*(np.concatenate([getattr(s, name) for s in shifts]) for name in names))

    def _at(self, traits: Traits) -> Shift:
        """Return the corrections of one block of ``n`` estimates, see ``at``."""
        # 1. The shift of each estimate. The share of a row that applies is 1, except for rows that
        # cannot be judged: they apply to their own arrangement, less at a distant load.
        pairs = compare_traits(traits, self.rows)
        covariance = self.likeness.covariance(pairs)  # [n, rows], as the next five
        nearness = np.exp(-np.linalg.norm(pairs.load_distances, axis=2) / self.likeness.reach)
        share = np.where(self.alone, pairs.same_arrangement * nearness, 1.0)
        full_weights = covariance @ self.inverse  # of rows that apply wholly
        weights = share * full_weights
        shift = weights @ (self.weight * self.log_errors)  # [n]

        # 2. The variance that all rows explain, the diagonal of weights times covariance, and the
        # variance that they explain without the most helpful row, in closed form.
        explaining = self.belief * share * (2.0 - share) * full_weights
        explained = np.einsum("ij,ij->i", explaining, covariance)
        by_row = explaining * full_weights / np.diag(self.inverse)
        by_others = explained - by_row.max(axis=1, initial=0.0)
        if self.sound.size < 2:  # a row with a defect does not narrow an error either
            by_others = np.zeros(traits.size)

        # 3. The variances that remain, [2, n]: never below the noise of a row, nor above the
        # variance without rows. Rows that contradict each other leave it unchanged.
        before = self.likeness.variance(traits)
        noise, doubt = self.likeness.noise_of(traits), self._doubt(weights, shift)
        explained_by = np.stack([explained, by_others])
        variances = np.minimum(np.maximum(before - explained_by, noise) + doubt, before)
        contradicted = np.isin(traits.labels["deployment"], self.contradicted)
        after, stated = np.sqrt(np.where(contradicted, before, variances))
        return Shift(shift, np.sqrt(before), after, stated, self._residual(traits, shift))

    def _doubt(self, weights: FloatArray, shift: FloatArray) -> FloatArray:
        """Return the mean square distance of ``shift [n]`` from the whole shift, and from none.

        ``weights [n, rows]`` are those of the rows.
        """
        likely = weights @ (self.belief * self.log_errors)
        mean_square = (weights @ (np.sqrt(self.belief) * self.log_errors)) ** 2
        return np.asarray(np.maximum(mean_square + shift * (shift - 2.0 * likely), 0.0))

    def _residual(self, traits: Traits, shift: FloatArray) -> FloatArray:
        """Return the largest error that remains of a sound row at the same load, ``[n]``."""
        remaining = np.abs(self.errors[None] - shift[:, None])
        at_load = np.where(compare_traits(traits, self.sound).same_load, remaining, 0.0)
        return np.asarray(at_load.max(axis=1, initial=0.0))

    def leave_one_out_errors(self) -> FloatArray:
        """Return the log error of each row as predicted from the other rows, ``[rows]``."""
        return self.weight * _leave_one_out_prediction(self.inverse, self.log_errors)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Corrections of TBT and of TTFT from measured rows."""

    tbt: LearnedCorrections
    ttft: LearnedCorrections


def learn_corrections(
    likeness: ErrorCovariance,
    rows: Traits,
    log_errors: FloatArray,
    judged: bool = True,
    trust: FloatArray | None = None,
) -> LearnedCorrections:
    """Return corrections from ``rows``; ``log_errors [rows]`` are ln(measured / estimated).

    ``likeness`` states how far the errors of two deployments agree. The belief in a row is the
    probability that the correction helps its deployment. Rows with a ``trust`` of 1 are sound.

    The variance of a row's noise is divided by ``trust [rows]``, above 0 and at most 1; default 1.
    If not ``judged``, no row is checked and the whole correction is applied. Use that to plan
    measurements before their values are known.
    """
    # Saturate smoothly, so that one wrong row cannot dominate the linear solve.
    bounded = MAX_LOG_ERROR * np.tanh(log_errors / MAX_LOG_ERROR)
    trust = np.ones(rows.size) if trust is None else trust
    inverse = _inverse(likeness, rows, bounded, trust)
    sound, errors = rows.take(trust == 1.0), log_errors[trust == 1.0]
    if not judged:
        belief, errors = np.ones(rows.size), np.zeros(sound.size)
        return LearnedCorrections(likeness, rows, bounded, inverse, belief, (), sound, errors)
    belief = _beliefs(rows, inverse, bounded, trust)
    pairs = contradictions(likeness, sound, errors)
    contradicted = tuple(sorted({str(sound.labels["deployment"][i]) for i, _ in pairs}))
    return LearnedCorrections(likeness, rows, bounded, inverse, belief, contradicted, sound, errors)


def _beliefs(
    rows: Traits, inverse: FloatArray, log_errors: FloatArray, trust: FloatArray
) -> FloatArray:
    """Return the probability that the shift of each row's deployment is right; 1 for few rows."""
    belief, names = np.ones(rows.size), rows.labels["deployment"]
    predicted = _leave_one_out_prediction(inverse, log_errors)
    for name in np.unique(names):
        own = names == name
        if own.sum() >= MIN_JUDGED_ROWS:
            belief[own] = _shift_probability(predicted[own], log_errors[own], trust[own])
    return belief


def _leave_one_out_prediction(inverse: FloatArray, log_errors: FloatArray) -> FloatArray:
    """Predict the log error of each row from the other rows, ``[rows]``.

    ``inverse [rows, rows]`` is the inverse of their covariance (Rasmussen and Williams, eq. 5.12).
    """
    return np.asarray(log_errors - (inverse @ log_errors) / np.diag(inverse))


def _shift_probability(predicted: FloatArray, log_errors: FloatArray, trust: FloatArray) -> float:
    """Return the probability that a correction is better than none, from leave-one-out errors.

    ``predicted [rows]`` are predictions of ``log_errors [rows]``. ``trust [rows]`` weighs the rows.
    """
    remaining = np.array([predicted - log_errors, -log_errors])  # with and without the correction
    errors = np.minimum(np.abs(np.expm1(remaining)), ERROR_CAP)
    shifted, unshifted = REPEAT_ERROR + errors @ trust / trust.sum()
    # The likelihood is the mean error to the power -n, with rows counted by their trust.
    return float(1.0 / (1.0 + (shifted / unshifted) ** trust.sum()))


def contradictions(
    likeness: ErrorCovariance, rows: Traits, log_errors: FloatArray
) -> list[tuple[int, int]]:
    """Return the index pairs of rows that contradict each other, at most one per deployment.

    Both rows have the same arrangement, load and lengths. Their ``log_errors [rows]`` differ by
    more than CONTRADICTION standard deviations of their noise. Of several, the widest pair counts.
    """
    noise = np.sqrt(likeness.noise_of(rows))
    difference = np.abs(log_errors[:, None] - log_errors[None])
    too_far = difference > CONTRADICTION * np.hypot(noise[:, None], noise[None])
    contradict = too_far & compare_traits(rows, rows).same_load
    names, pairs = rows.labels["deployment"], []
    for name in np.unique(names[contradict.any(axis=1)]):
        of_name = np.where(contradict & (names == name), difference, 0.0)  # [rows, rows]
        pairs.append(divmod(int(of_name.argmax()), rows.size))  # the flat index as (row, column)
    return pairs


def _inverse(
    likeness: ErrorCovariance, rows: Traits, log_errors: FloatArray, trust: FloatArray
) -> FloatArray:
    """Return the inverse of the rows' covariance, with more noise for outliers, ``[rows, rows]``.

    The noise has a t distribution. It is fitted in rounds: each row's noise variance is divided by
    its weight, and the weight falls with the residual that the last round left (EM algorithm).
    """
    covariance = likeness.covariance(compare_traits(rows, rows))
    noise = likeness.noise_of(rows) / trust
    weight = np.ones(rows.size)
    inverse: FloatArray = np.zeros((rows.size, rows.size))
    for _ in range(REWEIGHTING_ROUNDS):
        row_noise = noise / weight
        inverse = np.asarray(np.linalg.inv(covariance + np.diag(row_noise)))
        # Mean and variance of each row's noise, given all rows. Larger ones weigh the row down.
        residual = row_noise * (inverse @ log_errors)
        residual_variance = np.maximum(row_noise - row_noise**2 * np.diag(inverse), 0.0)
        weight = (T_FREEDOM + 1.0) / (T_FREEDOM + (residual**2 + residual_variance) / noise)
    return inverse
