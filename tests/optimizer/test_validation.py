"""Input that makes no sense is refused in one sentence that names field, place and remedy."""

import numpy as np
import pytest

from planner.errors import ScenarioError
from planner.optimizer import solve_window
from planner.optimizer.problem import Weights
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
        ({"types": np.array([0, 5])}, "types of H100 is 5: give 0 to 1"),
        ({"types": np.array([0.0, 1.0])}, "types must hold whole numbers"),
        ({"types": np.array([0, 1]), "type_names": ("one",)}, "type_names"),
        ({"stages": np.array([0, 3])}, "stages of H100 is 3: give 0, 1 or 2"),
        ({"stages": np.array([0])}, "stages has shape"),
        ({"spot": np.array([0, 1])}, "spot must hold true or false"),
        ({"spot_share": 1.5}, "spot_share is 1.5"),
        ({"weights": Weights(usd=-1.0)}, "weight of usd is -1.0"),
        ({"weights": Weights(usd=0.0)}, "weighs nothing"),
        ({"weights": Weights(kwh=1.0)}, "need kw"),
        ({"weights": Weights(kg=1.0), "kw": np.ones((2, 2, 2))}, "needs kg_per_kwh"),
        ({"budget_usd": -5.0}, "budget_usd is -5.0"),
        ({"churn": float("nan")}, "churn is nan"),
        ({"kw": np.ones((2, 2))}, "kw has shape"),
        ({"kg_per_kwh": np.array([0.1, -1.0])}, "kg_per_kwh of eu-west is -1.0"),
        ({"pool_tps": np.ones((2, 2))}, "pool_tps has shape"),
        (
            {"pool_tps": np.array([[[9.0, 10.0]] * 2] * 2), "theta_tps": np.full((2, 2), 5.0)},
            "pool_tps of small, A100, 2 replicas is 10.0: let what each replica carries never",
        ),
        (
            {"pool_tps": np.array([[[9.0, 20.0]] * 2] * 2), "theta_tps": np.full((2, 2), 9.0)},
            "theta_tps of small, A100 is 9.0: give what each replica of the largest pool",
        ),
        ({"spare": -1}, "spare is -1"),
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


@pytest.mark.parametrize(
    "options", [{"solver": "gurobi"}, {"gap": -0.1}, {"gap": np.nan}, {"time_limit_s": 0.0}]
)
def test_options_that_make_no_sense(options):
    with pytest.raises(ScenarioError):
        solve_window(problem(), **options)
