"""Errors of every profile kind against the measured data, and their speed.

    python -m bench.accuracy [NAME ...] [--json] [--data DIR]

NAME is one of silicon, tables, families, power, speed, consistency, laws, operators; without any,
all. The errors on groups that the fit left out come first.
Each has a function ``figures(data)`` that returns its figures, computed in that run: errors and
shares as fractions.
What lacks its data is named on stderr, and its figures are absent.
"""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from tools.catalogue import DATA

MODULES = {
    name: f"bench.accuracy.{name}"
    for name in ("silicon", "tables", "families", "power", "speed", "consistency", "laws")
}
MODULES["operators"] = "tools.catalogue.operator_checks"  # which fitting needs too


def collect(names: list[str], data: Path) -> dict[str, Any]:
    """Return the figures of all modules in one; skip a module whose data are missing."""
    result: dict[str, Any] = {}
    for name in names:
        start = time.perf_counter()
        module = importlib.import_module(MODULES[name])
        try:
            part = module.figures(data)
        except FileNotFoundError as error:
            print(f"{name}: its data are not there ({error})", file=sys.stderr)
            continue
        result |= part
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return result


def lines(figures: dict[str, Any], indent: str = "") -> list[str]:
    """Name and value, one per line; what is nested further in."""
    out = []
    for name, value in figures.items():
        if isinstance(value, dict):
            out += [f"{indent}{name}", *lines(value, indent + "  ")]
        elif isinstance(value, float):
            shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"
            out.append(f"{indent}{name:<{52 - len(indent)}} {shown:>14}")
        elif not isinstance(value, list):
            out.append(f"{indent}{name:<{52 - len(indent)}} {value!s:>14}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(prog="bin/bench accuracy", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MODULES, []], metavar="NAME")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"There is no data folder {options.data}: give --data DIR.", file=sys.stderr)
        return 2
    figures = collect(options.names or list(MODULES), options.data)
    table = "\n".join(lines(figures))
    if options.json:
        print(table, file=sys.stderr)
        print(json.dumps(figures))
    else:
        print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
