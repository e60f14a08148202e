"""Find the policies that a run is to replay, by name."""

from collections.abc import Sequence

from planner.domain.replay.replay import check_policy
from planner.domain.study import Study
from planner.errors import ScenarioError
from planner.inputs.scenario.schema import Scenario
from planner.policies.base import SEPARATOR, Group, Policy
from planner.policies.choice import ALL, policy_of
from planner.policies.registry import TRAITS, traits_of
from planner.policies.user_policies import policy_names


def policy_chosen(scenario: Scenario, name: str) -> Policy:
    """Return the scenario's policy of that name with its parameters, else the built-in one.

    ``name`` may be a key: the policy's name, or ``name:label`` for one of several policies of that
    name. Raises ScenarioError for an unknown name.
    """
    for field in ("key", "name"):  # a key is a name, with the label if there is one
        listed = next((row for row in scenario.policies if getattr(row, field) == name), None)
        if listed is not None:
            return listed
    if name not in policy_names():
        labelled = [policy.key for policy in scenario.policies if SEPARATOR in policy.key]
        choices = ", ".join([*labelled, *policy_names()])
        raise ScenarioError(f"There is no policy {name!r}. Choose from {choices}.")
    return policy_of(name)


def policies_chosen(
    scenario: Scenario, study: Study, names: Sequence[str]
) -> tuple[list[Policy], list[str]]:
    """Return the policies to compare, and a sentence for each that this study cannot run.

    ``names`` may be ``[ALL]`` for every policy, or empty for those of the scenario. The current
    fleet comes first if it is known. Raises ScenarioError if a policy cannot run, unless ``names``
    is ``[ALL]``.
    """
    everything = list(names) == [ALL]
    if everything:
        chosen = _all_policies(scenario)
    else:
        chosen = [policy_chosen(scenario, name) for name in names if name != ALL]
    chosen = chosen or list(scenario.policies)
    if study.hardware.today is not None and "today" not in {policy.name for policy in chosen}:
        chosen.insert(0, policy_of("today"))
    left_out, runnable = [], []
    for policy in [policy.with_unique_title(chosen) for policy in chosen]:
        try:
            check_policy(study, policy.name)
            runnable.append(policy)
        except ScenarioError as problem:
            if not everything:
                raise
            if policy.name != "today":  # today is optional, so it needs no note
                left_out.append(f"{policy.title} is left out: {problem}")
    return runnable, left_out


def missing_baselines(
    scenario: Scenario, study: Study, chosen: Sequence[Policy]
) -> tuple[list[Policy], list[str]]:
    """Return the baselines of every comparison (methods.md X1) that ``chosen`` lacks.

    A baseline that the scenario lists has its parameters. The second value has a sentence for each
    baseline that this study cannot run. If the window is after the traffic, baselines that know the
    future are left out without a sentence.
    """
    named = {policy.name for policy in chosen}
    runnable, left_out = [], []
    for name, traits in TRAITS.items():
        if (
            not traits.always
            or name in named
            or (traits.reads_future and study.window.after_traffic)
        ):
            continue
        policy = policy_chosen(scenario, name)
        try:
            check_policy(study, name)
            runnable.append(policy)
        except ScenarioError as problem:
            left_out.append(f"{policy.title} is left out: {problem}")
    return runnable, left_out


def _all_policies(scenario: Scenario) -> list[Policy]:
    """Return all policies, those of the scenario with its parameters.

    Autoscalers of other systems, and policies that change roles, are compared only if the scenario
    lists them.
    """
    listed = {policy.name for policy in scenario.policies}
    others = (
        policy_of(name)
        for name in policy_names()
        if name not in listed and traits_of(name).group not in (Group.OPPONENT, Group.ROLES)
    )
    position = {name: i for i, name in enumerate(policy_names())}
    return sorted([*scenario.policies, *others], key=lambda policy: position[policy.name])
