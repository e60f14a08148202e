"""Days harder than those before: answers that grow in the middle, or more requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from forecasting.demand import DemandSeries
from planner.errors import EXPECTED
from planner.policies.base import Policy
from planner.studies.rehearsal.tuning import ROUNDING, TIE, below, targets_of
from planner.studies.traffic.ranking import stretches
from planner.studies.traffic.window import DAY_S, Window
from planner.studies.values import PolicyRun
from simulation.trace import Trace

TIMES = 2.0  # as long from half of the window on (assumed)
ONE_IN = 10  # days rises by more than what is tried (assumed)
PAIRS = 3  # days that follow on each other, below which none says how much another may have
MOST = 1.9  # times the requests: more says that the day before tells nothing
NOTICED = 1.01


@dataclass(frozen=True, slots=True)
class Harder:
    """A policy as it was chosen, replayed on the nearest window before with ``times`` as much of
    what grew. ``cost_usd`` is what it came to without, on all windows rehearsed."""

    policy: str
    label: str
    times: float
    attainment: dict[str, float | None]
    meets: bool
    cost_usd: float


def risen(demand: DemandSeries, window: Window) -> float:
    """How many times the requests of a day the next one had, of days before the window's first
    decision and at its time of day: exceeded by one in ONE_IN. 1 where too few are known."""
    known = float(window.origins_s[0])
    last_s = min(window.start_s - DAY_S, known - window.duration_s)
    days = [
        one
        for one in stretches(demand, window.duration_s, phase_s=last_s, step_s=DAY_S)
        if one.start_s <= last_s and one.amount > 0
    ]
    ratios = [
        after.amount / before.amount
        for before, after in pairwise(days)
        if after.start_s - before.start_s <= DAY_S
    ]
    if len(ratios) < PAIRS:
        return 1.0
    return float(np.clip(np.quantile(ratios, 1 - 1 / ONE_IN), 1.0, MOST))


def lengthened(trace: Trace, from_s: float) -> Trace:
    """With answers TIMES as long of what arrives from ``from_s`` on."""
    late = trace.arrival_s >= from_s
    grown = np.rint(TIMES * trace.output_tokens).astype(trace.output_tokens.dtype)
    return replace(trace, output_tokens=np.where(late, grown, trace.output_tokens))


def outlasting(
    did: Sequence[tuple[Policy, float]], play: Callable[[Policy], PolicyRun], times: float
) -> tuple[Harder, ...]:
    """Of those that ``did`` on the days before, with what they cost there, the cheapest first, up
    to the first that does on what ``play`` has ``times`` as much of too; those about as cheap as
    the cheapest are tried in any case, since the one to take is among them."""
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
        found.append(Harder(policy.key, policy.title, times, attainment, meets, usd))
    return tuple(found)
