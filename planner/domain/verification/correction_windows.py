"""Choose requests to correct a plan on, other than those it is judged on."""

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_window
from planner.domain.progress import Progress
from planner.domain.random_streams import Stream, generator
from planner.domain.replay.backtest_windows import past_studies
from planner.domain.study import Study
from planner.domain.traffic.window import words_of
from planner.errors import Infeasible
from simulation.trace import Trace

PERFECT = "perfect"
WINDOWS = 2  # a plan corrected on one day alone holds on only every second day
FEW = 100  # fewer requests of a tier and model say little about attainment


@dataclass(frozen=True, slots=True, eq=False)
class TestWindow:
    """A study to correct capacities on, its first plan, and a description of its requests."""

    study: Study
    planned: PlannedWindow
    words: str


def correction_windows(
    study: Study, planned: PlannedWindow, seed: int, progress: Progress
) -> tuple[TestWindow, ...]:
    """Return the nearest windows before the study's that can be planned and have enough requests.

    Their data is all before the first decision. They are planned with a perfect forecast, because a
    capacity that makes up for a high forecast on one day would fail on the next. Without such a
    window, return the window's own requests drawn again. That uses future data, as the description
    says.
    """
    grounds = []
    for earlier in past_studies(study, history_s=0.0)[:WINDOWS]:
        if len(earlier.trace) < FEW:
            continue
        try:
            perfect_plan = plan_window(earlier.plan_input, progress, method=PERFECT)
        except Infeasible:
            continue
        first, last = (
            words_of(moment_s, study.traffic.clock)
            for moment_s in (earlier.window.start_s, earlier.window.end_s)
        )
        grounds.append(
            TestWindow(
                earlier, perfect_plan, f"the requests from {first} to {last}, before the window"
            )
        )
    if grounds:
        return tuple(grounds)
    again = replace(study, trace=redraw_arrivals(study.trace, study.window.bin_s, seed))
    if not study.window.ahead:
        planned = plan_window(study.plan_input, progress, method=PERFECT)
    return (TestWindow(again, planned, "the window's requests redrawn (oracle)"),)


def redraw_arrivals(trace: Trace, bin_s: float, seed: int) -> Trace:
    """Return as many requests in each bin, drawn with replacement from those in it.

    They keep their order, at other random times of the bin.
    """
    rng = generator(seed, Stream.VERIFYING)
    bins = np.floor(trace.arrival_s / bin_s)  # of each request, in rising order
    first = np.searchsorted(bins, bins)  # first request and number of requests of that bin
    count = np.searchsorted(bins, bins, side="right") - first
    picked = first + np.floor(rng.random(len(trace)) * count).astype(np.int64)
    arrival = np.sort((bins + rng.random(len(trace))) * bin_s)
    return replace(trace.rows(np.sort(picked)), arrival_s=arrival)
