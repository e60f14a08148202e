"""One model, two regions, one GPU type: every answer worked out by hand.

theta = 1000 tokens/s, epsilon = 0.5. East peaks at 2000 and west at 2500, so 1 instance must be in
the east (1000) and 2 in the west (1250); together they peak at 1000 + 2500, so 4 in all. The fourth
goes where it is cheaper: an hour costs 10 in the east and 12 in the west, where 3 run now.
"""

import numpy as np
import pytest

from planner.optimizer import solve_window
from planner.optimizer.problem import OPTIMAL
from tests.optimizer.problems import bare_problem


def two_regions(*, start_usd, capacity=(9, 9), current=(0, 3), minimum=(0, 0)):
    return bare_problem(
        ("m",),
        ("east", "west"),
        ("H100",),
        current=np.array(current).reshape(1, 2, 1),
        theta_tps=np.array([[1000.0]]),
        usd_per_hour=np.array([10.0, 12.0]).reshape(1, 2, 1),
        start_usd=np.full((1, 2, 1), start_usd),
        gpus_per_instance=np.array([[2]]),
        demand_tps=np.array([[[2000.0, 1000.0], [500.0, 2500.0]]]),
        capacity_gpus=2 * np.array(capacity).reshape(2, 1) + 1,  # one odd GPU is of no use
        minimum=np.array(minimum).reshape(1, 2, 1),
        epsilon=0.5,
    )


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize(
    ("problem", "target", "fleet", "objective"),
    [
        (two_regions(start_usd=1.0), (2, 2), 44, 46),  # moving saves 2 and costs 1
        (two_regions(start_usd=5.0), (1, 3), 46, 51),  # moving costs 5
        (two_regions(start_usd=1.0, capacity=(1, 9)), (1, 3), 46, 47),
        (two_regions(start_usd=1.0, minimum=(0, 4)), (1, 4), 58, 60),
        (two_regions(start_usd=0.0, current=(0, 0)), (2, 2), 44, 44),
    ],
)
def test_by_hand(problem, target, fleet, objective, solver):
    plan = solve_window(problem, solver=solver)
    assert plan.status == OPTIMAL
    assert tuple(plan.target.ravel()) == target
    assert plan.fleet_usd == pytest.approx(fleet)
    assert plan.objective_usd == pytest.approx(objective)


def test_of_two_plans_that_cost_the_same_the_one_that_runs_already_wins():
    same_price = two_regions(start_usd=0.0, current=(2, 2))
    same_price.usd_per_hour[:] = 10.0
    assert tuple(solve_window(same_price).target.ravel()) == (2, 2)
    other = two_regions(start_usd=0.0, current=(1, 3))
    other.usd_per_hour[:] = 10.0
    assert tuple(solve_window(other).target.ravel()) == (1, 3)


def test_binding_says_what_holds_the_plan_back():
    plan = solve_window(two_regions(start_usd=1.0, capacity=(1, 9)))
    found = {b.family: (b.where, b.replicas, b.need_tps, b.served_tps) for b in plan.binding}
    assert found == {
        "capacity": ("H100 in east", None, None, None),
        "local": ("m in east", 1, 1000, 1000),
        "global": ("m", 4, 3500, 4000),
    }
    held = solve_window(two_regions(start_usd=1.0, minimum=(0, 4))).binding
    assert ("minimum", "m on H100 in west") in [(b.family, b.where) for b in held]


def test_a_full_region_is_said_to_be_full():
    problem = two_regions(start_usd=1.0, capacity=(1, 3))
    problem.capacity_gpus[:] = [[2], [6]]
    bound = [(binding.family, binding.where) for binding in solve_window(problem).binding]
    assert ("capacity", "H100 in west") in bound
