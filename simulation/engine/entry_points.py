"""Compiled entry points that Python calls, cached on disk.

``handle`` gives access to the arrays of a ``State``, and ``t`` is the simulated time in seconds.
"""

from typing import Any

from simulation.compiler import cached_kernel
from simulation.engine.compiled_observation import read_observation
from simulation.engine.fault_effects import apply_fault
from simulation.engine.holding import hold_decision, record_queues
from simulation.engine.loop import route_deferred_requests
from simulation.engine.scaling import (
    apply_limits,
    apply_moves,
    apply_speed,
    apply_targets,
    finish_accounting,
    place_all,
)
from simulation.engine.state import open_state


@cached_kernel
def place(handle: Any, targets: Any) -> None:
    """Place the instances of time 0: ``targets [pool]`` ready ones."""
    place_all(open_state(handle), targets)


@cached_kernel
def scale(handle: Any, targets: Any, soft_s: Any, lend: Any, max_lent: Any, t: float) -> None:
    """Apply a policy's targets at ``t``; for the arrays ``[pool]`` see ``apply_targets``."""
    apply_targets(open_state(handle), targets, soft_s, lend, max_lent, t)


@cached_kernel
def switch(handle: Any, moves: Any, switch_s: float, t: float) -> None:
    """Switch ``moves [from pool, to pool]`` instances at ``t``; each takes ``switch_s`` seconds."""
    apply_moves(open_state(handle), moves, switch_s, t)


@cached_kernel
def set_speed(handle: Any, factors: Any, t: float) -> None:
    """Set the speed ``factors [pool]`` from ``t`` on; 2 means iterations twice as fast."""
    apply_speed(open_state(handle), factors, t)


@cached_kernel
def fault(
    handle: Any, kind: int, target: int, slot_or_rank: int, until: float, factor: float, t: float
) -> None:
    """Apply one event of a planned fault at ``t``; for the arguments see ``apply_fault``."""
    apply_fault(open_state(handle), kind, target, slot_or_rank, until, factor, t)


@cached_kernel
def limit(handle: Any, max_batch: Any, kv_share: Any, t: float) -> None:
    """Set the largest batch and the usable share of KV memory, ``[pool]`` each, from ``t`` on."""
    apply_limits(open_state(handle), max_batch, kv_share, t)


@cached_kernel
def route_deferred(handle: Any, t: float) -> None:
    """Route deferred requests that are urgent at ``t``; release others where there is room."""
    route_deferred_requests(open_state(handle), t)


@cached_kernel
def observe(handle: Any, t: float, reading: Any) -> None:
    """Read the observation of every pool at ``t`` into ``reading``, a ``Reading``."""
    read_observation(open_state(handle), t, reading)


@cached_kernel
def advance(
    handle: Any, until: float, timing: Any, reading: Any, planned: Any, guard: Any, limits: Any
) -> bool:
    """Process every event before ``until``, with the scaling decisions that keep the targets.

    ``timing`` is a ``Timing``, and ``reading`` the ``Reading`` to fill. A decision asks for
    ``planned [pool]`` replicas, or for those of the compiled ``guard`` if it has any pools. It may
    ask for others where a pool's utilization is outside ``limits [2, pool]``. Return True if the
    advance stopped at such a decision. ``reading`` then has what the policy observes at that time.

    This is the only entry point that contains the whole engine. A second one would take as long to
    compile. ``without_decisions`` gives the arguments for an advance without decisions.
    """
    return bool(hold_decision(open_state(handle), until, timing, reading, planned, guard, limits))


@cached_kernel
def end_interval(handle: Any, timing: Any, reading: Any) -> None:
    """Store the queue lengths at the end of an interval of the series in ``timing``."""
    record_queues(open_state(handle), timing, reading)


@cached_kernel
def close(handle: Any, until: float) -> None:
    """Count the time of all instances at the end of a simulation, up to ``until``.

    All time counts in the window. After it, only time with work counts.
    """
    finish_accounting(open_state(handle), until)
