"""Addresses of a scenario's values, as ``tiers[chat].ttft_ms`` or ``horizon.period_s``: entries of
a list by their name, or by their place where they have none of their own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.errors import ScenarioError
from planner.scenario.schema import Scenario

TITLES = ("version", "name", "description")  # of a scenario: they say what it is, and set nothing
_WHOLE = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[[^\[\]]+\])*")
_STEP = re.compile(r"([^.\[\]]+)|\[([^\[\]]+)\]")


def steps_of(address: str) -> tuple[str, ...]:
    """The keys on the way to a value; raises ScenarioError where it is no address."""
    if not _WHOLE.fullmatch(address):
        raise ScenarioError(
            f"{address!r} is no address of a scenario's value; write one such as "
            "horizon.period_s or tiers[chat].ttft_ms."
        )
    return tuple(key or place for key, place in _STEP.findall(address))


def names_of(entries: Sequence[Any]) -> list[str]:
    """What each entry of a list is called: by its name, with its label where it has one, else by
    its place, as is every entry of a list in which names repeat."""
    names = [_own_name(entry) for entry in entries]
    counts = Counter(names)
    if "" in counts or max(counts.values(), default=1) > 1:
        return [str(place) for place in range(len(entries))]
    return names


def place_of(entries: Sequence[Any], step: str, address: str) -> int:
    """Where in a list the entry is that a step of ``address`` names."""
    names = names_of(entries)
    if step in names:
        return names.index(step)
    if step.isdecimal() and int(step) < len(entries):
        return int(step)
    raise ScenarioError(
        f"{address}: there is no {step!r}; there are {', '.join(names[:20]) or 'none'}."
    )


def flat(scenario: Scenario) -> dict[str, Any]:
    """Every value of a scenario by its address, defaults too; what is left out has none."""
    plain = scenario.model_dump(mode="json", exclude=set(TITLES), by_alias=True)
    return dict(_leaves("", plain))


def with_values(scenario: Scenario, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario as plain data with values at addresses changed, to be checked; None leaves one
    out. For a text with its comments there is ``planner.scenario.document.edit``."""
    plain: dict[str, Any] = scenario.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for address, value in changes.items():
        *parents, last = steps_of(address)
        node: Any = plain
        for step in parents:
            if isinstance(node, list):
                node = node[place_of(node, step, address)]
            else:
                node = node.setdefault(step, {})
        if isinstance(node, list):
            node[place_of(node, last, address)] = value
        elif value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return plain


def _leaves(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            plain = not re.search(r"[.\[\]]", str(key))
            step = f".{key}" if plain and where else str(key) if plain else f"[{key}]"
            yield from _leaves(where + step, item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for name, item in zip(names_of(value), value, strict=True):
            yield from _leaves(f"{where}[{name}]", item)
    elif value is not None and value != []:
        yield where, value


def _own_name(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        return ""
    label = entry.get("label")
    return f"{entry['name']}:{label}" if label else str(entry["name"])
