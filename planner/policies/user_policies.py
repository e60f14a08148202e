"""Load the operator's own policies by name.

Only classes that the installation lists can be loaded. ``HEADROOM_POLICIES`` in the environment
holds ``name=package.module:Class`` entries, separated by commas. A scenario holds a name and
parameters, never the code to run.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

from pydantic import Field, field_validator

from planner.errors import ScenarioError
from planner.policies.base import Policy, Traits
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.policies.registry import POLICIES, traits_of
from planner.policies.user_policy_settings import SETTING, own_policies
from planner.schema_types import Name


def policy_names() -> list[str]:
    """Return the names of all policies of this installation, the operator's own last."""
    return [*POLICIES, *own_policies()]


class UserPolicy(Policy):
    """A policy class that the operator lists."""

    name: Name
    parameters: Annotated[dict[Name, bool | int | float | str], Field(max_length=100)] = {}

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in own_policies():
            raise ValueError(f"there is no such policy. Choose from {', '.join(policy_names())}")
        return name

    @property
    def traits(self) -> Traits:
        return traits_of(self.name)

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.parameters)

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the operator's class with the scenario's parameters, on the current fleet."""
        make = _load_class(self.name)
        try:
            policy = make(**self.arguments)
        except (TypeError, ValueError) as problem:
            raise ScenarioError(
                f"policies: {self.key!r} does not take these parameters: {problem}."
            ) from None
        return context.with_current_fleet(policy)


def _load_class(name: str) -> Callable[..., Any]:
    """Return the class that the operator lists as ``name``; raise ScenarioError if import fails."""
    path = own_policies()[name]
    module, _, attribute = path.partition(":")
    try:
        policy_class: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        raise ScenarioError(
            f"{SETTING}: {name!r} cannot be loaded from {path} ({problem}). Correct the path, or "
            "install the package where the worker runs."
        ) from None
    return policy_class
