"""The policies that a scenario may name: a type for each, chosen by ``name``."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Discriminator, GetCoreSchemaHandler, Tag, TypeAdapter
from pydantic_core import CoreSchema

from planner.policies.base import Group, Policy
from planner.policies.listed import own_policies
from planner.policies.own import Own, policy_names
from planner.policies.registry import TRAITS, TYPES, name_of

ALL = "all"  # in place of names: every policy there is
USUAL = ("flat-peak", "flat-min", "reactive", "lt-i")  # of a scenario that names none
_EVERY: list[type[Policy]] = [*dict.fromkeys(TYPES.values()), Own]
TAGS = frozenset(kind.__name__ for kind in _EVERY)  # in a fault's path


def _tag(value: Any) -> str:
    """Tag of the type that a row is of."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    kind = TYPES.get(name, Own) if isinstance(name, str) else Own
    return kind.__name__


class _ByName:
    """In place of ``Policy`` whichever of its types has the name."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        tagged = (Annotated[kind, Tag(kind.__name__)] for kind in _EVERY)
        return handler.generate_schema(Annotated[reduce(or_, tagged), Discriminator(_tag)])


AnyPolicy = Annotated[Policy, _ByName()]
_ADAPTER: TypeAdapter[Policy] = TypeAdapter(AnyPolicy)


def policy_of(name: str, **parameters: Any) -> Policy:
    """A policy by name, with what is given and defaults else; raises pydantic's ValidationError."""
    return _ADAPTER.validate_python({"name": name, **parameters})


def policy_groups() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Groups of (name, label, a line on it) for lists, the operator's own last."""
    rows = {group: [
        (name, traits.label, traits.line)
        for name, traits in TRAITS.items() if traits.group == group
    ] for group in Group}  # fmt: skip
    rows[Group.OWN] = [(name, name, "") for name in own_policies()]
    return [(group.value, listed) for group, listed in rows.items() if listed]


def known_policy(key: str) -> bool:
    """Whether a name, or one with a label after it, may be a policy; which labels there are only
    the scenario says."""
    return name_of(key) in policy_names()
