"""``bin/manage diff``: compare the settings and the figures of runs."""

from argparse import ArgumentParser
from typing import Any

from planner.domain.columns import SHARE
from planner.domain.formats import NOTHING, signed_percent
from planner.domain.serialise import as_json
from planner.management.base import HeadroomCommand
from planner.outputs.table_text import Cell, FigureTable, Head, Line, figure_text, text_table
from planner.selectors.run_comparison import compare_runs, runs_to_compare
from planner.templatetags.headroom import setting


class Command(HeadroomCommand):
    help = "Compare completed runs with the first one: settings and figures."
    examples = ("diff 12 14", "diff 12 14 15 --policy lt-i", "diff 12 14 --json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("runs", nargs="+", type=int, help="numbers of two to eight runs")
        parser.add_argument(
            "--policy", default="", help="policy to compare. Default: the best of each run"
        )

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        beside = compare_runs(runs_to_compare(options["runs"]), options["policy"])
        plain: dict[str, Any] = as_json(beside)
        return plain

    def words(self, answer: dict[str, Any]) -> str:
        heads = tuple(Head(f"run {run['run']}") for run in answer["runs"])
        lines = [f"run {run['run']}: {run['name']}. {run['answer']}" for run in answer["runs"]]
        lines += answer["notes"]
        if answer["differences"]:
            rows = [_row(row["key"], row["values"]) for row in answer["differences"]]
            lines += ["", *text_table(FigureTable(heads, tuple(rows)), "setting")]
        lines.append(f"{answer['same']} other settings are the same.")
        for group in answer["groups"]:
            figures = tuple(_figures(row) for row in group["rows"])
            lines += ["", *text_table(FigureTable(heads, figures), group["title"].lower())]
            lines += [group["note"]] if group["note"] else []
        return "\n".join(lines)


def _row(label: str, values: list[Any]) -> Line:
    """Return a line with the values of a setting."""
    texts = (NOTHING if value is None else setting(value) for value in values)
    return Line(label, label, tuple(Cell(text) for text in texts))


def _figures(row: dict[str, Any]) -> Line:
    """Return a line with a figure of each run, its change and its mark."""
    share = row["unit"] == SHARE
    cells = []
    for value, change, mark in zip(row["values"], row["changes"], row["marks"], strict=True):
        words = ""
        if change:
            words = f"{100 * change:+.2f} points" if share else signed_percent(change)
        text = NOTHING if value is None else figure_text(value, row["unit"], 2)
        cells.append(Cell(text, " ".join(filter(None, (words, mark)))))
    return Line(row["name"], row["label"], tuple(cells))
