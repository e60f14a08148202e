"""Choose past windows of a study for backtests (methods.md X5)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.planning import static_at_peak, static_before
from planner.domain.replay.cells import carried_into
from planner.domain.study import Study
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.window import DAY_S, Window

DAYS_PER_WEEK = 7  # days
MIN_LENGTH_SHARE = 0.75  # a past window of this share of the length counts as full
MAX_GAP_SHARE = 0.1  # share of a window's bins that may be gaps
DAYS_SEARCHED = 14  # days among which the busiest is searched
HISTORY_BINS = 2  # history needed before the first decision of a window


def study_at(study: Study, window: Window) -> Study:
    """Return the study at another window, with the same hardware and settings.

    Replica capacities are those known at the first decision of ``study``. The static reference
    fleets are sized anew, for the other window.
    """
    seed, cells = study.settings.seed, study.cells
    trace = study.traffic.requests(window.start_s, window.end_s, seed, cells=cells)
    no_replicas = np.zeros(study.hardware.minimum.shape, np.int64)
    sizes = replace(study.sizes, later=(), of_period=None)
    inputs = replace(study.plan_input, window=window, sizes=sizes, current=no_replicas)
    peak, misfit = static_at_peak(inputs)
    before = static_before(inputs)
    moved = replace(
        study, window=window, sizes=sizes, trace=trace, peak=peak, misfit=misfit, before=before
    )
    return replace(moved, carried=carried_into(moved))


def past_studies(study: Study, history_s: float = DAY_S) -> tuple[Study, ...]:
    """Return copies of the study at its ``past_windows``, less those without requests.

    All but the last day need ``history_s`` seconds of traffic before them.
    """
    windows = past_windows(study.window, study.traffic.demand, history_s)
    studies = (study_at(study, window) for window in windows)
    return tuple(past for past in studies if len(past.trace))


@dataclass(frozen=True, slots=True)
class Past:
    """The time from ``begins_s`` to ``ends_s``, from which past copies of ``window`` are cut.

    It begins once there is enough history, and ends at the first decision of ``window``. Both are
    Unix seconds. ``demand`` is the traffic.
    """

    window: Window
    demand: Demand
    begins_s: float
    ends_s: float

    def cut(self, start: float, until: float) -> Window | None:
        """Return the window from ``start`` on, cut to the whole periods that end by ``until``.

        Return None if it has no whole period, or if it begins too early.
        """
        window = self.window
        length_s = min(start + window.duration_s, until) - start
        periods = np.floor(length_s / window.period_s + 1e-9)
        if start < self.begins_s - 1e-6 or periods < 1:
            return None
        end = start + float(periods) * window.period_s
        return replace(window, start_s=start, end_s=end, after_traffic=False)

    def usable(self, starts: Sequence[float], until: float) -> dict[float, Window]:
        """Return the windows from ``starts``, by start, that are long enough and have demand."""
        windows = {start: self.cut(start, until) for start in starts}
        least_s = MIN_LENGTH_SHARE * self.window.duration_s
        return {
            start: moved
            for start, moved in windows.items()
            if moved and moved.duration_s >= least_s and _is_observed(moved, self.demand)
        }

    def right_before(self) -> Window | None:
        """Return the window that ends at the first decision; None without observed demand."""
        window = self.window
        all_periods = round(window.duration_s / window.period_s)
        known_periods = np.floor((self.ends_s - self.begins_s) / window.period_s + 1e-9)
        length_s = float(min(known_periods, all_periods)) * window.period_s
        moved = self.cut(self.ends_s - length_s, self.ends_s)
        return moved if moved is not None and _is_observed(moved, self.demand) else None


def past_windows(window: Window, demand: Demand, history_s: float = DAY_S) -> tuple[Window, ...]:
    """Return up to three past windows: the last day, the same weekday and the busiest day.

    A past window begins at the same time of day as ``window``. It ends before the first decision of
    ``window``, so it may be shorter by some periods. All but the last day have ``history_s``
    seconds of traffic before their own first decision. Missing days are replaced by the most recent
    others.

    If the traffic has no earlier day, return the time right before the first decision, at most as
    long as ``window``. If the time before that is nearly as long as a window or longer, return its
    busiest part too.
    """
    bin_s = window.bin_s
    lead_s = float(np.ceil(window.lead_s / bin_s - 1e-9) * bin_s)
    # The earliest start that leaves enough history before the first decision.
    begins_s = demand.start_s + HISTORY_BINS * demand.bin_s + lead_s
    past = Past(window, demand, begins_s, ends_s=window.first_decision_s)
    # The same window on each earlier day, if any has traffic.
    days = int(max(0.0, window.start_s - begins_s) // DAY_S)
    if DAY_S % demand.bin_s != 0:  # then no bin begins a day before another
        days = 0
    day_starts = {window.start_s - DAY_S * day: day for day in range(1, days + 1)}
    usable = past.usable(list(day_starts), past.ends_s)
    if usable:
        by_day = {day_starts[start]: moved for start, moved in usable.items()}
        return _three_days(by_day, demand, history_s)
    # No earlier day: the time right before, and the busiest part of the time before that.
    last = past.right_before()
    if last is None:
        return ()
    # An earlier window shows the demand at another time of day, which the forecast does not know.
    # Its length is rounded up to whole bins, because a decision must fall on the edge of a bin.
    length_s = np.ceil(MIN_LENGTH_SHARE * window.duration_s / bin_s - 1e-9) * bin_s
    starts = np.arange(last.start_s - length_s, begins_s - 1e-6, -bin_s)
    earlier = past.usable(starts.tolist(), last.start_s).values()
    if not earlier:
        return (last,)
    return last, max(earlier, key=lambda moved: _requests_in(moved, demand))


def _three_days(by_day: dict[int, Window], demand: Demand, history_s: float) -> tuple[Window, ...]:
    """Return the past windows of the most recent day, the day a week before and the busiest day.

    ``by_day`` has the possible windows by the number of days before the planned one. Every day
    but the most recent needs ``history_s`` seconds of traffic before it. If one of the three is
    missing, or two are the same, the next most recent days take their places.
    """
    last = min(by_day)
    with_history = [
        day
        for day, window in by_day.items()
        if day == last or window.first_decision_s >= demand.start_s + history_s
    ]
    recent = [day for day in with_history if day <= last + DAYS_SEARCHED]
    busiest = max(recent, key=lambda day: _requests_in(by_day[day], demand))
    by_preference = dict.fromkeys([last, DAYS_PER_WEEK, busiest, *recent])
    chosen = [day for day in by_preference if day in with_history][:3]
    return tuple(by_day[day] for day in chosen)


def _requests_in(window: Window, demand: Demand) -> float:
    """Return the number of requests that were observed in the window."""
    return float(np.nansum(demand.requests[:, demand.inside(window.start_s, window.end_s)]))


def _is_observed(window: Window, demand: Demand) -> bool:
    """Return whether at most MAX_GAP_SHARE of the window's bins are gaps."""
    bins = round(window.duration_s / window.bin_s)
    return demand.gaps(window.start_s, window.end_s) <= MAX_GAP_SHARE * bins
