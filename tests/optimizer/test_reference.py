"""The public reference instances: both solvers, and their published optimum where there is one."""

import numpy as np
import pytest

from bench.plan import load_instance
from planner.optimizer import solve_window
from planner.optimizer.figures import is_feasible
from planner.optimizer.solvers import LinearProgram, solve_on_cbc, solve_program
from tests.shared_folder import INSTANCES, shared


def reference(name):
    return load_instance(shared(INSTANCES / f"{name}.npz"))


@pytest.mark.parametrize("name", ["4x3x1_0", "4x3x1_1", "4x3x1_2"])
def test_highs_equals_cbc(name):
    problem = reference(name)
    highs, cbc = (solve_window(problem, solver=solver, gap=0.0) for solver in ("highs", "cbc"))
    assert highs.status == cbc.status == "optimal"
    assert highs.objective_usd == pytest.approx(cbc.objective_usd)
    for plan in (highs, cbc):
        assert is_feasible(problem, plan.target)
        assert plan.bound_usd == pytest.approx(plan.objective_usd)


@pytest.mark.parametrize(
    ("name", "known"), [("20x20x5_0", 2513.0), ("20x20x5_1", 1716.9), ("20x20x5_2", 2411.2)]
)
def test_twenty_by_twenty_by_five(name, known):
    """``known`` is what an independent run of HiGHS found, proven to 0.03%, 0.01% and 0."""
    problem = reference(name)
    plan = solve_window(problem)
    assert plan.status == "optimal"
    assert plan.objective_usd == pytest.approx(known, rel=3e-4)
    assert plan.gap <= 1e-4
    assert is_feasible(problem, plan.target)


def test_fifty_by_fifty_by_ten():
    """HiGHS on the whole program reached 7676.4 with a bound of 7661.1 in 20 s."""
    problem = reference("50x50x10_0")
    plan = solve_window(problem)
    assert plan.status == "optimal"
    assert 7661.1 <= plan.bound_usd <= plan.objective_usd < 7676.4
    assert is_feasible(problem, plan.target)


def test_an_answer_printed_with_eight_digits_is_kept():
    """The capacity of a pool: y <= 9,701.579 + 18,121.985 x tokens/s, as large as possible."""
    first, second, share = 9701.579017277032, 18121.984940486058, 0.48822951234
    program = LinearProgram(
        cost=np.array([0.0, 0.0, -1.0]),
        lower=np.array([1.0, 0.0, 0.0]),
        upper=np.array([1.0, share, np.inf]),
        whole=np.zeros(3, np.bool_),
        begins=np.array([0, 3]),
        columns=np.arange(3),
        values=np.array([first, second, -1.0]),
        row_lower=np.zeros(1),
        row_upper=np.array([np.inf]),
    )
    for solve in (solve_program, solve_on_cbc):
        found = solve(program, gap=0.0, time_limit_s=10.0, check=lambda: None)
        assert found.status == "optimal"
        assert found.values[2] == pytest.approx(first + second * share)
    assert not program.is_feasible(np.array([1.0, share, 1.0001 * (first + second * share)]))
