"""Measurements: taken in from a file, kept as rows, removed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.db import transaction

from planner import storage
from planner.errors import IngestError
from planner.ingest.benchmarks import BenchmarkFile, read_benchmarks
from planner.mappers import rows_table
from planner.models import Calibration, User
from planner.services.access import check_may_plan, check_may_remove
from planner.services.once import Key, key_of

CALIBRATIONS = "calibrations"
ROWS = "rows"
MAX_UPLOAD_BYTES = 50_000_000  # read while somebody waits
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Reading:
    """How an upload is read; what is given fills what the file does not say."""

    format: str = AUTO
    model: str | None = None
    gpu: str | None = None
    tp: int | None = None
    precision: str | None = None


def calibration_upload(
    *,
    user: User | None,
    chunks: Iterable[bytes],
    file_name: str,
    reading: Reading | None = None,
    source: str = "",
    idempotency_key: str = "",
) -> Calibration:
    """Read an uploaded file of measurements and keep its rows; raises IngestError naming line and
    field where it cannot be read."""
    check_may_plan(user)
    digest, size = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upload"
        with path.open("wb") as out:
            for chunk in chunks:
                size += len(chunk)
                if size > MAX_UPLOAD_BYTES:
                    raise IngestError(
                        f"{file_name} is larger than the {MAX_UPLOAD_BYTES / 1e6:g} MB of "
                        "measurements that can be read at once; split it."
                    )
                digest.update(chunk)
                out.write(chunk)
        reading = reading or Reading()
        key = key_of(idempotency_key, [digest.hexdigest(), asdict(reading), source])
        if first := key.first(Calibration.objects.filter(owner=user)):
            return first
        return _read(user, path, file_name, digest.hexdigest(), size, reading, source, key)


def calibration_path(
    *, user: User | None, path: Path, reading: Reading | None = None, source: str = ""
) -> Calibration:
    """The same for a file of this machine (command line)."""
    if not path.is_file():
        raise IngestError(f"{path}: there is no such file; check the path.")
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(1 << 20), b"")
        return calibration_upload(
            user=user, chunks=chunks, file_name=path.name, reading=reading, source=source
        )


def calibration_delete(*, calibration: Calibration, user: User) -> None:
    """Remove a file's rows; the versions of profiles that came from it stay."""
    check_may_remove(user, calibration.owner_id, "this calibration")
    store = calibration.store
    calibration.delete()
    storage.remove(store)


def _read(
    user: User | None,
    path: Path,
    file_name: str,
    sha256: str,
    size: int,
    reading: Reading,
    source: str,
    key: Key,
) -> Calibration:
    file = read_benchmarks(path, name=file_name, max_bytes=MAX_UPLOAD_BYTES, **asdict(reading))
    return _keep(
        Calibration(
            name=file_name[:120],
            kind=Calibration.Kind.BENCHMARK,
            format=file.format,
            file_name=file_name[:255],
            sha256=sha256,
            bytes=size,
            rows=file.rows.rows,
            report=_report(file),
            source=(source.strip() or file_name)[:500],
            owner=user,
            **key.columns(),
        ),
        lambda: {ROWS: rows_table(file.rows)},
    )


def _keep(calibration: Calibration, tables: Callable[[], dict[str, Any]]) -> Calibration:
    """The row and its tables, or neither."""
    with transaction.atomic():
        calibration.save()
        calibration.store = f"{CALIBRATIONS}/{calibration.pk}"
        storage.remove(calibration.store)
        storage.tables_write(calibration.store, tables())
        calibration.save(update_fields=["store"])
    return calibration


def _report(file: BenchmarkFile) -> dict[str, Any]:
    """What was read, as pages and API show it."""
    rows = file.rows
    groups: dict[tuple[str, str, str, float], int] = {}
    for key in zip(
        rows.model.tolist(), rows.gpu.tolist(), rows.precision.tolist(), rows.tp.tolist(),
        strict=True,
    ):  # fmt: skip
        groups[key] = groups.get(key, 0) + 1
    return {
        "format": file.format,
        "rows": rows.rows,
        "columns": list(file.columns),
        "notes": list(file.notes),
        "arrangements": [
            {
                "model": model,
                "gpu": gpu,
                "precision": precision,
                "tp": None if tp is None else int(tp),
                "rows": count,
            }
            for (model, gpu, precision, tp), count in _merged(groups).items()
        ],
    }


def _merged(groups: dict[tuple[str, str, str, float], int]) -> dict[Any, int]:
    """NaN is unlike itself: rows without a tp are one group."""
    found: dict[Any, int] = {}
    for (model, gpu, precision, tp), count in groups.items():
        key = (model, gpu, precision, tp if tp == tp else None)
        found[key] = found.get(key, 0) + count
    return found
