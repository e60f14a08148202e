"""In which order an instance takes its waiting requests (SageServe, sections 5 and 6.5).

Deferrable requests that have not aged wait behind all others, whatever the scheduler. ``left`` is
the time left until a request's TTFT limit, d_r in the source, negative once it has passed; without
a limit it is infinite. Tiers rank by how strict that limit is. Within a tier requests are taken in
the order in which they reached the instance. One that was preempted goes first, before those of
other tiers too.

- FCFS: in the order they reached the instance, whatever the tier.
- EDF: the least time left first, so those that have expired go before all others.
- PF: all of a stricter tier before any of the next.
- DPA: severely expired (left < -tau_n, the longest expired first), urgent (0 <= left <= tau_p) by
  tier, the other unexpired by tier, and last the recently expired (-tau_n <= left < 0).

The source gives no values of tau_n and tau_p; the defaults of ``fleet.Pool`` are assumed.
"""

from __future__ import annotations

from simulation.compiled import kernel

FCFS, EDF, PF, DPA = range(4)  # places in fleet.SCHEDULERS


@kernel
def standing(scheduler: int, left: float, tau_n: float, tau_p: float) -> tuple[int, float]:
    """What decides between the first requests of two tiers: the lower class, then the lower value,
    then the stricter tier."""
    if scheduler == EDF:
        return 0, left
    if scheduler != DPA:
        return 0, 0.0
    if left < -tau_n:
        return 0, left
    if left < 0.0:
        return 3, left
    return (1, 0.0) if left <= tau_p else (2, 0.0)


@kernel
def next_change(left: float, tau_n: float, tau_p: float) -> float:
    """Seconds until a waiting request may change its class under DPA; 0: just now."""
    if left > tau_p:
        return left - tau_p
    if left >= 0.0:
        return left
    return max(left + tau_n, 0.0) if left >= -tau_n else float("inf")
