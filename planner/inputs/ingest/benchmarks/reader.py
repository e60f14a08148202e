"""Read a file of benchmark rows: the entry point of the package."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import IngestError
from planner.inputs.ingest.benchmarks.csv_rows import csv_rows
from planner.inputs.ingest.benchmarks.results import CLOSED, TOOLS, Facts, declared, per_replica
from planner.inputs.ingest.benchmarks.text_logs import text_documents
from planner.inputs.ingest.options import IngestOptions
from planner.inputs.ingest.source import Source, other_file_type
from planner.inputs.ingest.unfold import documents
from simulation.performance.rows import NUMBERS, BenchmarkRows

BENCHMARK_FORMATS = ("auto", *TOOLS, "wva", "splitwise", "sageserve", "csv")
MAX_BYTES = 200_000_000  # a JSON with every request of a long run; rows alone are far smaller
MAX_ROWS = 1_000_000
GIVEN = ("model", "gpu", "precision", "tp", "isl", "osl", "concurrency")  # from the caller
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

    ``given`` (GIVEN) and ``replicas`` behind a gateway fill in missing values only. ``name`` is the
    file's original name, if it is stored under another.

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
    content = b"".join(source.pieces())
    if what := other_file_type(content[:16]):
        raise IngestError(f"{source.name} is {what}.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise IngestError(
            f"{source.name} is not UTF-8 text (byte {error.start:,}). Save it as UTF-8."
        ) from None
    if not text.strip():
        raise IngestError(f"{source.name} is empty. Upload the file that the benchmark wrote.")
    results = text_documents(text, source.name) or _flat_results(text, format)
    if results or text.lstrip()[0] in "{[":
        results = results or _documents(text, source.name)
        kind, rows, notes, facts = _json(results, source.name, format)
    else:
        if format in ("vllm", "guidellm"):
            raise IngestError(
                f"{source.name} is not JSON. Give the JSON that {format} wrote, or format csv."
            )
        kind, rows, notes, facts = csv_rows(text, source.name, format)
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


def _fill_missing(rows: BenchmarkRows, given: Mapping[str, str | float | None]) -> BenchmarkRows:
    filled: dict[str, Any] = {}
    for name, value in given.items():
        known = getattr(rows, name)
        missing = np.isnan(known) if known.dtype.kind == "f" else known == ""
        if value:
            filled[name] = np.where(missing, value, known)
    return replace(rows, **filled)


def _names_gateway(content: str | list[dict[str, object]]) -> bool:
    """Return whether the header of a table, or a short text of a result, names a gateway."""
    if isinstance(content, str):
        return bool(GATEWAY.search("".join(content.lstrip().splitlines()[:2])))
    inner = [value for each in content for value in each.values() if isinstance(value, dict)]
    texts = (
        f"{key}: {value}"
        for each in (*content, *inner)
        for key, value in each.items()
        if isinstance(value, str) and len(value) <= SHORT and "model" not in str(key)
    )
    return any(map(GATEWAY.search, texts))


def _json(
    documents: list[dict[str, object]], name: str, format: str
) -> tuple[str, BenchmarkRows, Sequence[str], Facts]:
    """Return the tool, rows, notes and facts of JSON results; raise IngestError if unknown."""
    known = declared(documents, name)
    if known is None:
        if format in ("auto", "csv") and (table := _table_of(documents)):
            return csv_rows(table, name, format)
        raise _unknown(documents, name)
    if format not in ("auto", known[0]):
        raise IngestError(f"{name} looks like the JSON of {known[0]}, not of {format}. Use auto.")
    return known


def _table_of(documents: list[dict[str, object]]) -> str:
    """Return flat objects with a measured time as a CSV table; "" if they are not such objects."""
    columns = list(dict.fromkeys(key for document in documents for key in document))
    if any(tool.rows_in(document) for document in documents for tool in TOOLS.values()):
        return ""
    if any(isinstance(value, dict | list) for document in documents for value in document.values()):
        return ""
    if not any(re.search("ttft|tpot|itl|tbt", str(column).lower()) for column in columns):
        return ""
    out = io.StringIO()
    table = csv.DictWriter(out, columns)
    table.writeheader()
    table.writerows(documents)
    return out.getvalue()


def _flat_results(text: str, format: str) -> list[dict[str, object]]:
    """Return the rows of a CSV table whose columns are keys of a known tool's JSON result."""
    if format not in ("auto", *TOOLS) or text.lstrip()[0] in "{[":
        return []
    header = text.lstrip().split("\n", 1)[0].strip().replace('"', "").split(",")
    if not any(set(tool.known_by) <= set(header) for tool in TOOLS.values() if not tool.requests):
        return []
    rows = csv.DictReader(io.StringIO(text.lstrip()))
    try:
        return [{key: value for key, value in row.items() if key and value} for row in rows]
    except csv.Error:  # the reader of tables names the line
        return []


def _unknown(documents: list[dict[str, object]], name: str) -> IngestError:
    for number, document in enumerate(documents, 1):
        if document.get("completed") is None:
            where = f"{name}, result {number}" if len(documents) > 1 else name
            return IngestError(
                f"{where} has no completed or median_tpot_ms. Give the JSON that vllm bench serve "
                "writes with --save-result, or the file of another tool."
            )
    return IngestError(f"{name} mixes the results of several tools. Give one file per tool.")


def _documents(text: str, name: str) -> list[dict[str, object]]:
    """Return the objects of a JSON document, of a list, or of concatenated documents."""
    try:
        found = list(documents(iter([text.encode()]), name))
    except RecursionError:
        raise IngestError(f"{name} is nested too deeply to be a benchmark result.") from None
    if not found or not all(isinstance(document, dict) for document in found):
        raise IngestError(f"{name} holds no results; one JSON object per benchmark is expected.")
    return found
