"""What comes after the window: paid until it is done, and judged when it is due."""

import numpy as np
import pytest

from simulation.deadlines import due_s
from simulation.engine.run import simulate
from simulation.fleet import Tier
from simulation.metrics import summarise
from simulation.policies.static import Static
from simulation.results import NOT_DUE, UNFINISHED
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.scripted_policies import Asking
from tests.simulation.test_laws import busy_day, busy_fleet

SLOW = profile(alpha=1.0, beta=0.0, gamma=2.0, delta=0.0, kv=1000, max_batch=1, budget=1000, tp=4)
DAY = Tier("niw", e2e_s=86_400.0, deferrable=True)


def test_whoever_works_after_the_window_is_paid_to_its_last_work_and_nobody_else():
    # 2 s of prefill from 95 s on and 8 s of decodes: 5 s after the window, on one of two instances.
    result = simulate(
        trace([95.0], 10, 9), fleet(pool(SLOW, usd=3.0)), Static([2]), duration_s=100.0
    )
    after, summary = result.after, summarise(result)
    assert after.kept_s.tolist() == [5.0]
    assert (after.prefill_s[0], after.decode_s[0]) == (0.0, 5.0)
    assert (after.iterations[0], after.output_tokens[0]) == (5, 5)
    assert result.series.output_tokens.sum() == 4
    assert summary.gpu_hours == pytest.approx(4 * 205 / 3600)
    assert summary.after_gpu_hours == pytest.approx(4 * 5 / 3600)
    assert summary.busy_gpu_hours == pytest.approx(4 * 10 / 3600)
    assert summary.cost_usd == pytest.approx(3 * 4 * 205 / 3600)
    assert summary.after_cost_usd == pytest.approx(3 * 4 * 5 / 3600)
    assert summary.after_energy_kwh == pytest.approx(1.25 * 4 * 5 * 400 / 3.6e6)
    joules = 4 * (195 * 100 + 2 * 600 + 8 * 400)
    assert summary.energy_kwh == pytest.approx(1.25 * joules / 3.6e6)
    assert summary.carbon_kg == pytest.approx(0.4 * summary.energy_kwh)


def test_what_an_instance_waits_between_its_work_is_paid_with_it():
    # On the way to the other region until 109 s, so that it idles for 9 s and works for 10.
    result = simulate(
        trace([99.0], 10, 9, regions=("a", "b")),
        fleet(
            pool(SLOW, region="b"), pool(SLOW, region="b"),
            regions=("a", "b"), latency=[[0, 10.0], [10.0, 0]],
        ),
        Static([1, 1]),
        duration_s=100.0,
    )  # fmt: skip
    assert sorted(result.after.kept_s) == [0.0, 19.0]
    assert (result.after.prefill_s + result.after.decode_s).sum() == 10.0
    assert summarise(result).idle_gpu_hours == pytest.approx(4 * (200 + 9) / 3600)


def test_a_day_to_go_is_a_day():
    # 2,000 requests of 10 s each on one instance: five and a half hours, of which 100 s in the
    # window. Cut at four hours some would be missed; for nothing all but the window were free.
    n = 2_000
    result = simulate(
        trace(np.linspace(0, 90, n), 10, 9, tiers=("niw",)),
        fleet(pool(SLOW), tiers=[Tier("t"), DAY]),
        Static([1]),
        duration_s=100.0,
    )
    summary = summarise(result)
    assert (summary.completed, summary.unfinished, summary.not_due) == (n, 0, 0)
    assert summary.slo_attainment == {"niw": 1.0}
    assert summary.busy_gpu_hours == pytest.approx(4 * n * 10 / 3600)


@pytest.mark.parametrize(
    ("tier", "outcome", "attainment"),
    [
        (DAY, UNFINISHED, 0.0),  # its deadline falls before the simulation ends
        (Tier("niw", tbt_s=1.0, deferrable=True), NOT_DUE, None),  # it has none
    ],
)
def test_what_nobody_serves_is_missed_once_it_is_due(tier, outcome, attainment):
    result = simulate(
        trace([0.0, 50.0], 10, 9, tiers=("niw",)),
        fleet(pool(SLOW), tiers=[Tier("t"), tier]),
        Static([0]),
        duration_s=100.0,
    )
    summary = summarise(result)
    assert (result.requests.outcome == outcome).all()
    assert summary.slo_attainment == {"niw": attainment}
    assert summarise(result).slo_met == {"niw": attainment is None}
    assert (
        summary.arrived
        == summary.completed + summary.rejected + summary.unfinished + summary.not_due
        == 2
    )
    assert summary.gpu_hours == 0.0


def test_a_request_is_due_at_the_first_of_its_limits():
    tiers = [
        Tier("a", ttft_s=1.0, e2e_s=9.0), Tier("b", tbt_s=1.0), DAY,
        Tier("idle", deferrable=True),
    ]  # fmt: skip
    requests = trace([5.0] * 4, 1, 1, tier=[0, 1, 2, 3], tiers=("a", "b", "niw", "idle"))
    assert due_s(requests, tiers).tolist() == [6.0, 5.0, 86_405.0, np.inf]


@pytest.mark.parametrize("count", [1, 2, 6])
def test_every_token_is_given_out_in_the_window_or_after_it(count):
    day = busy_day(5000)
    result = simulate(day, busy_fleet(), Static([count, count]))
    assert (result.requests.outcome == 0).all()
    tokens = result.series.output_tokens.sum() + result.after.output_tokens.sum()
    assert tokens == day.output_tokens.sum()
    iterations = result.series.iterations.sum() + result.after.iterations.sum()
    assert iterations == result.totals.iterations.sum()


def test_hours_after_the_window_are_those_of_a_longer_one():
    day = busy_day(5000)
    cut = summarise(simulate(day, busy_fleet(), Static([2, 2])))
    long = summarise(simulate(day, busy_fleet(), Static([2, 2]), duration_s=7200.0))
    assert cut.busy_gpu_hours == pytest.approx(long.busy_gpu_hours, rel=0.01)
    assert cut.after_gpu_hours > 0.0 == long.after_gpu_hours


def test_work_that_a_plan_never_released_is_released_at_the_end_of_the_window():
    # The plan releases nothing. The request would become urgent 10 hours after its arrival.
    plan = Asking([1], {"targets": [1], "release_tokens": [[0.0]]})
    result = simulate(
        trace([0.0], 10, 1, tiers=("niw",)), fleet(pool(SLOW), tiers=[DAY]), plan, duration_s=240.0
    )
    assert 240.0 < result.requests.first_token_s[0] < 600.0
    assert summarise(result).after_gpu_hours < 0.2
