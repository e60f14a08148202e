"""A test harness for scaling policies, for pytest or direct use.

``check`` replays small traces and verifies that a policy obeys ``simulation.policy``. It
raises ``ProtocolBroken`` with the reason.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, fields, replace

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.engine.run import simulate
from simulation.fleet import Fleet, KvLink, Pool, Region, Tier
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import GpuSpec, Provenance
from simulation.policies.wrappers.observation_log import ObservationLog
from simulation.policy import (
    LATENCY_BOUNDS_S,
    Actions,
    Observation,
    ScalingPolicy,
    Signals,
    actions_of,
)
from simulation.results import SimulationResult
from simulation.trace import Trace

Factory = Callable[[], ScalingPolicy]
ASSUMED = Provenance("assumed", "the policy harness")
GPU = GpuSpec("gpu", 80e9, 100.0, 600.0, 400.0, ASSUMED)
TIERS = (Tier("chat", ttft_s=1.0, tbt_s=0.1), Tier("night", e2e_s=3600.0, deferrable=True))
WINDOW_S = 600.0


class ProtocolBroken(AssertionError):
    """A policy violated the protocol; the message states how and where."""


def check(make: Factory, *, fleets: tuple[str, ...] = ("one", "two", "split")) -> None:
    """Raise ``ProtocolBroken`` unless the policies that ``make()`` returns obey the protocol.

    ``fleets`` are ``one`` (pool), ``two`` (regions, one empty at first) and ``split`` (prefill and
    decode pools). On each of them, these rules apply:

    - Every answer has one whole, finite count of at least 0 per pool.
    - The same observations give the same answers, from a new policy and after ``reset``.
    - Observations are not changed.
    - Empty pools and NaN readings raise no error.
    - A replay of a burst, of silence and of a steady load loses no request.
    """
    for name in fleets:
        fleet = FLEETS[name]()
        try:
            policy = make()
            if not isinstance(policy.name, str) or not policy.name:
                raise ProtocolBroken("name must be a word.")
            if not policy.interval_s > 0:
                raise ProtocolBroken("interval_s must be above 0.")
            _check_answers(make, fleet, name)
            _check_replays(make, fleet, name)
        except ProtocolBroken:
            raise
        except Exception as problem:  # the author must see any error of the policy
            raise ProtocolBroken(f"On the fleet {name!r} it raised {problem!r}.") from problem


@dataclass
class _RandomReadings:
    """Random readings of a decision, ``[pools]`` each."""

    rng: np.random.Generator
    ready: IntArray  # ready instances
    unknown: BoolArray  # pools without measured latencies

    def count(self, most: int) -> IntArray:
        """Return whole numbers from 0 to ``most``."""
        return self.rng.integers(0, most + 1, len(self.ready))

    def amount(self, largest: float) -> FloatArray:
        """Return values from 0 to ``largest``."""
        return self.rng.uniform(0, largest, len(self.ready))

    def of_ready(self, largest: float, otherwise: float) -> FloatArray:
        """Return values from 0 to ``largest``; ``otherwise`` for pools without ready instances."""
        return np.where(self.ready > 0, self.amount(largest), otherwise)

    def measured(self, largest: float) -> FloatArray:
        """Return values from 0 to ``largest``; NaN where ``unknown``."""
        return np.where(self.unknown, np.nan, self.amount(largest))

    def histogram(self) -> IntArray:
        """Return counts of latencies, ``[pools, buckets]``."""
        return self.rng.integers(0, 9, (len(self.ready), len(LATENCY_BOUNDS_S) + 1))


def observations(fleet: Fleet) -> Iterator[Observation]:
    """Yield various observations of a fleet: calm, busy, empty pools, no readings, no signals."""
    pools = len(fleet.pools)
    rng = np.random.default_rng(11)
    for i in range(40):
        ready = rng.integers(0, 6, pools)
        if i % 5 == 0:
            ready[rng.integers(0, pools)] = 0
        if i % 13 == 0:
            ready[:] = 0
        readings = _RandomReadings(rng, ready, unknown=rng.random(pools) < 0.3)
        yield _observation(i, readings, _signals(readings))


def _signals(readings: _RandomReadings) -> Signals:
    """Return random signals."""
    return Signals(
        busy=readings.of_ready(1.0, np.nan),
        sm_activity=readings.of_ready(0.5, np.nan),
        prefill_tps=readings.of_ready(1e4, 0.0),
        decode_tps=readings.of_ready(1e4, 0.0),
        batch=readings.of_ready(8, np.nan),
        ttft_s=readings.measured(3.0),
        tbt_s=readings.measured(0.3),
        late_first=readings.measured(1.0),
        late_done=readings.measured(1.0),
        hit_rate=readings.measured(1.0),
        evicted_tps=readings.amount(1e3),
        preemptions=readings.count(29),
        failed=readings.count(1),
    )


def _observation(i: int, readings: _RandomReadings, signals: Signals) -> Observation:
    """Return random observation ``i``, now and then without signals or deferred requests."""
    load_without_ready = float(i % 2)
    return Observation(
        time_s=60.0 * (i + 1),
        ready=readings.ready,
        starting=readings.count(2),
        draining=readings.count(1),
        utilisation=readings.of_ready(1.0, load_without_ready),
        waiting=readings.count(19),
        input_tps=readings.amount(1e4),
        signals=None if i % 7 == 3 else signals,
        deferred=None if i % 7 == 5 else readings.count(49),
        load=readings.of_ready(2.0, load_without_ready),
        asked_tps=readings.amount(1e4),
        backlog=readings.of_ready(1e5, 0.0),
        fullest=readings.of_ready(2.0, 0.0),
        longest=readings.of_ready(1e4, 0.0),
        saturation=readings.of_ready(2.0, 0.0),
        ttft_counts=readings.histogram(),
        tbt_counts=readings.histogram(),
    )


def _check_answers(make: Factory, fleet: Fleet, name: str) -> None:
    """Raise ``ProtocolBroken`` for an invalid answer, a changed observation or a random answer.

    ``name`` is that of the fleet.
    """
    policy = make()
    seen = list(observations(fleet))
    first_answers = _answers(policy, fleet, name, seen)
    for which, other in (("a second policy", make()), ("the same one after reset", policy)):
        answers = _answers(other, fleet, name, seen)
        for index, (old, new) in enumerate(zip(first_answers, answers, strict=True)):
            if not np.array_equal(old.targets, new.targets):
                raise ProtocolBroken(
                    f"On the fleet {name!r} at answer {index} {which} wants {new.targets.tolist()} "
                    f"where the first wanted {old.targets.tolist()}. Reset must forget everything, "
                    "and nothing may depend on chance."
                )


def _answers(
    policy: ScalingPolicy, fleet: Fleet, name: str, seen: list[Observation]
) -> list[Actions]:
    """Return the answers of a policy at its start and to each observation in ``seen``.

    Raise ``ProtocolBroken`` if one is invalid, or if the policy changes an observation.
    """
    answers = [_checked_actions(policy.reset(fleet), fleet, name, 0.0)]
    for observation in seen:
        before = deepcopy(observation)
        answer = policy.decide(observation)
        answers.append(_checked_actions(answer, fleet, name, observation.time_s))
        arrays = zip(_arrays(before), _arrays(observation), strict=True)
        if not all(np.array_equal(x, y, equal_nan=True) for x, y in arrays):
            raise ProtocolBroken(
                f"On the fleet {name!r} at {observation.time_s:g} s it changed the observation. "
                "Copy what is to be changed."
            )
    return answers


def _checked_actions(answer: object, fleet: Fleet, name: str, time_s: float) -> Actions:
    """Return the answer of a policy as actions; raise ``ProtocolBroken`` if it is invalid."""
    where = f"On the fleet {name!r} at {time_s:g} s"
    if not isinstance(answer, np.ndarray | Actions):
        raise ProtocolBroken(f"{where} it answered {answer!r}: give an array or Actions.")
    actions = actions_of(answer)
    for part in fields(Actions):
        value = getattr(actions, part.name)
        if value is not None and not part.name.endswith("_s"):  # those are plain seconds
            array, shape = np.asarray(value), _shape_of(part.name, fleet)
            what = f"{where} {part.name}"
            if array.shape != shape:
                raise ProtocolBroken(f"{what} has shape {array.shape}, not {shape}.")
            if array.dtype == object or not np.isfinite(array.astype(float)).all():
                raise ProtocolBroken(f"{what} is not a finite number per pool.")
            if (array.astype(float) < 0).any():
                raise ProtocolBroken(f"{what} is below 0: {array.tolist()}.")
    targets = np.array(actions.targets)
    if not np.issubdtype(targets.dtype, np.integer):
        raise ProtocolBroken(f"{where} targets are not whole numbers.")
    if not actions.soft_s >= 0:
        raise ProtocolBroken(f"{where} soft_s is below 0.")
    return replace(actions, targets=targets)


def _shape_of(field: str, fleet: Fleet) -> tuple[int, ...]:
    """Return the shape of an array in a ``field`` of ``Actions``."""
    if field == "shares":
        return len(fleet.models), len(fleet.regions), len(fleet.regions)
    if field == "release_tokens":
        return len(fleet.models), len(fleet.regions)
    if field == "moves":
        return len(fleet.pools), len(fleet.pools)
    return (len(fleet.pools),)


def _check_replays(make: Factory, fleet: Fleet, name: str) -> None:
    """Check that replays lose no request, and that two replays give the same result."""
    for kind, arrival_s in (
        ("burst", np.linspace(0, 20, 300)),
        ("silence", np.zeros(0)),
        ("steady load", np.arange(0, WINDOW_S, 0.5)),
    ):
        trace = _trace(fleet, arrival_s)
        first = _replay(trace, fleet, make())
        second = _replay(trace, fleet, make())
        if len(first.requests.outcome) != len(trace):
            raise ProtocolBroken(f"A {kind} on the fleet {name!r} lost requests.")
        same_outcome = np.array_equal(first.requests.outcome, second.requests.outcome)
        same_fleet = np.array_equal(first.series.ready, second.series.ready)
        if not (same_outcome and same_fleet):
            raise ProtocolBroken(f"A {kind} on the fleet {name!r} came out differently twice.")


def _replay(trace: Trace, fleet: Fleet, policy: ScalingPolicy) -> SimulationResult:
    """Return the result of a replay of ``trace`` with a policy."""
    return simulate(trace, fleet, ObservationLog(policy, signals=False), duration_s=WINDOW_S)


def _arrays(observation: Observation) -> list[np.ndarray]:
    """Return the arrays of an observation and of its signals."""
    signals = observation.signals
    values = [getattr(observation, field.name) for field in fields(Observation)]
    values += [getattr(signals, field.name) for field in fields(Signals)] if signals else []
    return [value for value in values if isinstance(value, np.ndarray)]


def _trace(fleet: Fleet, arrival_s: np.ndarray) -> Trace:
    """Return a trace for the fleet with small requests at ``arrival_s``."""
    n = len(arrival_s)
    index = np.arange(n)
    return Trace(
        arrival_s=np.asarray(arrival_s, np.float64),
        input_tokens=(64 + index % 7 * 32).astype(np.int32),
        output_tokens=(8 + index % 5 * 4).astype(np.int32),
        model=np.zeros(n, np.int16),
        region=(index % len(fleet.regions)).astype(np.int16),
        tier=(index % 4 == 3).astype(np.int16),
        models=fleet.models,
        regions=tuple(region.name for region in fleet.regions),
        tiers=tuple(tier.name for tier in fleet.tiers),
        start_s=0.0,
        provenance="synthesised",
    )


def _pool(**changes: object) -> Pool:
    """Return a small pool for tests, with ``changes``."""
    profile = LinearProfile(
        "m", "gpu", 1, 1 / 64, 1 / 1024, 1 / 64, 1 / 8192, 16, 512, 8192, ASSUMED
    )
    base = Pool("m", "east", profile, GPU, 2, 0, 8, 30.0, 2.0)
    return replace(base, **changes)  # type: ignore[arg-type]


def _fleet(*pools: Pool, regions: tuple[str, ...] = ("east",)) -> Fleet:
    """Return a small fleet for tests."""
    return Fleet(
        tiers=TIERS,
        regions=tuple(Region(name, 400.0, 1.2) for name in regions),
        pools=pools,
        latency_s=np.zeros((len(regions),) * 2),
    )


FLEETS: dict[str, Callable[[], Fleet]] = {
    "one": lambda: _fleet(_pool()),
    "two": lambda: _fleet(_pool(), _pool(region="west", initial=0), regions=("east", "west")),
    "split": lambda: _fleet(
        _pool(role="prefill", link=KvLink(1e5, 1e10)), _pool(role="decode", initial=3)
    ),
}
