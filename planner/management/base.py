"""What all commands share: --json, exit codes, progress on stderr, no traceback for a user."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError, connection
from django.db.migrations.executor import MigrationExecutor

from planner.errors import EXPECTED, Infeasible, NotFound, PlannerError, of_input, of_servers
from planner.ingest import IngestOptions
from planner.ingest.source import check_regular
from planner.management.options import add_options, options_said
from planner.models import Run, Trace
from planner.models.workspace import within
from planner.optimizer.problem import INFEASIBLE
from planner.scenario import document as text
from planner.selectors.scenarios import scenario_get
from planner.selectors.traces import trace_get
from planner.services.runs import run_create
from planner.services.traces import trace_ingest_path
from planner.services.worker import run_execute
from planner.studies.kinds import KINDS
from planner.studies.progress import Progress
from planner.version import VERSION


class HeadroomCommand(BaseCommand):
    """Subclasses write ``answer``: options in, one JSON-ready dict out, and ``words`` for people.

    stdout holds the answer and nothing else; everything on the way goes to stderr.
    """

    # The checks import every page and view, which takes longer than many a command.
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """One whose refusals are one sentence: usage is for those who ask with --help."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.print_usage = lambda file=None: None  # type: ignore[method-assign]
        parser.add_argument(
            "--workspace",
            default=settings.HEADROOM_WORKSPACE,
            help="slug of the workspace it is about; left out, HEADROOM_WORKSPACE's",
        )
        return parser

    def get_version(self) -> str:
        """Of the product, not of Django."""
        return f"Headroom {VERSION}"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        raise CommandError(f"{type(self).__module__} does not answer")

    def words(self, answer: dict[str, Any]) -> str:
        return json.dumps(answer, indent=2)

    def handle(self, *args: Any, **options: Any) -> None:
        with within(options["workspace"]):
            self._handle(options)

    def _handle(self, options: dict[str, Any]) -> None:
        try:
            answer = self.answer(options)
        except EXPECTED as problem:
            self._clear_line()
            if isinstance(problem, Infeasible) and options["json"]:
                self.stdout.write(json.dumps(infeasible_document(problem)))
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
        """A bar on a terminal; silence elsewhere, so that logs stay short."""
        if not sys.stderr.isatty():
            return
        filled = round(30 * fraction)
        bar = "#" * filled + "-" * (30 - filled)
        sys.stderr.write(f"\r\033[K[{bar}] {fraction:4.0%} {stage}")
        sys.stderr.flush()

    def _clear_line(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")


def _of_input(error: BaseException) -> PlannerError | None:
    """The sentence for an error that what was given has caused; None for a bug."""
    if isinstance(error, OSError) and isinstance(error.filename, str) and error.strerror:
        return of_input(error) or PlannerError(
            f"{error.filename} cannot be used: {error.strerror.lower()}; check it and its rights."
        )
    return of_input(error)


def _of_database(error: BaseException) -> PlannerError | None:
    """A sentence where tables or columns are missing because nobody has made them yet."""
    if not isinstance(error, OperationalError | ProgrammingError):
        return None
    executor = MigrationExecutor(connection)
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return None
    return PlannerError(
        "The database is not set up, or of an earlier version: call this as `bin/manage`, which "
        "sets it up, or run `manage.py migrate` first."
    )


class RunCommand(HeadroomCommand):
    """A command that is a run: the same row, life cycle and results as in browser and API."""

    kind: ClassVar[str]
    leave_out: ClassVar[tuple[str, ...]] = ()  # options that have no flag of their own
    alone: ClassVar[dict[str, str]] = {}  # what an option's flag stands for without a value

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("scenario", help="scenario file (YAML), or a stored one's name or id")
        declared = KINDS[self.kind].options
        add_options(parser, declared, leave_out=self.leave_out, alone=self.alone)

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
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
    """Carry out a run here and now; its expected problem is raised again."""
    run = run_execute(run_id=run.pk, observer=progress, surface=True)
    result: dict[str, Any] = run.result
    return result


def infeasible_document(problem: Infeasible) -> dict[str, Any]:
    """The answer of ``plan`` where there is no plan: its keys, with nothing to fill them."""
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
    """The document of a scenario file or stored scenario, and its name.

    Files that a scenario file names are taken in (once: they are known by their hash) and the
    document returned names the stored traces instead.
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
    return trace_ingest_path(
        path=path,
        options=IngestOptions(name=path.name),
        progress=lambda done: progress(done, f"Reading {path.name}"),
    )


def load_trace(source: str, progress: Progress) -> Trace:
    """A trace from a file, or a stored one by name or id."""
    path = Path(source)
    if path.exists():
        return _take_in(path, progress)
    try:
        return trace_get(source)
    except NotFound as problem:
        raise PlannerError(
            f"{source}: there is no such file, and no trace of that name. {problem}"
        ) from None
