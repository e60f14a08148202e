"""Where arrays lie: folders under the data directory, tables as Parquet files in them."""

from __future__ import annotations

import logging
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from django.conf import settings

from planner.errors import Damaged, NotFound

logger = logging.getLogger(__name__)

_TABLE = re.compile(r"[a-z][a-z0-9_]*")


# What the readers say of a file that is not what was written.
_UNREADABLE = (
    pl.exceptions.ComputeError,
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    EOFError,
    KeyError,
)


def data_dir() -> Path:
    return Path(settings.HEADROOM_DATA_DIR)


def folder(relative: str) -> Path:
    """The folder a row names in its ``store``; never outside the data directory."""
    base = data_dir().resolve()
    path = (base / relative).resolve()
    if not path.is_relative_to(base) or path == base:
        raise NotFound(f"{relative!r} is not a folder of the data directory.")
    return path


def remove(relative: str) -> None:
    if relative:
        shutil.rmtree(folder(relative), ignore_errors=True)


def tables_write(relative: str, tables: dict[str, pl.DataFrame]) -> None:
    where = folder(relative)
    where.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.write_parquet(where / f"{name}.parquet", compression="zstd")


def arrays_write(relative: str, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Beside the tables, for the program alone: no table of the run."""
    where = folder(relative)
    where.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(where / f"{name}.npz", **dict(arrays))  # type: ignore[arg-type]


def arrays_read(relative: str, name: str) -> dict[str, npt.NDArray[Any]]:
    """None of them where there is no such file."""
    path = folder(relative) / f"{name}.npz"
    if not path.exists():
        return {}
    with _whole(path), np.load(path, allow_pickle=False) as held:
        return dict(held)


def tables_list(relative: str) -> list[str]:
    if not relative:
        return []
    return sorted(path.stem for path in folder(relative).glob("*.parquet"))


def table_path(relative: str, name: str) -> Path:
    """The file of one table of a run; raises NotFound naming those there are."""
    if _TABLE.fullmatch(name) and name in tables_list(relative):
        return folder(relative) / f"{name}.parquet"
    known = ", ".join(tables_list(relative)) or "none"
    raise NotFound(f"There is no table {name!r} here; there are: {known}.")


def table_read(relative: str, name: str, offset: int = 0, limit: int | None = None) -> pl.DataFrame:
    """One table of a run, or ``limit`` rows of it from ``offset`` on."""
    path = table_path(relative, name)
    with _whole(path):
        return pl.scan_parquet(path).slice(offset, limit).collect()


def table_rows(relative: str, name: str) -> int:
    """How many rows a table has, without reading them."""
    path = table_path(relative, name)
    with _whole(path):
        return int(pl.scan_parquet(path).select(pl.len()).collect().item())


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """A file that a disk or a hand has spoilt is a sentence, and a line in the log."""
    try:
        yield
    except _UNREADABLE as error:
        logger.error("%s cannot be read: %s", path, error)
        raise Damaged(
            f"The table {path.stem!r} that was kept here is damaged and cannot be read; carry the "
            "run out again, or restore a backup."
        ) from error
