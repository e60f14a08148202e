"""Tell what became of requests: completed, cancelled, failed, or answered by a cache."""

import re

import numpy as np
import polars as pl

from planner.inputs.ingest.names import compact_name
from simulation.arrays import BoolArray

MOST_WORDS = 1000  # distinct values of a column of outcomes
_CANCELLED = re.compile(
    r"cancel|abort|disconnect|client.?clos|hang.?up|timed?.?out|^499$|^408$|^504$"
)
_FAILED = re.compile(
    r"fail|error|reject|refus|denied|limit|invalid|exception|unavailable|blocked|^false$|"
    r"^[45]\d\d(\.0)?$"
)
_NO_FAULT = re.compile(r"^(none|null|no.?error|ok|0)?$|^no.?timeout$")
_HIT = re.compile(r"(^|[^a-z])hit$|^true$|^yes$|^1$")
_KNOWN_HITS = re.compile(r"hit|miss|true|false|yes|no|^[01]$|disabled|refresh|bypass|^$|null|none")


def _matches(
    series: pl.Series, pattern: re.Pattern[str], *, but: re.Pattern[str] | None = None
) -> BoolArray:
    """Return the mask of rows whose word fits ``pattern`` and not ``but``, ``[rows]``."""
    text = series.cast(pl.String, strict=False).fill_null("").str.strip_chars().str.to_lowercase()
    words = text.unique().to_list()
    matching = [word for word in words if pattern.search(word) and not (but and but.search(word))]
    fits = matching if len(words) <= MOST_WORDS else []
    return np.asarray(text.is_in(fits).to_numpy(), dtype=np.bool_)


def cancelled(series: pl.Series, column: str) -> BoolArray:
    """Return a mask of the requests cancelled before their answer.

    Their prompt was still computed.
    """
    if re.search("cancel|abort", compact_name(column)):
        return _matches(series, re.compile("^true$|^1$|^yes$"))
    return _matches(series, _CANCELLED, but=_NO_FAULT)


def failed(series: pl.Series, column: str) -> BoolArray:
    """Return a mask of the requests that failed and were not cancelled."""
    if re.search("cancel|abort", compact_name(column)):
        return np.zeros(series.len(), dtype=np.bool_)
    return _matches(series, _FAILED, but=_NO_FAULT) & ~cancelled(series, column)


def cache_hits(series: pl.Series) -> BoolArray:
    """Return a mask of the requests that a proxy's cache answered.

    If the column has other words than those for hits and misses, no request counts.
    """
    text = series.cast(pl.String, strict=False).fill_null("").str.to_lowercase()
    if not all(_KNOWN_HITS.search(word) for word in text.unique().to_list()[:MOST_WORDS]):
        return np.zeros(series.len(), dtype=np.bool_)
    return _matches(series, _HIT)
