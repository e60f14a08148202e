"""The bound by interference: never above what a placed plan takes, and a proof where sums fail."""

from dataclasses import replace

import numpy as np
import pytest

from bench.provision.exact_placement import fewest_devices
from simulation.provisioning.bounds import device_options
from simulation.provisioning.crowding import least_crowded_latency
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.interference import SHARED_KINDS, Demand, InterferenceTable
from simulation.provisioning.problem import sojourns
from tests.simulation.provisioning.cases import crowded_case


def test_the_bound_admits_the_optimum_and_proves_it_where_sums_do_not():
    proven = 0
    for seed in range(40):
        problem, demand = crowded_case(seed)
        table = sojourns(problem)
        best = fewest_devices(problem, demand, 1.0)
        if best is None:
            continue
        placed = best[1]
        bound = least_crowded_latency(problem, demand, table, 1.0, placed.devices)
        assert bound <= placed.latency_s / problem.slo_s + 1e-6
        start = exact_plan(problem, device_options(problem, demand, table, 1.0, 99), slot_price=0.0)
        if start is not None and start.bound is not None and start.bound < placed.devices:
            proven += least_crowded_latency(problem, demand, table, 1.0, placed.devices - 1) > 1.0
    assert proven >= 5, proven


def test_two_operators_on_one_device_by_hand():
    """Each is busy a fifth of the time, so the other takes 1 + 0.8 x 0.2 times as long."""
    problem, demand = crowded_case(0)
    kinds = np.zeros((2, len(SHARED_KINDS)))
    kinds[:, SHARED_KINDS.index("elementwise")] = 1.0
    one = np.full((2, 1, 1), 0.1)
    problem = replace(
        problem, names=("a", "b"), edges=((0, 1),), batches=np.array([1]), parallel=np.array([1]),
        latency_s=one, transfer_s=np.zeros_like(one), rate=2.0, slo_s=1.0, max_replicas=1,
    )  # fmt: skip
    table = InterferenceTable("toy", "drawn", {("elementwise", "elementwise"): 1.8})
    demand = Demand(one, np.zeros_like(one), np.zeros_like(one), kinds=kinds, table=table)
    bound = least_crowded_latency(problem, demand, sojourns(problem), 1.0, 1)
    slowed = 0.1 * (1 + 0.8 * 0.2)
    assert bound <= 2 * slowed / (1 - 2 * slowed) + 1e-6
    assert bound == pytest.approx(2 * slowed / (1 - 2 * slowed), rel=0.05)
    unmeasured = replace(demand, table=None)
    assert least_crowded_latency(problem, unmeasured, sojourns(problem), 1.0, 1) == 0.0
