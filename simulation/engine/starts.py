"""Starts of instances: where their weights come from, and registration.

An instance that a pool does not need may be *lent*: it leaves the fleet for the spot pool, keeps
its weights, and can be called back. Prefill and decode instances of a *registration group* become
ready together, in a given ratio.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.accounting import settle
from simulation.engine.heaps import schedule
from simulation.engine.prefix import clear_cache
from simulation.engine.routing_order import rank, rank_all
from simulation.lifecycle import DRAINING, LENT, OFF, READY, STARTING

# Source of a start: spot instance of the same model, spot instance of another model, new instance
# with weights on its host, new instance that fetches them.
FROM_SPOT, FROM_OTHER, FROM_LOCAL, FROM_REMOTE = range(4)


@kernel
def _first_slot(state: Any, p: int, status: int) -> int:
    """Return the first slot of pool ``p`` with ``status``, or else the next unused slot."""
    pool = state.pools[p]
    slot = pool.first_slot
    while slot < pool.first_slot + pool.slots_used and state.instances[slot].status != status:
        slot += 1
    return int(slot)


@kernel
def _reset_instance(state: Any, slot: int, p: int) -> None:
    """Reset the record of an instance of pool ``p`` before its start."""
    instance = state.instances[slot]
    instance.pool = p
    instance.partial_prompt = instance.ending_prompts = instance.newest_request = -1
    clear_cache(state, slot)
    instance.slowdown, instance.restorable_until_s, instance.link_free_s = 1.0, 0.0, 0.0
    instance.lend_when_removed = instance.loaded = instance.start_will_fail = instance.next_pool = 0


@kernel
def _new_slot(state: Any, p: int, t: float) -> int:
    """Return a free slot of pool ``p``, with the record of a new instance created at ``t``."""
    pool = state.pools[p]
    slot = _first_slot(state, p, OFF)
    pool.slots_used = max(pool.slots_used, slot + 1 - pool.first_slot)
    instance = state.instances[slot]
    _reset_instance(state, slot, p)
    rank_all(state, p)
    instance.created_s, instance.counted_until_s = t, t
    return int(slot)


@kernel
def place_first(state: Any, p: int, t: float) -> None:
    """Place an instance of pool ``p`` that is ready at the beginning, at ``t``."""
    pool = state.pools[p]
    slot = _new_slot(state, p, t)
    state.instances[slot].status, state.instances[slot].start_source = READY, FROM_LOCAL
    pool.ready += 1
    pool.hosts_with_weights -= 1
    rank(state, slot)


@kernel
def place_lent(state: Any, p: int, t: float) -> None:
    """Place an instance of pool ``p`` that is lent out at the beginning, at ``t``."""
    slot = _new_slot(state, p, t)
    state.instances[slot].status, state.instances[slot].start_source = LENT, FROM_LOCAL
    state.pools[p].lent += 1


@kernel
def _lending_pool(state: Any, p: int, closeness: int) -> int:
    """Return the first other pool with a lent instance that pool ``p`` can take over; -1: none.

    Both pools must have the same region, GPU type and number of GPUs. ``closeness`` 2 requires the
    same model, 1 the same architecture, 0 neither.
    """
    pool = state.pools[p]
    for lender in range(state.pools.shape[0]):
        other = state.pools[lender]
        if lender == p or other.lent == 0 or other.hardware != pool.hardware:
            continue
        same_architecture = other.architecture == pool.architecture and pool.architecture >= 0
        lender_closeness = 1 if same_architecture else 0
        if other.model == pool.model:
            lender_closeness = 2
        if lender_closeness >= closeness:
            return lender
    return -1


@kernel
def switch_off(state: Any, slot: int, t: float) -> None:
    """Switch an instance off; the caller updates its pool's counts by status."""
    settle(state, slot, t)
    instance, duration = state.instances[slot], state.clock[0].window_s
    state.pools[instance.pool].lifetime_s += min(t, duration) - min(instance.created_s, duration)
    instance.status = OFF
    schedule(state, slot, np.inf)
    rank(state, slot)


@kernel
def start(state: Any, p: int, t: float) -> tuple[int, float]:
    """Start one instance of pool ``p`` and return its slot and the seconds that the start takes.

    An instance that the pool has lent out is called back first. Else it is one that another pool
    has lent out: of the same model (closeness 2 of ``_lending_pool``), then of the same
    architecture (1), then of any model (0). Else it is a new one, on a host with the weights if
    possible.
    """
    pool = state.pools[p]
    if pool.lent > 0:
        slot = _first_slot(state, p, LENT)
        settle(state, slot, t)
        _reset_instance(state, slot, p)
        pool.lent -= 1
        source, seconds = FROM_SPOT, pool.reclaim_start_s
    else:
        source, seconds = FROM_REMOTE, pool.remote_start_s
        lender = _lending_pool(state, p, 2)
        if lender >= 0:
            source, seconds = FROM_SPOT, pool.reclaim_start_s
        elif pool.same_architecture_start_s < np.inf and _lending_pool(state, p, 1) >= 0:
            lender = _lending_pool(state, p, 1)
            source, seconds = FROM_OTHER, pool.same_architecture_start_s
        elif pool.other_model_start_s < np.inf and _lending_pool(state, p, 0) >= 0:
            lender = _lending_pool(state, p, 0)
            source, seconds = FROM_OTHER, pool.other_model_start_s
        elif pool.hosts_with_weights > 0:
            source, seconds = FROM_LOCAL, pool.local_start_s
            pool.hosts_with_weights -= 1
        if lender >= 0:
            state.pools[lender].lent -= 1
            switch_off(state, _first_slot(state, lender, LENT), t)
        slot = _new_slot(state, p, t)
    instance = state.instances[slot]
    instance.status, instance.start_source, instance.requested_s = STARTING, source, t
    if state.start_fails.shape[1] > 0:
        # The drawn failures repeat after as many starts as were drawn.
        drawn = pool.starts % state.start_fails.shape[1]
        instance.start_will_fail = 1 if state.start_fails[p, drawn] else 0
    pool.starts += 1
    state.starts_by_source[p, source] += 1
    pool.starting += 1
    schedule(state, slot, t + seconds)
    return int(slot), float(seconds)


@kernel
def retire(state: Any, slot: int, t: float) -> None:
    """Remove an instance that was cancelled while starting, or that has drained.

    A drained one that switches now starts in its other pool. After a soft scale-in it stays as long
    as it may be restored. Otherwise it is lent out or switched off.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    drained = instance.status == DRAINING
    # Soft scale-in: keep it and check again when the time is over.
    if drained and t < instance.restorable_until_s:
        schedule(state, slot, instance.restorable_until_s)
        return
    if drained:
        pool.draining -= 1
    else:
        pool.starting -= 1
    if instance.next_pool:
        _enter_pool(state, slot, instance.next_pool - 1, t)
        return
    if instance.lend_when_removed:
        settle(state, slot, t)
        instance.status = LENT
        pool.lent += 1
        schedule(state, slot, np.inf)
        rank(state, slot)
        return
    # The host of a cancelled start has the weights unless the start was fetching them.
    if drained or instance.start_source == FROM_SPOT or instance.start_source == FROM_LOCAL:
        pool.hosts_with_weights += 1
    switch_off(state, slot, t)


@kernel
def forget_switch(state: Any, slot: int) -> None:
    """Remove an instance from the counts of a role switch: it has switched, or was lost before."""
    instance = state.instances[slot]
    if instance.next_pool:
        state.pools[instance.pool].switching_out -= 1
        state.pools[instance.next_pool - 1].switching_in -= 1
        instance.next_pool = 0


@kernel
def _enter_pool(state: Any, slot: int, next_pool: int, t: float) -> None:
    """Start a drained instance in another pool, ``next_pool``. Its GPUs stay paid for."""
    forget_switch(state, slot)
    switch_off(state, slot, t)
    pool = state.pools[next_pool]
    new_slot = _new_slot(state, next_pool, t)
    instance = state.instances[new_slot]
    instance.status, instance.start_source, instance.requested_s = STARTING, FROM_LOCAL, t
    pool.starting += 1
    pool.switches += 1
    schedule(state, new_slot, t + pool.switch_s)


@kernel
def take_off_lent(state: Any, p: int, t: float) -> None:
    """Switch a lent instance of pool ``p`` off; its host keeps the weights."""
    pool = state.pools[p]
    pool.lent -= 1
    pool.hosts_with_weights += 1
    switch_off(state, _first_slot(state, p, LENT), t)


@kernel
def _make_ready(state: Any, slot: int, t: float) -> None:
    """Make a starting instance ready."""
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    settle(state, slot, t)
    instance.status = READY
    pool.starting -= 1
    pool.ready += 1
    pool.has_new_ready = 1
    schedule(state, slot, np.inf)
    rank(state, slot)


@kernel
def finish_start(state: Any, slot: int, t: float) -> None:
    """End a start: the instance serves, waits for registration, or failed to start.

    A pool that gained a ready instance has ``opened`` set, and the caller routes requests to it.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    if instance.start_will_fail:
        pool.starting -= 1
        pool.failed_starts += 1
        pool.failed += 1
        if instance.start_source == FROM_SPOT or instance.start_source == FROM_LOCAL:
            pool.hosts_with_weights += 1
        switch_off(state, slot, t)
    elif pool.registration_group < 0:
        _make_ready(state, slot, t)
    else:
        instance.loaded = 1
        schedule(state, slot, np.inf)
    if pool.registration_group >= 0:
        register(state, pool.registration_group, t)


@kernel
def start_before(state: Any, p: int, t: float) -> None:
    """Start an instance of pool ``p`` that was requested early enough to be ready at ``t``.

    If its start fails, it has failed by then. The start is counted in both cases. Its seconds are
    added to the pool's ``before_s``.
    """
    slot, seconds = start(state, p, t)
    pool = state.pools[p]
    pool.before_s += seconds
    if state.instances[slot].start_will_fail:
        finish_start(state, slot, t)
    else:
        _make_ready(state, slot, t)
    pool.has_new_ready = 0


# --- registration by ratio -----------------------------------------------------------------------


@kernel
def _registration_counts(
    ready: tuple[int, int], waiting: tuple[int, int], loading: int, low: float, high: float
) -> tuple[int, int]:
    """Return how many waiting (prefill, decode) instances register.

    ``ready`` and ``waiting`` are such pairs too: instances that serve, and loaded ones that wait.
    As many register as possible with a ratio of ready prefill to ready decode instances of ``low``
    to ``high``. If no numbers do, the role that is short registers enough to reach the ratio, or
    all it has. Once no instance is ``loading``, all register.
    """
    if loading == 0:
        return waiting
    ready_prefills, ready_decodes = ready
    waiting_prefills, waiting_decodes = waiting
    best, most_registered = (-1, -1), -1
    for prefills in range(waiting_prefills + 1):
        serving = ready_prefills + prefills
        least_decodes = max(int(np.ceil(serving / high - 1e-9)) - ready_decodes, 0)
        most_decodes = min(int(np.floor(serving / low + 1e-9)) - ready_decodes, waiting_decodes)
        if least_decodes <= most_decodes and prefills + most_decodes > most_registered:
            best, most_registered = (prefills, most_decodes), prefills + most_decodes
    if most_registered >= 0:
        return best
    # No numbers keep the ratio: only the role that is short registers.
    prefills, decodes = 0, 0
    if ready_prefills > high * ready_decodes:
        while decodes < waiting_decodes and ready_prefills > high * (ready_decodes + decodes):
            decodes += 1
    else:
        while prefills < waiting_prefills and ready_prefills + prefills < low * ready_decodes:
            prefills += 1
    return prefills, decodes


@kernel
def _count_role(state: Any, group: int, side: int) -> tuple[int, int, int]:
    """Return the numbers of (ready, waiting, loading) instances of one role of a group.

    ``side`` is 0 for prefill, 1 for decode. Waiting instances have loaded and wait to register.
    """
    ready, waiting, starting = 0, 0, 0
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        if pool.registration_group == group and pool.side == side:
            ready += pool.ready
            starting += pool.starting
            for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
                waiting += _waits_for_registration(state, slot)
    return ready, waiting, starting - waiting


@kernel
def _waits_for_registration(state: Any, slot: int) -> int:
    """Return 1 if an instance has loaded and waits for registration, otherwise 0."""
    return 1 if state.instances[slot].status == STARTING and state.instances[slot].loaded else 0


@kernel
def _make_first_ready(state: Any, group: int, side: int, left: int, t: float) -> None:
    """Make the first ``left`` instances that wait for registration ready.

    They are of one role of a group: ``side`` 0 is prefill, 1 decode.
    """
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        if pool.registration_group == group and pool.side == side:
            for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
                if left > 0 and _waits_for_registration(state, slot):
                    left -= 1
                    _make_ready(state, slot, t)


@kernel
def register(state: Any, group: int, t: float) -> None:
    """Make loaded instances of a registration group ready, as far as its ratio allows."""
    ready_prefills, waiting_prefills, loading_prefills = _count_role(state, group, 0)
    ready_decodes, waiting_decodes, loading_decodes = _count_role(state, group, 1)
    clock = state.clock[0]
    prefills, decodes = _registration_counts(
        (ready_prefills, ready_decodes), (waiting_prefills, waiting_decodes),
        loading_prefills + loading_decodes, clock.ratio_low, clock.ratio_high,
    )  # fmt: skip
    _make_first_ready(state, group, 0, prefills, t)
    _make_first_ready(state, group, 1, decodes, t)
