"""What the comparison says: who wins, against what, and what must not be overlooked."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.domain.results.answer import Answer
from planner.domain.results.equal_attainment_savings import beside
from planner.domain.results.figures import POLICIES as POLICY_COLUMNS
from planner.domain.results.ranking import (
    PolicyComparison,
    compare,
)
from planner.domain.study import PolicyRun
from planner.domain.verification.sensitivity import Sure
from planner.policies.registry import POLICIES
from planner.selectors.savings import savings
from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.metrics import Percentiles, Summary
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import GpuSpec, Provenance

KNOWN = Provenance("assumed", "test")
PROFILE = LinearProfile("m", "G", 1, 0.01, 0.0, 0.01, 0.0, 8, 512, 10_000, KNOWN)
POOL = Pool("m", "east", PROFILE, GpuSpec("G", 8e10, 1, 1, 1, KNOWN), 5, 0, 9, 0.0, 2.0)
FLEET = Fleet(
    tiers=(Tier("fast", ttft_s=1.0), Tier("slow", ttft_s=60.0, attainment=0.9)),
    regions=(Region("east", 400.0, 1.2),),
    pools=(POOL,),
    latency_s=np.zeros((1, 1)),
)
NOTHING = Percentiles(None, None, None, None)


def test_what_was_left_when_the_window_ended_is_told() -> None:
    comparison = compare([run("lt-i", 20, after_cost_usd=5.0, not_due=3), run("flat-peak", 30)])
    assert comparison.warnings[-2:] == (
        "Planned (LT-I): $5.00 of its $20.00 is for work that was left when the window ended.",
        "Planned (LT-I): 3 requests were neither done nor late when the replay ended; they count "
        "in no attainment.",
    )


def run(
    name: str, usd: float, fast: float | None = 0.99, slow: float | None = 0.99, **more: Any
) -> PolicyRun:
    fields = {
        "policy": name, "seed": 0, "duration_s": 3600.0, "arrived": 1000, "completed": 1000,
        "rejected": 0, "unfinished": 0, "reject_reasons": {}, "gpu_hours": usd / 2,
        "instance_hours": usd / 2, "wasted_gpu_hours": 0.0, "donated_gpu_hours": 0.0,
        "idle_gpu_hours": 0.0, "busy_gpu_hours": 0.0, "energy_kwh": usd,
        "host_energy_kwh": 0.0, "cost_usd": usd,
        "carbon_kg": usd, "input_tokens": 1, "output_tokens": 1, "ttft_ms": NOTHING,
        "tbt_ms": NOTHING, "e2e_ms": NOTHING, "slo_attainment": {"fast": fast, "slow": slow},
        "worst_hour": {"fast": None, "slow": None},
        "slo_met": {"fast": fast is None or fast >= 0.95, "slow": slow is None or slow >= 0.9},
        "iterations": 1, "preemptions": 0, "outside_iterations": 0, "wall_seconds": 0.0,
        "tiers": {}, "models": {}, "pools": (), "starts": {}, "failures": 0, "failed_starts": 0,
        "retried": 0, "tokens_in_time": 2_000_000, "reinstated": 0, "not_due": 0,
        "before_gpu_hours": 0.0, "after_gpu_hours": 0.0,
        "after_cost_usd": 0.0,
        "after_energy_kwh": 0.0,
    } | more  # fmt: skip
    nothing = cast(Any, None)
    label = POLICIES[name]
    return PolicyRun(name, label, Summary(**fields), FLEET, nothing, None, nothing)


def test_those_that_meet_every_tier_come_first_by_cost_then_the_rest_by_how_far_off() -> None:
    comparison = compare(
        [
            run("reactive", 1, fast=0.5),
            run("flat-peak", 30),
            run("lt-i-last-value", 2, slow=0.85),
            run("lt-i", 20),
            run("flat-min", 25),
        ]
    )
    assert comparison.ranking == ("lt-i", "flat-min", "flat-peak", "lt-i-last-value", "reactive")
    assert comparison.run("lt-i").summary.cost_usd == 20


def test_at_equal_cost_the_simpler_fleet_comes_first() -> None:
    comparison = compare([run("lt-i", 10), run("flat-min", 10), run("flat-peak", 10.001)])
    assert comparison.ranking == ("flat-peak", "flat-min", "lt-i")


def test_what_is_said_of_plans_and_flat_fleets_holds_under_labels_and_for_every_plan() -> None:
    def labelled(name: str, usd: float) -> PolicyRun:
        return replace(run(name, usd), name=f"{name}:mine", label="Mine")

    comparison = compare([run("lt-h", 20), labelled("flat-min", 15), labelled("lt-i-perfect", 1)])
    assert comparison.flat_wins and "mine, sized in hindsight" in comparison.warnings[0]
    # Neither of those that knew what came is a policy to take.
    assert comparison.headline.startswith(
        "Planned, all periods at once (LT-H) is the cheapest to run"
    )


def test_a_flat_fleet_that_beats_the_plan_is_the_first_warning() -> None:
    comparison = compare(
        [run("lt-i", 20), run("flat-min", 15), run("flat-peak", 40), run("reactive", 1, fast=0.1)]
    )
    assert comparison.warnings[0] == (
        "A flat fleet of 5 instances beats the plan: it meets every tier for $15.00 (smallest flat "
        "fleet that meets the SLO, sized in hindsight); the plan costs $20.00."
    )
    assert comparison.warnings[1].startswith(
        "Unified reactive misses fast (10.00% in time, 95% wanted)"
    )
    assert comparison.headline.startswith("Planned (LT-I) meets every tier at the least cost")
    assert "than flat at peak (sized in hindsight), as well served" in comparison.headline
    # The cheapest that can be run is the better news.
    held = compare([run("lt-i", 20), run("hpa", 10), run("flat-min", 15), run("flat-before", 18)])
    assert "(flat as the days before would have it); the plan costs $20.00" in held.warnings[0]


def test_what_keeps_no_spare_where_it_is_asked_for_is_neither_taken_nor_beats_the_plan() -> None:
    bare = replace(run("today", 90.0), lacks_spare=0.3)
    comparison = compare([bare, run("lt-i", 100.0)])
    assert comparison.recommended is not None and comparison.recommended.policy == "lt-i"
    assert not comparison.flat_wins
    assert any("Today's fleet served every tier in time without keeping" in warning
               for warning in comparison.warnings)  # fmt: skip
    kept = compare([run("today", 90.0), run("lt-i", 100.0)])
    assert kept.recommended is not None and kept.recommended.policy == "today"


def test_where_a_flat_fleet_is_the_one_to_take_the_headline_says_so_and_no_warning_again() -> None:
    comparison = compare([run("lt-i", 20), run("flat-min", 15), run("flat-before", 18)])
    assert comparison.recommended is not None and comparison.recommended.policy == "flat-before"
    assert comparison.headline.startswith("Flat as the days before would have it meets every tier")
    assert comparison.flat_wins and comparison.warnings == ()
    # How many instances are all that sets two flat fleets apart.
    more = compare([run("lt-i", 20), run("flat-peak", 9), run("flat-before", 18)])
    assert "$9.00 (100%) more than flat at peak (5 instances, sized in hindsight)" in more.headline


def test_beside_the_answer_the_headline_repeats_neither_savings_nor_what_is_missed() -> None:
    comparison = compare([run("lt-i", 20), run("flat-peak", 40)])
    answered = comparison.saying(Answer("Run 5.", cast(Any, None), "Run 5."))
    assert answered.recommended is not None and answered.recommended.sentence == "Run 5."
    assert answered.headline == (
        "Planned (LT-I) meets every tier at the least cost: 10.0 GPU-hours for $20.00."
    )


def test_what_holds_here_and_not_with_slower_profiles_says_so_in_the_headline() -> None:
    """It stood below the table of policies: the answer at the top was of a fleet at its edge."""
    comparison = compare([run("lt-i", 20), run("flat-peak", 40)])
    slower = Sure("profiles slower by their error", {"chat": 0.709}, 5.0, False)
    again = Sure("seed 1, requests drawn again", {"chat": 0.96}, 5.0, True)
    answered = comparison.surely((again, slower)).saying(
        Answer("Run 5.", cast(Any, None), "Run 5.")
    )
    assert answered.headline.endswith(
        "It is not sure: it misses a tier with profiles slower by their error (70.9% of chat in "
        "time)."
    )
    sure = comparison.surely((again,)).saying(Answer("Run 5.", cast(Any, None), "Run 5."))
    assert "not sure" not in sure.headline


def test_policies_that_lost_the_same_are_told_once() -> None:
    lost: dict[str, Any] = {"completed": 990, "rejected": 10}
    runs = [run(name, 10, **lost) for name in ("lt-i", "hpa", "reactive")]
    assert compare([*runs, run("flat-peak", 20)]).warnings == (
        "Planned (LT-I) and 2 more, each: of 1,000 requests 10 were rejected and 0 did not finish.",
    )


def test_a_tie_with_a_flat_fleet_is_said_without_a_price_twice() -> None:
    comparison = compare([run("lt-i", 20), run("flat-peak", 20)])
    assert comparison.warnings == (
        "A flat fleet of 5 instances beats the plan: it meets every tier for $20.00 (flat at peak, "
        "sized in hindsight), no more than the plan, and never moves.",
    )


def test_a_plan_that_misses_is_beaten_by_any_flat_fleet_that_meets() -> None:
    comparison = compare([run("lt-i", 10, fast=0.94), run("today", 100)])
    assert comparison.flat_wins and comparison.recommended is not None
    assert comparison.recommended.policy == "today"  # so that no warning says it again
    assert comparison.warnings == ("Planned (LT-I) misses fast (94.00% in time, 95% wanted).",)
    short = replace(run("lt-i", 10, fast=0.94), refused_starts=1200)  # and why it had no more
    (warning,) = compare([short, run("today", 100)]).warnings
    assert warning.endswith("95% wanted); for 1,200 instances that it asked for no GPU was left.")
    moves = compare([run("lt-i", 10, fast=0.94), run("hpa", 90), run("today", 100)])
    assert moves.warnings[0].endswith(
        "for $100.00 (today's fleet); the plan costs $10.00 and misses a tier."
    )
    assert "hindsight" not in moves.warnings[0]


def test_no_warning_where_the_plan_wins_or_the_flat_fleet_misses() -> None:
    assert compare([run("lt-i", 10), run("flat-min", 15)]).warnings == ()
    missing = compare([run("lt-i", 10), run("flat-min", 5, fast=0.2)])
    assert not any("beats the plan" in words for words in missing.warnings)


def test_a_perfect_forecast_is_a_bound_not_a_recommendation() -> None:
    comparison = compare([run("lt-i-perfect", 5), run("lt-i", 10), run("flat-peak", 20)])
    assert comparison.ranking[0] == "lt-i-perfect"
    assert comparison.headline == (
        "Planned (LT-I) meets every tier at the least cost: 5.0 GPU-hours for $10.00, "
        "$10.00 (50%) less than flat at peak (sized in hindsight), as well served."
    )


@pytest.mark.parametrize("attainment", [0.95, 0.2])
def test_a_cheaper_baseline_is_not_accused_of_missing_what_it_meets(attainment: float) -> None:
    comparison = compare([run("lt-i-perfect", 5, fast=attainment), run("lt-i", 10)], "lt-i-perfect")
    assert (
        "$5.00 (100%) more than planned on a perfect forecast (told what came; "
        in comparison.headline
    )
    assert ("misses a tier" in comparison.headline) == (attainment < 0.95)


def test_when_none_meets_the_closest_is_named_with_what_it_lacks() -> None:
    comparison = compare([run("lt-i", 10, fast=0.93), run("flat-peak", 20, fast=0.9499)])
    assert comparison.ranking == ("flat-peak", "lt-i")
    assert comparison.headline == (
        "No policy that can be run meets every tier. Planned (LT-I) comes closest, 2 points short; "
        "add capacity or loosen a limit."
    )
    assert comparison.warnings[-1] == "Flat at peak misses fast (94.99% in time, 95% wanted)."


@pytest.mark.parametrize(
    ("names", "baseline", "chosen"),
    [
        (["lt-i", "flat-peak", "today"], None, "today"),
        (["lt-i", "flat-peak"], None, "flat-peak"),
        (["lt-i", "reactive"], None, "reactive"),
        (["lt-i", "flat-peak", "today"], "lt-i", "lt-i"),
        (["lt-i", "flat-peak"], "reactive", "flat-peak"),
    ],
)
def test_baseline_is_the_one_asked_for_then_today_then_the_peak_then_the_dearest(
    names: list[str], baseline: Any, chosen: str
) -> None:
    costs = {"lt-i": 1, "flat-peak": 3, "today": 2, "reactive": 4}
    assert compare([run(name, costs[name]) for name in names], baseline).baseline == chosen


def test_lost_requests_are_counted_with_their_reason() -> None:
    lost = run(
        "lt-i", 10, completed=990, rejected=7, unfinished=3,
        reject_reasons={"longer than the model's context": 7},
    )  # fmt: skip
    assert compare([lost]).warnings == (
        "Planned (LT-I): of 1,000 requests 7 were rejected (7 longer than the model's context) and "
        "3 did not finish.",
    )


def test_iterations_beyond_what_profiles_were_measured_on_are_said() -> None:
    few = run("lt-i", 10, iterations=1000, outside_iterations=9)
    many = run("flat-peak", 20, iterations=1000, outside_iterations=120)
    assert compare([few]).warnings == ()
    assert compare([few, many]).warnings == (
        f"{many.label}: 12% of iterations ran outside the rows their profiles were measured on; "
        "their times are extrapolated.",
    )


def test_tiers_without_requests_are_neither_met_nor_missed_in_words() -> None:
    comparison = compare([run("lt-i", 10, slow=None), run("flat-peak", 20, slow=None)])
    assert isinstance(comparison, PolicyComparison)
    assert comparison.ranking == ("lt-i", "flat-peak") and comparison.warnings == ()


def test_free_fleets_are_compared_without_dividing_by_nothing() -> None:
    comparison = compare([run("lt-i", 0), run("flat-peak", 0)])
    assert comparison.headline.endswith(
        "as much as flat at peak (sized in hindsight), as well served."
    )
    assert replace(comparison).baseline == "flat-peak"


def test_a_window_without_requests_proves_nothing() -> None:
    nothing = {"arrived": 0, "completed": 0, "fast": None, "slow": None}
    comparison = compare([run("lt-i", 10, **nothing), run("flat-peak", 10, **nothing)])
    assert comparison.headline.startswith("No request arrives in this window")
    assert comparison.warnings == ()


def test_a_baseline_that_was_not_run_is_told() -> None:
    comparison = compare([run("lt-i", 10), run("flat-peak", 20)], "reactive")
    assert comparison.warnings == ("reactive was not run, so savings count against flat at peak.",)


def test_a_plan_that_never_moves_is_not_beaten_by_itself() -> None:
    still = cast(Any, SimpleNamespace(target=np.full((24, 1, 1, 1), 2)))
    moving = cast(Any, SimpleNamespace(target=np.arange(24).reshape(24, 1, 1, 1)))
    flat, plan = run("flat-peak", 10), run("lt-i", 10)
    comparison = compare([flat, replace(plan, plan=still)])
    assert comparison.ranking[0] == "lt-i" and not comparison.flat_wins
    assert comparison.warnings[0].startswith("The plan never moves")
    comparison = compare([flat, replace(plan, plan=moving)])
    assert comparison.ranking[0] == "flat-peak" and comparison.flat_wins
    cheaper = compare([run("flat-min", 9), replace(plan, plan=still)])
    assert cheaper.flat_wins and "beats the plan" in cheaper.warnings[0]


def test_the_plan_of_every_sentence_is_the_one_to_take() -> None:
    """A dearer plan is not called the plan beside one that is recommended, nor does one with a rule
    beside it stand still."""
    still = cast(Any, SimpleNamespace(target=np.full((24, 1, 1, 1), 2)))
    taken = replace(run("lt-g", 14), plan=still, asked=False)
    comparison = compare([run("lt-i", 20), taken, run("flat-min", 15)])
    assert comparison.recommended is not None and comparison.recommended.policy == "lt-g"
    assert comparison.warnings == () and not comparison.flat_wins
    dear = compare([run("lt-i", 20), replace(taken, summary=run("lt-g", 18).summary),
                    run("flat-min", 15)])  # fmt: skip
    assert "the plan costs $18.00" in dear.warnings[0]


def test_savings_of_policies_that_serve_unequally_are_told_at_equal_attainment() -> None:
    """97.1% against 99.4%, "25% less": a flat fleet as bad costs 80% of one as good, so that at
    the baseline's attainment 75 would have been 93.75."""
    plan = replace(run("lt-i", 75, fast=0.971), flat_usd=80.0)
    base = replace(run("flat-peak", 100, fast=0.994), flat_usd=100.0)
    comparison = compare([plan, base])
    assert (
        "$25.00 (25%) less than flat at peak (sized in hindsight; there 99.4% of fast are in time, "
        "here 97.1%; at equal service 6% less)" in comparison.headline
    )
    # The answer, which has dollars of a day, says the same of it, and nothing else.
    assert beside(plan, base, usd=False) == beside(plan, base, usd=True).replace(
        "$25.00 (25%)", "25%"
    )
    (unequal,) = comparison.equal_slo
    assert (unequal.policy, unequal.tier) == ("lt-i", "fast")
    assert unequal.cost_usd == pytest.approx(93.75) and unequal.saving == pytest.approx(0.0625)
    assert comparison.recommended is not None
    assert comparison.recommended.equal_slo_saving == pytest.approx(0.0625)
    # What the page computes of a kept result is the same.
    kept = {"policies": {policy.name: POLICY_COLUMNS.row(policy) for policy in (plan, base)}}
    assert savings(kept, "flat-peak")["lt-i"]["cost_usd"]["equal"] == pytest.approx(0.0625)


def test_within_two_tenths_of_a_point_savings_are_what_they_are() -> None:
    comparison = compare([run("lt-i", 75, fast=0.9925), run("flat-peak", 100, fast=0.994)])
    assert comparison.equal_slo == () and "equal service" not in comparison.headline
    assert comparison.recommended is not None
    assert comparison.recommended.equal_slo_saving == pytest.approx(0.25)


def test_where_no_flat_fleet_tells_the_headline_says_that() -> None:
    comparison = compare([run("lt-i", 75, fast=0.971), run("flat-peak", 100, fast=0.994)])
    assert "; no flat fleet serves alike, to tell what that is worth" in comparison.headline
    assert comparison.recommended is not None and comparison.recommended.equal_slo_saving is None


def test_a_larger_flat_fleet_is_no_loss_at_equal_attainment() -> None:
    larger = replace(run("flat-before", 110, fast=0.99), flat_usd=110.0)
    base = replace(run("flat-peak", 100, fast=0.97), flat_usd=100.0)
    headline = compare([larger, base]).headline
    assert (
        "$10.00 (10%) more than flat at peak (5 instances, sized in hindsight; there 97.0%"
        in headline
    )
    assert headline.endswith("; at equal service as much).")
