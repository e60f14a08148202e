"""The verdict on policies (methods.md X1): their ranking, and what to do, at what cost; what else
is to be known of them says ``cautions``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.policies.registry import the_plan
from planner.studies.checks.confidence import Sure
from planner.studies.plain import COLUMNS, KEY, shares_in_time
from planner.studies.rehearsal.rehearsal import Rehearsal
from planner.studies.rehearsal.tuning import below, targets_of
from planner.studies.results import cautions
from planner.studies.results.answer import Answer, missed
from planner.studies.results.curation import DAYS_BEFORE, Recommendation, candidates, recommend
from planner.studies.results.equal_slo import (
    EqualSlo,
    amount,
    beside,
    equal_slo,
    saving,
)
from planner.studies.results.figures import BY_NAME
from planner.studies.results.recommended import Recommended, recommended_of
from planner.studies.values import PolicyRun

MOVES = 100  # after every fleet that does not


@dataclass(frozen=True, slots=True, eq=False)
class PolicyComparison:
    """Policies side by side; ``ranking`` is best first: those that meet every tier by cost, then
    the others by how far their worst tier falls short."""

    runs: tuple[PolicyRun, ...] = field(metadata={KEY: "policies", COLUMNS: BY_NAME})
    baselines: tuple[str, ...]  # in their order
    ranking: tuple[str, ...]
    baseline: str
    headline: str
    warnings: tuple[str, ...]
    flat_wins: bool  # a flat fleet beats the plan: the headline says so, else the first warning
    # Those that do not serve as well as the baseline, or better, at its attainment.
    equal_slo: tuple[EqualSlo, ...] = ()
    recommended: Recommended | None = None  # what to take: None where nothing that ran can be
    recommendations: tuple[Recommendation, ...] = ()

    def surely(self, sure: tuple[Sure, ...]) -> PolicyComparison:
        """With how sure the recommendation is."""
        assert self.recommended is not None
        return replace(self, recommended=replace(self.recommended, sure=sure))

    def saying(self, answer: Answer) -> PolicyComparison:
        """With the recommendation as what to do; what it was chosen by stands beside it, and the
        headline leaves out what the answer says."""
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
    """Rank the policies, name the one to take and say in words what follows. ``baseline`` is what
    savings count against; where it was not run: today's fleet, else flat at peak, else the dearest.
    ``left_out`` has a sentence for every policy that could not be run; what to take is chosen by
    ``rehearsal`` where there is one."""
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
    still = take is not None and take.traits.flat  # then the headline says it, and first
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
            # What is to be taken comes before what others do.
            *(
                cautions.on_harder_days(recommended, rehearsal)
                if recommended is not None and recommended.rehearsed and rehearsal is not None
                else ()
            ),
            *cautions.no_spare(runs),
            *([] if still else cautions.plan_is_still(plan)),
            *cautions.misses([run for run in asked if run is not take]),  # that, the headline says
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
    """How far the worst tier's attainment is below its target, as a fraction; 0 where all meet."""
    return below(run.summary, targets_of(run))


def _rank(run: PolicyRun) -> tuple[bool, float, float, int, str]:
    """At equal cost the simpler fleet comes first: today's, a plan that never moves, a flat one
    that takes hindsight, and last one that moves."""
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
    """What to take, what it does in the window, and what that saves; ``answered``: beside an answer
    that says what it saves, and which tiers it misses."""
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
    """What would make it miss a tier that it meets here."""
    if not recommended.meets_slo:
        return ""
    misses = [
        f"{sure.what} ({shares_in_time(sure.attainment)})"
        for sure in recommended.sure
        if not sure.meets_slo
    ]
    return f" It is not sure: it misses a tier with {' and with '.join(misses)}." if misses else ""


def _planned(by_name: dict[str, PolicyRun], take: PolicyRun | None) -> PolicyRun | None:
    """The run that sentences call the plan: what is recommended, where that follows one, so that no
    sentence speaks of another; else the best of those asked for. A plan that only stands beside
    others as a baseline is none."""
    if take is not None and take.traits.plan is not None:
        return take
    asked = [run for run in by_name.values() if run.asked]
    name = the_plan(run.name for run in sorted(asked, key=_rank))
    return None if name is None else by_name[name]


def hours(value: float) -> str:
    """As the table beside the sentence has them: no decimals from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
