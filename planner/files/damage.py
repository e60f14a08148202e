"""Report a damaged stored file as one sentence instead of a library's traceback."""

import logging
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from planner.errors import EXPECTED, DamagedFile, IngestError
from planner.files.parquet_rows import Decoder, Worker

logger = logging.getLogger(__name__)

# Errors of Polars, and of NumPy for archives of arrays, for truncated or changed files.
TABLE_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, FileNotFoundError)
ARRAY_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError)


@contextmanager
def damage_reported(
    file: str, remedy: str, errors: tuple[type[BaseException], ...] = TABLE_ERRORS
) -> Iterator[None]:
    """Raise DamagedFile if the block raises one of ``errors``, because a stored file is damaged.

    ``file`` and ``remedy`` are words of the message. Expected errors are raised unchanged.
    """
    try:
        yield
    except EXPECTED:  # a PlannerError is a ValueError, which may be among ``errors``
        raise
    except errors as error:
        logger.exception("%s cannot be read", file)
        raise DamagedFile(f"{file} is damaged and cannot be read; {remedy}.") from error


def all_decode(folder: Path) -> bool:
    """Return whether a folder exists and every Parquet file below it can be decoded.

    A separate process decodes them, because a damaged file can crash its process.
    """
    paths = sorted(folder.rglob("*.parquet"))
    if not paths:
        return folder.exists()
    worker = Worker()
    try:
        for path in paths:
            Decoder(path, path.name, worker).check()
    except IngestError:
        return False
    finally:
        worker.end()
    return True
