"""What one instance of each model on each column can take within the SLOs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import ScenarioError
from planner.scenario.build import Hardware
from planner.studies.progress import Progress, part
from planner.studies.traffic.known import KnownLengths
from planner.studies.traffic.lengths import Lengths
from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.performance.profile import Profile
from simulation.sizing.capacity import Capacity, capacity

POOL = 64  # instances, at most, of a pool whose size is its own


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """What pools carry at the strictest interactive tier, in input tokens/s.

    ``pool_tps[l, g, n]``: n + 1 instances of model l on column g together, in one region, for 1 to
    N of them; it rises with n, and so does what each carries. Beyond N each carries
    ``theta_tps[l, g] = pool_tps[l, g, N - 1] / N``. 0 where the model does not run. ``capacity``
    has the figures of one instance by itself by (l, g), with the tier that set it.

    These are the sizes at the first decision; where lengths drift, ``at`` says for each period
    which of ``later`` its decision goes by (s: the s-th of them, 0: these).
    """

    theta_tps: FloatArray
    pool_tps: FloatArray
    capacity: dict[tuple[int, int], tuple[str, Capacity]]
    notes: tuple[str, ...]
    later: tuple[Sizes, ...] = ()
    at: IntArray | None = None  # [p]

    def of(self, period: int) -> Sizes:
        """Those that the decision for a period goes by."""
        chosen = 0 if self.at is None else int(self.at[period])
        return self.later[chosen - 1] if chosen else self

    def times(self, factor: FloatArray) -> Sizes:
        """The same with every size of a model times its factor, ``[l]``."""
        return replace(
            self,
            theta_tps=self.theta_tps * factor[:, None],
            pool_tps=self.pool_tps * factor[:, None, None],
            later=tuple(sizes.times(factor) for sizes in self.later),
        )


def column_sized(
    hardware: Hardware,
    m: int,
    g: int,
    lengths: Lengths,
    seed: int,
    *,
    profile: Profile | None = None,
    burstiness: float = 1.0,
) -> tuple[str, Capacity]:
    """The interactive tier at which one instance of model ``m`` on column ``g`` carries least, and
    what it carries then, in that column's role, with another profile where one is given. A decode
    column's KV caches come over the model's first link.

    Raises SimulationError where a tier cannot be met at any rate.
    """
    link = next((link for (model, _), link in hardware.links.items() if model == m), None)
    sizes = [
        (
            tier.name,
            capacity(
                profile or hardware.profiles[m, g],
                lengths,
                tier,
                seed=seed,
                role=hardware.columns[g].role,
                link=link,
                batching=hardware.serving[m].batching,
                burstiness=burstiness,
            ),
        )
        for tier in hardware.tiers
        if not tier.deferrable
    ]
    return min(sizes, key=lambda pair: pair[1].input_tps)


def size(
    hardware: Hardware,
    lengths: Sequence[Lengths],
    seed: int,
    progress: Progress,
    burstiness: Sequence[float] | None = None,
) -> Sizes:
    """Capacity by simulation of one instance under arrivals of each model's own lengths, given as
    samples, and of the burstiness given (squared coefficient of variation of the gaps), Poisson
    where it is not.

    A column that cannot meet a tier at any rate is left out with a note; raises ScenarioError when
    a model is left with none, or with prefill but no decode instances.
    """
    theta = np.zeros((len(hardware.models), len(hardware.gpus)))
    sized: dict[tuple[int, int], tuple[str, Capacity]] = {}
    notes: list[str] = []
    alike: dict[tuple[int, int, str], int] = {}  # spot instances are as fast as owned ones
    for done, ((m, g), profile) in enumerate(hardware.profiles.items()):
        first = alike.setdefault((m, id(profile), hardware.columns[g].role), g)
        if first != g:
            if (m, first) in sized:
                sized[m, g], theta[m, g] = sized[m, first], theta[m, first]
            continue
        what = f"{hardware.models[m].name} on {hardware.columns[g].label}"
        progress(done / len(hardware.profiles), f"Sizing {what}")
        bursts = burstiness[m] if burstiness is not None else 1.0
        try:
            sized[m, g] = column_sized(hardware, m, g, lengths[m], seed, burstiness=bursts)
        except SimulationError as problem:
            notes.append(f"{what} is left out: {problem}")
            continue
        theta[m, g] = sized[m, g][1].input_tps
    for m, model in enumerate(hardware.models):
        if not _whole(hardware, theta[m]):
            why = [note for note in notes if note.startswith(f"{model.name} on")]
            raise ScenarioError(
                f"tiers: no GPU type of this scenario can serve {model.name} within its limits. "
                + " ".join(why)
            )
    pools = theta[:, :, None] * np.arange(1, POOL + 1)
    return Sizes(theta_tps=theta, pool_tps=pools, capacity=sized, notes=tuple(notes))


def size_over_time(hardware: Hardware, known: KnownLengths, seed: int, progress: Progress) -> Sizes:
    """``size`` by the lengths that the first decision knows, and again for decisions that know
    others. Where a model cannot be served at those, its decisions keep the sizes before."""
    first, *others = known.samples
    share = 1.0 / len(known.samples)
    sizes = size(hardware, first, seed, part(progress, 0.0, share))
    later, place, notes = [], [0], list(sizes.notes)
    for s, lengths in enumerate(others, start=1):
        try:
            later.append(size(hardware, lengths, seed, part(progress, s * share, (s + 1) * share)))
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


def _whole(hardware: Hardware, theta: FloatArray) -> bool:
    """Whether prompts and answers of a model can both be served."""
    able = theta > 0
    return bool(able[hardware.stages != 2].any() and able[hardware.stages != 1].any())
