"""What each level of assurance recommended, and what became of it in the window."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from planner.domain.outcome import Inputs
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.recommend.rule import TIE, Candidate, Choice
from planner.domain.recommend.search import choices as choices_of
from planner.domain.recommend.test_days import TestDays
from planner.domain.recommend.trials import STATIC, Trials, shortfall, with_tuned_value
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.policy_selection import missing_baselines, policies_chosen
from planner.domain.replay.replay import BRIEF, ReplayOptions, run_policy
from planner.domain.replay.replica_loss import with_spare_replica
from planner.domain.replay.static_search import smallest_flat
from planner.domain.results.assurance import interval_of
from planner.domain.run_parts import IN_PROCESS
from planner.domain.study import PolicyRun, Study
from planner.domain.traffic.sources import StoredTrace
from planner.domain.verification.profile_error import slower_or_faster, stated_error
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from simulation.fleet import Fleet, Pool


@dataclass(frozen=True, slots=True)
class Decision:
    """Figures of one case, by level of assurance; see ``decide``."""

    name: str
    figures: dict[str, Any]


def decide(name: str, scenario: Scenario, stored: StoredTrace) -> Decision:
    """Choose a policy at each assurance level, and simulate it in the window.

    ``hindsight_usd`` is the cost of the smallest static fleet that meets the SLO in the window, and
    ``oracle_usd`` that of a plan on a perfect forecast, tuned in the window.
    """
    study = study_of(Inputs(scenario, {"t": stored}), silent)
    beside, _ = missing_baselines(scenario, study, [])
    policies = [*policies_chosen(scenario, study, [])[0], *beside]
    trials = Trials(study, TestDays(study, scenario.test_days, scenario.seed), policies,
                    scenario.seed, IN_PROCESS)  # fmt: skip
    choices = dict(choices_of(trials))
    by_key = {policy.key: policy for policy in policies}
    smallest = smallest_flat(study, seed=scenario.seed)
    hindsight = _static(study, scenario.seed, smallest)
    levels = {
        level: _level(level, choice, candidates, by_key, study, trials, scenario.seed)
        for level, (choice, candidates) in choices.items()
    }
    deployable = [
        run
        for candidate in choices["economy"][1]
        if (
            run := _run(by_key[candidate.policy], candidate, study, trials, scenario.seed)
        ).meets_slo
    ]
    return Decision(
        name,
        {
            "levels": levels,
            "hindsight_usd": hindsight.summary.cost_usd,
            "replicas": int(smallest.sum()),
            "best_deployable_usd": min((run.summary.cost_usd for run in deployable), default=None),
            "oracle_usd": _oracle_usd(study, scenario.seed),
        },
    )


def _level(
    level: str, choice: Choice, candidates: list[Candidate], by_key: dict[str, Policy],
    study: Study, trials: Trials, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Return what the policy of one level did in the window, and on a slower profile."""
    candidate, number = choice.candidate, LEVELS.index(level)
    policy = by_key[candidate.policy]
    run = _run(policy, candidate, study, trials, seed)
    slower = _run(policy, candidate, study, trials, seed, changed=_slower)
    without = run
    if candidate.spare:
        plain = replace(candidate, spare=False)
        if policy.name == STATIC:
            plain = replace(plain, value=float(number))
        without = _run(policy, plain, study, trials, seed)
    expected = interval_of(candidate, trials.days)
    static = [c for c in candidates if c.policy == STATIC and c.qualifies(trials.days, number)]
    tiers = [tier.name for tier in study.hardware.tiers]
    intervals = {tier: interval_of(candidate, trials.days, tier) for tier in tiers}
    return {
        "policy": candidate.policy,
        "parameters": candidate.parameters,
        "qualifies": choice.qualifies,
        "failing": choice.failing,
        "usd": run.summary.cost_usd,
        "usd_without_spare": without.summary.cost_usd,
        "attainment": run.summary.slo_attainment,
        "shortfall_points": 100 * _short(run),
        "met": run.meets_slo,
        "met_slower": slower.meets_slo,
        "expected_usd": None if expected is None else [expected.mean, expected.low, expected.high],
        "cost_in_interval": (
            None if expected is None else expected.contains(run.summary.cost_usd, TIE)
        ),
        "attainment_in_interval": [
            contained
            for tier, its in intervals.items()
            if its is not None
            and (share := run.summary.slo_attainment.get(tier)) is not None
            and (contained := its.contains(share)) is not None
        ],
        "over_static": (
            candidate.expected_cost_usd(trials.days) / static[0].expected_cost_usd(trials.days)
            if static
            else None
        ),
    }


def _run(
    policy: Policy, candidate: Candidate, study: Study, trials: Trials, seed: int, **rules: Any
) -> PolicyRun:
    """Simulate a candidate on the window itself."""
    made = with_spare_replica(study) if candidate.spare else study
    level = int(candidate.value or 0) if policy.name == STATIC else 0
    return run_policy(
        made, with_tuned_value(policy, candidate.value), seed=seed, progress=silent,
        shared=SharedInputs(static=partial(trials.static_fleet, level, candidate.spare)),
        options=ReplayOptions(detailed=False, **rules),
    )  # fmt: skip


def _static(study: Study, seed: int, counts: Any) -> PolicyRun:
    return run_policy(study, policy_of(STATIC), seed=seed, progress=silent, options=BRIEF,
                      shared=SharedInputs(static=lambda: counts))  # fmt: skip


def _oracle_usd(study: Study, seed: int) -> float | None:
    """Return the cost of the cheapest plan on a perfect forecast that meets the SLO."""
    run = run_policy(study, policy_of("lt-i-perfect"), seed=seed, progress=silent, options=BRIEF)
    return run.summary.cost_usd if run.meets_slo else None


def _short(run: PolicyRun) -> float:
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    return shortfall(run.summary.slo_attainment, targets)


def _slower(fleet: Fleet) -> Fleet:
    """Return the fleet with every profile slower by its stated error."""

    def off(pool: Pool) -> Pool:
        error = stated_error(pool.profile)
        if error is None:
            return pool
        return replace(pool, profile=slower_or_faster(pool.profile, error.value, 1))

    return replace(fleet, pools=tuple(off(pool) for pool in fleet.pools))
