"""Files and folders that appear whole or not at all, however many processes write the same one."""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ENDING = ".partial"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft to write, of a name that nobody else has; it takes the place of ``path`` at the end.
    Its name begins with a dot: no pattern of what is kept beside it finds it."""
    draft = path.with_name(f".{_own(path)}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """The same of a folder, in place of one that was there before."""
    draft = path.with_name(_own(path))
    draft.mkdir(parents=True)
    try:
        yield draft
        _take_its_place(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_draft(name: str) -> bool:
    return name.startswith(".") or name.endswith(ENDING)


def meant_for(name: str) -> str:
    """The name that a draft's folder is to have."""
    return name.removesuffix(ENDING).rpartition(".")[0] if name.endswith(ENDING) else name


def _own(path: Path) -> str:
    return f"{path.name}.{uuid.uuid4().hex[:12]}{ENDING}"


def _take_its_place(draft: Path, path: Path) -> None:
    """No system replaces a folder that holds something: what is there is put aside first, and again
    where another process has just put its own there."""
    while True:
        try:
            draft.rename(path)
        except OSError as problem:
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
        aside = path.with_name(_own(path))
        with suppress(FileNotFoundError):
            path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
