"""Run the policies that forecasters are compared with: static fleets and a reactive policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from planner.domain.forecaster_backtest.figures import Baseline
from planner.domain.forecaster_backtest.replay import figures_of, spare
from planner.domain.progress import Progress
from planner.domain.recommend.search import bisect_first
from planner.domain.recommend.trials import shortfall
from planner.domain.replay.replay import run_policy
from planner.domain.study import PolicyRun, Study
from planner.policies.base import Policy
from planner.policies.choice import policy_of

FLAT = {"flat-before": "", "flat-min": "sized in hindsight"}
TUNED_LABEL = "turned in hindsight"
UNTUNED_LABEL = "not turned"


def baseline_names(reactive: str, *, turn: bool) -> list[str]:
    """Return the names of the policies to compare with.

    These are the static fleet sized on history, the minimum static fleet, and ``reactive``. The
    minimum static fleet is found by replays, so it is included only with ``turn``.
    """
    return [*(name for name in FLAT if turn or not FLAT[name]), reactive]


def baseline_row(study: Study, name: str, seed: int, *, turn: bool, progress: Progress) -> Baseline:
    """Return the row of one policy.

    With ``turn``, the parameter of a reactive policy is tuned on the window itself, to the lowest
    cost that meets the targets. Otherwise the policy runs with its default parameters. Errors of
    the replay pass through.
    """
    goals = {tier.name: tier.attainment for tier in study.hardware.tiers}
    policy, word, value = policy_of(name), FLAT.get(name, UNTUNED_LABEL), None
    replay = partial(_replay, study, seed=seed, progress=progress)
    if turn and name not in FLAT and policy.parameter_to_tune is not None:
        values, untuned = policy.parameter_to_tune.values, policy

        def passes(index: int) -> bool:
            return not shortfall(replay(untuned.with_value(values[index])).summary, goals)

        value = values[min(bisect_first(passes, 0, len(values)), len(values) - 1)]
        policy, word = policy.with_value(value), TUNED_LABEL
    return _row(study, name, policy, replay(policy), word, value)


def _replay(study: Study, policy: Policy, *, seed: int, progress: Progress) -> PolicyRun:
    return run_policy(study, policy, seed=seed, progress=progress)


def _row(
    study: Study, name: str, policy: Policy, run: PolicyRun, word: str, value: float | None
) -> Baseline:
    """Return the row of a replayed policy."""
    pools: Sequence[int] = [pool.initial for pool in run.fleet.pools]
    return Baseline(
        name=name,
        label=policy.title,
        word=word,
        figures=figures_of(study, run),
        meets=spare(study, run.summary) >= 0,
        value=value,
        instances=sum(pools) if name in FLAT else None,
    )
