"""What a policy says of itself is what pages, comparisons and the documentation go by."""

from itertools import pairwise

import pytest

from planner.policies.base import Group
from planner.policies.choice import policy_groups, policy_of
from planner.policies.registry import POLICIES, TRAITS, plan_policy, simplicity


def test_every_policy_is_shown_once_under_its_group() -> None:
    shown = [name for _, rows in policy_groups() for name, _, _ in rows]
    assert shown == list(POLICIES) == list(TRAITS)
    assert [title for title, _ in policy_groups()] == [group.value for group in Group][:-1]
    assert all(traits.line.endswith(".") for traits in TRAITS.values())


def test_the_simple_come_before_those_with_more_parts() -> None:
    order = sorted(POLICIES, key=simplicity)
    assert order[:4] == ["today", "flat-before", "flat-peak", "flat-min"]
    for simple, complicated in (("reactive", "hpa"), ("kv-aware", "decode-tps"), ("lt-i", "lt-u"),
                                ("decode-tps", "prefill-tps"), ("lt-ua", "chiron")):  # fmt: skip
        assert order.index(simple) < order.index(complicated)
    assert simplicity("an operator's own") > simplicity(order[-1])


@pytest.mark.parametrize("name", POLICIES)
def test_a_knob_is_a_parameter_and_every_value_of_it_is_allowed(name: str) -> None:
    policy = policy_of(name)
    parameter = policy.tuned_parameter
    if TRAITS[name].flat or parameter is None:
        assert parameter is None and policy.parameter_to_tune is None
        return
    assert policy.parameter_to_tune == parameter
    steps = [b - a for a, b in pairwise(parameter.values)]
    assert len(set(parameter.values)) == len(parameter.values) and (
        min(steps) > 0 or max(steps) < 0
    )
    for value in parameter.values:
        turned = policy.with_value(value)
        arguments = {k: v for k, v in turned.arguments.items() if v is not None}
        assert policy_of(name, **arguments) == turned  # as a scenario would give it
        assert getattr(turned, parameter.field) == value


def test_what_a_scenario_sets_is_not_turned() -> None:
    assert policy_of("lt-i", load_factor=1.2).parameter_to_tune is None
    assert policy_of("reactive", cooldown_s=300).parameter_to_tune is not None
    for name, target in (("hpa", {"target": 0.5}), ("ttft-feedback", {"target_ms": 200})):
        assert policy_of(name, **target).parameter_to_tune is None
    assert policy_of("convertible-decode", target=0.7).parameter_to_tune is not None


@pytest.mark.parametrize(
    ("ranking", "plan"),
    [
        (["flat-min", "lt-u", "lt-i"], "lt-i"),
        (["lt-i-last-value", "lt-u"], "lt-u"),
        (["lt-i-last-value", "lt-ua:Late", "lt-ua"], "lt-ua:Late"),
        (["lt-h:Mine", "lt-i-perfect"], "lt-h:Mine"),
        (["lt-i-perfect", "reactive"], None),  # nobody can run it
    ],
)
def test_one_of_those_compared_is_the_plan(ranking: list[str], plan: str | None) -> None:
    assert plan_policy(ranking) == plan
