"""Read results of benchmark tools by their declarations: one TOML file each in ``tools``.

A declaration has ``title``, ``docs`` (the tool's page), ``known_by`` (paths that identify a run)
and ``[fields]``: field to a path in the run. ``*`` is the first element of a list with the rest of
the path, and ``#`` the number of such elements. ``a | b`` takes b where a is absent; ``a - b`` and
``a / b`` are computed. Fields of times end with ``_ns``, ``_ms`` or ``_s``; ``unit`` or ``units``
beside a value counts instead.

``requests = true``: each object is one request, and each run becomes a row. No column holds the
load that a request met. By Little's law, the mean number in flight is the sum of all end-to-end
times over the duration of the run.

``rows`` names the list of runs in a report, and ``extras`` the objects with what users add. Each
run then has its report as ``report``.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.clock import choose_time_format, read_times, unit_of
from planner.inputs.ingest.names import SYNONYMS, compact_name
from planner.inputs.numbers import finite_number
from simulation.arrays import FloatArray
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.rows import BenchmarkRows, benchmark_rows

LOG_ROWS = 20
TEXTS = ("model", "gpu", "precision")
ARRIVAL = ("arrivals", "arrivalms", "arrivaltime", "arrivaltimes", "arrivaltimems")
TIME_FIELDS = ("ttft", "tbt", "e2e", "mean_ttft", "mean_tbt", "mean_e2e", "arrival", "decode")
SCALE = {"ns": 1e-9, "ms": 1e-3, "s": 1.0}
SECONDS_OF_UNIT = {
    f"{unit}{suffix}": seconds
    for unit, seconds in (SCALE | {"us": 1e-6, "sec": 1.0, "seconds": 1.0}).items()
    for suffix in ("", "/token")
}
NAMED = {  # what users of several tools add to a run
    "gpu": "gpu | gpu_type | gpu_name | hardware | accelerator | device",
    "precision": "precision | dtype | quantization | weight_precision",
    "tp": "tp | tensor_parallel | tensor_parallel_size | tp_size",
}
ENGINE_NAMES = {**{each: each for each in ENGINES}, "tensorrtllm": "trtllm"}
MEDIAN, MEAN = re.compile(r"median|p50|50.00 perc|50.00_perc"), re.compile(r"mean|avg", re.I)
OPEN, CLOSED = "open", "closed"  # loops: a rate of arrivals, or a number in flight
FACTS = ("engine", "engine_version", "ttft_statistic", "loop", "replicas")
ENGINE_PATHS = ("engine", "backend", "framework", "report.backend")
VERSION_PATHS = ("engine_version", "backend_version", "vllm_version", "sglang_version")
Facts = dict[str, list[str]]  # of every row, by FACTS; "": not in the file
# Columns of a log of requests, by the tool's field.
REQUEST_COLUMNS = {"isl": "isl", "osl": "osl"} | {
    f"{time}_s": time for time in ("arrival", "e2e", "ttft", "tbt")
}
MOST_LISTED = 5  # names in a note
LEAST_REACHED = 0.5  # of a limit on requests in flight; with fewer in flight, the limit is no load
NOTABLE = 0.05  # share of failed requests that is reported


def arrival_column(header: Sequence[str], rows: int) -> str | None:
    """Return the column of arrival times in a log of requests; None for a table of runs.

    ``header`` has the names of the columns, and ``rows`` is their length. A table of fewer than
    LOG_ROWS rows with a column of other times has one row per run.
    """
    names = (*ARRIVAL, *SYNONYMS["arrival"]) if rows >= LOG_ROWS else ARRIVAL
    column_by_name = {compact_name(column): column for column in header}
    return next((column_by_name[name] for name in names if name in column_by_name), None)


def arrivals_s(cells: pl.Series, name: str) -> FloatArray:
    """Return arrivals in seconds, from numbers or dates."""
    frame = cells.to_frame()
    time_format = choose_time_format(frame, (cells.name,), name=name, unit=unit_of(cells.name))
    arrivals = read_times(frame, time_format)
    if any(wrong.any() for wrong in arrivals.refused.values()):
        raise IngestError(
            f"{name}: {cells.name} has values that are not times. Correct these rows."
        )
    return np.asarray(arrivals.ns / 1e9)


class ToolRows(NamedTuple):
    """The measured rows of a file, with what is known about them."""

    format: str  # the tool, or the kind of table
    rows: BenchmarkRows
    notes: list[str]
    facts: Facts


def rows_of_requests(
    format: str, texts: Mapping[str, Sequence[str]], numbers: Mapping[str, FloatArray]
) -> ToolRows:
    """Return one row per run (model, GPU, precision and tp) of a log of requests.

    ``texts`` and ``numbers`` have the values of every request: isl, osl, arrival_s, e2e_s, ttft_s,
    tbt_s. A row has mean lengths and median times, as benchmarks report them. Raise IngestError
    without a request that has times.
    """
    needed = ("arrival_s", "ttft_s", "e2e_s", "isl", "osl")
    is_complete = np.isfinite(sum(numbers[name] for name in needed))  # a sum with NaN is NaN
    if not is_complete.any():
        raise IngestError("No request has times to its first and last token. Add them.")
    count, failed = int(is_complete.sum()), int((~is_complete).sum())
    columns: dict[str, Any] = dict.fromkeys(TEXTS, [""] * is_complete.size)
    columns |= {"tp": np.full(is_complete.size, np.nan), **texts, **numbers}
    requests = pl.DataFrame(columns).filter(is_complete).fill_nan(None)
    arrival, e2e, osl = pl.col("arrival_s"), pl.col("e2e_s"), pl.col("osl")
    # From the first arrival to the last completion.
    seconds = (arrival + e2e).max() - arrival.min()
    runs = requests.group_by(*TEXTS, "tp", maintain_order=True).agg(
        pl.col("isl", "osl").mean(),
        pl.col("ttft_s", "tbt_s", "e2e_s").median(),
        (e2e.sum() / seconds).alias("concurrency"),  # Little's law
        (osl.sum() / seconds).alias("throughput"),
        osl.len().cast(pl.Float64).alias("completed"),
    )
    # Requests without times count as failed, in proportion to the completed ones of each run.
    runs = runs.with_columns(failed=pl.col("completed") * failed / count)
    texts_of_run = {name: runs[name].to_list() for name in TEXTS}
    figures = runs.drop(TEXTS).fill_null(np.nan)
    numbers_of_run = {column.name: column.to_numpy() for column in figures}
    notes = [
        f"One line per request: {count:,} requests were summed up as {runs.height} runs, with mean "
        "lengths, median times and the mean number in flight (Little's law)."
    ]
    if failed:
        notes.append(f"{failed:,} requests have no times and count as failed.")
    facts = {"ttft_statistic": "median", "loop": OPEN, "replicas": ""}
    facts_of_run = {name: [value] * runs.height for name, value in facts.items()}
    return ToolRows(format, benchmark_rows(texts_of_run, numbers_of_run), notes, facts_of_run)


@dataclass(frozen=True, slots=True)
class Tool:
    """How to read the result file of one benchmark tool: the paths to its fields."""

    name: str
    title: str
    docs: str
    known_by: Sequence[str]
    fields: Mapping[str, str]
    requests: bool = False
    rows: str = ""
    extras: Sequence[str] = ()

    def rows_in(self, document: Any) -> list[Any]:
        """Return this tool's runs in a document (one run, or several); [] if it has none."""
        if self.rows:
            rows = value_at(document, self.rows)
            runs = [_run(run, document, self.extras) for run in rows or ()]
            return runs if runs and all(map(self._is_result, runs)) else []
        if self._is_result(document):
            return [document]
        values = list(document.values()) if isinstance(document, dict) else []
        return values if values and all(map(self._is_result, values)) else []

    def unread(self, run: Mapping[str, Any]) -> list[str]:
        """Return the keys of a run that have numbers or objects, and that no field reads."""
        # A field may be computed from several paths, such as "a.b - c".
        paths = [path for text in self.fields.values() for path in re.split(r" [-|/] ", text)]
        first_steps = {path.split(".")[0] for path in paths}
        used = {"report", *self.known_by, *paths, *first_steps}
        unread = []
        for key, value in run.items():
            is_data = isinstance(value, int | float | dict) and value is not True
            if is_data and key not in used:
                unread.append(key)
        return unread

    def _is_result(self, run: Any) -> bool:
        """Return whether an object has all values that identify a run of this tool."""
        if not isinstance(run, dict):
            return False
        return all(value_at(run, path) is not None for path in self.known_by)


def _run(run: Any, report: Any, extras: Sequence[str]) -> Any:
    """Return a run with the whole file as its ``report``, and with the fields of its metadata.

    ``extras`` are paths to metadata that users add to a run. The run's own fields win.
    """
    if not isinstance(run, dict):
        return run
    with_report = {**run, "report": report}
    merged: dict[str, Any] = {}
    for path in extras:
        metadata = value_at(with_report, path)
        if isinstance(metadata, dict):
            merged |= metadata
    return merged | with_report


TOOLS: dict[str, Tool] = {}
for path in sorted((Path(__file__).parent / "tools").glob("*.toml")):
    declared = tomllib.loads(path.read_text(encoding="utf-8"))
    declared["fields"] = NAMED | declared["fields"]
    TOOLS[path.stem] = Tool(path.stem, **declared)


def value_at(run: Any, path: str) -> Any:
    """Return the value at a dotted path in a run; None if it has none.

    The steps of a path are names of an object, and in lists an index, ``*`` (the first item that
    has the rest of the path) or ``#`` (the number of such items). Only the last name may have dots.
    """
    if isinstance(run, dict) and path in run:
        return run[path]
    step, _, rest = path.partition(".")
    if isinstance(run, list) and step in ("*", "#"):
        values_or_none = [value_at(item, rest) for item in run]
        values = [value for value in values_or_none if value is not None]
        if step == "#":
            return len(values)
        return values[0] if values else None
    inner = None
    if isinstance(run, dict):
        inner = run.get(step)
    elif isinstance(run, list) and step.isdecimal() and int(step) < len(run):
        inner = run[int(step)]
    return value_at(inner, rest) if rest and inner is not None else inner


def statistic_of(name: str) -> str:
    """Return "median" or "mean" if a column's name says so, else ""."""
    if MEDIAN.search(name.lower()):
        return "median"
    return "mean" if MEAN.search(name) else ""


def _statistic(tool: Tool, run: Any, where: str) -> str:
    """Return "mean" or "median" if the path of the run's TTFT says so, else "".

    Of alternative paths, the first with a number counts. ``where`` names the run in errors.
    """
    ttft_paths = [text for key, text in tool.fields.items() if key.startswith("ttft_")]
    for path in ttft_paths[0].split(" | ") if ttft_paths else ():
        if not math.isnan(_number(run, path, where)):
            return statistic_of(path)
    return ""


def _number(run: Any, expression: str, where: str, unit_s: float = 0.0) -> float:
    """Return the value of a tool's expression, such as ``ttft.mean | e2e - decode``, for a run.

    Of alternatives, separated by " | ", the first with a value counts. NaN if none has. A time is
    converted from the unit that the file states beside it to units of ``unit_s`` seconds; 0: it is
    no time. ``where`` names the run in errors.
    """
    for alternative in expression.split(" | "):
        value = _term(run, alternative, where, unit_s)
        if not math.isnan(value):
            return value
    return math.nan


def _term(run: Any, text: str, where: str, unit_s: float) -> float:
    """Return the value of a difference, a ratio or a path in ``run``, as ``_number`` does.

    NaN without a value. Raise IngestError for a value that is no number from 0.
    """
    for operator in (" - ", " / "):
        first, is_used, second = text.partition(operator)
        if is_used:
            left, right = (_term(run, part, where, unit_s) for part in (first, second))
            if operator == " - ":
                return left - right
            return left / right if right else math.nan
    path = text.strip()
    value = value_at(run, path)
    number = math.nan if value is None else finite_number(value)
    if number is None or number < 0:
        raise IngestError(
            f"{where}: {path} is {value!r:.60}; a number from 0 is expected, correct or remove it."
        )
    parent = path.rpartition(".")[0]
    file_unit = value_at(run, f"{parent}.units") or value_at(run, f"{parent}.unit")
    file_unit_s = SECONDS_OF_UNIT.get(str(file_unit).lower())
    return number * (file_unit_s / unit_s) if unit_s and file_unit_s else number


def rows_of_declared_tool(documents: Sequence[Any], name: str) -> ToolRows | None:
    """Return the rows of results if all ``documents`` are of one tool of TOOLS; else None."""
    for tool in TOOLS.values():
        runs_by_document = [tool.rows_in(document) for document in documents]
        if runs_by_document and all(runs_by_document):
            return _rows_of_tool(tool, list(chain(*runs_by_document)), name)
    return None


def _rows_of_tool(tool: Tool, tool_runs: Sequence[Any], name: str) -> ToolRows:
    """Return the rows of a tool's runs; raise IngestError without a completed request.

    Runs of a log of requests are summed up. Other runs become a row each.
    """
    runs = [_values(tool, run, f"{name}, result {i}") for i, run in enumerate(tool_runs, 1)]
    if any(run.get("completed") == 0 for run in runs):
        raise IngestError(f"{name}: no request was completed. Leave this result out.")
    unread = unread_note(key for run in tool_runs for key in tool.unread(run))
    if tool.requests:  # each "run" is one request
        texts = {key: [str(request.get(key, "")) for request in runs] for key in TEXTS}
        columns = {}
        for column, key in REQUEST_COLUMNS.items():
            columns[column] = np.array([request.get(key, math.nan) for request in runs])
        rows = rows_of_requests(tool.name, texts, columns)
        return rows._replace(notes=rows.notes + unread)
    completed, notes = [], []
    for number, run in enumerate(runs, 1):
        if not tool.rows or run["tbt"] > 0:
            completed.append(run)
        else:  # a report lists runs without a completed request too
            notes.append(f"Benchmark {number} is excluded: it completed no request.")
    if not completed:
        raise IngestError(f"{name}: no benchmark has a completed request. Run it again.")
    table = [_row(run) for run in completed]
    notes += _notes(completed, table) + unread
    figures = {key: [row[key] for row in table] for key in table[0] if key != "by_law"}
    texts = {key: figures.pop(key) for key in TEXTS}
    facts = {name: [run[name] for run in completed] for name in FACTS}
    return ToolRows(tool.name, benchmark_rows(texts, figures), notes, facts)


def _values(tool: Tool, run: Any, where: str) -> dict[str, Any]:
    """Return the fields of a run that ``tool`` declares, and its FACTS (such as the engine).

    A field that the run lacks is NaN or "". A key such as ttft_ms states the unit of a time, which
    becomes ttft in seconds. ``where`` names the run in errors.
    """
    values: dict[str, Any] = {}
    for key, expression in tool.fields.items():
        field, _, unit = key.rpartition("_")
        if key in TEXTS:
            paths = [path.strip() for path in expression.split(" | ")]
            values[key] = str(_first_stated(run, paths))
        elif unit in SCALE and field in TIME_FIELDS:
            values[field] = _number(run, expression, where, SCALE[unit]) * SCALE[unit]
        else:
            values[key] = _number(run, expression, where)
    # A log of requests may give the time of all tokens after the first.
    if "decode" in values and values.get("osl", 0) > 1:
        values["tbt"] = values["decode"] / (values["osl"] - 1)
    replicas = values.get("replicas", math.nan)
    values["replicas"] = "" if math.isnan(replicas) else f"{max(1.0, replicas):g}"
    values["loop"] = OPEN if math.isnan(values.get("concurrency", math.nan)) else CLOSED
    values["ttft_statistic"] = _statistic(tool, run, where)
    values["engine"] = _engine(run)
    values["engine_version"] = str(_first_stated(run, VERSION_PATHS))[:60]
    return values


def _engine(run: Any) -> str:
    """Return the engine that a run names first and that is known, such as vllm; "" without one."""
    for path in ENGINE_PATHS:
        engine = str(value_at(run, path) or "").lower().replace("-", "")
        if engine in ENGINE_NAMES:
            return ENGINE_NAMES[engine]
    return ""


def _first_stated(run: Any, paths: Iterable[str]) -> Any:
    """Return the first value of a run at one of the ``paths``; "" if it has none."""
    for path in paths:
        value = value_at(run, path)
        if value not in (None, ""):
            return value
    return ""


def _row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of BenchmarkRows for a run, from the fields of ``_values``.

    They are of one replica. ``by_law`` is the number in flight by Little's law. Figures that the
    run lacks are computed from others if possible, and NaN otherwise.
    """

    def number(key: str, default: float = math.nan) -> float:
        """Return a number of the run, or ``default`` if it has none."""
        value = float(values.get(key, math.nan))
        return default if math.isnan(value) else value

    # A request has osl - 1 gaps between tokens after its first token. TTFT and e2e are means or
    # medians. Means are preferred for TBT and for Little's law.
    osl, ttft, e2e = number("osl"), number("ttft"), number("e2e")
    e2e_of_tokens = number("mean_ttft") + number("mean_tbt") * max(osl - 1, 0)
    mean_e2e = number("mean_e2e", e2e if math.isnan(e2e_of_tokens) else e2e_of_tokens)
    mean_tbt = (mean_e2e - number("mean_ttft", ttft)) / (osl - 1) if osl > 1 else math.nan
    # Without a limit, Little's law gives the mean number in flight.
    in_flight_by_law = number("rate", number("rate_per_min") / 60) * mean_e2e
    most_in_flight = number("completed", math.inf)
    replicas = float(values["replicas"] or 1.0)
    of_all_replicas = {
        "concurrency": min(number("concurrency", in_flight_by_law), most_in_flight),
        "by_law": in_flight_by_law,
        "throughput": number("throughput", number("throughput_per_gpu") * number("tp")),
        "completed": number("completed", number("total") - number("failed")),
        "failed": number("failed"),
    }
    return {
        **{key: values.get(key, "") for key in TEXTS},
        "tp": number("tp"),
        "isl": number("isl"),
        "osl": osl,
        "ttft_s": ttft,
        "tbt_s": number("tbt", mean_tbt),
        "e2e_s": e2e,
        **{key: total / replicas for key, total in of_all_replicas.items()},
    }


def per_replica(rows: BenchmarkRows, facts: Facts, replicas: float) -> BenchmarkRows:
    """Return the rows with the figures of one replica, for a benchmark of a gateway.

    Rows that do not state their number of replicas were measured on ``replicas``; others are of one
    already. The number is written into ``facts``.
    """
    stated_replicas = facts["replicas"]
    counts = np.array([1.0 if count else replicas for count in stated_replicas])
    facts["replicas"] = [count or f"{replicas:g}" for count in stated_replicas]
    shared = ("concurrency", "throughput", "completed", "failed")
    return replace(rows, **{name: getattr(rows, name) / counts for name in shared})


def unread_note(names: Iterable[str]) -> list[str]:
    """Return a sentence on the columns that no field reads (``names``); [] if there are none."""
    unread = [name[:40] for name in dict.fromkeys(names)]
    more = f" and {len(unread) - MOST_LISTED} more" if len(unread) > MOST_LISTED else ""
    return [f"Not read: {', '.join(unread[:MOST_LISTED])}{more}."] if unread else []


def _notes(runs: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on failed requests, replicas and missing times of runs.

    ``rows`` are those of ``_row`` for each run.
    """
    notes = []
    for number, (run, row) in enumerate(zip(runs, rows, strict=True), 1):
        result, in_flight, limit = f"Result {number}", row["by_law"], row["concurrency"]
        if run.get("pools", 1.0) > 1:
            notes.append(f"{result}: of its several pools of engines, the first is shown.")
        if in_flight < LEAST_REACHED * limit:
            notes.append(
                f"{result}: {limit:g} requests may be in flight, but {in_flight:.3g} are by their "
                "rate and times."
            )
        failed_share = row["failed"] / (row["failed"] + row["completed"] or math.nan)
        if failed_share > NOTABLE:
            notes.append(f"{result}: {failed_share:.0%} of its requests failed.")
        if run["replicas"] not in ("", "1"):
            notes.append(f"{result}: divided by its {run['replicas']} replicas.")
    if all(math.isnan(row["tbt_s"]) for row in rows):
        notes.append("The file has no time between tokens and none follows from it.")
    return notes
