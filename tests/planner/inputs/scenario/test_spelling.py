"""What is told to somebody who wrote a key that there is not."""

import pytest

from planner.inputs.scenario.references import remedy
from planner.inputs.scenario.schema import Scenario


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (("objectiv",), "Use objective,"),
        (("regions", 0, "capacty"), "Use capacity,"),
        (("traffic", "sources", 0, "input_tokens", "cw"), "choose from cv, mean"),
        (("policies", 2, "Hpa", "stabilization_s"), "Use stabilisation_s,"),
        (("faults", 0, "slow", "factr"), "Use factor,"),
        (("tiers", 0, "zzz"), "choose from deferrable, e2e_ms, name"),
    ],
)
def test_the_key_that_was_meant_or_those_there_are(where: tuple[str | int, ...], says: str) -> None:
    assert says in remedy(Scenario, where)


def test_a_place_without_keys_says_to_remove_it() -> None:
    assert remedy(Scenario, ("name", "first")) == "this key is not known. Remove it"
