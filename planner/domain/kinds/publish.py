"""Write the table of options of every kind of run: ``python -m planner.domain.kinds.publish``."""

import re
from collections.abc import Iterator
from pathlib import Path

from planner.domain.kinds.forecast import TraceOptions
from planner.domain.kinds.registry import KINDS
from planner.domain.options import Option, RunOptions, options_in

MANY = 10  # choices that another page lists
PAGE = Path(__file__).parents[3] / "docs" / "options.md"
HEAD = """\
# Options of runs

This page lists the options of each kind of run.

The API takes these names in `POST /api/v1/KIND/`. The command `bin/manage KIND` takes them with \
`-` for `_`, and without the `_s` of seconds. A refused value is answered with its limits.
"""


def page_text() -> str:
    """Return the text of docs/options.md."""
    kinds = {name: kind.options for name, kind in KINDS.items()}
    kinds["forecast"] = TraceOptions
    return "\n".join([HEAD, *(line for item in kinds.items() for line in _section(*item))])


def _section(name: str, declared: type[RunOptions]) -> Iterator[str]:
    """Yield the lines of one kind of run."""
    yield f"## {name}\n"
    yield "| option | value | meaning |\n| --- | --- | --- |"
    for option in options_in(declared).values():
        needed = " Needed." if option.required else ""
        yield f"| `{option.name}` | {_valid_values(option)} | {option.help}{needed} |"
    yield ""


def _valid_values(option: Option) -> str:
    """Return the valid values of an option in words, for a cell of a Markdown table."""
    if len(option.choices) > MANY:
        return f"one of [{len(option.choices)} names](forecasting.md#methods)"
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    words = option.remedy.removeprefix("give ").replace("|", "\\|")
    words = words.replace("a whole number from", "integer from").replace("a number", "number")
    if re.search(r"\d,\d", words):  # a limit far from usual values, which a refusal states
        words = re.sub(r"^(integer|number) (from|above) .*", r"\1", words)
    return "text" if words.startswith("a text of") else words


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
