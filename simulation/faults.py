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

EventRow = tuple[float, int, int, int, float, float]  # the fields of ``EVENT``


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
        problem = _wrong_target(fault, pools, regions) or _wrong_number(fault)
        if problem:
            raise SimulationError(f"Fault {i + 1} ({type(fault).__name__}): {problem}")


def _wrong_target(fault: Fault, pools: int, regions: tuple[str, ...]) -> str:
    """Return what is wrong with the pool, replica or region of a fault; "": nothing."""
    pool_indices = getattr(fault, "pools", None) or ()
    if isinstance(fault, Crash | SlowInstance):
        pool_indices = (fault.pool,)
    if any(not 0 <= p < pools for p in pool_indices):
        return f"its pool must be 0 to {pools - 1}."
    if isinstance(fault, Crash | SlowInstance) and fault.instance < 0:
        return "its replica must be 0 or more."
    if isinstance(fault, RegionOutage) and fault.region not in regions:
        return f"region {fault.region!r} is not known. Use one of {', '.join(regions)}."
    return ""


def _wrong_number(fault: Fault) -> str:
    """Return what is wrong with the times and rates of a fault; "": nothing."""
    if isinstance(fault, Crash) and not 0 <= fault.at_s < np.inf:
        return "at_s must be a number of seconds >= 0."
    has_span = SlowInstance | RegionOutage | ControllerOutage
    if isinstance(fault, has_span) and not 0 <= fault.from_s < fault.to_s:
        return "needs 0 <= from_s < to_s."
    if isinstance(fault, SlowInstance) and not 0 < fault.factor < np.inf:
        return "its factor must be above 0."
    if isinstance(fault, RandomCrashes) and not 0 <= fault.per_instance_hour < np.inf:
        return "per_instance_hour must be >= 0."
    if isinstance(fault, FailedStarts) and (
        not 0 <= fault.probability <= 1 or min(fault.nth, default=1) < 1
    ):
        return "probability is 0 to 1, nth counts from 1."
    return ""


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
    rows: list[EventRow] = []  # time, kind, pool or region, slot_or_rank, until, factor
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
            rows += _random_crashes(fault, i, maxima, duration_s, seed)
    events = np.array(sorted(rows), EVENT)
    # A fault that begins in the window also ends, even after it.
    ends_fault = np.isin(events["kind"], (RECOVER, RESTORE))
    return events[(events["time"] < duration_s) | ends_fault]


def _random_crashes(
    fault: RandomCrashes, i: int, maxima: npt.NDArray[np.int64], duration_s: float, seed: int
) -> list[EventRow]:
    """Draw the crashes of fault ``i``, which follow a Poisson process.

    A crash of a slot without an instance has no effect.
    """
    rows: list[EventRow] = []
    pools = range(len(maxima)) if fault.pools is None else fault.pools
    for p in pools:
        slots = int(maxima[p])
        expected = fault.per_instance_hour * slots * duration_s / HOUR_S
        if expected > MAX_CRASHES:
            raise SimulationError(
                f"Fault {i + 1} (RandomCrashes): about {expected:,.0f} crashes of a pool "
                f"are expected in the window; {MAX_CRASHES:,} are allowed: lower the rate "
                "or the pool's maximum, or shorten the window."
            )
        rng = np.random.default_rng([seed, i, p])
        count = int(rng.poisson(expected))
        times_s = rng.uniform(0, duration_s, count).tolist()
        crashed_slots = rng.integers(slots, size=count).tolist()
        rows += [(times_s[n], CRASH, p, crashed_slots[n], 0.0, 1.0) for n in range(count)]
    return rows


def failing_starts(faults: tuple[Fault, ...], pools: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the starts that fail, ``[pools, STARTS]``, in order of starting.

    The shape is ``[pools, 0]`` if no start fails.
    """
    numbered = list(enumerate(faults))
    failing_faults = [(i, fault) for i, fault in numbered if isinstance(fault, FailedStarts)]
    fails = np.zeros((pools, STARTS if failing_faults else 0), np.bool_)
    for i, fault in failing_faults:
        failing_pools = range(pools) if fault.pools is None else fault.pools
        for p in failing_pools:
            rng = np.random.default_rng([seed, i, p])
            fails[p] |= rng.random(STARTS) < fault.probability
            fails[p, [n - 1 for n in fault.nth if n <= STARTS]] = True
    return fails
