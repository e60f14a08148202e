"""``bin/manage diff``: compare the settings and the figures of runs."""

from argparse import ArgumentParser, Namespace

from planner.domain.columns import SHARE
from planner.domain.formats import NOTHING, parameter_text, signed_percent
from planner.management.base import HeadroomCommand
from planner.outputs.table_text import align_cells, figure_text
from planner.selectors.run_comparison import RunComparison, compare_runs, runs_to_compare
from planner.selectors.run_comparison_figures import ComparedFigure


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
        """Return the settings that differ and the figures as tables, with a column per run."""
        heads = [f"run {compared.run}" for compared in answer.runs]
        lines = [f"run {run.run}: {run.name}. {run.answer}" for run in answer.runs]
        lines += answer.notes
        if answer.differences:
            rows = []
            for setting in answer.differences:
                values = [
                    NOTHING if value is None else parameter_text(value) for value in setting.values
                ]
                rows.append([setting.key, *values])
            lines += ["", *_aligned_lines("setting", heads, rows)]
        lines.append(f"{answer.same} other settings are the same.")
        for group in answer.groups:
            rows = [_figure_cells(figure) for figure in group.rows]
            lines += ["", *_aligned_lines(group.title.lower(), heads, rows)]
            if group.note:
                lines.append(group.note)
        return "\n".join(lines)


def _aligned_lines(label_head: str, heads: list[str], rows: list[list[str]]) -> list[str]:
    """Return aligned lines: a line of headings, then ``rows`` of a label and a text per run.

    ``label_head`` is the heading of the labels, ``heads`` are those of the runs.
    """
    right_aligned = [False, *[True] * len(heads)]
    return align_cells([[label_head, *heads], *rows], right_aligned)


def _figure_cells(figure: ComparedFigure) -> list[str]:
    """Return the cells of a figure: its label, and for each run value, change and mark."""
    cells = [figure.label]
    for value, change, mark in zip(figure.values, figure.changes, figure.marks, strict=True):
        text = NOTHING if value is None else figure_text(value, figure.unit)
        in_parentheses = []
        if change and figure.unit == SHARE:
            in_parentheses.append(f"{100 * change:+.2f} points")
        elif change:
            in_parentheses.append(signed_percent(change))
        if mark:
            in_parentheses.append(mark)
        cells.append(f"{text} ({' '.join(in_parentheses)})" if in_parentheses else text)
    return cells
