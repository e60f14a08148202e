"""Commands of the contract whose turn has not come: they say so and exit 2."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand


class LaterCommand(BaseCommand):
    """``instead`` says what answers a related question today."""

    what = ""
    instead = ""
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        if {"-h", "--help"} & set(argv):
            super().run_from_argv(argv)
        self.handle()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.description = f"{self.what} has not come yet. {self.instead}"

    def handle(self, *args: Any, **options: Any) -> None:
        self.stderr.write(f"{self.what} has not come yet. {self.instead}")
        sys.exit(2)
