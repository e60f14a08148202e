"""Split pools by the tiers that they serve (methods.md E8: the siloed baseline and Chiron).

The fleet changes, not the policy: a pool becomes several that differ in ``Pool.tiers``.
"""

from dataclasses import replace

from simulation.errors import SimulationError
from simulation.fleet import Fleet, Pool

INTERACTIVE, MIXED, BATCH = "interactive", "mixed", "batch"
BATCH_SHARE = 0.2  # SageServe, section 4: 16 instances for IW, 4 for NIW
CHIRON_START = (10, 5, 5)  # SageServe, section 7.1: interactive, mixed, batch of model and region


def siloed_fleet(fleet: Fleet, batch_share: float = BATCH_SHARE) -> tuple[Fleet, list[int]]:
    """Split every pool into one for interactive and one for deferrable tiers.

    The second gets ``batch_share`` of the instances. Both get at least one if the pool has two or
    more. Deferrable requests are no longer deferred, because they have their own instances. Without
    tiers of both kinds nothing is split. Returns the new fleet, and for each of its pools the index
    of the pool it came from.
    """
    interactive, batch = tiers_by_kind(fleet)
    if not interactive or not batch:
        return fleet, list(range(len(fleet.pools)))
    pools: list[Pool] = []
    source_pools: list[int] = []
    for p, pool in enumerate(fleet.pools):
        parts = _split_by_tier(pool, interactive, batch, batch_share)
        pools += parts
        source_pools += [p] * len(parts)
    tiers = tuple(replace(tier, deferrable=False) for tier in fleet.tiers)
    return replace(fleet, pools=tuple(pools), tiers=tiers), source_pools


def _split_by_tier(
    pool: Pool, interactive: tuple[str, ...], batch: tuple[str, ...], batch_share: float
) -> list[Pool]:
    """Return a pool for each kind of tier that ``pool`` takes, or ``pool`` if it takes one kind."""
    interactive = tuple(name for name in interactive if pool.takes(name))
    batch = tuple(name for name in batch if pool.takes(name))
    if not interactive or not batch:
        return [pool]
    # At least one instance of each kind, if there are two
    batch_count = max(round(pool.initial * batch_share), 1)
    batch_count = min(batch_count, max(pool.initial - 1, 0))
    return [
        replace(pool, tiers=interactive, initial=pool.initial - batch_count),
        replace(pool, tiers=batch, initial=batch_count),
    ]


def chiron_fleet(
    fleet: Fleet, start: tuple[int, int, int] = CHIRON_START
) -> tuple[Fleet, list[int]]:
    """Split every pool into interactive, mixed (all tiers) and batch instances.

    In each model and region, the first pool with capacity begins with ``start`` instances of each
    kind, and the others begin empty. Without deferrable tiers there are no batch instances. Returns
    the new fleet, and for each of its pools the index of the pool it came from. Raises
    SimulationError for prefill and decode pools, since Chiron's instances do both, and without an
    interactive tier.
    """
    if any(pool.role != "both" for pool in fleet.pools):
        raise SimulationError("Chiron has no rule for prefill and decode pools, only for both.")
    interactive, batch = tiers_by_kind(fleet)
    if not interactive:
        raise SimulationError("Chiron needs a tier that is not deferrable.")
    kinds = [interactive, None, batch] if batch else [interactive, None]  # None: any tier
    pools: list[Pool] = []
    source_pools: list[int] = []
    placed: set[tuple[str, str]] = set()
    for p, pool in enumerate(fleet.pools):
        remaining = 0 if (pool.model, pool.region) in placed else pool.maximum
        minimum = min(pool.minimum, pool.maximum)  # of the first kind
        for tiers, count in zip(kinds, start, strict=False):
            initial = min(count, remaining)
            remaining -= initial
            pools.append(replace(pool, tiers=tiers, initial=initial, minimum=minimum))
            source_pools.append(p)
            minimum = 0
        if pool.maximum:
            placed.add((pool.model, pool.region))
    return replace(fleet, pools=tuple(pools)), source_pools


def tiers_by_kind(fleet: Fleet) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the interactive and of the deferrable tiers."""
    interactive = tuple(tier.name for tier in fleet.tiers if not tier.deferrable)
    return interactive, tuple(tier.name for tier in fleet.tiers if tier.deferrable)


def pool_kind(pool: Pool, fleet: Fleet) -> str:
    """Return INTERACTIVE, BATCH, or MIXED for a pool with tiers of both kinds.

    A pool that takes any tier is MIXED, unless all tiers of the fleet are deferrable.
    """
    interactive, batch = tiers_by_kind(fleet)
    serves = pool.tiers or (*interactive, *batch)
    if not set(serves) & set(batch):
        return MIXED if pool.tiers is None else INTERACTIVE
    return MIXED if set(serves) & set(interactive) else BATCH
