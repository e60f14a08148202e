"""Services on common devices, prefill in chunks among decodes, batches that take time to fill."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.provisioning.device_sharing import (
    best_chunked,
    chunked_service,
    place_on_common_devices,
    with_batch_wait,
)
from simulation.provisioning.interference import Demand
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.placement import place_plan, place_services
from simulation.provisioning.problem import OperatorProblem, evaluate
from simulation.provisioning.workload import phase_problem, reserve_kv_cache, with_max_replicas
from tests.simulation.provisioning.test_workload import service, timing

DEVICE = 72e9


def lone(latency: float, slo: float, memory: float = 3.0):
    """One operator at one request/s."""
    problem = OperatorProblem(
        names=("all",), edges=(), batches=np.array([1]), parallel=np.array([1]),
        latency_s=np.full((1, 1, 1), latency), transfer_s=np.zeros((1, 1, 1)), rate=1.0, slo_s=slo,
        max_replicas=4,
    )  # fmt: skip
    share = np.full((1, 1, 1), 0.9)
    demand = Demand(np.full((1, 1, 1), memory), share, np.full((1, 1, 1), 0.1))
    return problem, demand, evaluate(problem, "by hand", np.array([[0, 0, 1]]))


def test_two_services_share_a_device_within_their_own_limits():
    """0.2 s and 0.3 s of work a second at 90% of the arithmetic: the first meets 0.27 of it and the
    second 0.18, by processor sharing; M/M/1 each."""
    first, two = lone(0.2, 0.5), lone(0.3, 0.6)
    slow = [1 + 0.9 * 0.27 / 0.73, 1 + 0.9 * 0.18 / 0.82]
    shared = place_services([first, two], 10.0)
    assert shared.devices == 1
    assert shared.slowdown == pytest.approx(slow)
    sojourns = [0.2 * slow[0] / (1 - 0.2 * slow[0]), 0.3 * slow[1] / (1 - 0.3 * slow[1])]
    assert shared.latency_s == pytest.approx(max(sojourns[0] / 0.5, sojourns[1] / 0.6))
    # A limit that the slowdown would break, or memory for one alone, keeps them apart.
    assert place_services([lone(0.2, 0.26), two], 10.0).devices == 2
    assert place_services([lone(0.2, 0.5, 6.0), lone(0.3, 0.6, 6.0)], 10.0).devices == 2


def test_one_service_alone_is_placed_as_ever():
    problem = phase_problem(service("decode", 60.0, 0.08), timing)
    level = plan_level("operator", problem, DEVICE)
    problem, plan = reserve_kv_cache(problem, level.latency_s), level.plan
    alone = place_plan(problem.problem, problem.demand, plan, DEVICE)
    same = place_services([(problem.problem, problem.demand, plan)], DEVICE)
    assert same.devices == alone.devices
    assert same.latency_s == pytest.approx(alone.latency_s / problem.problem.slo_s)


@pytest.mark.parametrize("rate", [2.0, 20.0, 70.0])
def test_sharing_is_never_worse_than_devices_apart(rate):
    phases = [
        phase_problem(service(phase, rate, limit), timing)
        for phase, limit in (("prefill", 1.0), ("decode", 0.08))
    ]
    apart = [
        plan_level("operator", phase, DEVICE, coarser=[model_level(phase, DEVICE)])
        for phase in phases
    ]
    shared = place_on_common_devices(phases, apart, DEVICE)
    assert shared.devices <= shared.devices_without_sharing
    if shared.placement is not None:
        assert shared.placement.latency_s <= 1.0
        assert (shared.placement.memory_bytes <= DEVICE).all()
        assert shared.power_w > 0


def test_chunks_keep_both_limits():
    prefill, decode = service("prefill", 20.0, 1.0), service("decode", 20.0, 0.08)
    both = chunked_service(prefill, decode)
    assert both.rate == decode.rate
    it = both.iteration(np.array([64.0]))
    # As many tokens of prompts go in as sequences end: isl for each osl decoded.
    assert it.prefill_tokens[0] / 64 == pytest.approx(both.isl / both.osl)
    phase = phase_problem(both, timing)
    assert {"attention_prefill", "attention_decode"} <= set(phase.problem.names)
    chunks = best_chunked(phase, DEVICE)
    assert chunks.operator.devices <= chunks.model.devices
    assert chunks.model.latency_s <= min(0.08, 1.0 * chunks.batch / both.osl)
    assert chunks.chunk_tokens == pytest.approx(chunks.batch * both.isl / both.osl)
    # Prompts that may take no time leave only batches that end as fast.
    impossible = best_chunked(phase_problem(replace(both, ttft_s=1e-6), timing), DEVICE)
    assert impossible.model is None and impossible.batch is None


def test_weights_are_read_once_for_both():
    """An iteration with chunks takes less than a decode and a prefill iteration of the same."""
    prefill, decode = service("prefill", 20.0, 1.0), service("decode", 20.0, 0.08)
    both = phase_problem(chunked_service(prefill, decode), timing, batches=(16,), parallel=(1,))
    decoding = phase_problem(decode, timing, batches=(16,), parallel=(1,))
    alone = phase_problem(prefill, timing, batches=(1,), parallel=(1,))
    prompts = 16 / decode.osl
    assert both.replica_s[0, 0] < decoding.replica_s[0, 0] + prompts * alone.replica_s[0, 0]
    assert both.replica_s[0, 0] > decoding.replica_s[0, 0]


def test_batches_that_take_time_to_fill_are_smaller():
    phase = phase_problem(service("prefill", 2.0, 1.0), timing)

    def plan(phase):
        return model_level(phase, DEVICE)

    level, largest = with_batch_wait(phase, plan)
    assert level.replicas.batch <= largest
    assert level.latency_s >= (largest - 1) / (2 * 2.0)
    assert level.latency_s <= 1.0 and level.slo_s == 1.0
    assert level.devices >= model_level(phase, DEVICE).devices
    # At high rates batches fill at once, and the choice is the one without waits.
    fast = with_max_replicas(phase_problem(service("prefill", 500.0, 1.0), timing), 512)
    assert with_batch_wait(fast, plan)[0].devices <= model_level(fast, DEVICE).devices + 1
