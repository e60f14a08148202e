"""Write the JSON Schema of the scenario file, and the tables of docs/scenario.md and policies.md.

Run it with ``python -m planner.inputs.scenario.publish``. Descriptions are the comments of fields.
"""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from planner.field_notes import field_notes
from planner.inputs.scenario.schema import Scenario
from planner.policies.base import Policy, TunedParameter
from planner.policies.choice import policy_of
from planner.policies.registry import TRAITS, TYPES

DOCS = Path(__file__).parents[3] / "docs"
SCHEMA_PATH = DOCS / "scenario.schema.json"
PAGES = DOCS / "scenario.md", DOCS / "policies.md"
MANY = 10  # values that another page lists
HEAD = "| key | value (default) | meaning |\n| --- | --- | --- |\n"
POLICY_HEAD = "| name | label | description |\n| --- | --- | --- |\n"
PARAMETER_HEAD = "| parameter | default | meaning |\n| --- | --- | --- |\n"


def schema_text() -> str:
    """Return the JSON Schema as text."""
    schema = Scenario.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Headroom scenario"
    for section in _reachable_sections(Scenario, []):
        described = schema if section is Scenario else schema["$defs"].get(section.__name__, {})
        for name, note in field_notes(section).items():
            if note and name in described.get("properties", {}):
                described["properties"][name]["description"] = note
    return json.dumps(schema, indent=2) + "\n"


def with_tables(text: str) -> str:
    """Return a page with the table between each pair of marks generated again."""
    sections = {section.__name__: section for section in _reachable_sections(Scenario, [])}
    for mark in re.findall(r"<!-- (keys of \w+|policies|parameters) -->", text):
        if mark == "policies":
            oracle = {True: " Oracle baseline.", False: ""}
            table = POLICY_HEAD + "".join(
                f"| `{name}` | {each.label} | {each.line}{oracle[each.uses_future_data]} |\n"
                for name, each in TRAITS.items()
            )
        elif mark == "parameters":
            table = "\n".join(_parameters())
        else:
            apart = set(re.findall(r"<!-- keys of (\w+) -->", text))
            table = _keys(sections[mark.split()[-1]], apart)
        before, rest = text.split(f"<!-- {mark} -->\n", 1)
        text = f"{before}<!-- {mark} -->\n{table}<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return text


def _reachable_sections(annotation: Any, seen: list[type[BaseModel]]) -> list[type[BaseModel]]:
    """Return the schema classes reachable from a type annotation, each once.

    ``seen`` is extended in place and returned.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation in seen:
            return seen
        seen.append(annotation)
        for field in annotation.model_fields.values():
            _reachable_sections(field.annotation, seen)
            for part in field.metadata:
                _reachable_sections(part, seen)
        if annotation is Policy:
            for kind in dict.fromkeys(TYPES.values()):
                _reachable_sections(kind, seen)
    for part in get_args(annotation):
        _reachable_sections(part, seen)
    return seen


def _keys(section: type[BaseModel], apart: set[str]) -> str:
    """Return the table of a section's keys; neighbours with the same meaning share a row.

    Keys of a nested section follow as ``outer.inner``, unless ``apart`` names its class.
    """
    rows = groupby(_key_rows(section, "", apart), key=lambda row: row[1:])
    lines = [
        f"| {', '.join(f'`{row[0]}`' for row in same)} | {value} | {meaning} |\n"
        for (value, meaning), same in rows
    ]
    return HEAD + "".join(lines)


def _key_rows(
    section: type[BaseModel], prefix: str, apart: set[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield key, values and meaning of each key of a section and of the sections inside it."""
    properties = section.model_json_schema()["properties"]
    notes = field_notes(section)

    def described(name: str) -> tuple[str, str]:
        default = _default(section, name)
        in_brackets = f" ({default})" if default else ""
        mark = ", needed" if default == "needed" else in_brackets
        return _value(properties[name]) + mark, notes[name]

    for (value, meaning), same in groupby(section.model_fields, key=described):
        names = list(same)
        yield from ((prefix + name, value, meaning) for name in names)
        below = _reachable_sections(section.model_fields[names[0]].annotation, [])
        inner, *others = below or [Policy]
        if others or inner.__name__ in apart or not all(field_notes(inner).values()):
            continue
        for key, inner_value, inner_meaning in _key_rows(inner, "", apart):
            yield from ((f"{prefix}{n}.{key}", inner_value, inner_meaning) for n in names)


def _value(schema: dict[str, Any]) -> str:
    """Return the values that a JSON Schema allows, in words of the documentation."""
    if len(schema.get("enum", ())) > MANY:
        return f"one of [{len(schema['enum'])} names](forecasting.md#methods)"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        words = [_value(part) for part in parts if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "$ref" in schema:
        return "section"
    kind = schema.get("type")
    if kind == "array":
        inner = _value(schema.get("items", {}))
        return "list" if inner in ("section", "value") else f"list: {inner}"
    if kind == "object":
        return "mapping"
    if kind in ("number", "integer"):
        word = "number" if kind == "number" else "integer"
        top = schema.get("maximum", schema.get("exclusiveMaximum"))
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        return f"{low:g} to {top:g}" if low is not None and top is not None and top <= 1 else word
    if schema.get("format") == "date-time":
        return "time"
    return {"string": "text", "boolean": "true or false"}.get(str(kind), "value")


def _default(section: type[BaseModel], name: str) -> str:
    """Return the default of a key as text; "needed" if it is required, "" for a section or null."""
    field = section.model_fields[name]
    if field.is_required():
        return "needed"
    value = field.default
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:.10g}"
    return value if isinstance(value, str) else ""


def _parameters() -> Iterator[str]:
    """Yield tables of policies' parameters, one per class of parameters."""
    seen: set[type[BaseModel]] = {BaseModel, Policy}
    yield PARAMETER_HEAD.rstrip("\n")
    for declaring in (part for kind in TYPES.values() for part in reversed(kind.__mro__)):
        if declaring in seen or not issubclass(declaring, Policy):
            continue
        seen.add(declaring)
        notes = field_notes(declaring)
        names = [n for n in declaring.__annotations__ if n in notes and n != "name"]
        rows = [(name, _default(declaring, name), notes[name]) for name in names]
        lines = [f"| `{row[0]}` | {row[1]} | {row[2]} |" for row in rows if row[1] != "needed"]
        if lines:
            policies = (f"`{name}`" for name, kind in TYPES.items() if issubclass(kind, declaring))
            yield f"| **{', '.join(policies)}** | | |"
            yield from lines
    yield ""
    yield from _tuned()


def _tuned() -> Iterator[str]:
    """Yield the table of the parameters that test days tune."""
    policies: dict[TunedParameter, list[str]] = {}
    for name in TYPES:
        tuned = policy_of(name).tuned_parameter
        if tuned is not None:
            policies.setdefault(tuned, []).append(f"`{name}`")
    yield "Test days tune these parameters, from the cheapest to the safest value:\n"
    yield "| parameter | from | to | policies |\n| --- | --- | --- | --- |"
    for tuned, names in policies.items():
        first, *_, last = tuned.values
        yield f"| `{tuned.field}` | {first:g} | {last:g} | {', '.join(names)} |"
    yield ""


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
