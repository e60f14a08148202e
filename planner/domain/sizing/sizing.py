"""Size replicas of each model on each GPU column within the SLOs, alone and in pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.progress import Progress, part
from planner.domain.sizing.curves import SizedPool, max_instances, sized_pool
from planner.domain.traffic.known_lengths import KnownLengths
from planner.domain.traffic.lengths import Lengths
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.columns import STAGES
from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.sizing.capacity import Capacity
from simulation.sizing.pool import MAX_INSTANCES
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness

At = tuple[int, int]  # indices of model and GPU column


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """Capacities of pools at the strictest interactive tier, in input tokens/s.

    ``pool_tps[m, g, n - 1]`` is the capacity that plans count on for n replicas of model m on GPU
    column g in one region, up to N replicas. It rises with n, and so does the capacity per replica.
    Beyond N, each replica adds ``theta_tps[m, g]``, the capacity per replica at N. Both are 0 if
    the model does not run there.

    ``capacity`` has the figures of a single replica by (m, g), with the tier that limits it.
    ``pools`` has the curves as simulated.

    These sizes are those of the first decision. If lengths drift, ``of_period`` has an index for
    each period: 0 for these sizes, s for the s-th of ``later``.
    """

    theta_tps: FloatArray  # [model, GPU column]
    pool_tps: FloatArray  # [model, GPU column, N]
    capacity: dict[tuple[int, int], tuple[str, Capacity]]
    notes: tuple[str, ...]
    pools: dict[tuple[int, int], SizedPool] = field(default_factory=dict)
    later: tuple[Sizes, ...] = ()
    of_period: IntArray | None = None  # [period]

    def extrapolated_share(self, model_column: tuple[int, int]) -> float:
        """Return the largest share of iterations outside the profile's measured range.

        It is the largest of all simulations of a replica and of its pools. ``model_column`` is an
        index (model, GPU column).
        """
        _, single_replica = self.capacity[model_column]
        simulated = (
            self.pools[model_column].strictest_curve.points if model_column in self.pools else ()
        )
        return max(single_replica.outside, *(pool.outside for pool in simulated), 0.0)

    def at_period(self, period: int) -> Sizes:
        """Return the sizes that the decision for a period uses."""
        chosen = 0 if self.of_period is None else int(self.of_period[period])
        return self.later[chosen - 1] if chosen else self

    def scaled(self, factor: FloatArray) -> Sizes:
        """Return the sizes with every capacity multiplied by its factor.

        Factors are ``[model, GPU column]``, or ``[model, GPU column, N]`` by the size of a pool. If
        the capacity per replica would then fall with the size, that of smaller pools is lowered.
        """
        replicas = np.arange(1, self.pool_tps.shape[-1] + 1)
        factor_by_size = factor if factor.ndim > 2 else factor[:, :, None]
        tps_per_replica = self.pool_tps * factor_by_size / replicas
        # Lower smaller pools to the minimum of all larger ones, so that it never falls.
        rising = np.minimum.accumulate(tps_per_replica[..., ::-1], axis=-1)[..., ::-1]
        pool_tps = replicas * rising
        return replace(
            self,
            theta_tps=in_large_pools(pool_tps),
            pool_tps=pool_tps,
            later=tuple(sizes.scaled(factor) for sizes in self.later),
        )


def size(
    hardware: Hardware,
    lengths: Sequence[Lengths],
    seed: int,
    progress: Progress,
    burstiness: Sequence[Burstiness] = (),
    shared: Sequence[SharedPrompts | None] = (),
) -> Sizes:
    """Return the capacity of one replica and of pools of each model and GPU column, by simulation.

    Arguments by model: ``lengths`` (input, output tokens of sampled requests), ``burstiness`` (of
    their arrivals; empty: Poisson) and ``shared`` (requests to use instead if prefixes are cached).
    A GPU column that cannot meet a tier at any rate is omitted, with a note. Raises ScenarioError
    if no columns are left on which a model can prefill and decode.
    """
    pools: dict[At, SizedPool] = {}  # by (model, GPU column)
    problems: dict[At, str] = {}  # why pools are omitted
    same_speed = _first_of_same_speed(hardware)
    # ``at`` is (model, GPU column); ``first`` is the first column of equal speed for that model.
    for done, (at, first) in enumerate(same_speed.items()):
        if first != at:
            if first in pools:  # else it was omitted
                pools[at] = pools[first]
            continue
        m, g = at
        progress(done / len(same_speed), f"Sizing {_words_of(hardware, at)}")
        bursts = burstiness[m] if burstiness else 1.0
        prompts = shared[m] if shared else None
        try:
            pools[at] = sized_pool(
                hardware, m, g, lengths[m], seed, burstiness=bursts, shared=prompts
            )
        except SimulationError as problem:
            problems[at] = str(problem)
    pool_tps = np.zeros((len(hardware.models), len(hardware.gpus), MAX_INSTANCES))
    for at, pool in pools.items():
        pool_tps[at] = pool.planned_tps(max_instances(hardware, *same_speed[at]))
    theta_tps = in_large_pools(pool_tps)
    _check_served(hardware, theta_tps, problems)
    alone = {at: pool.alone for at, pool in pools.items()}
    notes = [f"{_words_of(hardware, at)} is left out: {why}" for at, why in problems.items()]
    return Sizes(theta_tps, pool_tps, alone, tuple(notes), pools)


def _first_of_same_speed(hardware: Hardware) -> dict[At, At]:
    """Return for each (model, GPU column) the first one with the same profile and role.

    Spot replicas have the same speed as owned ones, so one size serves for both.
    """
    first_of: dict[tuple[int, int, str], At] = {}
    return {
        (m, g): first_of.setdefault((m, id(profile), hardware.columns[g].role), (m, g))
        for (m, g), profile in hardware.profiles.items()
    }


def _words_of(hardware: Hardware, at: At) -> str:
    """Return a pool in words, such as "llama-3.1-8b on H100"."""
    m, g = at
    return f"{hardware.models[m].name} on {hardware.columns[g].label}"


def _check_served(hardware: Hardware, theta_tps: FloatArray, problems: dict[At, str]) -> None:
    """Raise ScenarioError if a model has no GPU columns on which it can prefill and decode.

    ``problems`` say why pools were omitted.
    """
    for m, model in enumerate(hardware.models):
        stages = hardware.stages[theta_tps[m] > 0]
        if (stages != STAGES["decode"]).any() and (stages != STAGES["prefill"]).any():
            continue
        why = [problem for (of_model, _), problem in problems.items() if of_model == m]
        general = f"no GPU type of this scenario can serve {model.name} within its limits."
        raise ScenarioError("\n".join([f"tiers: {general}", *why]))


def size_over_time(hardware: Hardware, known: KnownLengths, seed: int, progress: Progress) -> Sizes:
    """Return the sizes for the request lengths that each decision of a window knows.

    If a model cannot be served with the lengths known at a later decision, that decision keeps the
    earlier sizes, with a note. Raises ScenarioError if this happens at the first decision.
    """
    samples = len(known.samples)
    sizes: list[Sizes] = []
    notes: list[str] = []
    index_of_sample = []  # in ``sizes``, by sample of lengths
    for s, lengths in enumerate(known.samples):
        shared = known.shared[s] if known.shared else ()
        step = part(progress, s / samples, (s + 1) / samples)
        try:
            sizes.append(size(hardware, lengths, seed, step, known.arrivals, shared))
        except ScenarioError as problem:
            if not sizes:
                raise
            notes.append(
                f"Sizes do not follow the lengths of requests, because with them: {problem}"
            )
        index_of_sample.append(len(sizes) - 1)
    if len(sizes) > 1:
        notes.append(
            "Request lengths drift in this window. Each scaling decision uses past lengths, "
            f"with {len(sizes)} sets of sizes."
        )
    first, *later = sizes
    of_period = np.array(index_of_sample, np.int64)[known.sample_of_period]
    return replace(first, notes=(*first.notes, *notes), later=tuple(later), of_period=of_period)


def in_large_pools(pool_tps: FloatArray) -> FloatArray:
    """Return the capacity per replica in the largest pool, ``[model, GPU column]``.

    ``pool_tps`` is ``[model, GPU column, N]``.
    """
    return np.asarray(pool_tps[:, :, -1] / pool_tps.shape[-1], np.float64)
