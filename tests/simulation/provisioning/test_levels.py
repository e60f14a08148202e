"""The two granularities on the same devices, and what they draw."""

import numpy as np
import pytest

from simulation.provisioning.energy import Watts, request_energy_j, steady_w, watts
from simulation.provisioning.exact import exact
from simulation.provisioning.frontier import frontiers, priced
from simulation.provisioning.levels import model_level, operator_level, savings
from simulation.provisioning.problem import sojourns
from simulation.provisioning.workload import phase_problem
from tests.simulation.provisioning.cases import by_hand, random_problem
from tests.simulation.provisioning.test_workload import GPU, service, timing

DEVICE = 72e9


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("requests_s", [2.0, 20.0, 150.0])
def test_operators_never_need_more_devices_than_whole_replicas(phase, requests_s):
    limit = 1.0 if phase == "prefill" else 0.08
    problem = phase_problem(service(phase, requests_s, limit), timing)
    power = watts(GPU, phase)
    whole = model_level(problem, DEVICE, power)
    for method in ("greedy", "exact", "algorithm 1", "printed"):
        fine = operator_level(problem, DEVICE, power, method=method, whole=whole)
        assert fine.devices <= whole.devices
        assert fine.latency_s <= limit
        saved = savings(whole, fine)
        assert saved["gpus"] == pytest.approx(1 - fine.devices / whole.devices)
        if fine.placement is not None:
            assert fine.placement.feasible
            assert fine.placement.devices == fine.devices
            assert fine.memory_bytes <= fine.devices * DEVICE


def test_an_impossible_limit_has_no_level():
    problem = phase_problem(service(slo_s=1e-4), timing)
    power = watts(GPU, "prefill")
    assert model_level(problem, DEVICE, power) is None
    assert operator_level(problem, DEVICE, power) is None


def test_energy_of_a_request_by_hand():
    """Eq. 9 on one and two replicas: T 0.1 and 0.2 s, W + T 1/6 and 0.2 / 0.84 s (see cases)."""
    plan = exact(by_hand())
    power = Watts(idle_w=50.0, dynamic_w=300.0)
    expected = 50 * (1 / 6 + 2 * 0.2 / 0.84) + 300 * (0.1 + 0.2)
    assert request_energy_j(by_hand(), plan, power) == pytest.approx(expected)


def test_power_lies_between_idle_and_full():
    power = watts(GPU, "decode")
    assert steady_w(3, 0.0, power) == 150
    assert steady_w(3, 3.0, power) == pytest.approx(3 * GPU.decode_w)


def test_a_frontier_priced_in_slots_is_the_frontier_of_slots():
    problem = random_problem(4, operators=3, batches=3, parallel=2, replicas=6, dag=False)
    table = sojourns(problem)
    slots = problem.parallel[:, None] * np.arange(1, 7)
    price = np.broadcast_to(slots.astype(float), table.shape[1:])
    for v, option in enumerate(frontiers(problem, table)):
        again = priced(table[v], price)
        assert again.slots == pytest.approx(option.slots)
        assert again.sojourn_s == pytest.approx(option.sojourn_s)
