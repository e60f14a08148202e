"""Whole replicas are the best whole replicas, and no looser limit needs more of anything."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.provisioning.level import no_worse
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.replicas import plan_whole_replicas, under_load
from simulation.provisioning.workload import at_rate, phase_problem
from simulation.sizing.queueing import mmc_mean_wait
from tests.simulation.provisioning.test_workload import GPU, service, timing

DEVICE = 72e9
BOARD = replace(GPU, tdp_w=400.0)


def by_trying(phase, most=3000):
    """Fewest devices of prompts over every batch, parallelism, stages and count, one by one."""
    problem, best = phase.problem, None
    for b, p in np.ndindex(phase.replica_s.shape):
        batches_s = problem.rate / problem.batches[b]
        for stages in (1, 2, 4, 8):
            each = int(stages * problem.parallel[p])
            alone = phase.replica_s[b, p] + (stages - 1) * phase.crossing_s[b, p]
            for r in range(1, most):
                if each > 8 or (best is not None and r * each >= best):
                    break
                takes = mmc_mean_wait(r, batches_s, alone / stages) + alone
                held = phase.replica_bytes[b, p]
                held += phase.kv_bytes_per_request[p] * problem.rate * takes / r
                if takes <= problem.slo_s and held / stages <= DEVICE:
                    best = r * each
                    break
    return best


@pytest.mark.parametrize("requests_s", [3.0, 60.0, 1800.0])
def test_prompts_take_the_fewest_of_any_number_and_arrangement(requests_s):
    """Also where one GPU each is best and it takes more than 64 of them."""
    phase = phase_problem(service("prefill", requests_s, 1.0), timing, parallel=(1, 2, 4))
    plan = plan_whole_replicas(phase, DEVICE)
    assert plan.devices == by_trying(phase)
    assert plan.busy < 1 and plan.latency_s <= 1.0 and plan.memory_bytes <= plan.devices * DEVICE
    assert plan_whole_replicas(phase, 1e9) is None
    if requests_s == 1800.0:
        assert plan.replicas > 64 and plan.parallel == 1


def test_sequences_in_flight_are_those_of_littles_law():
    phase = phase_problem(service("decode", 60.0, 0.05), timing)
    plan = plan_whole_replicas(phase, DEVICE)
    j = list(phase.problem.parallel).index(plan.parallel)
    seconds = np.interp(plan.in_flight, phase.problem.batches, phase.replica_s[:, j])
    assert plan.latency_s == pytest.approx(seconds)
    rate = phase.problem.rate / plan.replicas
    assert plan.in_flight == pytest.approx(max(1.0, rate * seconds))
    # One fewer does not keep up, of no parallelism.
    for p, spread in enumerate(phase.problem.parallel):
        fewer = (plan.devices - 1) // int(spread)
        fewer = replace(plan, replicas=fewer, parallel=int(spread), stages=1)
        if fewer.replicas:
            held = phase.replica_bytes[-1, p]
            loaded = under_load(phase, fewer)
            if loaded is None or loaded.latency_s > 0.05:
                continue
            sequences = phase.problem.rate / fewer.replicas * loaded.latency_s
            assert held + sequences * phase.kv_bytes_per_request[p] > DEVICE


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_looser_limit_or_less_load_never_needs_more(phase):
    limits = (0.25, 0.5, 1.0, 4.0, 60.0) if phase == "prefill" else (0.03, 0.05, 0.1, 0.4, 3.0)
    for level in ("model", "module", "operator"):
        needed = []
        for limit in limits:
            problem = phase_problem(service(phase, 30.0, limit), timing, parallel=(1, 2))
            replicas = model_level(problem, DEVICE)
            coarser = [] if level == "model" or replicas is None else [replicas]
            needed.append(plan_level(level, problem, DEVICE, coarser=coarser).devices)
        assert needed == sorted(needed, reverse=True), level
    problem = phase_problem(service(phase, 30.0, limits[2]), timing, parallel=(1, 2))
    rates = [
        plan_level("operator", at_rate(problem, r), DEVICE, quick=True).devices for r in (5, 30, 90)
    ]
    assert rates == sorted(rates)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_no_plan_draws_more_than_its_boards_may_or_is_worse_than_a_coarser_one(phase):
    limit = 1.0 if phase == "prefill" else 0.06
    for rate in (4.0, 25.0, 120.0):
        load = replace(service(phase, rate, limit), gpu=BOARD)
        problem = phase_problem(load, timing, parallel=(1, 2))
        levels = [model_level(problem, DEVICE)]
        for name in ("module", "operator"):
            levels.append(plan_level(name, problem, DEVICE, coarser=levels))
        for i, level in enumerate(levels):
            assert level.power_w <= 400.0 * level.devices * (1 + 1e-9)
            assert all(no_worse(level, coarser) for coarser in levels[:i])
            if level.trade_off is not None:
                assert level.trade_off.devices < level.devices
