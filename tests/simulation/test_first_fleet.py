"""What is ready as the window begins and did not run before was started, and is paid."""

import pytest

from simulation.engine.run import simulate
from simulation.faults import FailedStarts
from simulation.metrics import summarise
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.static import Static
from simulation.start_times import StartUp
from tests.simulation.builders import fleet, pool, profile, trace

SLOW = profile(alpha=1.0, beta=0.0, gamma=2.0, delta=0.0, kv=1000, max_batch=1, budget=1000, tp=4)
NOBODY = trace([], [], [])


def summary(*pools, counts, **options):
    served = fleet(*pools, **options)
    return summarise(simulate(NOBODY, served, Static(counts), duration_s=600.0))


def test_starts_before_the_window_are_paid():
    figures = summary(pool(SLOW, startup_s=120.0, usd=3.0, today=1), counts=[3])
    assert figures.starts["local weights"] == 2
    assert figures.before_gpu_hours == pytest.approx(4 * 2 * 120 / 3600)
    assert figures.wasted_gpu_hours == figures.before_gpu_hours
    assert figures.gpu_hours == pytest.approx(4 * (3 * 600 + 2 * 120) / 3600)
    assert figures.cost_usd == pytest.approx(3 * figures.gpu_hours)
    assert figures.before_cost_usd == pytest.approx(3 * figures.before_gpu_hours)
    assert figures.recurring_usd == pytest.approx(3 * 4 * 3 * 600 / 3600)
    assert figures.energy_kwh == pytest.approx(1.25 * 4 * (3 * 600 + 2 * 120) * 100 / 3.6e6)
    assert figures.carbon_kg == pytest.approx(0.4 * figures.energy_kwh)


@pytest.mark.parametrize("today", [None, 3, 5])
def test_what_ran_before_is_not_started(today):
    figures = summary(pool(SLOW, startup_s=120.0, today=today), counts=[3])
    assert (sum(figures.starts.values()), figures.before_gpu_hours) == (0, 0.0)
    assert figures.gpu_hours == pytest.approx(4 * 3 * 600 / 3600)


def test_a_start_is_paid_alike_before_the_window_and_in_it():
    # The same second instance: up at 0, or asked for at 0 and up at 120 s.
    before = summary(pool(SLOW, startup_s=120.0, today=1), counts=[2])
    served = fleet(pool(SLOW, startup_s=120.0, today=1))
    inside = summarise(
        simulate(
            NOBODY,
            served,
            ScheduleFollower(FixedSchedule([0.0, 60.0], [[1], [2]])),
            duration_s=780.0,
        )
    )
    assert before.wasted_gpu_hours == pytest.approx(inside.wasted_gpu_hours)
    assert before.starts == inside.starts


def test_starts_before_the_window_come_from_where_any_start_does():
    start = StartUp(local_s=120.0, remote_s=900.0, reclaim_s=30.0, warm_hosts=2, lent=1)
    figures = summary(pool(SLOW, start_up=start, today=1), counts=[4])
    # Of two hosts with the weights one runs today's: the one lent out first, then the other host.
    assert figures.starts == {
        "spot": 1, "other model": 0, "local weights": 1, "remote weights": 1,
    }  # fmt: skip
    assert figures.before_gpu_hours == pytest.approx(4 * (30 + 120 + 900) / 3600)


def test_a_start_that_fails_before_the_window_is_paid_and_made_again():
    figures = summary(
        pool(SLOW, startup_s=120.0, today=0), counts=[1], faults=(FailedStarts(nth=(1,)),)
    )
    assert (figures.failed_starts, sum(figures.starts.values())) == (1, 2)
    assert figures.wasted_gpu_hours == pytest.approx(4 * 240 / 3600)
