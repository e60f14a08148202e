"""What the comparison says: who wins, against what, and what must not be overlooked."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.domain.recommend.rule import Candidate, CaseResult, Choice
from planner.domain.recommend.test_days import Case, TestDay
from planner.domain.results.equal_attainment_savings import cost_difference_words
from planner.domain.results.figures import POLICIES as POLICY_COLUMNS
from planner.domain.results.ranking import ChoiceOfPolicy, PolicyComparison, compare
from planner.domain.results.stored import StoredPolicy
from planner.domain.serialise import as_json, from_json
from planner.domain.study import PolicyRun
from planner.policies.registry import POLICIES
from planner.selectors.runs import savings
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


def test_a_policy_above_the_power_limit_of_a_site_is_told() -> None:
    limited = replace(FLEET, regions=(replace(FLEET.regions[0], site_kw=40.0),))
    runs = [
        replace(run("lt-i", 20, peak_kw={"east": 39.0}), fleet=limited),
        replace(run("flat-peak", 30, peak_kw={"east": 44.0}), fleet=limited),
    ]
    told = [warning for warning in compare(runs).warnings if "44.0 kW" in warning]
    assert len(told) == 1 and POLICIES["flat-peak"] in told[0] and "39.0" not in told[0]


def recommending(
    runs: list[PolicyRun], policy: str, baseline: str | None = None, **choice: Any
) -> PolicyComparison:
    """Return the comparison of ``runs`` in which the test days chose ``policy``."""
    day = TestDay("Past", "past", {}, 1.0, 0, (Case(lambda: cast(Any, None)),))
    results = {0: (CaseResult(50.0, {"fast": 0.97}, 0.0),)}
    candidate = Candidate(policy, policy, 0.8, False, {"load_factor": 0.8}, results)
    fields = {"qualifies": True, "failing": (), "runner_up": None} | choice
    return compare(runs, baseline, chosen=ChoiceOfPolicy(Choice(candidate, **fields), [day], 1))


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


def test_savings_are_against_the_autoscaler_of_today_else_against_todays_fleet() -> None:
    runs = [run("today", 96), replace(run("keda", 69), name="keda:today"), run("lt-i", 55)]
    assert compare(runs).baseline == "keda:today"
    assert compare(runs, "today").baseline == "today"
    assert compare(runs[::2]).baseline == "today"


def test_a_labelled_oracle_fleet_beats_the_plan_too() -> None:
    def labelled(name: str, usd: float) -> PolicyRun:
        return replace(run(name, usd), name=f"{name}:mine", label="Mine")

    comparison = compare([run("lt-h", 20), labelled("flat-min", 15), labelled("lt-i-perfect", 1)])
    assert comparison.flat_wins and len(comparison.warnings) == 1


def test_a_fleet_without_the_spare_of_the_scenario_does_not_beat_the_plan() -> None:
    bare = replace(run("today", 90.0), lacks_spare=0.3)
    comparison = compare([bare, run("lt-i", 100.0)])
    assert not comparison.flat_wins and len(comparison.warnings) == 1
    assert compare([run("today", 90.0), run("lt-i", 100.0)]).flat_wins


@pytest.mark.parametrize(("bare", "warned"), [("today", 1), ("lt-i", 1), ("flat-before", 0)])
def test_only_the_recommendation_and_todays_fleet_are_warned_of_without_spare(
    bare: str, warned: int
) -> None:
    costs = {"today": 30.0, "lt-i": 10.0, "flat-before": 20.0}
    runs = [
        replace(run(name, usd), lacks_spare=0.3 * (name == bare)) for name, usd in costs.items()
    ]
    assert len(recommending(runs, "lt-i").warnings) == warned


def test_a_recommended_flat_fleet_is_in_no_warning() -> None:
    runs = [run("lt-i", 20), run("flat-min", 15), run("flat-before", 18)]
    comparison = recommending(runs, "flat-before")
    assert comparison.flat_wins and comparison.warnings == ()


def test_the_recommendation_has_the_figures_of_the_window_and_of_the_test_days() -> None:
    comparison = recommending([run("lt-i", 20, fast=0.96), run("flat-peak", 40)], "lt-i")
    take = comparison.recommended
    assert take is not None and (take.policy, take.assurance) == ("lt-i", "balanced")
    assert (take.qualifies, take.failing, take.parameters) == (True, (), {"load_factor": 0.8})
    assert (take.cost_usd, take.attainment["fast"], take.meets_slo) == (20, 0.96, True)
    assert take.expected.cost_usd is not None and take.expected.cost_usd.mean == 50
    interval = take.expected.attainment["fast"]
    assert interval is not None and interval.mean == pytest.approx(0.97)
    assert interval.low is None and interval.high is None  # one case tells no interval
    assert [its.policy for its in take.yardsticks] == ["flat-peak"]


def test_a_recommendation_that_fails_a_day_says_which() -> None:
    comparison = recommending([run("lt-i", 20)], "lt-i", qualifies=False, failing=("Past",))
    take = comparison.recommended
    assert take is not None and not take.qualifies and take.failing == ("Past",)
    assert comparison.headline.startswith(take.sentence)


def test_a_plan_that_misses_is_beaten_by_any_flat_fleet_that_meets() -> None:
    comparison = compare([run("lt-i", 10, fast=0.94), run("today", 100)])
    assert comparison.flat_wins and len(comparison.warnings) == 2
    short = replace(run("lt-i", 10, fast=0.94), refused_starts=1200)  # and why it had no more
    (warning,) = recommending([short, run("today", 100)], "today").warnings
    assert "1,200" in warning
    moves = compare([run("lt-i", 10, fast=0.94), run("hpa", 90), run("today", 100)])
    assert "$100.00" in moves.warnings[0]


def test_no_warning_where_the_plan_wins_or_the_flat_fleet_misses() -> None:
    assert compare([run("lt-i", 10), run("flat-min", 15)]).warnings == ()
    missing = compare([run("lt-i", 10), run("flat-min", 5, fast=0.2)])
    assert not missing.flat_wins


def test_an_oracle_ranks_but_is_a_yardstick() -> None:
    runs = [run("lt-i-perfect", 5), run("lt-i", 10), run("flat-peak", 20)]
    comparison = recommending(runs, "lt-i")
    assert comparison.ranking[0] == "lt-i-perfect" and comparison.recommended is not None
    words = {its.policy: its.word for its in comparison.recommended.yardsticks}
    assert set(words) == {"lt-i-perfect", "flat-peak"} and len(set(words.values())) == 2


def test_a_cheaper_baseline_makes_the_saving_negative() -> None:
    runs = [run("lt-i-perfect", 5), run("lt-i", 10)]
    take = recommending(runs, "lt-i", "lt-i-perfect").recommended
    assert take is not None and take.equal_slo_saving == pytest.approx(-1.0)


def test_of_policies_that_miss_the_nearest_ranks_first() -> None:
    comparison = compare([run("lt-i", 10, fast=0.93), run("flat-peak", 20, fast=0.9499)])
    assert comparison.ranking == ("flat-peak", "lt-i")
    assert comparison.recommended is None  # without test days


@pytest.mark.parametrize(
    ("names", "baseline", "chosen"),
    [
        (["lt-i", "flat-peak", "today"], None, "today"),
        (["lt-i", "flat-peak"], None, "flat-peak"),
        (["lt-i", "flat-peak", "flat-before"], None, "flat-before"),
        (["lt-i", "reactive"], None, "reactive"),
        (["lt-i", "flat-peak", "today"], "lt-i", "lt-i"),
        (["lt-i", "flat-peak"], "reactive", "flat-peak"),
    ],
)
def test_baseline_is_the_one_asked_for_then_today_then_static_then_the_dearest(
    names: list[str], baseline: Any, chosen: str
) -> None:
    costs = {"lt-i": 1, "flat-before": 2, "flat-peak": 3, "today": 2, "reactive": 4}
    assert compare([run(name, costs[name]) for name in names], baseline).baseline == chosen


def test_lost_requests_are_counted_with_their_reason() -> None:
    reasons = {"longer than the model's context": 7}
    lost, other = (
        run(name, 10, completed=990, rejected=7, unfinished=unfinished, reject_reasons=reasons)
        for name, unfinished in (("lt-i", 3), ("flat-peak", 0))
    )
    rejected, unfinished = (line for line in compare([lost, other]).warnings if "requests" in line)
    assert "7" in rejected and all(reason in rejected for reason in reasons)
    assert lost.label not in rejected  # every policy rejects them
    assert "3" in unfinished and lost.label in unfinished


def test_iterations_beyond_what_profiles_were_measured_on_are_said() -> None:
    few = run("lt-i", 10, iterations=1000, outside_iterations=9)
    many = run("flat-peak", 20, iterations=1000, outside_iterations=120)
    assert compare([few]).warnings == ()
    (warning,) = compare([few, many]).warnings
    assert warning.startswith(many.label) and "12%" in warning


def test_free_fleets_are_compared_without_dividing_by_nothing() -> None:
    comparison = recommending([run("lt-i", 0), run("flat-peak", 0)], "lt-i")
    assert comparison.baseline == "flat-peak" and comparison.recommended is not None
    assert comparison.recommended.equal_slo_saving is None


def test_a_window_without_requests_proves_nothing() -> None:
    nothing = {"arrived": 0, "completed": 0, "fast": None, "slow": None}
    comparison = compare([run("lt-i", 10, **nothing), run("flat-peak", 10, **nothing)])
    assert not comparison.flat_wins and comparison.warnings == ()


def test_a_plan_that_never_moves_is_not_beaten_by_itself() -> None:
    still = cast(Any, SimpleNamespace(target=np.full((24, 1, 1, 1), 2)))
    moving = cast(Any, SimpleNamespace(target=np.arange(24).reshape(24, 1, 1, 1)))
    flat, plan = run("flat-peak", 10), run("lt-i", 10)
    comparison = compare([flat, replace(plan, plan=still)])
    assert comparison.ranking[0] == "lt-i" and not comparison.flat_wins
    assert comparison.warnings[0].startswith(plan.label)
    comparison = compare([flat, replace(plan, plan=moving)])
    assert comparison.ranking[0] == "flat-peak" and comparison.flat_wins
    cheaper = compare([run("flat-min", 9), replace(plan, plan=still)])
    assert cheaper.flat_wins and "$9.00" in cheaper.warnings[0]


def test_savings_of_policies_that_serve_unequally_are_at_equal_attainment() -> None:
    """97.1% against 99.4%, "25% less": a flat fleet as bad costs 80% of one as good, so that at
    the baseline's attainment 75 would have been 93.75."""
    plan = replace(run("lt-i", 75, fast=0.971), flat_usd=80.0)
    base = replace(run("flat-peak", 100, fast=0.994), flat_usd=100.0)
    comparison = recommending([plan, base], "lt-i")
    # The answer, which has dollars of a day, says the same as the headline, and nothing else.
    assert cost_difference_words(plan, base, usd=False) == cost_difference_words(
        plan, base, usd=True
    ).replace("$25.00 (25%)", "25%")
    (unequal,) = comparison.equal_slo
    assert (unequal.policy, unequal.tier) == ("lt-i", "fast")
    assert unequal.cost_usd == pytest.approx(93.75) and unequal.saving == pytest.approx(0.0625)
    assert comparison.recommended is not None
    assert comparison.recommended.equal_slo_saving == pytest.approx(0.0625)
    # What the page computes of a kept result is the same.
    kept = {
        policy.name: from_json(StoredPolicy, as_json(POLICY_COLUMNS.row(policy)))
        for policy in (plan, base)
    }
    assert savings(kept, "flat-peak")["lt-i"]["cost_usd"]["equal"] == pytest.approx(0.0625)


def test_within_two_tenths_of_a_point_savings_are_what_they_are() -> None:
    runs = [run("lt-i", 75, fast=0.9925), run("flat-peak", 100, fast=0.994)]
    comparison = recommending(runs, "lt-i")
    assert comparison.equal_slo == () and comparison.recommended is not None
    assert comparison.recommended.equal_slo_saving == pytest.approx(0.25)


def test_without_a_flat_fleet_that_serves_alike_no_saving_is_known() -> None:
    runs = [run("lt-i", 75, fast=0.971), run("flat-peak", 100, fast=0.994)]
    take = recommending(runs, "lt-i").recommended
    assert take is not None and take.equal_slo_saving is None


def test_a_larger_flat_fleet_is_no_loss_at_equal_attainment() -> None:
    larger = replace(run("flat-before", 110, fast=0.99), flat_usd=110.0)
    base = replace(run("flat-peak", 100, fast=0.97), flat_usd=100.0)
    take = recommending([larger, base], "flat-before").recommended
    assert take is not None and take.equal_slo_saving == pytest.approx(0.0)
