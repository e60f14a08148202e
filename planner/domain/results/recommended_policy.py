"""Describe the recommended policy: its parameters, results and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.domain.policy_backtest.backtest import (
    PolicyBacktest,
    Rehearsal,
    RehearsalWindow,
    Tried,
)
from planner.domain.results.answer import (
    Fact,
    Timetable,
    plan_answer,
)
from planner.domain.results.recommendation import DAYS_BEFORE
from planner.domain.serialise import shares_in_time
from planner.domain.study import (
    PolicyRun,
    Study,
)
from planner.domain.verification.sensitivity import Sure
from planner.optimizer.problem import ScalingPlan
from planner.policies.registry import traits_of

NOTHING = 0.005  # a smaller share of a cost rounds to 0%
HINDSIGHT, TOLD = "sized in hindsight", "told what came"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Oracle baseline, with the word that marks it."""

    policy: str
    label: str
    word: str
    cost_usd: float
    gpu_hours: float
    meets_slo: bool


@dataclass(frozen=True, slots=True)
class Begins:
    """Replicas of one pool at the beginning."""

    model: str
    region: str
    gpu: str
    tp: int
    role: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Recommended:
    """Recommended policy.

    ``parameters`` are the values chosen in the backtest. ``rehearsed`` is None if the policy was
    chosen on the window that it is judged on.
    """

    policy: str
    label: str
    parameters: dict[str, float]
    follows_plan: bool  # its next decision follows the plan
    begins: tuple[Begins, ...]
    sentence: str
    chosen_on: str
    windows: tuple[RehearsalWindow, ...]
    rehearsed: Tried | None
    cost_usd: float
    gpu_hours: float
    attainment: dict[str, float | None]
    meets_slo: bool
    equal_slo_saving: float | None
    yardsticks: tuple[Yardstick, ...]
    sure: tuple[Sure, ...] = ()
    why: str = ""  # reason of the choice
    timetable: Timetable | None = None
    what: str = ""  # the action, without its effects
    facts: tuple[Fact, ...] = ()  # effects of the action


@dataclass(frozen=True, slots=True)
class RecommendedPlan:
    """Plan recommended without a comparison.

    Its attainment is known only if a replay verified it.
    """

    policy: str
    label: str
    follows_plan: bool
    sentence: str
    cost_usd: float
    gpu_hours: float
    attainment: dict[str, float | None] | None
    meets_slo: bool | None
    equal_slo_saving: float | None
    timetable: Timetable


def recommended_plan(
    study: Study,
    plan: ScalingPlan,
    cost_usd: float,
    gpu_hours: float,
    verified: PolicyRun | None,
) -> RecommendedPlan:
    """Return the recommendation of a plan.

    ``cost_usd`` and ``gpu_hours`` are the plan's; ``verified`` is its replay.
    """
    policy = "lt-h" if plan.together else "lt-i"
    answer = plan_answer(study, plan, policy)
    sentence = f"{answer.sentence}; {gpu_hours:,.1f} GPU-hours for ${cost_usd:,.2f}."
    attained = None if verified is None else verified.summary.slo_attainment
    if attained is None:
        sentence += (
            " It was not replayed, so what it attains is not known; verify it. A comparison also "
            "tries on the days before how much of this is needed, and may take less or more."
        )
    else:
        sentence += f" Replayed on the window's requests: {shares_in_time(attained)}."
    return RecommendedPlan(
        policy=policy,
        label=traits_of(policy).label,
        follows_plan=True,
        sentence=sentence,
        cost_usd=cost_usd,
        gpu_hours=gpu_hours,
        attainment=attained,
        meets_slo=None if verified is None else verified.meets_slo,
        equal_slo_saving=None,
        timetable=answer.timetable,
    )


def recommended_of(
    run: PolicyRun,
    runs: Sequence[PolicyRun],
    rehearsal: Rehearsal | None,
    on: str,
    unproven: str = "",
) -> Recommended:
    """Return the recommendation of a policy.

    ``unproven`` says which policy was cheaper in the backtest and why it was rejected.
    """
    its = rehearsal.of(run.name) if rehearsal is not None and on == DAYS_BEFORE else None
    parameters = {}
    if its is not None and its.parameter is not None and its.value is not None:
        parameters[its.parameter] = its.value
    return Recommended(
        policy=run.name,
        label=run.label,
        parameters=parameters,
        follows_plan=run.plan is not None,
        begins=tuple(
            Begins(
                pool.model,
                pool.region,
                pool.gpu.name,
                pool.gpus_per_instance,
                pool.role,
                pool.initial,
            )
            for pool in run.fleet.pools
        ),
        sentence=_sentence(run, rehearsal, parameters, on, unproven),
        chosen_on=on,
        windows=rehearsal.windows if its is not None and rehearsal is not None else (),
        rehearsed=None if its is None else its.chosen,
        cost_usd=run.summary.cost_usd,
        gpu_hours=run.summary.gpu_hours,
        attainment=run.summary.slo_attainment,
        meets_slo=run.meets_slo,
        equal_slo_saving=None,
        yardsticks=tuple(
            Yardstick(
                other.name,
                other.label,
                TOLD if other.traits.clairvoyant else HINDSIGHT,
                other.summary.cost_usd,
                other.summary.gpu_hours,
                other.meets_slo,
            )
            for other in runs
            if other.traits.knows_what_came
        ),
    )


def _sentence(
    run: PolicyRun,
    rehearsal: Rehearsal | None,
    parameters: dict[str, float],
    on: str,
    unproven: str,
) -> str:
    what = f"{run.label[:1].lower()}{run.label[1:]}" if run.traits.flat else run.label
    if run.traits.flat:
        count = sum(pool.initial for pool in run.fleet.pools)
        what = f"a flat fleet of {count:,} instance{'s' * (count != 1)} ({what})"
    values = "".join(f", {name} {value:g}" for name, value in parameters.items())
    if on != DAYS_BEFORE or rehearsal is None:
        return (
            f"Take {what}{values}: chosen on the window it is judged on, since the days before "
            "were not rehearsed."
        )
    its = rehearsal.of(run.name)
    days = len(rehearsal.windows)
    where = "the window before" if days == 1 else f"the {days} windows before"
    tried = f"{len(rehearsal.policies)} policies that can be run"
    if its is not None and its.meets:
        met = f"on {where} it met every tier"
        cost = f" at the least cost of {tried}" if not unproven else ""
        more = (_room(its, rehearsal), _lasts(run.name, rehearsal), unproven)
        return " ".join(
            [
                f"Take {what}{values}: {met}{cost}.",
                *(f"{sentence}." for sentence in more if sentence),
            ]
        )
    return f"Take {what}{values}: on {where} none of {tried} met every tier, and it came nearest."


def _lasts(policy: str, rehearsal: Rehearsal) -> str:
    """Return the stress tests that the policy passes, in words."""
    tried = (
        (rehearsal.longer, "answers {:g} times as long"),
        (rehearsal.unforeseen, "{:g} times the requests forecast"),
    )
    held = [
        words.format(harder.times)
        for played, words in tried
        for harder in played
        if harder.policy == policy and harder.meets
    ]
    return f"With {' or '.join(held)} it would have too" if held else ""


def _room(its: PolicyBacktest, rehearsal: Rehearsal) -> str:
    """Return the headroom for growth and its cost in words; empty if none was required."""
    room = rehearsal.room
    if room is None:
        return ""
    grown = f"{room.times:.2f} times the requests of the busiest of them"
    if len(room.models) > 1:
        grown = f"up to {room.times:.2f} times what a model had on the busiest of them for it"
    days_told, had = f"{room.days} days before tell a day may have", f"{room.days} days before had"
    if not room.days:
        days_told = had = (
            "the hours to come may have, no day before being known (office hours assumed)"
        )
    if not room.had:
        return f"With {grown}, as {had}, none would have"
    if its.chosen.room is None:  # not a leading policy when headroom was tested
        return f"Whether it has room for {grown} was not tried"
    more = its.chosen.cost_usd / room.cost_usd - 1 if room.cost_usd else 0.0
    what = f"It has room for {grown}, as much as {days_told}"
    if more <= NOTHING:
        return f"{what}, which costs nothing more"
    without = "the same, set lower," if room.label == its.label else room.label
    return (
        f"{what}. That room costs {more:.0%}: without it {without} would do, for "
        f"${room.cost_usd:,.2f} there instead of ${its.chosen.cost_usd:,.2f}"
    )
