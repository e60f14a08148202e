"""Share the parts of all commands: --json, exit codes, progress and errors without traceback.

Every command imports this module, so it imports neither the simulator nor the optimizer.
"""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from time import monotonic
from typing import Any, TextIO

from django.conf import settings
from django.core.management.base import CommandError, OutputWrapper
from django.db import OperationalError, ProgrammingError, connection
from django.db.migrations.executor import MigrationExecutor

from planner import errors
from planner.management.help import HelpedCommand
from planner.models.workspace import use_workspace
from planner.version import VERSION

LINE_EVERY_S = 10.0  # seconds between lines of progress in a log
BAR_CHARACTERS = 30
ERASE_LINE = "\r\033[K"  # ANSI
Document = dict[str, Any]  # a JSON object that a command prints


class HeadroomCommand(HelpedCommand):
    """The base of commands.

    Subclasses define ``answer``, which takes the options and returns a value that ``as_json``
    converts, and ``words``, which returns this answer as text. stdout gets only the answer.
    Progress and errors go to stderr.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._next_line_s = monotonic() + LINE_EVERY_S  # no line for a short command

    def get_version(self) -> str:
        """Return the version of the product, not that of Django."""
        return f"Headroom {VERSION}"

    def add_output(self, parser: ArgumentParser) -> None:
        """Add the options that every command has."""
        output = parser.add_argument_group("output")
        output.add_argument("--json", action="store_true", help="print one JSON object")
        output.add_argument(
            "--workspace",
            default=settings.HEADROOM_WORKSPACE,
            help="slug of the workspace. Default: HEADROOM_WORKSPACE, else main",
        )

    def answer(self, options: Namespace) -> Any:
        """Carry out the command and return its answer, a value that ``as_json`` converts."""
        raise CommandError(f"{type(self).__module__} does not answer")

    def words(self, answer: Any) -> str:
        """Return the answer as text for people."""
        return json.dumps(_plain(answer), indent=2)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command in its workspace."""
        with use_workspace(options["workspace"]):
            self._handle(Namespace(**options))

    def _handle(self, options: Namespace) -> None:
        """Print the answer, or print an expected error to stderr and exit.

        The exit code is that of the error, by default 2. Bugs keep their traceback.
        """
        try:
            answer = self.answer(options)
        except errors.EXPECTED as problem:
            self._clear_line()
            document = error_document(problem)
            # A script that reads JSON also gets these errors as JSON.
            if document is not None and options.json:
                self.stdout.write(json.dumps(document))
            self.stderr.write(str(problem))
            sys.exit(getattr(problem, "exit_code", 2))
        except BaseException as error:  # PanicException of Polars is no Exception
            expected = (
                _input_problem(error) or errors.server_error_of(error) or _migration_problem(error)
            )
            if expected is None:  # a bug
                raise
            self._clear_line()
            self.stderr.write(str(expected))
            sys.exit(2)
        self._clear_line()
        text = json.dumps(_plain(answer)) if options.json else self.words(answer)
        self.stdout.write(text)

    def progress(self, fraction: float, stage: str) -> None:
        """Show a progress bar on a terminal; elsewhere, print a line every ``LINE_EVERY_S``."""
        if sys.stderr.isatty():
            filled = round(BAR_CHARACTERS * fraction)
            bar = "#" * filled + "-" * (BAR_CHARACTERS - filled)
            sys.stderr.write(f"{ERASE_LINE}[{bar}] {fraction:4.0%} {stage}")
            sys.stderr.flush()
        elif monotonic() >= self._next_line_s:
            self._next_line_s = monotonic() + LINE_EVERY_S
            sys.stderr.write(f"{fraction:4.0%} {stage}\n")

    def _clear_line(self) -> None:
        """Erase the progress bar."""
        if sys.stderr.isatty():
            sys.stderr.write(ERASE_LINE)


def _plain(answer: Any) -> Any:
    """Return an answer as JSON data."""
    from planner.domain.serialise import as_json  # with Polars, which text needs less often

    return as_json(answer)


def _input_problem(error: BaseException) -> errors.PlannerError | None:
    """Return the error to print if the input caused ``error``; None for a bug."""
    problem = errors.input_error_of(error)
    if problem is not None or not isinstance(error, OSError):
        return problem
    if not isinstance(error.filename, str) or not error.strerror:
        return None
    return errors.PlannerError(
        f"{error.filename} cannot be used: {error.strerror.lower()}. Check it and its rights."
    )


def _migration_problem(error: BaseException) -> errors.PlannerError | None:
    """Return the error to print if missing migrations caused ``error``, else None."""
    if not isinstance(error, OperationalError | ProgrammingError):
        return None
    executor = MigrationExecutor(connection)
    pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if not pending:  # the error has another cause
        return None
    return errors.PlannerError(
        "The database is not set up, or is of an earlier version. Use `bin/manage`, which "
        "sets it up, or run `manage.py migrate` first."
    )


def error_document(problem: Exception) -> Document | None:
    """Return an error as JSON data, if scripts need more of it than its sentence; else None."""
    if isinstance(problem, errors.Infeasible):
        return infeasible_document(problem)
    if isinstance(problem, errors.Ambiguous):
        choices = [choice._asdict() for choice in problem.choices]
        return {"question": problem.question, "choices": choices}
    return None


def infeasible_document(problem: errors.Infeasible) -> Document:
    """Return the answer of ``plan`` if no plan is feasible: the usual keys with empty values."""
    # Most commands plan nothing, and start faster without the optimizer.
    from planner.optimizer.problem import INFEASIBLE

    no_values = ("objective", "fleet_cost", "bound", "gap", "solver", "build_seconds",
                 "solve_seconds", "recommended")  # fmt: skip
    no_items = ("decisions", "binding", "assumptions")
    document: Document = {"status": INFEASIBLE, "conflict": str(problem)}
    return document | dict.fromkeys(no_values) | {key: [] for key in no_items}


def wants_colour(stream: TextIO | OutputWrapper) -> bool:
    """Return whether a stream is a terminal and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")
