"""A replay is given up only where it would have missed a tier."""

from dataclasses import dataclass

import numpy as np
import pytest

from simulation import trace_replay
from simulation.early_stop import LateCounter, TargetMissed
from simulation.engine.run import simulate
from simulation.faults import Crash
from simulation.fleet import Tier
from simulation.metrics import summarise
from simulation.policies.static import Static
from simulation.trace_replay import simulate_long_trace, summarise_replay
from tests.simulation.builders import fleet, pool, profile, trace

SLOW = profile(alpha=0.5, beta=0.0, gamma=0.01, delta=0.0, kv=4000, max_batch=4, budget=400)
DAY_S = 8 * 3600.0
TIERS = (
    Tier("a", ttft_s=5.0, attainment=0.9),
    Tier("b", ttft_s=60.0, e2e_s=300.0, attainment=0.95),
    Tier("c", e2e_s=7 * 3600.0, attainment=0.99, deferrable=True),
    Tier("d", tbt_s=0.6, attainment=0.5),
)


def played(seed: int, instances: int, watched: bool, streamed: bool = False) -> tuple[bool, float]:
    """Whether every tier is met, and when the watch was asked last; an instance is lost on the
    way, and some requests fit nowhere."""
    rng = np.random.default_rng(seed)
    n = 9_000
    busy = rng.uniform(0.3, 0.9) * DAY_S
    arrival = np.sort(
        np.where(rng.random(n) < 0.5, rng.normal(busy, 3000.0, n), rng.uniform(0, DAY_S, n))
    )
    its = trace(
        np.clip(arrival, 0.0, DAY_S - 1.0),
        rng.integers(5, 200, n),
        np.where(rng.random(n) < 0.002, 5000, rng.integers(1, 40, n)),
        tier=rng.integers(0, len(TIERS), n),
        tiers=tuple(tier.name for tier in TIERS),
    )  # fmt: skip
    many = fleet(pool(SLOW, maximum=16), tiers=TIERS, faults=(Crash(0, busy),))
    watch = Asked(TIERS, DAY_S, judges=watched)
    play = simulate_long_trace if streamed else simulate
    try:
        result = play(its, many, Static([instances]), duration_s=DAY_S, watch=watch)
    except TargetMissed:
        return False, watch.asked_s
    return all(summarise_replay(result).slo_met.values()), watch.asked_s


@dataclass(eq=False)
class Asked(LateCounter):
    """Knows when it was asked last, and judges where it is to."""

    judges: bool = True
    asked_s: float = 0.0

    def __call__(self, now, requests):
        self.asked_s = now
        if self.judges:
            super().__call__(now, requests)

    def check_stream(self, now, *part):
        self.asked_s = now
        if self.judges:
            super().check_stream(now, *part)


@pytest.mark.parametrize("seed", range(5))
def test_the_verdict_is_that_of_the_whole_replay(seed, monkeypatch):
    """Of a stream too, in pieces of a few hundred."""
    monkeypatch.setattr(trace_replay, "PIECE", 300)
    verdicts, given_up = [], np.zeros(2)
    for instances in (1, 2, 3, 5, 16):
        verdict, end_s = played(seed, instances, False)
        for i, streamed in enumerate((False, True)):
            met, asked_s = played(seed, instances, True, streamed)
            assert met == verdict
            assert asked_s == end_s == DAY_S or not met
            given_up[i] += asked_s < end_s
        verdicts.append(verdict)
    assert not verdicts[0] and verdicts[-1]
    assert given_up.all()


def test_a_tier_is_left_to_the_end_where_nobody_waits_out_its_limit():
    """All late by far, and not known before the end: what may wait longer than a look takes."""
    tiers = (Tier("a", e2e_s=3 * 3600.0, attainment=0.99),)
    served = fleet(pool(SLOW), tiers=tiers)
    its = trace(np.arange(0.0, 3600.0, 0.5), 10, 39, tiers=("a",))
    assert not all(summarise(simulate(its, served, Static([1]), duration_s=DAY_S)).slo_met.values())
    simulate(its, served, Static([1]), duration_s=DAY_S, watch=LateCounter(tiers, DAY_S))
