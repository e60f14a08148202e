"""Describe the basis of a result: window, forecasts, capacities and sources.

A GPU column is one way to run replicas: a GPU type, its number of GPUs and role, bought or as spot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from forecasting.conformal import RHYTHM_DAYS
from forecasting.demand import REQUESTS
from forecasting.drift import detect_drift
from forecasting.forecast import MethodScore
from forecasting.harmonics import DAY_S
from forecasting.past_forecasts import PastPeaks
from planner.domain.columns import FLAG, NUMBER, SECONDS, SHARE, TEXT, Column, Columns
from planner.domain.replicas import Replica, replica_of
from planner.domain.results.assumptions import (
    Assumption,
    assumed_today,
    assumptions_of,
    replay_of,
)
from planner.domain.serialise import COLUMNS, MERGED, OPTIONAL, milliseconds, moment
from planner.domain.sizing.sizing import Sizes
from planner.domain.sources import Fact, facts_of, provenance_at
from planner.domain.study import Study
from planner.domain.traffic.forecast_percentile import PlannedQuantile
from planner.domain.traffic.forecasts import SeriesForecast
from planner.domain.traffic.traffic import MEASURED, Traffic
from planner.domain.traffic.window import Window
from planner.domain.traffic.window_rank import ALL as EVERYTHING
from planner.domain.traffic.window_rank import WindowRank, window_rank
from planner.domain.verification.profile_error import stated_error
from planner.inputs.scenario.build import Hardware
from simulation.trace_replay import percentile_error

# Source that is listed if the scenario does not state the fleet.
CURRENT_FLEET = "Current fleet"


def series_columns(forecast: str, unit: Callable[[Any], str], *more: Column) -> Columns:
    """Return the columns of a table of forecasts, with the errors of past forecasts.

    ``forecast`` is the prefix of the forecast's attributes in a row, such as "ahead."; "" if the
    row itself is a forecast. ``unit`` returns the unit of a row's amounts. ``more`` columns follow.
    """

    def attribute(name: str) -> Callable[[Any], Any]:
        """Return a function that reads the attribute ``name`` of the forecast in a row."""
        return attrgetter(forecast + name)

    past, compared = attribute("past"), attribute("compared")
    return Columns(
        (
            Column("model", TEXT, "model", attribute("key.model")),
            Column("region", TEXT, "home region", attribute("key.region")),
            Column("tier", TEXT, "tier, or interactive for all of these", attribute("key.tier")),
            Column("method", TEXT, "forecaster", attribute("method")),
            Column("order", TEXT, "order of the fitted model", attribute("order")),
            Column("unit", TEXT, "unit of amounts", unit),
            Column("wape", SHARE, "absolute errors over demand", lambda row: row.errors["wape"]),
            Column("peak_wape", SHARE, "absolute errors over demand, for the peak of each period",
                   lambda row: row.errors["peak_wape"]),
            Column(
                "mase",
                NUMBER,
                "errors over those of a forecast that repeats the bin before",
                lambda row: row.errors["mase"],
            ),
            Column("coverage80", SHARE, "bins within the 80% band",
                   lambda row: row.errors["coverage80"]),
            Column("bias", SHARE, "signed errors over demand", lambda row: row.errors["bias"]),
            Column("runner_up", TEXT, "best of the other methods that `auto` compared",
                   lambda row: _runner_up(compared(row)).method),
            Column("runner_up_over", NUMBER, "its recent peak error over that of `method`",
                   lambda row: _runner_up(compared(row)).error_ratio),
            Column("fit_seconds", SECONDS, "fitting time", attribute("fit_seconds")),
            Column("forecast", NUMBER, "mean by bin", attribute("mean")),
            Column(
                "drift",
                FLAG,
                "whether recent forecasts are worse than earlier ones",
                lambda row: _drift_document(past(row)),
                parts=("flagged", "since", "sentence"),
            ),
            *more,
        )
    )  # fmt: skip


class _RunnerUp(NamedTuple):
    """The best method that was not chosen; "" if only one method was compared.

    ``error_ratio`` is its error over that of the chosen method; None if that has no error.
    """

    method: str = ""
    error_ratio: float | None = None


def _runner_up(scores: Sequence[MethodScore]) -> _RunnerUp:
    """Return the best of the methods in ``scores`` that was not chosen."""
    others = [score for score in scores if not score.chosen]
    if not others:
        return _RunnerUp()
    best = min(others, key=lambda score: score.error)
    for score in scores:
        if score.chosen and score.error > 0:
            return _RunnerUp(best.method, best.error / score.error)
    return _RunnerUp(best.method)


def _drift_document(past: PastPeaks | None) -> dict[str, Any] | None:
    """Return whether past forecasts became worse, as JSON; None without past forecasts."""
    if past is None:
        return None
    drift = detect_drift(past)
    since = None if drift.since_s is None else moment(drift.since_s)
    return {"flagged": drift.flagged, "since": since, "sentence": drift.sentence}


SERIES = series_columns("", lambda row: "input_tokens")
MIN_BUSIEST_RATIO = 1.5  # demand of the busiest window over that of this one, from which to warn
MIN_RHYTHM_H = 6.0  # length of a window from which on a daily rhythm matters (assumed)


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """The window of a result: its time, its periods and where its requests come from."""

    start: datetime
    end: datetime
    period_s: float
    bin_s: float
    lead_s: float
    clock: str  # "utc", or "relative" for a trace without dates
    replay: str  # origin of the replayed requests
    rank: WindowRank | None  # rank among windows of this length; None: after the traffic


@dataclass(frozen=True, slots=True)
class SizedReplica:
    """The capacity of one replica at its most limiting tier, and of pools of such replicas."""

    replica: Replica = field(metadata={MERGED: True})
    max_rps: float
    input_tps: float
    ttft_ms: float | None
    tbt_ms: float | None
    bound_by: str
    tier: str
    pool_tps: tuple[float, ...]  # joint capacity of 1, 2, .. replicas, input tokens/s
    provenance: str
    source: str


@dataclass(frozen=True, slots=True)
class ReplayedTraffic:
    """The replayed part of the window's traffic.

    A large fleet is divided into ``cells`` equal parts, of which one is replayed; 1: all of it.
    ``percentiles_within`` is the relative error of latency percentiles; 0: exact.
    """

    requests: int
    cells: int
    percentiles_within: float
    sentence: str  # empty if all requests were replayed exactly


@dataclass(frozen=True, slots=True)
class Frame:
    """The basis of a result: its window, capacities, assumptions and sources."""

    scenario: str
    window: WindowFacts
    replayed: ReplayedTraffic
    capacity: tuple[SizedReplica, ...]
    assumptions: tuple[Assumption, ...]
    provenance: tuple[Fact, ...]
    notes: tuple[str, ...]
    requests: int
    deferrable: tuple[str, ...]  # tiers that may wait
    speed_error: float | None = None  # largest stated error of a profile, as a share
    # A warning, if a plan that was not simulated rests on little history.
    short_history: str | None = field(default=None, metadata={OPTIONAL: True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings on the basis itself."""
        return () if self.short_history is None else (self.short_history,)


@dataclass(frozen=True, slots=True, eq=False)
class Forecasts:
    """The forecasts that a result rests on."""

    series: tuple[SeriesForecast, ...] = field(metadata={COLUMNS: SERIES})
    quantile: tuple[PlannedQuantile, ...] = ()  # planned percentile by group of tiers


def frame_of(study: Study, *, has_all_requests: bool = False, simulated: bool = True) -> Frame:
    """Return the basis of a result.

    ``has_all_requests``: the result has a row for every request, so its percentiles are exact.
    ``simulated``: its figures come from a simulation, not only from the optimizer.
    """
    window, traffic, hardware = study.window, study.traffic, study.hardware
    errors = [stated_error(profile) for profile in hardware.profiles.values()]
    # A comparison has it among its warnings.
    short_history = [] if simulated else short_history_warning(window, traffic)
    return Frame(
        scenario=study.settings.name,
        window=window_facts(window, traffic),
        replayed=_replayed_traffic(study, has_all_requests=has_all_requests),
        capacity=sized_replicas(study.sizes, hardware),
        assumptions=assumptions_of(study),
        provenance=_sources_of_figures(study, simulated=simulated),
        notes=(
            *gaps_note(traffic, window),
            *growth_note(window),
            *([study.misfit] if study.misfit else []),
            "Every policy begins with the current fleet. Replicas added for the first "
            "period start early, by one cold start, and are billed. Requests before the window are "
            "not replayed.",
            *traffic.notes,
            *study.sizes.notes,
        ),
        requests=len(study.trace) * study.cells,
        deferrable=tuple(tier.name for tier in hardware.tiers if tier.deferrable),
        speed_error=max((error.value for error in errors if error is not None), default=None),
        short_history=short_history[0] if short_history else None,
    )


def _replayed_traffic(study: Study, *, has_all_requests: bool) -> ReplayedTraffic:
    """Return how much traffic was replayed, and how accurate its percentiles are.

    ``has_all_requests``: the result has a row for every request, so percentiles are exact.
    """
    drawn, cells = len(study.trace), study.cells
    sentences = []
    if cells > 1:
        sentences.append(
            f"Planned for all of about {drawn * cells:,} requests. Replayed on {drawn:,} of "
            f"them, drawn at random, on one of {cells} equal cells of the fleet. "
            f"Replicas change {cells} at a time, with at most {cells - 1} more in a pool "
            "than targeted. Cells share no queue."
        )
    within = 0.0 if has_all_requests else percentile_error(drawn)
    if within:
        sentences.append(
            f"Replayed as a stream, because {drawn:,} requests exceed the memory. "
            f"Latency percentiles are accurate to {within:.1%} (or 0.13 ms if "
            "that is more). All other figures are exact."
        )
    return ReplayedTraffic(drawn, cells, within, " ".join(sentences))


def rank_of(window: Window, traffic: Traffic) -> WindowRank | None:
    """Return how busy the window is by requests, among others; None if it is after the traffic."""
    if window.after_traffic:
        return None
    requests = traffic.demand.total(EVERYTHING, REQUESTS, lambda key: True)
    return window_rank(requests, window.start_s, window.end_s, traffic.clock)


def busier_window_warning(window: Window, traffic: Traffic) -> list[str]:
    """Return a warning if the traffic has a much busier window; else an empty list."""
    rank = rank_of(window, traffic)
    if rank is None or rank.busiest_ratio is None or rank.busiest_ratio < MIN_BUSIEST_RATIO:
        return []
    return [f"This window is not the busiest: {rank.sentence}"]


def short_history_warning(window: Window, traffic: Traffic) -> list[str]:
    """Return a warning if the history is too short to show a daily rhythm in a long window.

    A window whose whole demand is described by the scenario needs no history.
    """
    demand = traffic.demand
    known_s = window.first_decision_s - demand.start_s
    if known_s >= RHYTHM_DAYS * DAY_S or window.duration_s <= known_s / 2:
        return []
    is_forecast = (
        traffic.described_demand(key, {key.tier}, REQUESTS, window) is None for key in demand.keys
    )
    if window.duration_s < MIN_RHYTHM_H * 3600 or not any(is_forecast):
        return []
    return [
        f"The forecast rests on {known_s / 3600:,.3g} h of traffic. Use two days of traffic or "
        "more, or plan a launch with the rate that you expect."
    ]


def unused_traffic_warning(window: Window, traffic: Traffic) -> list[str]:
    """Return a warning if a plan for the future begins before the end of some traffic sources.

    It begins where the first source ends, so the rest of the others is not used.
    """
    measured = traffic.measured
    ends_s = [source.end_s for source in traffic.binned]
    if len(measured):
        ends_s.append(measured.start_s + float(measured.arrival_s[-1]))
    unused_s = max(ends_s, default=0.0) - traffic.demand.end_s
    if not window.after_traffic or unused_s < traffic.demand.bin_s:
        return []
    return [
        "The plan begins where the first traffic source ends. Other sources have "
        f"{unused_s / 3600:,.3g} h more, which are not used. Update the first source, or remove it."
    ]


def window_facts(window: Window, traffic: Traffic) -> WindowFacts:
    """Return the figures that describe the window."""
    return WindowFacts(
        start=moment(window.start_s),
        end=moment(window.end_s),
        period_s=window.period_s,
        bin_s=window.bin_s,
        lead_s=window.lead_s,
        clock=traffic.clock,
        replay=replay_of(window, traffic),
        rank=rank_of(window, traffic),
    )


def gaps_note(traffic: Traffic, window: Window) -> list[str]:
    """Return a note if bins of the window were not fully observed, else []."""
    gaps = traffic.demand.gaps(window.start_s, window.end_s)
    if not gaps:
        return []
    return [
        f"{gaps} of the {round(window.duration_s / window.bin_s)} bins of the window were not "
        "observed in full. They are excluded from the replay and from all figures."
    ]


def growth_note(window: Window) -> list[str]:
    """Return a note on whether the scenario's growth is used; [] if it states no growth."""
    if not window.growth:
        return []
    if window.after_traffic:
        return [
            f"Planned for {window.growth.words} of the forecast: stated by "
            "traffic.growth, not observed."
        ]
    return [
        "traffic.growth applies after the end of the traffic. This window is before it and is "
        "planned without growth. Set horizon.start to end to plan ahead."
    ]


def sized_replicas(sizes: Sizes, hardware: Hardware) -> tuple[SizedReplica, ...]:
    """Return the capacity of a replica of each model and GPU column that was sized."""
    replicas = []
    for model_column, (tier, capacity) in sizes.capacity.items():
        profile = hardware.profiles[model_column]
        source = provenance_at(profile, sizes.extrapolated_share(model_column))
        replicas.append(
            SizedReplica(
                replica=replica_of(hardware, *model_column),
                max_rps=capacity.max_rps,
                input_tps=capacity.input_tps,
                ttft_ms=milliseconds(capacity.ttft_s),
                tbt_ms=milliseconds(capacity.tbt_s),
                bound_by=capacity.bound_by,
                tier=tier,
                pool_tps=tuple(float(tps) for tps in sizes.pool_tps[model_column]),
                provenance=source.kind,
                source=source.source,
            )
        )
    return tuple(replicas)


def facts_at(hardware: Hardware, sizes: Sizes) -> tuple[Fact, ...]:
    """Return the source of each figure of the hardware, at the ``sizes`` that a run used.

    A speed counts as measured only if the measurements cover the loads at which it was sized.
    """
    speeds = {}  # provenance at these sizes, by name and provenance of the profile
    for model_column, profile in hardware.profiles.items():
        if model_column in sizes.capacity:
            what = f"Speed of {profile.model} on {profile.tp} x {profile.gpu}"
            provenance = provenance_at(profile, sizes.extrapolated_share(model_column))
            # If several roles use a profile, one beyond the measured range decides.
            if provenance != profile.provenance or (what, profile.provenance) not in speeds:
                speeds[what, profile.provenance] = provenance
    # Other figures than speeds, and speeds that were not sized, keep their source.
    return facts_of(
        (what, speeds.get((what, provenance), provenance))
        for what, provenance in hardware.provenance
    )


def _sources_of_figures(study: Study, *, simulated: bool) -> tuple[Fact, ...]:
    """Return the sources of all figures of a study; ``simulated``: not from the optimizer alone."""
    replay = replay_of(study.window, study.traffic)
    known = [Fact("Traffic", "measured" if replay == MEASURED else "modelled", replay)]
    if study.hardware.today is None:
        known.append(Fact(CURRENT_FLEET, "assumed", assumed_today(study.before.seconds)))
    return (
        *facts_at(study.hardware, study.sizes),
        *known,
        Fact(
            f"Replicas, {'latencies, ' if simulated else ''}GPU-hours, energy, cost, carbon",
            "modelled",
            f"{'simulation of every request' if simulated else 'optimizer'} with the inputs above",
        ),
    )
