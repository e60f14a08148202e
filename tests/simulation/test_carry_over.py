"""Windows that begin with requests in flight: served, not counted, and paid for once."""

import numpy as np
import pytest

from simulation.carry_over import in_flight
from simulation.cells import simulate_cell
from simulation.early_stop import SLACK_S, LateCounter, TargetMissed
from simulation.fleet import Tier
from simulation.policies.static import Static
from simulation.results import COMPLETED, SimulationResult
from simulation.trace import Trace
from tests.simulation.builders import fleet, pool, profile

SPEED = profile(alpha=0.02, beta=1e-4, gamma=0.02, delta=1e-4, max_batch=64, kv=100_000)
RATE, LENGTH_S, OSL = 4.0, 600.0, 400
TTFT_S, TBT_S = 0.1, 0.021
TIER = Tier("t", ttft_s=2.0)


def requests(start_s: float, length_s: float, seed: int, osl: int = OSL) -> Trace:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, length_s, int(RATE * length_s)))
    n, codes = len(arrival), np.zeros(len(arrival), np.int16)
    return Trace(
        arrival, np.full(n, 100, np.int32), np.full(n, osl, np.int32), codes, codes, codes,
        ("m",), ("r",), ("t",), start_s,
    )  # fmt: skip


WINDOW = requests(0.0, LENGTH_S, 1)
BEFORE = requests(-60.0, 60.0, 2)


def carried(ttft_s: float = TTFT_S, tbt_s: float = TBT_S) -> Trace:
    return in_flight(BEFORE, np.array([ttft_s]), np.array([tbt_s]), 0.0)


def served(begun: Trace | None) -> SimulationResult:
    its = fleet(pool(SPEED, initial=3), tiers=(TIER,))
    result = simulate_cell(WINDOW, its, Static([3]), cells=1, duration_s=LENGTH_S, carried=begun)
    assert isinstance(result, SimulationResult)
    return result


def test_in_flight_are_those_that_are_not_done_with_what_they_still_need() -> None:
    rest = carried()
    age = -(BEFORE.start_s + BEFORE.arrival_s)
    assert len(rest) == (age < TTFT_S + (OSL - 1) * TBT_S).sum()
    assert not rest.arrival_s.any() and rest.start_s == 0.0
    new = rest.output_tokens == OSL
    assert (rest.input_tokens[new] == 100).all() and (rest.input_tokens[~new] == 1).all()
    # Requests come evenly, so half of each answer is left on average.
    assert rest.output_tokens.mean() == pytest.approx(OSL / 2, rel=0.15)
    assert len(in_flight(BEFORE, np.array([0.0]), np.array([0.0]), 0.0)) == 0


def test_requests_carried_over_are_served_and_not_counted() -> None:
    begun = served(carried())
    assert len(begun.trace) == len(WINDOW) == len(begun.requests.outcome)
    assert np.array_equal(begun.trace.arrival_s, WINDOW.arrival_s)
    assert (begun.requests.outcome == COMPLETED).all()
    more = begun.series.output_tokens[0, 0] - served(None).series.output_tokens[0, 0]
    assert more == pytest.approx(carried().output_tokens.sum(), rel=0.3)


def test_a_window_pays_for_the_work_that_it_leaves_beyond_what_it_began_with() -> None:
    empty, begun = served(None), served(carried())
    assert empty.after.kept_s[0] > 0
    assert begun.after.kept_s[0] < 0.3 * empty.after.kept_s[0]
    fewer = carried().rows(slice(0, len(carried()) // 2))
    half = served(fewer)
    assert begun.after.kept_s[0] <= half.after.kept_s[0] < empty.after.kept_s[0]


def test_with_nothing_in_flight_nothing_changes() -> None:
    none = served(carried().rows(slice(0)))
    for name in ("first_token_s", "last_token_s"):
        assert np.array_equal(getattr(none.requests, name), getattr(served(None).requests, name))
    assert none.after.kept_s[0] == served(None).after.kept_s[0]


def test_an_early_stop_judges_the_window_alone() -> None:
    times = ("arrival_s", "first_token_s", "last_token_s")
    kinds = [*((name, float) for name in times), ("tier", np.int16)]
    records = np.zeros(100, kinds)
    records["first_token_s"][:20] = 60.0  # the requests carried over are late
    now = LENGTH_S + 3 * SLACK_S
    judged, whole = LateCounter([TIER], LENGTH_S), LateCounter([TIER], LENGTH_S)
    judged.expect(np.array([80]), carried=20)
    judged(now, records)
    assert judged.late.tolist() == [0]
    with pytest.raises(TargetMissed):
        whole(now, records)
