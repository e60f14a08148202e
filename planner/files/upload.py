"""Write an upload to a file, with its digest and a limit on its size."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path


def write_upload(
    path: Path, chunks: Iterable[bytes], check_size: Callable[[int], None]
) -> tuple[str, int]:
    """Write ``chunks`` to ``path``; return their SHA-256 in hexadecimal, and their bytes.

    ``check_size`` gets the bytes so far before each chunk is written, and raises if they are too
    many.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            size += len(chunk)
            check_size(size)
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest(), size
