"""Requests that a plan may be corrected on without looking at those it is judged on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import Infeasible
from planner.studies.planning.inputs import Planned
from planner.studies.planning.planning import plan_window
from planner.studies.progress import Progress
from planner.studies.random_streams import Stream, generator
from planner.studies.replay.earlier import Earlier
from planner.studies.traffic.window import words_of
from planner.studies.values import Study
from simulation.trace import Trace

PERFECT = "perfect"
WINDOWS = 2  # before the one planned: a plan corrected on one day alone holds on every second
FEW = 100  # requests of a tier and model: fewer say little about attainment


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """A study whose plan is corrected, what it was first planned for, and which requests these are,
    in words."""

    study: Study
    planned: Planned
    words: str


def grounds_of(study: Study, planned: Planned, seed: int, progress: Progress) -> tuple[Ground, ...]:
    """The nearest windows before the study's that can be planned and have requests to go by:
    nothing in them is later than the first decision. They are planned for what came, since a size
    that makes up for a forecast which was too high one day fails on the next. Where there is none,
    the window's own requests drawn anew, which is hindsight, and said."""
    grounds = []
    for earlier in Earlier(study, most=WINDOWS, history_s=0.0).studies:
        if len(earlier.trace) < FEW:
            continue
        try:
            its = plan_window(earlier.plan_input, progress, method=PERFECT)
        except Infeasible:
            continue
        first, last = (
            words_of(moment_s, study.traffic.clock)
            for moment_s in (earlier.window.start_s, earlier.window.end_s)
        )
        grounds.append(
            Ground(earlier, its, f"the requests from {first} to {last}, before the window")
        )
    if grounds:
        return tuple(grounds)
    again = replace(study, trace=drawn_anew(study.trace, study.window.bin_s, seed))
    if not study.window.ahead:
        planned = plan_window(study.plan_input, progress, method=PERFECT)
    return (Ground(again, planned, "the window's own requests drawn anew (in hindsight)"),)


def drawn_anew(trace: Trace, bin_s: float, seed: int) -> Trace:
    """As many requests in each bin, drawn with replacement from those in it, in their order
    at other instants of the bin."""
    rng = generator(seed, Stream.VERIFYING)
    bins = np.floor(trace.arrival_s / bin_s)
    first = np.searchsorted(bins, bins)
    count = np.searchsorted(bins, bins, side="right") - first
    picked = first + np.floor(rng.random(len(trace)) * count).astype(np.int64)
    arrival = np.sort((bins + rng.random(len(trace))) * bin_s)
    return replace(trace.rows(np.sort(picked)), arrival_s=arrival)
