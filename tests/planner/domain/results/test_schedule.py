"""Laws of the schedule of a result: who follows its requests has the replicas of the simulation."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.progress import silent
from planner.domain.replay.policy_context import policy_context_of
from planner.domain.replay.replay import replay_policy, run_policy
from planner.domain.results.answer import answer_of, schedules_table
from planner.policies.choice import policy_of
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from tests.planner.domain.replay.test_policies import study


@pytest.mark.parametrize(
    ("name", "lead_s"), [("lt-i", 120), ("lt-i", 420), ("lt-h", 90), ("lt-i-perfect", 120)]
)
def test_a_follower_of_the_schedule_has_the_replicas_of_the_plan(
    tmp_path: Path, name: str, lead_s: float
) -> None:
    horizon = {"period_s": 300, "lead_s": lead_s, "duration_s": 2400}
    toy = study(tmp_path, horizon=horizon, fleet={"startup_s": lead_s})
    policy = policy_of(name, load_factor=1.0)
    run = run_policy(toy, policy, seed=1, progress=silent)
    schedule = answer_of(toy, run, run).timetable
    times = np.array([row.begins.timestamp() for row in schedule.rows]) - toy.window.start_s
    counts = np.array([row.replicas for row in schedule.rows])
    assert counts.shape == (len(times), len(toy.hardware.model_region_gpu))
    follower = ScheduleFollower(FixedSchedule(times, counts))
    context = policy_context_of(toy, seed=1, progress=silent)
    built = context.starting_from(follower, follower.reset(toy.fleet(counts[0])))
    again = replay_policy(toy, policy, built, seed=1, progress=silent)
    for series in ("ready", "starting", "draining"):
        assert getattr(again.series, series) == pytest.approx(getattr(run.series, series))
    assert again.summary.cost_usd == pytest.approx(run.summary.cost_usd)
    assert again.summary.slo_attainment == run.summary.slo_attainment

    # The first replicas are ready as the window begins. No request comes after its period.
    assert -lead_s - 60 < times[0] <= -lead_s
    assert all(row.period and row.begins <= row.period for row in schedule.rows)
    assert run.plan is not None
    for row in schedule.rows:
        assert row.period is not None
        period = round((row.period.timestamp() - toy.window.start_s) / toy.window.period_s)
        assert (np.array(row.replicas) >= toy.counts_by_pool(run.plan.target[period])).all()
    table = schedules_table(toy, [run])
    assert table["begins"].to_list() == [row.begins for row in schedule.rows]
