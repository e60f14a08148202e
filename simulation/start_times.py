"""Start times of instances by the location of their weights, and registration."""

from dataclasses import dataclass

import numpy as np

from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True)
class StartUp:
    """Seconds from the request for an instance until it is ready, by its source (methods.md E3).

    The defaults are of SageServe, arXiv 2502.14617, section 3: spot reclaim takes a minute, local
    weights about 10, remote weights about 2 h. A start uses the first of these that exists:

    1. An instance that this pool lent out as spot.
    2. One that a pool of another model lent out in the same region on the same GPUs. It leaves that
       pool and loads other weights. The same architecture comes first.
    3. A new instance on a host with the weights.
    4. A new instance that fetches them.
    """

    reclaim_s: float = 60.0
    same_architecture_s: float | None = None  # from another model of the same ``Pool.architecture``
    other_model_s: float | None = None  # from any other model; None: not possible
    local_s: float = 600.0
    remote_s: float = 7200.0
    # Hosts with the weights at the start, including those of the initial instances. A host that
    # fetched the weights keeps them. None: every host has them.
    warm_hosts: int | None = None
    lent: int = 0  # instances lent out at the start


@dataclass(frozen=True, slots=True)
class Registration:
    """Registration by ratio (methods.md D4; HeteroScale).

    Registered instances get requests. Started prefill and decode instances of a model and region
    register in numbers that keep registered prefill over decode instances within ``tolerance`` of
    ``ratio``. The others wait and count as starting.

    Instances of a role that is short by the ratio register at once. Once no instance of either role
    is loading, all that wait register.
    """

    ratio: float  # prefill instances per decode instance
    tolerance: float = 0.25  # as a fraction of ``ratio``


def check_start(pool_name: str, start: StartUp | None) -> None:
    """Raise ``SimulationError``, with ``pool_name``, for an invalid number in ``start``."""
    if start is None:
        return
    for name in ("reclaim_s", "same_architecture_s", "other_model_s", "local_s", "remote_s"):
        seconds = getattr(start, name)
        if seconds is not None and not 0 <= seconds < np.inf:
            raise SimulationError(f"{pool_name}: {name} must be a number of seconds >= 0.")
    if min(start.lent, start.warm_hosts or 0) < 0:
        raise SimulationError(f"{pool_name}: lent and warm_hosts must be >= 0.")


def check_registration(rule: Registration | None) -> None:
    """Raise ``SimulationError`` for an invalid ratio or tolerance."""
    if rule is not None and not (0 < rule.ratio < np.inf and rule.tolerance >= 0):
        raise SimulationError("Registration needs a ratio above 0 and a tolerance >= 0.")
