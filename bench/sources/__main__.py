"""Headline figures of the five sources beside ours, and independent checks of their algorithms.

    bin/bench sources [--json] [--full] [--only PART,...]

Each key of ``figures`` has ``source`` (the source's figure), ``ours``, ``where`` (in the source)
and ``command`` (which makes ours alone). ``..._disagreements`` are the cases in which the product
and a version that shares no code with it differ, of 300, 80, 40 and 60. Savings are shares. Two
processes compute the parts. ``--full`` runs at the sources' scale, which takes hours. By default,
SageServe's traffic is half of Azure's day, and fewer services are planned below the replica.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import Any

from bench.sources import checks, headlines

PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "checks": lambda full: checks.everything(),
    "solver": lambda full: headlines.solver(),
    "variants": lambda full: headlines.variants(),
    "heteroscale": headlines.heteroscale,
    "sageserve": headlines.sageserve,
    "modules": lambda full: headlines.modules(),
    "operators": headlines.operators,
}
ALONE = "solver"  # its figures are seconds
LONGEST_FIRST = ("heteroscale", "sageserve", "operators", "modules", "checks", "variants")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sources", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--full", action="store_true", help="at the sources' scale")
    parser.add_argument("--only", default="", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - set(PARTS):
        print(f"--only: no part {', '.join(unknown)}. Use {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    names = [name for name in PARTS if name in only or not only]
    parts = {ALONE: part(ALONE, options.full)} if ALONE in names else {}
    others = [name for name in LONGEST_FIRST if name in names]
    with ProcessPoolExecutor(2) as pool:
        parts |= zip(others, pool.map(part, others, repeat(options.full)), strict=True)
    found = {key: value for name in names for key, value in parts[name].items()}
    for key, value in found.items():
        row = (value["source"], value["ours"]) if isinstance(value, dict) else ("", value)
        print(f"{key:<44}{row[0]!s:>10}{row[1]!s:>12}", file=sys.stderr)
    if options.json:
        print(json.dumps(found))
    return 0


def part(name: str, full: bool) -> dict[str, Any]:
    """Return the figures of a part with its seconds, and print these."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    found = PARTS[name](full)
    found[f"{name}_seconds"] = round(time.perf_counter() - wall, 1)
    found[f"{name}_cpu_seconds"] = round(cpu_seconds() - cpu, 1)
    times = "{} s, {} s of CPU".format(*(found[f"{name}_{of}seconds"] for of in ("", "cpu_")))
    print(f"{name}: {times}", file=sys.stderr, flush=True)
    return found


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
