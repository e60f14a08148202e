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
        pool_interactive, pool_batch = (
            tuple(name for name in tiers if pool.takes(name)) for tiers in (interactive, batch)
        )
        if not pool_interactive or not pool_batch:  # nothing to split
            pools.append(pool)
            source_pools.append(p)
            continue
        batch_initial = round(pool.initial * batch_share)
        batch_initial = min(max(batch_initial, 1), pool.initial - 1) if pool.initial > 1 else 0
        pools += [
            replace(pool, tiers=pool_interactive, initial=pool.initial - batch_initial),
            replace(pool, tiers=pool_batch, initial=batch_initial),
        ]
        source_pools += [p, p]
    tiers = tuple(replace(tier, deferrable=False) for tier in fleet.tiers)
    return replace(fleet, pools=tuple(pools), tiers=tiers), source_pools


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
    kinds: list[tuple[tuple[str, ...] | None, int]] = [(interactive, start[0]), (None, start[1])]
    if not interactive:
        raise SimulationError("Chiron needs a tier that is not deferrable.")
    if batch:
        kinds.append((batch, start[2]))
    pools: list[Pool] = []
    source_pools: list[int] = []
    placed: set[tuple[str, str]] = set()
    for p, pool in enumerate(fleet.pools):
        remaining = 0 if (pool.model, pool.region) in placed else pool.maximum
        for kind, (tiers, count) in enumerate(kinds):
            initial = min(count, remaining)
            remaining -= initial
            minimum = min(pool.minimum, pool.maximum) if kind == 0 else 0
            pools.append(replace(pool, tiers=tiers, initial=initial, minimum=minimum))
            source_pools.append(p)
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
