"""The policies that a run is to replay, by the names it was given."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import ScenarioError
from planner.policies.base import SEPARATOR, Policy
from planner.policies.choice import ALL, policy_of
from planner.policies.own import policy_names
from planner.policies.registry import TRAITS
from planner.scenario.schema import Scenario
from planner.studies.replay.replay import check_policy
from planner.studies.values import Study


def policy_chosen(scenario: Scenario, name: str) -> Policy:
    """The scenario's own policy of that name (with its label, where it has one) and its
    parameters, else the built-in one."""
    for tells in ("key", "name"):
        listed = next((row for row in scenario.policies if getattr(row, tells) == name), None)
        if listed is not None:
            return listed
    if name not in policy_names():
        labelled = [policy.key for policy in scenario.policies if SEPARATOR in policy.key]
        choices = ", ".join([*labelled, *policy_names()])
        raise ScenarioError(f"There is no policy {name!r}; choose from {choices}.")
    return policy_of(name)


def policies_chosen(
    scenario: Scenario, study: Study, names: Sequence[str]
) -> tuple[list[Policy], list[str]]:
    """The policies to compare, today's fleet first where it is known, and a sentence for each that
    was not asked for by name and cannot be run."""
    everything = list(names) == [ALL]
    chosen = [policy_chosen(scenario, name) for name in names if name != ALL]
    if everything:
        chosen = _every(scenario)
    chosen = chosen or list(scenario.policies)
    if study.hardware.today is not None and "today" not in {policy.name for policy in chosen}:
        chosen.insert(0, policy_of("today"))
    left_out, able = [], []
    chosen = [policy.told_apart(chosen) for policy in chosen]
    for policy in chosen:
        try:
            check_policy(study, policy.name)
            able.append(policy)
        except ScenarioError as problem:
            if not everything:
                raise
            if policy.name != "today":  # nobody asked for what nobody described
                left_out.append(f"{policy.title} is left out: {problem}")
    return able, left_out


def standing(
    scenario: Scenario, study: Study, chosen: Sequence[Policy]
) -> tuple[list[Policy], list[str]]:
    """The baselines that stand beside ``chosen`` in every comparison (methods.md X1), with the
    scenario's parameters where it has any, and a sentence for each that cannot be run here. A
    perfect forecast of a window that is yet to come nobody misses."""
    named = {policy.name for policy in chosen}
    able, left_out = [], []
    for name, traits in TRAITS.items():
        if not traits.always or name in named or (traits.clairvoyant and study.window.ahead):
            continue
        policy = policy_chosen(scenario, name)
        try:
            check_policy(study, name)
            able.append(policy)
        except ScenarioError as problem:
            left_out.append(f"{policy.title} is left out: {problem}")
    return able, left_out


def _every(scenario: Scenario) -> list[Policy]:
    """Every policy there is, those of the scenario with its parameters."""
    listed = {policy.name for policy in scenario.policies}
    others = (policy_of(name) for name in policy_names() if name not in listed)
    order = {name: i for i, name in enumerate(policy_names())}
    return sorted([*scenario.policies, *others], key=lambda policy: order[policy.name])
