"""``bin/manage list``: the names and numbers that other commands take."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter
from textwrap import shorten
from typing import Any, NamedTuple

from planner.management.base import Document, HeadroomCommand
from planner.outputs.table_text import table_lines
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.runs import runs_list
from planner.selectors.scenarios import scenarios_list
from planner.selectors.traces import traces_list

MOST_ROWS, MOST_CHARACTERS = 30, 80


class Listing(NamedTuple):
    """A list of rows of the database or the catalogue."""

    rows: Callable[[], Iterable[Any]]
    attributes: dict[str, str]  # by column; a dotted path


LISTINGS = {
    "runs": Listing(
        lambda: runs_list().filter(sweep=None),  # the others belong to a sweep
        {"id": "pk", "kind": "kind", "name": "name", "state": "state", "created_at": "created_at",
         "problem": "problem"},
    ),
    "scenarios": Listing(scenarios_list, {"id": "pk", "name": "name", "updated_at": "updated_at"}),
    "traces": Listing(
        traces_list,
        {"name": "name", "state": "state", "kind": "kind", "requests": "requests",
         "start_at": "start_at", "end_at": "end_at"},
    ),
    "models": Listing(
        models_list, {"name": "name", "max_context": "spec.max_context", "own": "own"}
    ),
    "gpus": Listing(
        gpus_list, {"name": "name", "vendor": "spec.vendor", "year": "spec.year", "own": "own"}
    ),
}  # fmt: skip


class Command(HeadroomCommand):
    help = "List runs, scenarios, traces, models or GPU types, the newest or own ones first."
    examples = ("list runs", "list models --search llama", "list traces --json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", choices=list(LISTINGS), help="kind of rows")
        parser.add_argument("--search", default="", help="part of the name")
        parser.add_argument("--most", type=int, default=MOST_ROWS, help="most rows")

    def answer(self, options: Namespace) -> Document:
        """Return the first rows whose name contains the text of --search, and how many match."""
        listing = LISTINGS[options.what]
        searched = options.search.lower()
        matching = [row for row in listing.rows() if searched in row.name.lower()]
        shown = []
        for row in matching[: options.most]:
            values = {}
            for column, path in listing.attributes.items():
                value = attrgetter(path)(row)
                is_time = isinstance(value, datetime)
                values[column] = value.isoformat(timespec="seconds") if is_time else value
            shown.append(values)
        return {options.what: shown, "count": len(matching)}

    def words(self, answer: Document) -> str:
        """Return the rows as a table, and how many more match."""
        what = next(iter(answer))  # the key of the rows, such as "runs"
        rows = answer[what]
        if not rows:
            return f"No {what} here."
        if what == "runs":
            # A problem may have several sentences, but a row has one line. --json has all of it.
            rows = [row | {"problem": shorten(row["problem"], MOST_CHARACTERS)} for row in rows]
        lines = table_lines(rows, {column: column for column in rows[0]})
        not_shown = answer["count"] - len(rows)
        if not_shown:
            lines.append(f"{not_shown:,} more: use --most or --search.")
        return "\n".join(lines)
