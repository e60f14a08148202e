"""Answers that grow in the middle of a day: who does then, in as few replays as may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.errors import Infeasible
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from planner.studies.rehearsal.harder import TIMES, Harder, lengthened, outlasting
from planner.studies.results.verdict import compare
from planner.studies.values import PolicyRun
from tests.planner.studies.replay.test_earlier import days
from tests.planner.studies.results.test_curation import rehearsed
from tests.planner.studies.results.test_verdict import run as figures


def test_what_arrives_later_is_answered_at_greater_length(tmp_path: Path) -> None:
    trace = days(tmp_path).trace
    half = float(trace.arrival_s[-1]) / 2
    longer = lengthened(trace, half)
    late = trace.arrival_s >= half
    assert (longer.output_tokens[~late] == trace.output_tokens[~late]).all()
    np.testing.assert_array_equal(longer.output_tokens[late], TIMES * trace.output_tokens[late])
    assert (longer.input_tokens == trace.input_tokens).all()


def test_the_cheapest_that_does_is_looked_for_from_the_cheapest_on() -> None:
    played: list[str] = []

    def play(policy: Policy) -> PolicyRun:
        played.append(policy.key)
        if policy.key == "periodic":
            raise Infeasible("too much")
        does = policy.key in ("lt-i", "hpa", "reactive")
        return figures(policy.key, 1.0, fast=0.96 if does else 0.5)

    costs = {"hpa": 130, "flat-before": 100.5, "lt-i": 100, "periodic": 100.2, "reactive": 140}
    did = [(policy_of(name), float(usd)) for name, usd in costs.items()]
    found = outlasting(did, play)
    # What costs about as much as the cheapest is tried although that does; nothing dearer is.
    assert played == ["lt-i", "periodic", "flat-before"]
    assert [(one.policy, one.meets) for one in found] == [("lt-i", True), ("flat-before", False)]
    played.clear()
    found = outlasting([pair for pair in did if pair[0].key != "lt-i"], play)
    assert [one.policy for one in found if one.meets] == ["hpa"] and "reactive" not in played
    assert outlasting([], play) == ()


def test_what_the_one_to_take_does_not_survive_is_said_with_what_does() -> None:
    before = rehearsed(("flat-before", 100, True, None), ("hpa", 140, True, 0.5))
    runs = [figures("flat-before", 90), figures("hpa", 120)]

    def said(*longer: Harder) -> list[str]:
        warnings = compare(runs, rehearsal=replace(before, longer=longer)).warnings
        return [one for one in warnings if "as they grow" in one]

    flat = Harder("flat-before", "Flat", 2.0, {"fast": 0.502, "slow": 0.97}, False, 100.0)
    hpa = Harder("hpa", "Autoscaler", 2.0, {"fast": 0.96, "slow": 0.97}, True, 140.0)
    assert said(flat, hpa) == [
        "Flat does not follow answers as they grow: had they been 2 times as long from the middle "
        "of the last window rehearsed on, 50.2% of fast had been in time. Where that may happen "
        "take Autoscaler, which does then: 40% more."
    ]
    assert said(flat)[0].endswith("on the days before nothing would have done.")
    assert said(replace(flat, meets=True)) == [] == said()
