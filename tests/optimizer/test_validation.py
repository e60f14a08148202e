"""Input that makes no sense is refused in one sentence that names field, place and remedy."""

import numpy as np
import pytest

from planner.errors import ScenarioError
from planner.optimizer import solve_window
from tests.optimizer.problems import problem

BASE = problem()


def changed(field, index, value):
    array = getattr(BASE, field).copy()
    array[index] = value
    return {field: array}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"theta_tps": np.ones((2, 3))}, r"theta_tps has shape \(2, 3\), not \(2, 2\)"),
        ({"demand_tps": np.ones((2, 2, 0))}, "demand_tps has shape"),
        (changed("demand_tps", (1, 0, 1), np.nan), "demand_tps of large, us-east, window 1 is nan"),
        (changed("demand_tps", (0, 1, 0), -1.0), "demand_tps of small, eu-west, window 0 is -1.0"),
        (changed("theta_tps", (0, 1), np.inf), "theta_tps of small, H100 is inf"),
        (changed("capacity_gpus", (1, 0), -4), "capacity_gpus of eu-west, A100 is -4: give 0"),
        ({"stages": np.array([0])}, "stages has shape"),
        ({"kg_per_kwh": np.array([0.1, -1.0])}, "kg_per_kwh of eu-west is -1.0"),
        (
            {"pool_tps": np.array([[[9.0, 10.0]] * 2] * 2), "theta_tps": np.full((2, 2), 5.0)},
            "pool_tps of small, A100, 2 replicas is 10.0: let what each replica carries never",
        ),
        (
            {"pool_tps": np.array([[[9.0, 20.0]] * 2] * 2), "theta_tps": np.full((2, 2), 9.0)},
            "theta_tps of small, A100 is 9.0: give what each replica of the largest pool",
        ),
        ({"spare": 150, "by_pool": False}, "in more than 100 ways"),
    ],
)
def test_a_problem_that_makes_no_sense(changes, says):
    with pytest.raises(ScenarioError, match=says) as refused:
        solve_window(problem(**changes))
    assert str(refused.value).endswith(".")


def test_gpus_that_are_not_there_need_no_price():
    none_there = changed("capacity_gpus", (0, 0), 0) | changed("usd_per_hour", (0, 0, 0), 0.0)
    none_there["usd_per_hour"][1, 0, 0] = 0.0
    plan = solve_window(problem(**none_there))
    assert plan.status == "optimal"
    assert plan.target[:, 0, 0].sum() == 0
