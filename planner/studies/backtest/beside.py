"""What stands beside forecasters: fleets that do not move, and a rule that goes by what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from planner.errors import EXPECTED
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from planner.studies.backtest.driver import figures_of, spare
from planner.studies.backtest.figures import Beside
from planner.studies.progress import Progress, part
from planner.studies.rehearsal.tuning import tuned
from planner.studies.replay.replay import run_policy
from planner.studies.values import PolicyRun, Study

FLAT = {"flat-before": "", "flat-min": "sized in hindsight"}
TURNED = "turned in hindsight"


def beside_of(
    study: Study, reactive: str, seed: int, progress: Progress
) -> tuple[list[Beside], list[str]]:
    """The flat fleet that the days before would have bought, the smallest that does, and a reactive
    policy whose parameter is turned until it does at least cost; with a sentence for each that
    cannot be run."""
    goals = {tier.name: tier.attainment for tier in study.hardware.tiers}
    found: list[Beside] = []
    left_out: list[str] = []
    names = [*FLAT, reactive]
    for i, name in enumerate(names):
        policy, word, value = policy_of(name), FLAT.get(name, ""), None
        step = part(progress, i / len(names), (i + 1) / len(names))
        replay = partial(_replay, study, seed=seed, progress=step)
        try:
            if name not in FLAT and policy.free is not None:
                policy, best, _ = tuned(policy, [replay], goals)
                value, word = best.value, TURNED
            run = replay(policy)
        except EXPECTED as problem:
            left_out.append(f"{policy.title} is left out: {problem}")
            continue
        found.append(_row(study, name, policy, run, word, value))
    return found, left_out


def _replay(study: Study, policy: Policy, *, seed: int, progress: Progress) -> PolicyRun:
    return run_policy(study, policy, seed=seed, progress=progress)


def _row(
    study: Study, name: str, policy: Policy, run: PolicyRun, word: str, value: float | None
) -> Beside:
    pools: Sequence[int] = [pool.initial for pool in run.fleet.pools]
    return Beside(
        name=name,
        label=policy.title,
        word=word,
        figures=figures_of(study, run),
        meets=spare(study, run.summary) >= 0,
        value=value,
        instances=sum(pools) if name in FLAT else None,
    )
