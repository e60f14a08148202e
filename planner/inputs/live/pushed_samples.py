"""Check samples that a program sends, and put them on the source's bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from planner.errors import SourceError
from planner.inputs.live.samples import AMOUNTS, GAUGES, HISTOGRAMS, KEYS, Samples, bins_frame

MOST_SAMPLES = 20_000  # in one request
LARGEST = 1e12
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
AHEAD = timedelta(days=1)  # largest accepted clock difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One bin of one model, region and tier; None means unknown.

    ``input_lengths``, ``output_lengths``, ``ttft``, ``tbt`` and ``e2e`` are histograms. They map
    the upper bound of a bucket (tokens, or seconds; "+Inf" for the last) to the count in this
    bucket alone.
    """

    time: datetime  # start of the bin
    model: str = ""
    region: str = ""
    tier: str = ""
    requests: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    waiting: float | None = None
    running: float | None = None
    kv_use: float | None = None
    replicas: float | None = None
    power_w: float | None = None
    tbt_mean_s: float | None = None
    input_lengths: Mapping[str, float] | None = None
    output_lengths: Mapping[str, float] | None = None
    ttft: Mapping[str, float] | None = None
    tbt: Mapping[str, float] | None = None
    e2e: Mapping[str, float] | None = None


FIELDS = tuple(field.name for field in fields(Sample))
HISTOGRAM_FIELDS = {
    "input_lengths": "input_tokens",
    "output_lengths": "output_tokens",
    "ttft": "ttft_s",
    "tbt": "tbt_s",
    "e2e": "e2e_s",
}


@dataclass(frozen=True, slots=True)
class PushedSamples:
    """Samples of one request, checked at creation."""

    samples: tuple[Sample, ...]
    now: datetime

    def __post_init__(self) -> None:
        if not 1 <= len(self.samples) <= MOST_SAMPLES:
            raise SourceError(
                f"samples: {len(self.samples):,} were sent. Send 1 to {MOST_SAMPLES:,} at a time."
            )
        for index, sample in enumerate(self.samples):
            _check(sample, f"samples[{index}]", self.now)


def samples_of(sent: PushedSamples, bin_s: int) -> Samples:
    """Return the samples on bins of ``bin_s``.

    Raises SourceError for a time between two bins, or for a bin that occurs twice.
    """
    rows, counted, seen = [], [], set()
    for index, sample in enumerate(sent.samples):
        where = f"samples[{index}]"
        start = int(sample.time.timestamp())
        if start % bin_s or sample.time.microsecond:
            raise SourceError(
                f"{where}.time: {sample.time:%Y-%m-%dT%H:%M:%SZ} is not where a bin of {bin_s} s "
                "begins. Send sums of whole bins, by their beginning."
            )
        keys = {key: getattr(sample, key) for key in KEYS}
        place = (*keys.values(), start)
        if place in seen:
            raise SourceError(f"{where}: this bin of this series is in the message twice.")
        seen.add(place)
        figures = {name: getattr(sample, name) for name in (*AMOUNTS, *GAUGES)}
        rows.append({**keys, "bin_start": start, **figures})
        for field, what in HISTOGRAM_FIELDS.items():
            bounds = sorted((float(m), float(n)) for m, n in (getattr(sample, field) or {}).items())
            least = 0.0
            for most, count in bounds:
                counted.append(
                    {
                        **keys, "bin_start": start, "origin": "", "what": what, "least": least,
                        "most": most, "count": count,
                    }
                )  # fmt: skip
                least = most
    return Samples(bin_s, bins_frame(rows), pl.DataFrame(counted, schema=HISTOGRAMS))


def _check(sample: Sample, where: str, now: datetime) -> None:
    if sample.time.tzinfo is None:
        raise SourceError(f"{where}.time: say in which zone, such as 2026-01-31T10:00:00Z.")
    if not EARLIEST <= sample.time <= now + AHEAD:
        raise SourceError(f"{where}.time: {sample.time.isoformat()} is not in the past.")
    figures: list[Any] = [getattr(sample, name) for name in (*AMOUNTS, *GAUGES)]
    if all(value is None for value in figures):
        raise SourceError(f"{where}: this bin is empty. Give at least requests.")
    for name, value in zip((*AMOUNTS, *GAUGES), figures, strict=True):
        if value is not None and not 0 <= value <= LARGEST:
            raise SourceError(f"{where}.{name}: give a number from 0 to {LARGEST:g}.")
    if sample.kv_use is not None and sample.kv_use > 1:
        raise SourceError(f"{where}.kv_use: {sample.kv_use:g} is no share. Give 0 to 1.")
    for name in HISTOGRAM_FIELDS:
        _check_histogram(getattr(sample, name), f"{where}.{name}")


def _check_histogram(histogram: Mapping[str, float] | None, where: str) -> None:
    for most, count in (histogram or {}).items():
        try:
            bound = float(most)
        except ValueError:
            bound = -1.0
        if not bound > 0 or not 0 <= count <= LARGEST:
            raise SourceError(
                f"{where}: {most}: {count} is no bucket. Give upper bounds above 0 (or +Inf) and "
                "how many were in each bucket alone."
            )


def of_rows(rows: Sequence[Mapping[str, Any]], now: datetime) -> PushedSamples:
    """Return the samples of plain rows; raise SourceError for an unknown field."""
    samples = []
    for index, row in enumerate(rows[: MOST_SAMPLES + 1]):
        if unknown := set(row) - set(FIELDS):
            raise SourceError(
                f"samples[{index}].{min(unknown)}: this is not known here; there are: "
                f"{', '.join(FIELDS)}."
            )
        samples.append(Sample(**row))
    return PushedSamples(tuple(samples), now)
