"""Size pools of a model on a GPU column at each interactive tier.

The capacity curve C(n) is the capacity of n replicas. Each curve is simulated once per process,
because compare, plan, size and pd-ratio of a scenario need the same ones.
"""

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

import numpy as np

from planner.domain.traffic.lengths import Lengths
from planner.inputs.scenario.build import Hardware
from simulation.arrays import FloatArray
from simulation.digest import digest_of
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.profile import Profile
from simulation.sizing.capacity import Capacity, SizingCase, capacity
from simulation.sizing.pd_slo_split import role_tier
from simulation.sizing.pool import MAX_INSTANCES, PoolCurve, pool_curve
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness, Workload
from simulation.trace import CachedTokens, Prefixes, Trace

CACHED_CURVES = 256  # curves cached per process


@dataclass(frozen=True, slots=True)
class _CurveKey:
    """The inputs of a capacity curve as a cache key: equal inputs have an equal ``digest``."""

    digest: str
    case: SizingCase = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class SizedPool:
    """The capacity curves of one model on one GPU column, one for each of the strictest tiers."""

    curves: tuple[tuple[Tier, PoolCurve], ...]

    @property
    def alone(self) -> tuple[str, Capacity]:
        """Return (name of the tier that limits a single replica most, its capacity there)."""
        tier = next(tier for tier, curve in self.curves if curve is self.strictest_curve)
        return tier.name, self.strictest_curve.alone

    @property
    def strictest_curve(self) -> PoolCurve:
        """Return the curve of the tier that limits a single replica most."""
        return min((curve for _, curve in self.curves), key=lambda curve: curve.alone.input_tps)

    def planned_tps(self, max_instances: int) -> FloatArray:
        """Return the input tokens/s that plans count on, for pools of 1 to ``max_instances``.

        They are the lowest of all tiers.
        """
        return np.asarray(
            np.min([curve.planned_tps(max_instances) for _, curve in self.curves], axis=0)
        )


def sized_pool(
    hardware: Hardware,
    m: int,
    g: int,
    lengths: Lengths,
    seed: int,
    *,
    burstiness: Burstiness = 1.0,
    shared: SharedPrompts | None = None,
) -> SizedPool:
    """Return the capacity of pools of 1, 2, ... replicas of model ``m`` on GPU column ``g``.

    ``lengths`` are (input, output) tokens of sampled requests, ``burstiness`` is that of their
    arrivals. If the model caches prefixes, requests of ``shared`` are used instead, except on
    decode columns. Raises SimulationError if a tier cannot be met at any rate.
    """
    by_tier = _cases_by_tier(hardware, m, g, lengths, seed, burstiness, shared)
    return SizedPool(tuple((tier, _curve_for_role(case, tier)) for tier, case in by_tier))


def sized_alone(
    hardware: Hardware,
    model_column: tuple[int, int],
    lengths: Lengths,
    seed: int,
    *,
    profile: Profile,
    burstiness: Burstiness = 1.0,
    shared: SharedPrompts | None = None,
) -> float:
    """Return the requests/s of one replica with another ``profile``, the lowest of all tiers.

    ``model_column`` is an index (model, GPU column). The other arguments are those of
    ``sized_pool``.
    """
    m, g = model_column
    cases = _cases_by_tier(hardware, m, g, lengths, seed, burstiness, shared)
    return min(capacity(replace(case, profile=profile)).max_rps for _, case in cases)


def _cases_by_tier(
    hardware: Hardware, m: int, g: int, lengths: Lengths, seed: int, burstiness: Burstiness,
    shared: SharedPrompts | None,
) -> list[tuple[Tier, SizingCase]]:  # fmt: skip
    """Return each of the strictest tiers with the simulation inputs of its capacity curve.

    ``m`` and ``g`` are the indices of the model and of the GPU column. ``shared`` are prompts that
    requests have in common, which decode replicas do not compute.
    """
    role = hardware.columns[g].role
    link = hardware.kv_link(m) if role == "decode" else None
    lengths, blocks = cached_blocks(hardware, m, lengths, None if role == "decode" else shared)
    return [
        (
            tier,
            SizingCase(
                hardware.profiles[m, g], lengths, role_tier(tier, role), seed, role, link=link,
                batching=hardware.serving[m].batching, burstiness=burstiness,
                routing=hardware.routing, blocks=blocks,
            ),
        )
        for tier in strictest_tiers(hardware.limits_of(m))
    ]  # fmt: skip


def cached_blocks(
    hardware: Hardware, m: int, lengths: Lengths, shared: SharedPrompts | None
) -> tuple[Lengths, Prefixes | None]:
    """Return (lengths, prefixes) of the requests to size model ``m`` for.

    If the model's serving caches prefixes and ``shared`` is given, both come from ``shared``.
    Otherwise they are ``lengths`` and None.
    """
    if shared is None or not hardware.serving[m].prefix_caching:
        return lengths, None
    return (shared.isl, shared.osl), shared.blocks


def workload_of(
    hardware: Hardware,
    m: int,
    lengths: Lengths,
    shared: SharedPrompts | None = None,
    burstiness: float = 1.0,
) -> Workload:
    """Return the requests of model number ``m`` for closed forms.

    They have the cached tokens of ``shared``, if known, but no prompt blocks.
    """
    if shared is None or not isinstance(shared.blocks, CachedTokens):
        return Workload(*lengths, burstiness=burstiness)
    lengths, counted = cached_blocks(hardware, m, lengths, shared)
    known = counted if isinstance(counted, CachedTokens) else None
    return Workload(*lengths, burstiness=burstiness, cached=known)


def role_capacity(case: SizingCase) -> tuple[FloatArray, str]:
    """Return (rps, limit) of a pool that only prefills or only decodes, as ``case.role`` says.

    ``rps`` are the requests/s of 1, 2, ... replicas, as plans use them. ``limit`` is what limits a
    single replica. The case has the tier of both roles. The role must meet its part of that tier's
    attainment target. Raises SimulationError if it cannot at any rate.
    """
    curve = _curve_for_role(replace(case, tier=role_tier(case.tier, case.role)), case.tier)
    # Capacities count the input tokens of the requests served, in both roles.
    return curve.planned_tps(MAX_INSTANCES) / curve.mean_isl, curve.alone.bound_by


def curve_of(case: SizingCase) -> PoolCurve:
    """Return the capacity curve of a case.

    Raise SimulationError if one replica cannot meet the tier at any rate.
    """
    values = tuple(getattr(case, field.name) for field in fields(case))
    return _curve(_CurveKey(digest_of(values), case))


def _curve_for_role(case: SizingCase, tier: Tier) -> PoolCurve:
    """Return the capacity curve of ``case``, whose tier has the attainment target of its role.

    That is higher than the target of ``tier``, which both roles must meet together. If one replica
    misses it at any rate, use the target of ``tier``, as if the other role missed no limit.
    """
    try:
        return curve_of(case)
    except SimulationError:
        if case.tier == tier:
            raise
        return curve_of(replace(case, tier=tier))


@lru_cache(maxsize=CACHED_CURVES)
def _curve(key: _CurveKey) -> PoolCurve:
    """Return the curve of the key's case, simulated once per process."""
    return pool_curve(key.case)


def strictest_tiers(tiers: list[Tier]) -> list[Tier]:
    """Return ``tiers`` without those that a fleet always meets if it meets another one.

    Of equal tiers, the first stays.
    """

    def implies(easy: Tier, hard: Tier) -> bool:
        """Return whether a fleet that meets ``hard`` also meets ``easy``."""
        for name in ("ttft_s", "tbt_s", "e2e_s"):
            limit_s, hard_limit_s = getattr(easy, name), getattr(hard, name)
            if limit_s is not None and (hard_limit_s is None or hard_limit_s > limit_s):
                return False
        return hard.attainment >= easy.attainment

    strictest: list[Tier] = []
    for tier in tiers:
        if any(implies(tier, other) for other in strictest):
            continue
        strictest = [other for other in strictest if not implies(other, tier)] + [tier]
    return strictest


def unsized_sentences(hardware: Hardware, trace: Trace) -> tuple[str, ...]:
    """Return a sentence for every model and tier of ``trace`` that the sizes ignore.

    Sizes ignore the tiers that had no requests of the model before the window.
    """
    sentences = []
    for m, model in enumerate(hardware.models):
        limits = hardware.limits_of(m)
        for t in np.unique(trace.tier[trace.model == m]).tolist():
            tier = hardware.tiers[t]
            if tier.deferrable or tier in limits:
                continue
            if tier in strictest_tiers([*limits, tier]):  # no known tier implies its limits
                sentences.append(
                    f"Requests of tier {tier.name} come for {model.name} in this window, and none "
                    "was known before. Its sizes keep only the limits of its other tiers."
                )
    return tuple(sentences)


def max_instances(hardware: Hardware, m: int, g: int) -> int:
    """Return the most replicas of model ``m`` that GPU column ``g`` can have in one region.

    The result is between 1 and ``MAX_INSTANCES``, the length of a curve.
    """
    by_gpus = hardware.capacity_gpus[:, hardware.types[g]] // hardware.profiles[m, g].tp
    by_region = np.minimum(by_gpus, hardware.maximum[m, :, g])
    return int(np.clip(by_region.max(), 1, MAX_INSTANCES))
