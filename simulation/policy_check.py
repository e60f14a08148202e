"""A test harness for scaling policies, for pytest or direct use.

``check`` replays small traces and verifies that a policy obeys ``simulation.policy``. It
raises ``ProtocolBroken`` with the reason.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, replace

import numpy as np

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
        has_ready = ready > 0
        unknown = rng.random(pools) < 0.3

        def reading(largest: float, unknown: np.ndarray = unknown) -> np.ndarray:
            """Return random values from 0 to ``largest`` by pool; NaN where ``unknown``."""
            return np.where(unknown, np.nan, rng.uniform(0, largest, pools))

        signals = Signals(
            busy=np.where(has_ready, rng.random(pools), np.nan),
            sm_activity=np.where(has_ready, rng.random(pools) / 2, np.nan),
            prefill_tps=np.where(has_ready, rng.uniform(0, 1e4, pools), 0.0),
            decode_tps=np.where(has_ready, rng.uniform(0, 1e4, pools), 0.0),
            batch=np.where(has_ready, rng.uniform(0, 8, pools), np.nan),
            ttft_s=reading(3.0),
            tbt_s=reading(0.3),
            late_first=reading(1.0),
            late_done=reading(1.0),
            hit_rate=reading(1.0),
            evicted_tps=rng.uniform(0, 1e3, pools),
            preemptions=rng.integers(0, 30, pools),
            failed=rng.integers(0, 2, pools),
        )
        yield Observation(
            time_s=60.0 * (i + 1),
            ready=ready.astype(np.int64),
            starting=rng.integers(0, 3, pools),
            draining=rng.integers(0, 2, pools),
            utilisation=np.where(has_ready, rng.random(pools), float(i % 2)),
            waiting=rng.integers(0, 20, pools),
            input_tps=rng.uniform(0, 1e4, pools),
            signals=None if i % 7 == 3 else signals,
            deferred=None if i % 7 == 5 else rng.integers(0, 50, pools),
            load=np.where(has_ready, 2 * rng.random(pools), float(i % 2)),
            asked_tps=rng.uniform(0, 1e4, pools),
            backlog=np.where(has_ready, rng.uniform(0, 1e5, pools), 0.0),
            fullest=np.where(has_ready, 2 * rng.random(pools), 0.0),
            longest=np.where(has_ready, rng.uniform(0, 1e4, pools), 0.0),
            saturation=np.where(has_ready, 2 * rng.random(pools), 0.0),
            ttft_counts=rng.integers(0, 9, (pools, len(LATENCY_BOUNDS_S) + 1)),
            tbt_counts=rng.integers(0, 9, (pools, len(LATENCY_BOUNDS_S) + 1)),
        )


def _check_answers(make: Factory, fleet: Fleet, name: str) -> None:
    """Raise ``ProtocolBroken`` for an invalid answer, a changed observation or a random answer.

    ``name`` is that of the fleet.
    """
    policy, second_policy = make(), make()
    seen = list(observations(fleet))
    first_answers = [_checked_actions(policy.reset(fleet), fleet, name, 0.0)]
    _checked_actions(second_policy.reset(fleet), fleet, name, 0.0)
    for observation in seen:
        before = deepcopy(observation)
        answer = policy.decide(observation)
        first_answers.append(_checked_actions(answer, fleet, name, observation.time_s))
        if not all(
            np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
            for x, y in zip(_arrays(before), _arrays(observation), strict=True)
        ):
            raise ProtocolBroken(
                f"On the fleet {name!r} at {observation.time_s:g} s it changed the observation. "
                "Copy what is to be changed."
            )
    for which, other in (("a second policy", second_policy), ("the same one after reset", policy)):
        answers = [_checked_actions(other.reset(fleet), fleet, name, 0.0)]
        answers += [
            _checked_actions(other.decide(observation), fleet, name, observation.time_s)
            for observation in seen
        ]
        for index, (old, new) in enumerate(zip(first_answers, answers, strict=True)):
            if not np.array_equal(old.targets, new.targets):
                raise ProtocolBroken(
                    f"On the fleet {name!r} at answer {index} {which} wants {new.targets.tolist()} "
                    f"where the first wanted {old.targets.tolist()}. Reset must forget everything, "
                    "and nothing may depend on chance."
                )


def _checked_actions(answer: object, fleet: Fleet, name: str, time_s: float) -> Actions:
    """Return the answer of a policy as actions; raise ``ProtocolBroken`` if it is invalid."""
    where = f"On the fleet {name!r} at {time_s:g} s"
    if not isinstance(answer, np.ndarray | Actions):
        raise ProtocolBroken(f"{where} it answered {answer!r}: give an array or Actions.")
    actions = actions_of(answer)
    pools = len(fleet.pools)
    for field in fields(Actions):
        value = getattr(actions, field.name)
        if value is None or field.name in ("soft_s", "switch_s", "overflow_s"):
            continue
        array = np.asarray(value)
        shape: tuple[int, ...] = (pools,)
        if field.name == "shares":
            shape = (len(fleet.models), *fleet.latency_s.shape)
        elif field.name == "release_tokens":
            shape = (len(fleet.models), len(fleet.regions))
        elif field.name == "moves":
            shape = (pools, pools)
        if array.shape != shape:
            raise ProtocolBroken(f"{where} {field.name} has shape {array.shape}, not {shape}.")
        if array.dtype == object or not np.isfinite(array.astype(float)).all():
            raise ProtocolBroken(f"{where} {field.name} is not a finite number per pool.")
        if (array.astype(float) < 0).any():
            raise ProtocolBroken(f"{where} {field.name} is below 0: {array.tolist()}.")
    if not np.issubdtype(np.asarray(actions.targets).dtype, np.integer):
        raise ProtocolBroken(f"{where} targets are not whole numbers.")
    if not actions.soft_s >= 0:
        raise ProtocolBroken(f"{where} soft_s is below 0.")
    return replace(actions, targets=np.array(actions.targets))


def _check_replays(make: Factory, fleet: Fleet, name: str) -> None:
    """Check that replays lose no request, and that two replays give the same result."""
    for kind, trace in (
        ("burst", _trace(fleet, np.linspace(0, 20, 300))),
        ("silence", _trace(fleet, np.zeros(0))),
        ("steady load", _trace(fleet, np.arange(0, WINDOW_S, 0.5))),
    ):
        first, second = (
            simulate(trace, fleet, ObservationLog(make(), signals=False), duration_s=WINDOW_S)
            for _ in range(2)
        )
        if len(first.requests.outcome) != len(trace):
            raise ProtocolBroken(f"A {kind} on the fleet {name!r} lost requests.")
        if not (
            np.array_equal(first.requests.outcome, second.requests.outcome)
            and np.array_equal(first.series.ready, second.series.ready)
        ):
            raise ProtocolBroken(f"A {kind} on the fleet {name!r} came out differently twice.")


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
    models, regions = (tuple(dict.fromkeys(names)) for names in (
        [pool.model for pool in fleet.pools], [region.name for region in fleet.regions]
    ))  # fmt: skip
    return Trace(
        arrival_s=np.asarray(arrival_s, np.float64),
        input_tokens=(64 + index % 7 * 32).astype(np.int32),
        output_tokens=(8 + index % 5 * 4).astype(np.int32),
        model=np.zeros(n, np.int16),
        region=(index % len(regions)).astype(np.int16),
        tier=(index % 4 == 3).astype(np.int16),
        models=models,
        regions=regions,
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
