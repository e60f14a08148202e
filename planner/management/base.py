"""Share the parts of all commands: --json, exit codes, progress and errors without traceback."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, ClassVar, TextIO

from django.conf import settings
from django.core.management.base import CommandError, OutputWrapper
from django.db import OperationalError, ProgrammingError, connection
from django.db.migrations.executor import MigrationExecutor

from planner.domain.kinds.registry import KINDS
from planner.domain.progress import Progress
from planner.domain.report import Report
from planner.errors import (
    EXPECTED,
    Ambiguous,
    Infeasible,
    NotFound,
    PlannerError,
    of_input,
    of_servers,
)
from planner.inputs.ingest import IngestOptions
from planner.inputs.ingest.source import check_regular
from planner.inputs.scenario import document as text
from planner.management.help import HelpedCommand
from planner.management.options import add_options, options_said
from planner.models import Run, Trace
from planner.models.workspace import within
from planner.optimizer.problem import INFEASIBLE
from planner.outputs.render.terminal import terminal_text
from planner.outputs.reports import run_report
from planner.selectors.runs import run_get
from planner.selectors.scenarios import scenario_get
from planner.selectors.traces import trace_get
from planner.services.runs import run_create
from planner.services.traces import trace_ingest_path
from planner.services.worker import run_execute
from planner.version import VERSION


class HeadroomCommand(HelpedCommand):
    """The base of commands.

    Subclasses write ``answer``, which takes options and returns a JSON-ready dict. They also write
    ``words``, which returns the answer as text. stdout holds only the answer; progress and errors
    go to stderr.
    """

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

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        """Carry out the command and return its JSON-ready answer."""
        raise CommandError(f"{type(self).__module__} does not answer")

    def words(self, answer: dict[str, Any]) -> str:
        """Return the answer as text for people."""
        return json.dumps(answer, indent=2)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command in its workspace."""
        with within(options["workspace"]):
            self._handle(options)

    def _handle(self, options: dict[str, Any]) -> None:
        """Print the answer, or print an expected error to stderr and exit.

        The exit code is that of the error, by default 2. Bugs keep their traceback.
        """
        try:
            answer = self.answer(options)
        except EXPECTED as problem:
            self._clear_line()
            # A script that reads JSON also gets the conflict as JSON.
            if isinstance(problem, Infeasible) and options["json"]:
                self.stdout.write(json.dumps(infeasible_document(problem)))
            if isinstance(problem, Ambiguous) and options["json"]:
                choices = [choice._asdict() for choice in problem.choices]
                self.stdout.write(json.dumps({"question": problem.question, "choices": choices}))
            self.stderr.write(str(problem))
            sys.exit(getattr(problem, "exit_code", 2))
        except BaseException as error:
            expected = _of_input(error) or of_servers(error) or _of_database(error)
            if expected is None:
                raise
            self._clear_line()
            self.stderr.write(str(expected))
            sys.exit(2)
        self._clear_line()
        self.stdout.write(json.dumps(answer) if options["json"] else self.words(answer))

    def progress(self, fraction: float, stage: str) -> None:
        """Show a progress bar on a terminal; print nothing elsewhere, so that logs stay short."""
        if not sys.stderr.isatty():
            return
        filled = round(30 * fraction)
        bar = "#" * filled + "-" * (30 - filled)
        sys.stderr.write(f"\r\033[K[{bar}] {fraction:4.0%} {stage}")
        sys.stderr.flush()

    def _clear_line(self) -> None:
        """Erase the progress bar."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")


def _of_input(error: BaseException) -> PlannerError | None:
    """Return the message of an error that the input caused, or None for a bug."""
    if isinstance(error, OSError) and isinstance(error.filename, str) and error.strerror:
        return of_input(error) or PlannerError(
            f"{error.filename} cannot be used: {error.strerror.lower()}. Check it and its rights."
        )
    return of_input(error)


def _of_database(error: BaseException) -> PlannerError | None:
    """Return a message if the error comes from missing migrations, or None."""
    if not isinstance(error, OperationalError | ProgrammingError):
        return None
    executor = MigrationExecutor(connection)
    # Without pending migrations the error has another cause.
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return None
    return PlannerError(
        "The database is not set up, or is of an earlier version. Use `bin/manage`, which "
        "sets it up, or run `manage.py migrate` first."
    )


def wants_colour(stream: TextIO | OutputWrapper) -> bool:
    """Return whether a stream is a terminal and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def report_text(report: Report, stream: TextIO | OutputWrapper) -> str:
    """Return a report as text; on a terminal in colour and fitted to its width."""
    width = get_terminal_size().columns if stream.isatty() else None
    return terminal_text(report, colour=wants_colour(stream), width=width)


class ReportCommand(HeadroomCommand):
    """A command whose answer is a run with a report."""

    def words(self, answer: dict[str, Any]) -> str:
        """Return the report of the run as text, in colour and fitted to width on a terminal."""
        return report_text(run_report(run_get(answer["run"])), self.stdout)


class RunCommand(ReportCommand):
    """A command that is a run, with the same row, life cycle and results as in pages and API."""

    kind: ClassVar[str]
    leave_out: ClassVar[tuple[str, ...]] = ()  # options without a flag
    alone: ClassVar[dict[str, str]] = {}  # value of an option if its flag has none
    groups: ClassVar[dict[str, tuple[str, ...]]] = {}  # options of a group in the help

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "scenario", help="scenario file (YAML), or name or id of a stored scenario"
        )
        declared = KINDS[self.kind].options
        add_options(
            parser, declared, leave_out=self.leave_out, alone=self.alone, groups=self.groups
        )

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        """Run the scenario in this process and return the result."""
        chosen = options_said(KINDS[self.kind].options, options)
        document, name = load_scenario(options["scenario"], self.progress)
        run = run_create(
            owner=None,
            kind=self.kind,
            document=document,
            name=name,
            options=chosen,
            enqueue=False,
        )
        return execute(run, self.progress)


def execute(run: Run, progress: Progress) -> dict[str, Any]:
    """Execute a run in this process and return its result; raises its expected error."""
    run = run_execute(run_id=run.pk, observer=progress, raise_errors=True)
    result: dict[str, Any] = run.result
    return result


def infeasible_document(problem: Infeasible) -> dict[str, Any]:
    """Return the answer of ``plan`` without a plan: the same keys with empty values."""
    nothing = ("objective", "fleet_cost", "bound", "gap", "solver", "build_seconds")
    return {
        "status": INFEASIBLE,
        "conflict": str(problem),
        **dict.fromkeys((*nothing, "solve_seconds", "recommended")),
        "decisions": [],
        "binding": [],
        "assumptions": [],
    }


def load_scenario(source: str, progress: Progress) -> tuple[str, str]:
    """Return the document and the name of a scenario file or stored scenario.

    Traffic files that a scenario file names are imported. A file that was imported before is
    recognized by its hash. The returned document names the stored traces instead.
    """
    path = Path(source)
    if not path.exists():
        try:
            stored = scenario_get(source)
        except NotFound as problem:
            raise PlannerError(
                f"{source}: there is no such file, and no scenario of that name. {problem}"
            ) from None
        return stored.document, stored.name
    # A pipe or a device could block or never end.
    check_regular(path)
    try:
        document = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PlannerError(f"{source} is not a text file; a scenario is YAML.") from None
    scenario = text.parse(document, path.name)
    names = {}
    for index, traffic in enumerate(scenario.traffic.sources):
        if traffic.file is not None:
            names[index] = _take_in((path.parent / traffic.file).resolve(), progress).name
    return text.with_traces(document, names), scenario.name


def _take_in(path: Path, progress: Progress) -> Trace:
    """Import a file of traffic and return its trace."""
    return trace_ingest_path(
        path=path,
        options=IngestOptions(name=path.name),
        progress=lambda done: progress(done, f"Reading {path.name}"),
    )


def load_trace(source: str, progress: Progress) -> Trace:
    """Return a trace from a file, or a stored one by name or id."""
    path = Path(source)
    if path.exists():
        return _take_in(path, progress)
    try:
        return trace_get(source)
    except NotFound as problem:
        raise PlannerError(
            f"{source}: there is no such file, and no trace of that name. {problem}"
        ) from None
