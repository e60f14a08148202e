"""Window by window: what is held when, by hand and as laws."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.provisioning.levels import model_level
from simulation.provisioning.over_time import over_time, windows_to_act
from simulation.provisioning.replay import LevelReplay, Requests
from simulation.provisioning.windows import (
    STEP,
    SampledWindows,
    Windows,
    block_means,
    demand_of_previous_block,
    rounded_demands,
    windows_of,
)
from simulation.provisioning.workload import at_rate, phase_problem
from tests.simulation.provisioning.test_workload import GPU, service, timing


def flat(*rates):
    rates = np.array(rates, float)
    return Windows(10.0, rates, np.full(rates.size, 1024.0), np.full(rates.size, 200.0))


def run(windows, startup_s=30.0, known=None):
    return over_time(
        windows,
        service(slo_s=0.5),
        lambda s: phase_problem(s, timing, batches=(1, 4), parallel=(1,)),
        72e9,
        startup_s=startup_s,
        planned_on=known,
    )


def test_windows_count_requests_and_keep_lengths_through_empty_ones():
    windows = windows_of(np.array([0.0, 1.0, 25.0]), [100, 300, 50], [1, 3, 9], 10.0)
    assert windows.requests_s.tolist() == [0.2, 0.0, 0.1]
    assert windows.isl.tolist() == [200, 200, 50]
    assert windows.osl.tolist() == [2, 2, 9]
    with pytest.raises(SimulationError, match="no requests"):
        windows_of(np.array([]), [], [], 10.0)


def test_demand_is_rounded_up_by_at_most_a_step():
    windows = flat(0.3, 7.0, 123.0)
    rounded = STEP ** np.array(rounded_demands(windows, "prefill"))[:, 0]
    assert (rounded >= windows.requests_s * (1 - 1e-9)).all()
    assert (rounded <= windows.requests_s * STEP * (1 + 1e-9)).all()


def test_steady_demand_is_met_by_both_from_the_first_window():
    for course in run(flat(*[40.0] * 6)).values():
        assert course.met.all() and course.refused == 0
        assert np.ptp(course.devices) == 0
        assert course.gpu_hours(10.0) == pytest.approx(course.devices[0] * 60 / 3600)
        assert (course.power_w <= course.devices * GPU.prefill_w + 1e-9).all()


def test_whole_replicas_come_late_after_a_jump_and_operators_one_window_later():
    windows = flat(*[10.0] * 3, *[200.0] * 8)
    courses = run(windows)
    # Both learn of the jump when window 3 is over; whole replicas take three windows more.
    assert courses["operator"].met.tolist() == [True] * 3 + [False] + [True] * 7
    assert courses["model"].met.tolist() == [True] * 3 + [False] * 4 + [True] * 4
    # What starts is paid for from the moment it is asked for.
    assert courses["model"].devices[4] == courses["model"].devices[-1]


def test_a_perfect_forecast_leaves_only_the_start_up():
    windows = flat(*[10.0] * 3, *[200.0] * 8)
    courses = run(windows, known=windows)
    assert courses["operator"].met.all()
    early = replace(windows, requests_s=np.r_[windows.requests_s[3:], [200.0] * 3])
    assert run(windows, known=early)["model"].met.all()


def problem_of(s):
    return phase_problem(s, timing, batches=(1, 4), parallel=(1,))


def test_levels_are_compared_at_the_headroom_that_each_needs_for_the_same_requests():
    rng = np.random.default_rng(3)
    windows = flat(*rng.poisson(60, 150) * 1.0)
    plain = over_time(windows, service(slo_s=0.5), problem_of, 72e9, startup_s=1.0)
    equal = over_time(windows, service(slo_s=0.5), problem_of, 72e9, startup_s=1.0, attainment=0.97)
    for level, course in equal.items():
        assert course.attainment >= 0.97
        assert course.headroom >= 0 and course.attainment >= plain[level].attainment
        more = over_time(
            windows, service(slo_s=0.5), problem_of, 72e9, startup_s=1.0,
            headroom=course.headroom, levels=(level,),
        )[level]  # fmt: skip
        assert (more.devices == course.devices).all() and (more.met == course.met).all()


def test_every_level_follows_and_draws_at_least_idle():
    windows = flat(*[10.0] * 3, *[120.0] * 5)
    courses = over_time(
        windows, service(slo_s=0.5), problem_of, 72e9, startup_s=30.0,
        levels=("model", "module", "operator"),
    )  # fmt: skip
    assert courses["module"].met.tolist() == courses["operator"].met.tolist()
    for course in courses.values():
        assert (course.power_w >= course.devices * GPU.idle_w - 1e-9).all()


def test_decode_is_keyed_by_iterations_and_context():
    windows = flat(2.0)
    rate, tokens = STEP ** np.array(rounded_demands(windows, "decode")[0], float)
    assert 400 <= rate <= 400 * STEP and 1124 <= tokens <= 1124 * STEP
    decode = service("decode", slo_s=0.08)
    course = over_time(windows, decode, problem_of, 72e9, startup_s=1.0)["operator"]
    assert course.met.all()


def test_plans_that_stand_longer_see_the_mean_of_the_block_before():
    rate = np.array([1.0, 3.0, 5.0, 7.0, 9.0])
    windows = Windows(10.0, rate, np.array([10.0, 20.0, 30.0, 30.0, 50.0]), np.full(5, 8.0))
    assert block_means(windows, 2).requests_s.tolist() == [2.0, 2.0, 6.0, 6.0, 9.0]
    assert block_means(windows, 2).isl[0] == pytest.approx((1 * 10 + 3 * 20) / 4)
    assert demand_of_previous_block(windows, 2).requests_s.tolist() == [2.0, 2.0, 2.0, 2.0, 6.0]
    assert demand_of_previous_block(windows, 1).requests_s.tolist() == [1.0, 1.0, 3.0, 5.0, 7.0]
    assert [windows_to_act(level, 600.0, 10.0) for level in ("operator", "module", "model")] == [
        0, 0, 60,
    ]  # fmt: skip


def test_a_forecast_may_be_given_by_level():
    count = 24
    rate = np.where(np.arange(count) < 12, 2.0, 150.0)
    windows = Windows(10.0, rate, np.full(count, 512.0), np.full(count, 64.0))
    truth = {"model": windows, "operator": windows}
    plain, warned = (
        over_time(
            windows, service(slo_s=0.5), problem_of, 72e9, startup_s=1.0, planned_on=known,
            every={"model": 6},
        )
        for known in (None, truth)
    )  # fmt: skip
    for level in ("model", "operator"):
        assert warned[level].attainment == 1.0
        assert plain[level].attainment < 1.0
    # Whole replicas stand for six windows: they miss the rise for six, operators for one.
    assert (~plain["operator"].met).sum() == 1
    assert (~plain["model"].met).sum() == 6


def came(*rates, seed=4):
    """Requests of 1,024 tokens in and 20 out, evenly at ``rates`` by window of 10 s."""
    counts = [round(10 * rate) for rate in rates]
    arrival = np.concatenate([10 * w + (np.arange(n) + 0.5) * 10 / n for w, n in enumerate(counts)])
    return Requests(arrival, np.full(arrival.size, 1024), np.full(arrival.size, 20))


def test_windows_are_judged_by_the_requests_that_came_in_them():
    """One replica has 10 calm windows and one beyond what it can do; windows are picked evenly
    among requests, so the share within the limit is that of the whole trace replayed at once."""
    phase = problem_of(service(slo_s=0.5))
    can = 4 / phase.replica_s[1, 0]  # requests/s at batches of 4
    phase = at_rate(phase, 0.3 * can)
    level = model_level(phase, 72e9)
    assert level.devices == 1
    rates = [*[0.3 * can] * 10, 3.0 * can, *[0.3 * can] * 3]
    requests = came(*rates)
    windows = windows_of(requests.arrival_s, requests.isl, requests.osl, 10.0)
    judge = SampledWindows(windows, requests, phase.service, 12, 72e9)
    assert judge.picked.size == 200
    assert (judge.picked == 10).mean() == pytest.approx(rates[10] / sum(rates), abs=0.02)
    at_once = LevelReplay(phase, [replace(requests, counted=slice(0, None))], 72e9).latency_of(
        level
    )
    # After the burst its queue is there in the one, gone with its window in the other.
    assert judge.attainment([(level, phase)] * 14) >= at_once.attainment - 0.02
    calm = judge.attainment([(level, phase) if w != 10 else None for w in range(14)])
    assert calm <= 1 - (judge.picked == 10).mean() + 1e-9
    assert judge.attainment([None] * 14) == 0.0


def test_by_requests_a_finer_level_never_holds_more_than_whole_replicas_that_act_as_soon():
    """At no start-up what whole replicas hold is open to every level."""
    phase = problem_of(service(slo_s=0.5))
    can = 4 / phase.replica_s[1, 0]
    requests = came(*[0.5 * can, 1.5 * can, 2.5 * can] * 4)
    windows = windows_of(requests.arrival_s, requests.isl, requests.osl, 10.0)
    judge = SampledWindows(windows, requests, phase.service, 12, 72e9)
    courses = over_time(
        windows, phase.service, problem_of, 72e9, startup_s=0.0, attainment=0.8,
        sampled_windows=judge, levels=("model", "module", "operator"), planned_on=windows,
    )  # fmt: skip
    replicas = courses["model"]
    assert replicas.attainment >= 0.8
    for level in ("module", "operator"):
        assert courses[level].attainment >= 0.8
        assert courses[level].devices.sum() <= replicas.devices.sum()
