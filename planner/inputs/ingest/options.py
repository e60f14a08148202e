"""Define what a caller may state about a file, and the fields that columns map to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.errors import IngestError
from planner.inputs.ingest import row_filter
from planner.inputs.ingest.clock import check_zone
from planner.inputs.ingest.names import DECLARED
from planner.inputs.numbers import finite_number

AUTO = "auto"  # the format is detected from the columns
REQUEST_FIELDS = tuple(DECLARED["fields"]["requests"].split())
NEEDED_FIELDS = ("arrival", "input_tokens", "output_tokens")  # of a file of requests
OPTIONAL_FIELDS = tuple(field for field in REQUEST_FIELDS if field not in NEEDED_FIELDS)
DEMAND_FIELDS = tuple(DECLARED["fields"]["demand"].split())
LABELS = ("model", "region", "tier")
ALIASES = {"bin_start": "time"}  # other names of fields in mappings

# How the amounts of a demand file are meant: seconds of the unit of a rate.
RATES = {"per_second": 1, "per_minute": 60, "per_hour": 3600}
COUNTS, COUNTER = "counts", "counter"
PER_REQUEST = "per_request"  # counts, with the mean tokens of a request

GB = 1_000_000_000
MAX_TOKENS = 10_000_000
CHUNK_BYTES = 32 << 20
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OptionLabel:
    """The label, help and choices of an option in the browser, the API and the command line."""

    label: str  # in a form
    help: str
    choices: Mapping[str, str] = field(default_factory=dict)  # value to label, the default first
    switch: bool = False
    longest: int = 80  # characters


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Options for reading one file; the defaults detect everything.

    ``mapping`` names the column of a field: ``{"arrival": "created"}``. A time column may carry its
    unit (``"created:ms"``; ns, us, ms, s, min, h, d). It may be a sum of several columns
    (``"day+hour"``). Tokens may be a sum too, and have alternatives: ``a+b|c`` is the sum of a and
    b, or c where both are empty. A demand file may have one column per series (``"requests":
    "chat_requests,api_requests"``).
    """

    name: str = ""  # the file's original name, if it is stored under another
    format: str = AUTO
    mapping: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    region: str | None = None
    tier: str | None = None
    missing: str = AUTO
    amounts: str = AUTO
    timezone: str | None = None
    dates: str = AUTO
    where: str | None = None
    sample: str | None = None
    strict: bool = False
    bin_s: float | None = None  # bin width of a demand file; None: detected from its times
    max_bytes: int = 10 * GB  # size on disk, checked before reading
    max_expanded_bytes: int = 50 * GB  # size after decompression
    max_tokens: int = MAX_TOKENS  # input or output tokens of one request
    chunk_bytes: int = CHUNK_BYTES  # bytes read at a time; affects memory, not the result

    def __post_init__(self) -> None:
        for name in ("missing", "amounts", "dates"):
            value, choices = getattr(self, name), OFFERED[name].choices
            if value not in choices:
                raise IngestError(f"{name} is {value[:40]!r}. Choose one of {', '.join(choices)}.")
        check_zone(self.timezone)
        row_filter.parse(self.filter or "")
        _ = self.one_in  # raises IngestError for a wrong sample
        if self.bin_s is not None and not 0.001 <= self.bin_s <= 366 * 86400:
            raise IngestError(
                f"bin_s is {self.bin_s:g}. Give a width of bins from 0.001 s to a year."
            )
        if not 1 <= self.max_tokens <= INT32_MAX:
            raise IngestError(f"max_tokens must be between 1 and {INT32_MAX}.")
        if self.chunk_bytes < 1:
            raise IngestError("chunk_bytes must be at least 1.")
        mapping = {ALIASES.get(name, name): column for name, column in self.mapping.items()}
        self._check_mapping(mapping)
        # The dataclass is frozen, so plain assignment fails.
        object.__setattr__(self, "mapping", mapping)

    def _check_mapping(self, mapping: Mapping[str, str]) -> None:
        """Raise IngestError for an unknown field, or one without a column or with a fixed name."""
        for name, column in mapping.items():
            if name not in {*REQUEST_FIELDS, *DEMAND_FIELDS}:
                raise IngestError(
                    f"There is no field {name!r} to map a column to. Request files have "
                    f"{', '.join(REQUEST_FIELDS)}, demand files {', '.join(DEMAND_FIELDS)}."
                )
            if not column:
                raise IngestError(f"The mapping of {name} names no column. Write {name}=COLUMN.")
            if name in LABELS and self.constant(name) is not None:
                raise IngestError(
                    f"{name} is given both as a column ({column}) and as a fixed name "
                    f"({self.constant(name)}). Give one of the two."
                )

    @property
    def one_in(self) -> float | None:
        """Return n of a sample of one in n requests, stated as n or 1/n; None: not stated.

        Raise IngestError for other text.
        """
        if self.sample is None:
            return None
        number = finite_number(self.sample)
        if number is None or not 1e-6 <= number <= 1_000_000:
            raise IngestError(
                f"sample is {self.sample[:40]!r}. For one in 100 requests, give 100 or the share "
                "0.01."
            )
        return number if number >= 1 else 1 / number

    @property
    def filter(self) -> str | None:
        """Return the caller's filter; "" keeps every row, and None uses the format's own filter."""
        if self.where is None:
            return None
        return "" if self.where.strip() == row_filter.EVERY_ROW else self.where

    def constant(self, label: str) -> str | None:
        """Return the label that the caller gives to every row; None if there is none.

        ``label`` is model, region or tier. Rows have no common series.
        """
        return getattr(self, label) or None if label in LABELS else None

    @classmethod
    def of(
        cls, name: str, chosen: Mapping[str, Any], mapping: Mapping[str, str] | None
    ) -> IngestOptions:
        """Return the options for the file ``name``; blank values of ``chosen`` are defaults."""
        values = {option: chosen[option] for option in OFFERED if chosen.get(option)}
        return cls(name=name, mapping=mapping or {}, **values)


OFFERED: Mapping[str, OptionLabel] = {
    name: OptionLabel(**declared) for name, declared in DECLARED["options"].items()
}


def column_mapping(pairs: Iterable[str], option: str = "") -> dict[str, str]:
    """Return column by field from texts such as ``arrival=created``.

    ``option`` begins the message of an error. Raise IngestError for another text, or if a field
    occurs twice.
    """
    mapping: dict[str, str] = {}
    for pair in pairs:
        field, _, column = pair.partition("=")
        field, column = field.strip(), column.strip()
        if not (field and column):
            raise IngestError(
                f"{option}{pair}: write field=column, for example arrival=created_at."
            )
        if field in mapping:
            raise IngestError(f"{field} is mapped twice. Keep one.")
        mapping[field] = column
    return mapping
