"""Operator scaling: by hand, against brute force, against each other, and laws."""

from dataclasses import replace
from functools import cache
from graphlib import CycleError

import numpy as np
import pytest

from simulation.provisioning.algorithm1 import algorithm1, greedy_plan, printed_sojourns
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.frontier import frontiers
from simulation.provisioning.levels import PRINTED, by_algorithm1
from simulation.provisioning.problem import critical_path, precedence_graph, sojourns
from simulation.sizing.queueing import mmc_mean_wait
from tests.simulation.provisioning.brute_force import brute
from tests.simulation.provisioning.cases import by_hand, random_problem

CASES = range(60)


@cache
def small(seed):
    """Return a random problem of two to four operators and its optimum."""
    problem = random_problem(seed, operators=2 + seed % 3, dag=seed % 2 == 1)
    return problem, exact_plan(problem)


def test_two_operators_by_hand():
    table = sojourns(by_hand())
    assert table[:, 0, 0, :2] == pytest.approx(np.array([[1 / 6, 1.0], [0.1 / 0.96, 0.2 / 0.84]]).T)
    for plan in (exact_plan(by_hand()), greedy_plan(by_hand()), algorithm1(by_hand())):
        assert plan.replicas.tolist() == [1, 2]
        assert plan.latency_s == pytest.approx(1 / 6 + 0.2 / 0.84)
        assert plan.slots == 3
    assert exact_plan(by_hand()).bound == exact_plan(by_hand()).slots
    assert exact_plan(replace(by_hand(), slo_s=0.35)).replicas.tolist() == [2, 2]
    assert exact_plan(replace(by_hand(), slo_s=0.29)) is None
    assert greedy_plan(replace(by_hand(), slo_s=0.29)) is None


def test_the_wait_is_that_of_m_m_c_with_batches_as_arrivals():
    problem = random_problem(7, operators=3, batches=4, replicas=12, dag=False)
    table = sojourns(problem)
    for v, b, p, r in np.ndindex(table.shape):
        service = problem.latency_s[v, b, p]
        wait = mmc_mean_wait(r + 1, problem.rate / problem.batches[b], service)
        assert table[v, b, p, r] == pytest.approx(wait + service + problem.transfer_s[v, b, p])


def test_the_printed_sojourn_divides_the_batch_twice():
    problem = by_hand()
    assert printed_sojourns(problem) == pytest.approx(sojourns(problem))
    two = replace(problem, batches=np.array([2]))
    # T / 2 = 0.05 s and requests at 4/s served at 20/s: load 0.2, sojourn 0.05 / 0.8.
    assert printed_sojourns(two)[0, 0, 0, 0] == pytest.approx(0.0625)
    # As read: batches at 2/s, 0.1 s each, load 0.2, sojourn 0.1 / 0.8.
    assert sojourns(two)[0, 0, 0, 0] == pytest.approx(0.125)


def test_exact_equals_brute_force_in_slots():
    for seed in CASES:
        problem, best = small(seed)
        every = brute(problem)
        assert (every is None) == (best is None), seed
        if best is not None:
            assert best.slots == every.slots == best.bound, seed
            assert best.feasible, seed


def test_our_greedy_misses_no_feasible_case_and_stays_near():
    gaps = []
    for seed in CASES:
        problem, best = small(seed)
        ours = greedy_plan(problem)
        assert (best is None) == (ours is None), seed
        if best is not None:
            assert ours.feasible, seed
            gaps.append(ours.slots / best.slots - 1)
    assert min(gaps) >= 0
    assert np.mean(gaps) <= 0.03


def test_algorithm_1_never_beats_the_optimum():
    for seed in CASES:
        problem, best = small(seed)
        for printed in (False, True):
            plan = algorithm1(problem, printed=printed)
            if plan is not None and plan.feasible:
                assert plan.slots >= best.slots, seed


def test_branches_take_the_longer_one():
    base = by_hand()
    side = replace(base, edges=())
    assert critical_path(side, np.array([0.3, 0.2])) == (0.3, [0])
    assert exact_plan(replace(side, slo_s=0.3)).replicas.tolist() == [1, 2]
    with pytest.raises(CycleError):
        precedence_graph(2, ((0, 1), (1, 0)))


def test_a_crossed_graph_is_solved_too():
    crossed = replace(
        random_problem(3, operators=4, dag=False), edges=((0, 2), (0, 3), (1, 3), (1, 2), (2, 3))
    )
    for slo in np.linspace(0.5, 3, 6) * crossed.slo_s:
        problem = replace(crossed, slo_s=float(slo))
        every, best = brute(problem), exact_plan(problem)
        assert (every is None) == (best is None)
        assert best is None or best.slots == every.slots


def test_more_load_or_a_tighter_limit_never_costs_less():
    for seed in range(40):
        problem = random_problem(seed, operators=5, replicas=12, dag=False)
        plan = exact_plan(problem)
        if plan is None:
            continue
        more = exact_plan(replace(problem, rate=1.3 * problem.rate))
        tighter = exact_plan(replace(problem, slo_s=0.8 * problem.slo_s))
        assert more is None or more.slots >= plan.slots
        assert tighter is None or tighter.slots >= plan.slots


def test_frontiers_hold_no_dominated_choice():
    problem = random_problem(11, operators=4, batches=3, parallel=3, replicas=8, dag=False)
    table = sojourns(problem)
    for v, option in enumerate(frontiers(problem)):
        assert (np.diff(option.slots) > 0).all()
        assert (np.diff(option.sojourn_s) < 0).all()
        b, p, r = option.choice.T
        assert table[v, b, p, r - 1] == pytest.approx(option.sojourn_s)
        assert (problem.parallel[p] * r == option.slots).all()
        for (_, j, k), sojourn in np.ndenumerate(table[v]):
            affordable = option.slots <= problem.parallel[j] * (k + 1)
            if np.isfinite(sojourn):
                assert option.sojourn_s[affordable].min() <= sojourn


def test_an_unstable_operator_is_said_at_once():
    hopeless = replace(by_hand(), rate=1000.0)
    assert exact_plan(hopeless) is None
    assert greedy_plan(hopeless) is None
    assert algorithm1(hopeless) is None


@pytest.mark.parametrize("seed", range(6))
def test_only_plans_that_keep_the_limit_come_of_algorithm_1(seed):
    problem, fewest = small(seed)
    for method in ("algorithm1", PRINTED):
        for plan in by_algorithm1(problem, method, epsilon=0.1):
            assert plan.feasible and plan.latency_s <= problem.slo_s * (1 + 1e-9)
            assert fewest is not None and plan.slots >= fewest.slots
