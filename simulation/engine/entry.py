"""The few functions Python calls, compiled once and kept on disk until any of their sources change.

Each closes over the stamp of every compiled module, so that it is part of the cache's key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation import compiled, fleet, lifecycle, progress, ranking, results, routing
from simulation.compiled import cached_kernel, source_stamp
from simulation.engine import accounting, batching, heaps, loop, scaling, signals, state, waiting
from simulation.engine.loop import advance_until, tend_deferred
from simulation.engine.scaling import apply_targets, close_books
from simulation.engine.signals import measure
from simulation.engine.state import borrowed
from simulation.performance import curves
from simulation.routing import pool_utilisation


def _entries(stamp: int) -> tuple[Callable[..., Any], ...]:
    @cached_kernel
    def advance(s: Any, until: float) -> int:
        """Process every event before ``until``; requests still open."""
        if stamp == 0:
            return -1
        advance_until(borrowed(s), until)
        return int(s.clock[0].open)

    @cached_kernel
    def scale(s: Any, targets: Any, t: float, ready_now: bool) -> None:
        """Apply a policy's targets at ``t``; at the start instances are ready at once."""
        if stamp != 0:
            apply_targets(borrowed(s), targets, t, ready_now)

    @cached_kernel
    def tend(s: Any, t: float) -> None:
        """Age and release deferred requests at a control instant."""
        if stamp != 0:
            tend_deferred(borrowed(s), t)

    @cached_kernel
    def observe(s: Any, t: float, utilisation: Any, sums: bool) -> None:
        """Effective memory utilisation of every pool at ``t``; with ``sums`` the records of pools
        also hold what happened up to ``t`` since the last control instant."""
        if stamp != 0:
            pool_utilisation(borrowed(s), t, utilisation)
            if sums:
                measure(borrowed(s), t)

    @cached_kernel
    def close(s: Any) -> None:
        """Count hours to the end of the window."""
        if stamp != 0:
            close_books(borrowed(s))

    return advance, scale, tend, observe, close


advance, scale, tend, observe, close = _entries(
    source_stamp(
        compiled,
        fleet,
        lifecycle,
        progress,
        ranking,
        results,
        routing,
        curves,
        accounting,
        batching,
        heaps,
        loop,
        scaling,
        signals,
        state,
        waiting,
    )
)
