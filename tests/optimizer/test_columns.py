"""Columns that share GPU types, do one stage of a request or are spot, against counting."""

from dataclasses import replace

import numpy as np

from planner.optimizer import solve_window
from planner.optimizer.problem import INFEASIBLE, PlanningProblem
from tests.optimizer.problems import bare_problem


def one_model(**changes) -> PlanningProblem:
    """Prefill of 300 tokens/s on an A, decode of 100 on a B; both on an A at 60; 600 wanted."""
    base = bare_problem(
        ("m",),
        ("here",),
        ("A prefill", "B decode", "A"),
        theta_tps=np.array([[300.0, 100.0, 60.0]]),
        usd_per_hour=np.array([[[4.0, 1.0, 4.0]]]),
        demand_tps=np.array([[[600.0]]]),
        capacity_gpus=np.array([[8, 8]]),
        types=np.array([0, 1, 0]),
        type_names=("A", "B"),
        stages=np.array([1, 2, 0]),
    )
    return replace(base, **changes)


def test_prefill_and_decode_by_hand():
    plan = solve_window(one_model())
    assert plan.target.ravel().tolist() == [2, 6, 0]
    (prefill,) = (
        b for b in plan.binding if (b.family, b.where) == ("local", "m in here for prefill")
    )
    assert (prefill.replicas, prefill.need_tps, prefill.served_tps) == (2, 600.0, 600.0)
    # With 4 B at most, five A that do both carry 300 of each side: 27, where 2, 4 and 4 cost 28.
    short = solve_window(one_model(capacity_gpus=np.array([[8, 4]])))
    assert short.target.ravel().tolist() == [1, 3, 5]
    few = solve_window(one_model(capacity_gpus=np.array([[2, 8]])))
    assert few.target.ravel().tolist() == [2, 6, 0]
    assert [b.where for b in few.binding if b.family == "capacity"] == ["A in here"]


def test_spot_carries_no_more_than_its_share():
    spot = {"stages": None, "gpus": ("A", "B", "C"), "usd_per_hour": np.array([[[3.0, 0.1, 9.0]]])}
    marked = one_model(**spot, spot=np.array([False, True, False]), spot_share=0.4)
    assert solve_window(marked).target.ravel().tolist() == [2, 0, 0]  # 300 owned are too few
    marked = replace(marked, spot_share=0.5)
    assert solve_window(marked).target.ravel().tolist() == [1, 3, 0]
    assert solve_window(replace(marked, spot_share=1.0)).target.ravel().tolist() == [0, 6, 0]
    none = solve_window(replace(marked, spot_share=0.0, capacity_gpus=np.array([[1, 8]])))
    assert none.status == INFEASIBLE
    few = solve_window(replace(marked, capacity_gpus=np.array([[0, 8]])))
    assert few.status == INFEASIBLE and "spot_share above 0.5" in few.conflict
    nothing = solve_window(replace(marked, spot_share=1.0, capacity_gpus=np.array([[0, 0]])))
    assert nothing.status == INFEASIBLE and "spot_share" not in nothing.conflict
