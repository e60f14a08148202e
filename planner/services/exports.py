"""Export runs as files, and record each export in the audit log."""

from datetime import datetime
from pathlib import Path

from planner.errors import PlannerError
from planner.models import Run, User
from planner.outputs.files import File, export_file
from planner.outputs.options import ExportOptions
from planner.services.audit import record


def run_export(
    *, run: Run, to: str, options: ExportOptions, now: datetime, by: User | None
) -> File:
    """Return the run as a file of format ``to``; record the export by ``by`` (None: command line).

    Raises PlannerError if ``to`` is unknown, or not available for this kind of run.
    """
    file = export_file(run=run, to=to, options=options, now=now)
    record("run.exported", run, by=by, to=to, file=file.name)
    return file


def run_write(
    *, run: Run, to: str, folder: Path, options: ExportOptions, now: datetime,
    out: Path | None = None,
) -> Path:  # fmt: skip
    """Write the run to ``out``; None: to a file in ``folder`` that is named after the run."""
    file = run_export(run=run, to=to, options=options, now=now, by=None)
    path = out or folder / file.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    except OSError as error:
        raise PlannerError(
            f"{path} cannot be written ({error.strerror}). Choose another file with --out."
        ) from None
    return path
