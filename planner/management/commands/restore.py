"""``bin/manage restore FILE``: restore a backup into a stopped installation."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from django.conf import settings

from planner.config.supervisor import Stopped, only_one
from planner.errors import NotReady
from planner.management.base import HeadroomCommand
from planner.services import backups


class Command(HeadroomCommand):
    help = "Restore a backup. Stop web and workers first."
    examples = (
        "restore headroom.tar.zst",
        "restore headroom.tar.zst --replace",
        "restore headroom.tar.zst --json",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="file that backup wrote")
        parser.add_argument(
            "--replace", action="store_true", help="replace everything in this installation"
        )
        parser.add_argument(
            "--replace-characters",
            action="store_true",
            help="store U+FFFD in place of characters that this database cannot store (U+0000)",
        )

    def answer(self, options: Namespace) -> backups.RestoreSummary:
        """Restore the backup; raise NotReady if the product runs."""
        try:
            # A running server or worker would write rows while they are replaced.
            with only_one(settings.HEADROOM_DATA_DIR):
                return backups.restore(
                    options.file,
                    replace=options.replace,
                    replace_characters=options.replace_characters,
                )
        except Stopped as running:
            raise NotReady(str(running)) from None

    def words(self, answer: backups.RestoreSummary) -> str:
        """Return the number of restored rows, and what was left out or replaced."""
        lines = [f"{answer.rows:,} rows restored from {answer.path}"]
        lines += [
            f"This version has no {name}: {rows:,} rows left out"
            for name, rows in answer.left_out.items()
        ]
        if answer.replaced:
            lines.append(f"Characters replaced by U+FFFD in {answer.replaced:,} rows")
        return "\n".join(lines)
