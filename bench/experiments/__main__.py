"""python -m bench.experiments NAME [...]: run one of the experiments."""

import sys
from importlib import import_module

NAMES = ("heteroscale", "sageserve")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(f"Name an experiment: {', '.join(NAMES)}.")
    name = sys.argv.pop(1)
    import_module(f"bench.experiments.{name}").main()


if __name__ == "__main__":
    main()
