"""Plans on a given number of devices: they keep every limit, and reach the brute-force optimum."""

from dataclasses import replace

import numpy as np
import pytest

from bench.provision.exact_placement import fewest_devices
from bench.sources.checks import paths, sojourn
from simulation.provisioning.bounds import device_options
from simulation.provisioning.device_search import plan_on_devices
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.interference import Demand
from simulation.provisioning.levels import plan_level
from simulation.provisioning.problem import OperatorProblem, sojourns
from simulation.provisioning.workload import PhaseProblem, phase_problem, with_some_choices
from tests.simulation.provisioning.cases import random_problem
from tests.simulation.provisioning.test_workload import service, timing

DEVICE = 72e9
FRAME = phase_problem(service("prefill", 20.0, 1.0), timing)


def random_phase(seed: int) -> PhaseProblem:
    """Three operators, two batches, one or two GPUs per replica, devices of one unit of memory."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, operators=3, replicas=2, parallel=1 + seed % 2, dag=seed % 4 > 1)
    shape = problem.latency_s.shape
    demand = Demand(
        rng.uniform(0.1, 0.5, shape), rng.uniform(0, 1, shape), rng.uniform(0, 1, shape)
    )
    return replace(FRAME, problem=problem, demand=demand, reserve_s=problem.slo_s)


def latency_by_hand(problem: OperatorProblem, demand: Demand, plan, placed) -> float:
    """Return the longest path by the formulas of ``interference``, with factorials for queues."""
    b = np.searchsorted(problem.batches, plan.batch)
    p = np.searchsorted(problem.parallel, plan.parallel)
    chosen = np.arange(len(b)), b, p
    busy = problem.rate / plan.batch * problem.latency_s[chosen] / plan.replicas
    shares = np.stack([demand.compute[chosen], demand.bandwidth[chosen]])
    slowdown = np.ones(placed.operator.size)
    for i, (v, d) in enumerate(zip(placed.operator, placed.device, strict=True)):
        others = placed.operator[(placed.device == d) & (np.arange(placed.operator.size) != i)]
        load = (busy[others] * shares[:, others]).sum(axis=1)
        extra = np.minimum(
            shares[:, v] * load / (1 - load), shares[:, others].sum(axis=1) + shares[:, v] - 1
        )
        slowdown[i] = 1 + max(0.0, *extra)
    slowed = problem.latency_s.copy()
    for v in range(len(b)):
        worst = [
            slowdown[(placed.operator == v) & (placed.replica == k)].max()
            for k in range(plan.replicas[v])
        ]
        slowed[v] *= np.mean(worst)
    harder = replace(problem, latency_s=slowed)
    takes = [sojourn(harder, v, (b[v], p[v], plan.replicas[v])) for v in range(len(b))]
    return max(sum(takes[v] for v in path) for path in paths(problem))


def test_the_search_reaches_the_optimum_of_small_cases_and_never_beats_it():
    found = 0
    for seed in range(40):
        phase = random_phase(seed)
        problem, demand = phase.problem, phase.demand
        best = fewest_devices(problem, demand, 1.0)
        start = exact_plan(problem, device_options(problem, demand, sojourns(problem), 1.0, 99))
        if best is None or start is None:
            continue
        found += 1
        fewest = best[1].devices
        plan, placed = plan_on_devices(phase, [start], fewest, 1.0)
        assert placed.devices == fewest
        assert placed.memory_bytes.max() <= 1.0
        assert max(placed.compute.max(), placed.bandwidth.max()) <= 1.0
        takes = latency_by_hand(problem, demand, plan, placed)
        assert takes == pytest.approx(placed.latency_s) and takes <= problem.slo_s * (1 + 1e-9)
        for v in range(len(problem.names)):
            for k in range(plan.replicas[v]):
                where = placed.device[(placed.operator == v) & (placed.replica == k)]
                assert np.unique(where).size == plan.parallel[v]
        if fewest > 1:
            assert plan_on_devices(phase, [start], fewest - 1, 1.0) is None
    assert found >= 20


def test_no_plan_has_fewer_devices_than_a_replica_has_shards():
    wide = with_some_choices(FRAME, slice(None), slice(-1, None))
    start = exact_plan(wide.problem)
    width = int(wide.problem.parallel[0])
    assert width > 2 and start is not None
    assert plan_on_devices(wide, [start], width - 1, DEVICE) is None


def test_the_same_search_gives_the_same_plan():
    problem = phase_problem(service("decode", 60.0, 0.08), timing)
    one, other = (plan_level("operator", problem, DEVICE, method="exact") for _ in range(2))
    assert np.array_equal(one.placement.device, other.placement.device)
    assert np.array_equal(one.plan.replicas, other.plan.replicas)
