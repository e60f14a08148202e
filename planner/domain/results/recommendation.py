"""Recommend a policy for each objective (methods.md D7, X1; HeteroScale, Algorithm 1).

All candidates are deployable and were replayed on the same requests: those of the backtest
windows, if there are any. A policy replaces a static fleet only if its saving is more than
chance. Among policies of about equal cost, those that pass the stress tests come first, and
then the simplest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from planner.domain.policy_backtest.backtest import (
    PolicyBacktest,
    Rehearsal,
    Tried,
)
from planner.domain.policy_backtest.significance import (
    CENT,
    least,
    saved,
    simple,
    worth_taking,
)
from planner.domain.policy_backtest.stress_tests import Harder
from planner.domain.policy_backtest.tuning import (
    TIE,
    below,
    slowest,
    targets_of,
)
from planner.domain.replay.backtest_windows import NEAR
from planner.domain.results.equal_attainment_savings import amount
from planner.domain.study import PolicyRun
from planner.policies.registry import simplicity, traits_of

LONGER, MORE = "longer answers", "more requests than are forecast"  # kinds of stress test
DAYS_BEFORE, WINDOW = "days before", "the window itself"  # basis of a choice


@dataclass(frozen=True, slots=True)
class Objective:
    """Objective of a recommendation, valued in a window or a backtest; smaller is better."""

    name: str
    words: str
    unit: str
    value: Callable[[PolicyRun], float | None]
    rehearsed: Callable[[Tried], float | None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Deployable policy with its results where the choice is made."""

    policy: str
    label: str
    values: dict[str, float | None]  # by objective
    meets: bool
    shortfall: float
    harder: Mapping[str, Harder] | None = None  # stress tests by kind
    at_least: bool = False  # headroom was not tested; it would cost no less
    paid: Tried | None = None  # backtest, if it was chosen there


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Recommended policy for an objective, with its value in the window and the reason."""

    objective: str
    policy: str
    label: str
    value: float | None
    unit: str
    reason: str
    unproven: str = ""  # a cheaper policy, and why it was rejected


def _per_mtok(gpu_hours: float, tokens: int) -> float | None:
    return gpu_hours / tokens * 1e6 if tokens else None


OBJECTIVES = (
    Objective(
        "cost", "least cost", "USD", lambda run: run.summary.cost_usd, lambda its: its.cost_usd
    ),
    Objective(
        "energy", "least energy", "kWh",
        lambda run: run.summary.energy_kwh, lambda its: its.energy_kwh,
    ),
    Objective(
        "carbon", "least carbon", "kg CO2e",
        lambda run: run.summary.carbon_kg, lambda its: its.carbon_kg,
    ),
    Objective(
        "throughput", "most tokens in time per GPU-hour", "GPU-hours/Mtok",
        lambda run: _per_mtok(run.summary.gpu_hours, run.summary.tokens_in_time),
        lambda its: _per_mtok(its.gpu_hours, its.tokens_in_time),
    ),
    Objective(
        "ttft", "fastest first token at p95", "ms",
        lambda run: slowest(run, "ttft_ms"), lambda its: its.ttft_ms,
    ),
    Objective(
        "e2e", "fastest answers at p95", "ms",
        lambda run: slowest(run, "e2e_ms"), lambda its: its.e2e_ms,
    ),
)  # fmt: skip
COST = OBJECTIVES[0]


def candidates(
    runs: Sequence[PolicyRun], rehearsal: Rehearsal | None
) -> tuple[tuple[Candidate, ...], str]:
    """Return the deployable policies as candidates, and what the choice is made on.

    The choice is made on the backtest if there was one, otherwise on the window. Oracle
    baselines, which use future data, are left out.
    """
    runs = [run for run in runs if not run.traits.knows_what_came and run.summary.arrived]
    if rehearsal is not None:
        parts = [(run, its) for run in runs if (its := rehearsal.of(run.name)) is not None]
        if parts:
            # If no policy has headroom for growth, judge all by the SLOs without it.
            roomy = any(its.does for _, its in parts)
            asked = rehearsal.room is not None
            able = tuple(
                _rehearsed(its, roomy, _harder(its.policy, rehearsal), asked) for _, its in parts
            )
            return able, DAYS_BEFORE
    return tuple(_replayed(run) for run in runs), WINDOW


def _harder(policy: str, rehearsal: Rehearsal) -> dict[str, Harder]:
    """Return the stress tests of a policy by kind."""
    tried = {LONGER: rehearsal.longer, MORE: rehearsal.unforeseen}
    return {
        days: harder
        for days, played in tried.items()
        for harder in played
        if harder.policy == policy
    }


def leading(parts: Sequence[PolicyBacktest]) -> set[str]:
    """Return the names of the policies that a recommendation for any objective would mention now.

    These are the best policy, a simpler one that does about as well, and the static fleet that
    they are compared with. Headroom for growth may still be untested. Policies that win by a
    stress test need no place here: ``outlasting`` makes headroom before it tests them.
    """
    roomy = any(its.does for its in parts)
    field, meets = _field([_rehearsed(its, roomy) for its in parts])
    names: set[str] = set()
    for objective in OBJECTIVES:
        valued = _valued(field, objective)
        if objective is COST and meets:
            valued, flat = _proven(valued, days=False)
            names |= set() if flat is None else {flat.policy}
        if valued:
            names |= {candidate.policy for candidate in _best(valued)[:2]}
    return names


def _rehearsed(
    its: PolicyBacktest,
    roomy: bool,
    harder: Mapping[str, Harder] | None = None,
    asked: bool = False,
) -> Candidate:
    values = {objective.name: objective.rehearsed(its.chosen) for objective in OBJECTIVES}
    meets = its.does if roomy else its.meets
    untried = asked and meets and its.chosen.room is None
    return Candidate(
        its.policy, its.label, values, meets, its.shortfall, harder, untried, its.chosen
    )


def _replayed(run: PolicyRun) -> Candidate:
    values = {objective.name: objective.value(run) for objective in OBJECTIVES}
    short = max(below(run.summary, targets_of(run)), run.lacks_spare)
    return Candidate(run.name, run.label, values, run.meets_slo and not run.lacks_spare, short)


def recommend(
    runs: Sequence[PolicyRun], able: Sequence[Candidate], on: str, *, days: bool = True
) -> tuple[Recommendation, ...]:
    """Return one recommendation per objective.

    The choice is among candidates that meet every SLO, or else among the nearest ones. ``days``
    has the meaning of ``worth_taking``.
    """
    if not able:
        return ()
    field, meets = _field(able)
    best = []
    for objective in OBJECTIVES:
        valued = _valued(field, objective)
        if valued:
            chosen, why, unproven = _choose(objective, valued, meets, len(able), days)
            run = next(run for run in runs if run.name == chosen.policy)
            if on == DAYS_BEFORE:
                why += "; on the days before"
            value = objective.value(run)
            words = Recommendation(
                objective.name, run.name, run.label, value, objective.unit, f"{why}.", unproven
            )
            best.append(words)
    return tuple(best)


Valued = list[tuple[float, Candidate]]


def _field(able: Sequence[Candidate]) -> tuple[list[Candidate], bool]:
    """Return the candidates to choose among, and whether they meet every SLO."""
    meeting = [candidate for candidate in able if candidate.meets]
    least = min((candidate.shortfall for candidate in able), default=0.0)
    return meeting or [
        candidate for candidate in able if candidate.shortfall <= least + NEAR
    ], bool(meeting)


def _valued(field: Sequence[Candidate], objective: Objective) -> Valued:
    return [
        (value, candidate)
        for candidate in field
        if (value := candidate.values[objective.name]) is not None
    ]


def _best(valued: Valued) -> tuple[Candidate, Candidate, Valued]:
    """Return the best candidate, the simplest of those about as good, and all of those."""
    best_value, best = min(valued, key=lambda pair: (pair[0], _complexity(pair[1])))
    near = [pair for pair in valued if pair[0] <= best_value * (1 + TIE)]
    return best, _simplest(near), near


def _simplest(near: Valued) -> Candidate:
    return min(near, key=lambda pair: (_complexity(pair[1]), pair[0]))[1]


def _proven(valued: Valued, days: bool) -> tuple[Valued, Candidate | None]:
    """Return the candidates worth leaving a static fleet for, and that static fleet.

    Return all candidates and None if there is no static fleet or no backtest.
    """
    paid = {
        candidate.policy: candidate.paid for _, candidate in valued if candidate.paid is not None
    }
    worth, simplest = worth_taking(paid, days=days), simple(paid)
    flat = next((candidate for _, candidate in valued if candidate.policy == simplest), None)
    return [pair for pair in valued if flat is None or pair[1].policy in worth], flat


def _unproven(every: Valued, proven: Valued, flat: Candidate) -> str:
    """Say by how much the cheapest rejected candidate was cheaper, and why that does not count.

    Return an empty text if no rejected candidate was cheaper.
    """
    cheapest = min(usd for usd, _ in proven)
    over = [pair for pair in every if pair not in proven and pair[0] < cheapest - CENT]
    if not over:
        return ""
    _, cheaper = min(over, key=lambda pair: pair[0])
    assert cheaper.paid is not None
    assert flat.paid is not None
    windows, usd = len(flat.paid.costs_usd), saved(cheaper.paid, flat.paid)
    words = f"{cheaper.label} was ${amount(usd)} cheaper"
    if usd >= least(flat.paid):
        return f"{words}, but dearer on one of the {windows}"
    unlike = "it" if windows == 1 else "all of them"
    return (
        f"{words}, too little to tell: on a window unlike {unlike}, a chance of 1 in "
        f"{windows + 1}, an instance too many outweighs what is less than "
        f"${amount(least(flat.paid))}"
    )


def _surer(simplest: Candidate, near: Valued) -> Candidate:
    """Return the candidate that does best in stress tests among those of about equal cost.

    It may be less simple than ``simplest`` if it misses at most half as much there. A static
    fleet gives way only to a candidate that passes a stress test, and otherwise is returned.
    Among candidates that miss equally, the cheapest in the stress tests counts, then the simplest.
    """
    days = {days for _, candidate in near for days in candidate.harder or ()}
    missed = {
        candidate.policy: sum(_short_on(candidate, its) for its in days) for _, candidate in near
    }
    before, still = missed[simplest.policy], traits_of(simplest.policy).flat

    def is_surer(candidate: Candidate) -> bool:
        does = any(_short_on(simplest, its) > NEAR >= _short_on(candidate, its) for its in days)
        return missed[candidate.policy] <= before / 2 and (does or not still)

    surer = [pair for pair in near if is_surer(pair[1])] if before > NEAR else []
    if still and not surer:
        return simplest
    most = min((missed[candidate.policy] for _, candidate in surer), default=before)
    alike = [pair for pair in surer or near if missed[pair[1].policy] <= most + NEAR]
    usd = min(_then_usd(candidate, days) for _, candidate in alike)
    return _simplest([pair for pair in alike if _then_usd(pair[1], days) <= usd * (1 + TIE)])


def _short_on(candidate: Candidate, days: str) -> float:
    """Return the shortfall in a stress test as a share of requests; 1 if it was not tried."""
    harder = (candidate.harder or {}).get(days)
    return 1.0 if harder is None else harder.shortfall


def _then_usd(candidate: Candidate, days: Iterable[str]) -> float:
    """Return the cost of all stress tests in dollars; infinite if one was not tried."""
    harder = candidate.harder or {}
    return sum(harder[its].then_usd if its in harder else inf for its in days)


def _lost(candidate: Candidate, chosen: Candidate) -> str:
    """Say in which stress tests ``candidate`` falls further short than ``chosen``.

    If it does equally well, say what it costs more there. The text is empty if neither applies.
    """
    days = chosen.harder or {}
    lost = [its for its in days if _short_on(candidate, its) > _short_on(chosen, its) + NEAR]
    if lost:
        does = all(_short_on(chosen, its) <= NEAR for its in lost)
        return f"{'does not follow' if does else 'falls further short with'} {' or '.join(lost)}"
    alike = all(_short_on(candidate, its) > _short_on(chosen, its) - NEAR for its in days)
    usd, its_usd = _then_usd(chosen, days), _then_usd(candidate, days)
    if alike and usd * (1 + TIE) < its_usd < inf:
        return f"costs {its_usd / usd - 1:.0%} more with {' or '.join(days)}"
    return ""


def _choose(
    objective: Objective, every: Valued, meets: bool, tried: int, days: bool
) -> tuple[Candidate, str, str]:
    valued, unproven = every, ""
    if objective is COST and meets:
        valued, flat = _proven(every, days)
        unproven = "" if flat is None else _unproven(every, valued, flat)
    best, simplest, near = _best(valued)
    chosen = _surer(simplest, near) if objective is COST else simplest
    value = chosen.values[objective.name]
    among = (
        f"{len(every)} of {tried} policies that can be run meet every tier"
        if meets
        else "no policy that can be run meets every tier; these fall short least"
    )
    why = f"{objective.words}, {among}"
    if (lost := _lost(simplest, chosen)) and simplest is not chosen:
        why += f"; {simplest.label} is simpler at about that, and {lost}"
    elif chosen is not best:
        less = _lost(best, chosen) or "is less simple"
        why += f"; {best.label} does no more than {TIE:.0%} better and {less}"
    elif len(valued) > 1:
        second, other = min(
            ((v, r) for v, r in valued if r is not chosen), key=lambda pair: pair[0]
        )
        if value and second > value * (1 + TIE):
            bound = "at least " if other.at_least else ""
            after = "next" if len(valued) == len(every) else "next of what is worth taking"
            why += f"; {after} is {other.label}, {bound}{second / value - 1:.0%} more"
    return chosen, f"{why}; {unproven}" if unproven else why, unproven


def _complexity(candidate: Candidate) -> tuple[tuple[int, int], str]:
    return simplicity(candidate.policy), candidate.policy
