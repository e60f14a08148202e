"""Size pools of a model on a column: C(n), the capacity of n instances, at each interactive tier.

Each curve is simulated once per process, because compare, plan, size and pd-ratio of a scenario
need the same ones.
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

KEPT = 256  # curves cached per process


@dataclass(frozen=True, slots=True)
class _CurveKey:
    """The inputs of a capacity curve as a cache key: equal inputs have an equal ``digest``."""

    digest: str
    case: SizingCase = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class SizedPool:
    """The capacity curves of one model on one column, one for each of the strictest tiers."""

    curves: tuple[tuple[Tier, PoolCurve], ...]

    @property
    def alone(self) -> tuple[str, Capacity]:
        """Return the tier with the lowest capacity of a single instance, and that capacity."""
        tier = next(tier for tier, curve in self.curves if curve is self.set_by)
        return tier.name, self.set_by.alone

    @property
    def set_by(self) -> PoolCurve:
        """Return the curve of the tier that limits a single instance most."""
        return min((curve for _, curve in self.curves), key=lambda curve: curve.alone.input_tps)

    def planned_tps(self, max_instances: int) -> FloatArray:
        """Return the input tokens/s that plans count on, for pools of 1 to ``max_instances``.

        It is the lowest of all tiers. See ``PoolCurve.planned_tps``.
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
    """Return the capacity curve C(n) of model ``m`` on column ``g``, in that column's role.

    A decode column receives its KV caches over the model's first link. If the serving caches
    prefixes, ``shared`` replaces the requests, and their shared prompts are cached. Decode columns
    do not use ``shared``. Raise SimulationError if a tier cannot be met at any rate.
    """
    by_tier = _cases_by_tier(hardware, m, g, lengths, seed, burstiness, shared)
    return SizedPool(tuple((tier, _in_part_or_whole(case, tier)) for tier, case in by_tier))


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
    """Return one instance's requests/s with another ``profile``, the lowest of all tiers.

    ``model_column`` is an index (model, GPU column). ``shared`` has the cached tokens or prompt
    blocks of the model; None: not known.
    """
    m, g = model_column
    cases = _cases_by_tier(hardware, m, g, lengths, seed, burstiness, shared)
    return min(capacity(replace(case, profile=profile)).max_rps for _, case in cases)


def _cases_by_tier(
    hardware: Hardware, m: int, g: int, lengths: Lengths, seed: int, burstiness: Burstiness,
    shared: SharedPrompts | None,
) -> list[tuple[Tier, SizingCase]]:  # fmt: skip
    """Return the simulation inputs of a capacity curve for each of the strictest tiers.

    ``m`` and ``g`` are the indices of model and column. ``shared`` has cached prompts, if known.
    """
    role = hardware.columns[g].role
    link = hardware.kv_link(m) if role == "decode" else None
    lengths, blocks = cached_blocks(hardware, m, lengths, None if role == "decode" else shared)
    return [
        (
            tier,
            SizingCase(
                hardware.profiles[m, g], lengths, role_tier(tier, role), seed, role,
                link, hardware.serving[m].batching, burstiness, hardware.routing, blocks,
            ),
        )
        for tier in strictest_tiers(hardware.limits_of(m))
    ]  # fmt: skip


def cached_blocks(
    hardware: Hardware, m: int, lengths: Lengths, shared: SharedPrompts | None
) -> tuple[Lengths, Prefixes | None]:
    """Return the lengths of a model's requests, and their prompt blocks or cached tokens.

    If the model's serving caches prefixes and ``shared`` is given, both come from ``shared``.
    Otherwise the lengths stay, without blocks.
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
    """Return a model's requests for closed forms, with cached tokens but without prompt blocks.

    ``m`` is the index of the model. ``shared`` has its cached prompts; None: not known.
    """
    if shared is None or not isinstance(shared.blocks, CachedTokens):
        return Workload(*lengths, burstiness=burstiness)
    lengths, counted = cached_blocks(hardware, m, lengths, shared)
    known = counted if isinstance(counted, CachedTokens) else None
    return Workload(*lengths, burstiness=burstiness, cached=known)


def pair_of_curves(
    prefill: SizingCase, decode: SizingCase
) -> tuple[tuple[FloatArray, str], tuple[FloatArray, str]]:
    """Return the capacities of 1, 2, ... prefill and decode instances, each with what limits them.

    Capacities are in requests/s, as plans use them. Both cases must have all latency limits of the
    tier; each role gets its part of them here. Raise SimulationError if a role cannot meet its part
    at any rate.
    """
    curves = []
    for pool in (prefill, decode):
        part = replace(pool, tier=role_tier(pool.tier, pool.role))
        curve = _in_part_or_whole(part, pool.tier)
        # Capacities count the input tokens of the requests served, in both roles.
        rps = curve.planned_tps(MAX_INSTANCES) / curve.mean_isl
        curves.append((rps, curve.alone.bound_by))  # what limits one instance alone
    return curves[0], curves[1]


def curve_of(case: SizingCase) -> PoolCurve:
    """Return the capacity curve of a case.

    Raise SimulationError if one instance cannot meet the tier at any rate.
    """
    values = tuple(getattr(case, field.name) for field in fields(case))
    return _curve(_CurveKey(digest_of(values), case))


def _in_part_or_whole(case: SizingCase, tier: Tier) -> PoolCurve:
    """Return the curve for the part of the tier in ``case``, or else for the whole ``tier``.

    The part can be unreachable even at the smallest rate. Using the whole tier assumes that the
    other role misses no limit.
    """
    try:
        return curve_of(case)
    except SimulationError:
        if case.tier == tier:
            raise
        return curve_of(replace(case, tier=tier))


@lru_cache(maxsize=KEPT)
def _curve(key: _CurveKey) -> PoolCurve:
    """Return the curve of the key's case, simulated once per process."""
    return pool_curve(key.case)


def strictest_tiers(tiers: list[Tier]) -> list[Tier]:
    """Return the tiers that are not implied by another tier.

    A tier is implied if another has limits at least as tight and an attainment target at least as
    high.
    """

    def implied(easy: Tier, hard: Tier) -> bool:
        """Return whether a fleet that meets ``hard`` also meets ``easy``."""
        limits = [
            (getattr(easy, name), getattr(hard, name)) for name in ("ttft_s", "tbt_s", "e2e_s")
        ]
        looser = all(a is None or (b is not None and b <= a) for a, b in limits)
        return looser and hard.attainment >= easy.attainment

    strictest: list[Tier] = []
    for tier in tiers:
        if any(implied(tier, other) for other in strictest):
            continue
        strictest = [other for other in strictest if not implied(other, tier)] + [tier]
    return strictest


def unsized_sentences(hardware: Hardware, trace: Trace) -> tuple[str, ...]:
    """Return a sentence for every model and tier of ``trace`` that the sizes ignore.

    The sizes ignore a tier if none of its requests was known when they were computed.
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


def most_instances(hardware: Hardware, m: int, g: int) -> int:
    """Return the most instances of model ``m`` that GPU column ``g`` can have in one region.

    The result is between 1 and ``MAX_INSTANCES``, the length of a curve.
    """
    types = hardware.capacity_gpus[:, hardware.types[g]] // hardware.profiles[m, g].tp
    return int(np.clip(np.minimum(types, hardware.maximum[m, :, g]).max(), 1, MAX_INSTANCES))
