"""Read tables of measurements: splitwise and SageServe files, WVA columns, and plain CSV.

Splitwise and SageServe share their columns but not their units. Splitwise has milliseconds and the
time per token. SageServe has seconds and the time of the whole decode phase. The rows show which it
is: prefill plus decode time equals the end-to-end time in one reading only.
"""

from __future__ import annotations

import csv
import io
import re

import numpy as np

from planner.errors import IngestError
from planner.inputs.ingest.benchmarks import requests
from planner.inputs.ingest.benchmarks.requests import arrival_column, arrivals_s
from planner.inputs.ingest.benchmarks.results import CLOSED, Facts, facts_of_log, statistic_of
from planner.inputs.ingest.names import DECLARED, SYNONYMS, check_names, compact_name
from simulation.arrays import FloatArray
from simulation.performance.rows import BenchmarkRows, benchmark_rows

COLUMNS: dict[str, tuple[str, ...]] = {  # field to its names; the first is documented
    field: (
        *names.split(),
        *SYNONYMS.get({"isl": "input_tokens", "osl": "output_tokens"}.get(field, ""), ()),
    )
    for field, names in DECLARED["measurements"].items()
}
TIMES = ("prefill", "ttft", "tbt", "e2e")
TEXTS = ("model", "gpu", "precision")
WHOLE = ("isl", "osl", "batch", "tp", "dp")  # sizes of at least 1
SCALE = {"ms": 1e-3, "s": 1.0, "us": 1e-6}
OF_REQUESTS = ("isl", "osl", "ttft_s", "tbt_s", "e2e_s")  # required in a log of requests
SPLITWISE = ("prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "e2e_time")


def csv_rows(text: str, name: str, format: str) -> tuple[str, BenchmarkRows, list[str], Facts]:
    """Return the format, rows, notes and facts of a CSV with a header line."""
    header, records = _read(text, name)
    fields, units = _columns(header, name)
    numbers = {
        field: _numbers(records, column, header, name, field)
        for field, column in fields.items()
        if field not in TEXTS
    }
    texts = {
        field: [record[fields[field]].strip() for _, record in records]
        for field in TEXTS
        if field in fields
    }
    notes: list[str] = []
    kind = _format(header, fields, numbers, name, format)
    if kind == "splitwise":
        units = dict.fromkeys(TIMES, "ms")
    elif kind == "sageserve":
        units = dict.fromkeys(TIMES, "s")
        # Here token_time is the time of the whole decode phase.
        numbers["tbt"] = numbers["tbt"] / numbers["osl"]
        alone = numbers["batch"] == 1
        numbers["prefill"] = np.where(alone, numbers["prefill"], np.nan)
        if not alone.all():
            notes.append(
                f"Prefill times of {int((~alone).sum())} rows of several sequences are excluded: "
                "SageServe's do not grow with the batch, so they are not of the whole batch."
            )
    elif kind == "wva":
        units |= {"tbt": units.get("tbt") or "ms"}
        notes.append("Times without a unit were read as milliseconds, as the WVA writes them.")
    for field in TIMES:
        if field in numbers:
            unit = units.get(field)
            if unit is None:
                raise IngestError(
                    f"{name}: the column {header[fields[field]]!r} does not say its unit. Call it "
                    f"{field}_ms or {field}_s."
                )
            numbers[f"{field}_s"] = numbers.pop(field) * SCALE[unit]
    parallel = numbers.pop("dp", None)  # parallel instances; a row describes one of them
    if parallel is not None and "throughput" in numbers and (parallel > 1).any():
        numbers["throughput"] = numbers["throughput"] / np.where(parallel > 1, parallel, 1.0)
        notes.append(
            f"Throughput of {int((parallel > 1).sum())} rows of several parallel instances (dp) "
            "was divided among them. Batch and time between tokens are of one."
        )
    if "power_share" in numbers:  # splitwise writes 0 where power was not measured
        share = numbers["power_share"]
        numbers["power_share"] = np.where(share > 0, share, np.nan)
    arrival = arrival_column(header, len(records))
    if arrival is not None and not {"batch", "concurrency"} & numbers.keys():
        _add_times(numbers)
        lacking = [field for field in OF_REQUESTS if field not in numbers]
        if lacking:
            raise IngestError(
                f"{name} has one line per request ({header[arrival]}) and lacks "
                f"{', '.join(lacking)}. Add them, or give the summary of each run."
            )
        arrived = arrivals_s([record[arrival] for _, record in records], header[arrival], name)
        rows, further = requests.runs(texts, numbers | {"arrival_s": arrived})
        return kind, rows, notes + further, facts_of_log(rows)
    if "prefill_s" in numbers and "batch" not in numbers and "concurrency" not in numbers:
        numbers["batch"] = np.ones(len(records))
        notes.append("There is no batch column: each prefill was taken as one of a single prompt.")
    statistic = statistic_of(header[fields["ttft"]]) if "ttft" in fields else ""
    loop = CLOSED if "concurrency" in fields else ""
    facts = {"ttft_statistic": [statistic] * len(records), "loop": [loop] * len(records)}
    counts = numbers.pop("replicas", np.full(len(records), np.nan))
    for name in ("concurrency", "throughput", "completed", "failed"):
        if name in numbers:
            numbers[name] = numbers[name] / np.where(counts > 1, counts, 1.0)
    facts["replicas"] = [f"{count:g}" if count >= 1 else "" for count in counts]
    return kind, benchmark_rows(texts, numbers), notes, facts


def _add_times(numbers: dict[str, FloatArray]) -> None:
    """Add end-to-end times or times between tokens that follow from the other columns."""
    if not {"osl", "ttft_s"} <= numbers.keys():
        return
    gaps = np.maximum(numbers["osl"] - 1, 0)
    if "e2e_s" not in numbers and "tbt_s" in numbers:
        decode = np.where(gaps > 0, gaps * numbers["tbt_s"], 0.0)
        numbers["e2e_s"] = numbers["ttft_s"] + decode
    elif "tbt_s" not in numbers and "e2e_s" in numbers:
        decode = numbers["e2e_s"] - numbers["ttft_s"]
        numbers["tbt_s"] = np.where(gaps > 0, decode / np.maximum(gaps, 1), np.nan)


def _read(text: str, name: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header and the records of a CSV, each record with its line number."""
    reader = csv.reader(io.StringIO(text))
    try:
        header = [cell.strip() for cell in next(reader)]
        check_names(header, name)
        records = []
        for record in reader:
            if not record:
                continue
            if len(record) != len(header):
                raise IngestError(
                    f"{name}, line {reader.line_num} has {len(record)} fields and the header "
                    f"{len(header)}. Correct or remove the line."
                )
            records.append((reader.line_num, record))
    except csv.Error as error:
        raise IngestError(f"{name}, line {reader.line_num}: {error}. Save it as CSV.") from None
    if not records:
        raise IngestError(f"{name} has a header but no rows. Add the measurements.")
    return header, records


def _columns(header: list[str], name: str) -> tuple[dict[str, int], dict[str, str]]:
    """Return field -> column index, and time field -> unit in the column's name."""
    fields: dict[str, int] = {}
    units: dict[str, str] = {}
    for place, title in enumerate(header):
        match = re.fullmatch(r"(.*?)(?:[_ (]+(ms|s|us)\)?)?", title.strip().lower())
        bare, unit = (match[1], match[2]) if match else (title, None)
        for field, names in COLUMNS.items():
            if field in fields:
                continue
            if compact_name(title) in names or (field in TIMES and compact_name(bare) in names):
                fields[field] = place
                if field in TIMES and unit:
                    units[field] = unit
                break
    if not {"prefill", "ttft", "tbt"} & fields.keys():
        if {title.lower().split("_")[0] for title in header} >= {"alpha", "beta"}:
            raise IngestError(
                f"{name} holds fitted parameters (alpha, beta), no measurements. Give the rows "
                "they were fitted to, or write alpha_ms to delta_ms under profiles in a scenario."
            )
        raise IngestError(
            f"{name} has no column of times. Name at least one of tbt_ms, prefill_ms, ttft_ms "
            "(or _s), with batch or concurrency, isl, osl, model, gpu, tp."
        )
    if not {"batch", "concurrency", "isl"} & fields.keys():
        raise IngestError(
            f"{name} does not say the load of its rows. Add a column batch, concurrency or isl."
        )
    return fields, units


def _format(
    header: list[str],
    fields: dict[str, int],
    numbers: dict[str, FloatArray],
    name: str,
    format: str,
) -> str:
    """Return the format of a table; raise IngestError if its units are ambiguous."""
    titles = {title.lower() for title in header}
    if not titles.issuperset(SPLITWISE):
        if format in ("splitwise", "sageserve"):
            lacking = ", ".join(sorted(set(SPLITWISE) - titles))
            raise IngestError(f"{name} is not a {format} file: it lacks {lacking}. Use csv.")
        wva = {"model", "batch", "tbt", "tp"} <= fields.keys() and "isl" not in fields
        return "wva" if format == "wva" or (format == "auto" and wva) else "csv"
    if format in ("splitwise", "sageserve"):
        return format
    prompt, token, e2e = (numbers[key] for key in ("prefill", "tbt", "e2e"))
    several_tokens = numbers["osl"] > 1
    with np.errstate(divide="ignore", invalid="ignore"):
        by_total = np.abs(np.log(e2e / (prompt + token)))[several_tokens]
        by_token_time = np.abs(np.log(e2e / (prompt + token * numbers["osl"])))[several_tokens]
    if not several_tokens.any() or not np.isfinite(np.median(by_total) + np.median(by_token_time)):
        raise IngestError(
            f"{name} does not show whether token_time is per token or of the whole decode phase. "
            "Choose format splitwise (ms, per token) or sageserve (s, whole)."
        )
    return "sageserve" if np.median(by_total) < np.median(by_token_time) else "splitwise"


def _numbers(
    records: list[tuple[int, list[str]]], place: int, header: list[str], name: str, field: str
) -> FloatArray:
    """Return a column of non-negative numbers; NaN for an empty cell."""
    values = np.empty(len(records))
    for i, (line, record) in enumerate(records):
        cell = record[place].strip()
        try:
            value = float(cell) if cell else np.nan
        except ValueError:
            value = -1.0
        least = 1.0 if field in WHOLE else 0.0
        if value < least or np.isinf(value) or (cell and np.isnan(value)):
            raise IngestError(
                f"{name}, line {line}: {header[place]} is {cell!r:.60}; a number of at least "
                f"{least:g} is expected, correct or remove the line."
            )
        if field in TIMES and value == 0:
            raise IngestError(
                f"{name}, line {line}: {header[place]} is 0. Give a time above 0, or leave the "
                "cell empty if not measured."
            )
        values[i] = value
    return values
