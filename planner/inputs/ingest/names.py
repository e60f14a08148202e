"""List the well-known column names of each field."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.errors import IngestError

MAX_COLUMNS = 1_000
MAX_NAME = 1_000  # characters

DECLARED = tomllib.loads((Path(__file__).parent / "vocabulary.toml").read_text(encoding="utf-8"))
SYNONYMS: Mapping[str, tuple[str, ...]] = {  # field to well-known names of its columns
    field: tuple(names.split()) for field, names in DECLARED["columns"].items()
}


# Patterns in names: of columns with a meaning, of columns per service, and of rates.
NAMED, WIDE, RATE_NAMES = (
    {str(name): re.compile(text, re.IGNORECASE) for name, text in DECLARED[table].items()}
    for table in ("patterns", "wide", "rates")
)


def compact_name(name: str) -> str:
    """Return a column's name for comparisons: ``requesttokens`` for ``Request tokens``."""
    return re.sub(r"[\W_]", "", name.lower())


def check_names(columns: Sequence[str], name: str) -> None:
    """Raise IngestError for too many or too long column names, which later checks compare."""
    if len(columns) > MAX_COLUMNS:
        raise IngestError(
            f"{name} has {len(columns):,} columns and {MAX_COLUMNS:,} are allowed. Drop others."
        )
    longest = max(columns, key=len, default="")
    if len(longest) > MAX_NAME:
        raise IngestError(
            f"{name}: a column's name has {len(longest):,} characters ({longest[:40]!r}...) and "
            f"{MAX_NAME:,} are allowed. Check its delimiter and its first line."
        )
