"""Read a file of benchmark rows: the entry point of the package."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.files.documents import utf8_text
from planner.inputs.ingest.benchmarks.csv_rows import csv_rows, read_table
from planner.inputs.ingest.benchmarks.results import (
    CLOSED,
    TOOLS,
    Facts,
    ToolRows,
    per_replica,
    rows_of_declared_tool,
)
from planner.inputs.ingest.benchmarks.text_logs import text_documents
from planner.inputs.ingest.options import IngestOptions
from planner.inputs.ingest.rows import Batch
from planner.inputs.ingest.source import Source, foreign_file_type
from planner.inputs.ingest.unfold import documents
from simulation.performance.rows import NUMBERS, BenchmarkRows

BENCHMARK_FORMATS = ("auto", *TOOLS, "wva", "splitwise", "sageserve", "csv")
MAX_BYTES = 200_000_000  # a JSON with every request of a long run; rows alone are far smaller
MAX_ROWS = 1_000_000
LEAST_TBT_S, MOST_TBT_S = 1e-4, 5.0
GATEWAY = re.compile(r"gateway|router|load.?balanc|inference.?pool|ingress", re.IGNORECASE)
SHORT = 200  # characters of a text that may name a gateway


@dataclass(frozen=True, slots=True)
class BenchmarkFile:
    """The content of a file of measurements."""

    name: str
    format: str  # one of BENCHMARK_FORMATS, not "auto"
    rows: BenchmarkRows
    columns: tuple[str, ...]  # columns of BenchmarkRows with any value
    notes: tuple[str, ...]  # sentences on assumptions and omissions
    facts: Facts  # ttft_statistic and loop of every row
    gateway: bool  # the file names a gateway or a router, which may share load among replicas
    sha256: str
    bytes: int


def read_benchmarks(
    path: Path | str,
    *,
    name: str = "",
    format: str = "auto",
    replicas: int | None = None,
    max_bytes: int = MAX_BYTES,
    **given: str | float | None,
) -> BenchmarkFile:
    """Read benchmark rows from CSV or JSON, plain or compressed with gzip or zstd.

    ``given`` has values, named as in GIVEN, for rows that lack them. ``replicas`` is the number of
    replicas behind a gateway, for rows that do not state it. ``name`` is the file's original name,
    if it is stored under another.

    Raises IngestError that names the file, the line or field, and the remedy.
    """
    if format not in BENCHMARK_FORMATS:
        raise IngestError(
            f"There is no benchmark format {format!r}. Use one of {', '.join(BENCHMARK_FORMATS)}."
        )
    source = Source(
        path,
        IngestOptions(name=name, max_bytes=max_bytes, max_expanded_bytes=max_bytes),
        (".csv", ".json", ".jsonl", ".txt", ".log", ".yaml", ".yml"),
    )
    text = _text_of(source)
    results, table = _results_and_table(text, source.name)
    kind, rows, notes, facts = _tool_rows(results, table, source.name, format)
    _check_times(rows, source.name)
    rows = _fill_missing(rows, given)
    if given.get("concurrency"):
        facts["loop"] = [loop or CLOSED for loop in facts["loop"]]
    if replicas:
        rows = per_replica(rows, facts, replicas)
    if rows.rows > MAX_ROWS:
        raise IngestError(f"{source.name} has {rows.rows:,} rows and {MAX_ROWS:,} are allowed.")
    return BenchmarkFile(
        name=source.name,
        format=kind,
        rows=rows,
        columns=tuple(n for n in NUMBERS if np.isfinite(getattr(rows, n)).any()),
        notes=tuple(notes),
        facts=facts,
        gateway=bool(GATEWAY.search(source.name)) or _names_gateway(results or text),
        sha256=source.digest,
        bytes=source.bytes,
    )


def _results_and_table(text: str, name: str) -> tuple[list[dict[str, object]], Batch | None]:
    """Return the results of benchmark tools in a file, and its table (None if it is not CSV).

    Raise IngestError for JSON that is no object, list of objects, or several objects.
    """
    if results := text_documents(text, name):
        return results, None
    if text.lstrip()[0] in "{[":
        try:
            parsed = list(documents(iter([text.encode()]), name))
        except RecursionError:
            raise IngestError(f"{name} is nested too deeply to be a benchmark result.") from None
        if not parsed or not all(isinstance(document, dict) for document in parsed):
            raise IngestError(
                f"{name} holds no results; one JSON object per benchmark is expected."
            )
        return parsed, None
    table = read_table(text, name)
    columns = set(table.frame.columns)
    tools_of_runs = [tool for tool in TOOLS.values() if not tool.requests]
    if not any(columns.issuperset(tool.known_by) for tool in tools_of_runs):
        return [], table
    rows = table.frame.iter_rows(named=True)
    return [{key: cell for key, cell in row.items() if cell} for row in rows], table


def _tool_rows(
    results: list[dict[str, object]], table: Batch | None, name: str, format: str
) -> ToolRows:
    """Return rows of ``results``, or else of ``table``; raise IngestError for another format."""
    tool_rows = rows_of_declared_tool(results, name) if results else None
    if tool_rows is None:
        if table and format in ("vllm", "guidellm"):
            raise IngestError(
                f"{name} is not JSON. Give the JSON that {format} wrote, or format csv."
            )
        return csv_rows(table or _table_of(results, name), name, format)
    if format not in ("auto", tool_rows.format):
        raise IngestError(
            f"{name} looks like the JSON of {tool_rows.format}, not of {format}. Use auto."
        )
    return tool_rows


def _check_times(rows: BenchmarkRows, name: str) -> None:
    """Raise IngestError for times between tokens that no engine has, as in another unit."""
    wrong = (rows.tbt_s < LEAST_TBT_S) | (rows.tbt_s > MOST_TBT_S)
    if wrong.any():
        raise IngestError(
            f"{name}: row {int(wrong.argmax()) + 1} has {rows.tbt_s[wrong][0]:.3g} s between "
            "tokens, which no engine has. Correct the unit of its times."
        )


def _fill_missing(rows: BenchmarkRows, defaults: Mapping[str, str | float | None]) -> BenchmarkRows:
    """Return the rows with missing values replaced by ``defaults``, which has one per column."""
    filled: dict[str, Any] = {}
    for name, value in defaults.items():
        if value:
            known = getattr(rows, name)
            missing = np.isnan(known) if known.dtype.kind == "f" else known == ""
            filled[name] = np.where(missing, value, known)
    return replace(rows, **filled)


def _names_gateway(content: str | list[dict[str, object]]) -> bool:
    """Return whether the header of a table, or a short text of a result, names a gateway."""
    if isinstance(content, str):
        return bool(GATEWAY.search("".join(content.lstrip().splitlines()[:2])))
    inner = [value for result in content for value in result.values() if isinstance(value, dict)]
    for facts in (*content, *inner):
        for key, value in facts.items():
            is_short_text = isinstance(value, str) and len(value) <= SHORT
            if is_short_text and "model" not in str(key) and GATEWAY.search(f"{key}: {value}"):
                return True
    return False


def _text_of(source: Source) -> str:
    """Return the text of a file; raise IngestError if it is empty or not UTF-8 text."""
    content = b"".join(source.pieces())
    if file_type := foreign_file_type(content[:16]):
        raise IngestError(f"{source.name} is {file_type}.")
    text = utf8_text(content, source.name, "Save it as UTF-8.", IngestError)
    if not text.strip():
        raise IngestError(f"{source.name} is empty. Upload the file that the benchmark wrote.")
    return text


def _table_of(documents: list[dict[str, object]], name: str) -> Batch:
    """Return JSON objects that have a measured time and nothing nested as a table.

    Raise IngestError for other objects, such as results without completed requests.
    """
    columns: dict[str, Any] = {}
    rows = []
    for document in documents:
        columns |= dict.fromkeys(document, pl.String)
        rows.append({key: str(cell) for key, cell in document.items() if cell is not None})
    has_time = re.search("ttft|tpot|itl|tbt", " ".join(columns).lower())
    cells = (cell for document in documents for cell in document.values())
    is_nested = any(isinstance(cell, dict | list) for cell in cells)
    has_result = any(tool.rows_in(document) for tool in TOOLS.values() for document in documents)
    if not has_time or is_nested or has_result:
        raise _not_a_table(documents, name)
    frame = pl.DataFrame(rows, schema=columns)
    return Batch(frame, np.arange(1, frame.height + 1), str)


def _not_a_table(documents: Sequence[Mapping[str, object]], name: str) -> IngestError:
    """Return the error for results that are not of one tool, or without completed requests."""
    for number, document in enumerate(documents, 1):
        if document.get("completed") is None:
            where = f"{name}, result {number}" if len(documents) > 1 else name
            return IngestError(
                f"{where} has no completed or median_tpot_ms. Give the JSON that vllm bench serve "
                "writes with --save-result, or the file of another tool."
            )
    return IngestError(f"{name} mixes the results of several tools. Give one file per tool.")
