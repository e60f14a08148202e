"""``bin/manage characterise``: describe a trace, and rank a window among all of its windows."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import replace

from planner.domain.report import Note, Section
from planner.domain.reports.trace import trace_report
from planner.domain.serialise import as_json
from planner.domain.trace_statistics.figures import Character
from planner.errors import PlannerError
from planner.management.base import Document, HeadroomCommand
from planner.management.options import moment
from planner.management.runs import load_trace, report_text
from planner.selectors.traces import ready_trace, trace_character, trace_window


class Command(HeadroomCommand):
    character: Character
    help = (
        "Describe a trace: amounts, lengths, rhythm, bursts, outages and ranked days. With "
        "--start and --end, also rank a window."
    )
    examples = (
        "characterise trace.csv",
        "characterise week --start 2024-05-20T00:00 --end 2024-05-21T00:00",
        "characterise week --json",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", help="file, or name or id of a stored trace")
        parser.add_argument(
            "--start", type=moment, help="start of the window to rank, e.g. 2024-05-18T00:00"
        )
        parser.add_argument("--end", type=moment, help="end of that window; UTC without an offset")

    def answer(self, options: Namespace) -> Document:
        """Return the character of the trace, and the rank of the window if one is given."""
        if bool(options.start) != bool(options.end):
            raise PlannerError("Give --start and --end both, or neither.")
        trace = ready_trace(load_trace(options.trace, self.progress).name)
        window = trace_window(trace, options.start, options.end) if options.start else None
        self.character = trace_character(trace)
        return {**as_json(self.character), "window": as_json(window)}

    def words(self, answer: Document) -> str:
        """Return the report on the trace, by the first column that splits its traffic."""
        volumes_by_column = Counter(volume.by for volume in self.character.volumes)
        splitting = [column for column, volumes in volumes_by_column.items() if volumes > 1]
        report = trace_report(self.character, splitting[0] if splitting else "all")
        window = answer["window"]
        rank_sentences = [window["sentence"]] if window else answer["days"]["words"]
        notes = tuple(Note(text) for text in (*rank_sentences, *answer["notes"]))
        if notes:
            report = replace(report, sections=(*report.sections, Section("Notes", notes)))
        return report_text(report, self.stdout)
