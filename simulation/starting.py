"""How long an instance takes to serve, by where its weights are, and when started ones register."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True)
class StartUp:
    """Seconds from asked for to serving, by where the weights are (methods.md E3; SageServe,
    arXiv 2502.14617, section 3: spot reclaim a minute, local weights about 10, remote about 2 h).

    A start takes, in this order: an instance that this pool lent out as spot; one that a pool of
    another model lent out in the same region on the same GPUs, which leaves that pool and loads
    other weights, of the same architecture first; a new one with the weights on its host, while
    there is such a host; a new one that fetches them.
    """

    reclaim_s: float = 60.0
    same_architecture_s: float | None = None  # from another model of ``Pool.architecture``
    other_model_s: float | None = None  # from any other; None: not done
    local_s: float = 600.0
    remote_s: float = 7200.0
    warm_hosts: int | None = None  # with the weights at the start, the initial instances' among
    # them; a host that fetched them keeps them. None: every host has them.
    lent: int = 0  # instances lent out at the start


@dataclass(frozen=True, slots=True)
class Registration:
    """Ratio-aware registration (methods.md D4; HeteroScale): started instances of prefill and
    decode pools of one model and region become serving in numbers that keep ready prefill over
    ready decode within ``tolerance`` of ``ratio``; the others wait, loaded, and count as starting.

    A side that is short by the ratio registers as it comes, and when no instance of either side
    loads any more, all that wait register: there is nothing left to wait for.
    """

    ratio: float  # prefill instances per decode instance
    tolerance: float = 0.25  # fraction of it


def check_start(place: str, start: StartUp | None) -> None:
    """Raise ``SimulationError`` where a pool's start-up has senseless numbers."""
    if start is None:
        return
    for name in ("reclaim_s", "same_architecture_s", "other_model_s", "local_s", "remote_s"):
        seconds = getattr(start, name)
        if seconds is not None and not 0 <= seconds < np.inf:
            raise SimulationError(f"{place}: {name} must be a number of seconds >= 0.")
    if min(start.lent, start.warm_hosts or 0) < 0:
        raise SimulationError(f"{place}: lent and warm_hosts must be >= 0.")


def check_registration(band: Registration | None) -> None:
    """Raise ``SimulationError`` for a ratio or a tolerance that means nothing."""
    if band is not None and not (0 < band.ratio < np.inf and band.tolerance >= 0):
        raise SimulationError("Registration needs a ratio above 0 and a tolerance >= 0.")
