"""``bin/manage list``: the names and numbers that other commands take."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter
from textwrap import shorten
from typing import Any

from planner.management.base import Document, HeadroomCommand
from planner.outputs.table_text import table_lines
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.runs import runs_list
from planner.selectors.scenarios import scenarios_list
from planner.selectors.traces import traces_list

MOST, MOST_CHARACTERS = 30, 80
# By kind: its rows, and the attribute of each column.
LISTS: dict[str, tuple[Callable[[], Iterable[Any]], dict[str, str]]] = {
    "runs": (
        lambda: runs_list().filter(sweep=None),
        {"id": "pk", "kind": "kind", "name": "name", "state": "state", "created_at": "created_at",
         "problem": "problem"},
    ),
    "scenarios": (scenarios_list, {"id": "pk", "name": "name", "updated_at": "updated_at"}),
    "traces": (
        traces_list,
        {"name": "name", "state": "state", "kind": "kind", "requests": "requests",
         "start_at": "start_at", "end_at": "end_at"},
    ),
    "models": (models_list, {"name": "name", "max_context": "spec.max_context", "own": "own"}),
    "gpus": (
        gpus_list, {"name": "name", "vendor": "spec.vendor", "year": "spec.year", "own": "own"}
    ),
}  # fmt: skip


class Command(HeadroomCommand):
    help = "List runs, scenarios, traces, models or GPU types, the newest or own ones first."
    examples = ("list runs", "list models --search llama", "list traces --json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", choices=list(LISTS), help="kind of rows")
        parser.add_argument("--search", default="", help="part of the name")
        parser.add_argument("--most", type=int, default=MOST, help="most rows")

    def answer(self, options: Namespace) -> Document:
        all_rows, columns = LISTS[options.what]
        matching = [row for row in all_rows() if options.search.lower() in row.name.lower()]
        rows = [
            {name: _json(attrgetter(path)(row)) for name, path in columns.items()}
            for row in matching[: options.most]
        ]
        return {options.what: rows, "count": len(matching)}

    def words(self, answer: Document) -> str:
        what = next(iter(answer))  # the key of the rows
        if not answer[what]:
            return f"No {what} here."
        rows = answer[what]
        if "problem" in rows[0]:
            # It may have several sentences, but a row has one line. --json has all of it.
            rows = [row | {"problem": shorten(row["problem"], MOST_CHARACTERS)} for row in rows]
        lines = table_lines(rows, {name: name for name in rows[0]})
        more = answer["count"] - len(answer[what])
        return "\n".join(lines + ([f"{more:,} more: use --most or --search."] if more else []))


def _json(value: Any) -> Any:
    """Return times in whole seconds as text, and other values unchanged."""
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else value
