"""Answers that grow in the middle of a day, requests that no forecast told: who does then, in as
few replays as may be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from planner.domain.policy_backtest.stress_tests import (
    TIMES,
    Harder,
    lengthened,
    outlasting,
)
from planner.domain.policy_backtest.tuning import Tuning
from planner.domain.progress import Progress
from planner.domain.results.ranking import compare
from planner.domain.study import PolicyRun
from planner.errors import Infeasible
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from tests.planner.domain.replay.test_earlier import days
from tests.planner.domain.results.test_curation import rehearsed
from tests.planner.domain.results.test_verdict import run as figures


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

    def play(policy: Policy, _: Progress) -> PolicyRun:
        played.append(policy.key)
        if policy.key == "periodic":
            raise Infeasible("too much")
        does = policy.key in ("lt-i", "hpa", "reactive")
        return figures(policy.key, 1.0, fast=0.96 if does else 0.5)

    costs = {"hpa": 130, "flat-before": 100.5, "lt-i": 100, "periodic": 100.2, "reactive": 140}
    did = [rehearsed_at(name, float(usd)) for name, usd in costs.items()]
    lasting = outlasting(did, Tuning.make_room, play)
    # What costs about as much as the cheapest is tried although that does; nothing dearer is.
    assert played == ["lt-i", "periodic", "flat-before"]
    assert [(harder.policy, harder.meets) for harder in lasting] == [
        ("lt-i", True),
        ("flat-before", False),
    ]
    played.clear()
    others = [tuning for tuning in did if tuning.policy.key != "lt-i"]
    lasting = outlasting(others, Tuning.make_room, play)
    assert [harder.policy for harder in lasting if harder.meets] == [
        "hpa"
    ] and "reactive" not in played
    assert outlasting([], Tuning.make_room, play) == ()


def test_what_has_no_room_for_growth_is_not_looked_at_unless_none_has() -> None:
    def play(policy: Policy, _: Progress) -> PolicyRun:
        return figures(policy.key, 1.0, fast=0.96)

    lean, ample = rehearsed_at("lt-i", 100.0, room=False), rehearsed_at("hpa", 130.0, room=True)
    both = outlasting([lean, ample], Tuning.make_room, play)
    assert [harder.policy for harder in both] == ["hpa"]
    assert [harder.policy for harder in outlasting([lean], Tuning.make_room, play)] == ["lt-i"]


def rehearsed_at(name: str, usd: float, *, room: bool | None = None) -> Tuning:
    """Met on the days before, whatever its parameter."""
    on_days = partial(figures, name, usd, fast=0.98)
    busier = partial(figures, name, usd, fast=0.98 if room else 0.5)
    return Tuning(
        policy_of(name), [lambda _: on_days()], {"fast": 0.96, "slow": 0.95}, (),
        None if room is None else lambda _: busier(),
    )  # fmt: skip


def test_what_the_one_to_take_does_not_survive_is_said_with_what_does() -> None:
    before = rehearsed(("flat-before", 100, True, None), ("hpa", 140, True, 0.5))
    runs = [figures("flat-before", 90), figures("hpa", 120)]

    def said(*longer: Harder) -> list[str]:
        warnings = compare(runs, rehearsal=replace(before, longer=longer)).warnings
        return [warning for warning in warnings if "as they grow" in warning]

    flat = Harder(
        "flat-before", "Flat", 2.0, {"fast": 0.502, "slow": 0.97}, False, 100.0, 0.45, 90.0
    )
    hpa = Harder("hpa", "Autoscaler", 2.0, {"fast": 0.96, "slow": 0.97}, True, 140.0, 0.0, 90.0)
    assert said(flat, hpa) == [
        "Flat does not follow answers as they grow: had they been 2 times as long from the middle "
        "of the last window rehearsed on, 50.2% of fast had been in time. Where that may happen "
        "take Autoscaler, which does then: 40% more on the days before."
    ]
    assert said(flat)[0].endswith("on the days before nothing would have done.")
    # Before what others miss: it is about what is taken.
    runs.append(figures("reactive", 10, fast=0.5))
    warnings = compare(runs, rehearsal=replace(before, longer=(flat, hpa))).warnings
    assert "as they grow" in warnings[0] and warnings[1].startswith("Unified reactive misses fast")
    assert said(replace(flat, meets=True)) == [] == said()


def test_what_does_not_follow_requests_beyond_the_forecast_is_said_likewise() -> None:
    before = rehearsed(("lt-i", 100, True, 1.0), ("lt-g", 107, True, 1.0))
    runs = [figures("lt-i", 90), figures("lt-g", 97)]
    unforeseen = (
        Harder("lt-i", "Planned", 1.25, {"fast": 0.814}, False, 100.0, 0.136, 90.0),
        Harder("lt-g", "Guarded", 1.25, {"fast": 0.97}, True, 107.0, 0.0, 90.0),
    )
    comparison = compare(runs, rehearsal=replace(before, unforeseen=unforeseen))
    assert comparison.warnings[0] == (
        "Planned does not follow more requests than are forecast: had 1.25 times as many come in "
        "the last window rehearsed on, 81.4% of fast had been in time. Where that may happen take "
        "Guarded, which does then: 7% more on the days before."
    )


def test_a_guard_that_cost_nothing_on_the_days_before_is_taken() -> None:
    """LT-G is LT-I where load is as planned: as dear on every day before, less simple, and it alone
    has room for what no forecast tells."""
    before = rehearsed(("flat-before", 140, True, None), ("lt-i", 100, True, 1.0),
                       ("lt-g", 100, True, 1.0))  # fmt: skip
    runs = [figures("flat-before", 140), figures("lt-i", 90), figures("lt-g", 92)]
    longer = tuple(
        Harder(name, name, 2.0, {"fast": 0.97}, True, 100.0, 0.0, 90.0) for name in ("lt-i", "lt-g")
    )

    def taken(planned: float, guarded: float) -> tuple[str, str, str]:
        played = [
            Harder(
                name, name, 1.25, {"fast": share}, share > 0.95, 100.0, max(0.0, 0.95 - share), 90.0
            )
            for name, share in (("lt-i", planned), ("lt-g", guarded))
        ]
        comparison = compare(
            runs, rehearsal=replace(before, longer=longer, unforeseen=tuple(played))
        )
        recommended = comparison.recommended
        assert recommended is not None
        return recommended.policy, recommended.sentence, comparison.recommendations[0].reason

    policy, sentence, why = taken(0.8, 0.97)
    assert policy == "lt-g" and "does not follow more requests than are forecast" in why
    assert sentence.endswith(
        "With answers 2 times as long or 1.25 times the requests forecast it would have too."
    )
    # Where neither does, what misses no more than half as much.
    policy, _, why = taken(0.52, 0.9)
    assert policy == "lt-g" and "falls further short with more requests than are forecast" in why
    assert taken(0.96, 0.97)[0] == taken(0.8, 0.85)[0] == "lt-i"


def test_what_holds_then_is_taken_before_what_is_simpler_where_it_costs_no_more() -> None:
    """A flat fleet and a guarded plan within 1% on the days before: the plan holds, so it is taken;
    for a tenth more it is named in the warning and not bought."""
    runs = [figures("flat-before", 90), figures("lt-g", 91)]

    def taken(cost: float, *, holds: bool, misses: float = 0.35) -> str:
        before = rehearsed(("flat-before", 100, True, None), ("lt-g", cost, True, 0.9))
        longer = (
            Harder("flat-before", "Flat", 2.0, {"fast": 0.5}, False, 100.0, 0.45, 90.0),
            Harder(
                "lt-g",
                "Guarded",
                2.0,
                {"fast": 0.96 if holds else 0.95 - misses},
                holds,
                cost,
                0.0 if holds else misses,
                90.0,
            ),
        )
        comparison = compare(runs, rehearsal=replace(before, longer=longer))
        if comparison.recommended is not None and comparison.recommended.policy == "lt-g":
            assert "does not follow longer answers" in comparison.recommendations[0].reason
            assert comparison.recommended.sentence.endswith("times as long it would have too.")
        assert comparison.recommended is not None
        return comparison.recommended.policy

    assert taken(100.5, holds=True) == "lt-g" == taken(99.5, holds=True)
    # A controller is not worth having for what it does not do either.
    assert taken(100.5, holds=False, misses=0.1) == "flat-before"
    assert taken(100.5, holds=False) == "flat-before" == taken(110.0, holds=True)


def test_of_what_does_on_harder_days_too_what_costs_more_there_is_not_taken() -> None:
    """A threshold is simpler than a plan with a guard, cost the same on the days before, and twice
    as much where answers grow."""
    before = rehearsed(("flat-before", 140, True, None), ("decode-tps", 100, True, 1.0),
                       ("lt-g", 100, True, 1.0))  # fmt: skip
    runs = [figures("flat-before", 140), figures("decode-tps", 90), figures("lt-g", 92)]

    def taken(usd: float, misses: float = 0.0) -> tuple[str, str]:
        longer = tuple(
            Harder(name, name, 2.0, {"fast": 0.95 - short}, not short, 100.0, short, then_usd)
            for name, then_usd, short in (("decode-tps", usd, 1.5 * misses), ("lt-g", 50.0, misses))
        )
        comparison = compare(runs, rehearsal=replace(before, longer=longer))
        assert comparison.recommended is not None
        return comparison.recommended.policy, comparison.recommendations[0].reason

    assert taken(50.4)[0] == "decode-tps"
    policy, why = taken(100.0)
    assert policy == "lt-g" and "costs 100% more with longer answers" in why
    # What serves more there may cost more: that is no word against it.
    policy, why = taken(20.0, misses=0.2)
    assert policy == "decode-tps" and "costs" not in why
