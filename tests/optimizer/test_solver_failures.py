"""A solver that dies, overruns or is cancelled: what had been found counts, the rest has a name."""

import os
import signal
from dataclasses import replace

import numpy as np
import psutil
import pytest

from planner.errors import RunCancelled
from planner.optimizer import solve_window
from planner.optimizer.figures import is_feasible
from planner.optimizer.horizon import solve_horizon
from planner.optimizer.problem import FEASIBLE, OPTIMAL, TIMEOUT
from planner.optimizer.solvers import Builder, solve_on_cbc, solve_program
from tests.optimizer.horizon.toys import steps
from tests.optimizer.test_decomposition import middling

ALWAYS = "planner.optimizer.solvers.deadline.SEPARATE_PROCESS_FROM"


# Those of this process that are not a solver: the browser and the worker of other tests.
others = set()


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    monkeypatch.setattr(ALWAYS, 0)
    others.clear()
    others.update(children())


def children():
    """Processes of the solver under test."""
    started = psutil.Process().children()
    return [child.pid for child in started if child.pid not in others]


def hard(size=60):
    """An equality knapsack that branch and bound takes very long to decide."""
    rng = np.random.default_rng(3)
    weights = rng.integers(10**5, 10**6, size).astype(float) * 2
    builder = Builder()
    x = builder.variables(size, cost=rng.uniform(1, 2, size), upper=1.0, integral=True)
    builder.add("sum", [(0, x, weights)], weights.sum() // 4 * 2 + 1, weights.sum() // 4 * 2 + 1, 1)
    return builder.program()


def kill_children():
    for pid in children():
        os.kill(pid, signal.SIGKILL)


def never():
    """Nothing to stop for."""


@pytest.mark.parametrize("solve", [solve_program, solve_on_cbc])
def test_a_small_program_is_solved_in_a_process_of_its_own(solve):
    builder = Builder()
    x = builder.variables(2, cost=[3.0, 2.0], integral=True)
    builder.add("cover", [(0, x, [2.0, 1.0])], 5.0, np.inf, 1)
    solved = solve(builder.program(), gap=0.0, time_limit_s=10.0, check=never)
    assert solved.status == OPTIMAL
    assert solved.values.tolist() == [2.0, 1.0]
    assert solved.bound == pytest.approx(8.0)
    assert children() == []


def test_a_solver_that_is_killed_is_a_timeout_with_a_name():
    solved = solve_program(hard(), gap=0.0, time_limit_s=30.0, check=kill_children)
    assert (solved.status, solved.values) == (TIMEOUT, None)
    assert solved.died == "was ended by signal 9"
    assert children() == []


def hold_children():
    """However late this process looks again: what is held is not done by then."""
    for pid in children():
        os.kill(pid, signal.SIGSTOP)


def test_a_solver_that_overruns_is_ended(monkeypatch):
    monkeypatch.setattr("planner.optimizer.solvers.deadline.GRACE_S", -29.9)
    monkeypatch.setattr("planner.optimizer.solvers.deadline.GRACE_SHARE", 0.0)
    solved = solve_program(hard(), gap=0.0, time_limit_s=30.0, check=hold_children)
    assert solved.status == TIMEOUT
    assert solved.died == "ran past its time limit and was ended"
    assert children() == []


@pytest.mark.parametrize("solve", [solve_program, solve_on_cbc])
def test_cancel_ends_the_process(solve):
    def cancel():
        if children():
            raise RunCancelled

    with pytest.raises(RunCancelled):
        solve(hard(), gap=0.0, time_limit_s=30.0, check=cancel)
    assert children() == []


def test_what_was_found_before_the_end_counts(monkeypatch):
    """Killed after a while: an incumbent, where there was one, is a feasible plan."""
    asked = []

    def kill_later():
        asked.append(1)
        if len(asked) > 60:
            kill_children()

    monkeypatch.setattr("planner.optimizer.solvers.highs.CHECK_EVERY_S", 0.0)
    instance = middling(4)
    plan = solve_window(instance, gap=0.0, method="whole", time_limit_s=60.0, check=kill_later)
    assert plan.status in (OPTIMAL, FEASIBLE, TIMEOUT)
    if plan.status == FEASIBLE:
        assert is_feasible(instance, plan.target)
        assert 0 < plan.bound_usd <= plan.objective_usd


def test_a_window_whose_solver_dies_offers_the_greedy_plan(monkeypatch):
    monkeypatch.setattr("planner.optimizer.solvers.highs.CHECK_EVERY_S", 0.0)
    plan = solve_window(middling(4), gap=0.0, method="whole", check=kill_children)
    assert plan.status == TIMEOUT
    assert plan.conflict.startswith("The solver was ended by signal 9: try the other one.")
    assert plan.target.sum() > 0


def test_the_decomposition_is_under_the_same_guard(monkeypatch):
    monkeypatch.setattr("planner.optimizer.solvers.highs.CHECK_EVERY_S", 0.0)
    monkeypatch.setattr("planner.optimizer.decomposition.master.GUARD_FROM", 0)
    instance = middling(4)
    plan = solve_window(instance, gap=0.0, method="decomposed", check=kill_children)
    assert plan.status == TIMEOUT and "was ended by signal 9" in plan.conflict
    at_once = solve_window(instance, gap=1e-3, method="decomposed")
    assert at_once.status == OPTIMAL and is_feasible(instance, at_once.target)


def test_a_horizon_whose_solver_dies_offers_the_greedy_plan(monkeypatch):
    monkeypatch.setattr("planner.optimizer.solvers.highs.CHECK_EVERY_S", 0.0)
    plan = solve_horizon(steps([300, 200, 300]), gap=0.0, check=kill_children)
    assert plan.status == TIMEOUT
    assert plan.target.ravel().tolist() == [3, 2, 3]
    assert plan.conflict.startswith("The solver was ended by signal 9. The greedy plan")
    assert plan.bound == 0.0


def test_cbc_that_cannot_run_is_named(monkeypatch):
    monkeypatch.setattr("planner.optimizer.solvers.cbc.pulp_cbc_path", "/nowhere/cbc")
    plan = solve_window(replace(middling(4)), solver="cbc")
    assert plan.status == TIMEOUT
    assert "CBC did not run" in plan.conflict
