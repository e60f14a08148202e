"""The oracle plan: it meets every tier, and nothing that can be run is cheaper."""

from typing import Any

import pytest

from planner.domain.planning.planning import forecast_load
from planner.domain.progress import silent
from planner.domain.replay.oracle_plan import MAX_REPLAYS, Oracle
from planner.domain.replay.policy_context import policy_context_of
from planner.domain.replay.replay import BRIEF, run_policy
from planner.domain.study import PolicyRun, Study
from planner.policies.choice import policy_of
from planner.policies.context import BuiltPolicy
from tests.planner.domain.replay.test_replay import study

BEATEN_BY = 0.01  # share of the cost that a deployable policy may be below it


def run(toy: Study, name: str, **parameters: Any) -> PolicyRun:
    return run_policy(toy, policy_of(name, **parameters), seed=1, progress=silent, options=BRIEF)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="module")
def oracle(toy: Study) -> PolicyRun:
    return run(toy, "lt-i-perfect")


def test_it_meets_every_tier_at_less_than_the_plan_for_all_the_demand(
    toy: Study, oracle: PolicyRun
) -> None:
    plain = run(toy, "lt-i-perfect", load_factor=1.0)
    assert oracle.meets_slo and plain.meets_slo
    assert oracle.summary.cost_usd < plain.summary.cost_usd
    assert oracle.summary.arrived == plain.summary.arrived


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("flat-min", [{}]),
        ("lt-i-last-value", [{"load_factor": factor} for factor in (0.8, 1.0, 1.2)]),
        ("lt-i", [{"load_factor": factor} for factor in (0.8, 1.0, 1.2)]),
        ("hpa", [{"target_factor": factor} for factor in (0.2, 0.5, 1.0)]),
    ],
)
def test_no_policy_that_meets_every_tier_is_cheaper(
    toy: Study, oracle: PolicyRun, name: str, values: list[dict[str, float]]
) -> None:
    runs = [run(toy, name, **parameters) for parameters in values]
    paid = [its.summary.cost_usd for its in runs if its.meets_slo]
    assert all(oracle.summary.cost_usd <= usd * (1 + BEATEN_BY) for usd in paid)


def test_without_a_plan_that_meets_every_tier_there_is_none(toy: Study) -> None:
    load = forecast_load(toy.plan_input, silent, method="perfect").load
    context = policy_context_of(toy, seed=1, progress=silent)
    tried: list[float] = []

    def judge(ready: BuiltPolicy) -> float | None:
        tried.append(float(ready.fleet.pools[0].initial))
        return None

    assert Oracle(toy, load, context, "oracle", judge, silent).smallest() is None
    assert 1 < len(tried) <= MAX_REPLAYS
