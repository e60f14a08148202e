"""Traffic: the scenario's sources put on one time line, as demand per bin and as requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forecasting.demand import SeriesKey
from planner.errors import ScenarioError
from planner.ingest.store import DemandColumns, RequestColumns, read_demand, read_requests
from planner.pipeline.demand import Demand, bin_demand
from planner.scenario.schema import Lengths, Scenario, Source
from simulation.synthesis import LengthDistribution, requests_from_bins
from simulation.trace import Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

MEASURED = "requests as measured"
SYNTHESISED = "requests synthesised from bins"
FORECAST = "requests synthesised from the forecast"

DAY_S = 86_400.0
LENGTH_SAMPLE = 20_000  # requests kept per model to know its lengths by
REPEAT_JITTER_S = 30.0  # scale above 1: a repeated request comes within this of the original


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A trace as the column store has it."""

    name: str
    kind: str  # "requests" or "demand"
    clock: str  # "utc" or "relative"
    store: Path


@dataclass(frozen=True, slots=True, eq=False)
class _BinnedPart:
    """One series of a demand file and where its requests go."""

    columns: DemandColumns
    model: int
    cells: FloatArray  # [regions, tiers] share of each bin, scale included
    input_lengths: Lengths | None
    output_lengths: Lengths | None


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Everything that arrives, over the span all sources cover."""

    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    demand: Demand
    clock: str
    replay: str  # where requests of a window inside the span come from
    notes: tuple[str, ...]
    measured: Trace  # sources that hold requests; empty where all are demand files
    binned: tuple[_BinnedPart, ...]
    lengths: tuple[tuple[IntArray, IntArray], ...]  # per model: ISL and OSL, drawn jointly

    def requests(self, start_s: float, end_s: float, seed: int) -> Trace:
        """The requests arriving in ``[start_s, end_s)``, epoch seconds."""
        parts = [self.measured.window(start_s, end_s)] if len(self.measured) else []
        rng = np.random.default_rng([seed, 1])
        parts += [self._synthesise(part, start_s, end_s, rng) for part in self.binned]
        return merge(parts, replay=self.replay)

    def _synthesise(
        self, part: _BinnedPart, start_s: float, end_s: float, rng: np.random.Generator
    ) -> Trace:
        columns = part.columns
        first = max(0, int(np.floor((start_s - columns.start_s) / columns.bin_s)))
        last = max(first, int(np.ceil((end_s - columns.start_s) / columns.bin_s)))
        inside = slice(first, last)
        counts = _requests_of(part)[inside]
        pieces: list[tuple[FloatArray, IntArray, IntArray, int, int]] = []
        for region, tier in zip(*np.nonzero(part.cells), strict=True):
            share = part.cells[region, tier]
            arrival, isl, osl = requests_from_bins(
                _whole(counts * share, rng),
                columns.bin_s,
                columns.start_s + first * columns.bin_s - start_s,
                (
                    _distribution(part.input_lengths, counts, _cut(columns.input_tokens, inside)),
                    _distribution(part.output_lengths, counts, _cut(columns.output_tokens, inside)),
                ),
                rng,
            )
            keep = (arrival >= 0) & (arrival < end_s - start_s)
            pieces.append((arrival[keep], isl[keep], osl[keep], int(region), int(tier)))
        return merge(
            [
                _columns_trace(self, a, i, o, part.model, region, tier, start_s)
                for a, i, o, region, tier in pieces
            ],
            replay=self.replay,
        )


def build_traffic(scenario: Scenario, traces: dict[str, StoredTrace]) -> Traffic:
    """Read the sources; raises ScenarioError when they do not fit the scenario or each other."""
    models = tuple(model.name for model in scenario.models)
    regions = tuple(region.name for region in scenario.regions)
    tiers = tuple(tier.name for tier in scenario.tiers)
    rng = np.random.default_rng([scenario.seed, 0])
    shell = _empty(models, regions, tiers)
    measured: list[Trace] = []
    binned: list[_BinnedPart] = []
    notes: list[str] = []
    clocks: set[str] = set()
    for index, source in enumerate(scenario.traffic.sources):
        where = f"traffic.sources[{index}]"
        stored = traces[source.trace or ""]
        clocks.add(stored.clock)
        if stored.kind == "requests":
            columns = read_requests(stored.store)
            measured.append(_measured(shell, source, columns, where, rng))
            if source.scale != 1:
                notes.append(
                    f"{stored.name} is scaled to {source.scale:g} of its requests: "
                    + ("a random part of them." if source.scale < 1 else "some come repeatedly.")
                )
        else:
            binned += _binned(shell, source, read_demand(stored.store), where)
    if len(clocks) > 1:
        raise ScenarioError(
            "traffic.sources: some traces have calendar times and others only seconds from their "
            "start, so they cannot be put on one time line; use traces of one kind."
        )
    trace = merge(measured, replay=MEASURED) if measured else shell
    demand, span_notes = _demand(scenario, trace, binned, shell)
    if binned:
        notes.append(
            "Demand files hold counts, not requests: arrivals within a bin and, where the file has "
            "none, lengths are drawn at random with the scenario's seed."
        )
    return Traffic(
        models=models,
        regions=regions,
        tiers=tiers,
        demand=demand,
        clock=clocks.pop(),
        replay=SYNTHESISED if binned else MEASURED,
        notes=tuple(notes + span_notes),
        measured=trace,
        binned=tuple(binned),
        lengths=tuple(_lengths(m, trace, binned, rng) for m in range(len(models))),
    )


def merge(parts: Sequence[Trace], replay: str) -> Trace:
    """Several traces of the same names on one time line, in order of arrival (stable)."""
    base = min((part.start_s for part in parts), default=0.0)
    arrival = np.concatenate([part.arrival_s + (part.start_s - base) for part in parts])
    order = np.argsort(arrival, kind="stable")

    def column(name: str) -> npt.NDArray[np.int32]:
        joined: npt.NDArray[np.int32] = np.concatenate([getattr(p, name) for p in parts])[order]
        return joined

    return Trace(
        arrival_s=arrival[order],
        input_tokens=column("input_tokens"),
        output_tokens=column("output_tokens"),
        model=column("model").astype(np.int16),
        region=column("region").astype(np.int16),
        tier=column("tier").astype(np.int16),
        models=parts[0].models,
        regions=parts[0].regions,
        tiers=parts[0].tiers,
        start_s=base,
        provenance=replay,
    )


def _empty(models: tuple[str, ...], regions: tuple[str, ...], tiers: tuple[str, ...]) -> Trace:
    none = np.zeros(0)
    return Trace(none, none, none, none, none, none, models, regions, tiers, 0.0)


def _columns_trace(
    names: Traffic, arrival: FloatArray, isl: IntArray, osl: IntArray, model: int, region: int,
    tier: int, start_s: float,
) -> Trace:  # fmt: skip
    order = np.argsort(arrival, kind="stable")
    size = len(arrival)
    return Trace(
        arrival_s=arrival[order],
        input_tokens=isl[order],
        output_tokens=osl[order],
        model=np.full(size, model, np.int16),
        region=np.full(size, region, np.int16),
        tier=np.full(size, tier, np.int16),
        models=names.models,
        regions=names.regions,
        tiers=names.tiers,
        start_s=start_s,
    )


def _measured(
    shell: Trace, source: Source, columns: RequestColumns, where: str, rng: np.random.Generator
) -> Trace:
    """The source's requests with model, region and tier settled and its scale applied."""
    keep = np.arange(len(columns.arrival_s))
    if source.series is not None:
        code = _code(columns.models, source.series, f"{where}.series", "series")
        keep = np.flatnonzero(columns.model == code)
    if source.scale != 1:
        whole, rest = divmod(source.scale, 1.0)
        times = np.full(len(keep), int(whole)) + (rng.random(len(keep)) < rest)
        repeated = np.repeat(np.arange(len(keep)), times)
        first = np.concatenate([[True], np.diff(repeated) > 0]) if len(repeated) else repeated > 0
        keep = keep[repeated]
    else:
        first = np.ones(len(keep), bool)
    arrival = columns.arrival_s[keep].copy()
    arrival[~first] += rng.uniform(-REPEAT_JITTER_S, REPEAT_JITTER_S, int((~first).sum()))
    arrival = np.clip(arrival, 0.0, columns.arrival_s[-1] if len(columns.arrival_s) else 0.0)
    order = np.argsort(arrival, kind="stable")
    keep, arrival = keep[order], arrival[order]

    def settle(
        given: dict[str, float], names: tuple[str, ...], codes: npt.NDArray[np.int16] | None,
        labels: tuple[str, ...], what: str,
    ) -> npt.NDArray[np.int16]:  # fmt: skip
        if given:
            picks = rng.choice(len(given), size=len(keep), p=list(given.values()))
            return np.array([names.index(name) for name in given], np.int16)[picks]
        if codes is None or not labels:
            if len(names) == 1:
                return np.zeros(len(keep), np.int16)
            raise ScenarioError(f"{where}: the file does not say the {what}; give {what}s.")
        table = np.array([_code(names, label, where, what) for label in labels], np.int16)
        return table[codes[keep]]

    return replace(
        shell,
        arrival_s=arrival,
        input_tokens=columns.input_tokens[keep],
        output_tokens=columns.output_tokens[keep],
        model=settle(
            {source.model: 1.0} if source.model else {},
            shell.models, columns.model, columns.models, "model",
        ),
        region=settle(source.regions, shell.regions, columns.region, columns.regions, "region"),
        tier=settle(source.tiers, shell.tiers, columns.tier, columns.tiers, "tier"),
        start_s=columns.start_s,
    )  # fmt: skip


def _binned(
    shell: Trace, source: Source, columns: list[DemandColumns], where: str
) -> list[_BinnedPart]:
    """The source's series, each with its model and its shares by region and tier."""
    if source.series is not None:
        names = tuple(c.name for c in columns)
        columns = [columns[_code(names, source.series, f"{where}.series", "series")]]
    parts = []
    for series in columns:
        model = source.model or series.model or series.name
        cells = np.zeros((len(shell.regions), len(shell.tiers)))
        regions = source.regions or _one(series.region, shell.regions, f"{where}", "region")
        tiers = source.tiers or _one(series.tier, shell.tiers, f"{where}", "tier")
        for region, a in regions.items():
            for tier, b in tiers.items():
                r = _code(shell.regions, region, where, "region")
                cells[r, _code(shell.tiers, tier, where, "tier")] = a * b * source.scale
        for field, tokens in (
            ("input_tokens", series.input_tokens),
            ("output_tokens", series.output_tokens),
        ):
            if tokens is None and getattr(source, field) is None:
                raise ScenarioError(
                    f"{where}: {source.trace} has no {field.replace('_', ' ')} for {series.name}; "
                    f"give {field}: {{mean: ..., cv: ...}} (tokens per request)."
                )
        parts.append(
            _BinnedPart(
                columns=series,
                model=_code(shell.models, model, f"{where}.model", "model"),
                cells=cells,
                input_lengths=source.input_tokens,
                output_lengths=source.output_tokens,
            )
        )
    return parts


def _one(label: str | None, names: tuple[str, ...], where: str, what: str) -> dict[str, float]:
    if label:
        return {label: 1.0}
    if len(names) == 1:
        return {names[0]: 1.0}
    raise ScenarioError(f"{where}: the file does not say the {what}; give {what}s with shares.")


def _code(names: tuple[str, ...], name: str, where: str, what: str) -> int:
    if name in names:
        return names.index(name)
    have = ", ".join(names[:12]) or "none"
    raise ScenarioError(f"{where}: {what} {name!r} is not known here; there are: {have}.")


def _demand(
    scenario: Scenario, trace: Trace, binned: list[_BinnedPart], shell: Trace
) -> tuple[Demand, list[str]]:
    """All sources in bins of one width, from the first that begins to the first that ends."""
    starts = [part.columns.start_s for part in binned]
    ends = [p.columns.start_s + len(p.columns.requests) * p.columns.bin_s for p in binned]
    if len(trace):
        starts.append(trace.start_s)
        ends.append(trace.start_s + trace.duration_s)
    start_s, end_s = min(starts), min(ends)
    bin_s = _bin_width(scenario, end_s - start_s, [p.columns.bin_s for p in binned])
    edge = float(np.floor(start_s / bin_s) * bin_s)
    bins = int((end_s - edge) / bin_s + 1e-9)
    if bins < 2 or max(starts) >= end_s:
        raise ScenarioError(
            "traffic.sources: the sources have no time in common (the last to begin starts after "
            "the first has ended); use traces of the same days."
        )
    notes = []
    if max(ends) > end_s + bin_s:
        notes.append("The study ends where the first of its sources ends.")
    parts = [_binned_demand(shell, part, edge, bin_s, bins) for part in binned]
    if len(trace):
        counted = bin_demand(trace, bin_s, start_s=edge, bins=bins)
        parts.append(_with_partial_edge(counted, trace.start_s))
    return _sum(parts, edge, bin_s, bins), notes


def _bin_width(scenario: Scenario, span_s: float, widths: list[float]) -> float:
    """The scenario's, else 15 minutes for days, 5 for half a day, 1 below; whole file bins."""
    wanted = scenario.traffic.bin_s
    coarsest = max(widths, default=0.0)
    if wanted is None:
        wanted = 900.0 if span_s >= 2 * DAY_S else 300.0 if span_s >= DAY_S / 2 else 60.0
        wanted = max(wanted, coarsest)
        if coarsest:
            wanted = np.ceil(wanted / coarsest - 1e-9) * coarsest
    for width in widths:
        if abs(wanted / width - round(wanted / width)) > 1e-6 or wanted < width:
            raise ScenarioError(
                f"traffic.bin_s: {wanted:g} s is not a whole multiple of a source's bin of "
                f"{width:g} s; choose {np.ceil(max(wanted, width) / width) * width:g}."
            )
    return float(wanted)


def _binned_demand(shell: Trace, part: _BinnedPart, edge: float, bin_s: float, bins: int) -> Demand:
    columns = part.columns
    requests = _requests_of(part)
    amounts = [
        requests,
        _tokens(columns.input_tokens, requests, part.input_lengths),
        _tokens(columns.output_tokens, requests, part.output_lengths),
    ]
    place = (columns.start_s - edge) / bin_s + np.arange(len(requests)) * columns.bin_s / bin_s
    place = np.floor(place + 1e-9).astype(np.int64)
    inside = (place >= 0) & (place < bins)
    per_bin = round(bin_s / columns.bin_s)
    coarse = []
    for values in amounts:
        total = np.bincount(place[inside], np.nan_to_num(values[inside]), minlength=bins)
        seen = np.bincount(place[inside], ~np.isnan(values[inside]), minlength=bins)
        coarse.append(np.where(seen >= per_bin, total, np.nan))  # a gap within is a gap
    where = list(zip(*np.nonzero(part.cells), strict=True))
    share = np.array([part.cells[at] for at in where])[:, None]
    return Demand(
        keys=tuple(
            SeriesKey(shell.models[part.model], shell.regions[r], shell.tiers[t]) for r, t in where
        ),
        start_s=edge,
        bin_s=bin_s,
        requests=share * coarse[0],
        input_tokens=share * coarse[1],
        output_tokens=share * coarse[2],
    )


def _with_partial_edge(demand: Demand, start_s: float) -> Demand:
    """A first bin the trace saw only a part of was not observed; before it nothing was."""
    blind = int(np.ceil((start_s - demand.start_s) / demand.bin_s - 0.05))
    if blind <= 0:
        return demand
    changed = {}
    for name in ("requests", "input_tokens", "output_tokens"):
        values = getattr(demand, name).copy()
        values[:, :blind] = np.nan
        changed[name] = values
    return replace(demand, **changed)


def _sum(parts: list[Demand], edge: float, bin_s: float, bins: int) -> Demand:
    keys = tuple(sorted({key for part in parts for key in part.keys}))
    totals = {n: np.zeros((len(keys), bins)) for n in ("requests", "input_tokens", "output_tokens")}
    for part in parts:
        for i, key in enumerate(part.keys):
            for name, total in totals.items():
                total[keys.index(key)] += getattr(part, name)[i]
    return Demand(keys=keys, start_s=edge, bin_s=bin_s, **totals)


def _requests_of(part: _BinnedPart) -> FloatArray:
    """Requests per bin; a file that counts only tokens has as many as its mean length says."""
    columns = part.columns
    if columns.requests is not None and not np.isnan(columns.requests).all():
        return columns.requests
    mean = part.input_lengths.mean if part.input_lengths else np.nan
    tokens = columns.input_tokens if columns.input_tokens is not None else columns.requests
    return np.asarray(tokens / mean, dtype=np.float64)


def _tokens(given: FloatArray | None, requests: FloatArray, lengths: Lengths | None) -> FloatArray:
    if given is not None:
        return given
    return requests * (lengths.mean if lengths else np.nan)


def _cut(tokens: FloatArray | None, inside: slice) -> FloatArray | None:
    return None if tokens is None else tokens[inside]


def _distribution(
    lengths: Lengths | None, counts: FloatArray, tokens: FloatArray | None
) -> LengthDistribution:
    """The scenario's lengths, else log-normal around the file's own tokens per request."""
    if lengths is not None:
        return LengthDistribution(mean=lengths.mean, cv=lengths.cv)
    total = np.nansum(counts)
    mean = float(np.nansum(tokens) / total) if tokens is not None and total else 1.0
    return LengthDistribution(mean=max(1.0, mean), cv=1.0)


def _whole(expected: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Whole counts with the right mean: rounded up with the probability of the fraction.

    Whole expectations stay exactly as they are; gaps stay gaps.
    """
    near = np.round(expected)
    down = np.where(np.abs(expected - near) < 1e-9, near, np.floor(expected))
    up = rng.random(expected.shape) < expected - down
    return np.asarray(down + up, dtype=np.float64) + np.where(np.isnan(expected), np.nan, 0.0)


def _lengths(
    model: int, trace: Trace, binned: list[_BinnedPart], rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """A sample of (ISL, OSL) of one model's requests, sources in proportion to their volume."""
    rows = np.flatnonzero(trace.model == model)
    parts = [part for part in binned if part.model == model]
    volumes = np.array(
        [float(len(rows))] + [np.nansum(_requests_of(p)) * p.cells.sum() for p in parts]
    )
    if volumes.sum() <= 0:
        return np.ones(1, np.int32), np.ones(1, np.int32)
    sizes = np.round(LENGTH_SAMPLE * volumes / volumes.sum()).astype(int)
    picked = rng.choice(rows, size=sizes[0]) if len(rows) else rows
    isl, osl = [trace.input_tokens[picked]], [trace.output_tokens[picked]]
    for part, size in zip(parts, sizes[1:], strict=True):
        counts = _requests_of(part)
        isl.append(
            _distribution(part.input_lengths, counts, part.columns.input_tokens).sample(size, rng)
        )
        osl.append(
            _distribution(part.output_lengths, counts, part.columns.output_tokens).sample(size, rng)
        )
    return np.concatenate(isl), np.concatenate(osl)
