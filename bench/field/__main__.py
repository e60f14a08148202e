"""bin/bench field [--json]: today's field. Each capability is a module with ``figures``."""

import json
import sys
import time

from bench.field import autoscalers, power, prices, roles, sharing

CAPABILITIES = (autoscalers, power, prices, roles, sharing)


def main() -> None:
    """Print the figures of every capability."""
    begun = time.perf_counter()
    found = {}
    for capability in CAPABILITIES:
        found |= capability.figures()
        print(f"{capability.__name__}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    if "--json" in sys.argv[1:]:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
