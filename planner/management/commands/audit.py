"""``bin/manage audit``: write the audit log to a file."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.errors import PlannerError
from planner.management.base import Document, HeadroomCommand
from planner.models import AuditRecord
from planner.outputs import audit_csv, audit_json
from planner.services.audit import record

WRITERS = {".csv": audit_csv, ".json": audit_json}


class Command(HeadroomCommand):
    help = "Write the audit log to a file."
    examples = (
        "audit export",
        "audit export audit.json",
        "audit export audit.csv --workspace research",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", choices=("export",), help="what to do")
        parser.add_argument(
            "file", nargs="?", type=Path, default="audit.csv", help="a file .csv or .json"
        )

    def answer(self, options: Namespace) -> Document:
        """Write the log to the file, and return its path and the number of records."""
        path: Path = options.file
        if path.suffix not in WRITERS:
            raise PlannerError(f"{path}: give a file that ends in {' or '.join(WRITERS)}.")
        # Record first, so that the file includes its own export.
        record("audit.exported", path.name, by=None)
        path.write_text(WRITERS[path.suffix](True), encoding="utf-8")
        return {"path": str(path), "records": AuditRecord.objects.count()}

    def words(self, answer: Document) -> str:
        return f"{answer['records']} records in {answer['path']}."
