"""The verdict on policies (methods.md X1): their ranking, and sentences on who meets the SLOs,
at what cost, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.policies.registry import the_plan
from planner.studies.checks.confidence import Sure
from planner.studies.plain import COLUMNS, KEY
from planner.studies.rehearsal.rehearsal import Rehearsal
from planner.studies.rehearsal.tuning import below, targets_of
from planner.studies.results.accounts import plan_says
from planner.studies.results.answer import Answer, missed
from planner.studies.results.curation import DAYS_BEFORE, Recommendation, candidates, recommend
from planner.studies.results.equal_slo import (
    NOTHING,
    EqualSlo,
    amount,
    apart,
    beside,
    equal_slo,
    saving,
)
from planner.studies.results.figures import BY_NAME
from planner.studies.results.recommended import Recommended, recommended_of
from planner.studies.values import PolicyRun
from simulation.performance.profile import BEYOND

MOVES = 100  # after every fleet that does not
AFTER = 0.01  # share of the cost after the window from which on it is said


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
        told = replace(
            take,
            sentence=answer.sentence,
            why=take.sentence,
            timetable=answer.timetable,
            what=answer.what,
            facts=answer.facts,
        )
        by_name = {run.name: run for run in self.runs}
        headline = _headline(by_name, take, self.baseline, answered=True)
        return replace(self, recommended=told, headline=headline)

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
    other = (
        [f"{baseline} was not run, so savings count against {_lower(by_name[chosen].label)}."]
        if baseline not in (None, chosen)
        else []
    )
    able, on = candidates(runs, rehearsal)
    by_objective = recommend(runs, able, on, days=rehearsal is None or rehearsal.days)
    take = by_name[by_objective[0].policy] if by_objective else None
    base = by_name[chosen]
    plan = _planned(by_name, take)
    flat_wins = _flat_wins(by_name, plan)
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
            *(_would_have(runs, take) if on == DAYS_BEFORE else ()),
            # What is to be taken comes before what others do.
            *(
                _on_harder_days(recommended, rehearsal)
                if recommended is not None and recommended.rehearsed and rehearsal is not None
                else ()
            ),
            *([] if still else _still(plan)),
            *_misses([run for run in asked if run is not take]),  # that, the headline says
            *_lost(asked),
            *_left(asked),
            *_beyond_measurements(runs, take),
            *other,
            *left_out,
            *(rehearsal.notes if rehearsal is not None else ()),
        ),
        flat_wins=bool(flat_wins),
        equal_slo=tuple(found for run in runs if (found := equal_slo(run, base)) is not None),
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
    if _never_moves(run):
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
        said = "In this window it meets every tier" if best.meets_slo else "In this window"
        told = f"{recommended.sentence} {said}: {spent}{saved}.{unsure}"
        return " ".join(part for part in ("" if answered else missed(best), told) if part)
    if best.name == baseline:
        return f"{best.label} is the cheapest to run that meets every tier: {spent}.{unsure}"
    return f"{best.label} meets every tier at the least cost: {spent}{saved}.{unsure}"


def _unsure(recommended: Recommended) -> str:
    """What would make it miss a tier that it meets here."""
    if not recommended.meets_slo:
        return ""
    told = [
        f"{one.what} ("
        + ", ".join(f"{share:.1%} of {t}" for t, share in one.attainment.items() if share)
        + " in time)"
        for one in recommended.sure
        if not one.meets_slo
    ]
    return f" It is not sure: it misses a tier with {' and with '.join(told)}." if told else ""


def _planned(by_name: dict[str, PolicyRun], take: PolicyRun | None) -> PolicyRun | None:
    """The run that sentences call the plan: what is recommended, where that follows one, so that no
    sentence speaks of another; else the best of those asked for. A plan that only stands beside
    others as a baseline is none."""
    if take is not None and take.traits.plan is not None:
        return take
    asked = [run for run in by_name.values() if run.asked]
    name = the_plan(run.name for run in sorted(asked, key=_rank))
    return None if name is None else by_name[name]


def _never_moves(run: PolicyRun) -> bool:
    """A plan that asks for the same fleet in every period, and has no rule beside it."""
    if run.plan is None or run.traits.beyond:
        return False
    return bool((run.plan.target == run.plan.target[0]).all())


def _flat_wins(by_name: dict[str, PolicyRun], planned: PolicyRun | None) -> list[str]:
    """A plan that a flat fleet beats says so (X1), before anything else."""
    if planned is None or not planned.summary.arrived:
        return []
    ties = _never_moves(planned)  # then a flat fleet of that cost is the plan, and beats nothing
    better = [
        run
        for run in by_name.values()
        if run.traits.flat
        and run.meets_slo
        and (
            not planned.meets_slo
            or round(run.summary.cost_usd, 2) < round(planned.summary.cost_usd, 2)
            or (not ties and round(run.summary.cost_usd, 2) == round(planned.summary.cost_usd, 2))
        )
    ]
    if not better:
        return []
    # One that can be run is the better news, if not the cheaper.
    flat = min(better, key=lambda run: (run.traits.knows_what_came, run.summary.cost_usd))
    instances = sum(pool.initial for pool in flat.fleet.pools)
    its_usd, plan_usd = amount(flat.summary.cost_usd), amount(planned.summary.cost_usd)
    hindsight = ", sized in hindsight" if flat.traits.knows_what_came else ""
    what = (
        f"A flat fleet of {instances:,} instance{'s' * (instances != 1)} beats the plan: it meets "
        f"every tier for ${its_usd} "
        f"({_lower(flat.label)}{hindsight})"
    )
    if planned.meets_slo and its_usd == plan_usd:
        return [f"{what}, no more than the plan, and never moves."]
    if planned.meets_slo:
        return [f"{what}; the plan costs ${plan_usd}.{_unequal(flat, planned)}"]
    return [f"{what}; the plan costs ${plan_usd} and misses a tier."]


def _unequal(flat: PolicyRun, planned: PolicyRun) -> str:
    """Equal SLO means attainment of every tier within 0.2 points (X4); where it is not, say so."""
    found = apart(flat, planned)
    if found is None:
        return ""
    tier, its, plans = found
    return (
        f" They do not serve equally well: of {tier}, {its:.1%} are in time with the flat fleet"
        f"{_in_worst_hour(flat, tier)} and {plans:.1%} with the plan"
        f"{_in_worst_hour(planned, tier)}."
    )


def _in_worst_hour(run: PolicyRun, tier: str) -> str:
    share = run.summary.worst_hour.get(tier)
    return "" if share is None else f" ({share:.1%} in its worst hour)"


def _still(planned: PolicyRun | None) -> list[str]:
    if planned is None or not planned.meets_slo or not _never_moves(planned):
        return []
    return ["The plan never moves: a flat fleet of the same size does what it does."]


def _would_have(runs: Sequence[PolicyRun], take: PolicyRun | None) -> list[str]:
    """Where what is recommended misses a tier, the cheapest to run that did not."""
    if take is None or take.meets_slo:
        return []
    did = [run for run in runs if run.meets_slo and not run.traits.knows_what_came]
    if not did:
        return ["Nothing that can be run meets every tier in this window."]
    best = min(did, key=lambda run: (run.summary.cost_usd, run.name))
    more = best.summary.cost_usd / take.summary.cost_usd - 1 if take.summary.cost_usd else 0.0
    costs = f"{abs(more):.0%} {'more' if more >= 0 else 'less'} than what is recommended"
    return [
        f"{best.label} met every tier in this window, for ${amount(best.summary.cost_usd)}, "
        f"{costs}: nothing of the days before told that it would take that."
    ]


def _misses(runs: Sequence[PolicyRun]) -> list[str]:
    out = []
    for run in runs:
        targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
        missed = [
            f"{tier} ({attainment:.2%} in time, {targets[tier] * 100:g}% wanted)"
            for tier, attainment in run.summary.slo_attainment.items()
            if attainment is not None and not run.summary.slo_met[tier]
        ]
        if missed:
            out.append(f"{run.label} misses {', '.join(missed)}.")
    return out


def _lost(runs: Sequence[PolicyRun]) -> list[str]:
    """What was lost, once of all policies that lost the same."""
    labels: dict[str, list[str]] = {}
    for run in runs:
        left = run.summary.rejected + run.summary.unfinished
        if left:
            reasons = "; ".join(f"{n:,} {why}" for why, n in run.summary.reject_reasons.items())
            lost = (
                f"of {run.summary.arrived:,} requests {run.summary.rejected:,} were "
                f"rejected{f' ({reasons})' if reasons else ''} and {run.summary.unfinished:,} "
                "did not finish."
            )
            labels.setdefault(lost, []).append(run.label)
    return [
        f"{label}{f' and {len(others)} more, each' if others else ''}: {lost}"
        for lost, (label, *others) in labels.items()
    ]


def _left(runs: Sequence[PolicyRun]) -> list[str]:
    """Work that the window left, and what it cost, where its plan does not tell that already."""
    out = []
    for run in runs:
        told = run.summary
        if told.after_cost_usd > AFTER * told.cost_usd and plan_says(run) is None:
            out.append(
                f"{run.label}: ${amount(told.after_cost_usd)} of its ${amount(told.cost_usd)} is "
                "for work that was left when the window ended."
            )
        if told.not_due:
            out.append(
                f"{run.label}: {told.not_due:,} requests were neither done nor late when the "
                "replay ended; they count in no attainment."
            )
    return out


def _on_harder_days(recommended: Recommended, rehearsal: Rehearsal) -> Iterator[str]:
    """That the one to take does not follow answers as they grow, and what does, with what that is
    more. Costs are those of the days before, where both met every tier."""
    tried = rehearsal.longer
    own = next((one for one in tried if one.policy == recommended.policy), None)
    if own is None or own.meets:
        return
    shares = {tier: share for tier, share in own.attainment.items() if share is not None}
    worst = min(shares, key=lambda tier: shares[tier])
    said = (
        f"{own.label} does not follow answers as they grow: had they been {own.times:g} times as "
        f"long from the middle of the last window rehearsed on, {shares[worst]:.1%} of {worst} had "
        "been in time"
    )
    best = next((one for one in tried if one.meets), None)
    if best is None:
        yield f"{said}; of what met every tier on the days before nothing would have done."
        return
    more = best.cost_usd / own.cost_usd - 1 if own.cost_usd else 0.0
    costs = f"{abs(more):.0%} {'more' if more > 0 else 'less'}"
    if abs(more) < NOTHING:
        costs = "as much"
    yield (
        f"{said}. Where that may happen take {best.label}, which does then: {costs} on the days "
        "before."
    )


def _beyond_measurements(runs: Sequence[PolicyRun], take: PolicyRun | None) -> list[str]:
    """Where profiles had to guess: said once, of what is to be taken if that leans on it, else of
    the run that does most."""

    def share(run: PolicyRun) -> float:
        return run.summary.outside_iterations / max(run.summary.iterations, 1)

    worst = max(runs, key=share)
    if take is not None and share(take) >= BEYOND:
        worst = take
    if share(worst) < BEYOND:
        return []
    return [
        f"{worst.label}: {share(worst):.0%} of iterations ran outside the rows their profiles were "
        "measured on; their times are extrapolated."
    ]


def hours(value: float) -> str:
    """As the table beside the sentence has them: no decimals from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _lower(label: str) -> str:
    return label[:1].lower() + label[1:]
