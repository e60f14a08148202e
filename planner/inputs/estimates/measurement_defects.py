"""Name the defects of a measurement, and the weight that each leaves it.

The weights are assumed: no published data says how much a defective run misleads.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.inputs.numbers import finite_number

FEW_FAILED, MANY_FAILED = 0.05, 0.2  # shares of failed requests
FEW_REQUESTS = 20  # completed requests of a run
ROUNDS = 3.0  # completed requests per request in flight, from which a queue can be steady
WAITS = 0.5  # share of a request's time before its first token, from which it mostly waits
BUSY = 8.0  # requests in flight from which such waiting is a queue, not a long prompt
TOO_FAST = 0.4  # measured over estimated TTFT, below which prompts were probably cached
LONG_PROMPT = 512  # tokens from which a cached prompt shows in TTFT
LESS = 0.25  # weight of a measurement with a defect
UNSTATED = 0.5  # weight of a measurement whose engine, version or statistic is assumed


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of a measurement; with ``weight`` 0 the measurement is not used."""

    name: str  # failed, few, unsteady, capped, unstated or prefix
    words: str
    weight: float = LESS


def defects(row: Mapping[str, Any], concurrency: float) -> Iterator[Defect]:
    """Yield the defects that the columns of a measured row show."""
    completed, failed = (_number(row, name) for name in ("completed", "failed"))
    share = failed / (failed + completed) if failed > 0 and failed + completed > 0 else 0.0
    if share > FEW_FAILED:
        weight = 0.0 if share > MANY_FAILED else LESS
        yield Defect("failed", f"{share:.0%} of its requests failed", weight)
    if completed < FEW_REQUESTS:
        yield Defect("few", f"it has only {completed:.0f} requests")
    elif completed < ROUNDS * concurrency:
        yield Defect(
            "unsteady",
            f"its queue is not steady: {completed:.0f} requests with {concurrency:.0f} in flight",
        )
    if assumed := row.get("assumed"):
        yield Defect("unstated", f"it does not state all facts. Assumed: {assumed}", UNSTATED)
    limit = _number(row, "max_num_seqs")
    wait = _number(row, "ttft_ms") / _number(row, "e2e_ms")
    if limit < concurrency:
        yield Defect("capped", f"its batch is capped at {limit:.0f}")
    elif wait > WAITS and concurrency > BUSY:
        yield Defect(
            "capped", f"requests wait {wait:.0%} of their time, as behind a capped batch or memory"
        )


def prefix_hits(measured_s: float, estimated_s: float, isl: float) -> Iterator[Defect]:
    """Yield a defect if the first token came faster than a computed prompt allows.

    Such prompts probably came from the prefix cache.
    """
    if isl >= LONG_PROMPT and measured_s < TOO_FAST * estimated_s:
        share = measured_s / estimated_s
        yield Defect("prefix", f"its TTFT is {share:.0%} of the estimate, as with cached prompts")


def _number(row: Mapping[str, Any], name: str) -> float:
    """Return the number in a column; NaN without one."""
    value = finite_number(row.get(name))
    return math.nan if value is None else value
