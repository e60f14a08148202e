"""Faults that a fleet names, and their schedule for a seed.

Nothing fails unless the fleet names a fault. Random faults are drawn before the run, from the seed
of the simulation and the position in the pool. They do not depend on the policy. So the same seed
gives the same bytes, and two policies meet the same faults. A slot is the index of an instance in
its pool, from 0 to the pool's maximum.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError

HOUR_S = 3600.0
# Kinds of planned events. At one instant they sort by kind, then target, then slot.
RECOVER, RESTORE, CRASH, SLOW, OUTAGE = range(5)
MAX_CRASHES = 1_000_000  # most crashes drawn for one pool and fault
STARTS = 4096  # starts of a pool for which failures are drawn; later starts reuse the draws

EVENT = np.dtype(
    [
        ("time", "f8"),
        ("kind", "i8"),
        ("target", "i8"),  # pool, or region for RESTORE and OUTAGE
        # slot of the instance in the pool, or -1 - i for the i-th ready or draining one
        ("slot_or_rank", "i8"),
        ("until", "f8"),  # for SLOW: its end in seconds
        ("factor", "f8"),  # for SLOW: on the time of iterations
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class Crash:
    """Loss of one instance of a pool at ``at_s``.

    ``instance`` is its index among the ready and draining instances, modulo their number. Nothing
    happens if there are none.
    """

    pool: int  # index into ``Fleet.pools``
    at_s: float
    instance: int = 0


@dataclass(frozen=True, slots=True)
class RandomCrashes:
    """Random losses of instances of a pool, at exponential times, starting instances included."""

    per_instance_hour: float
    pools: tuple[int, ...] | None = None  # None: all


@dataclass(frozen=True, slots=True)
class SlowInstance:
    """Slow iterations of one instance, selected as in ``Crash``.

    Iterations that begin within ``[from_s, to_s)`` take ``factor`` times as long.
    """

    pool: int
    from_s: float
    to_s: float
    factor: float
    instance: int = 0


@dataclass(frozen=True, slots=True)
class RegionOutage:
    """Loss of all instances of a region at ``from_s``; none starts there before ``to_s``.

    Requests from the region are served elsewhere, with the latency of open paths, or wait.
    Afterwards the policy starts new instances.
    """

    region: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class FailedStarts:
    """Starts that take their full time and then fail.

    Each fails with ``probability``. The starts of a pool are numbered from 1, and those in ``nth``
    always fail.
    """

    probability: float = 0.0
    nth: tuple[int, ...] = ()
    pools: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ControllerOutage:
    """No scaling decision within ``[from_s, to_s)``; instances and routers continue.

    Afterwards the policy continues from its saved state. Without ``state_kept`` it resets from the
    present fleet (methods.md D4; HeteroScale, section 3.6).
    """

    from_s: float
    to_s: float
    state_kept: bool = True


Fault = Crash | RandomCrashes | SlowInstance | RegionOutage | FailedStarts | ControllerOutage


def check_faults(
    faults: tuple[Fault, ...], retries: int, pools: int, regions: tuple[str, ...]
) -> None:
    """Raise ``SimulationError`` for a fault with an unknown pool or region or an invalid number."""
    if retries < 0 or retries > 100:
        raise SimulationError("retries of requests whose replica failed must be 0 to 100.")
    for i, fault in enumerate(faults):
        name = f"Fault {i + 1} ({type(fault).__name__})"
        pool_indices = getattr(fault, "pools", None)
        if isinstance(fault, Crash | SlowInstance):
            pool_indices = (fault.pool,)
        if any(not 0 <= p < pools for p in pool_indices or ()):
            raise SimulationError(f"{name}: its pool must be 0 to {pools - 1}.")
        if isinstance(fault, Crash | SlowInstance) and fault.instance < 0:
            raise SimulationError(f"{name}: its replica must be 0 or more.")
        if isinstance(fault, Crash) and not 0 <= fault.at_s < np.inf:
            raise SimulationError(f"{name}: at_s must be a number of seconds >= 0.")
        lasting = SlowInstance | RegionOutage | ControllerOutage
        if isinstance(fault, lasting) and not 0 <= fault.from_s < fault.to_s:
            raise SimulationError(f"{name}: needs 0 <= from_s < to_s.")
        if isinstance(fault, SlowInstance) and not 0 < fault.factor < np.inf:
            raise SimulationError(f"{name}: its factor must be above 0.")
        if isinstance(fault, RegionOutage) and fault.region not in regions:
            raise SimulationError(
                f"{name}: region {fault.region!r} is not known. Use one of {', '.join(regions)}."
            )
        if isinstance(fault, RandomCrashes) and not 0 <= fault.per_instance_hour < np.inf:
            raise SimulationError(f"{name}: per_instance_hour must be >= 0.")
        if isinstance(fault, FailedStarts) and (
            not 0 <= fault.probability <= 1 or any(n < 1 for n in fault.nth)
        ):
            raise SimulationError(f"{name}: probability is 0 to 1, nth counts from 1.")


def fault_events(
    faults: tuple[Fault, ...],
    maxima: npt.NDArray[np.int64],
    regions: tuple[str, ...],
    duration_s: float,
    seed: int,
) -> npt.NDArray[np.void]:
    """Return the begin and end events of all faults that begin before ``duration_s``, by time.

    The result ``[events]`` has the dtype ``EVENT``. ``maxima [pools]`` is the largest number of
    instances of each pool: each of them may crash. Raises ``SimulationError`` if more than
    MAX_CRASHES crashes of a pool are expected.
    """
    rows: list[tuple[float, int, int, int, float, float]] = []  # the fields of ``EVENT``
    for i, fault in enumerate(faults):
        if isinstance(fault, Crash):
            rows.append((fault.at_s, CRASH, fault.pool, -1 - fault.instance, 0.0, 1.0))
        elif isinstance(fault, SlowInstance):
            slot_or_rank = -1 - fault.instance
            rows.append((fault.from_s, SLOW, fault.pool, slot_or_rank, fault.to_s, fault.factor))
            rows.append((fault.to_s, RECOVER, fault.pool, 0, 0.0, 1.0))
        elif isinstance(fault, RegionOutage):
            region = regions.index(fault.region)
            rows.append((fault.from_s, OUTAGE, region, 0, 0.0, 1.0))
            rows.append((fault.to_s, RESTORE, region, 0, 0.0, 1.0))
        elif isinstance(fault, RandomCrashes):
            for p in range(len(maxima)) if fault.pools is None else fault.pools:
                rng = np.random.default_rng([seed, i, p])
                expected = fault.per_instance_hour * int(maxima[p]) * duration_s / HOUR_S
                if expected > MAX_CRASHES:
                    raise SimulationError(
                        f"Fault {i + 1} (RandomCrashes): about {expected:,.0f} crashes of a pool "
                        f"are expected in the window; {MAX_CRASHES:,} are allowed: lower the rate "
                        "or the pool's maximum, or shorten the window."
                    )
                crashes = _draw_crashes(expected, int(maxima[p]), duration_s, rng)
                rows += [(time_s, CRASH, p, slot, 0.0, 1.0) for time_s, slot in crashes]
    in_window = [row for row in rows if row[0] < duration_s or row[1] in (RECOVER, RESTORE)]
    return np.array(sorted(in_window), EVENT)


def _draw_crashes(
    expected: float, slots: int, duration_s: float, rng: np.random.Generator
) -> list[tuple[float, int]]:
    """Draw the random crashes of a pool: pairs of a time in seconds and the slot that crashes.

    ``expected`` is their mean number over all ``slots``. They follow a Poisson process. A crash of
    a slot without an instance has no effect.
    """
    count = int(rng.poisson(expected))
    times_s = rng.uniform(0, duration_s, count)
    crashed_slots = rng.integers(slots, size=count)
    return list(zip(times_s.tolist(), crashed_slots.tolist(), strict=True))


def failing_starts(faults: tuple[Fault, ...], pools: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the starts that fail, ``[pools, STARTS]``, in order of starting.

    The shape is ``[pools, 0]`` if no start fails.
    """
    chosen = [(i, fault) for i, fault in enumerate(faults) if isinstance(fault, FailedStarts)]
    fails = np.zeros((pools, STARTS if chosen else 0), np.bool_)
    for i, fault in chosen:
        for p in range(pools) if fault.pools is None else fault.pools:
            rng = np.random.default_rng([seed, i, p])
            fails[p] |= rng.random(STARTS) < fault.probability
            fails[p, [n - 1 for n in fault.nth if n <= STARTS]] = True
    return fails
