"""Run the commands: ``headroom NAME``, ``bin/manage NAME`` and ``manage.py NAME``."""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management import ManagementUtility

from planner.config.startup_checks import check_migrations, exit_with_sentence
from planner.installation import IN_CHECKOUT, SetUpError, data_folder, here
from planner.management.help import overview
from planner.second_process import second_process
from planner.version import VERSION

# Commands that use no database, so that they run with one of any version.
WITHOUT_DATABASE = ("check", "collectstatic", "help", "makemigrations", "warm_up")
ALIASES = {"run": "serve"}
HELP = {"help", "-h", "--help"}
VERSIONS = (["--version"], ["version"])
# The modules that a second process needs, by the command that shares its work with it.
FORECASTING = ("forecasting.selection",)
SIZING = ("simulation.sizing.batch_sizing",)
SHARED = {
    "compare": FORECASTING,
    "pd-ratio": ("planner.domain.pd.ratio_drift",),
    "plan": FORECASTING + SIZING,
    "simulate": FORECASTING,
}


def headroom() -> None:
    """Prepare the data folder if a command needs it, then run the command."""
    arguments = sys.argv[1:]
    if not IN_CHECKOUT:
        # Child processes get the same folder, and must not import from the current one.
        os.environ["HEADROOM_DATA_DIR"] = str(data_folder())
        os.environ["PYTHONSAFEPATH"] = "1"
    only_prints = not arguments or arguments in VERSIONS or not HELP.isdisjoint(arguments)
    if not only_prints:
        try:
            installation = here()
            installation.prepare(web=arguments[0] == "run")
        except SetUpError as problem:
            sys.exit(str(problem))
    manage(["headroom", *arguments])


class Utility(ManagementUtility):
    """Django's command line, which refuses an unfit database before any command."""

    def main_help_text(self, commands_only: bool = False) -> str:
        """Return the names of the commands, or without ``commands_only`` an overview by purpose."""
        return super().main_help_text(commands_only) if commands_only else overview()

    def fetch_command(self, subcommand: str) -> Any:
        """Return the command of this name; raise UnfitDatabase if the database does not fit it."""
        if subcommand not in WITHOUT_DATABASE:
            check_migrations()
        command = super().fetch_command(ALIASES.get(subcommand, subcommand))
        gc.freeze()  # keeps what was imported out of collections
        gc.enable()
        return command


def manage(argv: Sequence[str]) -> None:
    """Run one command; ``argv`` begins with the name of the program."""
    arguments = list(argv[1:])
    if arguments in VERSIONS:
        sys.stdout.write(f"Headroom {VERSION}\n")
        return
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    # A command that is killed ends its run, as on Ctrl-C. Servers set handlers of their own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = arguments[0] if arguments else ""
    if "--simulate" in arguments:  # it shares the work of a simulation
        command = "simulate"
    gc.disable()  # imports leave no garbage, and collecting takes a fifth of their time
    # A second process takes a part of the work of some commands.
    with second_process(SHARED.get(command, ())), exit_with_sentence():
        Utility(list(argv)).execute()
