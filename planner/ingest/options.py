"""What a caller may say about a file, and the names a column can be mapped to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.errors import IngestError

FORMATS = ("auto", "azure", "burstgpt", "mooncake", "csv", "demand")
REQUEST_FIELDS = (
    "arrival",
    "input_tokens",
    "output_tokens",
    "model",
    "region",
    "tier",
    "hash_ids",
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
ALIASES = {"bin_start": "time"}  # other names by which a field may be mapped

GB = 1_000_000_000
MAX_TOKENS = 10_000_000
CHUNK_BYTES = 32 << 20
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How to read one file; the defaults detect everything.

    ``mapping`` names the column of a field: ``{"arrival": "created"}``. A time column may carry its
    unit (``"created:ms"``; ns, us, ms, s, min, h, d) or be a sum of several (``"day+hour"``); a
    demand file may hold one column per series (``"requests": "chat_requests,api_requests"``).
    """

    name: str = ""  # the file's own name where it is stored under another
    format: str = "auto"  # one of FORMATS
    mapping: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None  # label for every row of a file without such a column
    region: str | None = None
    tier: str | None = None
    strict: bool = False  # refuse the file at its first rejected row
    missing: str = "gap"  # a bin the demand file does not list: "gap" (unknown) or "zero"
    bin_s: float | None = None  # bin width of a demand file; None: found in its times
    max_bytes: int = 10 * GB  # size on disk, checked before reading
    max_expanded_bytes: int = 50 * GB  # size after decompression
    max_tokens: int = MAX_TOKENS  # input or output tokens of one request
    chunk_bytes: int = CHUNK_BYTES  # read at a time; sets memory, never the result

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise IngestError(
                f"There is no format {self.format!r}; choose one of {', '.join(FORMATS)}."
            )
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
        fields = {ALIASES.get(name, name): column for name, column in self.mapping.items()}
        known = set(REQUEST_FIELDS) | set(DEMAND_FIELDS)
        for name, column in fields.items():
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
        object.__setattr__(self, "mapping", fields)

    def constant(self, label: str) -> str | None:
        """The fixed name given for ``model``, ``region`` or ``tier``."""
        return {"model": self.model, "region": self.region, "tier": self.tier}[label] or None
