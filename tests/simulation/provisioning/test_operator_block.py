"""Plans of a block of operators: brute force, laws, and the replay."""

from __future__ import annotations

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.provisioning.operator_block import (
    Block,
    BlockPlan,
    Choices,
    bandwidth_shares,
    block_of,
    length_factors,
    pack_shards,
    plans_of,
    replay_block,
)
from simulation.provisioning.replay import LevelReplay, draw_requests
from simulation.provisioning.workload import phase_problem
from tests.simulation.provisioning.test_workload import service, timing

DEVICE = 72e9
SHARES = Choices(batches=(1, 8), gpus=(1,), shares=(50, 100))
PAIR = ("gate_up_projection", "down_projection")


def block(rate: float, choices: Choices = SHARES, names: tuple[str, ...] = PAIR) -> Block:
    return block_of(phase_problem(service("prefill", rate, 1.0), timing), names, choices, DEVICE)


@pytest.mark.parametrize("rate", [5.0, 60.0, 200.0])
def test_the_best_of_all_plans_is_the_least_there_is(rate: float) -> None:
    """Two operators in a row, every pair of their choices looked at as arrays."""
    small = block(rate)
    slots = small.problem.parallel[:, None] * np.arange(1, small.problem.max_replicas + 1)
    every = [np.broadcast_to(slots, row.shape).ravel() for row in small.table]
    takes = small.table[0].ravel()[:, None] + small.table[1].ravel()[None, :]
    fewest = np.where(takes <= small.problem.slo_s, every[0][:, None] + every[1][None, :], 10**6)
    by_method = {plan.method: plan for plan in plans_of(small)}
    assert small.problem.edges == ((0, 1),)  # what runs between the two is passed over
    assert small.plans == np.prod([np.isfinite(row).sum() for row in small.table])
    best = by_method["exact"].plan
    assert best is not None
    assert best.slots == fewest.min()
    for plan in by_method.values():
        assert plan.plan is None or plan.plan.slots >= best.slots


def test_shares_are_a_decision_that_devices_have_room_for() -> None:
    """More to choose from is never worse; what is placed has shares, memory and bandwidth."""
    batched, parts = block(60.0, Choices((1, 8), (1,), (100,))), block(60.0)

    def least(small: Block) -> BlockPlan:
        return next(plan for plan in plans_of(small) if plan.method == "exact")

    assert least(parts).plan.slots * parts.unit <= least(batched).plan.slots * batched.unit
    for small in (batched, parts):
        for tried in plans_of(small):
            if tried.plan is None:
                continue
            replica, device, devices = pack_shards(small, tried, DEVICE)
            owner = np.repeat(np.arange(2), tried.plan.replicas)[replica]
            for takes in (small.share[tried.places], bandwidth_shares(small, tried)):
                held = np.bincount(device, takes[owner], minlength=devices)
                assert held.max() <= 1.0 + 1e-6 and held.min() > 0
            assert np.bincount(replica).min() == np.bincount(replica).max() == 1


def test_a_lone_request_takes_in_the_replay_what_the_plan_says() -> None:
    small = block(0.05)
    phase, plan = small.phase, plans_of(small)[-1]
    assert plan.plan is not None
    isl = np.full(50, int(phase.service.isl))
    came, _ = replay_block(
        small, plan, LevelReplay(phase, [draw_requests(isl, isl, phase)], DEVICE)
    )
    hops = float(phase.layers[small.operators[0]]) * 20e-6
    assert (plan.plan.batch == 1).all()
    assert came.p50_s == pytest.approx(plan.plan.latency_s + hops, rel=0.03)
    assert came.attainment == 1.0


def test_prompts_of_many_lengths_take_attention_longer() -> None:
    """Its work is of their squares: 200 and 1,800 tokens take (200^2 + 1800^2) / (2 x 1000^2) =
    1.64 times two of 1,000; a projection as long."""
    small = block(1.0, names=("attention_prefill", "output_projection"))
    phase = small.phase
    isl = np.tile([200, 1800], 400)
    times = length_factors(phase, LevelReplay(phase, [draw_requests(isl, isl, phase)], DEVICE))
    by_name = dict(zip(phase.names, times, strict=True))
    assert by_name["attention_prefill"] == pytest.approx(1.64, rel=0.05)
    assert by_name["output_projection"] == pytest.approx(1.0, rel=0.05)


def test_what_cannot_be_tried_is_said() -> None:
    with pytest.raises(SimulationError, match="keep up with this load"):
        block(1e6)
    with pytest.raises(SimulationError, match="needs operators"):
        block(1.0, names=("nothing",))
