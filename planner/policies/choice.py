"""Parse the policies of a scenario; the field ``name`` decides the class."""

from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Discriminator, GetCoreSchemaHandler, Tag, TypeAdapter
from pydantic_core import CoreSchema

from planner.policies.base import Group, Policy
from planner.policies.registry import TRAITS, TYPES, name_of
from planner.policies.user_policies import UserPolicy, policy_names
from planner.policies.user_policy_settings import own_policies

ALL = "all"  # every known policy
USUAL = ("flat-peak", "flat-min", "reactive", "lt-i")  # default of a scenario without policies
OFFERED = ("flat-before", "reactive", "hpa", "lt-i", "lt-g")  # one of each family
DRAFTED = ("flat-before", "reactive", "lt-i", "lt-g")  # of a new scenario: those to recommend from
_EVERY: list[type[Policy]] = [*dict.fromkeys(TYPES.values()), UserPolicy]
TAGS = frozenset(kind.__name__ for kind in _EVERY)  # as they appear in error paths


def _tag(value: Any) -> str:
    """Return the name of the class that parses ``value``; ``UserPolicy`` if it is not built in."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    policy_class = TYPES.get(name, UserPolicy) if isinstance(name, str) else UserPolicy
    return policy_class.__name__


class _ByName:
    """The pydantic schema of a policy, whose field ``name`` selects the class."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        tagged = (Annotated[kind, Tag(kind.__name__)] for kind in _EVERY)
        return handler.generate_schema(Annotated[reduce(or_, tagged), Discriminator(_tag)])


AnyPolicy = Annotated[Policy, _ByName()]
_ADAPTER: TypeAdapter[Policy] = TypeAdapter(AnyPolicy)


def policy_of(name: str, **parameters: Any) -> Policy:
    """Return the policy ``name`` with ``parameters``; other parameters have their defaults.

    Raises pydantic's ValidationError if a parameter is invalid.
    """
    return _ADAPTER.validate_python({"name": name, **parameters})


def policy_groups() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the policies for lists: groups of (name, label, description), the operator's last."""
    policies: dict[Group, list[tuple[str, str, str]]] = {group: [] for group in Group}
    for name, traits in TRAITS.items():
        policies[traits.group].append((name, traits.label, traits.line))
    policies[Group.OWN] = [(name, name, "") for name in own_policies()]
    return [(group.value, rows) for group, rows in policies.items() if rows]


def is_policy(key: str) -> bool:
    """Return whether this installation has the policy that ``key`` names.

    ``key`` is a name, or a name with a label. The label is not checked, because only a scenario
    defines labels.
    """
    return name_of(key) in policy_names()
