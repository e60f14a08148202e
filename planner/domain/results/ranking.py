"""Rank the policies and write the recommendation (methods.md X1); ``cautions`` has warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.domain.policy_backtest.backtest import Rehearsal
from planner.domain.policy_backtest.tuning import (
    below,
    targets_of,
)
from planner.domain.results import warnings as cautions
from planner.domain.results.answer import (
    Answer,
    missed,
)
from planner.domain.results.equal_attainment_savings import (
    EqualSlo,
    amount,
    beside,
    equal_slo,
    saving,
)
from planner.domain.results.figures import BY_NAME
from planner.domain.results.recommendation import (
    DAYS_BEFORE,
    Recommendation,
    candidates,
    recommend,
)
from planner.domain.results.recommended_policy import (
    Recommended,
    recommended_of,
)
from planner.domain.serialise import (
    COLUMNS,
    KEY,
    shares_in_time,
)
from planner.domain.study import PolicyRun
from planner.domain.verification.sensitivity import Sure
from planner.policies.registry import the_plan

MOVES = 100  # sorts policies that scale after all static fleets


@dataclass(frozen=True, slots=True, eq=False)
class PolicyComparison:
    """Policies in comparison, with a recommendation.

    ``ranking`` is best first: policies that meet every tier by cost, then the others by the
    shortfall of their worst tier.
    """

    runs: tuple[PolicyRun, ...] = field(metadata={KEY: "policies", COLUMNS: BY_NAME})
    baselines: tuple[str, ...]  # in their order
    ranking: tuple[str, ...]
    baseline: str
    headline: str
    warnings: tuple[str, ...]
    flat_wins: bool  # a static fleet beats the plan: in the headline, else the first warning
    # Policies whose attainment differs from the baseline, compared at equal attainment.
    equal_slo: tuple[EqualSlo, ...] = ()
    recommended: Recommended | None = None  # None if no deployable policy was run
    recommendations: tuple[Recommendation, ...] = ()

    def surely(self, sure: tuple[Sure, ...]) -> PolicyComparison:
        """Return the comparison with the sensitivity of the recommendation."""
        assert self.recommended is not None
        return replace(self, recommended=replace(self.recommended, sure=sure))

    def saying(self, answer: Answer) -> PolicyComparison:
        """Return the comparison with the recommendation as an answer.

        The earlier sentence becomes the reason. The headline omits what the answer says.
        """
        take = self.recommended
        assert take is not None
        recommended = replace(
            take,
            sentence=answer.sentence,
            why=take.sentence,
            timetable=answer.timetable,
            what=answer.what,
            facts=answer.facts,
        )
        by_name = {run.name: run for run in self.runs}
        headline = _headline(by_name, take, self.baseline, answered=True)
        return replace(self, recommended=recommended, headline=headline)

    def run(self, name: str) -> PolicyRun:
        return next(run for run in self.runs if run.name == name)


def compare(
    runs: Sequence[PolicyRun],
    baseline: str | None = None,
    left_out: Sequence[str] = (),
    rehearsal: Rehearsal | None = None,
) -> PolicyComparison:
    """Rank the policies, recommend one and write the texts.

    Savings are relative to ``baseline``. If it was not run, they are relative to today's fleet,
    else the static fleet for the peak, else the dearest policy. ``left_out`` has a sentence for
    every policy that could not be run. The recommendation uses ``rehearsal`` if there is one.
    """
    by_name = {run.name: run for run in runs}
    ranking = tuple(run.name for run in sorted(runs, key=_rank))
    usual = [baseline, "today", "flat-peak"]
    chosen = next((name for name in usual if name in by_name), None)
    if chosen is None:
        chosen = max(runs, key=lambda run: run.summary.cost_usd).name
    other = []
    if baseline not in (None, chosen):
        counts = cautions.lower_first(by_name[chosen].label)
        other = [f"{baseline} was not run, so savings count against {counts}."]
    able, on = candidates(runs, rehearsal)
    by_objective = recommend(runs, able, on, days=rehearsal is None or rehearsal.days)
    take = by_name[by_objective[0].policy] if by_objective else None
    base = by_name[chosen]
    plan = _planned(by_name, take)
    flat_wins = cautions.flat_beats(by_name, plan)
    still = take is not None and take.traits.flat  # the headline covers it then
    recommended = None
    if take is not None:
        recommended = replace(
            recommended_of(take, runs, rehearsal, on, by_objective[0].unproven),
            equal_slo_saving=saving(take, base),
        )
    asked = [run for run in runs if run.asked]
    return PolicyComparison(
        runs=tuple(runs),
        baselines=tuple(by_name),
        ranking=ranking,
        baseline=chosen,
        headline=_headline(by_name, recommended, chosen),
        warnings=(
            *([] if still else flat_wins),
            *(cautions.would_have(runs, take) if on == DAYS_BEFORE else ()),
            # Warnings on the recommended policy come before those on others.
            *(
                cautions.on_harder_days(recommended, rehearsal)
                if recommended is not None and recommended.rehearsed and rehearsal is not None
                else ()
            ),
            *cautions.no_spare(runs),
            *([] if still else cautions.plan_is_still(plan)),
            *cautions.misses([run for run in asked if run is not take]),  # see the headline
            *cautions.losses(asked),
            *cautions.left_over(asked),
            *cautions.beyond_measurements(runs, take),
            *other,
            *left_out,
            *(rehearsal.notes if rehearsal is not None else ()),
        ),
        flat_wins=bool(flat_wins),
        equal_slo=tuple(
            difference for run in runs if (difference := equal_slo(run, base)) is not None
        ),
        recommended=recommended,
        recommendations=by_objective if len(runs) > 1 else (),
    )


def shortfall(run: PolicyRun) -> float:
    """Return how far the worst tier is below its target, as a fraction; 0 if all meet it."""
    return below(run.summary, targets_of(run))


def _rank(run: PolicyRun) -> tuple[bool, float, float, int, str]:
    """Return the sort key of a run.

    At equal cost the simpler fleet is first: today's, a plan that never changes, a static oracle
    fleet, and last one that scales.
    """
    missing = 0.0 if run.meets_slo else shortfall(run)
    return (not run.meets_slo, missing, round(run.summary.cost_usd, 2), _stirs(run), run.name)


def _stirs(run: PolicyRun) -> int:
    if cautions.never_moves(run):
        return 1
    if not run.traits.flat:
        return MOVES
    return 1 + run.traits.complexity if run.traits.hindsight else 0


def _headline(
    by_name: dict[str, PolicyRun],
    recommended: Recommended | None,
    baseline: str,
    *,
    answered: bool = False,
) -> str:
    """Return the recommended policy, its results in the window and its savings, in words.

    ``answered``: an answer next to it has the savings and the missed tiers.
    """
    if not any(run.summary.arrived for run in by_name.values()):
        return "No request arrives in this window, so there is nothing to compare; choose another."
    if recommended is None:
        return (
            "No policy here can be run: all of them know what came. Add one that can to the "
            "policies, to have one to take."
        )
    best, base = by_name[recommended.policy], by_name[baseline]
    before = recommended.rehearsed is not None
    if not before and not best.meets_slo:
        return (
            f"No policy that can be run meets every tier. {best.label} comes closest, "
            f"{shortfall(best) * 100:.2g} points short; add capacity or loosen a limit."
        )
    spent = f"{hours(best.summary.gpu_hours)} GPU-hours for ${amount(best.summary.cost_usd)}"
    saved = "" if answered else beside(best, base, usd=True)
    unsure = _unsure(recommended)
    if before:
        in_window = "In this window it meets every tier" if best.meets_slo else "In this window"
        sentence = f"{recommended.sentence} {in_window}: {spent}{saved}.{unsure}"
        return " ".join(part for part in ("" if answered else missed(best), sentence) if part)
    if best.name == baseline:
        return f"{best.label} is the cheapest to run that meets every tier: {spent}.{unsure}"
    return f"{best.label} meets every tier at the least cost: {spent}{saved}.{unsure}"


def _unsure(recommended: Recommended) -> str:
    """Return the sensitivity tests in which a policy misses a tier that it meets here."""
    if not recommended.meets_slo:
        return ""
    misses = [
        f"{sure.what} ({shares_in_time(sure.attainment)})"
        for sure in recommended.sure
        if not sure.meets_slo
    ]
    return f" It is not sure: it misses a tier with {' and with '.join(misses)}." if misses else ""


def _planned(by_name: dict[str, PolicyRun], take: PolicyRun | None) -> PolicyRun | None:
    """Return the run that the texts call the plan.

    It is the recommended policy if that follows a plan, so that all texts mean the same one. Else
    it is the best plan among the requested policies. A plan that is only a baseline does not
    count.
    """
    if take is not None and take.traits.plan is not None:
        return take
    asked = [run for run in by_name.values() if run.asked]
    name = the_plan(run.name for run in sorted(asked, key=_rank))
    return None if name is None else by_name[name]


def hours(value: float) -> str:
    """Return hours as in the table, without decimals from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
