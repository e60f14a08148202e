"""An infeasible problem says which demand and which limits clash, and what would help."""

import itertools
import re

import numpy as np
import pytest

from planner.optimizer import solve_window
from planner.optimizer.conflict import nonempty_subsets, unserved_sentence
from planner.optimizer.problem import INFEASIBLE, TIMEOUT, single_period
from planner.optimizer.program.conflict import conflicting_set, minimal_rows
from tests.optimizer.problems import counted, problem, random_problem

ONLY_ONE_GPU_TYPE = np.array([[1000.0, 0.0], [0.0, 1500.0]])


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"theta_tps": np.array([[1000.0, 2500.0], [0.0, 0.0]])}, "large 1,000 A100 H100"),
        (
            {"minimum": np.array([[[2, 0], [0, 0]], [[4, 0], [0, 0]]])},
            "us-east 16 A100 18 large 16 small 2 minimum",
        ),
        (
            {"theta_tps": ONLY_ONE_GPU_TYPE, "capacity_gpus": np.array([[2, 16], [16, 16]])},
            "us-east 3 A100 80% small 2 1 epsilon 0.8",
        ),
        (
            {
                "theta_tps": ONLY_ONE_GPU_TYPE,
                "capacity_gpus": np.array([[2, 4], [1, 4]]),
                "epsilon": 0.4,
            },
            "regions 5 A100 joint small 3 2",
        ),
        (
            {"capacity_gpus": np.array([[1, 1], [16, 16]])},
            "us-east 5 GPUs 80% large 4 small 1 2 3 epsilon",
        ),
        (
            {"maximum": np.array([[[2, 0], [9, 9]], [[9, 9], [9, 9]]])},
            "small us-east 2 2,000 2,400 maximum epsilon",
        ),
        (
            {"maximum": np.array([[[1, 0], [1, 0]], [[9, 9], [9, 9]]]), "epsilon": 0.1},
            "small 2 2,000 4,500 maximum",
        ),
    ],
)
@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_the_conflict_says_what_is_short_by_how_much(changes, facts, solver):
    plan = solve_window(problem(**changes), solver=solver)
    assert plan.status == INFEASIBLE and plan.binding == ()
    words = re.findall(r"[\w.,%-]*[\w%]", plan.conflict)
    assert all(word in words for word in facts.split()), plan.conflict


def test_a_region_by_itself_is_told_what_all_of_its_peaks_take():
    """Not the share of them that it would have to serve beside others, and be short again."""
    peaks = np.array([[[900.0, 4500.0]]])
    lone = {
        "models": ("small",), "regions": ("us-east",), "gpus": ("A100",),
        "current": np.zeros((1, 1, 1), np.int64), "theta_tps": np.array([[1000.0]]),
        "usd_per_hour": np.full((1, 1, 1), 4.0), "start_usd": np.zeros((1, 1, 1)),
        "gpus_per_instance": np.ones((1, 1), np.int64), "demand_tps": peaks,
        "minimum": np.zeros((1, 1, 1), np.int64), "maximum": np.full((1, 1, 1), 99),
    }  # fmt: skip
    for held in (1, 3, 4):
        plan = solve_window(problem(**lone, capacity_gpus=np.array([[held]])))
        assert plan.status == INFEASIBLE
        assert re.findall(r"\d+", plan.conflict.replace("A100", "")) == [
            "5",
            "5",
            f"{held}",
            f"{5 - held}",
        ]
    assert solve_window(problem(**lone, capacity_gpus=np.array([[5]]))).status != INFEASIBLE


def test_replicas_of_four_gpus_need_a_multiple_of_four():
    """Also where a model may run on several columns, so that only a bound is known."""
    wide = {
        "theta_tps": np.array([[1000.0, 1100.0], [900.0, 1500.0]]),
        "gpus_per_instance": np.full((2, 2), 4),
        "capacity_gpus": np.array([[1, 1], [1, 1]]),
    }
    conflict = solve_window(problem(**wide)).conflict
    (needed,) = re.findall(r"at least (\d+) ", conflict)
    assert int(needed) % 4 == 0


def test_many_gpu_types_are_not_combined_one_by_one():
    subsets = list(nonempty_subsets(60))
    assert subsets[0] == (0,) and subsets[-1] == tuple(range(60)) and len(subsets) == 61
    assert len(list(nonempty_subsets(3))) == 7


def test_limits_that_clash_only_together():
    """Either model fits on its own; 3 A100 and a maximum of 1 H100 cannot hold both."""
    plan = solve_window(
        problem(
            theta_tps=np.array([[1000.0, 1000.0], [1000.0, 0.0]]),
            gpus_per_instance=np.array([[1, 1], [1, 1]]),
            demand_tps=np.array([[[3000.0], [0.0]], [[2000.0], [0.0]]]),
            capacity_gpus=np.array([[3, 9], [9, 9]]),
            maximum=np.array([[[9, 1], [9, 9]], [[9, 9], [9, 9]]]),
            epsilon=1.0,
        )
    )
    clash = (
        "3,000 tokens/s of small",
        "2,000 tokens/s of large",
        "3 A100",
        "1 replica of small on H100",
    )
    assert all(limit in plan.conflict for limit in clash)


def test_limits_that_clash_only_for_whole_instances():
    """1.5 + 1.5 instances would fit on 3 GPUs of two types; 2 + 2 do not."""
    clash = problem(
        theta_tps=np.array([[1000.0, 1000.0], [1000.0, 1000.0]]),
        gpus_per_instance=np.array([[1, 1], [1, 1]]),
        demand_tps=np.array([[[1500.0], [0.0]], [[1500.0], [0.0]]]),
        capacity_gpus=np.array([[2, 1], [0, 0]]),
        epsilon=1.0,
    )
    assert solve_window(clash).conflict.startswith("us-east needs at least 4 GPUs")
    found = conflicting_set(single_period(clash))
    assert "fractional" in found
    assert all(f"1,500 tokens/s of {model}" in found for model in ("small", "large"))
    assert "2 A100" in found and "1 H100" in found


@pytest.mark.parametrize("seed", [s for s in range(24) if counted(s) is None])
def test_every_infeasible_instance_has_a_minimal_conflicting_set(seed):
    assert conflicting_set(single_period(random_problem(seed))).startswith("These cannot all hold")


def test_deletion_filter_finds_a_minimal_set():
    """Against counting: over all subsets, those that hold one of two clashes are infeasible."""
    rows = list("abcdefghij")
    clashes = ({"b", "g", "h"}, {"d", "g"})

    def infeasible(kept):
        return any(clash <= set(kept) for clash in clashes)

    conflict = minimal_rows(rows, infeasible, budget_s=60.0)
    assert infeasible(conflict)
    for smaller in itertools.combinations(conflict, len(conflict) - 1):
        assert not infeasible(smaller)


def test_without_time_the_filter_keeps_what_it_could_not_test():
    assert minimal_rows(["a", "b"], lambda kept: True, budget_s=-1.0) == ["a", "b"]


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_a_timeout_offers_the_greedy_target_and_says_what_it_leaves(solver):
    plan = solve_window(random_problem(3), solver=solver, time_limit_s=1e-9)
    assert plan.status == TIMEOUT
    assert plan.bound_usd <= counted(3) <= plan.objective_usd
    assert plan.conflict == ""  # greedy covers all demand here
    nothing = np.zeros((2, 2, 2), dtype=np.int64)
    assert unserved_sentence(problem(), nothing).startswith(
        "The solver hit its time limit. The greedy plan leaves uncovered: "
        "small in us-east 2,400 tokens/s, small in eu-west 2,000 tokens/s, "
    )
