"""A fleet that never moves is left for what saves more than chance, by law and by hand."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import pytest

from planner.domain.policy_backtest.significance import (
    least,
    same,
    saved,
    simple,
    tells,
    worth_taking,
)
from planner.domain.policy_backtest.stress_tests import outlasting
from planner.domain.policy_backtest.tuning import Tuning
from planner.domain.results.ranking import compare
from tests.planner.domain.policy_backtest.test_harder import rehearsed_at
from tests.planner.domain.results.test_curation import (
    INSTANCE_USD,
    rehearsed,
)
from tests.planner.domain.results.test_verdict import run as figures


@dataclass(frozen=True)
class Paid:
    costs_usd: tuple[float, ...]
    instance_usd: float = 0.0


@pytest.mark.parametrize("windows", [1, 2, 3])
def test_what_tells_is_what_is_expected_to_save(windows: int) -> None:
    """The window to come is any of n+1 as likely: on n it saves what it did there, on one it has an
    instance too many."""
    for instances, eighths in product((1, 2, 5, 40), range(-8, 17)):
        saving = Fraction(eighths, 8)  # of an instance, on each window
        flat = Paid((float(instances),) * windows, float(windows))
        paid = Paid((float(instances - saving),) * windows)
        expected = (windows * saving - (1 - saving)) / (windows + 1)
        assert tells(paid, flat) == (expected >= 0 and saving >= 0), (instances, saving)


def test_two_instances_for_twenty_minutes_say_little_and_for_three_days_more() -> None:
    """What a guarded plan saved in twenty minutes, a third of an instance, and then cost half as
    much again; the same share of three days is reason enough."""
    flat = Paid((20.74,), 9.22)
    guarded = Paid((17.65,))
    assert saved(guarded, flat) == pytest.approx(3.09) and least(flat) == pytest.approx(4.61)
    assert not tells(guarded, flat) and tells(Paid((16.0,)), flat)
    days = Paid((20.74,) * 3, 3 * 9.22)
    assert tells(Paid((17.65,) * 3), days)
    # As much in all, but dearer on one day.
    assert not tells(Paid((15.0, 15.0, 21.0)), days)
    # What is dearer by no more than what counts as the same (1%) is not: pd.yml's three days.
    flat = Paid((636.85, 636.84, 636.83), 238.78)
    assert tells(Paid((638.36, 419.71, 432.96)), flat)
    assert not tells(Paid((643.36, 419.71, 432.96)), flat)
    # Of a large fleet an instance is little.
    assert tells(Paid((97.0,)), Paid((100.0,), 2.0)) and not tells(Paid((97.0,)), Paid((100.0,), 8))


def test_what_costs_the_same_every_day_is_that_fleet_and_no_bet() -> None:
    flat = Paid((100.0, 50.0), 20.0)
    assert same(Paid((100.9, 50.0)), flat) and not same(Paid((100.0, 49.0)), flat)
    paid = {
        "flat-before": flat, "today": Paid((120.0, 60.0), 20.0), "lt-g": Paid((99.5, 50.0)),
        "lt-i": Paid((98.0, 48.0)), "hpa": Paid((70.0, 40.0)), "flat-min": Paid((1.0, 1.0), 1.0),
    }  # fmt: skip
    # What is sized in hindsight is no fleet to stay with; dearer ones that can be run are neither.
    assert simple(paid) == "flat-before"
    assert worth_taking(paid, days=True) == {"flat-before", "lt-g", "hpa", "flat-min"}
    # The stretch right before a window is no day like it.
    assert worth_taking(paid) == {"flat-before", "hpa", "flat-min"}
    moving = {key: paid[key] for key in ("lt-g", "lt-i")}
    assert simple(moving) is None and worth_taking(moving) == set(moving)


def test_the_flat_fleet_is_taken_unless_what_moves_saves_enough_and_it_is_said() -> None:
    runs = [figures("flat-before", 10), figures("lt-g", 15), figures("hpa", 12)]

    def taken(usd: float) -> tuple[str, str]:
        before = rehearsed(
            ("flat-before", 10, True, None), ("lt-g", usd, True, 1.0), ("hpa", 9.8, True, 0.5)
        )
        taken = compare(runs, rehearsal=before).recommended
        assert taken is not None
        return taken.policy, taken.sentence

    assert INSTANCE_USD == 1.0  # so with one window rehearsed half a dollar has to be saved
    policy, sentence = taken(9.6)
    assert policy == "flat-before"
    assert sentence == (
        "Take a flat fleet of 5 instances (flat as the days before would have it): on the window "
        "before it met every tier. lt-g was $0.40 cheaper, too little to tell: on a window unlike "
        "it, a chance of 1 in 2, an instance too many outweighs what is less than $0.50."
    )
    policy, sentence = taken(9.4)
    assert policy == "lt-g" and "at the least cost of 3 policies" in sentence


def test_whether_the_flat_fleet_lasts_is_tried_where_it_is_taken_for_want_of_evidence() -> None:
    """What is cheaper is not worth taking; the one to take is tried first, then the cheapest up to
    one that does."""
    costs = {"lt-i": 100.0, "hpa": 100.2, "flat-before": 101.9, "reactive": 140.0}
    did = [rehearsed_at(name, usd) for name, usd in costs.items()]
    for tuning in did:
        assert tuning.best.instance_usd == pytest.approx(2.0)  # so that a dollar tells ...
    cheap = rehearsed_at("lt-i", 101.3)  # ... and 60 cents do not
    lasting = outlasting([cheap, *did[2:]], Tuning.make_room, lambda its, _: figures(
        its.key, 1.0, fast=0.96 if its.key == "reactive" else 0.5
    ))  # fmt: skip
    assert [harder.policy for harder in lasting] == ["lt-i", "flat-before", "reactive"]
    lasting = outlasting(did, Tuning.make_room, lambda its, _: figures(its.key, 1.0, fast=0.96))
    assert [harder.policy for harder in lasting] == ["lt-i", "hpa"]
