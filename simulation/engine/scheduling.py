"""The order in which an instance admits its waiting requests (SageServe, sections 5 and 6.5).

Deferrable requests that are not yet urgent wait behind all others under every scheduler. ``left``
is the time until the TTFT limit of a request, d_r in the source. It is negative after the limit and
infinite without one. Tiers rank by how strict this limit is. Within a tier, the order of arrival at
the instance decides. A preempted request goes first, even before other tiers.

- FCFS: in order of arrival at the instance, whatever the tier.
- EDF: the least time left first, so expired requests go before all others.
- PF: all requests of a stricter tier before any of the next.
- DPA: severely expired (left < -tau_n), longest expired first. Then urgent (0 <= left <= tau_p) by
  tier, other unexpired by tier, and last the recently expired (-tau_n <= left < 0).

The source gives no values for tau_n and tau_p; the defaults of ``fleet.Pool`` are assumed.
"""

from simulation.compiler import kernel

FCFS, EDF, PF, DPA = range(4)  # indices into fleet.SCHEDULERS


@kernel
def scheduling_class(scheduler: int, left: float, tau_n: float, tau_p: float) -> tuple[int, float]:
    """Return the class and the value that order requests; ``left`` are seconds to the TTFT limit.

    The lower class goes first, then the lower value, then the stricter tier.
    """
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
    """Return the seconds until a waiting request may change its class under DPA; inf: never."""
    if left > tau_p:
        return left - tau_p
    if left >= 0.0:
        return left
    return max(left + tau_n, 0.0) if left >= -tau_n else float("inf")
