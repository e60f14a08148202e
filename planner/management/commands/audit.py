"""The audit log on the command line: checked, or written to a file."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.exports.audit import audit_csv, audit_json
from planner.management.base import HeadroomCommand
from planner.services.audit import record, verify

WRITERS = {".csv": audit_csv, ".json": audit_json}


class Command(HeadroomCommand):
    help = "Check the chain of the audit log, or write the log to a file."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("what", choices=("verify", "export"))
        parser.add_argument("file", nargs="?", help="of export: a file .csv or .json")
        parser.add_argument(
            "--head",
            default="",
            metavar="NUMBER:SHA256",
            help="of verify: a record that was noted earlier and must still be there",
        )

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["what"] == "export":
            return _written(Path(options["file"] or "audit.csv"))
        verified = verify(options["head"])
        if verified.problem:
            raise PlannerError(f"The audit log is not as it was written. {verified.problem}")
        return {"records": verified.records, "head": verified.head, "guarded": verified.guarded}

    def words(self, answer: dict[str, Any]) -> str:
        if "path" in answer:
            return f"{answer['records']} records in {answer['path']}."
        unguarded = "" if answer["guarded"] else " The database does not refuse changes to it."
        return (
            f"{answer['records']} records, each as it was written and behind the one before."
            f"{unguarded}\nThe newest, to be noted elsewhere: {answer['head']}"
        )


def _written(path: Path) -> dict[str, Any]:
    if path.suffix not in WRITERS:
        raise PlannerError(f"{path}: give a file that ends in {' or '.join(WRITERS)}.")
    record("audit.exported", path.name, by=None)
    path.write_text(WRITERS[path.suffix](True), encoding="utf-8")
    return {"path": str(path), "records": verify().records}
