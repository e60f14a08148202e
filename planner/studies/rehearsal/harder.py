"""Days harder than those before: answers that grow in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import EXPECTED
from planner.policies.base import Policy
from planner.studies.rehearsal.tuning import ROUNDING, TIE, below, targets_of
from planner.studies.values import PolicyRun
from simulation.trace import Trace

TIMES = 2.0  # as long from half of the window on (assumed)


@dataclass(frozen=True, slots=True)
class Harder:
    """A policy as it was chosen, replayed on the nearest window before with answers ``times`` as
    long. ``cost_usd`` is what it came to without, on all windows rehearsed."""

    policy: str
    label: str
    times: float
    attainment: dict[str, float | None]
    meets: bool
    cost_usd: float


def lengthened(trace: Trace, from_s: float) -> Trace:
    """With answers TIMES as long of what arrives from ``from_s`` on."""
    late = trace.arrival_s >= from_s
    grown = np.rint(TIMES * trace.output_tokens).astype(trace.output_tokens.dtype)
    return replace(trace, output_tokens=np.where(late, grown, trace.output_tokens))


def outlasting(
    did: Sequence[tuple[Policy, float]], play: Callable[[Policy], PolicyRun]
) -> tuple[Harder, ...]:
    """Of those that ``did`` on the days before, with what they cost there, the cheapest first, up
    to the first that does on what ``play`` has too; those about as cheap as the cheapest are tried
    in any case, since the one to take is among them."""
    found: list[Harder] = []
    ordered = sorted(did, key=lambda pair: pair[1])
    for policy, usd in ordered:
        if any(one.meets for one in found) and usd > ordered[0][1] * (1 + TIE):
            break
        try:
            run = play(policy)
        except EXPECTED:  # cannot be made there
            continue
        meets = below(run.summary, targets_of(run)) <= ROUNDING
        attainment = run.summary.slo_attainment
        found.append(Harder(policy.key, policy.title, TIMES, attainment, meets, usd))
    return tuple(found)
