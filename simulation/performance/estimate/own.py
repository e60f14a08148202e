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

That errors of other deployments were alike does not say that those of this one are. So the rows of
a deployment, each left out in turn, say which part of such a move to believe: parts from nothing to
the whole are weighed by how likely what they leave is (errors of a double exponential distribution,
its scale the likeliest, so that n rows weigh a part by its mean error to the power -n), and their
mean counts. What they differ by is in the stated error. Where nothing is the likeliest part, the
rows are set aside.

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
PARTS = np.linspace(0.0, 1.0, 5)  # of a move that are weighed
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
class Learnt:
    """What rows say, ready for any estimate; rows that did not help are left out already."""

    likeness: Likeness
    rows: Traits
    off: FloatArray  # logarithm of measured over estimated
    part: FloatArray  # of what a row says that is believed, by its deployment
    unsure: FloatArray  # standard deviation of that part
    inverse: FloatArray  # of the rows' covariance with their noise
    dropped: tuple[str, ...]  # deployments whose rows do not predict each other

    def at(self, where: Traits) -> Moved:
        """What the rows say of ``where``."""
        before = self.likeness.variance(where)
        shift, known, doubt = (np.zeros(where.size) for _ in range(3))
        for start in range(0, where.size if self.rows.size else 0, AT_ONCE):
            part = slice(start, start + AT_ONCE)
            common = self.likeness.covariance(shared(where.take(part), self.rows))
            weighed = common @ self.inverse
            shift[part] = weighed @ (self.part * self.off)
            doubt[part] = weighed @ (self.unsure * self.off)
            known[part] = np.einsum("ij,ij->i", weighed * self.part, common)
        after = np.maximum(before - known, self.likeness.noise_of(where)) + doubt**2
        after = np.minimum(after, before)
        return Moved(shift, np.sqrt(before), np.sqrt(after))

    def left_out(self) -> FloatArray:
        """What each row is predicted to be off by from the others alone, ``[rows]``."""
        pull = self.inverse @ self.off
        return np.asarray(self.part * (self.off - pull / np.diag(self.inverse)))


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """What measured rows say of both times."""

    tbt: Learnt
    ttft: Learnt


def learn(likeness: Likeness, rows: Traits, off: FloatArray) -> Learnt:
    """From rows that are off by ``off`` (logarithms of measured over estimated).

    Rows of a deployment that any part of what they say makes worse are set aside.
    """
    bounded = FARTHEST * np.tanh(off / FARTHEST)
    learnt = _learn(likeness, rows, bounded)
    names = rows.labels["deployment"]
    predicted = learnt.left_out() if rows.size else off
    part, unsure, dropped = np.ones(rows.size), np.zeros(rows.size), []
    for name in np.unique(names):
        of_name = names == name
        if of_name.sum() < JUDGED:
            continue
        part[of_name], unsure[of_name] = _believed(predicted[of_name], bounded[of_name])
        if not part[of_name].any():
            dropped.append(str(name))
    kept = ~np.isin(names, dropped)
    if not kept.all():
        learnt = _learn(likeness, rows.take(kept), bounded[kept])
    return replace(learnt, part=part[kept], unsure=unsure[kept], dropped=tuple(dropped))


def _believed(predicted: FloatArray, off: FloatArray) -> tuple[float, float]:
    """Mean and standard deviation of the part of ``predicted`` that ``off`` bears out; none where
    none leaves the least."""
    away = np.abs(np.expm1(PARTS[:, None] * predicted - off))
    mean = REPEATED + np.minimum(away, GROSS).mean(axis=1)
    if mean[0] < mean[1:].min():
        return 0.0, 0.0
    weight = (mean / mean.min()) ** -float(off.size)
    weight = weight / weight.sum()
    part = float(weight @ PARTS)
    return part, float(np.sqrt(weight @ (PARTS - part) ** 2))


def _learn(likeness: Likeness, rows: Traits, off: FloatArray) -> Learnt:
    covariance, noise = likeness.covariance(shared(rows, rows)), likeness.noise_of(rows)
    weight = np.ones(rows.size)
    inverse: FloatArray = np.zeros((rows.size, rows.size))
    for _ in range(ROUNDS):
        row_noise = noise / weight
        inverse = np.asarray(np.linalg.inv(covariance + np.diag(row_noise)))
        left = row_noise * (inverse @ off)  # of a row, what no part explains
        unsure = np.maximum(row_noise - row_noise**2 * np.diag(inverse), 0.0)
        weight = (FREEDOM + 1.0) / (FREEDOM + (left**2 + unsure) / noise)
    return Learnt(likeness, rows, off, np.ones(rows.size), np.zeros(rows.size), inverse, ())
