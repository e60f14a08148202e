"""What is sent: by kind of input, each with a name of its own. Files are in ``files``."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.malformed.files import (
    compressed_inputs,
    descriptions,
    file_names,
    kernel_files,
    no_files,
    parquet_types,
    texts,
)
from bench.malformed.input import DEEP, LONG, Input

SCENARIO = """version: 1
models: [llama-3.1-8b]
profiles: [{model: llama-3.1-8b, gpu: H100, tp: 1}]
regions: [{name: east, capacity: {H100: 64}}]
tiers: [{name: interactive, ttft_ms: 1000}]
traffic: {sources: [{trace: conv, model: llama-3.1-8b}]}
"""


def inputs() -> Iterator[Input]:
    """Yield all inputs."""
    for make in (
        parquet_types, texts, compressed_inputs, no_files, scenarios, moments, json_bodies, filters,
        forms, file_names, kernel_files, descriptions, tunings, fields,
    ):  # fmt: skip
        yield from make()


def documents() -> dict[str, str]:
    """Return invalid scenarios by name."""
    numbers = {
        "hexadecimal": "0x" + "f" * 5000,
        "octal": "0o" + "7" * 5000,
        "binary": "0b" + "1" * 20_000,
        "decimal": LONG,
        "negative": "-" + LONG,
        "a float": f"{LONG}.5",
        "an exponent": "1e999999",
    }
    places = {
        "seed": lambda n: SCENARIO + f"seed: {n}\n",
        "version": lambda n: SCENARIO.replace("version: 1", f"version: {n}"),
        "name": lambda n: SCENARIO + f"name: {n}\n",
        "capacity": lambda n: SCENARIO.replace("H100: 64", f"H100: {n}"),
        "a limit": lambda n: SCENARIO.replace("1000}", f"{n}}}"),
        "a key": lambda n: SCENARIO + f"{n}: 1\n",
        "a model": lambda n: SCENARIO.replace("models: [llama-3.1-8b]", f"models: [{n}]"),
    }
    of_files = {
        f"a number of 5,000 digits, {how}, as {where}": put(number)
        for how, number in numbers.items()
        for where, put in places.items()
    }
    return of_files | {
        "nothing": "",
        "a list": "- 1",
        "a word": "hello",
        "brackets": "[" * 5000,
        "braces": "{a: " * 5000,
        "aliases that multiply": "a: &a [1,1,1,1,1,1,1,1]\n"
        + "\n".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 8)}]"
            for i in range(12)
        ),
        "an alias of itself": "version: 1\na: &a [*a]",
        "an unknown alias": "version: *a",
        "a tag of Python": "version: !!python/object/apply:os.system ['true']",
        "a tag unheard of": "version: !thing 1",
        "a tab": "version:\t1\n\tmodels: 1",
        "two documents": f"{SCENARIO}---\n{SCENARIO}",
        "a NUL": SCENARIO + "name: 'a\\0b'\n",
        "a control character": SCENARIO + "name: a\x07b\n",
        "a date that is none": SCENARIO + "horizon: {start: 2024-13-45}\n",
        "a file of this machine": SCENARIO.replace("trace: conv", "file: /etc/passwd"),
        "a file above": SCENARIO.replace("trace: conv", "file: ../../secret-key.txt"),
        "a trace with a path": SCENARIO.replace("trace: conv", "trace: ../../x"),
        "300,000 characters": SCENARIO + "#" * 300_000,
        "sexagesimal": SCENARIO + "seed: 190:20:30\n",
        "not a number": SCENARIO.replace("1000}", ".nan}"),
        "infinite": SCENARIO.replace("1000}", ".inf}"),
        "merge keys": SCENARIO + "<<: [1, 2]\n",
    }


def scenarios() -> Iterator[Input]:
    for name, text in documents().items():
        yield Input(
            "Scenarios",
            f"{name}, by REST",
            lambda doors, text=text: doors.yaml("/api/v1/scenarios/", text),  # type: ignore[misc]
        )
        yield Input(
            "Scenarios",
            f"{name}, by form",
            lambda doors, text=text: doors.form(  # type: ignore[misc]
                "/scenarios/new/", document=text, mode="yaml", action="save"
            ),
        )
        yield Input(
            "Scenarios",
            f"{name}, by command",
            lambda doors, text=text: doors.command(  # type: ignore[misc]
                "plan", str(doors.file("a.yml", text.encode("utf-8", "replace")))
            ),
        )


def moments() -> Iterator[Input]:
    for moment in (
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "1969-12-31T23:59:59Z",
        "2262-01-01T00:00:00Z",
        "2024-05-10T00:00:00+25:00",
        "-0001-01-01",
    ):
        text = SCENARIO + f'horizon: {{start: "{moment}"}}\n'
        yield Input(
            "Moments",
            f"{moment} as a start, by REST",
            lambda doors, text=text: doors.json(  # type: ignore[misc]
                "/api/v1/plan/", json.dumps({"document": text})
            ),
        )
        for path in ("/api/v1/traces/conv/demand/", "/api/v1/traces/conv/character/"):
            yield Input(
                "Moments",
                f"{moment} in {path}",
                lambda doors, path=path, moment=moment: doors.get(  # type: ignore[misc]
                    f"{path}?start={moment.replace('+', '%2B')}&end={moment.replace('+', '%2B')}"
                ),
            )


def bodies() -> dict[str, str | bytes]:
    return {
        "nothing": "",
        "no JSON": "{",
        "a list": "[]",
        "a number": "7",
        "null": "null",
        "nested deep": "[" * DEEP + "]" * DEEP,
        "an object nested deep": '{"rows":' * 3000 + "1" + "}" * 3000,
        "deep in its fields": '{"document":' + "[" * 900 + "]" * 900 + "}",
        "a number of 5,000 digits": f'{{"document": {LONG}, "name": {LONG}, "isl": {LONG}}}',
        "numbers of 5,000 digits in words": json.dumps({"document": LONG, "name": LONG}),
        "infinity": '{"document": Infinity, "isl": NaN}',
        "not UTF-8": b'{"document": "\xff"}',
        "a lone surrogate": '{"document": "\\ud800", "name": "\\ud800", "username": "\\ud800"}',
        "a NUL": '{"document": "\\u0000", "name": "\\u0000", "username": "\\u0000"}',
        "lists for words": '{"document": [], "name": {}, "scenario": [1], "options": []}',
        "words for lists": '{"rows": "a", "policies": "a", "options": "b", "observations": 5}',
        "rows nested": '{"rows": [[[]], {"model": {"a": []}}, 5, null]}',
    }


POSTS = (
    "scenarios/", "estimates/", "estimates/rows/", "plan/", "simulate/", "compare/", "forecast/",
    "size/", "pd-ratio/", "provision/", "pareto/", "place/", "backtest/", "gpus/", "models/",
    "profiles/", "observations/", "users/", "token/", "hardware/", "calibrations/", "traces/",
    "ingest/",
)  # fmt: skip


def json_bodies() -> Iterator[Input]:
    for path in POSTS:
        for name, body in bodies().items():
            yield Input(
                "JSON bodies",
                f"{name} to {path}",
                lambda doors, path=path, body=body: doors.json(  # type: ignore[misc]
                    f"/api/v1/{path}", body
                ),
            )


def filters() -> Iterator[Input]:
    values = {
        "64 bits": str(2**63),
        "5,000 digits": LONG,
        "negative": "-1",
        "a fraction": "1.5",
        "a NUL": "%00",
        "not UTF-8": "%ff%fe",
        "a lone surrogate": "%ed%a0%80",
        "Arabic digits": "%d9%a1",
        "nothing": "",
    }
    places = (
        "/api/v1/runs/?scenario=", "/api/v1/runs/?trace=", "/api/v1/runs/?page=",
        "/api/v1/runs/?page_size=", "/api/v1/runs/?ordering=", "/api/v1/traces/?name=",
        "/api/v1/scenarios/?name=", "/size/?scenario=", "/pd-ratio/?scenario=", "/pd-ratio/?of=",
        "/runs/?page=", "/traces/?page=", "/scenarios/new/?trace=", "/runs/compare/?run=",
        "/hardware/profiles/?search=", "/estimate/?isl=",
    )  # fmt: skip
    for place in places:
        for name, value in values.items():
            yield Input(
                "Filters",
                f"{name} in {place}",
                lambda doors, address=place + value: doors.get(address),  # type: ignore[misc]
            )
    for path in (
        "/api/v1/runs/{}/", "/runs/{}/", "/scenarios/{}/", "/api/v1/scenarios/{}/",
        "/api/v1/traces/{}/", "/traces/{}/", "/api/v1/calibrations/{}/", "/api/v1/profiles/{}/",
    ):  # fmt: skip
        for name in ("64 bits", "5,000 digits", "a NUL", "not UTF-8", "negative"):
            yield Input(
                "Filters",
                f"{name} in {path}",
                lambda doors, path=path, value=values[name]: doors.get(path.format(value)),  # type: ignore[misc]
            )


def forms() -> Iterator[Input]:
    numbers = {"64 bits": str(2**63), "5,000 digits": LONG, "words": "x", "negative": "-1"}
    for name, value in numbers.items():
        for section in ("regions", "tiers", "sources", "profiles"):
            fields = {f"{section}-TOTAL_FORMS": value, f"{section}-INITIAL_FORMS": value}
            for action in ("save", f"add-{section}"):
                yield Input(
                    "Forms",
                    f"{name} in {section}-TOTAL_FORMS, {action}",
                    lambda doors, fields=fields, action=action: doors.form(  # type: ignore[misc]
                        "/scenarios/new/", mode="form", action=action, **fields
                    ),
                )
        for path in ("/hardware/gpus/new/", "/hardware/models/new/"):
            fields = dict.fromkeys(("version", "memory_gb", "layers", "hidden", "price"), value)
            yield Input(
                "Forms",
                f"{name} everywhere in {path}",
                lambda doors, path=path, fields=fields: doors.form(  # type: ignore[misc]
                    path, name="Own", **fields
                ),
            )
        yield Input(
            "Forms",
            f"{name} as isl of a size",
            lambda doors, value=value: doors.form(  # type: ignore[misc]
                "/size/", scenario=value, isl=value, osl=value
            ),
        )


def tunings() -> Iterator[Input]:
    path = "/api/v1/observations/"
    for name, body in bodies().items():
        yield Input(
            "Observations",
            name,
            lambda doors, body=body: doors.json(path, body),  # type: ignore[misc]
        )
        yield Input(
            "Observations",
            f"{name}, as rows to estimate in a file",
            lambda doors, body=body: doors.upload(  # type: ignore[misc]
                "/estimate/rows/", "rows.jsonl", body if isinstance(body, bytes) else body.encode()
            ),
        )


def fields() -> Iterator[Input]:
    """Yield bodies with one wrong field, for every address; their changes are undone."""
    from bench.bodies import ODDITIES, Choices, api_of
    from bench.malformed.doors import NAME
    from planner.models import User

    folder = Path(tempfile.mkdtemp(prefix="malformed-"))
    api = api_of(User.objects.get(username=NAME), folder)
    shutil.rmtree(folder)
    number = 0
    for action in api.actions:
        for field in api.fields(action):
            for _ in range(3):
                number += 1
                body = api.body(action, Choices(b"")) | {field: ODDITIES[number % len(ODDITIES)]}
                yield Input(
                    "Fields of JSON bodies",
                    f"{str(body[field])[:20]!r} as {field} to {action.name}",
                    lambda doors, action=action, body=body: doors.undone(  # type: ignore[misc]
                        action, body
                    ),
                )
