"""What measurements of one's own say of an estimate: of their deployment, and of those like it.

What an estimate is off by, as the logarithm of measured over estimated, is taken for a sum of
parts that deployments share: those of one engine, of one version of it, of one GPU type, of one
model, of prefill and decode together or apart, of one deployment (model, GPU type, engine,
precision, mode), of one release and one arrangement of it, and a part that changes slowly with the
load and the lengths of one deployment. Every part is normal around nothing with a variance of its
own, so that measured rows move an estimate by as much as they share with it and no further: a
hierarchical model with shrinkage, which is a Gaussian process (Rasmussen and Williams, *Gaussian
Processes for Machine Learning*, 2006, sections 2.2 and 2.3). Rows far from all others weigh less
(a t distribution by reweighting; Lange, Little and Taylor 1989).

That errors of other deployments were alike does not say that those of this one are. So rows are
heard in two views, that of the fit and one in which they speak of their own deployment at like
lengths alone. The rows of a deployment, each left out in turn, say which view to believe and which
part of it: parts from nothing to the whole are weighed by how likely what they leave is (errors of
a double exponential distribution, its scale the likeliest, so that n rows weigh a part by its mean
error to the power -n), and their mean counts. What they differ by is in the stated error. Where
nothing leaves the least of any, and more than a repeated measurement does, the rows are set aside;
where two rows at one load contradict each other (``contradictions``), the stated error stays what
it was.

The variances are fitted by ``tools/catalogue/fit_likeness.py`` on deployments whose model the fit
of the estimates had not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray, TextArray
from simulation.performance.estimate.arranging import Deployment
from simulation.performance.specs import Arrangement, ModelShape

Which = slice | BoolArray | IntArray

LEVELS = ("engine", "version", "gpu", "model", "mode", "deployment", "release", "arrangement")
LOADS = ("users", "isl", "osl", "gpus")  # whose logarithms say how far two loads are apart
FARTHEST = 1.5  # logarithm beyond which a row says no more
FREEDOM = 4.0  # degrees of freedom of the t distribution of what rows share with nothing
ROUNDS = 4  # of reweighting
AT_ONCE = 1024  # deployments compared with the rows at a time
JUDGED = 3  # rows of a deployment from which leaving one out says whether they help
PARTS = np.linspace(0.25, 1.0, 4)  # of a move that are weighed beside nothing
NOTHING = 0.5  # chance beforehand that rows say nothing of each other
VIEWS = (False, True)  # as fitted, and of their own deployment alone
# Logarithm of lengths over which rows of one deployment are alike where they speak of it alone: by
# e, so that prompts of 1,024 and 8,192 tokens say little of each other.
LIKE = 1.0
CONTRADICTION = 3.0  # standard deviations of a repeated measurement that two rows are apart
SAME_LOAD = 0.1  # logarithm within which loads and lengths are the same
REPEATED, GROSS = (
    0.02,
    0.5,
)  # relative errors: of a measurement repeated, and beyond which all weigh


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """What makes deployments alike, one entry each."""

    labels: Mapping[str, TextArray]  # by LEVELS, [n]; "" is like nothing
    load: FloatArray  # [n, 4], logarithms by LOADS
    split: BoolArray  # [n], prefill and decode on workers of their own

    @property
    def size(self) -> int:
        return self.split.size

    def take(self, which: Which) -> Traits:
        """Those of a mask or of indices."""
        labels = {name: values[which] for name, values in self.labels.items()}
        return Traits(labels, self.load[which], self.split[which])


def traits_of(deployments: Sequence[Deployment]) -> Traits:
    """Of deployments as they were given."""
    named = [_names(deployment) for deployment in deployments]
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
    """One name for all releases that compute the same."""
    sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.intermediate)
    return "-".join(map(str, (*sizes, shape.experts, shape.expert_intermediate)))


def _names(deployment: Deployment) -> dict[str, str]:
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
    return "-".join(map(str, (part.tp, part.pp, part.attention_dp, part.moe_tp, part.moe_ep)))


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What two sets of deployments share, ``[a, b]`` each."""

    same: tuple[BoolArray, ...]  # by LEVELS
    apart: FloatArray  # [a, b, 4], by LOADS
    scaled: FloatArray  # how many of the two have prefill and decode apart


def shared(a: Traits, b: Traits) -> Shared:
    """Compare every one of ``a`` with every one of ``b``."""
    return Shared(
        tuple(_same(a.labels[name], b.labels[name]) for name in LEVELS),
        np.abs(a.load[:, None] - b.load[None]),
        a.split[:, None].astype(np.float64) + b.split[None],
    )


def _same(a: TextArray, b: TextArray) -> BoolArray:
    names, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
    left, right = codes[: a.size], codes[a.size :]
    return np.asarray((left[:, None] == right[None]) & (names[left] != "")[:, None])


@dataclass(frozen=True, slots=True)
class Likeness:
    """Standard deviations of what estimates of one quantity are off by (logarithms), by part."""

    engine: float
    version: float
    gpu: float
    model: float
    mode: float
    deployment: float
    release: float
    arrangement: float
    load: float  # of the part that changes with the load
    users: float  # logarithm of users over which that part changes; likewise below
    isl: float
    osl: float
    gpus: float
    noise: float  # of a row by itself
    split: float  # times all of them where prefill and decode are apart

    def covariance(self, of: Shared) -> FloatArray:
        """Of the true parts of two sets, ``[a, b]``."""
        lengths = np.array([self.users, self.isl, self.osl, self.gpus])
        far = np.sqrt(np.einsum("ijk,k->ij", of.apart**2, lengths**-2.0))
        total = self.load**2 * np.exp(-far) * of.same[LEVELS.index("deployment")]
        for name, same in zip(LEVELS, of.same, strict=True):
            total += getattr(self, name) ** 2 * same
        return np.asarray(total * self.split**of.scaled)

    def alone(self, of: Shared) -> FloatArray:
        """Likewise, as sure beforehand, where rows speak of their own deployment alone."""
        total = sum(getattr(self, name) ** 2 for name in (*LEVELS, "load"))
        lengths = np.array([self.users, LIKE, LIKE, self.gpus])
        far = np.sqrt(np.einsum("ijk,k->ij", of.apart**2, lengths**-2.0))
        same = of.same[LEVELS.index("deployment")]
        return np.asarray(total * np.exp(-far) * same * self.split**of.scaled)

    def variance(self, traits: Traits) -> FloatArray:
        """Of each by itself, its noise included, before any row; ``[n]``."""
        parts = sum(getattr(self, name) ** 2 * (traits.labels[name] != "") for name in LEVELS)
        scale = np.where(traits.split, self.split, 1.0) ** 2
        return np.asarray((parts + self.load**2 + self.noise**2) * scale)

    def noise_of(self, traits: Traits) -> FloatArray:
        """Variance of what a row shares with nothing, ``[n]``."""
        return np.asarray(np.where(traits.split, self.split, 1.0) ** 2 * self.noise**2)


@dataclass(frozen=True, slots=True)
class Stated:
    """Posterior standard deviations within which half, and nine of ten, measurements were found, of
    instances as a whole and of prefill and decode apart: errors have longer tails than a normal."""

    half: tuple[float, float]
    nine: tuple[float, float]

    def of(self, split: BoolArray, spread: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Relative errors that half, and nine of ten, stay within at these spreads; ``[n]``."""
        which = split.astype(np.int64)
        half, nine = (np.array(values)[which] for values in (self.half, self.nine))
        return np.expm1(half * spread), np.expm1(nine * spread)


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """By what measurements move estimates, in logarithms, ``[n]``."""

    shift: FloatArray  # add to the logarithm of the estimate
    before: FloatArray  # standard deviation of measured over estimated, without the rows
    after: FloatArray  # and with them


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What rows say of others in one way of seeing who is alike."""

    alone: bool  # rows speak of their own deployment at like lengths alone
    inverse: FloatArray  # of the rows' covariance with their noise
    shares: FloatArray  # [PARTS, rows]: how far each part of this view is believed of a row

    def covariance(self, likeness: Likeness, of: Shared) -> FloatArray:
        """Of the true parts of two sets in this view, ``[a, b]``."""
        return likeness.alone(of) if self.alone else likeness.covariance(of)

    @property
    def part(self) -> FloatArray:
        """Mean part of what a row says that is believed, ``[rows]``."""
        return PARTS @ self.shares

    def left_out(self, off: FloatArray) -> FloatArray:
        """What each row is predicted to be off by from the others alone, ``[rows]``."""
        return np.asarray(off - (self.inverse @ off) / np.diag(self.inverse))


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """What rows say, ready for any estimate; rows that did not help are left out already."""

    likeness: Likeness
    rows: Traits
    off: FloatArray  # logarithm of measured over estimated
    views: tuple[View, ...]
    dropped: tuple[str, ...]  # deployments whose rows do not predict each other
    torn: tuple[str, ...]  # deployments of which rows contradict each other

    @property
    def part(self) -> FloatArray:
        """Of what each row says, the part that is believed, ``[rows]``."""
        return np.asarray(sum(view.part for view in self.views))

    def at(self, where: Traits) -> Moved:
        """What the rows say of ``where``."""
        before = self.likeness.variance(where)
        shift, known, second = (np.zeros(where.size) for _ in range(3))
        for start in range(0, where.size if self.rows.size else 0, AT_ONCE):
            part = slice(start, start + AT_ONCE)
            common = shared(where.take(part), self.rows)
            for view in self.views:
                covariance = view.covariance(self.likeness, common)
                weighed = covariance @ view.inverse
                shift[part] += weighed @ (view.part * self.off)
                known[part] += np.einsum("ij,ij->i", weighed * view.part, covariance)
                moves = weighed @ (np.sqrt(view.shares) * PARTS[:, None] * self.off).T
                second[part] += (moves**2).sum(axis=1)
        doubt = np.maximum(second - shift**2, 0.0)  # by what views and parts differ
        after = np.maximum(before - known, self.likeness.noise_of(where)) + doubt
        torn = np.isin(where.labels["deployment"], self.torn)
        after = np.where(torn, before, np.minimum(after, before))
        return Moved(shift, np.sqrt(before), np.sqrt(after))

    def left_out(self) -> FloatArray:
        """What each row is predicted to be off by from the others alone, ``[rows]``."""
        return np.asarray(sum(view.part * view.left_out(self.off) for view in self.views))


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """What measured rows say of both times."""

    tbt: Learnt
    ttft: Learnt


def learn(likeness: Likeness, rows: Traits, off: FloatArray, judged: bool = True) -> Learnt:
    """From rows that are off by ``off`` (logarithms of measured over estimated).

    Rows of a deployment that any part of what they say makes worse are set aside. Not ``judged``:
    all that they say is believed, as where what they will show is not known yet.
    """
    bounded = FARTHEST * np.tanh(off / FARTHEST)
    shares, dropped = np.zeros((len(VIEWS), PARTS.size, rows.size)), []
    shares[0, -1] = 1.0  # the whole of what the fit says
    names = rows.labels["deployment"]
    judged_names = [n for n in np.unique(names) if (names == n).sum() >= JUDGED] if judged else []
    if judged_names:
        heard = [_view(likeness, alone, rows, bounded) for alone in VIEWS]
        predicted = np.array([view.left_out(bounded) for view in heard])
    for name in judged_names:
        of_name = names == name
        believed = _believed(predicted[:, of_name], bounded[of_name])
        shares[:, :, of_name] = believed[:, :, None]
        if not believed.any():
            dropped.append(str(name))
    kept = ~np.isin(names, dropped)
    left, left_off = rows.take(kept), bounded[kept]
    views = [_view(likeness, alone, left, left_off) for alone in VIEWS]
    torn = {str(names[i]) for i, _ in contradictions(likeness, rows, off)} if judged else set()
    return Learnt(
        likeness,
        left,
        left_off,
        tuple(
            replace(view, shares=of_view[:, kept])
            for view, of_view in zip(views, shares, strict=True)
        ),
        tuple(dropped),
        tuple(sorted(torn)),
    )


def _believed(predicted: FloatArray, off: FloatArray) -> FloatArray:
    """How far each part of each view is borne out by ``off``, ``[views, PARTS]``, the rest of 1
    being nothing; all 0 where nothing leaves the least of what is more than a repeated measurement
    is off by. ``predicted`` is ``[views, rows]``."""

    def mean(away: FloatArray) -> FloatArray:
        return np.asarray(REPEATED + np.minimum(np.abs(np.expm1(away)), GROSS).mean(axis=-1))

    left = mean(PARTS[:, None] * predicted[:, None] - off)
    alone = float(mean(-off))
    if 2.0 * REPEATED < alone < left.min():
        return np.zeros_like(left)
    weight = (left / left.min()) ** -float(off.size) * (1.0 - NOTHING) / left.size
    nothing = (alone / left.min()) ** -float(off.size) * NOTHING
    return np.asarray(weight / (weight.sum() + nothing))


def contradictions(likeness: Likeness, rows: Traits, off: FloatArray) -> list[tuple[int, int]]:
    """Pairs of rows of one deployment at the same load and lengths that are further apart than
    repeated measurements are; of each deployment those furthest apart."""
    noise = np.sqrt(likeness.noise_of(rows))
    common = shared(rows, rows)
    same = common.same[LEVELS.index("arrangement")] & (common.apart < SAME_LOAD).all(axis=2)
    apart = np.abs(off[:, None] - off[None])
    torn = same & (apart > CONTRADICTION * np.hypot(noise[:, None], noise[None]))
    pairs = []
    for name in np.unique(rows.labels["deployment"][torn.any(axis=1)]):
        its_rows = rows.labels["deployment"] == name
        widest = np.where(torn & its_rows[:, None] & its_rows[None], apart, 0.0)
        first, second = np.unravel_index(int(widest.argmax()), widest.shape)
        pairs.append((int(first), int(second)))
    return pairs


def _view(likeness: Likeness, alone: bool, rows: Traits, off: FloatArray) -> View:
    """Believed in nothing yet."""
    common = shared(rows, rows)
    covariance = likeness.alone(common) if alone else likeness.covariance(common)
    noise = likeness.noise_of(rows)
    weight = np.ones(rows.size)
    inverse: FloatArray = np.zeros((rows.size, rows.size))
    for _ in range(ROUNDS):
        row_noise = noise / weight
        inverse = np.asarray(np.linalg.inv(covariance + np.diag(row_noise)))
        left = row_noise * (inverse @ off)  # of a row, what no part explains
        unsure = np.maximum(row_noise - row_noise**2 * np.diag(inverse), 0.0)
        weight = (FREEDOM + 1.0) / (FREEDOM + (left**2 + unsure) / noise)
    return View(alone, inverse, np.zeros((PARTS.size, rows.size)))
