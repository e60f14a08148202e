"""``bin/manage characterise``: describe a trace, and rank a window among all of its windows."""

from argparse import ArgumentParser, Namespace

from planner.domain.formats import duration
from planner.domain.serialise import as_json
from planner.errors import PlannerError
from planner.management.base import Document, HeadroomCommand
from planner.management.options import moment
from planner.management.runs import load_trace
from planner.outputs.table_text import table_lines
from planner.selectors.traces import ready_trace, trace_character, trace_window

VOLUMES = {
    "by": "by", "label": "label", "share": "share:.1%", "requests": "requests:,.0f",
    "input tokens": "input_tokens:,.0f", "output tokens": "output_tokens:,.0f",
    "mean /s": "mean:,.3g", "peak /s": "peak:,.3g", "repeats daily": "autocorrelation_day:.2f",
    "weekly": "autocorrelation_week:.2f", "utility": "utility_per_request:,.3g",
}  # fmt: skip
LENGTHS = {
    "tokens": "field", "by": "by", "label": "label", "mean": "mean:,.0f", "CV": "cv:.2f",
    "p50": "p50:,.0f", "p95": "p95:,.0f", "p99": "p99:,.0f", "most": "most:,.0f",
}  # fmt: skip
BURSTS = {
    "bins of": "width", "dispersion": "dispersion:,.3g", "within 10 min": "within_10_min:,.3g",
    "peak/mean": "peak_to_mean:,.3g", "CV": "cv:.2f", "empty": "empty:.1%",
}  # fmt: skip
SESSIONS = {
    "sessions": "sessions:d", "share of requests": "share:.0%", "turns": "turns_mean:.1f",
    "turns p95": "turns_p95:.0f", "gap p50, s": "gap_s_p50:,.3g", "gap p95, s": "gap_s_p95:,.3g",
    "think p50, s": "think_s_p50:,.3g", "think p95, s": "think_s_p95:,.3g",
    "growing prompts": "growing:.0%", "growth p50, tokens": "growth_p50:,.0f",
}  # fmt: skip
DAYS = {
    "day": "name", "rank": "rank:d", "of the busiest": "of_busiest:.0%",
    "requests": "requests:,.0f", "input tokens": "input_tokens:,.0f",
    "output tokens": "output_tokens:,.0f", "known": "seen:.0%",
}  # fmt: skip


class Command(HeadroomCommand):
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
        if bool(options.start) != bool(options.end):
            raise PlannerError("Give --start and --end both, or neither.")
        trace = ready_trace(load_trace(options.trace, self.progress).name)
        window = trace_window(trace, options.start, options.end) if options.start else None
        character: Document = as_json(trace_character(trace))
        return character | {"window": as_json(window)}

    def words(self, answer: Document) -> str:
        parts = [
            [f"{answer['trace']}: {answer['series']} series, bins of {duration(answer['bin_s'])}"],
            table_lines([answer["total"], *answer["volumes"]], VOLUMES),
            table_lines(answer["lengths"], LENGTHS),
            table_lines(
                [b | {"width": duration(b["bin_s"])} for b in answer["burstiness"]], BURSTS
            ),
            table_lines([answer["sessions"]] if answer.get("sessions") else [], SESSIONS),
            table_lines(answer["days"]["days"], DAYS),
            [
                *([answer["window"]["sentence"]] if answer["window"] else answer["days"]["words"]),
                *([f"outages: {answer['outages_found']}"] if answer["outages_found"] else []),
                *(f"note: {note}" for note in answer["notes"]),
            ],
        ]
        return "\n\n".join("\n".join(part) for part in parts if part)
