"""Read tables of measurements: splitwise and SageServe files, WVA columns, and plain CSV.

Splitwise and SageServe share their columns but not their units. Splitwise has milliseconds and the
time per token. SageServe has seconds and the time of the whole decode phase. The rows show which it
is: prefill plus decode time equals the end-to-end time in one reading only.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest import blocks
from planner.inputs.ingest.benchmarks import results
from planner.inputs.ingest.checks import numbers as numbers_of
from planner.inputs.ingest.csv_text import batch, read_header
from planner.inputs.ingest.names import DECLARED, SYNONYMS, compact_name
from planner.inputs.ingest.rows import Batch
from simulation.arrays import FloatArray
from simulation.performance.rows import benchmark_rows

COLUMNS: dict[str, tuple[str, ...]] = {  # field to its names; the first is documented
    field: (
        *names.split(),
        *SYNONYMS.get({"isl": "input_tokens", "osl": "output_tokens"}.get(field, ""), ()),
    )
    for field, names in DECLARED["measurements"].items()
}
TIME_FIELDS = ("prefill", "ttft", "tbt", "e2e")
WHOLE_FIELDS = ("isl", "osl", "batch", "tp", "dp")  # sizes of at least 1
SCALE = {"ms": 1e-3, "s": 1.0, "us": 1e-6}
_UNITS = {
    "splitwise": dict.fromkeys(TIME_FIELDS, "ms"),
    "sageserve": dict.fromkeys(TIME_FIELDS, "s"),
    "wva": {"tbt": "ms"},
}
NEEDED_IN_LOG = ("isl", "osl", "ttft_s", "tbt_s", "e2e_s")  # required in a log of requests
SPLITWISE = ("prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "e2e_time")


def csv_rows(table: Batch, name: str, format: str) -> results.ToolRows:
    """Return the measured rows of a table of text, or raise IngestError for doubtful units.

    A row of the table is a run, or one request of a log, which is summed up by run.
    """
    frame = table.frame
    fields, units = _find_columns(frame.columns, name)
    numbers, texts = _read_cells(table, fields, name)
    kind = _format(frame.columns, fields, numbers, name, format)
    # Convert the numbers in place.
    notes = _convert_to_one_replica(kind, numbers)
    _convert_to_seconds(numbers, fields, _UNITS.get(kind, {}) | units, name)
    speed = numbers.pop("speed", None)  # tokens per second of one user
    if speed is not None and "tbt_s" not in numbers:
        numbers["tbt_s"] = np.divide(1.0, speed, out=np.full(speed.size, np.nan), where=speed > 0)
        notes.append(f"The time between tokens is 1 / {fields['speed']}.")
    arrival = results.arrival_column(frame.columns, frame.height)
    states_load = bool({"batch", "concurrency"} & numbers.keys())
    if states_load:
        arrival = None  # a row per run
    used = {*fields.values(), arrival}
    notes += results.unread_note(column for column in frame.columns if column not in used)
    if arrival is not None:
        _complete_log(frame[arrival], numbers, name)
        rows = results.rows_of_requests(kind, texts, numbers)
        return rows._replace(notes=rows.notes + notes)
    if "prefill_s" in numbers and not states_load:
        numbers["batch"] = np.ones(frame.height)
        notes.append("There is no batch column: each prefill was taken as one of a single prompt.")
    facts = _facts_of_runs(fields, numbers, frame.height)
    return results.ToolRows(kind, benchmark_rows(texts, numbers), notes, facts)


def _read_cells(
    table: Batch, fields: Mapping[str, str], name: str
) -> tuple[dict[str, FloatArray], dict[str, list[str]]]:
    """Return the numbers and the texts of a table by field; ``fields`` are their columns.

    An empty cell is NaN or "". Raise IngestError for text in a column of numbers, and for a number
    that the field cannot have.
    """
    numbers, texts = {}, {}
    for field, column in fields.items():
        cells = table.frame[column]
        stripped = cells.fill_null("").str.strip_chars()
        if field in results.TEXTS:
            texts[field] = stripped.to_list()
            continue
        values = numbers_of(cells)
        least = 1.0 if field in WHOLE_FIELDS else 0.0
        is_in_range = (values >= least) & np.isfinite(values)
        if field in TIME_FIELDS:
            is_in_range &= values > 0
        is_good = is_in_range | (stripped == "").to_numpy()
        if not is_good.all():
            row = int((~is_good).argmax())
            expected = "above 0" if field in TIME_FIELDS else f"of at least {least:g}"
            raise IngestError(
                f"{name}, line {table.lines[row]}: {column} is {cells[row]!r:.60}. Give a number "
                f"{expected}, or leave the cell empty."
            )
        numbers[field] = values
    return numbers, texts


def _convert_to_seconds(
    numbers: dict[str, FloatArray], fields: Mapping[str, str], units: Mapping[str, str], name: str
) -> None:
    """Replace the times in ``numbers`` by seconds; raise IngestError for one without a unit."""
    for field in [field for field in TIME_FIELDS if field in numbers]:
        if field not in units:
            raise IngestError(
                f"{name}: the column {fields[field]!r} does not say its unit. Call it "
                f"{field}_ms or {field}_s."
            )
        numbers[f"{field}_s"] = numbers.pop(field) * SCALE[units[field]]


def _facts_of_runs(
    fields: Mapping[str, str], numbers: dict[str, FloatArray], rows: int
) -> results.Facts:
    """Return the facts of rows of runs; divide their totals by the number of replicas."""
    replicas = numbers.pop("replicas", np.full(rows, np.nan))
    for total in {"concurrency", "throughput", "completed", "failed"} & numbers.keys():
        numbers[total] = numbers[total] / np.where(replicas > 1, replicas, 1.0)
    statistic = results.statistic_of(fields["ttft"]) if "ttft" in fields else ""
    loop = results.CLOSED if "concurrency" in fields else ""
    return {
        "ttft_statistic": [statistic] * rows,
        "loop": [loop] * rows,
        "replicas": [f"{count:g}" if count >= 1 else "" for count in replicas],
    }


def _convert_to_one_replica(kind: str, numbers: dict[str, FloatArray]) -> list[str]:
    """Convert the columns of the format ``kind`` to figures of one replica; return notes on it.

    Some formats have the figures of all data-parallel replicas in a row, or times in their own
    meaning. ``numbers`` are changed in place.
    """
    notes: list[str] = []
    if kind == "sageserve":
        # Here token_time is the time of the whole decode phase.
        numbers["tbt"] = numbers["tbt"] / numbers["osl"]
        is_batch = numbers["batch"] != 1
        numbers["prefill"] = np.where(is_batch, np.nan, numbers["prefill"])
        if is_batch.any():
            notes.append(
                f"Prefill times of {int(is_batch.sum())} rows of several sequences are excluded: "
                "SageServe's do not grow with the batch, so they are not of the whole batch."
            )
    elif kind == "wva":
        notes.append("Times without a unit were read as milliseconds, as the WVA writes them.")
    parallel = np.nan_to_num(numbers.pop("dp", np.ones(1)), nan=1.0)  # a row is of one instance
    several = int((parallel > 1).sum())
    if several and "throughput" in numbers:
        numbers["throughput"] = numbers["throughput"] / np.maximum(parallel, 1.0)
        notes.append(
            f"Throughput of {several} rows of several parallel replicas (dp) "
            "was divided among them. Batch and time between tokens are of one."
        )
    if "power_share" in numbers:  # splitwise writes 0 where power was not measured
        share = numbers["power_share"]
        numbers["power_share"] = np.where(share > 0, share, np.nan)
    return notes


def _complete_log(arrivals: pl.Series, numbers: dict[str, FloatArray], name: str) -> None:
    """Add to ``numbers`` of requests their arrivals, and e2e_s or tbt_s if it follows from others.

    Raise IngestError if a column is missing.
    """
    if {"osl", "ttft_s"} <= numbers.keys():
        gaps = np.maximum(numbers["osl"] - 1, 0)  # between the output tokens of a request
        ttft_s, tbt_s, e2e_s = numbers["ttft_s"], numbers.get("tbt_s"), numbers.get("e2e_s")
        if e2e_s is None and tbt_s is not None:
            numbers["e2e_s"] = ttft_s + np.where(gaps > 0, gaps * tbt_s, 0.0)
        elif tbt_s is None and e2e_s is not None:
            numbers["tbt_s"] = np.where(gaps > 0, (e2e_s - ttft_s) / np.maximum(gaps, 1), np.nan)
    if missing := [field for field in NEEDED_IN_LOG if field not in numbers]:
        raise IngestError(
            f"{name}: one row per request ({arrivals.name}), but no column {', '.join(missing)}. "
            "Add the columns, or upload one summary row per run."
        )
    numbers["arrival_s"] = results.arrivals_s(arrivals, name)


def read_table(text: str, name: str) -> Batch:
    """Return the table in a CSV file, with cells of text; raise IngestError for a faulty line."""
    lines = blocks.all_records(text.encode(), name, quoted=True)
    header = read_header(lines, name)
    table = batch(lines, header, header.table_columns, name)
    for fault in table.faults:
        raise IngestError(f"{name}, line {fault.lines[0]}: {fault.reason}. Correct or remove it.")
    if not table.frame.height:
        raise IngestError(f"{name} has a header but no rows. Add the measurements.")
    texts = table.frame.select(pl.col(pl.String))
    if any(column.str.contains(r"^\s*\d+,\d{1,2}\s*$").any() for column in texts):
        # With decimal commas, points separate thousands.
        grouped = pl.col(pl.String).str.replace(r"^(\s*\d{1,3})\.(\d{3})\b", "$1$2")
        return replace(table, frame=table.frame.with_columns(grouped))
    return table


def _find_columns(header: Sequence[str], name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return columns by field and units by time field; raise IngestError without times or load."""
    fields: dict[str, str] = {}
    units: dict[str, str] = {}
    for title in header:
        match = re.fullmatch(r"(.*?)(?:[_ (\[]+(ms|s|us)[)\]]?)?", title.strip().lower())
        bare, unit = (match[1], match[2]) if match else (title, None)
        for field, names in COLUMNS.items():
            is_time = field in TIME_FIELDS and compact_name(bare) in names
            if field not in fields and (compact_name(title) in names or is_time):
                fields[field] = title
                if field in TIME_FIELDS and unit:
                    units[field] = unit
                break
    if not {"prefill", "ttft", "tbt", "speed"} & fields.keys():
        first_words = {word for word, _, _ in (title.lower().partition("_") for title in header)}
        if first_words >= {"alpha", "beta"}:
            raise IngestError(
                f"{name} holds fitted parameters (alpha, beta), no measurements. Give the rows "
                "they were fitted to, or write alpha_ms to delta_ms under profiles in a scenario."
            )
        raise IngestError(
            f"{name}: no column of times. Name at least one of tbt_ms, prefill_ms, ttft_ms "
            "(or _s), with batch or concurrency, isl, osl, model, gpu, tp."
        )
    if not {"batch", "concurrency", "isl"} & fields.keys():
        raise IngestError(
            f"{name}: no column states the load. Add a column batch, concurrency or isl."
        )
    return fields, units


def _format(
    header: Sequence[str],
    fields: Mapping[str, str],
    numbers: dict[str, FloatArray],
    name: str,
    format: str,
) -> str:
    """Return the format of a table; raise IngestError if its units are ambiguous.

    ``format`` is what the caller states, or "auto". A table of the columns of splitwise may have
    the times of splitwise or of SageServe, which its end-to-end times show.
    """
    missing = sorted(set(SPLITWISE) - {title.lower() for title in header})
    is_stated = format in ("splitwise", "sageserve")
    if missing and is_stated:
        raise IngestError(f"{name} is no {format} file: it lacks {', '.join(missing)}. Use csv.")
    if missing:
        is_like_wva = {"model", "batch", "tbt", "tp"} <= fields.keys() and "isl" not in fields
        return "wva" if format == "wva" or (format == "auto" and is_like_wva) else "csv"
    if is_stated:
        return format
    # The median misfit of end-to-end times if token_time is of all tokens, or of each token.
    several = numbers["osl"] > 1
    misfit_of_all = misfit_of_each = np.nan
    if several.any():
        keys = ("prefill", "tbt", "e2e", "osl")
        prompt, token, e2e, osl = (numbers[key][several] for key in keys)
        with np.errstate(divide="ignore", invalid="ignore"):
            misfit_of_all = float(np.median(np.abs(np.log(e2e / (prompt + token)))))
            misfit_of_each = float(np.median(np.abs(np.log(e2e / (prompt + token * osl)))))
    if not np.isfinite(misfit_of_all + misfit_of_each):
        raise IngestError(
            f"{name} does not show whether token_time is per token or of the whole decode phase. "
            "Choose format splitwise (ms, per token) or sageserve (s, whole)."
        )
    return "sageserve" if misfit_of_all < misfit_of_each else "splitwise"
