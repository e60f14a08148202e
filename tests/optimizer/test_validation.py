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
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": 1.01}, "epsilon is 1.01"),
        ({"epsilon": float("nan")}, "epsilon is nan"),
        ({"models": ("a", "a")}, "models with different names"),
        ({"regions": ()}, "regions with different names"),
        (
            {"theta_tps": np.ones((2, 3))},
            r"theta_tps has shape \(2, 3\), but 2 models, 2 regions, 2 GPU types and at least one "
            r"window need \(2, 2\)",
        ),
        ({"demand_tps": np.ones((2, 2, 0))}, "demand_tps has shape"),
        ({"demand_tps": np.ones((2, 2))}, "demand_tps has shape"),
        ({"current": np.zeros((2, 2, 2))}, "current must hold whole numbers, not float64"),
        (
            changed("demand_tps", (1, 0, 1), np.nan),
            "demand_tps of large, us-east, window 1 is nan: give a number",
        ),
        (changed("demand_tps", (0, 1, 0), -1.0), "demand_tps of small, eu-west, window 0 is -1.0"),
        (changed("theta_tps", (0, 1), np.inf), "theta_tps of small, H100 is inf"),
        (changed("capacity_gpus", (1, 0), -4), "capacity_gpus of eu-west, A100 is -4: give 0"),
        (changed("usd_per_hour", (0, 0, 0), 0.0), "small, us-east, A100 is 0.0: give a price"),
        (changed("gpus_per_instance", (1, 1), 0), "gpus_per_instance of large, H100 is 0"),
        (changed("minimum", (0, 0, 0), 100), "minimum of small, us-east, A100 is 100: keep it"),
        (
            changed("theta_tps", (0, 0), 0.0) | changed("minimum", (0, 1, 0), 1),
            "minimum of small, eu-west, A100 is 1: set it to 0",
        ),
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


@pytest.mark.parametrize(
    "options", [{"solver": "gurobi"}, {"gap": -0.1}, {"gap": np.nan}, {"time_limit_s": 0.0}]
)
def test_options_that_make_no_sense(options):
    with pytest.raises(ScenarioError):
        solve_window(problem(), **options)
