"""A series of a demand file as a source of traffic: amounts per bin, requests on demand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.demand import SeriesKey
from planner.ingest.store import DemandColumns
from planner.scenario.schema import Launch, Lengths
from planner.studies.traffic.demand import Demand
from simulation.arrays import FloatArray, Int32Array
from simulation.synthesis import (
    IndependentLengths,
    LengthDistribution,
    SampledLength,
    requests_from_bins,
)
from simulation.trace import Trace

FILE_CV = 1.0  # spread of lengths around a file's own tokens per request (assumed)


@dataclass(frozen=True, slots=True, eq=False)
class BinnedSource:
    """One series, the model it is for, and where its requests go.

    ``cells`` has shape ``[regions, tiers]``: the share of every bin, scale included. The scenario's
    lengths stand in for tokens the file does not count; where it does, only their spread is taken.
    """

    columns: DemandColumns
    model: int
    cells: FloatArray
    input_lengths: Lengths | None
    output_lengths: Lengths | None
    launch: Launch | None = None  # of which it was drawn, where no file is behind it

    @property
    def end_s(self) -> float:
        return self.columns.start_s + len(self.columns.requests) * self.columns.bin_s

    def requests(self) -> FloatArray:
        """Requests per bin; a file of tokens only has as many as the mean lengths say."""
        columns = self.columns
        if not np.isnan(columns.requests).all():
            return columns.requests
        for tokens, lengths in (
            (columns.input_tokens, (self.input_lengths,)),
            (columns.output_tokens, (self.output_lengths,)),
            (columns.total_tokens, (self.input_lengths, self.output_lengths)),
        ):
            if tokens is not None and all(lengths):
                return np.asarray(
                    tokens / sum(length.mean for length in lengths if length), np.float64
                )
        return columns.requests

    def tokens(self) -> tuple[FloatArray, FloatArray]:
        """Input and output tokens per bin, from the file or the scenario's mean lengths."""
        requests = self.requests()
        counted = (self.columns.input_tokens, self.columns.output_tokens)
        lengths = (self.input_lengths, self.output_lengths)
        first, second = (
            tokens if tokens is not None else requests * (lengths_of.mean if lengths_of else np.nan)
            for tokens, lengths_of in zip(counted, lengths, strict=True)
        )
        return np.asarray(first), np.asarray(second)

    def lengths(self, between: slice = slice(None)) -> IndependentLengths:
        """Lengths around the mean per request of ``tokens``, of the bins given: spread as the
        source's own sample, where it has one and the scenario gives none, else log-normal."""
        columns = self.columns
        requests, both = self.requests()[between], [part[between] for part in self.tokens()]

        def around(
            tokens: FloatArray, stated: Lengths | None, seen: FloatArray | None
        ) -> LengthDistribution | SampledLength:
            known = ~np.isnan(requests) & ~np.isnan(tokens)
            total = float(requests[known].sum())
            mean = float(tokens[known].sum()) / total if total else 1.0
            if seen is not None and stated is None:
                return SampledLength(seen, max(1.0, mean))
            return LengthDistribution(max(1.0, mean), stated.cv if stated else FILE_CV)

        return IndependentLengths(
            around(both[0], self.input_lengths, columns.input_lengths),
            around(both[1], self.output_lengths, columns.output_lengths),
        )

    def demand(self, shell: Trace, edge_s: float, bin_s: float, bins: int) -> Demand:
        """The source in bins of ``bin_s`` from ``edge_s`` on; a gap within a bin makes it one."""
        columns = self.columns
        first = (columns.start_s - edge_s) / bin_s
        place = np.floor(first + np.arange(len(columns.requests)) * columns.bin_s / bin_s + 1e-9)
        inside = (place >= 0) & (place < bins)
        into = place[inside].astype(np.int64)
        per_bin = round(bin_s / columns.bin_s)
        where = np.argwhere(self.cells > 0)
        share = self.cells[tuple(where.T)][:, None]

        def coarse(values: FloatArray) -> FloatArray:
            total = np.bincount(into, np.nan_to_num(values[inside]), minlength=bins)
            seen = np.bincount(into, ~np.isnan(values[inside]), minlength=bins)
            return np.asarray(share * np.where(seen >= per_bin, total, np.nan))

        input_tokens, output_tokens = self.tokens()
        return Demand(
            keys=tuple(
                SeriesKey(shell.models[self.model], shell.regions[r], shell.tiers[t])
                for r, t in where
            ),
            start_s=edge_s,
            bin_s=bin_s,
            requests=coarse(self.requests()),
            input_tokens=coarse(input_tokens),
            output_tokens=coarse(output_tokens),
        )

    def expected(self, start_s: float, end_s: float) -> float:
        """Requests that ``draw`` gives, about."""
        counts = self.requests()[self.between(start_s, end_s)]
        return float(np.nansum(counts) * self.cells.sum())

    def between(self, start_s: float, end_s: float) -> slice:
        """The bins that reach into ``[start_s, end_s)``."""
        columns = self.columns
        first = max(0, int(np.floor((start_s - columns.start_s) / columns.bin_s + 1e-9)))
        return slice(
            first, max(first, int(np.ceil((end_s - columns.start_s) / columns.bin_s - 1e-9)))
        )

    def whole(self, start_s: float, end_s: float) -> slice:
        """The bins that lie in ``[start_s, end_s)`` from end to end."""
        columns = self.columns
        first = max(0, int(np.ceil((start_s - columns.start_s) / columns.bin_s - 1e-9)))
        return slice(
            first, max(first, int(np.floor((end_s - columns.start_s) / columns.bin_s + 1e-9)))
        )

    def draw(
        self,
        shell: Trace,
        start_s: float,
        end_s: float,
        rng: np.random.Generator,
        parts: int = 1,
    ) -> list[Trace]:
        """Requests arriving in ``[start_s, end_s)``, a trace for each region and tier; of ``parts``
        equal ones one.

        Each cell's count per bin is its share rounded up or down at random, so that the mean is
        right and a whole share stays exact; the file's tokens per bin are kept where it has them.
        """
        columns, between = self.columns, self.between(start_s, end_s)
        counts = self.requests()[between]
        traces = []
        for region, tier in np.argwhere(self.cells > 0):
            drawn = whole_counts(counts * self.cells[region, tier] / parts, rng)
            part = np.divide(drawn, counts, out=np.zeros_like(drawn), where=counts > 0)

            def totals(tokens: FloatArray | None, part: FloatArray = part) -> FloatArray | None:
                return None if tokens is None else np.round(tokens[between] * part)

            arrival, isl, osl = requests_from_bins(
                drawn,
                columns.bin_s,
                columns.start_s + between.start * columns.bin_s - start_s,
                self.lengths(),
                rng,
                input_totals=totals(columns.input_tokens),
                output_totals=totals(columns.output_tokens),
            )
            order = np.argsort(arrival, kind="stable")
            order = order[(arrival[order] >= 0) & (arrival[order] < end_s - start_s)]
            place = self.model, int(region), int(tier)
            requests = arrival[order], isl[order], osl[order]
            traces.append(all_from(shell, place, start_s, *requests))
        return traces


def all_from(
    shell: Trace,
    place: tuple[int, int, int],
    start_s: float,
    arrival_s: FloatArray,
    isl: Int32Array,
    osl: Int32Array,
) -> Trace:
    """Requests of one model, region and tier (``place``), under the names of ``shell``."""
    model, region, tier = (np.full(len(arrival_s), code, np.int16) for code in place)
    names = shell.models, shell.regions, shell.tiers
    return Trace(arrival_s, isl, osl, model, region, tier, *names, start_s)


def whole_counts(expected: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Whole counts with the right mean: rounded up with the probability of the fraction.

    Whole expectations stay exactly as they are; gaps (NaN) stay gaps.
    """
    near = np.round(expected)
    base = np.where(np.abs(expected - near) < 1e-9, near, np.floor(expected))
    up = rng.random(expected.shape) < expected - base
    return np.where(np.isnan(expected), np.nan, base + up)
