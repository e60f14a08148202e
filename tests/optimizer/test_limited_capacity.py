"""Scarce capacity: the greedy policies do as they are named, and the exact one does best."""

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import ScenarioError
from planner.optimizer.figures import gpus_used, is_feasible
from planner.optimizer.horizon import HorizonProblem, solve_horizon
from planner.optimizer.limited_capacity import (
    GREEDY,
    serve_limited,
    unserved_by_tier,
    unserved_demand,
)
from planner.optimizer.problem import INFEASIBLE, OPTIMAL, PlanningProblem
from tests.optimizer.problems import (
    bare_problem,
    every_fleet,
    problem,
    random_columns,
    random_problem,
    serve_exactly,
    served_by_every_fleet,
    worth_left,
)
from tests.optimizer.problems import one_region as pooled_problem


def one_region(*, capacity, need=(4, 4, 4)):
    """Three models at 100 tokens/s a GPU; ``need`` and ``capacity`` in instances of one GPU."""
    return bare_problem(
        "abc",
        ("here",),
        ("H100",),
        theta_tps=np.full((3, 1), 100.0),
        usd_per_hour=np.ones((3, 1, 1)),
        demand_tps=100.0 * np.array(need, float).reshape(3, 1, 1),
        capacity_gpus=np.array([[capacity]]),
    )


@pytest.mark.parametrize(
    ("policy", "held"),
    [
        ("None", [0, 4, 3]),  # a (5) does not fit into what b leaves: nothing; c does
        ("PriorityExhaustive", [3, 4, 0]),
        ("PriorityRoundRobin", [2, 4, 1]),  # a and c are one group, a is the larger
        ("RoundRobin", [2, 3, 2]),  # b has the first turn, its worth counts no further
    ],
)
def test_each_policy_by_hand(policy, held):
    """Seven GPUs; b is worth 9, a and c 1 each; a needs 5, b 4 and c 3 instances."""
    scarce = one_region(capacity=7, need=(5, 4, 3))
    plan = serve_limited(scarce, np.array([1.0, 9.0, 1.0]), policy)
    assert plan.target.ravel().tolist() == held


def test_a_worthy_tier_of_one_model_goes_before_a_lowly_one_of_another():
    """Ten GPUs; a has 6 instances' worth of chat (5) and 6 of slow (1), b 3 and 3."""
    scarce = one_region(capacity=10, need=(12, 6, 0))
    tiers = np.array([[600.0, 300.0, 0.0], [600.0, 300.0, 0.0]]).reshape(2, 3, 1, 1)
    worth = np.tile([[5.0], [1.0]], 3)
    by_model = {p: serve_limited(scarce, np.full(3, 5.0), p).target.ravel()[:2] for p in GREEDY}
    by_mode = {
        p: serve_limited(scarce, np.full(3, 5.0), p, tiers, worth).target.ravel()[:2]
        for p in GREEDY
    }
    # By model a takes all ten, or, needing twelve whole or nothing, none at all.
    assert by_model["PriorityExhaustive"].tolist() == [10, 0]
    assert by_model["None"].tolist() == [0, 6]
    assert by_mode["PriorityExhaustive"].tolist() == [
        7,
        3,
    ]  # both chats, then of the larger slow one
    assert by_mode["None"].tolist() == [
        6,
        3,
    ]  # a's slow tier does not fit, b's takes one more than is
    assert by_mode["PriorityRoundRobin"].sum() == 10
    assert by_mode["PriorityRoundRobin"].min() >= 3
    for policy in ("PriorityExhaustive", "PriorityRoundRobin"):
        served = 100.0 * by_mode[policy]
        assert (served >= [600.0, 300.0]).all()  # no chat is left while slow is served


def test_tiers_that_matter_alike_change_nothing():
    scarce = one_region(capacity=7, need=(5, 4, 3))
    tiers = np.stack([0.5 * scarce.demand_tps] * 2)
    weight = np.array([1.0, 9.0, 1.0])
    for policy in GREEDY:
        alike = serve_limited(scarce, weight, policy, tiers, np.stack([weight] * 2))
        assert (alike.target == serve_limited(scarce, weight, policy).target).all()


@pytest.mark.parametrize("made", [random_problem, random_columns, pooled_problem])
@pytest.mark.parametrize("policy", GREEDY)
@pytest.mark.parametrize("seed", range(6))
def test_limits_hold_and_exact_leaves_least(seed, policy, made):
    instance = made(seed)
    weight = np.random.default_rng(seed).choice([1.0, 2.0, 5.0], len(instance.models))
    room = instance.capacity_gpus
    if np.any(gpus_used(instance, instance.minimum) > room):
        with pytest.raises(ScenarioError, match="minimums"):
            serve_limited(instance, weight, policy)
        assert serve_exactly(instance, weight)[0].status == INFEASIBLE
        return
    plan = serve_limited(instance, weight, policy)
    exact, least = serve_exactly(instance, weight)
    for target in (plan.target, exact.target[0]):
        assert np.all(target >= instance.minimum)
        assert np.all(target <= instance.maximum)
        assert np.all(gpus_used(instance, target) <= room)
    assert (worth_left(instance, plan.target, weight) == 0) == is_feasible(instance, plan.target)
    assert least <= worth_left(instance, plan.target, weight) * (1 + 1e-5) + 1e-6


def counted(instance: PlanningProblem, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unserved worth and cost of every fleet that fits."""
    fleets = every_fleet(instance)
    gpus = np.einsum("nlrg,lg->nrg", fleets, instance.gpus_per_instance)
    fits = (gpus <= instance.capacity_gpus).all(axis=(1, 2))
    served = served_by_every_fleet(instance, fleets[fits])
    need = instance.epsilon * instance.demand_tps.max(axis=2)
    short = np.maximum(0.0, need - served).sum(axis=2)
    joint = instance.demand_tps.sum(axis=1).max(axis=1) - served.sum(axis=2)
    worth = (weight * (short + np.maximum(0.0, joint - short))).sum(axis=1)
    starts = np.maximum(0, fleets[fits] - instance.current)
    cost = (instance.usd_per_hour * fleets[fits] + instance.start_usd * starts).sum(axis=(1, 2, 3))
    return worth, cost


@pytest.mark.parametrize("usd", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_utility_minus_cost_equals_counting(seed, usd):
    """Demand is served where its worth in dollars exceeds what it costs."""
    instance = replace(random_problem(seed), minimum=np.zeros_like(random_problem(seed).minimum))
    weight = usd * np.array([3.0, 1.0])
    worth, cost = counted(instance, weight)
    traded = HorizonProblem((instance,), 3600.0, priority=weight[None], traded=True)
    plan = solve_horizon(traded, gap=0.0)
    assert plan.status == OPTIMAL
    left = worth_left(instance, plan.target[0], weight)
    assert plan.objective + left == pytest.approx((cost + worth).min(), rel=1e-5, abs=1e-3)
    assert plan.objective - plan.bound <= 1e-4 * max(1.0, plan.objective + left)
    assert plan.unserved_tps[0, 0] @ weight == pytest.approx(left, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("made", [random_problem, pooled_problem])
@pytest.mark.parametrize("seed", range(6))
def test_exact_equals_counting(seed, made):
    instance = made(seed)
    instance = replace(instance, minimum=np.zeros_like(instance.minimum))
    weight = np.array([3.0, 1.0])
    worth, cost = counted(instance, weight)
    plan, left = serve_exactly(instance, weight)
    target = plan.target[0]
    assert plan.status == OPTIMAL
    assert left == pytest.approx(worth.min(), rel=1e-5, abs=1e-2)
    cheapest = cost[worth <= worth.min() * (1 + 1e-6) + 1e-6].min()
    planned = (
        instance.usd_per_hour * target
        + instance.start_usd * np.maximum(0, target - instance.current)
    ).sum()
    assert planned <= cheapest * (1 + 1e-5)


def test_with_room_for_all_nothing_is_left():
    weight = np.array([1.0, 2.0])
    for policy in GREEDY:
        plan = serve_limited(problem(), weight, policy)
        assert worth_left(problem(), plan.target, weight) == 0.0
        assert is_feasible(problem(), plan.target)
    exact, left = serve_exactly(problem(), weight)
    assert left == 0.0
    assert is_feasible(problem(), exact.target[0])


def test_what_is_unserved_counts_no_token_twice():
    """Own needs of 80% are 240 and 320, the joint peak 700: 140 beyond them."""
    two = bare_problem(
        ("m",), "xy", ("H100",), theta_tps=np.array([[100.0]]), usd_per_hour=np.ones((1, 2, 1)),
        demand_tps=np.array([[[300.0], [400.0]]]), capacity_gpus=np.array([[9], [9]]), epsilon=0.8,
    )  # fmt: skip
    local, joint = unserved_demand(two, np.array([[[1], [4]]]))
    assert local[0] == pytest.approx([140.0, 0.0])
    assert joint[0] == pytest.approx(700 - 100 - 400 - 140)


def test_greedy_policies_refuse_a_limit_on_changes():
    with pytest.raises(ScenarioError):
        serve_limited(problem(churn=10.0), np.ones(2), "RoundRobin")


@pytest.mark.parametrize("seed", range(6))
def test_exact_leaves_no_more_worth_than_greedy_with_tiers_and_caps(seed):
    rng = np.random.default_rng(seed)
    base = random_problem(seed)
    share = rng.dirichlet([1.0, 1.0], base.demand_tps.shape)
    tiers = np.moveaxis(base.demand_tps[..., None] * share, -1, 0)  # [k, l, r, w]
    worth = rng.choice([1.0, 2.0, 5.0], (2, 2))
    full = float((base.usd_per_hour * base.maximum).sum())
    instance = replace(
        base,
        minimum=np.zeros_like(base.minimum),
        budget_usd=full * rng.choice([0.1, 0.3, 2.0]),
        demand_tps=tiers.sum(axis=0),
    )
    window = HorizonProblem(
        (instance,), 3600.0, tiers=("x", "y"), tier_tps=tiers[:, None], priority=worth
    )
    exact = float((solve_horizon(window, gap=1e-6).unserved_tps[0] * worth).sum())
    for policy in GREEDY:
        plan = serve_limited(instance, worth.max(axis=0), policy)
        spent = (instance.usd_per_hour * plan.target).sum() + (
            instance.start_usd * np.maximum(0, plan.target - instance.current)
        ).sum()
        assert spent <= instance.budget_usd * (1 + 1e-6)
        short = unserved_by_tier(
            plan.unserved_tps, plan.unserved_joint_tps, tiers, instance.epsilon, worth
        )
        left = float(plan.unserved_tps.sum() + plan.unserved_joint_tps.sum())
        assert short.sum() == pytest.approx(left)  # every token is some tier's
        assert exact <= float((short * worth).sum()) * (1 + 1e-4) + 1e-3


def test_what_is_unserved_is_of_the_least_worthy_tier_that_is_there():
    tiers = np.array([[[[30.0], [70.0]]], [[[50.0], [10.0]]]])  # [k, l, r, w]
    worth = np.array([[1.0], [3.0]])
    # The first region lacks 40, of which the first tier has 30; 50 more may be missing anywhere.
    short = unserved_by_tier(np.array([[40.0, 0.0]]), np.array([50.0]), tiers, 1.0, worth)
    assert short.ravel().tolist() == [80.0, 10.0]
