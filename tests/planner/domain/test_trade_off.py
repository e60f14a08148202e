"""The plans of a trade-off that a reader has to choose among."""

from planner.domain.kinds.pareto import FrontPlan, undominated


def plan(first: float, second: float) -> FrontPlan:
    return FrontPlan(
        first=first, second=second, first_bound=None, status="optimal", cost=first,
        gpu_hours=1.0, energy=1.0, carbon=second, starts=0, peak_instances=1, seconds=0.0,
    )  # fmt: skip


def test_plans_are_listed_only_if_they_differ_where_readers_see_it() -> None:
    front = [plan(6388.1, 424.4), plan(6386.2, 425.1), plan(6384.4, 425.3), plan(6384.2, 427.0)]
    assert undominated(front) == (front[0], front[2])
    assert undominated(front[:1]) == (front[0],)


def test_a_large_trade_off_keeps_every_plan() -> None:
    front = [plan(300.0, 1.01), plan(200.0, 1.52), plan(100.0, 3.0)]
    assert undominated(front) == tuple(front)
