"""``bin/manage backup FILE``: write everything to one verified file while the product runs."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.management.base import HeadroomCommand
from planner.services import backups


class Command(HeadroomCommand):
    help = "Write all rows and arrays to one file, and check that it restores."
    examples = (
        "backup headroom.tar.zst",
        "backup /backups/monday.tar.zst",
        "backup headroom.tar.zst --json",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="file to write, such as headroom.tar.zst")

    def answer(self, options: Namespace) -> backups.BackupSummary:
        return backups.backup(options.file)

    def words(self, answer: backups.BackupSummary) -> str:
        size = f"{answer.rows:,} rows, {answer.bytes:,} bytes"
        checked = f"{answer.tables} tables compared in a scratch database"
        return f"{answer.path}: {size}; {checked} ({answer.checked_in})"
