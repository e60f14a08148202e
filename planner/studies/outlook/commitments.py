"""How many GPUs to commit to: the classical newsvendor. A committed GPU is paid all the time, one
on demand while it is used, so the k-th pays where it is in use for a larger share of the time than
the committed price is of the one on demand. Use falls with k, so all up to the last that pays are
committed; that is least cost, whatever the shape of the timetable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray

MOST_STEPS = 40  # of a curve of use


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """GPUs of one type in a region that a plan has on demand: so many, for so many hours."""

    region: str
    gpu: str
    gpus: FloatArray  # [n]
    hours: FloatArray  # [n]
    on_demand: float  # USD per GPU-hour

    @property
    def total_hours(self) -> float:
        return float(self.hours.sum())

    def in_use(self) -> FloatArray:
        """Share of the time that the k-th GPU is in use, ``[k]`` from the first on."""
        most = int(self.gpus.max(initial=0))
        at_most = np.bincount(self.gpus.astype(np.int64), self.hours, minlength=most + 1)
        return np.asarray(1.0 - np.cumsum(at_most)[:most] / max(self.total_hours, 1e-12))

    def cost(self, committed: int, price: float) -> float:
        """USD over all hours with so many committed at ``price``, the rest on demand."""
        beyond = np.maximum(self.gpus - committed, 0.0) @ self.hours
        return committed * price * self.total_hours + self.on_demand * float(beyond)


@dataclass(frozen=True, slots=True)
class Commitment:
    """What to commit to of a GPU type in a region under one term, and what it saves."""

    region: str
    gpu: str
    term: str  # one_year or three_years
    gpus: int
    on_demand_usd_per_gpu_hour: float
    committed_usd_per_gpu_hour: float
    pays_from: float  # share of the time in use
    least_use: float | None  # of the last that is committed; None where none is
    cost_on_demand_usd: float
    cost_usd: float
    saving_usd: float
    mean_gpus: float
    peak_gpus: int


@dataclass(frozen=True, slots=True)
class UseStep:
    """GPUs up to ``gpus`` are in use at least that share of the time, so that a commitment to them
    pays below that price."""

    region: str
    gpu: str
    gpus: int
    in_use: float
    pays_below_usd_per_gpu_hour: float


def commit(use: Use, term: str, price: float) -> Commitment:
    """The number of least cost under one price."""
    share = use.in_use()
    pays_from = price / use.on_demand if use.on_demand else np.inf
    count = int((share > pays_from).sum())
    before, after = use.cost(0, price), use.cost(count, price)
    hours = max(use.total_hours, 1e-12)
    return Commitment(
        region=use.region,
        gpu=use.gpu,
        term=term,
        gpus=count,
        on_demand_usd_per_gpu_hour=use.on_demand,
        committed_usd_per_gpu_hour=price,
        pays_from=float(pays_from),
        least_use=float(share[count - 1]) if count else None,
        cost_on_demand_usd=before,
        cost_usd=after,
        saving_usd=before - after,
        mean_gpus=float(use.gpus @ use.hours) / hours,
        peak_gpus=int(use.gpus.max(initial=0)),
    )


def steps(uses: Sequence[Use]) -> tuple[UseStep, ...]:
    """The curve of use of each type and region, where it falls."""
    curve: list[UseStep] = []
    for use in uses:
        share = use.in_use()
        ends = np.flatnonzero(np.append(np.diff(share) < -1e-9, True)) if len(share) else share
        if len(ends) > MOST_STEPS:
            ends = ends[np.unique(np.linspace(0, len(ends) - 1, MOST_STEPS).round().astype(int))]
        curve += [
            UseStep(use.region, use.gpu, int(k) + 1, float(share[int(k)]),
                    float(share[int(k)] * use.on_demand))
            for k in ends
        ]  # fmt: skip
    return tuple(curve)
