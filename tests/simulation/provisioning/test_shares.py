"""Operators confined to shares of the multiprocessors (equation 6)."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.performance.curves import evaluate
from simulation.provisioning.level import no_worse
from simulation.provisioning.level_confirmation import SM_SLOWDOWNS, Confirmation
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.replay import LevelReplay, draw_requests
from simulation.provisioning.sm_shares import SM_SHARES, confined_to_shares, slowdown_at_share
from simulation.provisioning.workload import phase_problem
from tests.simulation.provisioning.test_workload import service, timing

ROOM = 72e9


def phase_of(**changes):
    return phase_problem(service(**changes), timing, batches=(1, 4), parallel=(1, 2))


@pytest.mark.parametrize("most", [1.0, 1.5])
def test_the_smallest_share_that_is_not_too_slow(most):
    phase = phase_of()
    within = confined_to_shares(phase, most)
    share, times = within.demand.compute, within.demand.share_slowdown
    assert (times <= most * (1 + 1e-9)).all() and (times >= 1.0).all()
    assert np.allclose(within.problem.latency_s, phase.problem.latency_s * times)
    # By hand: arithmetic c takes c / s times as long, bandwidth b as b / (s / 0.4).
    by_hand = np.maximum(phase.demand.compute, 0.4 * phase.demand.bandwidth) / most
    assert np.allclose(share, np.maximum(np.ceil(by_hand * 10 - 1e-9), 1) / 10)
    smaller = SM_SHARES[np.maximum(np.rint(share * 10).astype(int) - 2, 0)]
    for partner in np.unique(smaller):
        here = (smaller == partner) & (share > SM_SHARES[0])
        assert (slowdown_at_share(phase.demand, partner)[here] > most).all()
    # The same work over a longer time.
    drawn = within.power.above_w * within.problem.latency_s
    assert np.allclose(drawn, phase.power.above_w * phase.problem.latency_s)


def test_shares_of_a_device_come_to_all_of_it_and_the_replay_takes_as_long_as_planned():
    phase = phase_of(requests_s=200.0, slo_s=0.5)
    level = plan_level("operator", confined_to_shares(phase, 1.5), ROOM)
    plan, placed = level.plan, level.placement
    level = replace(level, max_sm_slowdown=1.5)
    seen = level.as_planned(phase)
    chosen = seen.problem.indices_of(plan.batch, plan.parallel)
    share = seen.demand.compute[chosen]
    held = np.bincount(placed.device, weights=share[placed.operator])
    assert held.size == placed.devices and (held <= 1 + 1e-9).all()
    # Nothing is slowed by arithmetic, whatever stands beside it.
    traffic = np.bincount(placed.device, weights=seen.demand.bandwidth[chosen][placed.operator])
    if (traffic <= 1).all():
        assert np.allclose(placed.slowdown, 1.0)
    replay = LevelReplay(phase, [], ROOM)
    prompt = float(phase.service.isl)
    for v, curve in enumerate(replay._station_curves(level)):
        tokens = plan.batch[v] * np.array([prompt])
        seconds = evaluate(curve, np.zeros(1), np.zeros(1), tokens, tokens * prompt / 2.0)
        assert seconds[0] == pytest.approx(seen.problem.latency_s[chosen][v], rel=1e-6)


def test_shares_are_kept_only_where_they_are_worse_in_nothing():
    phase = phase_of(requests_s=200.0, slo_s=0.5)
    rng = np.random.default_rng(2)
    isl = rng.integers(200, 2000, 500)
    replay = LevelReplay(phase, [draw_requests(isl, np.full(500, 20), phase)], ROOM)

    def plan(within, *, coarser=(), proofs=False):
        return plan_level("operator", within, ROOM, coarser=coarser)

    confirmation = Confirmation(phase, replay, 0.9)
    undivided = confirmation.whole_replicas()
    least = model_level(phase, ROOM)
    assert confirmation.operators_in_shares([least, undivided], plan) is None
    # Beside whole replicas that are wasteful, requests confirm them.
    wasteful = replace(
        undivided, devices=9 * undivided.devices, power_w=9 * undivided.power_w,
        memory_bytes=9 * undivided.memory_bytes, latency_s=9 * undivided.latency_s,
        replayed=replace(undivided.replayed, p95_s=9.0),
    )  # fmt: skip
    in_shares = confirmation.operators_in_shares([wasteful], plan)
    assert in_shares.max_sm_slowdown in SM_SLOWDOWNS and no_worse(in_shares, wasteful)
    assert in_shares.replayed.attainment >= 0.9 and "shares" in in_shares.method
