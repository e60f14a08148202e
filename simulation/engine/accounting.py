"""Hours and tokens of instances, spread over the intervals of the series as time passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel
from simulation.engine.progress import iteration_end, iterations_done
from simulation.engine.state import (
    S_ARRIVED,
    S_BATCH,
    S_BUSY,
    S_DRAINING,
    S_INPUT,
    S_ITERATIONS,
    S_KV,
    S_LENT,
    S_OUTPUT,
    S_READY,
    S_STARTING,
)
from simulation.lifecycle import LENT, OFF, READY, STARTING


@kernel
def _held(instance: Any, t: float) -> float:
    """Token-seconds of KV held from ``t0`` to ``t``: a staircase, ``decodes`` up per iteration."""
    x = t - instance.t0
    steps = 0.0
    if instance.growth != 0.0:
        steps = float(iterations_done(instance, t))
    elif instance.dt > 0.0:
        steps = min(np.floor(x / instance.dt), float(instance.k - 1))
    pairs = steps * (steps - 1.0) / 2.0
    climbed = instance.dt * steps * (steps - 1.0) / 2.0 + steps * (x - steps * instance.dt)
    climbed -= instance.growth * pairs * (steps + 1.0) / 3.0
    return float(instance.kv * x + instance.decodes * climbed)


@kernel
def settle(s: Any, slot: int, t: float) -> None:
    """Count what the instance did since it was last settled, up to ``t`` or the window's end."""
    instance, clock = s.instances[slot], s.clock[0]
    start, end = instance.settled, min(t, clock.duration)
    if end <= start:
        return
    instance.settled = end
    if instance.status == OFF:
        return
    pool = s.pools[instance.pool]
    busy = instance.k > 0
    if instance.status == STARTING:
        row = S_STARTING
        pool.starting_s += end - start
    elif instance.status == LENT:
        row = S_LENT
        pool.donated_s += end - start
    else:
        row = S_READY if instance.status == READY else S_DRAINING
        if not busy:
            pool.idle_s += end - start
        else:
            pool.busy_s += end - start
            pool.batch_s += (end - start) * instance.running
            if instance.chunk > 0:
                pool.prefill_s += end - start
            else:
                pool.decode_s += end - start
    last_interval = s.series.shape[2] - 1
    i = min(int(start / clock.interval), last_interval)
    while start < end:
        stop = end if i == last_interval else min(end, (i + 1) * clock.interval)
        if stop > start:
            s.series[row, instance.pool, i] += stop - start
            if busy:
                s.series[S_BUSY, instance.pool, i] += stop - start
                s.series[S_BATCH, instance.pool, i] += (stop - start) * instance.running
                if instance.status == READY:
                    s.series[S_KV, instance.pool, i] += _held(instance, stop) - _held(
                        instance, start
                    )
            start = stop
        i += 1


@kernel
def add_tokens(s: Any, row: int, pool: int, t: float, tokens: float) -> None:
    """Count tokens of a pool in the interval that holds ``t``, if the window does."""
    clock = s.clock[0]
    if t <= clock.duration:
        i = min(int(t / clock.interval), s.series.shape[2] - 1)
        s.series[row, pool, i] += tokens


@kernel
def count_arrival(s: Any, pool: int, t: float, tokens: int) -> None:
    """Input tokens of a request that arrived at an instance of a pool at ``t``."""
    add_tokens(s, S_ARRIVED, pool, t, tokens)


@kernel
def count_tokens(s: Any, slot: int, t: float, decoded: int, first_tokens: int) -> None:
    """Tokens of the run that ended at ``t``: prefilled, and given out at each iteration's end."""
    instance, clock = s.instances[slot], s.clock[0]
    pool = s.pools[instance.pool]
    pool.computed += instance.chunk
    pool.given += decoded + first_tokens - instance.told
    instance.told = 0
    if instance.chunk > 0:
        add_tokens(s, S_INPUT, instance.pool, t, instance.chunk)
    begin = instance.t0 + instance.dt
    if t <= clock.duration and int(begin / clock.interval) == int(t / clock.interval):
        add_tokens(s, S_OUTPUT, instance.pool, t, decoded + first_tokens)
        add_tokens(s, S_ITERATIONS, instance.pool, t, instance.k)
        return
    # Fused decode iterations never carry prefills: k > 1 has no first tokens.
    add_tokens(s, S_OUTPUT, instance.pool, t, first_tokens)
    j = 1
    while j <= instance.k:
        end = iteration_end(instance, j)
        if end > clock.duration:
            return
        edge = min((int(end / clock.interval) + 1) * clock.interval, clock.duration)
        more = max(iterations_done(instance, edge) - j + 1, 1)
        add_tokens(s, S_OUTPUT, instance.pool, end, instance.decodes * more)
        add_tokens(s, S_ITERATIONS, instance.pool, end, more)
        j += more
