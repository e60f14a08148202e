"""Read the scenario's sources of traffic, and match their labels with the scenario's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from planner.domain.traffic.binned_source import BinnedSource
from planner.domain.traffic.prefixes import blocks_from_hash_ids, cached_tokens_of
from planner.domain.traffic.sessions import Groups, with_first_turns_code
from planner.domain.traffic.window import HOUR_S
from planner.errors import ScenarioError
from planner.inputs.ingest.report import sampling_error
from planner.inputs.ingest.store import DemandColumns, RequestColumns, read_demand, read_requests
from planner.inputs.scenario.schema import Source
from simulation.arrays import CodeArray, FloatArray, Int32Array, IntArray, count_codes, row_slices
from simulation.trace import Prefixes, Trace

REPEAT_JITTER_S = 30.0  # with a scale above 1, largest distance of a repeat from the original
SAMPLE_SCALE = 10.0  # from this scale on, requests count as a sample: copies spread over a bin
SAMPLE_BINS_S = (60, 300, 900, 3600)
SAMPLE_ROWS = 10  # requests of a sample that such a bin holds on average
MAX_REQUESTS = 200_000_000  # measured requests: about 50 bytes each
MAX_DRAWN = 50_000_000  # drawn or scaled requests: they take several times that memory


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A trace in the column store, which a scenario names as a source of traffic."""

    name: str
    kind: str  # "requests" or "demand"
    clock: str  # "utc" or "relative"
    store: Path
    sample: float = 1.0  # the file holds one in this many requests
    assumptions: tuple[str, ...] = ()  # made when the file was read, as sentences


def measured_source(
    template: Trace,
    source: Source,
    columns: RequestColumns,
    where: str,
    rng: np.random.Generator,
    *,
    sampled: bool = False,
) -> Trace:
    """Return a source's requests with their model, region and tier, and with its scale applied.

    ``template`` is an empty trace with the scenario's names. ``where`` is the source's key, for
    errors. ``sampled``: the file is a sample of the real traffic. A scale below 1 keeps a random
    part of the requests; above 1, requests are repeated. Scaled requests lose their prompt blocks.

    Raises ScenarioError if a label is missing or unknown, or if there are too many requests.
    """
    isl, osl = columns.input_tokens, columns.output_tokens
    if isl is None or osl is None:
        raise ValueError("arrivals and lengths must have been read")
    scaled = _scaled_requests(source, columns, where, rng, sampled=sampled)
    one_model = {source.model: 1.0} if source.model else {}
    blocks = _prefixes_of(source, columns, isl)
    if blocks is not None and scaled.rows is not None:
        blocks = blocks.rows(scaled.rows)
    think_s = None if scaled.session is None else columns.think_s
    return replace(
        template,
        arrival_s=scaled.arrival_s,
        input_tokens=scaled.of_requests(isl),
        # A request without an answer counts as one of one token, which the prefill makes.
        output_tokens=np.maximum(scaled.of_requests(osl), 1),
        model=_codes(scaled, one_model, template.models, columns, "model", where, rng),
        region=_codes(scaled, source.regions, template.regions, columns, "region", where, rng),
        tier=_codes(scaled, source.tiers, template.tiers, columns, "tier", where, rng),
        start_s=columns.start_s,
        blocks=blocks,
        session=scaled.session,
        think_s=None if think_s is None else scaled.of_requests(think_s),
    )


def _prefixes_of(source: Source, columns: RequestColumns, isl: Int32Array) -> Prefixes | None:
    """Return the prompt blocks of a file, or else its cached tokens.

    A source with a scale other than 1 has no blocks. A stated share of cached tokens replaces them.
    """
    blocks = blocks_from_hash_ids(columns) if source.scale == 1 else None
    if blocks is None or source.cached_share is not None:
        return cached_tokens_of(columns, source.cached_share, isl)
    return blocks


@dataclass(frozen=True, slots=True, eq=False)
class _ScaledRequests:
    """The requests of a source, with repeats and without those left out, in order of arrival."""

    rows: IntArray | None  # index of each request in the file; None: all requests of the file
    arrival_s: FloatArray  # seconds after the start of the file
    session: Int32Array | None  # -1: none; None: the file has no sessions

    def of_requests(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of a ``column [requests in the file]`` for these requests."""
        return column if self.rows is None else column[self.rows]


def _scaled_requests(
    source: Source, columns: RequestColumns, where: str, rng: np.random.Generator, *, sampled: bool
) -> _ScaledRequests:
    """Return the requests of the source's series, repeated or thinned out by its scale.

    ``where`` is the source's key, for errors. ``sampled``: the file is a sample of the traffic, so
    repeats are spread over a bin. Raises ScenarioError if there are too many requests.
    """
    if columns.arrival_s is None:
        raise ValueError("arrivals and lengths must have been read")
    unscaled = _requests_of_series(source, columns, columns.arrival_s, where)
    if source.dispersion != 1:
        raise ScenarioError(
            f"{where}.dispersion: the trace has arrival times, so its bursts are known. Leave "
            "dispersion out; it is for counts per bin."
        )
    max_requests = MAX_REQUESTS if source.scale == 1 else MAX_DRAWN
    check_requests(len(unscaled.arrival_s) * source.scale, where, "scale", max_requests)
    if source.scale == 1:
        # Draw and discard one number per request, as a scale below 1 does. Later draws then do not
        # depend on the scale.
        for piece in row_slices(len(unscaled.arrival_s)):
            rng.random(piece.stop - piece.start)
        return unscaled
    arrived, session = unscaled.arrival_s, unscaled.session
    scale, start_s, last_s = source.scale, columns.start_s, float(columns.arrival_s[-1])
    if session is None:
        arrival, original = scaled_arrivals(arrived, scale, start_s, last_s, rng, sampled=sampled)
    else:
        arrival, original, session = scaled_sessions(
            arrived, session, scale, start_s, last_s, rng, sampled=sampled
        )
    rows = original if unscaled.rows is None else unscaled.rows[original]
    return _ScaledRequests(rows, arrival, session)


def _requests_of_series(
    source: Source, columns: RequestColumns, arrived: FloatArray, where: str
) -> _ScaledRequests:
    """Return the requests of the series that ``source`` names, or all requests of the file."""
    session = columns.session
    if source.series is None:
        return _ScaledRequests(None, arrived, session)
    code = index_of_name(columns.models, source.series, f"{where}.series", "series")
    rows = np.flatnonzero(columns.model == code)
    return _ScaledRequests(rows, arrived[rows], None if session is None else session[rows])


def _codes(
    scaled: _ScaledRequests,
    shares: dict[str, float],
    names: tuple[str, ...],
    columns: RequestColumns,
    what: Literal["model", "region", "tier"],
    where: str,
    rng: np.random.Generator,
) -> CodeArray:
    """Return the index in ``names`` of each request's model, region or tier (``what``).

    If the scenario gives ``shares`` of the names, it is drawn by them. Otherwise it is found by the
    file's label. All turns of a session have the same drawn index. Raises ScenarioError if a label
    is missing or unknown.
    """
    file_codes: CodeArray | None = getattr(columns, what)
    labels: tuple[str, ...] = getattr(columns, f"{what}s")
    if shares:
        return _draw_codes(scaled, names, shares, rng)
    if file_codes is not None and any(labels):
        return _codes_by_label(scaled.of_requests(file_codes), labels, names, where, what)
    if len(names) > 1:
        raise ScenarioError(f"{where}: the file does not say the {what}. Give it here.")
    return np.zeros(len(scaled.arrival_s), np.int16)


def _codes_by_label(
    file_codes: CodeArray, labels: tuple[str, ...], names: tuple[str, ...], where: str, what: str
) -> CodeArray:
    """Return the index in ``names`` of each request's label, from its index in ``labels``."""
    is_used = count_codes(file_codes, len(labels)) > 0  # of each label
    # A label that no request has may be unknown to the scenario.
    index_of_label = [
        index_of_name(names, label, where, what) if in_use else 0
        for label, in_use in zip(labels, is_used, strict=True)
    ]
    if index_of_label == list(range(len(labels))):
        return file_codes  # same names in the same order: no copy is needed
    codes = np.zeros(len(file_codes), np.int16)
    for piece in row_slices(len(codes)):
        codes[piece] = np.array(index_of_label, np.int16)[file_codes[piece]]
    return codes


def check_requests(count: float, where: str, field: str, maximum: int) -> None:
    """Raise ScenarioError if the number of requests, ``count``, exceeds ``maximum``.

    ``where`` is the scenario's field in question, ``field`` the one to reduce.
    """
    if count > maximum:
        raise ScenarioError(
            f"{where}: this is {count:,.0f} requests and {maximum:,} can be replayed. Choose a "
            f"smaller {field}."
        )


def span(columns: RequestColumns) -> tuple[float, float]:
    """Return the first and last arrival of a file of requests in epoch seconds."""
    if columns.arrival_s is None:
        raise ValueError("arrivals must have been read")
    first, last = columns.arrival_s[[0, -1]].tolist()
    return columns.start_s + first, columns.start_s + last


def binned_sources(
    template: Trace, source: Source, columns: list[DemandColumns], where: str
) -> list[BinnedSource]:
    """Return the series of a demand file, each with its model and its shares of regions and tiers.

    If the source names a series, return only that one. ``template`` has the scenario's names.
    ``where`` is the source's key, for errors. Raises ScenarioError if a label is missing or
    unknown, or if the file counts too little for requests to be drawn.
    """
    if source.series is not None:
        names = tuple(series.name for series in columns)
        columns = [columns[index_of_name(names, source.series, f"{where}.series", "series")]]
    sources = []
    for series in columns:
        model = source.model or series.model or series.name
        binned = BinnedSource(
            columns=series,
            model=index_of_name(template.models, model, where, "model"),
            weights=_weights(template, source, series, where),
            input_lengths=source.input_tokens,
            output_lengths=source.output_tokens,
            launch=source.launch,
            dispersion=source.dispersion,
            stated_cached_share=source.cached_share,
        )
        _check_tokens(binned, source, where)
        sources.append(binned)
    return sources


def _weights(template: Trace, source: Source, series: DemandColumns, where: str) -> FloatArray:
    """Return the requests for one request in the file, ``[regions, tiers]``: share times scale."""
    regions = source.regions or _only_name(series.region, template.regions, where, "region")
    tiers = source.tiers or _only_name(series.tier, template.tiers, where, "tier")
    region_shares = _shares(regions, template.regions, where, "region")
    tier_shares = _shares(tiers, template.tiers, where, "tier")
    return np.outer(region_shares, tier_shares) * source.scale


def _check_tokens(binned: BinnedSource, source: Source, where: str) -> None:
    """Raise ScenarioError if neither the file nor the scenario gives tokens or requests."""
    absent = [
        field
        for field in ("input_tokens", "output_tokens")
        if getattr(binned.columns, field) is None and getattr(source, field) is None
    ]
    if absent:
        fields = " or ".join(field.replace("_", " ") for field in absent)
        give = " and ".join(f"{field}: {{mean: ..., cv: ...}}" for field in absent)
        raise ScenarioError(
            f"{where}: {source.trace} has no {fields} for {binned.columns.name}. "
            f"Give {give} (tokens per request)."
        )
    if np.isnan(binned.requests()).all():
        raise ScenarioError(
            f"{where}: {source.trace} counts tokens and no requests for {binned.columns.name}. "
            "Give input_tokens and output_tokens (tokens per request) so that requests can be "
            "drawn."
        )


def _shares(stated: dict[str, float], names: tuple[str, ...], where: str, what: str) -> FloatArray:
    """Return the stated share of each of ``names``, 0 if it has none.

    Raise ScenarioError for an unknown name of a ``what``, such as "region".
    """
    shares = np.zeros(len(names))
    for name, share in stated.items():
        shares[index_of_name(names, name, where, what)] = share
    return shares


def _only_name(
    label: str | None, names: tuple[str, ...], where: str, what: str
) -> dict[str, float]:
    """Return a demand file's label with the share 1; without a label, the scenario's only name.

    Raise ScenarioError if the file has no label and the scenario has several names.
    """
    if label:
        return {label: 1.0}
    if len(names) == 1:
        return {names[0]: 1.0}
    raise ScenarioError(f"{where}: the file does not say the {what}. Give {what}s with shares.")


def index_of_name(names: tuple[str, ...], name: str, where: str, what: str) -> int:
    """Return the index of ``name`` in ``names``; raise ScenarioError if it is not there."""
    if name in names:
        return names.index(name)
    have = ", ".join(name for name in names[:12] if name) or "none"
    raise ScenarioError(f"{where}: {what} {name!r} is not known here. Known: {have}.")


def _draw_codes(
    scaled: _ScaledRequests,
    names: tuple[str, ...],
    shares: dict[str, float],
    rng: np.random.Generator,
) -> CodeArray:
    """Return an index into ``names`` for each request, drawn at random by ``shares`` of the names.

    All turns of a session get the same index.
    """
    codes = np.zeros(len(scaled.arrival_s), np.int16)
    weights = np.array(list(shares.values()))
    indices = np.array([names.index(name) for name in shares], np.int16)  # of the names with shares
    for piece in row_slices(len(codes)):
        size = piece.stop - piece.start
        drawn = rng.choice(len(shares), size=size, p=weights / weights.sum())
        codes[piece] = indices[drawn]
    return codes if scaled.session is None else with_first_turns_code(codes, scaled.session)


def scaled_arrivals(
    arrived: FloatArray,
    scale: float,
    start_s: float,
    last_s: float,
    rng: np.random.Generator,
    *,
    sampled: bool,
) -> tuple[FloatArray, IntArray]:
    """Return ``scale`` times as many arrivals, and the index in ``arrived`` that each repeats.

    Arrivals are in order, in seconds from ``start_s`` (epoch s) up to ``last_s``. Repeats arrive
    within ``REPEAT_JITTER_S`` of the original. With ``sampled``, or from ``SAMPLE_SCALE`` on, they
    are spread over a bin around the original.
    """
    # The fraction of the scale is the probability of one more copy.
    copies = int(scale) + (rng.random(len(arrived)) < scale % 1.0)
    original = np.repeat(np.arange(len(arrived)), copies)
    is_repeat = np.diff(original, prepend=-1) == 0
    arrival = arrived[original]
    if scale < SAMPLE_SCALE and not sampled:
        arrival[is_repeat] += rng.uniform(-REPEAT_JITTER_S, REPEAT_JITTER_S, is_repeat.sum())
    else:  # a sample: copies within seconds would be a burst that the traffic never had
        low, high = _repeat_span(arrived, start_s, last_s)
        repeated = original[is_repeat]
        arrival[is_repeat] = rng.uniform(low[repeated], high[repeated])
    arrival = np.clip(arrival, 0.0, last_s)
    order = np.argsort(arrival, kind="stable")
    return arrival[order], original[order]


def _repeat_span(
    arrived: FloatArray, start_s: float, last_s: float
) -> tuple[FloatArray, FloatArray]:
    """Return (begin, end) of the time in which repeats of each request may arrive, ``[requests]``.

    It is the bin of the clock in which the request arrives, cut to ``[0, last_s]``. All times are
    seconds from ``start_s`` (epoch s). Bins have ``SAMPLE_ROWS`` requests or more on average, so
    that counts vary as those of the sample do.
    """
    rps = len(arrived) / max(last_s, 1e-9)
    wide_enough = (width_s for width_s in SAMPLE_BINS_S if width_s * rps >= SAMPLE_ROWS)
    bin_s = next(wide_enough, SAMPLE_BINS_S[-1])
    bin_start_s = np.floor((arrived + start_s) / bin_s) * bin_s - start_s
    return np.maximum(bin_start_s, 0.0), np.minimum(bin_start_s + bin_s, last_s)


def scaled_sessions(
    arrived: FloatArray,
    session: Int32Array,
    scale: float,
    start_s: float,
    last_s: float,
    rng: np.random.Generator,
    *,
    sampled: bool,
) -> tuple[FloatArray, IntArray, Int32Array]:
    """Return the requests of ``scale`` times as many sessions, in order of arrival.

    These are arrivals, the index of the request that each repeats, and session ids. A session is
    kept, left out or repeated as a whole, with its times between turns. A request without a session
    (-1) counts as a session. Arrivals ``arrived`` are seconds from ``start_s`` (epoch s), and those
    returned are at most ``last_s``. With ``sampled``, repeats are spread over a bin.
    """
    groups = Groups.of(session, len(arrived))
    begins_s, original_groups = scaled_arrivals(
        arrived[groups.first_requests], scale, start_s, last_s, rng, sampled=sampled
    )
    arrival, original, new_session = groups.copies(arrived, original_groups, begins_s)
    arrival = np.minimum(arrival, last_s)
    order = np.argsort(arrival, kind="stable")
    return arrival[order], original[order], new_session[order]


@dataclass(frozen=True, slots=True)
class Sample:
    """A trace that is a sample: it holds one in ``one_in`` requests, so its demand is uncertain."""

    name: str
    one_in: float
    rows: float  # requests in the file
    busiest: float  # requests of one series in the busiest hour of the file

    @classmethod
    def of(cls, trace: StoredTrace) -> Sample:
        """Return a stored trace as a sample, with its requests in all and in the busiest hour."""
        total, busiest = 0.0, 0.0
        for counts, bin_s in _counts(trace):
            hour_starts = np.arange(0, len(counts), max(1, round(HOUR_S / bin_s)))
            total += float(counts.sum())
            by_hour = np.add.reduceat(
                counts, hour_starts
            )  # sums from each hour's start to the next
            busiest = max(busiest, float(by_hour.max()))
        return cls(trace.name, trace.sample, total, busiest)

    @property
    def words(self) -> str:
        """Describe the sample and its error in total and in the busiest hour."""
        in_total = sampling_error(self.rows, self.one_in)
        in_busiest_hour = sampling_error(self.busiest, self.one_in)
        return (
            f"one in {self.one_in:g} requests; error ±{in_total:.1%} in total, "
            f"±{in_busiest_hour:.0%} in the busiest hour (95%)"
        )


def _counts(trace: StoredTrace) -> Iterator[tuple[FloatArray, float]]:
    """Yield (requests in the file per bin, bin width in s), of a log or each series of counts."""
    if trace.kind == "requests":
        arrival_s = read_requests(trace.store, ("arrival_s",)).arrival_s
        if arrival_s is None:
            raise ValueError("arrivals must have been read")
        yield np.bincount((arrival_s // HOUR_S).astype(np.int64)).astype(np.float64), HOUR_S
        return
    for series in read_demand(trace.store):
        # Counts were scaled up to all requests when they were stored.
        yield np.nan_to_num(series.requests) / trace.sample, series.bin_s
