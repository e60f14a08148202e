"""What instances of each model on each column can take within the SLOs, alone and in pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.errors import ScenarioError
from planner.scenario.build import Hardware
from planner.studies.progress import Progress, part
from planner.studies.sizing.curves import SizedPool, most_instances, sized_pool
from planner.studies.traffic.known import KnownLengths
from planner.studies.traffic.lengths import Lengths
from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.sizing.capacity import Capacity
from simulation.sizing.pool import MOST
from simulation.sizing.trial import SharedPrompts


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """What pools carry at the strictest interactive tier, in input tokens/s.

    ``pool_tps[l, g, n]``: n + 1 instances of model l on column g together, in one region, for 1 to
    N of them, to be counted on: it rises with n, and so does what each carries. Beyond N each
    carries ``theta_tps[l, g] = pool_tps[l, g, N - 1] / N``. 0 where the model does not run.
    ``capacity`` has the figures of one instance by itself by (l, g), with the tier that set it;
    ``pools`` the curves as simulated.

    These are the sizes at the first decision; where lengths drift, ``at`` says for each period
    which of ``later`` its decision goes by (s: the s-th of them, 0: these).
    """

    theta_tps: FloatArray
    pool_tps: FloatArray
    capacity: dict[tuple[int, int], tuple[str, Capacity]]
    notes: tuple[str, ...]
    pools: dict[tuple[int, int], SizedPool] = field(default_factory=dict)
    later: tuple[Sizes, ...] = ()
    at: IntArray | None = None  # [p]

    def outside(self, place: tuple[int, int]) -> float:
        """Share of iterations beyond what its profile was measured on, at the size of one instance
        or of a pool, where it is largest."""
        points = self.pools[place].set_by.points if place in self.pools else ()
        return max(self.capacity[place][1].outside, *(point.outside for point in points), 0.0)

    def of(self, period: int) -> Sizes:
        """Those that the decision for a period goes by."""
        chosen = 0 if self.at is None else int(self.at[period])
        return self.later[chosen - 1] if chosen else self

    def times(self, factor: FloatArray) -> Sizes:
        """The same with every size of a model on a column times its factor, ``[l, g]``."""
        pool_tps = self.pool_tps * factor[:, :, None]
        return replace(
            self,
            theta_tps=in_large_pools(pool_tps),
            pool_tps=pool_tps,
            later=tuple(sizes.times(factor) for sizes in self.later),
        )


def size(
    hardware: Hardware,
    lengths: Sequence[Lengths],
    seed: int,
    progress: Progress,
    burstiness: Sequence[float] | None = None,
    shared: Sequence[SharedPrompts | None] = (),
) -> Sizes:
    """Capacity by simulation of one instance and of pools of them under arrivals of each model's
    own lengths, given as samples, and of the burstiness given (squared coefficient of variation of
    the gaps), Poisson where it is not. What prompts of ``shared`` requests share is cached where
    the model's serving caches prefixes; those are then the requests, whatever ``lengths`` says.

    A column that cannot meet a tier at any rate is left out with a note; raises ScenarioError when
    a model is left with none, or with prefill but no decode instances.
    """
    pool_tps = np.zeros((len(hardware.models), len(hardware.gpus), MOST))
    pools: dict[tuple[int, int], SizedPool] = {}
    notes: list[str] = []
    alike: dict[tuple[int, int, str], int] = {}  # spot instances are as fast as owned ones
    for done, ((m, g), profile) in enumerate(hardware.profiles.items()):
        first = alike.setdefault((m, id(profile), hardware.columns[g].role), g)
        if first != g:
            if (m, first) in pools:
                pools[m, g], pool_tps[m, g] = pools[m, first], pool_tps[m, first]
            continue
        what = f"{hardware.models[m].name} on {hardware.columns[g].label}"
        progress(done / len(hardware.profiles), f"Sizing {what}")
        bursts = burstiness[m] if burstiness is not None else 1.0
        try:
            pools[m, g] = sized_pool(
                hardware, m, g, lengths[m], seed, burstiness=bursts,
                shared=shared[m] if shared else None,
            )  # fmt: skip
        except SimulationError as problem:
            notes.append(f"{what} is left out: {problem}")
            continue
        pool_tps[m, g] = pools[m, g].counted(most_instances(hardware, m, g))
    theta = in_large_pools(pool_tps)
    for m, model in enumerate(hardware.models):
        if not _whole(hardware, theta[m]):
            why = [note for note in notes if note.startswith(f"{model.name} on")]
            raise ScenarioError(
                f"tiers: no GPU type of this scenario can serve {model.name} within its limits. "
                + " ".join(why)
            )
    return Sizes(
        theta_tps=theta,
        pool_tps=pool_tps,
        capacity={place: pool.alone for place, pool in pools.items()},
        notes=tuple(notes),
        pools=pools,
    )


def size_over_time(hardware: Hardware, known: KnownLengths, seed: int, progress: Progress) -> Sizes:
    """``size`` by the lengths that the first decision knows, and again for decisions that know
    others. Where a model cannot be served at those, its decisions keep the sizes before."""
    first, *others = known.samples
    share = 1.0 / len(known.samples)
    sizes = size(hardware, first, seed, part(progress, 0.0, share), shared=known.shared)
    later, place, notes = [], [0], list(sizes.notes)
    for s, lengths in enumerate(others, start=1):
        try:
            then = part(progress, s * share, (s + 1) * share)
            later.append(size(hardware, lengths, seed, then, shared=known.shared))
        except ScenarioError as problem:
            notes.append(f"Sizes do not follow the lengths of requests, for with them: {problem}")
            place.append(place[-1])
        else:
            place.append(len(later))
    if later:
        notes.append(
            "Lengths of requests drift in this window: each decision goes by what came before it, "
            f"with {len(later) + 1} sets of sizes."
        )
    return replace(
        sizes, notes=tuple(notes), later=tuple(later), at=np.array(place, np.int64)[known.at]
    )


def in_large_pools(pool_tps: FloatArray) -> FloatArray:
    """Of each instance, ``[l, g]``."""
    return np.asarray(pool_tps[:, :, -1] / pool_tps.shape[-1], np.float64)


def _whole(hardware: Hardware, theta: FloatArray) -> bool:
    """Whether prompts and answers of a model can both be served."""
    able = theta > 0
    return bool(able[hardware.stages != 2].any() and able[hardware.stages != 1].any())
