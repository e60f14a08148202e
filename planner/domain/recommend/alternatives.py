"""Name the plans that a user can choose: one per level of assurance, and the static fleet."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from planner.domain.recommend.rule import Candidate, Choice
from planner.domain.recommend.trials import STATIC
from planner.policies.base import SEPARATOR

LABEL = "assurance-"  # label of a policy that was simulated for another level, before its name


def level_of(key: str) -> str:
    """Return the level of assurance that the key of a run names, or "" if it names none."""
    label = key.rpartition(SEPARATOR)[2]
    return label.removeprefix(LABEL) if label.startswith(LABEL) else ""


def alternatives_of(
    choices: Mapping[str, tuple[Choice, Sequence[Candidate]]],
    chosen: str,
    plan_key: Callable[[Candidate], Hashable],
) -> tuple[dict[str, str], dict[str, Candidate]]:
    """Return the plans that a user can choose, and those of them that remain to be simulated.

    ``choices`` maps each level of assurance to its choice and the candidates it was chosen from.
    The first value maps a level, or "static", to the key of the run that simulates its plan. The
    second value maps the keys that are not simulated yet to their candidates. ``chosen`` is the
    level whose candidates are simulated anyway, under the keys of their policies. The candidate of
    another level gets a key of its own, unless it is the same plan: then ``plan_key`` is equal.
    """
    _, simulated = choices.get(chosen, (None, ()))
    run_key_of_plan = {plan_key(candidate): candidate.policy for candidate in simulated}
    alternatives: dict[str, str] = {}  # run key by level
    others: dict[str, Candidate] = {}
    for level, (choice, _) in choices.items():
        candidate = choice.candidate
        plan = plan_key(candidate)
        if plan not in run_key_of_plan:
            run_key_of_plan[plan] = f"{candidate.policy}{SEPARATOR}{LABEL}{level}"
            others[run_key_of_plan[plan]] = candidate
        alternatives[level] = run_key_of_plan[plan]
    return alternatives | {"static": STATIC}, others
