"""Correct an estimate by the user's measurements of the same and of similar deployments.

Model. The error of an estimate is ln(measured / estimated). It is a sum of independent normal
components with mean 0. Deployments share the component of each trait that they have in common:
engine, engine version, GPU type, model, and mode (aggregated or disaggregated). More components
belong to one deployment (model, GPU type, engine, precision and mode), one release of it, and one
arrangement of it. The last component changes slowly with the load and the lengths of a deployment.
This is a hierarchical model with shrinkage, and so a Gaussian process (Rasmussen and Williams,
*Gaussian Processes for Machine Learning*, 2006, sections 2.2 and 2.3). Measured rows shift an
estimate only by the components that they share with it. Outlying rows weigh less: the noise has a
t distribution, fitted by reweighting (Lange, Little and Taylor 1989).

Two views. The fitted correlations between deployments may be wrong for the user's deployments. So
the rows are used in two views. The first has the fitted correlations. In the second, a row informs
only its own deployment at similar lengths.

Weights. Leave-one-out errors of a deployment's rows decide between the views, and between the
fractions 0.25 to 1 of the predicted shift and no shift. With double exponential errors at their
likeliest scale, the likelihood of a choice is its mean error to the power -n for n rows. The
result is the mean over the choices with these weights. The stated error includes their variance.

Exceptions. A deployment's rows are dropped if no shift has the smallest mean error and that error
exceeds the spread of repeated measurements. If two rows at one load contradict each other
(``contradictions``), the stated error stays as it was without the rows.

Stated errors. No single row narrows a stated error: it is computed without the row that would
narrow it most. At the load of a row, the stated error is at least that row's remaining error. A
row of a defective measurement has more noise, by its ``trust``.

``tools/catalogue/fit_likeness.py`` fits the variances. It uses deployments of models that the fit
of the estimates had not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray, TextArray
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.specs import Arrangement, ModelShape

Which = slice | BoolArray | IntArray

LEVELS = ("engine", "version", "gpu", "model", "mode", "deployment", "release", "arrangement")
LOADS = ("users", "isl", "osl", "gpus")  # distances between loads use their logarithms
FARTHEST = 1.5  # limit of a row's log error; larger errors saturate here
FREEDOM = 4.0  # degrees of freedom of the t distribution of the noise
ROUNDS = 4  # of reweighting
BATCH_ROWS = 1024  # deployments per block, which limits the memory of the comparison
JUDGED = 3  # smallest number of rows of a deployment for the leave-one-out check
PARTS = np.linspace(0.25, 1.0, 4)  # fractions of the predicted shift that are tried
NOTHING = 0.5  # prior probability that no shift is right
VIEWS = (False, True)  # value of ``View.alone``: fitted correlations, own deployment only
# Length scale of ln(isl) and ln(osl) in the view of the own deployment. With a factor of e, prompts
# of 1,024 and 8,192 tokens inform each other little.
LIKE = 1.0
CONTRADICTION = 3.0  # two rows contradict beyond this many standard deviations of their noise
SAME_LOAD = 0.1  # loads and lengths are the same within this difference of logarithms
# Relative errors: spread of a repeated measurement, and the cap of one row's error.
REPEATED, GROSS = (0.02, 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """Traits of ``n`` deployments, by which they are compared."""

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
    named = [_labels(deployment) for deployment in deployments]
    load = [
        (
            deployment.concurrency,
            deployment.isl,
            deployment.osl,
            deployment.decode.gpus * (deployment.decode_workers or 1.0),
        )
        for deployment in deployments
    ]
    return Traits(
        {name: np.array([names[name] for names in named], np.str_) for name in LEVELS},
        np.log(np.array(load, np.float64).reshape(len(deployments), len(LOADS))),
        np.array([deployment.prefill is not None for deployment in deployments], np.bool_),
    )


def family(shape: ModelShape) -> str:
    """Return one name for all model releases with the same layer sizes."""
    sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.intermediate)
    return "-".join(map(str, (*sizes, shape.experts, shape.expert_intermediate)))


def _labels(deployment: Deployment) -> dict[str, str]:
    """Return the label of a deployment at each of LEVELS."""
    mode = "disagg" if deployment.prefill else "agg"
    weights = deployment.decode.weights
    version = f"{deployment.engine} {deployment.version}" if deployment.version else ""
    same = "|".join(
        (family(deployment.shape), deployment.gpu.name, deployment.engine, weights, mode)
    )
    spread = "|".join(_widths(part) for part in (deployment.decode, deployment.prefill) if part)
    return {
        "engine": deployment.engine,
        "version": version,
        "gpu": deployment.gpu.name,
        "model": family(deployment.shape),
        "mode": mode,
        "deployment": same,
        "release": f"{same}|{version}" if version else "",
        "arrangement": f"{same}|{spread}",
    }


def _widths(part: Arrangement) -> str:
    """Return the widths of an arrangement as one text."""
    return "-".join(map(str, (part.tp, part.pp, part.attention_dp, part.moe_tp, part.moe_ep)))


@dataclass(frozen=True, slots=True, eq=False)
class SharedTraits:
    """Common traits of each pair from two sets of ``a`` and ``b`` deployments."""

    same: tuple[BoolArray, ...]  # by LEVELS, [a, b] each
    apart: FloatArray  # [a, b, 4], differences of logarithms by LOADS
    scaled: FloatArray  # [a, b], number of disaggregated deployments in the pair


def shared(a: Traits, b: Traits) -> SharedTraits:
    """Compare every deployment of ``a`` with every deployment of ``b``."""
    return SharedTraits(
        tuple(_equal_labels(a.labels[name], b.labels[name]) for name in LEVELS),
        np.abs(a.load[:, None] - b.load[None]),
        a.split[:, None].astype(np.float64) + b.split[None],
    )


def _equal_labels(a: TextArray, b: TextArray) -> BoolArray:
    """Return where the labels of ``a`` equal those of ``b``, ``[a, b]``. "" equals no label."""
    names, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
    left, right = codes[: a.size], codes[a.size :]
    return np.asarray((left[:, None] == right[None]) & (names[left] != "")[:, None])


@dataclass(frozen=True, slots=True)
class ErrorCovariance:
    """Standard deviations of the components of the log error of one quantity, and its scales."""

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

    def covariance(self, of: SharedTraits) -> FloatArray:
        """Return the covariance of the errors of two sets, ``[a, b]``, without noise."""
        lengths = np.array([self.users, self.isl, self.osl, self.gpus])
        distance = np.sqrt(np.einsum("ijk,k->ij", of.apart**2, lengths**-2.0))
        total = self.load**2 * np.exp(-distance) * of.same[LEVELS.index("deployment")]
        for name, same in zip(LEVELS, of.same, strict=True):
            total += getattr(self, name) ** 2 * same
        return np.asarray(total * self.split**of.scaled)

    def alone(self, of: SharedTraits) -> FloatArray:
        """Return the covariance ``[a, b]`` if rows inform their own deployment only.

        The prior variance is the same as with ``covariance``.
        """
        total = sum(getattr(self, name) ** 2 for name in (*LEVELS, "load"))
        lengths = np.array([self.users, LIKE, LIKE, self.gpus])
        distance = np.sqrt(np.einsum("ijk,k->ij", of.apart**2, lengths**-2.0))
        same = of.same[LEVELS.index("deployment")]
        return np.asarray(total * np.exp(-distance) * same * self.split**of.scaled)

    def variance(self, traits: Traits) -> FloatArray:
        """Return the prior variance of each deployment's error, noise included, ``[n]``."""
        parts = sum(getattr(self, name) ** 2 * (traits.labels[name] != "") for name in LEVELS)
        scale = np.where(traits.split, self.split, 1.0) ** 2
        return np.asarray((parts + self.load**2 + self.noise**2) * scale)

    def noise_of(self, traits: Traits) -> FloatArray:
        """Return the variance of each row's noise, ``[n]``."""
        return np.asarray(np.where(traits.split, self.split, 1.0) ** 2 * self.noise**2)


@dataclass(frozen=True, slots=True)
class ErrorQuantiles:
    """Multiples of the posterior standard deviation that covered 50% and 90% of measurements.

    They are measured and not taken from the normal distribution, since errors have longer tails.
    Each pair is for aggregated and disaggregated deployments.
    """

    half: tuple[float, float]
    nine: tuple[float, float]

    def of(self, split: BoolArray, spread: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the relative errors that cover 50% and 90% of measurements, ``[n]`` each.

        ``spread [n]`` are posterior standard deviations of the log error.
        """
        mode = split.astype(np.int64)
        half, nine = (np.array(values)[mode] for values in (self.half, self.nine))
        return np.expm1(half * spread), np.expm1(nine * spread)

    def of_shift(self, split: BoolArray, shift: Shift) -> tuple[FloatArray, FloatArray]:
        """Return the errors to state for corrected estimates: those that cover 50% and 90%.

        They are never smaller than the remaining error of the user's own rows at that load.
        """
        half, nine = self.of(split, shift.stated)
        own = np.expm1(shift.residual)
        return np.maximum(half, own), np.maximum(nine, own)


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """Corrections of ``n`` estimates by measured rows, in logarithms, ``[n]`` each."""

    shift: FloatArray  # add to the logarithm of the estimate
    before: FloatArray  # standard deviation of ln(measured / estimated) without the rows
    after: FloatArray  # the same with the rows
    stated: FloatArray  # the same without the row that narrows it most
    residual: FloatArray  # largest log error that remains of a row at this load; 0 without one


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Predictions from rows under one of the two assumptions about correlations."""

    alone: bool  # a row informs only its own deployment at similar lengths
    inverse: FloatArray  # of the rows' covariance, noise included, [rows, rows]
    shares: FloatArray  # [PARTS, rows], weight of each fraction of the shift in this view

    def covariance(self, likeness: ErrorCovariance, of: SharedTraits) -> FloatArray:
        """Return the covariance of the errors of two sets in this view, ``[a, b]``."""
        return likeness.alone(of) if self.alone else likeness.covariance(of)

    @property
    def part(self) -> FloatArray:
        """Return the weighted fraction of the shift that this view applies, ``[rows]``."""
        return PARTS @ self.shares

    def left_out(self, off: FloatArray) -> FloatArray:
        """Return the log error of each row as predicted from the other rows, ``[rows]``."""
        # Closed form of leave-one-out for a Gaussian process (Rasmussen and Williams, 5.4.2).
        return np.asarray(off - (self.inverse @ off) / np.diag(self.inverse))


@dataclass(frozen=True, slots=True, eq=False)
class LearnedCorrections:
    """Measured rows, prepared to correct any estimate of one quantity."""

    likeness: ErrorCovariance
    rows: Traits
    off: FloatArray  # ln(measured / estimated), [rows]
    views: tuple[View, ...]
    dropped: tuple[str, ...]  # deployments with rows that do not predict each other
    torn: tuple[str, ...]  # deployments with rows that contradict each other
    sound: Traits  # all measured rows without a defect, the dropped ones too
    errors: FloatArray  # ln(measured / estimated) of those

    @property
    def part(self) -> FloatArray:
        """Return the fraction of the predicted shift that both views together apply, ``[rows]``."""
        return np.asarray(sum(view.part for view in self.views))

    def at(self, traits: Traits) -> Shift:
        """Return the corrections of the estimates of ``traits``, with the errors before and after.

        A correction is a sum over measured rows, weighted by how alike they are (kriging). A stated
        error is that without the row that helps most, so that no single row decides it.
        """
        before = self.likeness.variance(traits)
        shift, variance_known, by_others, second = (np.zeros(traits.size) for _ in range(4))
        for start in range(0, traits.size if self.rows.size else 0, BATCH_ROWS):
            part = slice(start, start + BATCH_ROWS)
            common = shared(traits.take(part), self.rows)
            by_row = np.zeros(common.scaled.shape)
            for view in self.views:
                covariance = view.covariance(self.likeness, common)
                weighed = covariance @ view.inverse
                shift[part] += weighed @ (view.part * self.off)
                variance_known[part] += np.einsum("ij,ij->i", weighed * view.part, covariance)
                # What the other rows know less, in closed form, if each row is left out in turn.
                by_row += view.part * weighed**2 / np.diag(view.inverse)
                moves = weighed @ (np.sqrt(view.shares) * PARTS[:, None] * self.off).T
                second[part] += (moves**2).sum(axis=1)
            by_others[part] = variance_known[part] - by_row.max(axis=1)
        if self.sound.size < 2:  # a row with a defect does not narrow an error either
            by_others = np.zeros(traits.size)
        doubt = np.maximum(second - shift**2, 0.0)  # variance between views and fractions
        torn = np.isin(traits.labels["deployment"], self.torn)
        noise = self.likeness.noise_of(traits)
        after, stated = (
            np.where(torn, before, np.minimum(np.maximum(before - known, noise) + doubt, before))
            for known in (variance_known, by_others)
        )
        residual = self._residuals(traits, shift)
        return Shift(shift, np.sqrt(before), np.sqrt(after), np.sqrt(stated), residual)

    def _residuals(self, traits: Traits, shift: FloatArray) -> FloatArray:
        """Return the largest log error that remains of the sound rows at each load, ``[n]``."""
        residual = np.zeros(traits.size)
        for start in range(0, traits.size if self.sound.size else 0, BATCH_ROWS):
            part = slice(start, start + BATCH_ROWS)
            common = shared(traits.take(part), self.sound)
            here = common.same[LEVELS.index("arrangement")] & (common.apart < SAME_LOAD).all(axis=2)
            remaining = np.abs(self.errors[None] - shift[part, None])
            residual[part] = np.where(here, remaining, 0.0).max(axis=1)
        return residual

    def left_out(self) -> FloatArray:
        """Return the log error of each row as predicted from the other rows, ``[rows]``."""
        return np.asarray(sum(view.part * view.left_out(self.off) for view in self.views))


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Corrections of TBT and of TTFT from measured rows."""

    tbt: LearnedCorrections
    ttft: LearnedCorrections


def learn_corrections(
    likeness: ErrorCovariance,
    rows: Traits,
    off: FloatArray,
    judged: bool = True,
    trust: FloatArray | None = None,
) -> LearnedCorrections:
    """Learn corrections from ``rows`` with log errors ``off [rows]``, ln(measured / estimated).

    ``trust [rows]``, above 0 and at most 1, divides the variance of a row's noise. Default: 1.

    The rows of a deployment are dropped if every fraction of their shift makes them worse. With
    ``judged`` False, no row is checked and the whole shift is applied. Use that to plan
    measurements before their values are known.
    """
    # Saturate smoothly, so that one wrong row cannot dominate the linear solve.
    bounded = FARTHEST * np.tanh(off / FARTHEST)
    trust = np.ones(rows.size) if trust is None else trust
    shares, dropped = np.zeros((len(VIEWS), PARTS.size, rows.size)), []
    shares[0, -1] = 1.0  # default for deployments with too few rows: the whole fitted shift
    names = rows.labels["deployment"]
    judged_names = [n for n in np.unique(names) if (names == n).sum() >= JUDGED] if judged else []
    if judged_names:
        all_views = [_view(likeness, alone, rows, bounded, trust) for alone in VIEWS]
        predicted = np.array([view.left_out(bounded) for view in all_views])
    for name in judged_names:
        of_name = names == name
        believed = _fraction_weights(predicted[:, of_name], bounded[of_name], trust[of_name])
        shares[:, :, of_name] = believed[:, :, None]
        if not believed.any():
            dropped.append(str(name))
    kept = ~np.isin(names, dropped)
    kept_rows, kept_errors = rows.take(kept), bounded[kept]
    views = [_view(likeness, alone, kept_rows, kept_errors, trust[kept]) for alone in VIEWS]
    sound, errors = rows.take(trust == 1.0), off[trust == 1.0]
    pairs = contradictions(likeness, sound, errors) if judged else []
    torn = {str(sound.labels["deployment"][i]) for i, _ in pairs}
    return LearnedCorrections(
        likeness,
        kept_rows,
        kept_errors,
        tuple(
            replace(view, shares=of_view[:, kept])
            for view, of_view in zip(views, shares, strict=True)
        ),
        tuple(dropped),
        tuple(sorted(torn)),
        sound,
        errors if judged else np.zeros(sound.size),
    )


def _fraction_weights(predicted: FloatArray, off: FloatArray, trust: FloatArray) -> FloatArray:
    """Return the weight of each fraction of each view, ``[views, PARTS]``.

    ``predicted [views, rows]`` are leave-one-out predictions of ``off [rows]``. ``trust`` is the
    weight of each row's error. The weights and the weight of no shift sum to 1. All are 0 if no
    shift has the smallest mean error and that error exceeds twice the spread of repeated
    measurements.
    """

    def mean(away: FloatArray) -> FloatArray:
        """Return the mean relative error for log errors ``away``, weighted by trust."""
        gross = np.minimum(np.abs(np.expm1(away)), GROSS)
        return np.asarray(REPEATED + gross @ trust / trust.sum())

    errors = mean(PARTS[:, None] * predicted[:, None] - off)
    error_without_shift = float(mean(-off))
    if 2.0 * REPEATED < error_without_shift < errors.min():
        return np.zeros_like(errors)
    rows = float(trust.sum())
    weight = (errors / errors.min()) ** -rows * (1.0 - NOTHING) / errors.size
    weight_without_shift = (error_without_shift / errors.min()) ** -rows * NOTHING
    return np.asarray(weight / (weight.sum() + weight_without_shift))


def contradictions(
    likeness: ErrorCovariance, rows: Traits, off: FloatArray
) -> list[tuple[int, int]]:
    """Return the index pairs of rows that contradict each other, at most one per deployment.

    Both rows have the same arrangement, load and lengths, but their errors differ by more than
    CONTRADICTION standard deviations of their noise. A deployment's pair is its widest.
    """
    noise = np.sqrt(likeness.noise_of(rows))
    common = shared(rows, rows)
    same = common.same[LEVELS.index("arrangement")] & (common.apart < SAME_LOAD).all(axis=2)
    difference = np.abs(off[:, None] - off[None])
    torn = same & (difference > CONTRADICTION * np.hypot(noise[:, None], noise[None]))
    pairs = []
    for name in np.unique(rows.labels["deployment"][torn.any(axis=1)]):
        rows_of_deployment = rows.labels["deployment"] == name
        widest = np.where(
            torn & rows_of_deployment[:, None] & rows_of_deployment[None], difference, 0.0
        )
        first, second = np.unravel_index(int(widest.argmax()), widest.shape)
        pairs.append((int(first), int(second)))
    return pairs


def _view(
    likeness: ErrorCovariance, alone: bool, rows: Traits, off: FloatArray, trust: FloatArray
) -> View:
    """Return a view of ``rows`` with all ``shares`` 0, for the caller to fill in.

    ``alone`` selects the second view, in which rows inform only their own deployment.
    """
    common = shared(rows, rows)
    covariance = likeness.alone(common) if alone else likeness.covariance(common)
    noise = likeness.noise_of(rows) / trust
    weight = np.ones(rows.size)
    inverse: FloatArray = np.zeros((rows.size, rows.size))
    for _ in range(ROUNDS):
        row_noise = noise / weight
        inverse = np.asarray(np.linalg.inv(covariance + np.diag(row_noise)))
        residual = row_noise * (inverse @ off)
        residual_variance = np.maximum(row_noise - row_noise**2 * np.diag(inverse), 0.0)
        weight = (FREEDOM + 1.0) / (FREEDOM + (residual**2 + residual_variance) / noise)
    return View(alone, inverse, np.zeros((PARTS.size, rows.size)))
