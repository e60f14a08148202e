"""Read, store and remove files of measurements: benchmark rows, or times of GPU kernels.

Each file is one row of the table Calibration. Its measurements are stored as arrays.
"""

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from django.db import IntegrityError, transaction
from pydantic import Field

from planner.domain.options import RunOptions
from planner.errors import IngestError
from planner.files.atomic_write import write_upload
from planner.inputs.catalogue.hardware import gpu_known_as
from planner.inputs.estimates.deployment_rows import named_fields, read_rows
from planner.inputs.ingest.benchmarks import BENCHMARK_FORMATS, BenchmarkFile, read_benchmarks
from planner.inputs.ingest.source import check_regular
from planner.inputs.profiles.kernel_files import FORMATS as KERNEL_FORMATS
from planner.inputs.profiles.kernel_files import KernelFile, Sharing, kernel_format, read_kernels
from planner.models import Calibration, User
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.hardware_rows import rows_table
from planner.selectors.measured_corrections import CALIBRATIONS, KERNEL_FILE, SERVING_TABLE
from planner.services.access import check_may_plan, check_may_remove
from planner.services.idempotency import request_key
from planner.storage import row_arrays
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.specs import BYTES, WIDTHS

ROWS = "rows"
KERNELS = "kernels"  # any kernel format, recognized by its columns
CALIBRATION_FORMATS = (*BENCHMARK_FORMATS, KERNELS, *KERNEL_FORMATS)
MAX_UPLOAD_BYTES = 50_000_000  # the file is read while the user waits
CHUNK_BYTES = 2**20
AUTO = "auto"
MAX_TOKENS = 10_000_000
# Options that the report of a benchmark file keeps, since its rows have no columns for them.
GIVEN_FACTS = ("engine", "engine_version", "ttft_statistic")
# What rows need to correct estimates: the option that supplies each fact, and its meaning.
NEEDED_FACTS = {
    "model": "served model",
    "gpu": "GPU type",
    "tp": "GPUs of a replica",
    "isl": "input tokens",
    "osl": "output tokens",
    "concurrency": "requests in flight of a closed loop",
    "replicas": "replicas behind its gateway",
}
Columns = dict[str, Any]  # values of the columns of a Calibration
Tables = dict[str, pl.DataFrame]
# Columns of a benchmark file that describe how a row was served, besides those of BenchmarkRows.
EXTRA_COLUMNS = (
    "ttft_statistic", "max_num_seqs", "chunk_tokens", "prefix_hit_rate", "draft_tokens",
    "accepted_tokens", "acceptance",
    "engine", "engine_version", "mode", "kv_cache", "workers", "prefill_workers", "decode_workers",
    *WIDTHS[1:], *(f"{side}_{width}" for side in ("prefill", "decode") for width in WIDTHS),
)  # fmt: skip


class CalibrationOptions(RunOptions):
    """Options for reading an uploaded file; given values fill in what the file lacks.

    Command line, REST API and page take them from this declaration.
    """

    format: Literal[CALIBRATION_FORMATS] = Field(AUTO, title="Format")  # type: ignore[valid-type]
    """Format of the file. Default: found from the file."""
    model: str | None = Field(None, title="Model, if not in the file", max_length=80)
    """Model of rows without one."""
    gpu: str | None = Field(None, title="GPU, if not in the file", max_length=80)
    """GPU type of rows without one."""
    tp: int | None = Field(None, title="GPUs per replica", ge=1, le=1024)
    """GPUs of a replica, of rows without them."""
    precision: Literal[tuple(BYTES)] | None = Field(None, title="Precision")  # type: ignore[valid-type]
    """Precision of rows without one."""
    isl: int | None = Field(None, title="Input tokens, if not in the file", ge=1, le=MAX_TOKENS)
    """Default input tokens for rows without this column."""
    osl: int | None = Field(None, title="Output tokens, if not in the file", ge=1, le=MAX_TOKENS)
    """Output tokens of rows without them."""
    concurrency: float | None = Field(
        None, title="Requests in flight, if not in the file", ge=1, le=1_000_000
    )
    """Requests in flight of rows without a load."""
    replicas: int | None = Field(None, title="Replicas behind the gateway", ge=1, le=100_000)
    """Replicas that shared the load."""
    engine: Literal[ENGINES] | None = Field(None, title="Engine")  # type: ignore[valid-type]
    """Engine of rows without one."""
    engine_version: str | None = Field(None, title="Version of the engine", max_length=60)
    """Engine version of rows that state none."""
    ttft_statistic: Literal["mean", "median"] | None = Field(
        None, title="TTFT statistic, if not in the file"
    )
    """Statistic of TTFT, if the file does not state it."""


def calibration_upload(
    *,
    user: User | None,
    chunks: Iterable[bytes],
    file_name: str,
    options: CalibrationOptions | None = None,
    source: str = "",
    idempotency_key: str = "",
) -> Calibration:
    """Read an uploaded file of measurements, store its rows, and return the stored Calibration.

    ``options`` None: the file states everything. ``source`` tells people where the file is from,
    ``""`` for its name. A second call by the same user with the same ``idempotency_key`` returns
    the first Calibration. Raises IngestError with the line and field that cannot be read.
    """
    check_may_plan(user)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upload"
        sha256, size = write_upload(path, chunks, partial(_check_size, file_name))
        options = options or CalibrationOptions()
        key = request_key(idempotency_key, [sha256, options.model_dump(), source])
        own_rows = Calibration.objects.filter(owner=user)
        if earlier := key.earlier_row(own_rows):
            return earlier
        is_kernels = _has_kernels(path, file_name, options)
        read = _read_kernel_calibration if is_kernels else _read_benchmark_rows
        columns, tables = read(path, file_name, options)
        calibration = Calibration(
            name=file_name[:120],
            file_name=file_name[:255],
            sha256=sha256,
            bytes=size,
            source=(source.strip() or file_name)[:500],
            owner=user,
            **key.columns(),
            **columns,
        )
        try:
            return _save(calibration, tables, path if is_kernels else None)
        except IntegrityError:  # the same request came twice at the same time
            if earlier := key.earlier_row(own_rows):
                return earlier
            raise


def _check_size(file_name: str, size: int) -> None:
    """Raise IngestError for an upload of more than MAX_UPLOAD_BYTES bytes."""
    if size > MAX_UPLOAD_BYTES:
        raise IngestError(
            f"{file_name} is larger than the {MAX_UPLOAD_BYTES / 1e6:g} MB of measurements "
            "that can be read at once. Split it."
        )


def calibration_path(
    *, path: Path, options: CalibrationOptions | None = None, source: str = ""
) -> Calibration:
    """Read a file on this machine for the command line, like ``calibration_upload``."""
    check_regular(path)
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(CHUNK_BYTES), b"")  # until the end of the file
        return calibration_upload(
            user=None, chunks=chunks, file_name=path.name, options=options, source=source
        )


def calibration_delete(*, calibration: Calibration, user: User | None) -> None:
    """Remove a file of measurements; profiles fitted to it stay. ``user`` None: the command line.

    Raises NotAllowed unless the user uploaded the file or is an admin.
    """
    check_may_remove(user, calibration.owner_id, "this calibration")
    store = calibration.store
    calibration.delete()
    row_arrays.remove(store)


def _read_kernel_calibration(
    path: Path, file_name: str, options: CalibrationOptions
) -> tuple[Columns, Tables]:
    """Return the columns of the Calibration, and the tables to store, of a file of kernels."""
    format = AUTO if options.format == KERNELS else options.format
    kernels = read_kernel_file(path, file_name, format, options.gpu or "")
    notes = [f"{count:,} rows set aside: {why}." for why, count in kernels.set_aside.items()]
    notes += map(_sharing_sentence, kernels.sharing)
    report = {
        "format": kernels.format, "rows": kernels.rows, "columns": ["gpu", "operator"],
        "notes": notes, "gpus": sorted(kernels.by_gpu), "arrangements": [],
    }  # fmt: skip
    columns = {
        "kind": Calibration.Kind.KERNELS,
        "format": kernels.format,
        "rows": kernels.rows,
        "report": report,
    }
    return columns, {ROWS: _kernel_table(kernels)}


def _read_benchmark_rows(
    path: Path, file_name: str, options: CalibrationOptions
) -> tuple[Columns, Tables]:
    """Return the columns of the Calibration, and the tables to store, of a benchmark file.

    The table SERVING_TABLE says how each row was served. If the file has a column and the reader
    derived it too, the column of the file counts.
    """
    read_options = options.model_dump()
    given_facts = {name: read_options.pop(name) for name in GIVEN_FACTS}
    file = read_benchmarks(path, name=file_name, max_bytes=MAX_UPLOAD_BYTES, **read_options)
    file_columns = _serving_columns(path, file_name, file)
    _require_facts(file, file_name, () if file_columns is None else file_columns.columns)
    columns = {
        "kind": Calibration.Kind.BENCHMARK,
        "format": file.format,
        "rows": file.rows.rows,
        "report": _report(file)
        | {"engine": {name: value for name, value in given_facts.items() if value}},
    }
    # Columns on serving: those of the file, and of the derived ones those that the file lacks.
    derived = {name: values for name, values in file.facts.items() if any(values)}
    serving_columns = pl.DataFrame(derived).with_columns(pl.all().replace("", None))
    if file_columns is not None:
        derived_only = serving_columns.drop(file_columns.columns, strict=False)
        serving_columns = pl.concat([file_columns, derived_only], how="horizontal")
    tables = {ROWS: rows_table(file.rows)}
    if serving_columns.width:
        tables[SERVING_TABLE] = serving_columns
    return columns, tables


def _require_facts(file: BenchmarkFile, name: str, serving_columns: Sequence[str]) -> None:
    """Raise IngestError if rows lack facts that no default can replace; it names the options.

    ``name`` is the name of the file. ``serving_columns`` are the columns that say how each row was
    served. A file with times of single batches is exempt: profiles are fitted to it, and the fit
    checks what it needs itself.
    """
    rows = file.rows
    if np.isfinite(rows.batch).any():
        return
    missing = []
    for fact in NEEDED_FACTS.keys() - {"replicas"}:
        values = getattr(rows, fact)
        is_absent = np.isnan(values) if values.dtype.kind == "f" else values == ""
        # Rows without a fact are not used, so some may lack it. But a row without tp would count
        # as a row of one GPU.
        required_in_all = fact == "tp" and "decode_tp" not in serving_columns
        is_missing = is_absent.any() if required_in_all else is_absent.all()
        if is_missing:
            missing.append(fact)
    if file.gateway and not all(file.facts["replicas"]):
        missing.append("replicas")
    if missing:
        facts = ", ".join(f"{fact} ({NEEDED_FACTS[fact]})" for fact in missing)
        raise IngestError(f"{name} does not state all facts that its rows need. Give {facts}.")


def _serving_columns(path: Path, name: str, file: BenchmarkFile) -> pl.DataFrame | None:
    """Return the columns of a plain CSV file that say how each row was served.

    None for other formats, for a CSV without such columns, and for a log of requests.
    """
    if file.format != "csv":
        return None
    try:
        rows = read_rows(path, name)
    except IngestError:
        return None
    # read_rows() gives a sentence instead of a row that it cannot read.
    row_fields = [named_fields(row) for row in rows if not isinstance(row, str)]
    # Both readers must see the same rows, since columns are joined by position. They differ for a
    # log of requests, of which read_benchmarks() makes one row per run.
    if not len(row_fields) == len(rows) == file.rows.rows:
        return None
    columns_of_file = set().union(*row_fields)
    present = [column for column in EXTRA_COLUMNS if column in columns_of_file]
    if not present:
        return None
    text_rows = [{column: str(value) for column, value in row.items()} for row in row_fields]
    return pl.DataFrame(text_rows, schema=dict.fromkeys(present, pl.String))


def read_kernel_file(path: Path, name: str, format: str, gpu: str = "") -> KernelFile:
    """Return the measured kernels in a file.

    ``name`` is the name of the file, ``format`` one of KERNEL_FORMATS or AUTO, and ``gpu`` the GPU
    type if the file names none.
    """
    # Some formats name a model instead of the layer sizes.
    shapes = {
        model.name: model.spec.shape for model in models_list() if model.spec.shape is not None
    }
    gpus = {entry.name: entry.spec for entry in gpus_list()}
    return read_kernels(
        path,
        shapes=shapes,
        gpus=gpus,
        name=name,
        format=format,
        gpu=gpu_known_as(gpu) if gpu else "",
        max_bytes=MAX_UPLOAD_BYTES,
    )


def _has_kernels(path: Path, name: str, options: CalibrationOptions) -> bool:
    """Return whether a file has measured kernels: by the given format, else by its columns."""
    if options.format != AUTO:
        return options.format in (KERNELS, *KERNEL_FORMATS)
    try:
        kernel_format(path, name, MAX_UPLOAD_BYTES)
    except IngestError:
        return False
    return True


def _save(calibration: Calibration, tables: Tables, kernels: Path | None) -> Calibration:
    """Store the row, its tables and its kernel file in one transaction: all or nothing.

    ``kernels`` is the path of the kernel file, if there is one.
    """
    with transaction.atomic():
        calibration.save()
        calibration.store = f"{CALIBRATIONS}/{calibration.pk}"
        row_arrays.remove(calibration.store)
        row_arrays.tables_write(calibration.store, tables)
        if kernels is not None:
            shutil.copy(kernels, row_arrays.folder(calibration.store) / KERNEL_FILE)
        row_arrays.keep(calibration.store)
        calibration.save(update_fields=["store"])
    return calibration


def _kernel_table(file: KernelFile) -> pl.DataFrame:
    """Return a table with the number of measurements of each operator on each GPU type."""
    rows = []
    for gpu, tables in file.by_gpu.items():
        rows += [(gpu, table.op, int(table.seconds.size)) for table in tables]
    columns = {"gpu": pl.String, "operator": pl.String, "measurements": pl.Int64}
    table = pl.DataFrame(rows, schema=columns, orient="row")
    return table.group_by("gpu", "operator", maintain_order=True).sum()


def _sharing_sentence(sharing: Sharing) -> str:
    """Return a sentence on the measured slowdown of an operator under interference."""
    condition = (
        f"with {sharing.sm_share:.0%} of the multiprocessors" if sharing.sm_share < 1 else ""
    )
    if sharing.concurrent_with:
        condition = f"{condition} beside {sharing.concurrent_with}".strip()
    return (
        f"{sharing.op} {sharing.dtype} on {sharing.gpu} {condition} took {sharing.slowdown:.2f} "
        f"times as long as alone (measured, median of {sharing.calls})."
    )


def _report(file: BenchmarkFile) -> dict[str, Any]:
    """Return the summary of a benchmark file that pages and the API show."""
    rows = rows_table(file.rows).select("model", "gpu", "precision", pl.col("tp").cast(pl.Int64))
    arrangements = rows.group_by(rows.columns, maintain_order=True).len("rows")
    return {
        "format": file.format,
        "rows": file.rows.rows,
        "columns": list(file.columns),
        "notes": list(file.notes),
        "arrangements": arrangements.to_dicts(),
    }
