"""Define what a caller may state about a file, and the fields that columns map to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from planner.errors import IngestError

AUTO = "auto"  # the format is detected from the columns
REQUEST_FIELDS = (
    "arrival",
    "input_tokens",
    "output_tokens",
    "model",
    "region",
    "tier",
    "hash_ids",
    "utility",
)
DEMAND_FIELDS = (
    "time",
    "requests",
    "rate",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "series",
    "model",
    "region",
    "tier",
)
LABELS = ("model", "region", "tier")
ALIASES = {"bin_start": "time"}  # other names of fields in mappings

GB = 1_000_000_000
MAX_TOKENS = 10_000_000
CHUNK_BYTES = 32 << 20
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Offered:
    """The label, help and choices of an option in the browser, the API and the command line."""

    label: str  # in a form
    help: str
    choices: Mapping[str, str] = field(default_factory=dict)  # value to label, the default first
    switch: bool = False


def _offered(default: Any, label: str, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"offered": Offered(label, help, **more)})


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Options for reading one file; the defaults detect everything.

    ``mapping`` names the column of a field: ``{"arrival": "created"}``. A time column may carry its
    unit (``"created:ms"``; ns, us, ms, s, min, h, d). It may be a sum of several columns
    (``"day+hour"``). A demand file may have one column per series (``"requests":
    "chat_requests,api_requests"``).
    """

    name: str = ""  # the file's original name, if it is stored under another
    format: str = _offered(
        AUTO, "Format", "What the file is; found out from its columns unless it is said."
    )
    mapping: Mapping[str, str] = field(default_factory=dict)
    model: str | None = _offered(None, "Model of every row", "Model of every row.")
    region: str | None = _offered(None, "Region of every row", "Home region of every row.")
    tier: str | None = _offered(None, "Tier of every row", "Service tier of every row.")
    missing: str = _offered(
        "gap",
        "Bins a demand file leaves out are",
        "What a bin is that a demand file leaves out: a gap (not known) or zero.",
        choices={"gap": "a gap: not known", "zero": "zero: nothing arrived"},
    )
    strict: bool = _offered(
        False,
        "Strict: refuse the file at its first bad row instead of counting it",
        "Refuse the file at its first rejected row.",
        switch=True,
    )
    bin_s: float | None = None  # bin width of a demand file; None: detected from its times
    max_bytes: int = 10 * GB  # size on disk, checked before reading
    max_expanded_bytes: int = 50 * GB  # size after decompression
    max_tokens: int = MAX_TOKENS  # input or output tokens of one request
    chunk_bytes: int = CHUNK_BYTES  # bytes read at a time; affects memory, not the result

    def __post_init__(self) -> None:
        if self.missing not in ("gap", "zero"):
            raise IngestError(
                f"missing must be 'gap' or 'zero', not {self.missing!r}: what a bin that the file "
                "does not list means."
            )
        if self.bin_s is not None and not 0.001 <= self.bin_s <= 366 * 86400:
            raise IngestError(
                f"bin_s must be between 0.001 s and a year, not {self.bin_s:g}; give the width of "
                "one bin in seconds."
            )
        if not 1 <= self.max_tokens <= INT32_MAX:
            raise IngestError(f"max_tokens must be between 1 and {INT32_MAX}.")
        if self.chunk_bytes < 1:
            raise IngestError("chunk_bytes must be at least 1.")
        mapping = {ALIASES.get(name, name): column for name, column in self.mapping.items()}
        known = set(REQUEST_FIELDS) | set(DEMAND_FIELDS)
        for name, column in mapping.items():
            if name not in known:
                raise IngestError(
                    f"There is no field {name!r} to map a column to; request files have "
                    f"{', '.join(REQUEST_FIELDS)}, demand files {', '.join(DEMAND_FIELDS)}."
                )
            if not column:
                raise IngestError(f"The mapping of {name} names no column; write {name}=COLUMN.")
            if name in LABELS and self.constant(name) is not None:
                raise IngestError(
                    f"{name} is given both as a column ({column}) and as a fixed name "
                    f"({self.constant(name)}); give one of the two."
                )
        # The dataclass is frozen, so plain assignment fails.
        object.__setattr__(self, "mapping", mapping)

    def constant(self, label: str) -> str | None:
        """Return the fixed name given for ``model``, ``region`` or ``tier``."""
        return {"model": self.model, "region": self.region, "tier": self.tier}[label] or None

    @classmethod
    def of(
        cls, name: str, chosen: Mapping[str, Any], mapping: Mapping[str, str] | None
    ) -> IngestOptions:
        """Return the options for the file ``name``.

        ``chosen`` has values of OFFERED. A blank or missing value means the default.
        """
        values = {option: chosen[option] for option in OFFERED if chosen.get(option)}
        return cls(name=name, mapping=mapping or {}, **values)


OFFERED: Mapping[str, Offered] = {
    option.name: option.metadata["offered"] for option in fields(IngestOptions) if option.metadata
}


def column_mapping(pairs: Iterable[str], called: str = "") -> dict[str, str]:
    """Return column by field from texts such as ``arrival=created``; raise IngestError.

    ``called`` precedes the text in the error, for example the name of a command-line option.
    """
    mapping: dict[str, str] = {}
    for pair in pairs:
        name, equals, column = (part.strip() for part in pair.partition("="))
        if not (name and equals and column):
            raise IngestError(
                f"{called}{pair}: write field=column, for example arrival=created_at."
            )
        if name in mapping:
            raise IngestError(f"{name} is mapped twice; keep one.")
        mapping[name] = column
    return mapping
