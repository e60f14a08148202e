"""Read a user's text as UTF-8, YAML, JSON or CSV, and limit how much it may hold.

Each reader raises the ``error`` that its caller names. The message gives file, place and remedy.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from planner.files.stored_text import unstorable_character

MAX_VALUES = 200_000  # counted with aliases expanded: a few lines can expand to billions of values
MAX_DEPTH = 50
MAX_DIGITS = 40  # digits of a whole number; no quantity needs more
Refusal = Callable[[str], Exception]  # makes the error from a message


def utf8_text(data: bytes, name: str, remedy: str, error: Refusal) -> str:
    """Return UTF-8 text with LF line ends, without the byte order mark that spreadsheets write.

    In all functions here, ``name`` is that of the file, and ``error`` makes the error to raise.
    """
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise error(f"{name} is not UTF-8 text (byte {problem.start:,}). {remedy}") from None


def yaml_documents(text: str, name: str, error: Refusal) -> list[Any]:
    """Return the documents in a YAML text as plain data within limits."""
    try:
        documents = list(YAML(typ="safe", pure=True).load_all(text))
    except YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        fault = getattr(problem, "problem", None) or str(problem).splitlines()[0]
        raise error(
            f"{name}{line}: not valid YAML: {fault}. Correct it or export it again."
        ) from None
    except (ValueError, TypeError, RecursionError):  # the date 2024-13-01, or a list as a key
        raise error(
            f"{name}: not valid YAML: it has an invalid date, number or key, or is nested too "
            "deeply. Correct it or export it again."
        ) from None
    for document in documents:
        if fault := fault_of_extent(document):
            raise error(f"{name}: {fault}.")
    return documents


def yaml_document(text: str, name: str, error: Refusal) -> Any:
    """Return the only document in a YAML text as plain data; None if the text is empty."""
    documents = yaml_documents(text, name, error)
    if len(documents) > 1:
        raise error(f"{name} holds {len(documents)} YAML documents. Keep one.")
    return documents[0] if documents else None


def json_value(text: str | bytes, name: str, remedy: str, error: Refusal) -> Any:
    """Return the value in a JSON text; see ``fault_of_extent`` for its size."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        place = f"{name}, line {problem.lineno}"
        raise error(f"{place}: not valid JSON: {problem.msg}. {remedy}") from None
    # The parser recurses once per bracket. Python refuses numbers with thousands of digits.
    except (RecursionError, ValueError):
        raise error(
            f"{name}: not valid JSON: not UTF-8 text, nested too deeply, or a number is too long. "
            f"{remedy}"
        ) from None


def csv_rows(text: str, name: str, error: Refusal) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row of a CSV text."""
    reader = csv.reader(io.StringIO(text))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as problem:
        raise error(
            f"{name}, line {max(1, reader.line_num)} cannot be read as CSV ({problem}). Save it "
            "again, with LF or CRLF line ends."
        ) from None


def fault_of_extent(data: Any, *, max_values: int = MAX_VALUES) -> str:
    """Return why plain data is too large to process, as the end of a sentence; "" if it is not.

    Finds aliases that multiply or contain themselves, nesting that would exhaust recursion, whole
    numbers that are too long for Python to print, and characters that cannot be stored.
    """
    count = 0
    to_check: list[tuple[Any, int]] = [(data, 0)]  # (value, depth)
    while to_check:
        value, depth = to_check.pop()
        count += 1
        if count > max_values:
            return f"more than {max_values:,} values, far more than are needed. Check its aliases"
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels. Check its brackets and aliases"
        if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
            return f"a number with more than {MAX_DIGITS} digits"
        character = unstorable_character(_text_of(value))
        if character:
            return f"the character {character} in a text, which cannot be stored. Remove it"
        if isinstance(value, Mapping):
            inner = [*value.values(), *(key for key in value if isinstance(key, int))]
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            inner = list(value)
        else:
            continue
        to_check += [(item, depth + 1) for item in inner]
    return ""


def _text_of(value: Any) -> str:
    """Return a text itself, of a mapping its joined keys, and "" for anything else."""
    if isinstance(value, Mapping):
        return "".join(key for key in value if isinstance(key, str))
    return value if isinstance(value, str) else ""
