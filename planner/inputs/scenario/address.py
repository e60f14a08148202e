"""Read and write values of a scenario by address, for example ``tiers[chat].ttft_ms``.

An entry of a list has its name as address, or its index if it has no unique name.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.errors import ScenarioError
from planner.inputs.scenario.schema import Scenario

TITLES = ("version", "name", "description")  # keys that describe a scenario and change no result
_WHOLE = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[[^\[\]]+\])*")
_STEP = re.compile(r"([^.\[\]]+)|\[([^\[\]]+)\]")


def steps_of(address: str) -> tuple[str, ...]:
    """Return the keys and names in an address, or raise ScenarioError if it is none.

    They are ("tiers", "chat", "ttft_ms") for ``tiers[chat].ttft_ms``.
    """
    if not _WHOLE.fullmatch(address):
        raise ScenarioError(
            f"{address!r} is no address of a scenario's value. Write one such as "
            "horizon.period_s or tiers[chat].ttft_ms."
        )
    return tuple(key or index for key, index in _STEP.findall(address))


def names_of(entries: Sequence[Any]) -> list[str]:
    """Return the names by which addresses refer to the entries of a list.

    An entry is called by its name, with its label if it has one. If an entry has no name, or names
    repeat, all entries of the list are called by their index.
    """
    names = [_own_name(entry) for entry in entries]
    counts = Counter(names)
    if "" in counts or max(counts.values(), default=1) > 1:
        return [str(index) for index in range(len(entries))]
    return names


def place_of(entries: Sequence[Any], step: str, address: str) -> int:
    """Return the index of the entry that ``step`` names; raise ScenarioError if there is none."""
    names = names_of(entries)
    if step in names:
        return names.index(step)
    if step.isdecimal() and int(step) < len(entries):
        return int(step)
    raise ScenarioError(
        f"{address}: there is no {step!r}. Choose from {', '.join(names[:20]) or 'none'}."
    )


def values_by_address(scenario: Scenario) -> dict[str, Any]:
    """Return every value of a scenario by address, also defaults; None and [] are left out."""
    plain = scenario.model_dump(mode="json", exclude=set(TITLES), by_alias=True)
    return dict(_leaves("", plain))


def with_values(scenario: Scenario, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scenario as plain data with ``changes`` (address to value); nothing is checked.

    A value of None removes a key, or sets an item of a list to null. To change the text of a
    scenario and keep its comments, use ``scenario.document.edit``.
    """
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


def _leaves(address: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (address, value) of every value in ``value``, which is at ``address`` itself.

    Keys with special characters are written in brackets. None and [] are left out.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if re.search(r"[.\[\]]", str(key)):  # would be read as two steps
                item_address = f"{address}[{key}]"
            else:
                item_address = f"{address}.{key}" if address else str(key)
            yield from _leaves(item_address, item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for name, item in zip(names_of(value), value, strict=True):
            yield from _leaves(f"{address}[{name}]", item)
    elif value is not None and value != []:
        yield address, value


def _own_name(entry: Any) -> str:
    """Return the name of a list entry, with its label if it has one; "" without a name."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        return ""
    label = entry.get("label")
    return f"{entry['name']}:{label}" if label else str(entry["name"])
