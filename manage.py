#!/usr/bin/env python
"""Django's command line; `bin/manage` runs it in the virtual environment."""

import os
import sys
from typing import Any

from django.core.management import ManagementUtility

from planner.version import VERSION

# Commands that ask no database, and so run beside one of any version.
WITHOUT_DATABASE = ("check", "collectstatic", "help", "makemigrations", "warm_up")


class Utility(ManagementUtility):
    """Django's command line, which refuses an unfit database before any command."""

    def fetch_command(self, subcommand: str) -> Any:
        from planner.config.startup_checks import check_migrations_known

        if subcommand not in WITHOUT_DATABASE:
            check_migrations_known()
        return super().fetch_command(subcommand)


def main() -> None:
    from planner.config.startup_checks import exit_with_sentence

    with exit_with_sentence():
        Utility(sys.argv).execute()


if __name__ == "__main__":
    if sys.argv[1:] in (["--version"], ["version"]):
        sys.stdout.write(f"Headroom {VERSION}\n")
        sys.exit(0)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    main()
