"""Actions of a policy: start, drain and restore instances; change speeds and limits of pools."""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.accounting import settle
from simulation.engine.heaps import schedule
from simulation.engine.loop import flush_opened
from simulation.engine.progress import iterations_done
from simulation.engine.queues import interrupt
from simulation.engine.routing_order import rank
from simulation.engine.starts import (
    place_first,
    place_lent,
    register,
    retire,
    start,
    start_before,
    take_off_lent,
)
from simulation.lifecycle import DRAINING, OFF, READY, STARTING


@kernel
def _instance_with_least_work(state: Any, p: int, status: int, t: float) -> int:
    """Return the instance of pool ``p`` in ``status`` with the fewest remaining tokens; -1: none.

    Instances that switch to another pool do not count. Among draining instances those of a soft
    scale-in come first.
    """
    best_slot, fewest_tokens, best_is_soft = -1, 0, False
    pool = state.pools[p]
    for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
        instance = state.instances[slot]
        if instance.status != status or instance.next_pool:
            continue
        run_tokens = iterations_done(instance, t) * instance.decodes
        remaining_tokens = instance.remaining_tokens - run_tokens
        is_soft = status == DRAINING and instance.restorable_until_s > t
        is_better = remaining_tokens < fewest_tokens if is_soft == best_is_soft else is_soft
        if best_slot < 0 or is_better:
            best_slot, fewest_tokens, best_is_soft = slot, remaining_tokens, is_soft
    return best_slot


@kernel
def _newest_starting(state: Any, p: int) -> int:
    """Return the starting instance of pool ``p`` that was requested last; -1: none."""
    newest = -1
    pool = state.pools[p]
    for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
        instance = state.instances[slot]
        if instance.status == STARTING and (
            newest < 0 or instance.requested_s >= state.instances[newest].requested_s
        ):
            newest = slot
    return newest


@kernel
def _undo_drain(state: Any, p: int, t: float) -> None:
    """Make a draining instance of pool ``p`` ready again, the one with the least work left."""
    pool = state.pools[p]
    slot = _instance_with_least_work(state, p, DRAINING, t)
    settle(state, slot, t)
    instance = state.instances[slot]
    instance.status = READY
    instance.restorable_until_s, instance.lend_when_removed = 0.0, 0
    # Cancel the event that would end the soft scale-in.
    if instance.run_iterations == 0 and instance.waiting == 0:
        schedule(state, slot, np.inf)
    rank(state, slot)
    pool.draining -= 1
    pool.ready += 1
    pool.has_new_ready = 1
    pool.reinstated += 1


@kernel
def _remove_instance(state: Any, p: int, t: float, soft_s: float, lend: bool) -> None:
    """Cancel a starting instance of pool ``p``, or if there is none, drain a ready one.

    For ``soft_s`` seconds, a drained instance can be restored. With ``lend``, the instance is lent
    out in the end, not switched off.
    """
    pool = state.pools[p]
    if pool.starting > 0:
        slot = _newest_starting(state, p)
        state.instances[slot].lend_when_removed = 1 if lend else 0
        retire(state, slot, t)
        return
    slot = _instance_with_least_work(state, p, READY, t)
    settle(state, slot, t)
    instance = state.instances[slot]
    instance.status = DRAINING
    instance.restorable_until_s, instance.lend_when_removed = t + soft_s, 1 if lend else 0
    rank(state, slot)
    pool.ready -= 1
    pool.draining += 1
    if instance.running == 0 and instance.waiting == 0 and instance.kv_transfers == 0:
        retire(state, slot, t)


@kernel
def _subtract_lost_instances(state: Any, p: int, target: int) -> int:
    """Return ``target`` less the permanently lost instances of pool ``p``.

    Those that the target includes are stored as ``missing``.
    """
    pool = state.pools[p]
    pool.missing_instances = min(pool.lost_instances, target)
    return int(target - pool.missing_instances)


@kernel
def apply_targets(
    state: Any, targets: Any, soft_s: Any, lend: Any, max_lent: Any, t: float
) -> None:
    """Start and drain instances until every pool has ``targets [pool]``, within its limits.

    Targets count ready and starting instances. Those that drain elsewhere to switch to a pool count
    as starting there.

    Scale-out first restores draining instances: those of a soft scale-in first, then by fewest
    remaining tokens. Then it starts others (``engine.starts``). Scale-in first cancels starting
    instances, the newest first. Then it drains ready ones, fewest remaining tokens first. These can
    be restored for ``soft_s [pool]`` seconds, and are then lent out if ``lend [pool]`` is set. At
    most ``max_lent [pool]`` instances stay lent out.

    So a pool never has starting instances and instances that drain to leave service at once, and
    never exceeds its maximum. Nothing starts in a region with an outage.
    """
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        # Nothing can start in a region with an outage, and all its instances are lost.
        if pool.outages:
            continue
        target = _subtract_lost_instances(
            state, p, min(max(targets[p], pool.minimum), pool.maximum)
        )
        # Instances that drain to switch away still take up room in this pool.
        target = min(target, pool.maximum - pool.switching_out)
        while pool.ready + pool.starting + pool.switching_in < target:
            if pool.draining > pool.switching_out:
                _undo_drain(state, p, t)
            else:
                start(state, p, t)
        while (
            pool.ready + pool.starting > 0
            and pool.ready + pool.starting + pool.switching_in > target
        ):
            _remove_instance(state, p, t, soft_s[p], lend[p])
        while pool.lent > max(0, max_lent[p]):
            take_off_lent(state, p, t)
        flush_opened(state, t)
    for group in range(state.clock[0].registration_groups):
        register(state, group, t)
    flush_opened(state, t)


@kernel
def _may_switch(state: Any, p: int, other_index: int) -> bool:
    """Return whether a ready instance of pool ``p`` may switch to pool ``other_index``.

    Both must stay within their limits, and the region of ``p`` must have no outage.
    """
    pool, other = state.pools[p], state.pools[other_index]
    # All instances count for the maximum, but only those that serve for the minimum.
    other_instances = other.ready + other.starting + other.draining + other.lent
    other_instances += other.switching_in
    staying = pool.ready + pool.starting + pool.switching_in - 1
    within_limits = staying >= pool.minimum and other_instances < other.maximum
    return bool(pool.ready > 0 and not pool.outages and within_limits)


@kernel
def apply_moves(state: Any, moves: Any, switch_s: float, t: float) -> None:
    """Let ``moves [from pool, to pool]`` ready instances switch to another pool.

    The instances with the fewest remaining tokens are chosen. Each drains, then starts in the other
    pool and serves after ``switch_s`` seconds: its weights stay where they are. Moves beyond the
    limits of either pool do not happen.
    """
    for p in range(moves.shape[0]):
        for q in range(moves.shape[1]):
            for _ in range(moves[p, q]):
                if not _may_switch(state, p, q):
                    break
                pool = state.pools[p]
                state.pools[q].switch_s = switch_s
                slot = _instance_with_least_work(state, p, READY, t)
                settle(state, slot, t)
                instance = state.instances[slot]
                instance.status, instance.next_pool = DRAINING, q + 1
                rank(state, slot)
                pool.ready -= 1
                pool.draining += 1
                pool.switching_out += 1
                state.pools[q].switching_in += 1
                if instance.running == 0 and instance.waiting == 0 and instance.kv_transfers == 0:
                    retire(state, slot, t)


@kernel
def place_all(state: Any, targets: Any) -> None:
    """Place the instances of time 0: ``targets [pool]`` ready ones, and lent ones.

    If more are ready than ran before time 0, the others were started early enough to serve now.
    """
    first_counts = np.zeros(state.pools.shape[0], np.int64)  # instances that must serve at time 0
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        count = _subtract_lost_instances(state, p, min(max(targets[p], pool.minimum), pool.maximum))
        first_counts[p] = count
        running_before = (  # -1: all of them
            count if pool.running_before_start < 0 else min(pool.running_before_start, count)
        )
        for _ in range(running_before):
            place_first(state, p, 0.0)
        for _ in range(min(pool.lent_at_start, pool.maximum - count)):
            place_lent(state, p, 0.0)
        pool.hosts_with_weights = max(pool.hosts_with_weights, 0)
    for p in range(state.pools.shape[0]):
        # After all lent instances are placed, since these starts may take them.
        for _ in range(first_counts[p] - state.pools[p].ready):
            start_before(state, p, 0.0)


@kernel
def apply_speed(state: Any, speed: Any, t: float) -> None:
    """Run iterations ``speed [pool]`` times as fast as the profile, from the next one on."""
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        if pool.slowdown == 1.0 / speed[p]:
            continue
        pool.slowdown = 1.0 / speed[p]
        for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
            if state.instances[slot].run_iterations > 1:
                interrupt(state, slot, t)
                rank(state, slot)


@kernel
def finish_accounting(state: Any, until: float) -> None:
    """Count every instance's time to the end of the window, and work after it to ``until``."""
    duration = state.clock[0].window_s
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
            instance = state.instances[slot]
            if instance.status != OFF:
                settle(state, slot, until)
                pool.lifetime_s += duration - min(instance.created_s, duration)


@kernel
def apply_limits(state: Any, max_batch: Any, kv_share: Any, t: float) -> None:
    """Apply new limits from each instance's next iteration boundary on.

    ``max_batch [pool]`` is the largest number of sequences in a batch; 0 keeps the present limit.
    ``kv_share [pool]`` is the usable share of KV memory; a negative share keeps the present one.

    Batches are clipped to the limit of the profile. A larger running batch shrinks as requests end.
    Memory is clipped to at least the need of the largest request, and at most all of it. If more is
    in use, the requests admitted last are preempted (``fleet.WHEN_FULL``).
    """
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        new_max_batch, new_usable_tokens = pool.max_batch, pool.usable_kv_tokens
        if max_batch[p] > 0:
            new_max_batch = min(max_batch[p], pool.profile_max_batch)
        if kv_share[p] >= 0.0:
            share_tokens = int(kv_share[p] * pool.kv_capacity_tokens)
            new_usable_tokens = min(max(share_tokens, pool.min_kv_tokens), pool.kv_capacity_tokens)
        if new_max_batch == pool.max_batch and new_usable_tokens == pool.usable_kv_tokens:
            continue
        pool.max_batch, pool.usable_kv_tokens = new_max_batch, new_usable_tokens
        for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
            status = state.instances[slot].status
            if status != OFF and status != STARTING:
                interrupt(state, slot, t)
                rank(state, slot)
