"""Rank the policies and write the recommendation (methods.md X1); ``warnings`` has those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.domain.recommend.rule import Choice
from planner.domain.recommend.test_days import TestDay
from planner.domain.recommend.trials import shortfall as shortfall_of
from planner.domain.results import warnings as cautions
from planner.domain.results.answer import Answer, missed_tiers_sentence
from planner.domain.results.autoscaler_today import autoscaler_sentences, setting_of_today
from planner.domain.results.equal_attainment_savings import (
    EqualSlo,
    amount,
    cost_difference_words,
    equal_slo,
    saving,
)
from planner.domain.results.figures import BY_NAME
from planner.domain.results.recommended_policy import Recommended, recommended_of
from planner.domain.serialise import COLUMNS, KEY
from planner.domain.study import PolicyRun
from planner.policies.base import TODAY
from planner.policies.registry import plan_policy

MOVES = 100  # sorts policies that scale after all static fleets


@dataclass(frozen=True, slots=True, eq=False)
class PolicyComparison:
    """The compared policies, ranked, with a recommendation.

    ``ranking`` is best first: policies that meet every tier by cost, then the others by the
    shortfall of their worst tier.
    """

    runs: tuple[PolicyRun, ...] = field(metadata={KEY: "policies", COLUMNS: BY_NAME})
    baselines: tuple[str, ...]  # baselines, the first is the default
    ranking: tuple[str, ...]
    baseline: str
    headline: str
    warnings: tuple[str, ...]
    flat_wins: bool  # a static fleet beats the plan: in the headline, else the first warning
    # Policies whose attainment differs from the baseline, compared at equal attainment.
    equal_slo: tuple[EqualSlo, ...] = ()
    recommended: Recommended | None = None  # None if no deployable policy was run
    autoscaler: str = ""  # today's autoscaler against the recommended policy, in sentences

    def with_answer(self, answer: Answer) -> PolicyComparison:
        """Return the comparison with ``answer`` as its recommendation.

        The earlier sentence becomes the reason. The headline omits what the answer says.
        """
        without_answer = self.recommended
        assert without_answer is not None
        recommended = replace(
            without_answer,
            sentence=answer.sentence,
            why=without_answer.sentence,
            timetable=answer.timetable,
            what=answer.what,
            facts=answer.facts,
        )
        by_name = {run.name: run for run in self.runs}
        headline = _headline(by_name, without_answer, self.baseline, answered=True)
        return replace(self, recommended=recommended, headline=headline)

    def run(self, name: str) -> PolicyRun:
        """Return the run of the policy ``name``."""
        return next(run for run in self.runs if run.name == name)


@dataclass(frozen=True, slots=True)
class ChoiceOfPolicy:
    """The recommended candidate, and the test days on which it was chosen."""

    choice: Choice
    days: Sequence[TestDay]
    level: int


def compare(
    runs: Sequence[PolicyRun],
    baseline: str | None = None,
    left_out: Sequence[str] = (),
    chosen: ChoiceOfPolicy | None = None,
) -> PolicyComparison:
    """Rank the policies, and write the headline and the warnings.

    Savings are relative to ``baseline``. If it was not run, they are relative to today's
    autoscaler (``setting_of_today``), else to today's fleet, the static fleet sized on history, the
    static fleet for the peak, or the dearest policy. ``left_out`` has a sentence for every policy
    that could not be run. ``chosen`` is None if no policy can be deployed.
    """
    by_name = {run.name: run for run in runs}
    ranking = tuple(run.name for run in sorted(runs, key=_sort_key))
    base_name = _baseline_run(by_name, baseline)
    other_baseline = []
    if baseline not in (None, base_name):
        label = cautions.lower_first(by_name[base_name].label)
        other_baseline = [f"{baseline} was not run, so savings count against {label}."]
    base = by_name[base_name]
    recommended_run = None if chosen is None else by_name.get(chosen.choice.candidate.policy)
    recommended, autoscaler = None, ""
    if recommended_run is not None and chosen is not None:
        autoscaler = autoscaler_sentences(runs, recommended_run, qualifies=chosen.choice.qualifies)
        recommended = replace(
            recommended_of(recommended_run, runs, chosen.choice, chosen.days, chosen.level),
            equal_slo_saving=saving(recommended_run, base),
        )
    plan = _run_of_plan(by_name, recommended_run)
    flat_wins = cautions.static_beats_plan(by_name, plan)
    # The headline covers a recommended static fleet, and what the recommended policy misses.
    recommends_static = recommended_run is not None and recommended_run.traits.flat
    differences = [equal_slo(run, base) for run in runs]
    asked = [run for run in runs if run.asked]  # the user named their policies
    # What these miss is in the headline or next to it.
    named = {recommended.policy, setting_of_today(by_name)} if recommended is not None else set()
    current = [run for run in runs if run is recommended_run or run.traits.needs_current_fleet]
    return PolicyComparison(
        runs=tuple(runs),
        baselines=tuple(by_name),
        ranking=ranking,
        baseline=base_name,
        headline=_headline(by_name, recommended, base_name),
        warnings=(
            *([] if recommends_static else flat_wins),
            *cautions.no_spare(runs if chosen is None else current),
            *cautions.over_power(runs),
            *([] if recommends_static else cautions.plan_is_constant(plan)),
            *cautions.misses([run for run in asked if run.name not in named]),
            *cautions.losses(asked),
            *cautions.left_over(asked),
            *cautions.beyond_measurements(runs, recommended_run),
            *other_baseline,
            *left_out,
        ),
        flat_wins=bool(flat_wins),
        equal_slo=tuple(each for each in differences if each is not None),
        recommended=recommended,
        autoscaler=autoscaler,
    )


def shortfall(run: PolicyRun) -> float:
    """Return how far the worst tier is below its target, as a fraction; 0 if all meet it."""
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    return shortfall_of(run.summary.slo_attainment, targets)


def _baseline_run(by_name: dict[str, PolicyRun], stated: str | None) -> str:
    """Return the name of the run that savings count against, ``stated`` if it is among them."""
    usual = [stated, setting_of_today(by_name), TODAY, "flat-before", "flat-peak"]
    dearest = max(by_name.values(), key=lambda run: run.summary.cost_usd).name
    return next((name for name in usual if name is not None and name in by_name), dearest)


def _sort_key(run: PolicyRun) -> tuple[bool, float, float, int, str]:
    """Return the sort key of a run in the ranking: the best has the smallest key.

    At equal cost the simpler fleet is first: today's, a plan that never changes, a static oracle
    fleet, and last one that scales.
    """
    missing = 0.0 if run.meets_slo else shortfall(run)
    return (
        not run.meets_slo,
        missing,
        round(run.summary.cost_usd, 2),
        _moving_parts(run),
        run.name,
    )


def _moving_parts(run: PolicyRun) -> int:
    """Return how complex a run's fleet is, which decides between runs of equal cost; 0: simplest.

    0 is a static fleet such as today's, 1 a scaling policy that never changed the fleet. More than
    1 is a static fleet sized with future data, and ``MOVES`` a policy that scales.
    """
    if cautions.never_moves(run):
        return 1
    if not run.traits.flat:
        return MOVES
    if run.traits.hindsight:
        return 1 + run.traits.complexity
    return 0


def _headline(
    by_name: dict[str, PolicyRun],
    recommended: Recommended | None,
    baseline: str,
    *,
    answered: bool = False,
) -> str:
    """Return sentences on the recommended policy, its results in the window and its savings.

    ``answered`` leaves out savings and missed tiers, because an answer next to it has them.
    """
    if not any(run.summary.arrived for run in by_name.values()):
        return "No request arrives in this window, so there is nothing to compare. Choose another."
    if recommended is None:
        return (
            "No policy here is deployable: all use future data. Add a deployable one to the "
            "policies."
        )
    best, base = by_name[recommended.policy], by_name[baseline]
    spent = f"{hours(best.summary.gpu_hours)} GPU-hours for ${amount(best.summary.cost_usd)}"
    saved = "" if answered else cost_difference_words(best, base, usd=True)
    in_window = "In this window it meets every tier" if best.meets_slo else "In this window"
    sentence = f"{recommended.sentence} {in_window}: {spent}{saved}."
    missing = "" if answered else missed_tiers_sentence(best)
    if not recommended.qualifies:  # the most important fact comes first
        return " ".join(part for part in (sentence, missing) if part)
    return " ".join(part for part in (missing, sentence) if part)


def _run_of_plan(by_name: dict[str, PolicyRun], recommended: PolicyRun | None) -> PolicyRun | None:
    """Return the run that is reported as "the plan", or None.

    It is the recommended policy if that follows a plan. Else it is the best plan among the
    requested policies. A plan that is only a baseline does not count.
    """
    if recommended is not None and recommended.traits.plan is not None:
        return recommended
    asked = [run for run in by_name.values() if run.asked]
    name = plan_policy(run.name for run in sorted(asked, key=_sort_key))
    return None if name is None else by_name[name]


def hours(value: float) -> str:
    """Return hours as text with one decimal, or without from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
