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
from planner.inputs.scenario import document as text
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
    """Return a report as text; on a terminal in colour and fitted to its width.

    Elsewhere, sentences stay on one line, and tables have the width ``COLUMNS``, or ``WIDTH``.
    """
    width = get_terminal_size((WIDTH, 0)).columns
    return terminal_text(
        report, colour=wants_colour(stream), width=width, wraps_text=stream.isatty()
    )


class ReportCommand(HeadroomCommand):
    """A command whose answer is a run with a report."""

    def words(self, answer: Document) -> str:
        """Return the report of the run as text, and its number, which other commands take."""
        run = run_get(answer["run"])
        return f"{report_text(run_report(run), self.stdout)}\n\nStored as run {run.pk}."


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
        declared = options_in(KINDS[self.kind].options)
        add_options(
            parser, declared, leave_out=self.leave_out, alone=self.alone, groups=self.groups
        )

    def answer(self, options: Namespace) -> Document:
        """Run the scenario in this process and return the result."""
        chosen = options_from_command_line(KINDS[self.kind].options, options)
        return run_scenario(self.kind, options.scenario, chosen, self.progress)


def run_scenario(kind: str, source: str, options: Document, progress: Progress) -> Document:
    """Run a scenario file, or a stored scenario, in this process and return the result.

    Raises the expected error of the run.
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
    """Execute a run in this process and return its result; raises its expected error."""
    with library_output_on_stderr():
        result: Document = run_execute(run_id=run.pk, observer=progress, raise_errors=True).result
    return result


@contextmanager
def library_output_on_stderr() -> Iterator[None]:
    """Send what compiled libraries print to stderr, since stdout holds only the answer.

    SciPy's HiGHS prints lines for its developers, although its output is off.
    """
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # lines that C's printf still holds
        os.dup2(stdout, 1)
        os.close(stdout)


def stored_scenario(source: str) -> Scenario | None:
    """Return the stored scenario of this name or id, or None if ``source`` is a file.

    Raises PlannerError if it is neither.
    """
    if Path(source).exists():
        return None
    try:
        return scenario_get(source)
    except NotFound as problem:
        known = str(problem).partition(". ")[2]
        raise PlannerError(
            f"{source}: no such file, and no scenario of that name. {known}"
        ) from None


def load_scenario(source: str, progress: Progress) -> tuple[str, str]:
    """Return the document and the name of a scenario file or stored scenario.

    Traffic files that a scenario file names are imported. A file that was imported before is
    recognized by its hash. The returned document names the stored traces instead.
    """
    if stored := stored_scenario(source):
        return stored.document, stored.name
    path = Path(source)
    # A pipe or a device could block or never end.
    check_regular(path)
    document = utf8_text(path.read_bytes(), source, "Give a scenario in YAML.", PlannerError)
    scenario = text.parse(document, path.name)
    names = {}
    for index, traffic in enumerate(scenario.traffic.sources):
        if traffic.file is not None:
            file = (path.parent / traffic.file).resolve()
            names[index] = _take_in(file, progress, traffic.timezone).name
    return text.with_traces(document, names), scenario.name


def _take_in(path: Path, progress: Progress, timezone: str | None = None) -> Trace:
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
