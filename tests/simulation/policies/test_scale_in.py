"""What becomes of instances that a policy takes out, where it does not say itself."""

from typing import Any

from simulation.policies.wrappers.scale_in import ScaleInOptions
from simulation.policy import Actions, actions_of
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen
from tests.simulation.scripted_policies import Asking

TARGETS = [2, 3]


def answered(asked: Any, **fields: float) -> Actions:
    policy = ScaleInOptions(Asking(TARGETS, asked), **fields)
    policy.reset(fleet(pool(), pool()))
    return actions_of(policy.decide(seen(0.0, TARGETS)))


def test_targets_alone_get_the_fleets_way_of_scaling_in() -> None:
    actions = answered(TARGETS, soft_s=120.0, lend=True)
    assert actions.soft_s == 120 and actions.lend is not None and actions.lend.all()
    assert actions.targets.tolist() == TARGETS


def test_what_a_policy_asks_for_comes_first() -> None:
    own = {"targets": TARGETS, "soft_s": 30.0, "lend": [False, True]}
    actions = answered(own, soft_s=120.0, lend=True)
    assert actions.soft_s == 30 and actions.lend is not None
    assert actions.lend.tolist() == [False, True]


def test_nothing_changes_where_nothing_is_given() -> None:
    actions = answered(TARGETS)
    assert actions.soft_s == 0 and actions.lend is None
    asks = Asking(TARGETS, every=15.0)
    asks.wants_signals = True
    policy = ScaleInOptions(asks)
    assert (policy.name, policy.interval_s, policy.wants_signals) == ("asking", 15.0, True)
