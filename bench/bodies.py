"""Bodies for all that the API takes as JSON, from its own OpenAPI document: right, and wrong in a
place or several.

What is in one is chosen by bytes, so that whatever makes bytes (a fuzzer, Hypothesis) makes bodies.
Where they are at their end the first choice is taken, which is the right one.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

PREFIX = "/api/v1/"
DEEPEST = 6
MOMENT = "2024-05-18T00:00:00Z"
TRACE = "time,requests\n" + "".join(f"2024-05-17T{hour:02}:00:00Z,5\n" for hour in range(24))
RIGHT, ODD, OMITTED = "right", "odd", "omitted"
WAYS = (*5 * [RIGHT], *2 * [ODD], OMITTED)
ODDITIES: tuple[Any, ...] = (
    None, True, 0, -1, 0.5, 1e308, 2**31, 2**63, 10**30, "", " ", "x", "\0", "\ud800", "ä" * 300,
    "a" * 30_000, "1", "-1", "NaN", "1e999", "../../etc/passwd", "=cmd|' /C calc'!A0", [], [[]],
    [None], {}, {"a": []}, {"": 1}, "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
    "2024-05-18", "version: 1\n", "- [", "http://127.0.0.1:1/", "tiers[0].ttft_ms", "* * * * *",
)  # fmt: skip
T = TypeVar("T")


class Choices:
    """One after the other, by ``data``."""

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)

    def of(self, several: Sequence[T]) -> T:
        return several[next(self._left, 0) % len(several)]


@dataclass(frozen=True, slots=True)
class Action:
    method: str
    url: str
    schema: Mapping[str, Any]
    examples: tuple[Any, ...]  # bodies that its documentation shows

    @property
    def name(self) -> str:
        return f"{self.method} {self.url}"


@dataclass(frozen=True, slots=True)
class Api:
    """Whatever takes a JSON body, and what there is to be named in one."""

    actions: tuple[Action, ...]
    named: Mapping[str, Any]  # by field
    schemas: Mapping[str, Any]

    def action(self, choices: Choices) -> Action:
        return choices.of(self.actions)

    def body(self, action: Action, choices: Choices) -> Any:
        """Return the documented example or a body by the schema, changed as ``choices`` say."""
        examples = (*action.examples, None)
        return self._value(action.schema, "", choices, choices.of(examples), 0)

    def fields(self, action: Action) -> Iterator[str]:
        yield from self._follow_references(action.schema).get("properties", {})

    def _value(
        self, schema: Mapping[str, Any], name: str, choices: Choices, example: Any, depth: int
    ) -> Any:
        schema = self._follow_references(schema)
        if depth and choices.of(WAYS) == ODD:
            return choices.of(ODDITIES)
        if "properties" in schema and depth < DEEPEST:
            return self._members(schema, choices, example, depth)
        if name in self.named:
            return self.named[name]
        if example is not None:
            return example
        return self._plain(schema, name, choices, depth)

    def _members(
        self, schema: Mapping[str, Any], choices: Choices, example: Any, depth: int
    ) -> dict[str, Any]:
        shown = example if isinstance(example, dict) else {}
        needed = {*schema.get("required", ()), *shown}
        members: dict[str, Any] = {}
        for field, inner in schema["properties"].items():
            if inner.get("readOnly"):
                continue
            way = choices.of(WAYS)
            if (field in needed) if way == RIGHT else way == ODD:
                members[field] = self._value(inner, field, choices, shown.get(field), depth + 1)
        return members

    def _plain(self, schema: Mapping[str, Any], name: str, choices: Choices, depth: int) -> Any:
        """Return a value of the type in ``schema``, within its limits."""
        if "enum" in schema:
            return choices.of(schema["enum"])
        kind = schema.get("type", "string")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind in ("integer", "number"):
            least, most = schema.get("minimum", 1), schema.get("maximum", 100)
            return choices.of((schema.get("default") or least, least, most))
        if kind == "boolean":
            return choices.of((False, True))
        if kind == "array":
            inner = schema.get("items", {})
            count = max(1, schema.get("minItems", 1)) + choices.of((0, 0, 1))
            return [self._value(inner, name, choices, None, depth + 1) for _ in range(count)]
        if kind == "object":
            return {choices.of(("name", "model", "url", "x")): choices.of(ODDITIES)}
        return MOMENT if schema.get("format") == "date-time" else schema.get("default") or "words"

    def _follow_references(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the schema behind references; of several forms, the first."""
        for several in ("allOf", "oneOf", "anyOf"):
            if several in schema:
                return self._follow_references(schema[several][0])
        if "$ref" in schema:
            return self._follow_references(self.schemas[schema["$ref"].rpartition("/")[2]])
        return schema


@cache
def document() -> Mapping[str, Any]:
    """Return the API's own schema, as ``/api/v1/schema/`` has it."""
    from drf_spectacular.generators import SchemaGenerator

    made: Mapping[str, Any] = SchemaGenerator().get_schema(public=True)
    return made


def api_of(owner: Any, folder: Path) -> Api:
    """Return the API with one row of each kind in the current workspace, for names in bodies."""
    from planner.inputs.ingest import IngestOptions
    from planner.services.traces import trace_ingest_path
    from tests.planner.objects import made
    from tests.planner.samples import DOCUMENT

    path = folder / "conv.csv"
    path.write_text(TRACE, encoding="utf-8")
    trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name))
    objects = made(owner, "own")
    rows = objects.by_word
    text = DOCUMENT.replace("conv", trace.name)
    named = {
        "document": text, "scenario": str(rows["scenarios/"]), "trace": trace.name,
        "run": rows["runs/"], "base_run": rows["runs/"], "profile": rows["profiles/"],
        "model": "llama-3.1-8b", "gpu": "H100-SXM", "cron": "0 5 * * *", "timezone": "UTC",
    }  # fmt: skip
    actions = []
    for route, methods in document()["paths"].items():
        names = re.findall(r"{(\w+)}", route)
        values = objects.arguments(route.removeprefix(PREFIX), names) if names else {}
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content:
                shown = tuple(e["value"] for e in content.get("examples", {}).values())
                url = route.format(**values)
                actions.append(Action(method, url, content["schema"], shown))
    return Api(tuple(actions), named, document()["components"]["schemas"])


def send(client: Any, action: Action, body: Any) -> Any:
    """Return the response to a request, and undo its changes of the database."""
    from django.db import transaction

    with transaction.atomic():
        answer = client.generic(
            action.method.upper(), action.url, json.dumps(body), content_type="application/json"
        )
        transaction.set_rollback(True)
    return answer
