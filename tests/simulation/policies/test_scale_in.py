"""What becomes of instances that a policy takes out, where it does not say itself."""

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.wrappers.scale_in import ScaleInOptions
from simulation.policy import Actions, Observation, actions_of
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen

TARGETS = np.array([2, 3])


class Says:
    """Answers what it was made with."""

    name, interval_s, wants_signals = "says", 15.0, True

    def __init__(self, answer: IntArray | Actions) -> None:
        self._answer = answer

    def reset(self, fleet: Fleet) -> IntArray:
        return TARGETS

    def decide(self, observation: Observation) -> IntArray | Actions:
        return self._answer


def answered(answer: IntArray | Actions, **fields: float) -> Actions:
    policy = ScaleInOptions(Says(answer), **fields)
    policy.reset(fleet(pool(), pool()))
    return actions_of(policy.decide(seen(0.0, [2, 3])))


def test_targets_alone_get_the_fleets_way_of_scaling_in() -> None:
    actions = answered(TARGETS, soft_s=120.0, lend=True)
    assert actions.soft_s == 120 and actions.lend is not None and actions.lend.all()
    assert actions.targets.tolist() == [2, 3]


def test_what_a_policy_asks_for_comes_first() -> None:
    own_actions = Actions(TARGETS, soft_s=30.0, lend=np.array([False, True]))
    actions = answered(own_actions, soft_s=120.0, lend=True)
    assert (
        actions.soft_s == 30 and actions.lend is not None and actions.lend.tolist() == [False, True]
    )


def test_nothing_changes_where_nothing_is_given() -> None:
    actions = answered(TARGETS)
    assert actions.soft_s == 0 and actions.lend is None
    policy = ScaleInOptions(Says(TARGETS))
    assert (policy.name, policy.interval_s, policy.wants_signals) == ("says", 15.0, True)
