"""Faults on demand: what fails, when, and the plan of it that a seed gives.

Nothing fails by itself: a fleet names its faults. Random ones are drawn up front from the seed of
the simulation, by place in the pool and not by what the policy did, so that the same seed gives
the same bytes and two policies meet the same hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError

HOUR_S = 3600.0
# Kinds of planned events; at one instant in this order, then by pool or region, then by place.
MEND, RESTORE, CRASH, SLOW, OUTAGE = range(5)
MOST_CRASHES = 1_000_000  # drawn for one pool by one fault
STARTS = 4096  # of a pool, whose failures are drawn; then the draws begin again

EVENT = np.dtype(
    [
        ("time", "f8"),
        ("kind", "i8"),
        ("where", "i8"),  # pool; region of RESTORE and OUTAGE
        ("place", "i8"),  # of the instance: -1 - i, the i-th serving one; else its slot in the pool
        ("until", "f8"),  # of SLOW
        ("factor", "f8"),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class Crash:
    """One instance of a pool is lost at ``at_s``: the ``instance``-th of those that then serve or
    drain, counted from 0 and round again. None alive: nothing happens."""

    pool: int  # its place in ``Fleet.pools``
    at_s: float
    instance: int = 0


@dataclass(frozen=True, slots=True)
class RandomCrashes:
    """Every instance that lives, starting ones included, is lost at this rate (exponential times
    between failures)."""

    per_instance_hour: float
    pools: tuple[int, ...] | None = None  # None: all


@dataclass(frozen=True, slots=True)
class SlowInstance:
    """The iterations of one instance (chosen as by ``Crash``) that begin within ``[from_s, to_s)``
    take ``factor`` times as long."""

    pool: int
    from_s: float
    to_s: float
    factor: float
    instance: int = 0


@dataclass(frozen=True, slots=True)
class RegionOutage:
    """All instances of a region are lost at ``from_s`` and none can start there before ``to_s``;
    requests that come from it are served elsewhere, at the latency of ways that are open, or wait
    for it. Afterwards the policy starts new ones."""

    region: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class FailedStarts:
    """Starts that take their time and then fail: each with ``probability``, and those numbered in
    ``nth``, counted from 1 within each pool."""

    probability: float = 0.0
    nth: tuple[int, ...] = ()
    pools: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ControllerOutage:
    """Nobody scales within ``[from_s, to_s)``: no policy looks or decides; instances and routers go
    on. Afterwards it resumes the state that it persisted, or where that is not ``state_kept``
    starts afresh from the fleet that there is (methods.md D4; HeteroScale, section 3.6)."""

    from_s: float
    to_s: float
    state_kept: bool = True


Fault = Crash | RandomCrashes | SlowInstance | RegionOutage | FailedStarts | ControllerOutage


def check_faults(
    faults: tuple[Fault, ...], retries: int, pools: int, regions: tuple[str, ...]
) -> None:
    """Raise ``SimulationError`` where a fault names what is not there or has senseless numbers."""
    if retries < 0 or retries > 100:
        raise SimulationError("retries of requests whose instance failed must be 0 to 100.")
    for i, fault in enumerate(faults):
        place = f"Fault {i + 1} ({type(fault).__name__})"
        named = getattr(fault, "pools", None)
        if isinstance(fault, Crash | SlowInstance):
            named = (fault.pool,)
        if any(not 0 <= p < pools for p in named or ()):
            raise SimulationError(f"{place}: its pool must be 0 to {pools - 1}.")
        if isinstance(fault, Crash | SlowInstance) and fault.instance < 0:
            raise SimulationError(f"{place}: its instance must be 0 or more.")
        if isinstance(fault, Crash) and not 0 <= fault.at_s < np.inf:
            raise SimulationError(f"{place}: at_s must be a number of seconds >= 0.")
        lasting = SlowInstance | RegionOutage | ControllerOutage
        if isinstance(fault, lasting) and not 0 <= fault.from_s < fault.to_s:
            raise SimulationError(f"{place}: needs 0 <= from_s < to_s.")
        if isinstance(fault, SlowInstance) and not 0 < fault.factor < np.inf:
            raise SimulationError(f"{place}: its factor must be above 0.")
        if isinstance(fault, RegionOutage) and fault.region not in regions:
            raise SimulationError(
                f"{place}: region {fault.region!r} is not known; use one of {', '.join(regions)}."
            )
        if isinstance(fault, RandomCrashes) and not 0 <= fault.per_instance_hour < np.inf:
            raise SimulationError(f"{place}: per_instance_hour must be >= 0.")
        if isinstance(fault, FailedStarts) and (
            not 0 <= fault.probability <= 1 or any(n < 1 for n in fault.nth)
        ):
            raise SimulationError(f"{place}: probability is 0 to 1, nth counts from 1.")


def plan(
    faults: tuple[Fault, ...],
    maxima: npt.NDArray[np.int64],
    regions: tuple[str, ...],
    duration_s: float,
    seed: int,
) -> npt.NDArray[np.void]:
    """Everything that will happen before ``duration_s`` and every end of it, shape ``[events]`` of
    ``EVENT``, in order. ``maxima``: instances each pool may have, shape ``[pools]``."""
    rows: list[tuple[float, int, int, int, float, float]] = []
    for i, fault in enumerate(faults):
        if isinstance(fault, Crash):
            rows.append((fault.at_s, CRASH, fault.pool, -1 - fault.instance, 0.0, 1.0))
        elif isinstance(fault, SlowInstance):
            place = -1 - fault.instance
            rows.append((fault.from_s, SLOW, fault.pool, place, fault.to_s, fault.factor))
            rows.append((fault.to_s, MEND, fault.pool, 0, 0.0, 1.0))
        elif isinstance(fault, RegionOutage):
            region = regions.index(fault.region)
            rows.append((fault.from_s, OUTAGE, region, 0, 0.0, 1.0))
            rows.append((fault.to_s, RESTORE, region, 0, 0.0, 1.0))
        elif isinstance(fault, RandomCrashes):
            for p in range(len(maxima)) if fault.pools is None else fault.pools:
                # A Poisson process of every place in the pool; where nothing lives it hits nothing.
                rng = np.random.default_rng([seed, i, p])
                places = int(maxima[p])
                expected = fault.per_instance_hour * places * duration_s / HOUR_S
                if expected > MOST_CRASHES:
                    raise SimulationError(
                        f"Fault {i + 1} (RandomCrashes): about {expected:,.0f} crashes of a pool "
                        f"are expected in the window; {MOST_CRASHES:,} are allowed: lower the rate "
                        "or the pool's maximum, or shorten the window."
                    )
                count = int(rng.poisson(expected))
                times, hit = rng.uniform(0, duration_s, count), rng.integers(places, size=count)
                rows += [
                    (float(t), CRASH, p, int(slot), 0.0, 1.0)
                    for t, slot in zip(times, hit, strict=True)
                ]
    begun = [row for row in rows if row[0] < duration_s or row[1] in (MEND, RESTORE)]
    return np.array(sorted(begun), EVENT)


def failing_starts(faults: tuple[Fault, ...], pools: int, seed: int) -> npt.NDArray[np.bool_]:
    """Which starts of each pool fail, shape ``[pools, STARTS]``; ``[pools, 0]`` if none does."""
    chosen = [(i, fault) for i, fault in enumerate(faults) if isinstance(fault, FailedStarts)]
    fails = np.zeros((pools, STARTS if chosen else 0), np.bool_)
    for i, fault in chosen:
        for p in range(pools) if fault.pools is None else fault.pools:
            rng = np.random.default_rng([seed, i, p])
            fails[p] |= rng.random(STARTS) < fault.probability
            fails[p, [n - 1 for n in fault.nth if n <= STARTS]] = True
    return fails
