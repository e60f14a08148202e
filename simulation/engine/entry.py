"""The few functions Python calls, compiled once and kept on disk until any of their sources change.

Each closes over the stamp of all sources, so that it is part of the cache's key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.compiled import cached_kernel, source_stamp
from simulation.engine.faulting import strike
from simulation.engine.limits import apply_limits
from simulation.engine.loop import advance_until, tend_deferred
from simulation.engine.routing import pool_utilisation
from simulation.engine.scaling import apply_speed, apply_targets, close_books, place_all
from simulation.engine.signals import measure

# Whatever a kernel takes code or constants from.
SOURCES = (
    "compiled.py",
    "engine/*.py",
    "faults.py",
    "fleet.py",
    "lifecycle.py",
    "performance/curves.py",
    "results.py",
)


def _entries(stamp: int) -> tuple[Callable[..., Any], ...]:
    @cached_kernel
    def advance(s: Any, until: float, most: int) -> bool:
        """Process every event before ``until``, at most ``most``; whether none is left."""
        return bool(stamp != 0 and advance_until(s, until, most))

    @cached_kernel
    def place(s: Any, targets: Any) -> None:
        """The instances of time 0."""
        if stamp != 0:
            place_all(s, targets)

    @cached_kernel
    def scale(s: Any, targets: Any, soft_s: Any, lend: Any, keep: Any, t: float) -> None:
        """Apply a policy's targets at ``t``."""
        if stamp != 0:
            apply_targets(s, targets, soft_s, lend, keep, t)

    @cached_kernel
    def speed(s: Any, factors: Any, t: float) -> None:
        """How many times as fast the iterations of every pool run from ``t`` on."""
        if stamp != 0:
            apply_speed(s, factors, t)

    @cached_kernel
    def fault(
        s: Any, kind: int, where: int, place: int, until: float, factor: float, t: float
    ) -> None:
        """One event of the plan of faults."""
        if stamp != 0:
            strike(s, kind, where, place, until, factor, t)

    @cached_kernel
    def limit(s: Any, max_batch: Any, kv_share: Any, t: float) -> None:
        """Largest batch and share of KV memory of every pool's instances from ``t`` on."""
        if stamp != 0:
            apply_limits(s, max_batch, kv_share, t)

    @cached_kernel
    def tend(s: Any, t: float) -> None:
        """Age and release deferred requests at a control instant."""
        if stamp != 0:
            tend_deferred(s, t)

    @cached_kernel
    def observe(s: Any, t: float, utilisation: Any, load: Any, sums: bool) -> None:
        """Effective memory utilisation and load of every pool at ``t``; with ``sums`` the records
        of pools also hold what happened up to ``t`` since the last control instant."""
        if stamp != 0:
            pool_utilisation(s, t, utilisation, load)
            if sums:
                measure(s, t)

    @cached_kernel
    def close(s: Any, until: float) -> None:
        """Count hours to the end of the window, and work after it to ``until``."""
        if stamp != 0:
            close_books(s, until)

    return advance, place, scale, speed, limit, fault, tend, observe, close


advance, place, scale, speed, limit, fault, tend, observe, close = _entries(source_stamp(*SOURCES))
