"""Stress-test policies with longer answers or with more requests than the forecast expects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.domain.policy_backtest.significance import worth_taking
from planner.domain.policy_backtest.tuning import (
    ROUNDING,
    TIE,
    Tuning,
    below,
    targets_of,
)
from planner.domain.progress import (
    Progress,
    silent,
)
from planner.domain.run_parts import (
    IN_PROCESS,
    Part,
    Parts,
)
from planner.domain.study import PolicyRun
from planner.errors import EXPECTED
from planner.policies.base import Policy
from simulation.trace import Trace

TIMES = 2.0  # factor on output lengths in the second half of the window (assumed)


@dataclass(frozen=True, slots=True)
class Harder:
    """Result of a policy's stress test on the nearest earlier window.

    ``times`` is the factor on the output lengths or on the number of requests. ``shortfall`` is
    how far the worst tier stays below its SLO target. ``cost_usd`` is the cost on all backtest
    windows without the change.
    """

    policy: str
    label: str
    times: float
    attainment: dict[str, float | None]
    meets: bool
    cost_usd: float
    shortfall: float
    then_usd: float  # cost in the stress test


def lengthened(trace: Trace, from_s: float) -> Trace:
    """Return the trace with outputs TIMES as long for requests that arrive from ``from_s`` on."""
    late = trace.arrival_s >= from_s
    grown = np.rint(TIMES * trace.output_tokens).astype(trace.output_tokens.dtype)
    return replace(trace, output_tokens=np.where(late, grown, trace.output_tokens))


def outlasting(
    tunings: Sequence[Tuning],
    make_room: Callable[[Tuning], None],
    play: Callable[[Policy, Progress], PolicyRun],
    times: float = TIMES,
    *,
    days: bool = True,
    parts: Parts = IN_PROCESS,
    progress: Progress = silent,
) -> tuple[Harder, ...]:
    """Stress-test policies until one passes, and return the results.

    Candidates meet every SLO in the backtests, with headroom for growth if any policy has it.
    The first tests cover the cheapest policy worth taking and those of about the same cost.
    The others follow one by one, the cheapest first, until a policy passes.

    ``make_room`` may raise a policy's parameter to gain headroom. ``play`` replays a policy on
    the changed window, and ``times`` is the factor of the change. ``days`` has the meaning of
    ``worth_taking``.
    """
    able = [tuning for tuning in tunings if tuning.best.meets]
    done: set[str] = set()
    harder_days: list[Harder] = []
    while batch := _next(able, done, any(its.meets for its in harder_days), days):
        settled = [tuning for tuning in batch if tuning.settled]
        if not settled:
            make_room(batch[0])  # a safer value may cost more, so choose the batch again
            continue
        done.update(tuning.policy.key for tuning in settled)
        tests = [
            Part(f"Stress test: {tuning.policy.title}", partial(_played, tuning, play, times))
            for tuning in settled
        ]
        harder_days += [harder for harder in parts.map(tests, progress, at_once=1) if harder]
    return tuple(harder_days)


def _next(
    able: Sequence[Tuning], done: Collection[str], one_does: bool, days: bool
) -> list[Tuning]:
    """Return the candidates to test next, the cheapest first.

    Candidates without headroom for growth are tested only if no candidate has it.
    """
    field = [tuning for tuning in able if not tuning.best.lacks] or able
    worth = worth_taking({tuning.policy.key: tuning.best for tuning in field}, days=days)
    usd = min((tuning.best.cost_usd for tuning in field if tuning.policy.key in worth), default=0.0)
    left = [tuning for tuning in field if tuning.policy.key not in done]
    left.sort(key=lambda tuning: tuning.best.cost_usd)
    first = [
        tuning
        for tuning in left
        if tuning.policy.key in worth and tuning.best.cost_usd <= usd * (1 + TIE)
    ]
    return first or ([] if one_does else left[:1])


def _played(
    tuning: Tuning,
    play: Callable[[Policy, Progress], PolicyRun],
    times: float,
    report: Progress,
) -> Harder | None:
    """Return the stress test of a policy, or None if the policy cannot be built on that window."""
    policy = tuning.turned
    try:
        run = play(policy, report)
    except EXPECTED:
        return None
    short = below(run.summary, targets_of(run))
    meets, attainment = short <= ROUNDING, run.summary.slo_attainment
    return Harder(
        policy.key,
        policy.title,
        times,
        attainment,
        meets,
        tuning.best.cost_usd,
        short,
        run.summary.cost_usd,
    )
