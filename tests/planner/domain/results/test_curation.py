"""Which policy to take: by objective, among those that meet every tier, the simplest of equals."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from planner.domain.kinds.compare import Options
from planner.domain.kinds.compare import run as compare_scenario
from planner.domain.policy_backtest.backtest import (
    PolicyBacktest,
    Rehearsal,
    RehearsalWindow,
    Room,
    Tried,
)
from planner.domain.progress import silent
from planner.domain.results.ranking import compare
from planner.domain.results.recommendation import TIE
from planner.domain.traffic.day_growth import Growth
from planner.policies.registry import POLICIES, traits_of
from simulation.metrics import Percentiles
from tests.planner.domain import builders as make
from tests.planner.domain.results.test_verdict import run


def chosen(*runs, objective="cost"):
    recommendations = compare(runs).recommendations
    return next((advice for advice in recommendations if advice.objective == objective), None)


def test_the_cheapest_that_meets_every_tier():
    choice = chosen(run("reactive", 1, fast=0.5), run("lt-i", 20), run("lt-ua", 15))
    assert (choice.policy, choice.value, choice.unit) == ("lt-ua", 15, "USD")
    assert "2 of 3 policies that can be run meet every tier" in choice.reason
    assert "next is Planned (LT-I), 33% more" in choice.reason


def test_the_simplest_wins_ties():
    near = 10 * (1 + TIE) - 1e-9
    choice = chosen(run("lt-ua", 10), run("reactive", near), run("chiron", 10))
    assert choice.policy == "reactive"
    assert "Planned, by utilisation and load (LT-UA) does no more than 1% better" in choice.reason
    assert chosen(run("lt-ua", 10), run("reactive", near + 0.01)).policy == "lt-ua"


def test_what_nobody_can_run_is_a_yardstick_and_never_recommended():
    runs = [run("lt-i-perfect", 1), run("flat-min", 5), run("lt-i", 9), run("flat-before", 10)]
    for objective in ("cost", "energy", "carbon"):
        assert chosen(*runs, objective=objective).policy == "lt-i"
    comparison = compare(runs)
    assert comparison.recommended.policy == "lt-i"
    assert [(bound.policy, bound.word) for bound in comparison.recommended.yardsticks] == [
        ("lt-i-perfect", "told what came"), ("flat-min", "sized in hindsight"),
    ]  # fmt: skip
    assert compare(runs[:2]).recommended is None


INSTANCE_USD = 1.0  # one all the time on the windows rehearsed


def rehearsed(*parts, notes=()):
    """Of (policy, cost, meets, value of its parameter)."""
    tries = [
        (
            name,
            Tried(
                value,
                cost_usd=cost,
                gpu_hours=cost / 2,
                energy_kwh=cost,
                carbon_kg=cost,
                ttft_ms=None,
                e2e_ms=None,
                attainment=({"fast": 0.99},),
                meets=meets,
                tokens_in_time=1000,
                costs_usd=(cost,),
                instance_usd=INSTANCE_USD,
            ),
        )
        for name, cost, meets, value in parts
    ]
    window = RehearsalWindow(datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 5, 2, tzinfo=UTC), 9)
    return Rehearsal(
        (window,),
        0.5,
        {"fast": 0.975},
        True,
        tuple(
            PolicyBacktest(
                name, name, None if tried.value is None else "load_factor", tried.value,
                0.0 if tried.meets else 1 - tried.cost_usd / 100, tried, (tried,),
            )
            for name, tried in tries
        ),
        tuple(notes),
    )  # fmt: skip


def test_what_is_next_is_said_to_be_of_what_is_worth_taking():
    """Another may be between the two that saves too little to tell."""
    runs = [run("lt-i", 9), run("lt-g", 9), run("flat-before", 10)]
    parts = ("lt-i", 7, True, 1.0), ("lt-g", 8.8, True, 1.0), ("flat-before", 9, True, None)
    (cost, energy) = compare(runs, rehearsal=rehearsed(*parts)).recommendations[:2]
    assert "; next of what is worth taking is flat-before, 29% more" in cost.reason
    assert "; next is lt-g, 26% more" in energy.reason


def test_what_did_on_the_days_before_is_taken_whatever_the_window_brings():
    runs = [run("lt-i", 9, fast=0.93), run("flat-before", 10), run("flat-min", 3)]
    before = rehearsed(("lt-i", 7, True, 1.25), ("flat-before", 9, True, None))
    comparison = compare(runs, rehearsal=before)
    take = comparison.recommended
    assert (take.policy, take.parameters) == ("lt-i", {"load_factor": 1.25})
    assert take.rehearsed.cost_usd == 7 and take.cost_usd == 9 and not take.meets_slo
    assert comparison.recommendations[0].policy == "lt-i"
    # That it misses a tier comes before what it costs.
    assert comparison.headline.startswith(
        "Planned (LT-I) misses a tier in this window (fast: 93.00% in time, 95% asked). "
        "Take Planned (LT-I), load_factor 1.25: on the window before it met every tier at the "
        "least cost of 2 policies that can be run. In this window: "
        "4.5 GPU-hours for $9.00, $1.00 (10%) less than flat as the days before would have it"
    )
    # What did meet them is named, as far as it can be run.
    assert (
        "Flat as the days before would have it met every tier in this window, for $10.00, 11% more "
        "than what is recommended: nothing of the days before told that it would take that."
    ) in comparison.warnings
    # The one that would have been cheaper in the window is not known before it.
    dearer = rehearsed(("lt-i", 9, True, 1.25), ("flat-before", 8, True, None))
    assert compare(runs, rehearsal=dearer).recommended.policy == "flat-before"


def roomy(before, room, **has):
    """With room for growth asked for: which policies have it."""
    parts = [
        replace(part, chosen=replace(part.chosen, room=has[part.policy.replace("-", "_")]))
        for part in before.policies
    ]
    return replace(before, policies=tuple(parts), room=room)


def test_what_has_no_room_for_growth_is_not_taken_and_what_the_room_costs_is_said():
    runs = [run("flat-before", 9), run("hpa", 10)]
    before = rehearsed(("flat-before", 80, True, None), ("hpa", 100, True, 0.5))
    assert compare(runs, rehearsal=before).recommended.policy == "flat-before"
    room = Room(1.29, 5, "Flat", 80.0, had=True, models=())
    take = compare(runs, rehearsal=roomy(before, room, flat_before=False, hpa=True)).recommended
    assert take.policy == "hpa"
    assert take.sentence.endswith(
        "met every tier at the least cost of 2 policies that can be run. It has room for 1.29 "
        "times the requests of the busiest of them, as much as 5 days before tell a day may have. "
        "That room costs 25%: without it Flat would do, for $80.00 there instead of $100.00."
    )
    same = compare(
        runs, rehearsal=roomy(before, replace(room, label="hpa"), flat_before=False, hpa=True)
    ).recommended
    assert "without it the same, set lower, would do, for $80.00 there" in same.sentence
    two = (Growth("a", 1.29, 5), Growth("b", 1.0, 5))
    each = roomy(before, replace(room, models=two), flat_before=False, hpa=True)
    assert (
        "has room for up to 1.29 times what a model had on the busiest of them for it, as much as"
        in compare(runs, rehearsal=each).recommended.sentence
    )
    free = compare(runs, rehearsal=roomy(before, room, flat_before=True, hpa=True)).recommended
    assert free.policy == "flat-before" and "which costs nothing more." in free.sentence


def test_where_nothing_has_room_for_growth_what_meets_the_tiers_is_taken_and_it_is_said():
    runs = [run("flat-before", 9), run("hpa", 10), run("lt-i", 1)]
    before = rehearsed(
        ("flat-before", 80, True, None), ("hpa", 100, True, 0.5), ("lt-i", 10, False, 1.0)
    )
    room = Room(1.29, 5, "Flat", 80.0, had=False, models=())
    rehearsal = roomy(before, room, flat_before=False, hpa=False, lt_i=None)
    take = compare(runs, rehearsal=rehearsal).recommended
    assert take.policy == "flat-before" and take.sentence.endswith(
        ". With 1.29 times the requests of the busiest of them, as 5 days before had, none would "
        "have."
    )


def test_where_nothing_did_on_the_days_before_the_nearest_is_taken_and_said():
    runs = [run("lt-i", 9), run("reactive", 8)]
    before = rehearsed(("lt-i", 70, False, 2.0), ("reactive", 60, False, 0.01), notes=("Oh.",))
    comparison = compare(runs, rehearsal=before)
    assert comparison.recommended.policy == "lt-i"
    assert "none of 2 policies that can be run met every tier" in comparison.headline
    assert "Oh." in comparison.warnings


def test_without_days_before_it_is_said_that_the_window_chose():
    comparison = compare([run("lt-i", 9), run("reactive", 8)])
    assert comparison.recommended.policy == "reactive" and comparison.recommended.rehearsed is None
    assert "chosen on the window it is judged on" in comparison.recommended.sentence


def test_objectives_differ():
    fast = Percentiles(1.0, 1.0, 100.0, 200.0)
    slow = Percentiles(1.0, 1.0, 900.0, 950.0)
    runs = [run("lt-i", 20, ttft_ms=slow), run("chiron", 90, ttft_ms=fast)]
    assert chosen(*runs).policy == "lt-i"
    assert chosen(*runs, objective="ttft").policy == "chiron"
    most = run("reactive", 200.0, tokens_in_time=9_000_000)
    choice = chosen(run("lt-i", 100.0), most, objective="throughput")
    assert choice.policy == "reactive" and choice.value == pytest.approx(100 / 9)
    assert chosen(*runs, objective="e2e") is None  # nothing was measured


def test_where_none_meets_every_tier_the_closest_is_taken():
    choice = chosen(run("reactive", 1, fast=0.5), run("lt-i", 20, fast=0.9))
    assert choice.policy == "lt-i" and "no policy that can be run meets every tier" in choice.reason


def test_nothing_to_choose_without_requests_or_alternatives():
    assert compare([run("lt-i", 20)]).recommendations == ()
    quiet = {"arrived": 0, "completed": 0}
    assert compare([run("lt-i", 2, **quiet), run("reactive", 1, **quiet)]).recommendations == ()


def test_labels_are_told_apart_by_their_kind():
    calm = replace(run("reactive", 10), name="reactive:Calm", label="Calm")
    choice = chosen(calm, run("lt-ua", 9.99))
    assert (choice.policy, choice.label) == ("reactive:Calm", "Calm")


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    stored = make.demand_file(
        tmp_path_factory.mktemp("all"), {"a": [900 + 90 * (i % 9) for i in range(60)]}
    )
    calm = {"name": "reactive", "label": "Calm", "cooldown_s": 300}
    scenario = make.scenario(
        policies=["flat-peak", calm],
        traffic={"sources": [make.source(input_tokens={"mean": 800}, output_tokens={"mean": 40})]},
        horizon={"period_s": 300, "duration_s": 900},
    )
    return compare_scenario(
        scenario, {"t": stored}, Options(policies=["all"]), progress=silent
    ).document


def test_all_replays_every_policy_there_is_and_says_what_it_left_out(everything):
    played = set(everything["policies"])
    # The scenario has reactive with a label; nobody said what runs today; there is no day before;
    # the model is known by its memory alone, so nobody knows its modules.
    unable = {"today", "periodic", "lt-i-seasonal", "reactive", "modules"}
    assert played == set(POLICIES) - unable | {"reactive:Calm"}
    for label in ("Periodic", "Planned on the day before", "Module scaling"):
        assert any(f"{label} is left out" in warning for warning in everything["warnings"])
    assert everything["policies"]["reactive:Calm"]["label"] == "Calm"
    for figures in everything["policies"].values():
        assert figures["arrived"] == everything["requests"]


def test_the_document_recommends_by_objective(everything):
    by_objective = {advice["objective"]: advice for advice in everything["recommendations"]}
    assert set(by_objective) == {"cost", "energy", "carbon", "throughput", "ttft", "e2e"}
    for advice in by_objective.values():
        assert advice["policy"] in everything["policies"] and advice["reason"].endswith(".")
    cheapest = min(
        figures["cost_usd"]
        for name, figures in everything["policies"].items()
        if figures["meets_slo"] and not traits_of(name).knows_what_came
    )
    take, rehearsal = everything["recommended"], everything["rehearsal"]
    assert take["policy"] == by_objective["cost"]["policy"]
    # It is the cheapest of the days before, not of the window.
    chosen = {row["policy"]: row["chosen"] for row in rehearsal["policies"]}
    costs = [tried["cost_usd"] for tried in chosen.values() if tried["meets"]]
    if costs:
        assert chosen[take["policy"]]["cost_usd"] <= min(costs) * (1 + TIE)
    assert cheapest > 0 and not traits_of(take["policy"]).knows_what_came
