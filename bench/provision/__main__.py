"""Provisioning below the replica: gaps, times and savings.

    bin/bench provision [--json] [--quick]

``printed_greedy_gap``, ``our_greedy_gap``: slots over the proven optimum less 1, mean over 500
seeded small cases (``printed_greedy_infeasible``: share of feasible ones it leaves without a plan
that keeps the limit). ``placement_gap``: devices of Algorithm 2 over the fewest, less 1.
``exact_seconds``: 30 operators x 64 batch sizes x 4 parallelisms x 64 replicas. ``replan_ms``: the
same by our greedy. ``gap_to_exact``: devices of our greedy over the fewest of all plans and
placements, less 1. What requests say of plans: ``bench/provision/level_replays.py``. ``savings``,
``claims``, ``windows``: by means of queues, against whole replicas, with measured kernels.
``replayed``: the table of traces judged by requests. ``modules``: layers copied and moved, in the
simulator. ``--quick`` leaves those out, and judges fewer services.
"""

import argparse
import json
import math
import sys
from typing import Any

from bench.provision import algorithms, level_replays

QUICK = 12  # services that are judged


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.provision", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="gaps and times alone")
    options = parser.parse_args()
    figures: dict[str, Any] = {
        **algorithms.gaps(),
        **algorithms.placement_gap(),
        **algorithms.device_gap(),
        **algorithms.times(),
        **level_replays.everything(QUICK if options.quick else level_replays.CASES),
    }
    for name, value in figures.items():
        print(f"{name:<28}{value:.4g}", file=sys.stderr)
    if not options.quick:
        from bench.provision import (
            modules,
            replays,
            savings,
            services,
            windows,
        )

        figures["modules"] = modules.everything()

        if services.DATA.exists():
            figures |= replays.everything()
            figures |= savings.everything()
            figures["windows"] = [
                row
                for model, gpu, rate in (
                    ("qwen2-7b", "A100-80GB", 80.0),
                    ("llama-3.1-70b", "H100-SXM", 40.0),
                )
                for row in windows.courses(model, gpu, rate)
            ]
            figures["replan_week_seconds"] = windows.week_seconds()
            print(
                f"a week of 10 s windows: {figures['replan_week_seconds']:.0f} s", file=sys.stderr
            )
            for claim, answer in figures["claims"].items():
                print(f"{'confirmed' if answer['holds'] else 'contradicted'}: {claim}: {answer}",
                      file=sys.stderr)  # fmt: skip
        else:
            print("No traces in ../shared/data: savings are left out.", file=sys.stderr)
    if options.json:
        print(json.dumps(_clean(figures)))
    return 0


def _clean(value: Any) -> Any:
    """Replace NaN and infinity by None, since JSON has neither."""
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
