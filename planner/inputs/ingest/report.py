"""Hold the findings of reading a file as plain data: counts, refusals, times and notes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC as UTC_ZONE
from datetime import datetime
from typing import Any, NamedTuple

UTC = "utc"  # times are calendar times
Z_95 = 1.96  # standard deviations of a normal distribution that hold 95%
RELATIVE = "relative"  # times count from the start of the trace: epoch 0 is its origin


class Reject(NamedTuple):
    """One refused row, kept as an example of its reason."""

    line: int  # line in the file, the header being line 1; the row number in Parquet
    reason: str
    text: str  # at most 80 characters of the row


@dataclass(frozen=True, slots=True)
class SeriesReport:
    """One series of a demand file."""

    name: str
    bins: int
    requests: float | None  # sum over the known bins; None in a file of tokens only
    gaps: int  # bins without any known amount
    bin_s: float
    start: str
    end: str  # right edge of the last bin
    input_tokens: float | None
    output_tokens: float | None
    model: str | None
    region: str | None
    tier: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a file holds: counts, tokens and times. None: not in the file, or not counted."""

    kind: str  # "requests" or "demand"
    rows: int
    requests: float | None  # accepted requests, or the sum over a demand file
    start_ns: int  # first arrival, or left edge of the first bin; ns since the epoch
    end_ns: int  # last arrival, or right edge of the last bin
    input_tokens: float | None
    output_tokens: float | None
    columns: Mapping[str, str]  # field to the column it was read from
    notes: tuple[str, ...]  # sentences on assumptions and changes
    series: tuple[SeriesReport, ...] = ()  # of a demand file
    bin_s: float | None = None  # of a demand file
    cached_tokens: float | None = None  # input tokens from a prefix cache
    total_tokens: float | None = None  # of a demand file that counts both kinds as one
    reasoning_tokens: float | None = None  # part of the output tokens
    cancelled: int = 0  # requests that ended before their answer
    unanswered: int = 0  # requests without an answer that did not fail, such as embeddings
    without_model: int = 0  # requests with an empty model, in a file that has models
    sample: float = 1.0  # the file holds one in this many requests


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport(Figures):
    """The report on one file; ``rows`` = accepted + ``rejected``.

    Times are ISO 8601 in UTC for a file with calendar times. If ``clock`` is "relative", they are
    ``+SECONDSs`` from the origin of the trace (epoch 0).
    """

    trace: str  # the file's name
    format: str  # one of formats.FORMATS
    rejected: int = 0
    reject_reasons: Mapping[str, int] = field(default_factory=dict)
    reject_samples: tuple[Reject, ...] = ()  # the first few of each reason
    clock: str  # "utc" or "relative"
    start: str
    end: str
    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    provenance: str
    sha256: str  # of the stored file
    bytes: int  # of the stored file
    seconds: float  # duration of reading
    left_out: Mapping[str, int] = field(default_factory=dict)  # rows that are no load, by reason
    assumptions: tuple[str, ...] = ()  # what the reading takes for granted, as sentences
    checks: Mapping[str, str] = field(default_factory=dict)  # check to its finding, "" if none

    @property
    def start_s(self) -> float:
        return self.start_ns / 1e9

    @property
    def end_s(self) -> float:
        return self.end_ns / 1e9

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; ``reject_samples`` as (line, reason, text)."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> IngestReport:
        """Return the report that :meth:`as_dict` gave; raise KeyError or TypeError for others."""
        # Reports of earlier versions lack the fields that have a default.
        values = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        for name in {"models", "regions", "tiers", "notes", "assumptions"} & values.keys():
            values[name] = tuple(values[name])
        values["reject_samples"] = tuple(Reject(*sample) for sample in data["reject_samples"])
        values["series"] = tuple(SeriesReport(**row) for row in data["series"])
        return cls(**values)


def sampling_error(rows: float, one_in: float) -> float:
    """Return half the 95% range of ``one_in`` times ``rows``, as a share of it.

    Each request is in the sample with probability 1 / ``one_in``, independently (binomial).
    """
    return Z_95 * math.sqrt((1.0 - 1.0 / one_in) / max(rows, 1.0))


def int_if_whole(amount: float) -> float:
    """Return ``amount`` as an int if it is whole, so that counts print as counts."""
    return int(amount) if float(amount).is_integer() else float(amount)


def moment_text(ns: int, kind: str) -> str:
    """Return a time to the second as ``2023-11-16T18:15:46Z``, or ``+3600s`` from the origin."""
    if kind == UTC:
        when = datetime.fromtimestamp(ns // 1_000_000_000, tz=UTC_ZONE)
        return when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"+{ns / 1e9:.3f}".rstrip("0").rstrip(".") + "s"
