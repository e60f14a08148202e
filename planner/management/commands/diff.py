"""``bin/manage diff``: compare the settings and the figures of runs."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable

from planner.domain.columns import SHARE
from planner.domain.formats import NOTHING, parameter_text, signed_percent
from planner.management.base import HeadroomCommand
from planner.outputs.table_text import align_cells, figure_text
from planner.selectors.run_comparison import RunComparison, compare_runs, runs_to_compare
from planner.selectors.run_comparison_figures import ComparedFigure, Setting


class Command(HeadroomCommand):
    help = "Compare completed runs with the first one: settings and figures."
    examples = ("diff 12 14", "diff 12 14 15 --policy lt-i", "diff 12 14 --json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("runs", nargs="+", type=int, help="numbers of two to eight runs")
        parser.add_argument(
            "--policy", default="", help="policy to compare. Default: the best of each run"
        )

    def answer(self, options: Namespace) -> RunComparison:
        return compare_runs(runs_to_compare(options.runs), options.policy)

    def words(self, answer: RunComparison) -> str:
        heads = [f"run {compared.run}" for compared in answer.runs]
        lines = [f"run {run.run}: {run.name}. {run.answer}" for run in answer.runs]
        lines += answer.notes
        if answer.differences:
            lines += ["", *_aligned_lines("setting", heads, map(_setting, answer.differences))]
        lines.append(f"{answer.same} other settings are the same.")
        for group in answer.groups:
            lines += ["", *_aligned_lines(group.title.lower(), heads, map(_figures, group.rows))]
            lines += [group.note] if group.note else []
        return "\n".join(lines)


def _aligned_lines(first: str, heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    """Return aligned lines: a line of headings, then ``rows`` of a label and a text per run.

    ``first`` is the heading of the labels, ``heads`` are those of the runs.
    """
    return align_cells([[first, *heads], *rows], [False, *[True] * len(heads)])


def _setting(row: Setting) -> list[str]:
    """Return the cells of a setting: its address, and its value in each run."""
    return [row.key, *(NOTHING if value is None else parameter_text(value) for value in row.values)]


def _figures(row: ComparedFigure) -> list[str]:
    """Return the cells of a figure: its label, and for each run value, change and mark."""
    cells = [row.label]
    for value, change, mark in zip(row.values, row.changes, row.marks, strict=True):
        text = NOTHING if value is None else figure_text(value, row.unit)
        change_text = ""
        if change:
            points = f"{100 * change:+.2f} points"
            change_text = points if row.unit == SHARE else signed_percent(change)
        change_and_mark = " ".join(filter(None, (change_text, mark)))
        cells.append(f"{text} ({change_and_mark})" if change_and_mark else text)
    return cells
