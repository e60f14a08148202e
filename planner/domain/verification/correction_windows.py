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
    """Return the windows before the study's on which capacities are corrected, at most ``WINDOWS``.

    Each has enough requests and a feasible plan, and ends before the study's first decision.
    Without such a window, return the study's window with its requests drawn again (an oracle).
    """
    windows = []
    for earlier in past_studies(study, history_s=0.0)[:WINDOWS]:
        if len(earlier.trace) < FEW:
            continue
        try:
            # A capacity that makes up for a wrong forecast of one day would fail on the next.
            perfect_plan = plan_window(earlier.plan_input, progress, method=PERFECT)
        except Infeasible:
            continue
        first = words_of(earlier.window.start_s, study.traffic.clock)
        last = words_of(earlier.window.end_s, study.traffic.clock)
        words = f"the requests from {first} to {last}, before the window"
        windows.append(TestWindow(earlier, perfect_plan, words))
    if windows:
        return tuple(windows)
    redrawn = replace(study, trace=redraw_arrivals(study.trace, study.window.bin_s, seed))
    if not study.window.ahead:
        planned = plan_window(study.plan_input, progress, method=PERFECT)
    return (TestWindow(redrawn, planned, "the window's requests redrawn (oracle)"),)


def redraw_arrivals(trace: Trace, bin_s: float, seed: int) -> Trace:
    """Return a trace with equally many requests per bin, resampled within each bin of ``bin_s``.

    Requests are drawn with replacement, and arrive at random times of their bin.
    """
    rng = generator(seed, Stream.VERIFYING)
    bins = np.floor(trace.arrival_s / bin_s)  # bin of each request, in rising order
    first = np.searchsorted(bins, bins)  # index of the first request in the same bin
    count = np.searchsorted(bins, bins, side="right") - first  # requests in the same bin
    picked = first + np.floor(rng.random(len(trace)) * count).astype(np.int64)
    arrival = np.sort((bins + rng.random(len(trace))) * bin_s)
    return replace(trace.rows(np.sort(picked)), arrival_s=arrival)
