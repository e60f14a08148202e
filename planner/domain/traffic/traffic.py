"""Combine the scenario's sources on one time line, as demand per bin and as requests."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from forecasting.demand import INPUT_TOKENS, OUTPUT_TOKENS, SeriesKey
from forecasting.holidays import Holidays, unusual_month_ends
from planner.domain.random_streams import Stream, generator
from planner.domain.traffic.binned_source import BinnedSource, with_shorter_bins
from planner.domain.traffic.data_cutoff import (
    MAX_MISSING_SHARE,
    MeasuredSource,
    bins_before,
    check_data_age,
    cutoff_note,
    mask_unobserved,
    requests_before,
)
from planner.domain.traffic.demand import Demand, bin_demand
from planner.domain.traffic.described_traffic import described_bins, expected_counts
from planner.domain.traffic.lengths import DrawnLengths, Lengths, LengthSample, mix_lengths
from planner.domain.traffic.prefixes import blocks_of_sessions
from planner.domain.traffic.sources import (
    MAX_DRAWN,
    MAX_REQUESTS,
    Sample,
    StoredTrace,
    binned_sources,
    check_requests,
    measured_source,
    span,
)
from planner.domain.traffic.window import UTC_CLOCK, Window, resolve_window
from planner.errors import ScenarioError
from planner.inputs.ingest.store import COLUMNS, DemandColumns, read_requests, read_whole_demand
from planner.inputs.scenario.holidays import holidays_in_words, holidays_of
from planner.inputs.scenario.schema import Source
from planner.inputs.scenario.settings import Settings, TrafficSettings
from simulation.arrays import BoolArray, FloatArray
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness
from simulation.trace import (
    CachedTokens,
    PrefixBlocks,
    Trace,
    join_traces,
)

MEASURED = "requests as measured"
SYNTHESISED = "requests generated from counts per bin"
FORECAST = "requests generated from the forecast"

LAUNCHED_NOTE = (
    "Traffic without a trace follows the scenario, without observations. It is drawn at random "
    "to show how much hours vary."
)

COUNTED_NOTE = (
    "Demand files hold counts, not requests: arrivals within a bin and lengths are drawn at random "
    "with the scenario's seed."
)

GROWING_PROMPTS_NOTE = (
    "a prompt at least as long as the previous one of its session is assumed to begin with it."
)
DAY_S = 86_400.0
REQUEST_COLUMNS = (
    *COLUMNS,
    "hash_ids",
    "cached_tokens",
    "session",
    "think_s",
)  # columns of stored requests
MAX_DEMAND_VALUES = 20_000_000  # bins x models x regions x tiers: half a GB of demand
AMOUNTS = ("requests", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """All traffic of a scenario: requests, demand per bin, and lengths.

    It lasts from the earliest start of its sources to their earliest end, or to ``traffic.until``.
    """

    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    demand: Demand
    clock: str
    replay: str  # provenance of the requests in a window: MEASURED or SYNTHESISED
    notes: tuple[str, ...]
    measured: Trace  # requests of all request files; empty if all sources are demand files
    binned: tuple[BinnedSource, ...]
    # ``traffic_with_known_lengths`` replaces the next four.
    lengths: tuple[Lengths, ...]  # [model]
    # [model] prompt blocks or cached tokens, if a trace has them
    shared: tuple[SharedPrompts | None, ...] = ()
    tiers_in_use: BoolArray | None = None  # [model, tier] whether a model has traffic of a tier
    arrivals: tuple[Burstiness, ...] = ()  # [model] arrivals within a bin; empty: Poisson
    deferrable: frozenset[str] = frozenset()  # names of the deferrable tiers
    samples: tuple[Sample, ...] = ()  # sources that hold one in n requests
    prefix_caching: bool = False  # whether any model caches prefixes

    def expected_requests(self, start_s: float, end_s: float) -> float:
        """Return the expected number of requests that arrive in ``[start_s, end_s)``."""
        binned = sum(source.expected_requests(start_s, end_s) for source in self.binned)
        rows = self.measured.between(start_s, end_s)
        return int(rows.stop - rows.start) + binned

    @property
    def all_launched(self) -> bool:
        """Return whether all traffic is described by the scenario, and none was observed."""
        return not len(self.measured) and all(source.launch is not None for source in self.binned)

    def described_demand(
        self, key: SeriesKey, tiers: Set[str], unit: str, window: Window
    ) -> FloatArray | None:
        """Return the demand that the scenario describes, per bin of ``window``, before growth.

        A scenario describes traffic that no trace shows yet (a launch). The demand is that of the
        model and region of ``key`` and of some ``tiers``, by name, in ``unit`` per bin. None if
        some of this traffic comes from a trace, or if ``window`` is not after the traffic's end.
        """
        if not window.after_traffic:
            return None
        model, region = self.model_and_region(key)
        tier_indices = [t for t, tier in enumerate(self.tiers) if tier in tiers]
        trace = self.measured
        of_place = (trace.model == model) & (trace.region == region)
        if (of_place & np.isin(trace.tier, tier_indices)).any():
            return None
        bins = round(window.duration_s / window.bin_s)
        amounts = []
        for source in self.binned:
            weight = source.weights[region, tier_indices].sum()
            if source.model != model or not weight:
                continue
            if source.launch is None:
                return None
            counts = expected_counts(source.launch, window.start_s, window.bin_s, bins, self.clock)
            amounts.append(counts * weight * _amount_per_request(source, unit))
        return np.asarray(np.sum(amounts, axis=0)) if amounts else None

    def codes(self, key: SeriesKey) -> tuple[int, int, int]:
        """Return the indices of the model, region and tier of ``key``."""
        model, region = self.model_and_region(key)
        return model, region, self.tiers.index(key.tier)

    def model_and_region(self, key: SeriesKey) -> tuple[int, int]:
        """Return the indices of the model and region of ``key``."""
        return self.models.index(key.model), self.regions.index(key.region)

    def requests(self, start_s: float, end_s: float, seed: int, *, cells: int = 1) -> Trace:
        """Return the requests that arrive in ``[start_s, end_s)``, in epoch seconds.

        With ``cells`` above 1, the fleet is divided into so many equal cells (shards), and only the
        requests of one cell are returned. Raises ScenarioError if there are too many requests.
        """
        rng = generator(seed, Stream.REQUESTS)
        measured = self.measured.window(start_s, end_s)
        if cells > 1:
            measured = measured.rows(_in_cell(measured, cells, rng))
        expected = sum(source.expected_requests(start_s, end_s) for source in self.binned) / cells
        where, remedy = "traffic.sources", "scale or horizon.duration_s"  # for the error message
        check_requests(len(measured), where, remedy, MAX_REQUESTS)
        if expected:
            check_requests(len(measured) + expected, where, remedy, MAX_DRAWN)
        parts = [measured]
        for source in self.binned:
            parts += source.draw(self.measured, start_s, end_s, rng, cells)
        return merge(parts, replay=self.replay)


def _amount_per_request(launch: BinnedSource, unit: str) -> float:
    """Return the mean amount of a described source's request in ``unit``; 1 in requests."""
    lengths = {INPUT_TOKENS: launch.input_lengths, OUTPUT_TOKENS: launch.output_lengths}.get(unit)
    return lengths.mean if lengths else 1.0


def _in_cell(trace: Trace, cells: int, rng: np.random.Generator) -> BoolArray:
    """Return which requests go to one of ``cells`` equal cells (shards) of the fleet, as a mask.

    It is a random 1 in ``cells`` of the requests. A session goes to a cell as a whole.
    """
    random_numbers = rng.random(len(trace))
    if trace.session is not None:
        # All turns of a session get the random number of the session.
        has_session = trace.session >= 0
        by_session = rng.random(int(trace.session.max()) + 1)
        random_numbers[has_session] = by_session[trace.session[has_session]]
    return np.asarray(random_numbers * cells < 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Sources:
    """The sources of a scenario as read, and sentences on what they change or assume."""

    settings: TrafficSettings
    template: Trace  # empty, with the scenario's names
    files: tuple[StoredTrace, ...]  # of all sources
    measured: list[MeasuredSource] = field(default_factory=list)  # logs of requests
    binned: list[BinnedSource] = field(default_factory=list)  # counts per bin
    notes: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[MeasuredSource | BinnedSource]:
        """Return the sources of both kinds."""
        return [*self.binned, *self.measured]

    def note(self, file: StoredTrace, sentences: Iterable[str]) -> None:
        """Add sentences on a file to the notes."""
        self.notes.extend(f"{file.name}: {sentence}" for sentence in sentences)

    @property
    def span_s(self) -> tuple[float, float]:
        """Return the earliest start and the earliest end of a source, in epoch s."""
        return min(source.start_s for source in self.all), min(source.end_s for source in self.all)


def traffic_and_window(
    settings: Settings, traces: dict[str, StoredTrace]
) -> tuple[Traffic, Window]:
    """Return (traffic of the scenario, window to plan).

    ``traces`` are the stored traces by name. Raises ScenarioError if the sources do not fit the
    scenario or each other, or if the window does not fit the traffic.
    """
    traffic = build_traffic(settings.traffic, traces)
    return traffic, resolve_window(settings.window, traffic.demand, traffic.clock)


def build_traffic(settings: TrafficSettings, traces: dict[str, StoredTrace]) -> Traffic:
    """Return the traffic of a scenario: the requests and counts of its sources on one clock.

    Request logs are merged into one trace. Requests of sources with counts per bin are drawn later.
    Everything that a source changes or assumes becomes a note. ``traces`` are by name. Raises
    ScenarioError if the sources do not fit the scenario or each other.
    """
    rng = generator(settings.seed, Stream.SOURCES)
    sources = _read_sources(settings, traces, rng)
    clock = _common_clock(sources.files)
    _draw_described(sources, clock, rng)
    logs = [log.trace for log in sources.measured]
    trace = merge(logs, replay=MEASURED) if logs else sources.template
    sources.notes.extend(_prefix_notes(sources, trace))
    demand = _with_calendar(_total_demand(sources), sources, clock)
    lengths = [_sample_lengths(m, trace, sources, rng) for m in range(len(settings.models))]
    return Traffic(
        models=settings.models,
        regions=settings.regions,
        tiers=settings.tiers,
        demand=demand,
        clock=clock,
        replay=SYNTHESISED if sources.binned else MEASURED,
        notes=tuple(dict.fromkeys(sources.notes)),  # sources of one file share its notes
        measured=trace,
        binned=tuple(sources.binned),
        lengths=tuple(sample.lengths for sample in lengths),
        shared=tuple(sample.shared_prompts for sample in lengths),
        deferrable=settings.deferrable,
        prefix_caching=settings.prefix_caching,
        samples=tuple(Sample.of(stored) for stored in sources.files if stored.sample > 1),
    )


def _read_sources(
    settings: TrafficSettings, traces: dict[str, StoredTrace], rng: np.random.Generator
) -> _Sources:
    """Return the logs and counts of the sources that name a trace, with notes on them."""
    template = empty_trace(settings.models, settings.regions, settings.tiers)
    used = {source.trace for source in settings.sources if source.launch is None}
    files = tuple(stored for key, stored in traces.items() if key in used)
    sources = _Sources(settings, template, files)
    read_once = cache(read_whole_demand)  # several sources may name one trace
    for index, source in enumerate(settings.sources):
        if source.launch is not None:
            continue  # drawn later, over the time of the other sources
        stored = traces[source.trace or ""]
        where = f"traffic.sources[{index}]"
        if stored.kind == "requests":
            _add_log(sources, source, stored, where, rng)
        else:
            columns, absent = read_once(stored.store)
            sources.note(stored, absent)
            _add_counts(sources, source, stored, columns, where)
        if source.scale != 1:
            name = f"{source.series} of {stored.name}" if source.series else stored.name
            sources.notes.append(f"{name} is scaled to {source.scale:g} times its requests.")
    for stored in files:
        sources.note(stored, stored.assumptions)
    return sources


def _common_clock(files: Sequence[StoredTrace]) -> str:
    """Return the clock of all files, "utc" if there are none.

    Raise ScenarioError if the clocks differ.
    """
    clocks = {stored.clock for stored in files}
    if len(clocks) > 1:
        raise ScenarioError(
            "traffic.sources: some traces have calendar times and others only seconds from the "
            "start. Use traces of one kind."
        )
    return clocks.pop() if clocks else UTC_CLOCK


def _with_calendar(demand: Demand, sources: _Sources, clock: str) -> Demand:
    """Return ``demand`` with its holidays; add notes on them and on ends of months.

    Raises ScenarioError if the scenario names holidays and the traffic has no calendar times.
    """
    holidays = sources.settings.holidays
    if clock != UTC_CLOCK:
        if holidays:
            raise ScenarioError(
                "forecast.holidays: the traffic has no calendar times, only seconds from its "
                "start. Leave the holidays out."
            )
        return demand
    sources.notes.extend(_month_end_note(demand))
    if not holidays:
        return replace(demand, holidays=Holidays(calendar=True))
    begin, end = demand.start_s, demand.end_s
    sources.notes.append(holidays_in_words(holidays, begin, end))
    return replace(demand, holidays=holidays_of(holidays, begin, end))


def _add_counts(
    sources: _Sources,
    source: Source,
    stored: StoredTrace,
    columns: list[DemandColumns],
    where: str,
) -> None:
    """Add the series ``columns`` of the demand file ``stored`` to ``sources``.

    ``source`` is its source in the scenario, with the key ``where`` for errors.
    """
    until_now = [bins_before(series, sources.settings.until_s) for series in columns]
    binned = binned_sources(sources.template, source, until_now, where)
    sampling_variance = _sampling_variance(source, stored)
    for series in _in_wanted_bins(binned, sources, stored.name):
        sources.binned.append(replace(series, sampling=sampling_variance))


def _add_log(
    sources: _Sources, stated: Source, stored: StoredTrace, where: str, rng: np.random.Generator
) -> None:
    """Add the requests of the log ``stored`` to ``sources``, and notes on prefixes of its prompts.

    ``stated`` is its source in the scenario, with the key ``where`` for errors. If prefix caching
    is on and the log has sessions but no blocks, each prompt is assumed to begin with the session's
    earlier turns.
    """
    settings, columns = sources.settings, read_requests(stored.store, REQUEST_COLUMNS)
    source = stated.model_copy(update={"scale": stated.scale * stored.sample})
    sampled = stored.sample > 1
    requests = measured_source(sources.template, source, columns, where, rng, sampled=sampled)
    if settings.prefix_caching and requests.blocks is None and requests.session is not None:
        requests = replace(requests, blocks=blocks_of_sessions(requests))
        sources.note(stored, [GROWING_PROMPTS_NOTE])
    if columns.hash_ids is not None and not isinstance(requests.blocks, PrefixBlocks):
        reason = "it is scaled" if source.scale != 1 else "its hash_ids fit no size of blocks"
        sources.note(stored, [f"its hash_ids are not used, since {reason}."])
    measured = MeasuredSource(requests, *span(columns), _sampling_variance(stated, stored))
    sources.measured.append(requests_before(measured, settings.until_s))


def _in_wanted_bins(
    series_of_file: list[BinnedSource], sources: _Sources, file: str
) -> list[BinnedSource]:
    """Return the series of a file in bins no longer than the scenario's.

    If any series had longer bins, add a note on the interpolation.
    """
    wanted_s = sources.settings.bin_s or sources.settings.period_s
    if wanted_s is None:
        return series_of_file
    cut = [
        replace(series, columns=with_shorter_bins(series.columns, wanted_s))
        for series in series_of_file
    ]
    # ``with_shorter_bins`` returns the same object if nothing changes.
    if any(new.columns is not old.columns for new, old in zip(cut, series_of_file, strict=True)):
        longest_s = max(series.columns.bin_s for series in series_of_file)
        sources.notes.append(
            f"{file}: bins of {longest_s:,g} s are interpolated in bins of {wanted_s:,g} s. Real "
            "demand varies more within them."
        )
    return cut


def _sampling_variance(source: Source, stored: StoredTrace) -> float:
    """Return the variance over the mean of the requests estimated from a sample; 0 if not a sample.

    Each request is in the sample with the same chance, so the number of sampled ones is binomial.
    """
    return source.scale * (stored.sample - 1.0)


def _draw_described(sources: _Sources, clock: str, rng: np.random.Generator) -> None:
    """Add the sources that the scenario only describes (launches), with counts drawn at random.

    They last from the earliest start to the earliest end of the other ``sources``. Notes say which
    counts are drawn.
    """
    settings = sources.settings
    if sources.binned:
        sources.notes.append(COUNTED_NOTE)
    span_s, bin_s = None, settings.bin_s
    if sources.all:
        start_s, end_s = sources.span_s
        span_s = start_s, end_s
        bin_s = _bin_width(settings, end_s - start_s, sources.binned)
    launched = []
    for index, source in enumerate(settings.sources):
        if source.launch is not None:
            where = f"traffic.sources[{index}]"
            columns = described_bins(source, where, span_s, bin_s, clock, rng)
            launched += binned_sources(sources.template, source, [columns], where)
    if launched:
        sources.binned.extend(launched)
        sources.notes.append(LAUNCHED_NOTE)


def empty_trace(
    models: tuple[str, ...], regions: tuple[str, ...], tiers: tuple[str, ...] = ()
) -> Trace:
    """Return a trace with these names, but without requests."""
    times, tokens, codes = np.empty(0), np.empty(0, np.int32), np.empty(0, np.int16)
    return Trace(times, tokens, tokens, codes, codes, codes, models, regions, tiers, start_s=0.0)


def merge(parts: Sequence[Trace], replay: str) -> Trace:
    """Return one trace with the requests of all ``parts``, which have the same names.

    Requests are in order of arrival. ``replay`` is the provenance of the result.
    """
    if len(parts) == 1:  # already in order
        return replace(parts[0], provenance=replay)
    start_s = min(part.start_s for part in parts)
    arrival_s = np.concatenate([part.arrival_s + (part.start_s - start_s) for part in parts])
    order = np.argsort(arrival_s, kind="stable")
    # Joined without arrivals, since those of a trace must not decrease.
    joined = join_traces([replace(part, arrival_s=np.zeros(len(part))) for part in parts])
    session = None if joined.session is None else joined.session[order]
    merged = joined.select_with_arrivals(order, arrival_s[order], session)
    return replace(merged, start_s=start_s, provenance=replay)


def _total_demand(sources: _Sources) -> Demand:
    """Return the demand of all sources in bins of one width; add a note on its end.

    It lasts from the earliest start of the sources to their earliest end, or to ``traffic.until``.
    Raises ScenarioError if the sources have no time in common, or if the bins are too few or too
    many.
    """
    until_s, binned = sources.settings.until_s, sources.binned
    if not binned and not any(len(log.trace) for log in sources.measured):
        raise ScenarioError("traffic.sources: no request is left. Check series and scale.")
    start_s, end_s = _common_span(sources)
    bin_s = _bin_width(sources.settings, end_s - start_s, binned)
    edge_s = float(np.floor(start_s / bin_s) * bin_s)
    # A log may end shortly before its last bin does, so a small part of that bin may be missing.
    # As a share of the bin; 1e-9 is more than the rounding error.
    missing_share = MAX_MISSING_SHARE if until_s is None and not binned else 1e-9
    bins = int((end_s - edge_s) / bin_s + missing_share)
    _check_bins(bins, bin_s, end_s - start_s, sources.template)
    if until_s is not None:
        sources.notes.append(cutoff_note(until_s, sources.span_s[1], bin_s))
    elif any(source.end_s >= end_s + bin_s for source in sources.all):
        sources.notes.append("The study ends where the first of its sources ends.")
    return _sum_of_demands(_demands(sources, edge_s, bin_s, bins), edge_s, bin_s, bins)


def _demands(sources: _Sources, edge_s: float, bin_s: float, bins: int) -> list[Demand]:
    """Return the demand of each source in ``bins`` bins of ``bin_s`` seconds from ``edge_s`` on."""
    parts = [source.demand(sources.template, edge_s, bin_s, bins) for source in sources.binned]
    for log in sources.measured:
        counted = bin_demand(log.trace, bin_s, edge_s, bins)
        parts.append(mask_unobserved(counted, log.start_s, log.end_s))
    return [
        replace(part, sampling=source.sampling * np.nansum(part.requests, axis=1))
        for part, source in zip(parts, sources.all, strict=True)
    ]


def _common_span(sources: _Sources) -> tuple[float, float]:
    """Return the earliest start and the earliest end of ``sources``, or ``until`` as the end.

    All are epoch seconds. Raises ScenarioError if the sources have no time in common.
    """
    starts, until_s = [source.start_s for source in sources.all], sources.settings.until_s
    start_s, first_end_s = sources.span_s
    end_s = first_end_s
    if until_s is not None:
        check_data_age(until_s, first_end_s)
        end_s = until_s
    if starts == [first_end_s]:  # one source, which ends when it starts
        raise ScenarioError(
            "traffic.sources: all requests arrive at one moment. Use a trace with at least two."
        )
    if max(starts) >= end_s:
        raise ScenarioError(
            "traffic.sources: the sources have no time in common (the last to begin starts after "
            "the first has ended). Use traces of the same days."
        )
    return start_s, end_s


def _check_bins(bins: int, bin_s: float, span_s: float, template: Trace) -> None:
    """Raise ScenarioError if ``span_s`` seconds of traffic have too few bins or too many."""
    values = bins * len(template.models) * len(template.regions) * len(template.tiers)
    if values > MAX_DEMAND_VALUES:
        raise ScenarioError(
            f"traffic.bin_s: {bin_s:g} s gives {bins:,} bins of {span_s:g} s of traffic. "
            f"Over all models, regions and tiers these are {values:,}, and {MAX_DEMAND_VALUES:,} "
            "are allowed. Choose a larger bin_s or a shorter trace."
        )
    if bins < 2:
        raise ScenarioError(
            f"traffic.bin_s: the traffic spans {span_s:g} s, which is less than two whole "
            f"bins of {bin_s:g} s. Choose a smaller bin_s or a longer trace."
        )


def _bin_width(settings: TrafficSettings, span_s: float, binned: Sequence[BinnedSource]) -> float:
    """Return the scenario's bin width, or a default for ``span_s`` seconds of traffic, in seconds.

    The default is 1 minute, 5 minutes from half a day of traffic on, and 15 minutes from two days
    on. It is at most the time between decisions, and is then rounded up to a multiple of the bins
    of every file. Raises ScenarioError if the scenario's width is not such a multiple.
    """
    widths = [source.columns.bin_s for source in binned]
    # The least common multiple of the widths of all files, to the millisecond; 1 s without files.
    milliseconds = [max(1, round(1000 * width)) for width in widths] or [1000]
    common_s = float(np.lcm.reduce(milliseconds)) / 1000
    width_s = settings.bin_s
    if width_s is None:
        usual_s = 60.0
        if span_s >= DAY_S / 2:
            usual_s = 300.0 if span_s < 2 * DAY_S else 900.0
        least_s = max(common_s, min(usual_s, settings.period_s or usual_s))
        width_s = float(np.ceil(least_s / common_s - 1e-9) * common_s)
    for width in widths:
        multiple = width_s / width
        if abs(multiple - round(multiple)) > 1e-6 or multiple < 1:
            raise ScenarioError(
                f"traffic.bin_s: {width_s:g} s is not a whole multiple of a source's bin of "
                f"{width:g} s. Choose {np.ceil(width_s / common_s) * common_s:g}."
            )
    return width_s


def _sum_of_demands(parts: list[Demand], edge_s: float, bin_s: float, bins: int) -> Demand:
    """Return the sum of demands by model, region and tier.

    All have ``bins`` bins of ``bin_s`` seconds from ``edge_s`` on (epoch s).
    """
    keys = tuple(sorted({key for part in parts for key in part.keys}))
    totals: dict[str, Any] = {name: np.zeros((len(keys), bins)) for name in AMOUNTS}
    sampling = np.zeros(len(keys))
    for part in parts:
        rows = [keys.index(key) for key in part.keys]
        if part.sampling is not None:
            sampling[rows] += part.sampling
        for name, total in totals.items():
            total[rows] += getattr(part, name)
    return Demand(keys, edge_s, bin_s, **totals, sampling=sampling)


def _sample_lengths(
    model: int, trace: Trace, sources: _Sources, rng: np.random.Generator
) -> LengthSample:
    """Return a sample of a model's request lengths from the log ``trace`` and counted sources."""
    drawn = [
        DrawnLengths(source.count, source.lengths(), source.cached_share)
        for source in sources.binned
        if source.model == model
    ]
    return mix_lengths(trace, np.flatnonzero(trace.model == model), drawn, rng)


def _month_end_note(demand: Demand) -> list[str]:
    """Return a note on unusual demand at the ends of months, if there is any."""
    ends = unusual_month_ends(demand.requests, demand.start_s, demand.bin_s)
    if ends is None:
        return []
    days = "day" if ends.days == 1 else f"{ends.days} days"
    return [
        f"The last {days} of each month had {ends.ratio:.2g} times the usual demand. Forecasts "
        "expect this once two such months are known. Days are UTC."
    ]


def _prefix_notes(sources: _Sources, trace: Trace) -> list[str]:
    """Return a note if prefix caches are on but no prefixes are known, or if some are not used."""
    caching = sources.settings.prefix_caching
    counted = any(isinstance(source.trace.blocks, CachedTokens) for source in sources.measured)
    counted |= any(source.cached_share > 0 for source in sources.binned)
    if caching and trace.blocks is None and not counted:
        return ["Prefix caches are on but unused: no source has hash_ids or cached tokens."]
    if not counted:
        return []
    if not caching:
        return [
            "The sources count cached prompt tokens, and serving has no prefix caches: every "
            "prompt is computed in full. Set serving.prefix_caching to use the caches."
        ]
    if isinstance(trace.blocks, PrefixBlocks):
        return ["Cached tokens are not used, since another source has hash_ids."]
    return []
