"""Length and CRC-32 of what is kept, in the folder it lies in: a file that a disk or a hand has
spoilt is told of before it is read. Polars takes the lengths that a file states for granted, and
ends the process upon a spoilt one. What an earlier version left without a seal is sealed when it is
first read, a table once a process of its own has decoded it.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from planner.decoding import Decoder
from planner.errors import Damaged, IngestError
from planner.whole import is_draft, whole_file

logger = logging.getLogger(__name__)

SEAL = "seal.json"
PIECE = 1 << 20
Mark = tuple[int, int]  # bytes, CRC-32


def seal(folder: Path, *names: str) -> None:
    """Mark files of ``folder`` as they are now, all where none is named; to be called by whoever
    has just written them."""
    marks = _marks(folder) if names else {}
    for name in names or _names(folder):
        marks[name] = mark_of(folder / name)
    with whole_file(folder / SEAL) as draft:
        draft.write_text(json.dumps(marks), encoding="ascii")


def checked(folder: Path, name: str, remedy: str) -> Path:
    """The file, which is what was written; raises Damaged, with the ``remedy`` in its sentence."""
    path, mark = folder / name, _marks(folder).get(name)
    try:
        mark_now = mark_of(path)
    except FileNotFoundError:
        raise _damaged(path, "is not there", remedy) from None
    if mark is None:
        proved(path, remedy)
        with suppress(OSError):  # a folder that may only be read
            seal(folder, name)
    elif mark_now != tuple(mark):
        raise changed(path, remedy)
    return path


def changed(path: Path, remedy: str) -> Damaged:
    """The sentence of a file that has another mark than it was given."""
    return _damaged(path, "is not what was written: a disk or a hand has changed it", remedy)


def proved(path: Path, remedy: str) -> None:
    """Raises Damaged where a table that has no mark cannot be decoded."""
    if path.suffix != ".parquet":  # readers of all else refuse what is spoilt, and live
        return
    try:
        Decoder(path, path.name).prove()
    except IngestError:
        raise _damaged(path, "cannot be decoded any more", remedy) from None


def names_sealed(folder: Path) -> tuple[str, ...]:
    """Files that were written, whether they are there or not."""
    return tuple(_marks(folder))


def intact(folder: Path) -> bool:
    """Whether all that was written is there as it was."""
    try:
        for name in names_sealed(folder):
            checked(folder, name, "")
    except Damaged:
        return False
    return folder.exists()


def _damaged(path: Path, how: str, remedy: str) -> Damaged:
    logger.error("%s %s", path, how)
    return Damaged(f"The file {path.name} that was kept here {how}; {remedy}.")


def _names(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not is_draft(path.name))
    return [path.relative_to(folder).as_posix() for path in files if path.name != SEAL]


def _marks(folder: Path) -> dict[str, Mark]:
    """None of them where the seal itself is spoilt: then what is kept is read as it is."""
    try:
        return dict(_parsed(folder / SEAL, *_as_it_is(folder / SEAL)))
    except (FileNotFoundError, ValueError):
        return {}


def mark_of(path: Path) -> Mark:
    """Of the file as it is now."""
    return _marked(path, *_as_it_is(path))


def _as_it_is(path: Path) -> tuple[int, int, int]:
    now = path.stat()
    return now.st_size, now.st_mtime_ns, now.st_ino


@lru_cache(maxsize=64)
def _parsed(path: Path, size: int, mtime_ns: int, inode: int) -> Mapping[str, Mark]:
    marks = json.loads(path.read_text(encoding="ascii"))
    return marks if isinstance(marks, dict) else {}


@lru_cache(maxsize=4096)
def _marked(path: Path, size: int, mtime_ns: int, inode: int) -> Mark:
    """Computed once a process for a file as it is; some GB a second."""
    total = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            total = zlib.crc32(piece, total)
    return size, total
