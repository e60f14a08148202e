"""Days harder than those before: answers that grow in the middle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import EXPECTED
from planner.policies.base import Policy
from planner.studies.rehearsal.evidence import worth_taking
from planner.studies.rehearsal.tuning import ROUNDING, TIE, Tuning, below, targets_of
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
    tunings: Sequence[Tuning],
    make_room: Callable[[Tuning], None],
    play: Callable[[Policy], PolicyRun],
    *,
    days: bool = True,
) -> tuple[Harder, ...]:
    """Of those that did on the days before, with room for growth where any has it, those that the
    one to take is among, the cheapest worth taking and what costs about as much, and then the
    cheapest first, up to the first that does on what ``play`` has too. ``days``: as of
    ``worth_taking``."""
    able = [one for one in tunings if one.best.meets]
    done: set[str] = set()
    found: list[Harder] = []
    while (one := _next(able, done, any(its.meets for its in found), days)) is not None:
        if not one.settled:
            make_room(one)  # it may have to be set higher, and then is not the cheapest
            continue
        done.add(one.policy.key)
        if (harder := _played(one, play)) is not None:
            found.append(harder)
    return tuple(found)


def _next(
    able: Sequence[Tuning], done: Collection[str], one_does: bool, days: bool
) -> Tuning | None:
    """Of ``able`` whose turn it is yet, those without room only where all are."""
    field = [one for one in able if not one.best.lacks] or able
    worth = worth_taking({one.policy.key: one.best for one in field}, days=days)
    usd = min((one.best.cost_usd for one in field if one.policy.key in worth), default=0.0)
    left = [one for one in field if one.policy.key not in done]
    first = [
        one for one in left if one.policy.key in worth and one.best.cost_usd <= usd * (1 + TIE)
    ]
    return min(first or ([] if one_does else left), key=lambda one: one.best.cost_usd, default=None)


def _played(one: Tuning, play: Callable[[Policy], PolicyRun]) -> Harder | None:
    """None where it cannot be made there."""
    policy = one.turned
    try:
        run = play(policy)
    except EXPECTED:
        return None
    meets = below(run.summary, targets_of(run)) <= ROUNDING
    attainment = run.summary.slo_attainment
    return Harder(policy.key, policy.title, TIMES, attainment, meets, one.best.cost_usd)
