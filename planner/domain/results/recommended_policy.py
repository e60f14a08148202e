"""Describe the recommended policy: its parameters, results and baselines."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.domain.formats import counted, key_words
from planner.domain.planning.figures import PlanTotals
from planner.domain.recommend.rule import TIE, Choice
from planner.domain.recommend.test_days import TestDay
from planner.domain.results.answer import Fact, ReplicaSchedule, plan_answer
from planner.domain.results.assurance import Expected, figures_of_choice
from planner.domain.results.equal_attainment_savings import oracle_words
from planner.domain.serialise import shares_in_time
from planner.domain.study import PolicyRun, Study
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.optimizer.problem import ScalingPlan
from planner.policies.registry import traits_of


@dataclass(frozen=True, slots=True)
class OracleBaseline:
    """The results of a baseline that uses future data; ``word`` says how it uses them."""

    policy: str
    label: str
    word: str
    cost_usd: float
    gpu_hours: float
    meets_slo: bool


@dataclass(frozen=True, slots=True)
class FirstReplicas:
    """The number of replicas with which one pool starts."""

    model: str
    region: str
    gpu: str
    tp: int
    role: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Recommended:
    """The recommended policy with its results.

    ``expected`` has cost and attainment over the test days, before the window. ``cost_usd``,
    ``gpu_hours`` and ``attainment`` are those of the simulation of the window.
    """

    policy: str
    label: str
    parameters: dict[str, float]
    follows_plan: bool
    begins: tuple[FirstReplicas, ...]
    sentence: str
    assurance: str
    qualifies: bool  # whether it passes every required test day
    failing: tuple[str, ...]  # the test days that it fails
    expected: Expected
    cost_usd: float
    gpu_hours: float
    attainment: dict[str, float | None]
    meets_slo: bool
    equal_slo_saving: float | None
    yardsticks: tuple[OracleBaseline, ...]
    why: str = ""  # reason of the choice
    timetable: ReplicaSchedule | None = None
    what: str = ""  # what to run
    facts: tuple[Fact, ...] = ()  # its effects, such as the cost


@dataclass(frozen=True, slots=True)
class RecommendedPlan:
    """A plan that is recommended without a comparison of policies.

    ``attainment`` and ``meets_slo`` are None unless a simulation verified the plan.
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
    timetable: ReplicaSchedule


def recommended_plan(
    study: Study,
    plan: ScalingPlan,
    totals: PlanTotals,
    verified: PolicyRun | None,
    lacks_spare: str,
) -> RecommendedPlan:
    """Return a plan as a recommendation, without a comparison of policies.

    ``totals`` are those of the plan. ``verified`` is its simulation; None: not simulated.
    ``lacks_spare`` is the level of assurance at which a comparison would add a spare replica; "":
    the plan has one.
    """
    policy = "lt-h" if plan.together else "lt-i"
    answer = plan_answer(study, plan, policy)
    sentence = f"{answer.sentence}; {totals.gpu_hours:,.1f} GPU-hours for ${totals.usd:,.2f}."
    if lacks_spare:
        sentence += f" Without N+1, which a comparison adds at {lacks_spare}."
    attained = None if verified is None else verified.summary.slo_attainment
    if attained is None:
        sentence += (
            " Its attainment is unknown until it is verified by simulation. A comparison tests "
            "whether fewer replicas are enough."
        )
    else:
        sentence += f" SLO attainment in simulation: {shares_in_time(attained)}."
    return RecommendedPlan(
        policy=policy,
        label=traits_of(policy).label,
        follows_plan=True,
        sentence=sentence,
        cost_usd=totals.usd,
        gpu_hours=totals.gpu_hours,
        attainment=attained,
        meets_slo=None if verified is None else verified.meets_slo,
        equal_slo_saving=None,
        timetable=answer.timetable,
    )


def recommended_of(
    run: PolicyRun, runs: Sequence[PolicyRun], choice: Choice, days: Sequence[TestDay], level: int
) -> Recommended:
    """Return the chosen policy as a recommendation; ``run`` is its simulation of the window.

    ``runs`` are the simulations of all policies, for the oracle baselines among them. ``level`` is
    the level of assurance, as index in ``LEVELS``, that decides which test ``days`` to pass.
    """
    begins = [
        FirstReplicas(
            model=pool.model,
            region=pool.region,
            gpu=pool.gpu.name,
            tp=pool.gpus_per_instance,
            role=pool.role,
            replicas=pool.initial,
        )
        for pool in run.fleet.pools
    ]
    oracles = [
        OracleBaseline(
            policy=other.name,
            label=other.label,
            word=oracle_words(other),
            cost_usd=other.summary.cost_usd,
            gpu_hours=other.summary.gpu_hours,
            meets_slo=other.meets_slo,
        )
        for other in runs
        if other.traits.uses_future_data
    ]
    return Recommended(
        policy=run.name,
        label=run.label,
        parameters=choice.candidate.parameters,
        follows_plan=run.plan is not None,
        begins=tuple(begins),
        sentence=_sentence(run, choice, days, level),
        assurance=LEVELS[level],
        qualifies=choice.qualifies,
        failing=choice.failing,
        expected=figures_of_choice(choice, days).expected,
        cost_usd=run.summary.cost_usd,
        gpu_hours=run.summary.gpu_hours,
        attainment=run.summary.slo_attainment,
        meets_slo=run.meets_slo,
        equal_slo_saving=None,
        yardsticks=tuple(oracles),
    )


def _sentence(run: PolicyRun, choice: Choice, days: Sequence[TestDay], level: int) -> str:
    """Return sentences on the chosen policy, its test days and the next best policy.

    ``level`` is the level of assurance, as index in ``LEVELS``.
    """
    policy, name = _policy_words(run, choice.candidate.parameters), LEVELS[level]
    if not choice.qualifies:
        failed = ", ".join(choice.failing)
        return (
            f"No policy passes every required test day ({name}). Nearest: {policy}. "
            f"It fails: {failed}."
        )
    required = sum(day.required_at(level) for day in days)
    words = f"{name.capitalize()} plan: {policy}. "
    words += f"It passes all {required} required test days at the lowest expected cost."
    next_best = choice.runner_up
    if next_best is not None:
        own_usd = choice.candidate.expected_cost_usd(days)
        extra_cost = next_best.expected_cost_usd(days) / own_usd - 1
        costs = f"costs {extra_cost:.0%} more" if extra_cost > TIE else "costs about the same"
        words += f" Next: {next_best.label} {costs}."
    return words


def _policy_words(run: PolicyRun, parameters: dict[str, float]) -> str:
    """Return the name of a policy with its parameters, or the size of a static fleet."""
    if run.traits.flat:
        count = sum(pool.initial for pool in run.fleet.pools)
        return f"static fleet of {counted(count, 'replica')}"
    values = (f"{key_words(name).lower()} {value:g}" for name, value in parameters.items())
    return ", ".join((run.label, *values))
