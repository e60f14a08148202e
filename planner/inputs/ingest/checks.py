"""Check the values of rows, and count the refused rows."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.clock import BLANK
from planner.inputs.ingest.names import compact_name
from planner.inputs.ingest.report import Reject
from planner.inputs.ingest.rows import Batch, RefusedRows
from simulation.arrays import BoolArray, FloatArray, IntArray

SAMPLES = 3  # examples kept per reason
LONGEST_EXAMPLE = 80  # characters
MAX_AMOUNT = 1e15  # requests or tokens in one bin
MAX_LABELS = 10_000
FEW_ROWS = 30  # a file with more rows is refused if most of them are


class RefusedRowCounts:
    """A count of refused rows by reason, with the first few rows of each reason."""

    def __init__(self, name: str, unit: str, *, strict: bool) -> None:
        self._name, self._unit, self._strict = name, unit, strict
        self.reasons: dict[str, int] = {}
        self.left_out: dict[str, int] = {}  # rows that are no load, a part of ``reasons``
        self._samples: dict[str, list[Reject]] = {}

    @property
    def total(self) -> int:
        return sum(self.reasons.values())

    @property
    def samples(self) -> tuple[Reject, ...]:
        all_rejects = (reject for rejects in self._samples.values() for reject in rejects)
        return tuple(sorted(all_rejects, key=lambda reject: reject.line))

    def add(self, fault: RefusedRows) -> None:
        """Count refused rows under their reason, and keep the first few as examples."""
        count = int(fault.lines.size)
        self.reasons[fault.reason] = self.reasons.get(fault.reason, 0) + count
        rejects = self._samples.setdefault(fault.reason, [])
        for i, line in enumerate(fault.lines[: SAMPLES - len(rejects)].tolist()):
            rejects.append(Reject(line, fault.reason, fault.text(i)[:LONGEST_EXAMPLE]))

    def count_rows(self, batch: Batch) -> int:
        """Count the unparsable rows of a batch as refused; return the number of all its rows."""
        for fault in batch.faults:
            self.add(fault)
        return batch.lines.size + sum(fault.lines.size for fault in batch.faults)

    def refuse(self, refused: Sequence[Mapping[str, BoolArray]], batch: Batch) -> BoolArray:
        """Count the refused rows of a batch; return a mask of them, ``[rows]``.

        ``refused`` maps reasons to masks of rows. A row counts under its first reason.
        """
        is_refused = np.zeros(batch.lines.size, np.bool_)
        for mask_by_reason in refused:
            for reason, mask in mask_by_reason.items():
                newly_refused = mask & ~is_refused
                if newly_refused.any():
                    self.add(batch.refuse(reason, newly_refused))
                    is_refused |= newly_refused
        return is_refused

    def leave_out(self, fault: RefusedRows) -> None:
        """Count rows that are valid but put no load on GPUs, such as answers from a cache."""
        self.add(fault)
        count = self.left_out.get(fault.reason, 0)
        self.left_out[fault.reason] = count + int(fault.lines.size)

    def raise_if_strict(self) -> None:
        """In strict mode, raise IngestError for the first row that was refused so far."""
        if not self._strict:
            return
        for sample in self.samples:
            if sample.reason not in self.left_out:
                raise IngestError(
                    f"{self._name}, {self._unit} {sample.line}: {sample.reason} ({sample.text!r}). "
                    "Correct it, or read the file without --strict to leave such rows out."
                )

    def require_some(self, rows: int) -> None:
        """Raise IngestError if a file of ``rows`` rows has none, or if all or most were refused."""
        name, left_out = self._name, sum(self.left_out.values())
        if rows == 0:
            raise IngestError(f"{name} has column names but no rows. Export it again.")
        if rows == left_out:
            reasons = "; ".join(self.left_out)
            raise IngestError(
                f"{name}: none of its {rows:,} rows is load ({reasons}). where=all keeps them."
            )
        faulty = self.total - left_out
        all_refused = rows == self.total
        most_are_faulty = rows >= FEW_ROWS and faulty > rows / 2
        if all_refused or most_are_faulty:
            first = next(s for s in self.samples if s.reason not in self.left_out)
            refused_rows = f"all {rows:,}" if all_refused else f"{faulty:,} of {rows:,}"
            raise IngestError(
                f"{name}: {refused_rows} rows were rejected, the first ({self._unit} "
                f"{first.line}, {first.text!r}) for: {first.reason}. Check format and mapping."
            )


def token_counts(
    series: pl.Series, field: str, limit: int, zero: str = ""
) -> tuple[IntArray, dict[str, BoolArray]]:
    """Return the tokens of each request ``[rows]``, and masks of refused rows by reason.

    Refused cells have 0 tokens. Accepted are whole numbers up to ``limit``, also written 374.0.
    ``field`` names the tokens in reasons. ``zero`` is the reason to refuse 0; if "", 0 is accepted.
    """
    minimum = 1 if zero else 0
    if not series.dtype.is_float():  # most files have valid integers only
        exact = series.cast(pl.Int64, strict=False)
        if exact.is_between(minimum, limit).all(ignore_nulls=False):
            return exact.to_numpy(), {}
    number, is_blank = numbers_and_blanks(series, whole=True)
    is_whole = np.floor(number) == number  # False for NaN
    is_good = is_whole & (number >= minimum) & (number <= limit)
    refused = {
        f"{field} missing or NaN": is_blank,
        f"{field} not a number": np.isnan(number) & ~is_blank,
        f"{field} above {limit:,}": number > limit,
        f"{field} negative": number < 0,
        zero: (number == 0) & bool(zero),
        f"{field} not a whole number": ~is_whole & (number > 0) & (number <= limit),
    }
    return np.where(is_good, number, 0).astype(np.int64), refused


def amounts(
    series: pl.Series, field: str, *, points: bool
) -> tuple[FloatArray, dict[str, BoolArray]]:
    """Return the amounts of a column ``[rows]``, and masks of refused rows by reason.

    An empty cell is NaN. ``field`` names the amounts in reasons. With ``points``, points separate
    thousands: 1.700 is 1700.
    """
    if points and series.dtype == pl.String:
        series = series.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    number, is_blank = numbers_and_blanks(series)
    refused = {
        f"{field} not a number": np.isnan(number) & ~is_blank,
        f"{field} above {MAX_AMOUNT:g}": number > MAX_AMOUNT,
        f"{field} negative": number < 0,
    }
    return number, refused


def numbers(series: pl.Series, *, whole: bool = False) -> FloatArray:
    """Return the cells of a column as floats; NaN and ``whole`` as in ``numbers_and_blanks``."""
    values, _ = numbers_and_blanks(series, whole=whole)
    return values


def numbers_and_blanks(series: pl.Series, *, whole: bool = False) -> tuple[FloatArray, BoolArray]:
    """Return the cells of a column as floats, and a mask of blank rows (empty, null or NaN).

    A cell without a number is NaN. With ``whole``, all numbers are whole, so the point of 1.700
    separates thousands.
    """
    if series.dtype.is_numeric():
        number = series.cast(pl.Float64).fill_null(np.nan).to_numpy()
        return number, np.isnan(number)
    text = series.cast(pl.String, strict=False).str.strip_chars()
    number = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    is_unclear = ~np.isfinite(number)
    if whole:  # 1.7 was read, and 1700 may be meant
        is_unclear |= np.floor(number) != number
    if not is_unclear.any():
        return number, is_unclear
    is_blank = (text.is_null() | text.str.to_lowercase().is_in(BLANK)).to_numpy()
    if (is_unclear & ~is_blank).any():
        number = _numbers_as_written(text, number, whole)
    return number, is_blank


# Thousands with commas, blanks or apostrophes; thousands with points; a decimal comma.
_GROUPED = r"^([+-]?\d{1,3})((?:[, '\u00a0\u202f_]\d{3})+)(\.\d+)?$"
_POINTED = r"^[+-]?\d{1,3}(?:\.\d{3})+(?:,\d+)?$"
_DECIMAL_COMMA = r"^[+-]?\d+,\d+$"
_WITH_UNIT = r"^([+-]?[\d.,]*\d)\s*([kKMGB]|Mil|Bil)?\s*([A-Za-z][\w/ .%-]*)?$"
_MULTIPLE = {"k": 1e3, "K": 1e3, "M": 1e6, "Mil": 1e6, "G": 1e9, "B": 1e9, "Bil": 1e9}


def _numbers_as_written(text: pl.Series, number: FloatArray, whole: bool) -> FloatArray:
    """Return the values of numbers as people and dashboards write them, such as 1,700 or 1.2 K.

    ``text`` are the cells. ``number`` has the values of plain cells, and NaN for the others. If all
    numbers must be ``whole``, 1.700 is 1700. A comma before three digits separates thousands, and
    another comma is a decimal one: 2,5. A cell without a number stays NaN.
    """
    result = pl.Series(number).fill_nan(None)
    has_groups = text.str.contains(_GROUPED).fill_null(False)
    without_groups = text.str.replace_all(r"[, '\u00a0\u202f_]", "").cast(pl.Float64, strict=False)
    result = result.zip_with(~has_groups, without_groups)
    # 1.700 is 1700 only where it must be whole, or has several points.
    has_grouping_points = text.str.contains(r"\.\d{3}[.,]").fill_null(False)
    may_be_grouped = text.str.contains(_POINTED).fill_null(False)
    if whole and (may_be_grouped & (pl.Series(number) % 1 != 0)).any():
        has_grouping_points = may_be_grouped
    has_decimal_comma = text.str.contains(_DECIMAL_COMMA).fill_null(False) & ~has_groups
    european = text.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    is_european = has_grouping_points | has_decimal_comma
    result = result.zip_with(~is_european, european.cast(pl.Float64, strict=False))
    if not whole and result.null_count():  # a multiple or a unit, such as 1.2 K or 3 req/s
        digits = text.str.extract(_WITH_UNIT, 1).str.replace_all(",", "")
        factor = text.str.extract(_WITH_UNIT, 2).replace_strict(_MULTIPLE, default=1.0)
        result = result.fill_null(digits.cast(pl.Float64, strict=False) * factor)
    return result.fill_null(np.nan).to_numpy()


def points_group(columns: Sequence[pl.Series], times: pl.Series, *, counts: bool) -> bool:
    """Return whether points separate thousands in ``columns``, as in 1.234 for 1234.

    A number with two points proves it. Otherwise three digits must follow each point, and there
    must be a second sign: ``times`` are dates written with points, or the columns are ``counts``
    (not rates or means) and have numbers without a point too.
    """
    texts = [
        column.str.strip_chars().drop_nulls() for column in columns if column.dtype == pl.String
    ]
    if any(text.str.contains(r"^\d{1,3}(\.\d{3}){2,}$").any() for text in texts):
        return True
    with_point = [text.filter(text.str.contains(".", literal=True)) for text in texts]
    has_points = any(map(len, with_point))
    if not has_points or not all(t.str.contains(_POINTED).all() for t in with_point):
        return False
    if times.cast(pl.String).str.contains(r"^\s*\d\d?\.\d\d?\.\d{4}").any():
        return True
    # A fixed number of decimals would leave no number without a point.
    has_plain_numbers = any(text.str.contains(r"^[1-9]\d{0,2}$").any() for text in texts)
    has_fractions = any(text.str.contains(r"^0\.").any() for text in with_point)
    return counts and has_plain_numbers and not has_fractions


def cell_unit(series: pl.Series) -> str:
    """Return the unit that all cells with a number share, such as req/s; "" if there is none."""
    text = series.cast(pl.String, strict=False).str.strip_chars().drop_nulls()
    units = text.filter(text != "").str.extract(_WITH_UNIT, 3).unique()
    return str(units[0]) if len(units) == 1 and units[0] is not None else ""


class Names:
    """The distinct labels of a column, in order of appearance."""

    def __init__(self, field: str, file: str) -> None:
        self._field, self._file = field, file
        self._seen: dict[str, None] = {}
        self.blank = 0  # rows without a label

    def add(self, labels: pl.Series) -> None:
        """Add the labels of a batch; raise IngestError if there are too many different ones."""
        self.blank += labels.null_count()
        for label in labels.drop_nulls().unique(maintain_order=True):
            self._seen.setdefault(label)
        if len(self._seen) > MAX_LABELS:
            raise IngestError(
                f"{self._file}: the column taken for {self._field} has more than {MAX_LABELS:,} "
                f"different values. Choose another column for {self._field}."
            )

    @property
    def seen(self) -> tuple[str, ...]:
        return tuple(self._seen)


def labels(series: pl.Series) -> pl.Series:
    """Return a label column as text; null if empty."""
    text = series.cast(pl.String, strict=False).str.strip_chars()
    return text.set(text == "", None) if (text == "").any() else text


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
    """Return the mask of rows whose word matches ``pattern`` and not ``but``, ``[rows]``.

    Words are compared in lower case. A column with over MOST_WORDS different words holds no
    outcomes, so none of its rows match.
    """
    text = series.cast(pl.String, strict=False).fill_null("").str.strip_chars().str.to_lowercase()
    words = text.unique().to_list()
    if len(words) > MOST_WORDS:
        return np.zeros(series.len(), np.bool_)
    matching = [word for word in words if pattern.search(word)]
    if but is not None:
        matching = [word for word in matching if not but.search(word)]
    return np.asarray(text.is_in(matching).to_numpy(), dtype=np.bool_)


def is_cancelled(series: pl.Series, column: str) -> BoolArray:
    """Return a mask of the requests that were cancelled before their answer, ``[rows]``.

    Their prompt was still computed. ``series`` has the outcomes of requests, and ``column`` is its
    name: a column named after cancelling has "true" for them.
    """
    if re.search("cancel|abort", compact_name(column)):
        return _matches(series, re.compile("^true$|^1$|^yes$"))
    return _matches(series, _CANCELLED, but=_NO_FAULT)


def is_failed(series: pl.Series, column: str) -> BoolArray:
    """Return a mask of the requests that failed and were not cancelled, ``[rows]``.

    ``series`` has the outcomes of requests, and ``column`` is its name. A column named after
    cancelling holds no failures.
    """
    if re.search("cancel|abort", compact_name(column)):
        return np.zeros(series.len(), dtype=np.bool_)
    return _matches(series, _FAILED, but=_NO_FAULT) & ~is_cancelled(series, column)


def cache_hits(series: pl.Series) -> BoolArray:
    """Return a mask of the requests that a proxy's cache answered, ``[rows]``.

    It is all False if the column has other words than those for hits and misses.
    """
    text = series.cast(pl.String, strict=False).fill_null("").str.to_lowercase()
    if not all(_KNOWN_HITS.search(word) for word in text.unique().to_list()[:MOST_WORDS]):
        return np.zeros(series.len(), dtype=np.bool_)
    return _matches(series, _HIT)
