"""Write files and folders atomically, even if several processes write the same one."""

import errno
import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ENDING = ".partial"


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` at the end of the block."""
    # A name with a dot in front is matched by no pattern for stored files.
    draft = path.with_name(f".{_unique_name(path)}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary folder that replaces ``path`` at the end of the block."""
    draft = path.with_name(_unique_name(path))
    draft.mkdir(parents=True)
    try:
        yield draft
        # rename() fails on a folder with content, so the old one is moved aside first. This is
        # repeated, since another process may have put its own folder there in between.
        while True:
            try:
                draft.rename(path)
                return
            except OSError as problem:
                has_content = problem.errno in (errno.ENOTEMPTY, errno.EEXIST)  # by system
                if not has_content:
                    raise
            aside = path.with_name(_unique_name(path))
            with suppress(FileNotFoundError):
                path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_draft(name: str) -> bool:
    """Return whether a name is that of a temporary file or folder of this module."""
    return name.startswith(".") or name.endswith(ENDING)


def final_name(name: str) -> str:
    """Return the name that a temporary folder of this module will get; other names unchanged."""
    if not name.endswith(ENDING):
        return name
    final, _, _ = name.removesuffix(ENDING).rpartition(".")
    return final


def _unique_name(path: Path) -> str:
    """Return the name of a temporary file or folder for ``path``."""
    return f"{path.name}.{uuid.uuid4().hex[:12]}{ENDING}"


def write_upload(
    path: Path, chunks: Iterable[bytes], check_size: Callable[[int], None]
) -> tuple[str, int]:
    """Write ``chunks`` to ``path``; return their SHA-256 in hexadecimal, and their size in bytes.

    Before each chunk is written, ``check_size`` gets the size so far. It raises if that is too
    large.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            size += len(chunk)
            check_size(size)
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest(), size
