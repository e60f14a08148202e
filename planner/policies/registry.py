"""Find the policies in ``builtin``, and look up their classes and traits by name."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import get_args

from planner.policies import builtin
from planner.policies.base import SEPARATOR, Group, Policy, Traits

MOST_COMPLEX = 1_000  # an operator's own class is unknown, so it ranks as the most complex


def _classes_in_order() -> dict[str, type[Policy]]:
    """Return the class of each policy name, in the order of lists (``Traits.list_order``)."""
    classes: dict[str, type[Policy]] = {}
    for file in iter_modules(builtin.__path__):
        for value in vars(import_module(f"{builtin.__name__}.{file.name}")).values():
            # A module also holds imported and abstract classes. Only a class with its own
            # ``kinds`` declares policies.
            if isinstance(value, type) and issubclass(value, Policy) and "kinds" in vars(value):
                names = get_args(value.model_fields["name"].annotation)
                message = f"{value.__name__}: traits of each name, in order"
                assert names == tuple(value.kinds), message
                classes.update(dict.fromkeys(names, value))
    return dict(sorted(classes.items(), key=lambda item: item[1].kinds[item[0]].list_order))


TYPES: dict[str, type[Policy]] = _classes_in_order()
TRAITS: dict[str, Traits] = {name: kind.kinds[name] for name, kind in TYPES.items()}
POLICIES: dict[str, str] = {name: traits.label for name, traits in TRAITS.items()}


def traits_of(key: str) -> Traits:
    """Return the traits of the policy with a ``key``: its name, with or without a label.

    An operator's own class gets default traits and the highest complexity.
    """
    name = name_of(key)
    return TRAITS.get(name, Traits(name, "", Group.OWN, MOST_COMPLEX))


def simplicity(key: str) -> tuple[int, int]:
    """Return a sort key for policies: simpler ones first, equals in the order of lists."""
    name = name_of(key)
    return traits_of(key).complexity, list(TRAITS).index(name) if name in TRAITS else len(TRAITS)


def name_of(key: str) -> str:
    """Return the name of a policy from its key ``name`` or ``name:label``."""
    return key.partition(SEPARATOR)[0]


def plan_policy(keys: Iterable[str]) -> str | None:
    """Return the key of the policy whose plan figures and sentences call "the plan".

    It is the first policy in the order of lists that follows a plan without future data. ``keys``
    come best first; of several keys of that policy, return the best. None if there is none.
    """
    best_key: dict[str, str] = {}  # by name
    for key in keys:
        best_key.setdefault(name_of(key), key)
    for name, traits in TRAITS.items():
        if traits.plan and not traits.reads_future and name in best_key:
            return best_key[name]
    return None
