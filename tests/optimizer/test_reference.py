"""The public reference instances: both solvers, and their published optimum where there is one."""

from pathlib import Path

import pytest

from bench.plan import load_instance
from planner.optimizer import solve_window
from planner.optimizer.figures import is_feasible

INSTANCES = Path(__file__).parents[2] / "../shared/reference/plan_instances"


def reference(name):
    path = INSTANCES / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"reference instance {name} is not beside the repository")
    return load_instance(path)


@pytest.mark.parametrize("name", ["4x3x1_0", "4x3x1_1", "4x3x1_2"])
def test_highs_equals_cbc(name):
    problem = reference(name)
    highs, cbc = (solve_window(problem, solver=solver, gap=0.0) for solver in ("highs", "cbc"))
    assert highs.status == cbc.status == "optimal"
    assert highs.objective_usd == pytest.approx(cbc.objective_usd)
    for plan in (highs, cbc):
        assert is_feasible(problem, plan.target)
        assert plan.bound_usd == pytest.approx(plan.objective_usd)


def test_twenty_by_twenty_by_five():
    """Proven to 0 by an independent run of HiGHS at 2411.2."""
    plan = solve_window(reference("20x20x5_2"))
    assert plan.status == "optimal"
    assert plan.objective_usd == pytest.approx(2411.2, abs=0.1)
