"""Share the parts of commands that run a scenario or read a trace."""

import ctypes
import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import ClassVar, TextIO

from django.core.management.base import OutputWrapper

from planner.domain.kinds.registry import KINDS
from planner.domain.options import options_in
from planner.domain.progress import Progress
from planner.domain.report import Report
from planner.errors import Ambiguous, NotFound, PlannerError
from planner.files.documents import utf8_text
from planner.inputs.ingest import IngestOptions
from planner.inputs.ingest.source import check_regular
from planner.inputs.scenario.document import parse, with_traces
from planner.management.base import Document, HeadroomCommand, wants_colour
from planner.management.options import add_options, options_from_command_line
from planner.models import Run, Scenario, Trace
from planner.outputs.render.terminal import terminal_text
from planner.outputs.reports import run_report
from planner.selectors.runs import run_get
from planner.selectors.scenarios import scenario_get
from planner.selectors.traces import trace_get
from planner.services.runs import run_create
from planner.services.traces import trace_ingest_path
from planner.services.worker import run_execute

WIDTH = 160  # characters of a line in a file or pipe


def report_text(report: Report, stream: TextIO | OutputWrapper) -> str:
    """Return a report as text for ``stream``: on a terminal, in colour and as wide as it is.

    Elsewhere, sentences stay on one line, and tables are as wide as the environment variable
    COLUMNS says, else WIDTH.
    """
    has_colour, width = wants_colour(stream), get_terminal_size((WIDTH, 0)).columns
    return terminal_text(report, colour=has_colour, width=width, wraps_text=stream.isatty())


class ReportCommand(HeadroomCommand):
    """A command whose answer is a run with a report."""

    def words(self, answer: Document) -> str:
        """Return the report of the run as text, and its number, which other commands take."""
        run = run_get(answer["run"])
        return f"{report_text(run_report(run), self.stdout)}\n\nStored as run {run.pk}."


class RunCommand(ReportCommand):
    """A command that runs a scenario, and stores the run as pages and the API do."""

    kind: ClassVar[str]
    leave_out: ClassVar[tuple[str, ...]] = ()  # options without a flag
    alone: ClassVar[dict[str, str]] = {}  # by option: value of its flag without a value
    groups: ClassVar[dict[str, tuple[str, ...]]] = {}  # options by title of a group in the help

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "scenario", help="scenario file (YAML), or name or id of a stored scenario"
        )
        declared = options_in(KINDS[self.kind].options)
        add_options(
            parser, declared, leave_out=self.leave_out, alone=self.alone, groups=self.groups
        )

    def answer(self, options: Namespace) -> Document:
        """Run the scenario in this process and return the result."""
        chosen = options_from_command_line(KINDS[self.kind].options, options)
        return run_scenario(self.kind, options.scenario, chosen, self.progress)


def run_scenario(kind: str, source: str, options: Document, progress: Progress) -> Document:
    """Run a scenario file or a stored scenario in this process, and return the result document.

    Raises the error of the run if it is an expected one.
    """
    document, name = load_scenario(source, progress)
    run = run_create(
        owner=None,
        kind=kind,
        scenario=stored_scenario(source),
        document=document,
        name=name,
        options=options,
        enqueue=False,
    )
    return execute(run, progress)


def execute(run: Run, progress: Progress) -> Document:
    """Execute a run in this process and return the result document; raise as ``run_scenario``."""
    with library_output_on_stderr():
        executed = run_execute(run_id=run.pk, observer=progress, raise_errors=True)
    result: Document = executed.result
    return result


@contextmanager
def library_output_on_stderr() -> Iterator[None]:
    """Send the output of compiled libraries to stderr, since stdout gets only the answer.

    SciPy's HiGHS prints lines for its developers, although its output is off.
    """
    stdout, stderr = 1, 2  # file descriptors
    sys.stdout.flush()
    kept_stdout = os.dup(stdout)
    os.dup2(stderr, stdout)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # lines that C's printf still holds
        os.dup2(kept_stdout, stdout)
        os.close(kept_stdout)


def stored_scenario(source: str) -> Scenario | None:
    """Return the stored scenario of this name or id, or None if ``source`` is a file.

    Raises PlannerError if it is neither.
    """
    if Path(source).exists():
        return None
    try:
        return scenario_get(source)
    except NotFound as problem:
        _, _, known_scenarios = str(problem).partition(". ")
        raise PlannerError(
            f"{source}: no such file, and no scenario of that name. {known_scenarios}"
        ) from None


def load_scenario(source: str, progress: Progress) -> tuple[str, str]:
    """Return (document, name) of a scenario file or a stored scenario.

    Traffic files that a scenario file names are imported as traces, and the returned document names
    these traces instead. A file that was imported before is recognized by its hash.
    """
    stored = stored_scenario(source)
    if stored is not None:
        return stored.document, stored.name
    path = Path(source)
    # Reading a pipe or a device could block, or never end.
    check_regular(path)
    document = utf8_text(path.read_bytes(), source, "Give a scenario in YAML.", PlannerError)
    scenario = parse(document, path.name)
    trace_names = {}  # by index of the traffic source
    for index, traffic in enumerate(scenario.traffic.sources):
        if traffic.file is not None:
            file = (path.parent / traffic.file).resolve()
            trace_names[index] = _import_file(file, progress, traffic.timezone).name
    return with_traces(document, trace_names), scenario.name


def _import_file(path: Path, progress: Progress, timezone: str | None = None) -> Trace:
    """Import a file of traffic and return its trace; ``timezone`` is that of its local times.

    Raises Ambiguous if only ``ingest`` has the option that the file needs.
    """
    try:
        return trace_ingest_path(
            path=path,
            options=IngestOptions(name=path.name, timezone=timezone),
            progress=lambda done: progress(done, f"Reading {path.name}"),
        )
    except Ambiguous as problem:
        remedy = f"Run ingest {shlex.quote(path.name)} with an option, and name its trace here."
        raise Ambiguous(f"{problem.question} {remedy}", problem.choices) from None


def load_trace(source: str, progress: Progress) -> Trace:
    """Return a trace: imported if ``source`` is a file, else the stored one of this name or id."""
    path = Path(source)
    if path.exists():
        return _import_file(path, progress)
    try:
        return trace_get(source)
    except NotFound as problem:
        raise PlannerError(
            f"{source}: there is no such file, and no trace of that name. {problem}"
        ) from None
