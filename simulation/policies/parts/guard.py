"""The decision of a reactive guard above a plan, compiled because it runs every few seconds.

The unit of load is what one instance serves in a large pool at its rated load. Requests pile up if
more than PILED_UP times those that the ready instances hold at their rated load are in flight. For
the arrays see ``policy.Guard``. ``p`` is the index of a pool.
"""

from typing import Any

import numpy as np

from simulation.arrays import FloatArray
from simulation.compiler import cached_kernel, kernel
from simulation.policies.parts.stability import PILED_UP, ROUNDING
from simulation.policy import Guard

# Rows of ``observed``: the planned instances, and what a decision reads from its observation.
OBSERVED = _PLANNED, _READY, _STARTING, _WAITING, _PREFILL_TPS, _DECODE_TPS, _BATCH, _LATE = tuple(
    range(8)
)
# Rows of ``pools``, of an instance of each pool: tokens/s and requests in flight at its rated load,
# number of its group of pools that share requests, tokens/s as its weight there, and the share of
# late requests that its tiers allow.
_MOST_PREFILL_TPS, _MOST_DECODE_TPS, _HELD_AT_RATED_LOAD, _GROUP, _GROUP_WEIGHT, ALLOWED = POOLS = (
    tuple(range(6))
)
# Rows of a decision in ``loads``: see ``_record_load``.
LOAD = _SERVED, _IN_FLIGHT, _RATED_IN_FLIGHT, _LOAD_SHARE, _IS_LATE = tuple(range(5))
# Rows of ``memory``. PILED_S is the last time at which requests were piled up, OVERLOAD the result
# of ``_late_load``. LATE, SERVED and READY are means over about LATE_S: of the served load times
# its late share over AIM of the allowed share, of the served load, and of the ready instances.
# PER_LOAD are the instances per load that late requests require.
MEMORY = PILED_S, OVERLOAD, LATE, SERVED, READY, PER_LOAD = tuple(range(6))
LATE_S = 900.0  # span over which late requests are counted, if none piled up in it
# Share of the allowed late requests at which the guard holds them. The rest is for those that are
# late before it acts: it waits for LATE_S and for the start of an instance.
AIM = 0.85
FADE_S = 1800.0  # in which the instances that late requests required fall to 1/e, per load
MOST_LATE = 2.0  # late requests over AIM of the allowed ones; more add no more instances
LEAST_LOAD = 0.3  # smallest load of an instance that late requests may require
LEAST_ALLOWED = 0.001  # share of late requests that counts as allowed if a tier allows none
# Entries of ``settings``
_TOLERANCE, _RISE_S, _FALL_S, _GROWTH, _LEAST_GROWTH = tuple(range(5))
UNUSED_S = -np.inf  # time of a row without a decision


def inactive_guard(pools: int) -> Guard:
    """Return a guard that has no pool and never acts, for policies without a guard."""
    none = np.zeros(0)
    return Guard(
        np.zeros((len(POOLS), 0)), np.zeros((0, 1)), np.zeros((0, len(LOAD), 0)), none,
        np.zeros((len(MEMORY), 0)), np.zeros((0, 0)), none, np.zeros(pools), np.zeros(1), none,
        np.zeros((0, len(OBSERVED), 0)), np.zeros(1, np.int64),
    )  # fmt: skip


def capacity_table(pools: int, shares: FloatArray | None) -> FloatArray:
    """Return the load that 0 to N instances of each pool serve, ``[pools, N + 1]``.

    The unit of load is the capacity of one instance in a large pool. ``shares [pools, N]`` is the
    capacity of one instance in a pool of 1 to N, relative to that. It rises with n, since a request
    that finds one instance busy goes to another, and is 1 from N on. So n instances serve
    n * share(n), about n - k sqrt(n) (square-root staffing: Halfin and Whitt, 1981;
    ``simulation.sizing.pool``). Without ``shares`` they serve n.
    """
    each = np.ones((pools, 1)) if shares is None else np.asarray(shares, np.float64)
    # No instance serves nothing. Rounding must not make capacity fall with more instances.
    loads = each * np.arange(1, each.shape[1] + 1)
    table = np.concatenate([np.zeros((pools, 1)), loads], axis=1)
    return np.asarray(np.maximum.accumulate(table, axis=1))


@kernel
def load_of(capacity: Any, pool: int, count: float) -> float:
    """Return the load that ``count`` instances of ``pool`` serve, by ``capacity_table``.

    Beyond the table, each further instance serves a load of 1.
    """
    within_table = min(int(count), capacity.shape[1] - 1)
    return float(capacity[pool, within_table] + (count - within_table))


@kernel
def fewest_instances(capacity: Any, pool: int, load: float) -> float:
    """Return the smallest number of instances of ``pool`` that serve ``load``."""
    largest, needed, count = capacity.shape[1] - 1, load - ROUNDING, 0
    while count <= largest and capacity[pool, count] < needed:
        count += 1
    if count <= largest:
        return float(count)
    return float(
        largest + np.ceil(needed - capacity[pool, largest])
    )  # a load of 1 for each further


@kernel
def _record_load(observed: Any, pools: Any, capacity: Any, loads: Any) -> None:
    """Write the load of each pool at this decision to the last row of ``loads``, by LOAD.

    The entries are the served load, the requests in flight, those that the ready instances hold at
    their rated load, the served load over their capacity, and whether more requests are late than
    the tiers allow.
    """
    entries = loads[-1]
    for pool in range(observed.shape[1]):
        ready, waiting = observed[_READY, pool], observed[_WAITING, pool]
        # NaN (not measured) counts as 0 in both comparisons.
        served = 0.0
        for tps, rated in ((_PREFILL_TPS, _MOST_PREFILL_TPS), (_DECODE_TPS, _MOST_DECODE_TPS)):
            if observed[tps, pool] > 0:
                served = max(served, observed[tps, pool] / pools[rated, pool])
        batch = observed[_BATCH, pool] if observed[_BATCH, pool] > 0 else 0.0
        in_flight = (batch + waiting / ready) * ready if ready > 0 else waiting
        ready_capacity = load_of(capacity, pool, max(ready, 1.0))
        entries[_SERVED, pool], entries[_IN_FLIGHT, pool] = served, in_flight
        entries[_RATED_IN_FLIGHT, pool] = pools[_HELD_AT_RATED_LOAD, pool] * ready_capacity
        entries[_LOAD_SHARE, pool] = served / ready_capacity
        entries[_IS_LATE, pool] = 1.0 if observed[_LATE, pool] > pools[ALLOWED, pool] else 0.0


@kernel
def _smallest(loads: Any, row: int, pool: int) -> float:
    """Return the smallest value of a row of ``loads`` for ``pool`` over its decisions."""
    least = loads[0, row, pool]
    for i in range(1, loads.shape[0]):
        least = min(least, loads[i, row, pool])
    return float(least)


@kernel
def _late_load(loads: Any, pool: int, settled: bool, tolerance: float, overload: float) -> float:
    """Return the load of ``pool`` above which requests are late, as a share of planned capacity.

    Planned capacity assumes the lengths of earlier requests. Longer outputs use memory for longer,
    and each token reads more of it. An instance then serves fewer requests within its limits:
    requests are late and too many are in flight, though none wait.

    ``overload`` is the value at the last decision; infinite: no such load is known. It falls to the
    present load if every decision in ``loads`` saw late requests and too many in flight. This needs
    a ``settled`` pool, where no instance starts and no requests piled up lately. It rises if a load
    less than ``tolerance`` below it was served in time.
    """
    decisions = loads.shape[0]
    late_decisions, mean_load = 0.0, 0.0
    least_in_flight = np.inf  # over the requests that instances hold at their rated load
    for i in range(decisions):
        late_decisions += loads[i, _IS_LATE, pool]
        mean_load += loads[i, _LOAD_SHARE, pool]
        rated = loads[i, _RATED_IN_FLIGHT, pool]
        in_flight = loads[i, _IN_FLIGHT, pool] / rated if rated > 0 else 0.0
        least_in_flight = min(least_in_flight, in_flight)
    mean_load /= decisions
    if late_decisions == 0:
        return float(max(overload, mean_load * (1 + tolerance)))
    always_late = late_decisions == decisions and mean_load > 0
    if settled and always_late and least_in_flight > 1 + tolerance:
        return float(min(overload, mean_load))
    return overload


@kernel
def _record_late(time_s: float, span_s: float, observed: Any, guard: Any, pool: int) -> None:
    """Update the means of late requests of ``pool``, and the instances that they require.

    The means have exponentially falling weights, with the mean age of a window of LATE_S.
    ``span_s`` is the time since the last decision. Requests that pile up are late for another
    reason, so the means begin again after that.

    Instances that are slower than planned serve less within the limits, at any load. So late
    requests require as many instances per load as were ready, times the square root of the late
    requests over AIM of the allowed ones. This settles where both are equal. The root keeps it
    stable, since new instances need minutes to start and to show an effect.
    """
    memory = guard.memory
    weight = 1.0 - np.exp(-span_s / (LATE_S / 2))
    served = guard.loads[-1, _SERVED, pool]
    late = observed[_LATE, pool] / (AIM * max(guard.pools[ALLOWED, pool], LEAST_ALLOWED))
    late_load = late * served if late > 0 else 0.0
    if time_s - memory[PILED_S, pool] <= LATE_S:
        weight, late_load = 1.0, 0.0
    memory[LATE, pool] += weight * (late_load - memory[LATE, pool])
    memory[SERVED, pool] += weight * (served - memory[SERVED, pool])
    memory[READY, pool] += weight * (observed[_READY, pool] - memory[READY, pool])
    # If fewer are late now, that may be due to the added instances, so these are removed slowly.
    memory[PER_LOAD, pool] *= np.exp(-span_s / FADE_S)
    if memory[LATE, pool] > memory[SERVED, pool] > 0:
        excess = min(MOST_LATE, memory[LATE, pool] / memory[SERVED, pool])
        required = memory[READY, pool] / memory[SERVED, pool] * np.sqrt(excess)
        memory[PER_LOAD, pool] = max(required, memory[PER_LOAD, pool])


@kernel
def _instances_for_late(memory: Any, capacity: Any, pool: int, load: float) -> float:
    """Return the instances of ``pool`` that late requests require for ``load``."""
    needed = np.ceil(load * memory[PER_LOAD, pool] - ROUNDING)
    # Where no number of instances would be enough, it does not grow forever.
    return float(min(needed, fewest_instances(capacity, pool, load / LEAST_LOAD)))


@kernel
def _instances_for_queue(
    loads: Any, observed: Any, pools: Any, capacity: Any, pool: int, tolerance: float
) -> float:
    """Return the instances of ``pool`` that piled-up requests require; 0 if none pile up.

    Requests pile up if every decision in ``loads`` saw more than ``PILED_UP`` times the requests
    that ready instances hold. The present instances suffice if the requests in flight fall by more
    than ``tolerance``, or if instances start and they do not grow by more than it.
    """
    now = loads[-1]
    if _smallest(loads, _IN_FLIGHT, pool) <= PILED_UP * now[_RATED_IN_FLIGHT, pool]:
        return 0.0
    present = observed[_READY, pool] + observed[_STARTING, pool]
    accepted_growth = tolerance if observed[_STARTING, pool] > 0 else -tolerance
    if now[_IN_FLIGHT, pool] <= (1 + accepted_growth) * loads[0, _IN_FLIGHT, pool]:
        return float(present)
    load = now[_IN_FLIGHT, pool] / pools[_HELD_AT_RATED_LOAD, pool]
    return float(max(fewest_instances(capacity, pool, load), present))


@kernel
def _fill_required_instances(
    time_s: float, span_s: float, observed: Any, guard: Any, loads: Any, out: Any
) -> bool:
    """Fill ``out [pools]`` with the instances that the guard requires; 0 if the plan suffices.

    Returns whether any pool requires some. Each pool has four reasons to require instances, and the
    largest number counts. ``observed`` has the rows ``OBSERVED``. ``loads`` has the last decisions
    within ``rise_s``, this one as the last row. ``span_s`` is the time since the decision before.
    """
    pools, capacity, memory = guard.pools, guard.capacity, guard.memory
    tolerance, planned = guard.settings[_TOLERANCE], observed[_PLANNED]
    count, requires_any = observed.shape[1], False
    limits = np.zeros(count)  # loads that the planned instances serve, with the tolerance
    # Tokens/s served and planned for, of all pools of a model and role that share requests.
    group_load, group_limit = np.zeros(count), np.zeros(count)
    for pool in range(count):
        group, weight = int(pools[_GROUP, pool]), pools[_GROUP_WEIGHT, pool]
        group_load[group] += _smallest(loads, _SERVED, pool) * weight
        limits[pool] = load_of(capacity, pool, planned[pool]) * (1 + tolerance) + ROUNDING
        group_limit[group] += limits[pool] * weight
    for pool in range(count):
        # 1. For the served load. A plan uses spare capacity of the group, so a full pool alone
        # needs no more instances.
        group, load = int(pools[_GROUP, pool]), _smallest(loads, _SERVED, pool)
        required = 0.0
        if load > limits[pool] and group_load[group] > group_limit[group]:
            required = fewest_instances(capacity, pool, load)
        # 2. For piled-up requests.
        for_queue = _instances_for_queue(loads, observed, pools, capacity, pool, tolerance)
        if for_queue > 0:
            memory[PILED_S, pool] = time_s
        required = max(required, for_queue)
        # 3. For the load above which requests were late.
        since_pile_s = time_s - memory[PILED_S, pool]
        settled = since_pile_s > guard.settings[_FALL_S] and observed[_STARTING, pool] == 0
        overload = _late_load(loads, pool, settled, tolerance, memory[OVERLOAD, pool])
        memory[OVERLOAD, pool] = overload
        if np.isfinite(overload):
            in_time = fewest_instances(capacity, pool, load * (1 + tolerance) / overload)
            if in_time > planned[pool]:
                required = max(required, in_time)
        # 4. For late requests, at any load.
        _record_late(time_s, span_s, observed, guard, pool)
        for_late = _instances_for_late(memory, capacity, pool, load)
        if for_late > planned[pool]:
            required = max(required, for_late)
        out[pool] = required
        requires_any = requires_any or required > 0
    return requires_any


@kernel
def _drop_oldest(times_s: Any, rows: Any, time_s: float) -> None:
    """Move ``rows`` and their ``times_s`` up by one, for a new last row at ``time_s``."""
    last = times_s.shape[0] - 1
    for i in range(last):
        times_s[i] = times_s[i + 1]
        rows[i] = rows[i + 1]
    times_s[last] = time_s


@kernel
def decide_targets(time_s: float, observed: Any, guard: Any) -> None:
    """Set ``guard.targets`` to the planned instances, or to more if the load needs them.

    ``observed [OBSERVED, pools]`` has both. More instances are requested at once, within the limits
    on growth, and kept for the setting ``fall_s``.
    """
    settings, count = guard.settings, guard.seen_count[0]
    if count < guard.seen.shape[0]:  # keep the first observations for ``never_acts``
        guard.seen[count] = observed
        guard.seen_count[0] += 1
    _drop_oldest(guard.loads_s, guard.loads, time_s)
    _record_load(observed, guard.pools, guard.capacity, guard.loads)
    span_s = time_s - guard.loads_s[-2]  # since the decision before
    first = 0  # the oldest decision within ``rise_s``
    while guard.loads_s[first] <= time_s - settings[_RISE_S]:
        first += 1
    needed = np.zeros(observed.shape[1])
    requires_any = _fill_required_instances(
        time_s, span_s, observed, guard, guard.loads[first:], needed
    )
    if requires_any:
        _drop_oldest(guard.requested_s, guard.requested, time_s)
    for pool in range(observed.shape[1]):
        if requires_any:
            present = observed[_READY, pool] + observed[_STARTING, pool]
            limit = max(present * settings[_GROWTH], present + settings[_LEAST_GROWTH])
            guard.requested[-1, pool] = np.floor(min(needed[pool], limit))
        # The largest request of the last ``fall_s`` counts.
        target = observed[_PLANNED, pool]
        for i in range(guard.requested.shape[0]):
            if guard.requested_s[i] >= time_s - settings[_FALL_S]:
                target = max(target, guard.requested[i, pool])
        guard.targets[pool] = target
    guard.decided_s[0] = time_s


@cached_kernel
def decide(time_s: float, observed: Any, guard: Any) -> None:
    """Set ``guard.targets`` as ``decide_targets`` does; this is its entry point from Python."""
    decide_targets(time_s, observed, guard)


@cached_kernel
def never_acts(interval_s: float, planned: Any, seen: Any, guard: Any) -> bool:
    """Return whether the guard adds nothing to ``planned [pools]`` at any decision in ``seen``.

    ``seen [decisions, OBSERVED, pools]`` was observed every ``interval_s`` seconds by another
    guard. Its planned instances are ignored.
    """
    for i in range(seen.shape[0]):
        observed = seen[i].copy()
        observed[_PLANNED] = planned
        decide_targets((i + 1) * interval_s, observed, guard)
        for pool in range(planned.shape[0]):
            if guard.targets[pool] != planned[pool]:
                return False
    return True
