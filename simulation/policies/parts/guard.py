"""The decision of a reactive guard above a plan, compiled because it runs every few seconds."""

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
# Rows of ``pools``: rates and requests of an instance of each pool.
POOLS = _MOST_PREFILL_TPS, _MOST_DECODE_TPS, _HOLDS, _KIND, _WORTH, _ALLOWED = tuple(range(6))
# Rows of a decision in ``loads``; those of ``memory``.
LOAD = _SERVED, _FLIGHT, _HELD, _FULL, _IS_LATE = tuple(range(5))
MEMORY = _PILED_S, TOO_MUCH = tuple(range(2))
_TOLERANCE, _RISE_S, _FALL_S, _GROWTH, _LEAST_GROWTH = tuple(range(5))
UNUSED_S = -np.inf  # time of a row without a decision


def unguarded(pools: int) -> Guard:
    """Return a guard without pools, which never acts, for policies that have none."""
    none = np.zeros(0)
    return Guard(
        np.zeros((len(POOLS), 0)), np.zeros((0, 1)), np.zeros((0, len(LOAD), 0)), none,
        np.zeros((len(MEMORY), 0)), np.zeros((0, 0)), none, np.zeros(pools), np.zeros(1), none,
    )  # fmt: skip


def capacity_table(pools: int, shares: FloatArray | None) -> FloatArray:
    """Return the load that 0 to N instances of each pool serve, ``[pools, N + 1]``.

    The unit of load is the capacity of one instance in a large pool. ``shares [pools, N]`` is the
    capacity of each of 1 to N instances relative to that, C(n)/n over C(N)/N. It rises with n,
    since a request that finds one instance busy goes to another, and is 1 from N on. So n instances
    serve n * share(n), about n - k sqrt(n) (square-root staffing: Halfin and Whitt, 1981;
    ``simulation.sizing.pool``). Without ``shares`` they serve n.
    """
    each = np.ones((pools, 1)) if shares is None else np.asarray(shares, np.float64)
    # No instance serves nothing. Rounding must not make capacity fall with more instances.
    loads = each * np.arange(1, each.shape[1] + 1)
    table = np.concatenate([np.zeros((pools, 1)), loads], axis=1)
    return np.asarray(np.maximum.accumulate(table, axis=1))


@kernel
def load_of(capacity: Any, p: int, count: float) -> float:
    """Return the load that ``count`` instances of pool ``p`` serve, by ``capacity_table``."""
    within = min(int(count), capacity.shape[1] - 1)
    return float(capacity[p, within] + (count - within))


@kernel
def fewest_instances(capacity: Any, p: int, load: float) -> float:
    """Return the smallest whole number of instances that serve ``load``."""
    most, needed, count = capacity.shape[1] - 1, load - ROUNDING, 0
    while count <= most and capacity[p, count] < needed:
        count += 1
    return float(count) if count <= most else most + np.ceil(needed - capacity[p, most])


@kernel
def _record_load(observed: Any, pools: Any, capacity: Any, loads: Any) -> None:
    """Write the load of each pool at this decision to the last row of ``loads``.

    It has the served load in instances of a large pool, the requests in flight, those that the
    ready instances hold at their rated load, the served load over their capacity, and whether more
    requests are late than the tiers allow.
    """
    for p in range(observed.shape[1]):
        ready = observed[_READY, p]
        served = 0.0
        for tps, most in ((_PREFILL_TPS, _MOST_PREFILL_TPS), (_DECODE_TPS, _MOST_DECODE_TPS)):
            if observed[tps, p] > 0:
                served = max(served, observed[tps, p] / pools[most, p])
        batch = observed[_BATCH, p] if observed[_BATCH, p] > 0 else 0.0
        flight = observed[_WAITING, p]
        if ready > 0:
            flight = (batch + observed[_WAITING, p] / ready) * ready
        carried = load_of(capacity, p, max(ready, 1.0))
        holds = pools[_HOLDS, p] * carried
        loads[-1, _SERVED, p], loads[-1, _FLIGHT, p] = served, flight
        loads[-1, _HELD, p], loads[-1, _FULL, p] = holds, served / carried
        loads[-1, _IS_LATE, p] = 1.0 if observed[_LATE, p] > pools[_ALLOWED, p] else 0.0


@kernel
def _smallest(loads: Any, row: int, p: int) -> float:
    """Return the smallest value of a row of ``loads`` for pool ``p`` over its decisions."""
    least = loads[0, row, p]
    for i in range(1, loads.shape[0]):
        least = min(least, loads[i, row, p])
    return float(least)


@kernel
def _late_load(loads: Any, p: int, settled: bool, tolerance: float, too_much: float) -> float:
    """Return the load above which requests are late, as a share of planned capacity of pool ``p``.

    Planned capacity assumes the lengths of earlier requests. Longer outputs use memory for longer,
    and each token reads more of it. So an instance serves fewer requests within its limits:
    requests are late and too many are in flight, though none wait.

    ``too_much`` is the value at the last decision; infinite: no such load is known. It falls to the
    present load if every decision in ``loads`` saw late requests and too many in flight. It rises
    if a load less than ``tolerance`` below it was served in time. It falls only in a ``settled``
    pool, where no instance starts and no requests piled up lately.
    """
    late, full, held = 0.0, 0.0, np.inf
    for i in range(loads.shape[0]):
        late += loads[i, _IS_LATE, p]
        full += loads[i, _FULL, p]
        holds = loads[i, _HELD, p]
        held = min(held, loads[i, _FLIGHT, p] / holds if holds > 0 else 0.0)
    full /= loads.shape[0]
    if settled and late == loads.shape[0] and held > 1 + tolerance and full > 0:
        too_much = min(too_much, full)
    return max(too_much, full * (1 + tolerance)) if late == 0 else too_much


@kernel
def _instances_for_queue(
    loads: Any, observed: Any, pools: Any, capacity: Any, p: int, tolerance: float
) -> float:
    """Return the instances of pool ``p`` that its piled-up requests require; 0 without a pile.

    Requests are piled up if every decision in ``loads`` saw more than ``PILED_UP`` times those that
    ready instances hold. The present instances are enough while the pile shrinks by more than
    ``tolerance``. While instances start, it is enough that the pile hardly grows.
    """
    now = loads[-1]
    if _smallest(loads, _FLIGHT, p) <= PILED_UP * now[_HELD, p]:
        return 0.0
    present = observed[_READY, p] + observed[_STARTING, p]
    change = tolerance if observed[_STARTING, p] > 0 else -tolerance
    if now[_FLIGHT, p] <= (1 + change) * loads[0, _FLIGHT, p]:
        return float(present)
    holding = fewest_instances(capacity, p, now[_FLIGHT, p] / pools[_HOLDS, p])
    return float(max(holding, present))


@kernel
def _instances_above_plan(time_s: float, observed: Any, guard: Any, loads: Any, out: Any) -> bool:
    """Fill ``out [pools]`` with the instances that the guard requires; 0 where the plan suffices.

    Returns whether it requires any. ``observed`` has the rows ``OBSERVED``. ``loads`` are those of
    the last decisions; the last row is written here.
    """
    pools, capacity, memory = guard.pools, guard.capacity, guard.memory
    tolerance, planned = guard.settings[_TOLERANCE], observed[_PLANNED]
    _record_load(observed, pools, capacity, loads)
    count, requires_any = observed.shape[1], False
    serving, room = np.zeros(count), np.zeros(count)  # of all pools of a model and role together
    for p in range(count):
        kind, worth = int(pools[_KIND, p]), pools[_WORTH, p]
        serving[kind] += _smallest(loads, _SERVED, p) * worth
        room[kind] += (load_of(capacity, p, planned[p]) * (1 + tolerance) + ROUNDING) * worth
    for p in range(count):
        out[p] = 0.0
        kind, load = int(pools[_KIND, p]), _smallest(loads, _SERVED, p)
        alone = load_of(capacity, p, planned[p]) * (1 + tolerance) + ROUNDING
        if load > alone and serving[kind] > room[kind]:
            out[p] = fewest_instances(capacity, p, load)
        for_queue = _instances_for_queue(loads, observed, pools, capacity, p, tolerance)
        if for_queue > 0:
            memory[_PILED_S, p] = time_s
        settled = (
            time_s - memory[_PILED_S, p] > guard.settings[_FALL_S] and observed[_STARTING, p] == 0
        )
        memory[TOO_MUCH, p] = _late_load(loads, p, settled, tolerance, memory[TOO_MUCH, p])
        if np.isfinite(memory[TOO_MUCH, p]):
            learned = fewest_instances(capacity, p, load * (1 + tolerance) / memory[TOO_MUCH, p])
            if learned > planned[p]:
                out[p] = max(out[p], learned)
        out[p] = max(out[p], for_queue)
        requires_any = requires_any or out[p] > 0
    return requires_any


@kernel
def _shift(times_s: Any, rows: Any, time_s: float) -> None:
    """Drop the oldest of ``rows`` and repeat the newest one, at ``time_s``."""
    last = times_s.shape[0] - 1
    for i in range(last):
        times_s[i] = times_s[i + 1]
        rows[i] = rows[i + 1]
    times_s[last] = time_s


@kernel
def decide_targets(time_s: float, observed: Any, guard: Any) -> None:
    """Set ``guard.targets`` from ``observed [OBSERVED, pools]``: the planned instances, or more.

    More are requested at once, within the limits on growth, and kept for ``fall_s``.
    """
    settings = guard.settings
    _shift(guard.loads_s, guard.loads, time_s)
    first = 0
    while guard.loads_s[first] <= time_s - settings[_RISE_S]:
        first += 1
    needed = np.zeros(observed.shape[1])
    requires_any = _instances_above_plan(time_s, observed, guard, guard.loads[first:], needed)
    if requires_any:
        _shift(guard.requested_s, guard.requested, time_s)
    newest = guard.requested.shape[0] - 1
    for p in range(observed.shape[1]):
        if requires_any:
            present = observed[_READY, p] + observed[_STARTING, p]
            limit = max(present * settings[_GROWTH], present + settings[_LEAST_GROWTH])
            guard.requested[newest, p] = np.floor(min(needed[p], limit))
        target = observed[_PLANNED, p]
        for i in range(guard.requested.shape[0]):
            if guard.requested_s[i] >= time_s - settings[_FALL_S]:
                target = max(target, guard.requested[i, p])
        guard.targets[p] = target
    guard.decided_s[0] = time_s


@cached_kernel
def decide(time_s: float, observed: Any, guard: Any) -> None:
    """Set ``guard.targets``, called from Python; compiled code calls ``decide_targets``."""
    decide_targets(time_s, observed, guard)
