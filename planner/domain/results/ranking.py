"""Rank the policies of a comparison, and describe the recommended one (methods.md X1).

"The plan" is the recommended policy if it follows a plan, else the best one that does. Today's
autoscaler is the policy with the label "today" in the scenario, such as "hpa:today".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.domain.formats import counted, figure, lower_first, signed_percent
from planner.domain.recommend.rule import Choice
from planner.domain.recommend.test_days import TestDay
from planner.domain.recommend.trials import shortfall as shortfall_of
from planner.domain.results import warnings
from planner.domain.results.answer import DAY_S, Answer, missed_tiers_sentence
from planner.domain.results.equal_attainment_savings import (
    MIN_SHOWN_SHARE,
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
from planner.policies.base import SEPARATOR, TODAY
from planner.policies.registry import plan_policy

COMPLEXITY_OF_SCALING = 100  # above that of all static fleets


@dataclass(frozen=True, slots=True, eq=False)
class PolicyComparison:
    """The compared policies, ranked, with a recommendation.

    ``ranking`` is best first: policies that meet every tier by cost, then the others by the
    shortfall of their worst tier.
    """

    runs: tuple[PolicyRun, ...] = field(metadata={KEY: "policies", COLUMNS: BY_NAME})
    baselines: tuple[str, ...]  # keys of all policies, any of which may be the baseline
    ranking: tuple[str, ...]
    baseline: str
    headline: str
    warnings: tuple[str, ...]
    flat_wins: bool  # whether a static fleet meets every SLO at no higher cost than the plan
    # Policies whose attainment differs from the baseline, compared at equal attainment.
    equal_slo: tuple[EqualSlo, ...] = ()
    recommended: Recommended | None = None  # None if no deployable policy was run
    autoscaler: str = ""  # today's autoscaler against the recommended policy, in sentences

    def with_answer(self, answer: Answer) -> PolicyComparison:
        """Return the comparison with ``answer`` as the text of its recommendation.

        The sentence that it has so far becomes the reason (``why``). The headline no longer has
        what the answer says.
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
    level: int  # of assurance, as index in LEVELS


def compare(
    runs: Sequence[PolicyRun],
    baseline: str | None = None,
    left_out: Sequence[str] = (),
    chosen: ChoiceOfPolicy | None = None,
) -> PolicyComparison:
    """Rank the simulated policies, describe the chosen one, and write the headline and warnings.

    Savings are relative to the policy ``baseline``; None, or if it was not run: to the first usual
    baseline that was. ``left_out`` has a sentence for every policy that could not be run.
    ``chosen`` is None if no policy can be deployed.
    """
    # The run that savings are relative to, and that of the chosen policy.
    by_name = {run.name: run for run in runs}
    baseline_run = by_name[_baseline_run(by_name, baseline)]
    chosen_run = None if chosen is None else by_name.get(chosen.choice.candidate.policy)
    recommended, autoscaler = None, ""
    if chosen_run is not None and chosen is not None:
        autoscaler = _autoscaler_sentences(by_name, chosen_run, qualifies=chosen.choice.qualifies)
        recommended = recommended_of(chosen_run, runs, chosen.choice, chosen.days, chosen.level)
        recommended = replace(recommended, equal_slo_saving=saving(chosen_run, baseline_run))
    better_static = warnings.static_beats_plan(by_name, _run_of_plan(by_name, chosen_run))
    run_warnings = list(
        _policy_warnings(by_name, chosen_run, better_static, any_deployable=chosen is not None)
    )
    if baseline not in (None, baseline_run.name):
        label = lower_first(baseline_run.label)
        run_warnings.append(f"{baseline} was not run, so savings count against {label}.")
    differences = [equal_slo(run, baseline_run) for run in runs]
    return PolicyComparison(
        runs=tuple(runs),
        baselines=tuple(by_name),
        ranking=tuple(run.name for run in sorted(runs, key=_sort_key)),
        baseline=baseline_run.name,
        headline=_headline(by_name, recommended, baseline_run.name),
        warnings=(*run_warnings, *left_out),
        flat_wins=bool(better_static),
        equal_slo=tuple(row for row in differences if row is not None),
        recommended=recommended,
        autoscaler=autoscaler,
    )


def _policy_warnings(
    by_name: dict[str, PolicyRun],
    best: PolicyRun | None,
    better_static: Sequence[str],
    *,
    any_deployable: bool,
) -> Iterator[str]:
    """Yield the warnings on the simulated policies, by name; ``best`` is the recommended one.

    ``better_static`` is the warning that a static fleet beats the plan, if one does.
    ``any_deployable``: at least one policy can be deployed.
    """
    runs = list(by_name.values())
    requested = [run for run in runs if run.asked]
    # The headline already describes a recommended static fleet.
    about_plan = best is None or not best.traits.flat
    if about_plan:
        yield from better_static
    current = [run for run in runs if run is best or run.traits.needs_current_fleet]
    yield from warnings.no_spare(current if any_deployable else runs)
    yield from warnings.over_power(runs)
    if about_plan:
        yield from warnings.plan_is_constant(best or _run_of_plan(by_name, best))
    # What the recommended policy and today's autoscaler miss is in the headline or next to it.
    described = set() if best is None else {best.name, _autoscaler_of_today(by_name)}
    yield from warnings.misses([run for run in requested if run.name not in described])
    yield from warnings.losses(requested)
    yield from warnings.unfinished_work_warnings(requested)
    yield from warnings.extrapolation_warning(runs, best)


def shortfall(run: PolicyRun) -> float:
    """Return how far the attainment of the worst tier is below its target; 0: all meet it."""
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    return shortfall_of(run.summary.slo_attainment, targets)


def _baseline_run(by_name: dict[str, PolicyRun], stated: str | None) -> str:
    """Return the name of the baseline of savings: ``stated`` if it was simulated.

    Otherwise it is the first of these that was: today's autoscaler, today's fleet, the static fleet
    sized on history, and the static fleet for the peak. If none was, it is the dearest policy.
    """
    for name in (stated, _autoscaler_of_today(by_name), TODAY, "flat-before", "flat-peak"):
        if name is not None and name in by_name:
            return name
    return max(by_name.values(), key=lambda run: run.summary.cost_usd).name


def _sort_key(run: PolicyRun) -> tuple[bool, float, float, int, str]:
    """Return the sort key of a run: (misses an SLO, shortfall, dollars, complexity, name).

    The best run has the smallest key.
    """
    missing = 0.0 if run.meets_slo else shortfall(run)
    usd = round(run.summary.cost_usd, 2)
    return not run.meets_slo, missing, usd, _complexity(run), run.name


def _complexity(run: PolicyRun) -> int:
    """Return how complex a policy is, which decides between policies of equal cost.

    0 is a static fleet such as today's, 1 a plan that never changes the fleet. A static fleet sized
    with future data has more than 1, and a policy that scales ``COMPLEXITY_OF_SCALING``.
    """
    if warnings.never_moves(run):
        return 1
    if not run.traits.flat:
        return COMPLEXITY_OF_SCALING
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

    ``answered``: leave out savings and missed tiers, because the answer has them. Without requests
    or a recommended policy, return a sentence that says so.
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
    missed = "" if answered else missed_tiers_sentence(best)
    # The most important fact comes first: no policy passes the test days, or else missed tiers.
    if recommended.qualifies:
        return f"{missed} {sentence}".lstrip()
    return f"{sentence} {missed}".rstrip()


def _run_of_plan(by_name: dict[str, PolicyRun], recommended: PolicyRun | None) -> PolicyRun | None:
    """Return the run that is reported as "the plan"; None if no requested policy follows a plan.

    It is the recommended policy if that follows a plan, else the best requested policy that does.
    """
    if recommended is not None and recommended.traits.plan is not None:
        return recommended
    requested = [run for run in by_name.values() if run.asked]
    name = plan_policy(run.name for run in sorted(requested, key=_sort_key))
    return None if name is None else by_name[name]


def hours(value: float) -> str:
    """Return hours as text with one decimal, or with none from 100 hours on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _autoscaler_of_today(policies: Iterable[str]) -> str | None:
    """Return the key of today's autoscaler, such as "hpa:today"; None if ``policies`` lack it."""
    for key in policies:
        _, _, label = key.partition(SEPARATOR)
        if label == TODAY:
            return key
    return None


def _autoscaler_sentences(
    by_name: dict[str, PolicyRun], recommended: PolicyRun, *, qualifies: bool
) -> str:
    """Return what today's autoscaler costs and misses, and whether ``recommended`` does better.

    ``qualifies``: the recommended policy passes every required test day. Return "" if no policy is
    today's autoscaler.
    """
    key = _autoscaler_of_today(by_name)
    if key is None:
        return ""
    today = by_name[key]
    # Costs are per day, and a shorter window shows only part of one.
    rate = " at this window's rate" if today.summary.duration_s < DAY_S else ""
    cost_today = f"{_cost_per_day(today)}{rate}"
    text = f"Your autoscaler ({today.traits.label}) costs {cost_today} and {_result(today)}."
    if recommended is today:
        return f"{text} It is the recommended policy."
    today_usd = _usd_per_day(today)
    extra_share = _usd_per_day(recommended) / today_usd - 1 if today_usd else 0.0
    change = f" ({signed_percent(extra_share, 0)})" if abs(extra_share) >= MIN_SHOWN_SHARE else ""
    cost = f"{_cost_per_day(recommended)}{change}"
    label = lower_first(recommended.label)
    text += f" The recommended policy, {label}, costs {cost} and {_result(recommended)}."
    if not recommended.meets_slo:
        return f"{text}{_cheapest_feasible_sentence(by_name, today)}"
    if today.meets_slo and extra_share >= MIN_SHOWN_SHARE and qualifies:
        return f"{text} It is preferred for its results on the test days."
    return text


def _cheapest_feasible_sentence(by_name: dict[str, PolicyRun], today: PolicyRun) -> str:
    """Return the cheapest policy that meets every SLO, after a space; "": it is ``today``."""
    deployable = [run for run in by_name.values() if not run.traits.uses_future_data]
    feasible = [run for run in deployable if run.meets_slo]
    if not feasible:
        return " No policy in this comparison meets every SLO."
    cheapest = min(feasible, key=lambda run: run.summary.cost_usd)
    if cheapest is today:
        return ""
    return f" {cheapest.label} costs {_cost_per_day(cheapest)} and {_result(cheapest)}."


def _usd_per_day(run: PolicyRun) -> float:
    """Return the dollars per day of a run, without costs that are paid once."""
    return run.summary.recurring_usd * DAY_S / run.summary.duration_s


def _cost_per_day(run: PolicyRun) -> str:
    """Return the cost of a run per day, such as "$120 a day"."""
    return f"{figure(_usd_per_day(run), '$')} a day"


def _result(run: PolicyRun) -> str:
    """Return in words which tiers a run misses, or that it meets every SLO."""
    missed = warnings.missed_tiers(run)
    if missed:
        return f"misses {'; '.join(missed)}"
    hours = sum(run.summary.missed_hours.values())
    below = f", with {counted(hours, 'hour')} below a target" if hours else ""
    return f"meets every SLO{below}"
