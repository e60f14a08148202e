"""The proof by search: it never denies a plan that exists, and proves more than sums do."""

from dataclasses import replace

import numpy as np
import pytest

from bench.provision.exact_placement import fewest_devices
from simulation.provisioning.crowding import least_crowded_latency
from simulation.provisioning.device_tree import is_without_plan
from simulation.provisioning.interference import SHARED_KINDS, Demand, InterferenceTable
from simulation.provisioning.problem import sojourns
from tests.simulation.provisioning.cases import crowded_case

NODES = 200_000


def test_no_optimum_is_denied_and_more_is_proven_than_by_sums():
    by_sums, by_search = 0, 0
    for seed in range(40):
        problem, demand = crowded_case(seed)
        best = fewest_devices(problem, demand, 1.0)
        if best is None:
            continue
        case, devices = (problem, demand, sojourns(problem), 1.0), best[1].devices
        assert not is_without_plan(*case, devices, NODES)
        if devices > 1:
            by_sums += least_crowded_latency(*case, devices - 1) > 1.0
            by_search += is_without_plan(*case, devices - 1, NODES)
    assert by_search >= 1.5 * by_sums > 0, (by_search, by_sums)


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_two_operators_on_one_device_by_hand(share: float):
    """Each is busy a fifth of the time, so the other takes 1 + 0.8 x 0.2 times as long."""
    problem, demand = crowded_case(0)
    kinds = np.zeros((2, len(SHARED_KINDS)))
    kinds[:, SHARED_KINDS.index("elementwise")] = 1.0
    one = np.full((2, 1, 1), 0.1)
    slowed = 0.1 * (1 + 0.8 * 0.2 / (1 - 0.2 * 0.1))
    problem = replace(
        problem, names=("a", "b"), edges=((0, 1),), batches=np.array([1]), parallel=np.array([1]),
        latency_s=one, transfer_s=np.zeros_like(one), rate=2.0, max_replicas=1,
        slo_s=share * 2 * slowed / (1 - 2 * slowed),
    )  # fmt: skip
    table = InterferenceTable("toy", "drawn", {("elementwise", "elementwise"): 1.8})
    demand = Demand(one, one, np.zeros_like(one), kinds=kinds, table=table)
    assert is_without_plan(problem, demand, sojourns(problem), 1.0, 1) == (share < 1)
    unmeasured = replace(demand, table=None)
    assert not is_without_plan(problem, unmeasured, sojourns(problem), 1.0, 1)
