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
        simulated = self.pools[model_column].set_by.points if model_column in self.pools else ()
        return max(single_replica.outside, *(pool.outside for pool in simulated), 0.0)

    def at_period(self, period: int) -> Sizes:
        """Return the sizes that the decision for a period uses."""
        chosen = 0 if self.of_period is None else int(self.of_period[period])
        return self.later[chosen - 1] if chosen else self

    def times(self, factor: FloatArray) -> Sizes:
        """Return the sizes with every capacity multiplied by its factor.

        Factors are ``[model, GPU column]``, or ``[model, GPU column, N]`` by the size of a pool. If
        the capacity per replica would then fall with the size, that of smaller pools is lowered.
        """
        n = np.arange(1, self.pool_tps.shape[-1] + 1)
        per_instance = self.pool_tps * (factor if factor.ndim > 2 else factor[:, :, None]) / n
        # The running minimum from the largest pool down keeps it rising with the size.
        rising = np.minimum.accumulate(per_instance[..., ::-1], axis=-1)[..., ::-1]
        pool_tps = n * rising
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
    burstiness: Sequence[Burstiness] = (),
    shared: Sequence[SharedPrompts | None] = (),
) -> Sizes:
    """Return the capacity of one replica and of pools of each model and GPU column, by simulation.

    Arguments by model: ``lengths`` (input, output tokens of sampled requests), ``burstiness`` (of
    their arrivals; empty: Poisson) and ``shared`` (requests to use instead if prefixes are cached).

    A GPU column that cannot meet a tier at any rate is omitted, with a note. Raises ScenarioError
    if no columns are left on which a model can prefill and decode.
    """
    pool_tps = np.zeros((len(hardware.models), len(hardware.gpus), MAX_INSTANCES))
    pools: dict[tuple[int, int], SizedPool] = {}
    notes: list[str] = []
    reasons: dict[int, list[str]] = {}  # by model, why columns are omitted
    # Spot replicas have the same speed as owned ones, so each profile and role is sized once.
    first_of: dict[tuple[int, int, str], int] = {}
    for done, ((m, g), profile) in enumerate(hardware.profiles.items()):
        first = first_of.setdefault((m, id(profile), hardware.columns[g].role), g)
        if first != g:
            if (m, first) in pools:
                pools[m, g], pool_tps[m, g] = pools[m, first], pool_tps[m, first]
            continue
        pool_words = f"{hardware.models[m].name} on {hardware.columns[g].label}"
        progress(done / len(hardware.profiles), f"Sizing {pool_words}")
        bursts = burstiness[m] if burstiness else 1.0
        try:
            pools[m, g] = sized_pool(
                hardware, m, g, lengths[m], seed, burstiness=bursts,
                shared=shared[m] if shared else None,
            )  # fmt: skip
        except SimulationError as problem:
            notes.append(f"{pool_words} is left out: {problem}")
            reasons.setdefault(m, []).append(str(problem))
            continue
        pool_tps[m, g] = pools[m, g].planned_tps(max_instances(hardware, m, g))
    theta_tps = in_large_pools(pool_tps)
    for m, model in enumerate(hardware.models):
        can_serve = theta_tps[m] > 0  # [GPU column]
        can_prefill = can_serve & (hardware.stages != STAGES["decode"])
        can_decode = can_serve & (hardware.stages != STAGES["prefill"])
        if not (can_prefill.any() and can_decode.any()):
            why = reasons.get(m, [])
            general = f"no GPU type of this scenario can serve {model.name} within its limits."
            raise ScenarioError("\n".join([f"tiers: {general}", *why]))
    return Sizes(
        theta_tps=theta_tps,
        pool_tps=pool_tps,
        capacity={model_column: pool.alone for model_column, pool in pools.items()},
        notes=tuple(notes),
        pools=pools,
    )


def size_over_time(hardware: Hardware, known: KnownLengths, seed: int, progress: Progress) -> Sizes:
    """Return the sizes for the request lengths that each decision of a window knows.

    If a model cannot be served with the lengths known at a later decision, that decision keeps the
    earlier sizes, with a note. Raises ScenarioError if this happens at the first decision.
    """
    first, *others = known.samples
    share = 1.0 / len(known.samples)
    shared = known.shared or ((),) * len(known.samples)
    sizes = size(hardware, first, seed, part(progress, 0.0, share), known.arrivals, shared[0])
    later, notes = [], list(sizes.notes)
    sizes_of_sample = [0]  # index of the sizes of each sample: 0 for ``sizes``, else in ``later``
    for s, lengths in enumerate(others, start=1):
        try:
            step = part(progress, s * share, (s + 1) * share)
            later.append(size(hardware, lengths, seed, step, known.arrivals, shared[s]))
        except ScenarioError as problem:
            notes.append(
                f"Sizes do not follow the lengths of requests, because with them: {problem}"
            )
            sizes_of_sample.append(sizes_of_sample[-1])
        else:
            sizes_of_sample.append(len(later))
    if later:
        notes.append(
            "Request lengths drift in this window. Each scaling decision uses past lengths, "
            f"with {len(later) + 1} sets of sizes."
        )
    by_period = np.array(sizes_of_sample, np.int64)[known.sample_of_period]
    return replace(sizes, notes=tuple(notes), later=tuple(later), of_period=by_period)


def in_large_pools(pool_tps: FloatArray) -> FloatArray:
    """Return the capacity per replica in the largest pool, ``[model, GPU column]``.

    ``pool_tps`` is ``[model, GPU column, N]``.
    """
    return np.asarray(pool_tps[:, :, -1] / pool_tps.shape[-1], np.float64)
