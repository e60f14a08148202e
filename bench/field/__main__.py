"""bin/bench field [--json]: today's field. Each capability is a module with ``figures``."""

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from typing import Any

from bench.field import autoscalers, power, prices, roles, sharing

CAPABILITIES = (sharing, autoscalers, power, prices, roles)  # the longest first


def main() -> None:
    """Print the figures of every capability."""
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(2) as pool:  # they share nothing
        for figures in pool.map(_figures, [capability.__name__ for capability in CAPABILITIES]):
            found |= figures
    if "--json" in sys.argv[1:]:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:36} {value}")


def _figures(name: str) -> dict[str, Any]:
    """Return the figures of a capability, and print its time."""
    begun = time.perf_counter()
    figures: dict[str, Any] = import_module(name).figures()
    print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return figures


if __name__ == "__main__":
    main()
