"""Write the generated files and tables of docs: ``python -m tools.docs``.

Descriptions of keys and parameters are the comments of fields, those of options their help.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from planner.domain.columns import Columns
from planner.domain.kinds.forecast import TraceOptions
from planner.domain.kinds.registry import KINDS
from planner.domain.options import Option, RunOptions, options_in
from planner.domain.results.figures import GROUPS, POLICIES, TIERS
from planner.field_notes import field_notes
from planner.inputs.ingest.formats import FORMATS
from planner.inputs.scenario.schema import Scenario
from planner.policies.base import Policy, TunedParameter
from planner.policies.choice import policy_of
from planner.policies.registry import TRAITS, TYPES

DOCS = Path(__file__).parents[1] / "docs"
MANY = 10  # values that another page lists
RESULT_TABLES = {"policies": POLICIES, "tiers": TIERS, "groups": GROUPS}
KEYS_HEAD = "| key | value (default) | meaning |\n| --- | --- | --- |\n"
POLICY_HEAD = "| name | label | description |\n| --- | --- | --- |\n"
PARAMETER_HEAD = "| parameter | default | meaning |\n| --- | --- | --- |\n"
OPTIONS_HEAD = """\
# Options of runs

This page lists the options of each kind of run.

The API takes these names in `POST /api/v1/KIND/`. The command `bin/manage KIND` takes them with \
`-` for `_`, and without the `_s` of seconds. A refused value is answered with its limits.
"""
FORMATS_HEAD = """\
# File formats

This page lists the formats of traces, by the value of `format`.

The planner detects the format. To add one, follow [the recipe](../CONTRIBUTING.md#a-connector). \
For a single file, [`--map`](how-to/read-your-traffic.md#name-the-columns) is enough.

| format | contents |
| --- | --- |
"""
FORMATS_CHECKS = """
## Checks

Checks compare what a reading implies with what the file has: rates, gaps, sums and repeated rows. \
If a file allows several readings, the planner asks.
"""


def pages() -> dict[str, str]:
    """Return every generated page of docs with its text, by file name."""
    scenario, policies, results = (
        (DOCS / name).read_text(encoding="utf-8")
        for name in ("scenario.md", "policies.md", "results.md")
    )
    return {
        "scenario.schema.json": schema_text(),
        "scenario.md": with_tables(scenario),
        "policies.md": with_tables(policies),
        "results.md": with_columns(results),
        "options.md": options_page(),
        "formats.md": formats_page(),
    }


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
            table = POLICY_HEAD + "".join(
                f"| `{name}` | {each.label} | {each.line} |\n" for name, each in TRAITS.items()
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
    return KEYS_HEAD + "".join(lines)


def _key_rows(
    section: type[BaseModel], prefix: str, apart: set[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield key, values and meaning of each key of a section and of the sections inside it."""
    properties = section.model_json_schema()["properties"]
    notes = field_notes(section)

    def describe(name: str) -> tuple[str, str]:
        default = _default(section, name)
        in_brackets = f" ({default})" if default else ""
        mark = ", needed" if default == "needed" else in_brackets
        return _value(properties[name]) + mark, notes[name]

    for (value, meaning), same in groupby(section.model_fields, key=describe):
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
    yield from _tuned_parameters()


def _tuned_parameters() -> Iterator[str]:
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


def options_page() -> str:
    """Return the text of docs/options.md."""
    kinds = {name: kind.options for name, kind in KINDS.items()}
    kinds["forecast"] = TraceOptions
    return "\n".join(
        [OPTIONS_HEAD, *(line for item in kinds.items() for line in _options_section(*item))]
    )


def _options_section(name: str, declared: type[RunOptions]) -> Iterator[str]:
    """Yield the lines of one kind of run."""
    yield f"## {name}\n"
    yield "| option | value | meaning |\n| --- | --- | --- |"
    for option in options_in(declared).values():
        needed = " Needed." if option.required else ""
        yield f"| `{option.name}` | {_option_values(option)} | {option.help}{needed} |"
    yield ""


def _option_values(option: Option) -> str:
    """Return the valid values of an option in words, for a cell of a Markdown table."""
    if len(option.choices) > MANY:
        return f"one of [{len(option.choices)} names](forecasting.md#methods)"
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    words = option.remedy.removeprefix("give ").replace("|", "\\|")
    words = words.replace("a whole number from", "integer from").replace("a number", "number")
    if re.search(r"\d,\d", words):  # a limit far from usual values, which a refusal states
        words = re.sub(r"^(integer|number) (from|above) .*", r"\1", words)
    return "text" if words.startswith("a text of") else words


def formats_page() -> str:
    """Return the text of docs/formats.md: the formats with a documentation page first."""
    rows = []
    for form in sorted(FORMATS.values(), key=lambda form: (not form.docs, form.name)):
        name = f"[`{form.name}`]({form.docs})" if form.docs else f"`{form.name}`"
        rows.append(f"| {name} | {form.words} |\n")
    return "".join([FORMATS_HEAD, *rows, FORMATS_CHECKS])


def with_columns(text: str) -> str:
    """Return ``text``, a page of docs, with the table between each pair of marks rewritten."""
    for name, columns in RESULT_TABLES.items():
        mark = rf"(<!-- columns of {name} -->\n).*?(<!-- end -->)"
        text = re.sub(mark, rf"\g<1>{_columns_table(columns)}\g<2>", text, flags=re.DOTALL)
    return text


def _columns_table(columns: Columns) -> str:
    """Return a table of columns in Markdown, then their names in flat tables if they differ."""
    head = "| key | unit | meaning |\n| --- | --- | --- |\n"
    above = {(column.name, column.unit, column.help) for column in POLICIES.columns}
    repeated = [
        column.name
        for column in columns.columns
        if columns is not POLICIES and (column.name, column.unit, column.help) in above
    ]
    new = [column for column in columns.columns if column.name not in repeated]
    same_meaning = groupby(new, key=lambda column: (column.unit, column.help))
    rows = [
        f"| {_code_list(column.name for column in group)} | {unit} | {help} |\n"
        for (unit, help), group in same_meaning
    ]
    flat_names = {column.name: list(column.cells({})) for column in columns.columns}
    other = [
        f"`{key}` as {_code_list(names)}"
        for key, names in flat_names.items()
        if names and names != [key] and key not in repeated
    ]
    absent = [key for key, names in flat_names.items() if not names]
    lines = [f"\nAs of a policy: {_code_list(repeated)}.\n"] if repeated else []
    lines += [f"\nIn flat tables: {'; '.join(other)}.\n"] if other else []
    lines += [f"\nNot in flat tables: {_code_list(absent)}.\n"] if absent else []
    return "".join([head, *rows, *lines])


def _code_list(names: Iterable[str]) -> str:
    """Return the names as a list in Markdown, each as code."""
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    for page, text in pages().items():
        (DOCS / page).write_text(text, encoding="utf-8")
