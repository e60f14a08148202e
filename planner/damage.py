"""Report a damaged stored file as one sentence instead of a library's traceback."""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from planner.decoding import Decoder
from planner.errors import Damaged, IngestError, PlannerError

logger = logging.getLogger(__name__)

# Raised by Polars, NumPy and the standard library for files that were cut short or changed.
READER_ERRORS = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    zipfile.BadZipFile,
    zlib.error,
    FileNotFoundError,
    EOFError,
    KeyError,
    ValueError,
)


@contextmanager
def damage_reported(file: str, remedy: str) -> Iterator[None]:
    """Raise Damaged, naming ``file`` and ``remedy``, when a library cannot read a stored file.

    The product's own exceptions pass through.
    """
    try:
        yield
    except PlannerError:
        raise
    except READER_ERRORS as error:
        logger.error("%s cannot be read: %s", file, error)
        raise Damaged(f"{file} is damaged and cannot be read; {remedy}.") from error


def decodes(folder: Path) -> bool:
    """Return whether every Parquet file below ``folder`` can be decoded.

    Another process decodes them, because a damaged file can end the process that reads it.
    """
    try:
        for path in sorted(folder.rglob("*.parquet")):
            Decoder(path, path.name).prove()
    except IngestError:
        return False
    return folder.exists()
