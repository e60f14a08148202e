"""Choose how many GPUs to commit to (the newsvendor problem).

A committed GPU is paid all the time, an on-demand GPU while it is in use. So a commitment to the
k-th GPU pays if its share of time in use exceeds committed price over on-demand price. Use falls
with k, so the commitment covers all GPUs up to the last that pays. This has the lowest cost for any
schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray

MOST_STEPS = 40  # most steps of a usage curve
TINY_HOURS = 1e-12  # against division by 0


@dataclass(frozen=True, slots=True, eq=False)
class GpuUse:
    """The on-demand GPUs of one type that are in use in a region, over the periods of a plan."""

    region: str
    gpu: str
    gpus: FloatArray  # [period] number of GPUs
    hours: FloatArray  # [period] duration
    on_demand: float  # USD per GPU-hour

    @property
    def total_hours(self) -> float:
        """Return the length of all periods in hours."""
        return float(self.hours.sum())

    def in_use(self) -> FloatArray:
        """Return the share of time with at least k GPUs in use, ``[k - 1]``; it falls with k."""
        max_gpus = int(self.gpus.max(initial=0))
        hours_with = np.bincount(self.gpus.astype(np.int64), self.hours, minlength=max_gpus + 1)
        share_below = np.cumsum(hours_with)[:max_gpus] / max(self.total_hours, TINY_HOURS)
        return np.asarray(1.0 - share_below)

    def cost(self, committed: int, price: float) -> float:
        """Return the cost in USD with ``committed`` GPUs at ``price``, the rest on demand."""
        on_demand_hours = float(np.maximum(self.gpus - committed, 0.0) @ self.hours)
        return committed * price * self.total_hours + self.on_demand * on_demand_hours


@dataclass(frozen=True, slots=True)
class Commitment:
    """The cheapest commitment to a GPU type in a region for one term, with its saving."""

    region: str
    gpu: str
    term: str  # one_year or three_years
    gpus: int
    on_demand_usd_per_gpu_hour: float
    committed_usd_per_gpu_hour: float
    pays_from: float  # share of time in use above which a commitment pays
    least_use: float | None  # share of time that the last committed GPU is in use; None: none
    cost_on_demand_usd: float
    cost_usd: float
    saving_usd: float
    mean_gpus: float
    peak_gpus: int


@dataclass(frozen=True, slots=True)
class UseStep:
    """One step of a usage curve: the first ``gpus`` GPUs, and the price at which they pay."""

    region: str
    gpu: str
    gpus: int
    in_use: float  # each of them is in use for at least this share of the time
    pays_below_usd_per_gpu_hour: float  # a commitment to all of them pays below this price


def choose_commitment(use: GpuUse, term: str, price: float) -> Commitment:
    """Return the cheapest commitment for ``term``, at ``price`` in USD per GPU-hour."""
    # A GPU is worth committing if it is in use for a larger share of time than ``pays_from``.
    share = use.in_use()  # of time, by GPU, falling
    pays_from = price / use.on_demand if use.on_demand else np.inf
    count = int((share > pays_from).sum())
    before, after = use.cost(committed=0, price=price), use.cost(committed=count, price=price)
    hours = max(use.total_hours, TINY_HOURS)
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


def usage_steps(uses: Sequence[GpuUse]) -> tuple[UseStep, ...]:
    """Return the steps of the usage curve of each GPU type and region, at most ``MOST_STEPS``."""
    steps: list[UseStep] = []
    for use in uses:
        share = use.in_use()  # of the time, by number of the GPU
        if not len(share):
            continue
        # The index of the last GPU of each step, after which the share in use falls.
        last_gpus = np.flatnonzero(np.append(np.diff(share) < -1e-9, True))
        if len(last_gpus) > MOST_STEPS:
            spread = np.linspace(0, len(last_gpus) - 1, MOST_STEPS).round().astype(int)
            last_gpus = last_gpus[np.unique(spread)]
        for last in last_gpus.tolist():
            in_use = float(share[last])
            pays_below = float(share[last] * use.on_demand)
            steps.append(UseStep(use.region, use.gpu, last + 1, in_use, pays_below))
    return tuple(steps)
