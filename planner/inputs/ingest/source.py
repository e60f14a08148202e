"""Read the bytes of a file: size, compression, hash, and content in small pieces.

Nothing here trusts the file. Its size is checked before reading, its expansion during reading.
"""

import codecs
import hashlib
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from planner.errors import IngestError
from planner.inputs.ingest.options import GB, IngestOptions

EXTENSIONS = (".csv", ".tsv", ".txt", ".log", ".jsonl", ".ndjson", ".json", ".parquet")
COMPRESSED = (".gz", ".zst")
_WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
KINDS_OF_FILE = f"{', '.join(EXTENSIONS)}, each also {' or '.join(COMPRESSED)}"
GZIP, ZSTD, PLAIN = "gzip", "zstd", "none"
_COMPRESSIONS = {b"\x1f\x8b": GZIP, b"\x28\xb5\x2f\xfd": ZSTD}  # by the first bytes of a file
PARQUET_MAGIC = b"PAR1"
UTF16 = (b"\xff\xfe", b"\xfe\xff")

CREDIBLE_BYTES, CREDIBLE_RATIO = 64 << 20, 200  # real traces compress 5 to 30 times
_PIECE_BYTES = 1 << 20
_PACKED_PIECE_BYTES = 1 << 16
_STEP_BYTES = 2048  # a zstd block of a few bytes may expand to 128 KiB; keep a burst small
_UNPACKERS: Mapping[str, Callable[[], Any]] = {
    GZIP: lambda: zlib.decompressobj(wbits=31),  # 31: gzip format
    ZSTD: lambda: zstandard.ZstdDecompressor().decompressobj(),
}
_FOREIGN = {
    b"PK\x03\x04": "a ZIP archive (or a spreadsheet). Unpack it or save it as CSV",
    b"BZh": "a bzip2 file. Unpack it or compress it with gzip or zstd",
    b"\xfd7zXZ": "an xz file. Unpack it or compress it with gzip or zstd",
    b"%PDF": "a PDF document. Export the table as CSV",
    b"SQLite format 3": "an SQLite database. Export the table as CSV",
}


def check_regular(path: Path | str, name: str = "") -> int:
    """Return the size in bytes of a readable regular file; raise IngestError for others."""
    name = name or str(path)
    try:
        status = Path(path).stat()
        if stat.S_ISREG(status.st_mode):
            Path(path).open("rb").close()
            return status.st_size
    except FileNotFoundError:
        raise IngestError(f"{name}: there is no such file. Check the path.") from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "its path is none"
        raise IngestError(f"{name} cannot be opened: {cause}.") from None
    if stat.S_ISDIR(status.st_mode):
        raise IngestError(f"{name} is a folder. Give the path of one file.")
    raise IngestError(f"{name} is a pipe, a socket or a device. Save its output as a file.")


def sha256_file(path: Path | str) -> str:
    """Return the SHA-256 of the file as stored, in hexadecimal."""
    check_regular(path)
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_name(name: str) -> str:
    """Return the end of a file name, for a temporary copy; the extensions stay."""
    return Path(name).name.encode("utf-8", "replace")[-60:].decode("utf-8", "ignore")


def base_name(name: str) -> str:
    """Return ``name`` without its extensions: ``week`` for ``week.csv.gz``."""
    stem = Path(name).name
    for extensions in (COMPRESSED, EXTENSIONS):
        for extension in extensions:
            if stem.lower().endswith(extension):
                stem = stem[: -len(extension)] or stem
                break
    return stem


class Expansion:
    """The unpacked size of a file of ``size`` bytes, with a limit against decompression bombs."""

    def __init__(self, name: str, size: int, limit: int) -> None:
        self._name, self._size, self._limit = name, size, limit
        self._credible = max(CREDIBLE_BYTES, CREDIBLE_RATIO * size)
        self._bytes = 0

    def add(self, more: int) -> None:
        """Count ``more`` unpacked bytes; raise IngestError beyond the limits."""
        self._bytes += more
        if self._bytes > self._limit:
            raise IngestError(
                f"{self._name} expands to more than {self._limit / GB:g} GB "
                f"(from {self._size / GB:.3g} GB). Split it if it is a real trace."
            )
        if self._bytes > self._credible:
            raise IngestError(
                f"{self._name} expands more than {CREDIBLE_RATIO} times, to over "
                f"{self._credible / GB:.1f} GB, more than any trace. Give it unpacked."
            )


class Source:
    """One file that is read once, front to back, in pieces of at most about 1 MiB.

    ``fraction`` is the share of the stored bytes that has been read. ``digest`` is the SHA-256 of
    the stored bytes, valid after :meth:`pieces` is exhausted.
    """

    def __init__(
        self, path: Path | str, options: IngestOptions, extensions: tuple[str, ...] = EXTENSIONS
    ) -> None:
        self._extensions = extensions
        self.path = Path(path)
        self.name = options.name or self.path.name
        self._options = options
        self._piece_bytes = min(_PIECE_BYTES, options.chunk_bytes)
        self._hash = hashlib.sha256()
        self._bytes_read = 0
        self.bytes = self._check()
        with self.path.open("rb") as file:
            head = file.read(4)
        by_magic = (kind for magic, kind in _COMPRESSIONS.items() if head.startswith(magic))
        self.compression = next(by_magic, PLAIN)

    def _check(self) -> int:
        """Check extension and size, and return the size in bytes."""
        size = check_regular(self.path, self.name)
        lower = self.name.lower().removesuffix(".gz").removesuffix(".zst")
        if lower.endswith(_WORKBOOKS):
            raise IngestError(f"{self.name} is a workbook. Save its sheet as CSV (UTF-8).")
        if not lower.endswith(self._extensions):
            raise IngestError(
                f"{self.name} has an unknown extension. Name it {', '.join(self._extensions)}."
            )
        if size == 0:
            raise IngestError(f"{self.name} is empty. Export it again.")
        limit = self._options.max_bytes
        if size > limit:
            raise IngestError(
                f"{self.name} is {size / GB:.1f} GB, over the quota of {limit / GB:.1f} GB. "
                "Split it."
            )
        return size

    @property
    def fraction(self) -> float:
        return min(1.0, self._bytes_read / self.bytes)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        """Yield the decompressed content in non-empty pieces.

        Raise IngestError for damaged compression, and for too much content.
        """
        expansion = Expansion(self.name, self.bytes, self._options.max_expanded_bytes)
        with self.path.open("rb") as file:
            pieces = self._stored_bytes(file)
            if self.compression != PLAIN:
                pieces = _unpack(pieces, _UNPACKERS[self.compression], self._piece_bytes)
            try:
                for piece in pieces:
                    expansion.add(len(piece))
                    yield piece
            except EOFError:
                raise IngestError(
                    f"{self.name} is cut short ({self.compression}). Copy or upload it again."
                ) from None
            except (zlib.error, zstandard.ZstdError) as error:
                raise IngestError(
                    f"{self.name} is damaged ({self.compression}: {error}). Copy it again."
                ) from None

    def _stored_bytes(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the bytes as stored; count them and add them to the hash."""
        size = self._piece_bytes if self.compression == PLAIN else _PACKED_PIECE_BYTES
        while raw := file.read(size):
            self._hash.update(raw)
            self._bytes_read += len(raw)
            yield raw


def _unpack(
    packed_pieces: Iterator[bytes], new_unpacker: Callable[[], Any], piece_bytes: int
) -> Iterator[bytes]:
    """Yield the unpacked gzip members or zstd frames in pieces; raise EOFError if cut short.

    Only a few packed bytes are unpacked at a time, against decompression bombs.
    """
    unpacker = new_unpacker()
    for packed in packed_pieces:
        for start in range(0, len(packed), _STEP_BYTES):
            data = packed[start : start + _STEP_BYTES]
            while data:
                if unpacker.eof:
                    data = data.lstrip(b"\0")  # padding between or after members is allowed
                    if not data:
                        break
                    unpacker = new_unpacker()
                unpacked = unpacker.decompress(data)
                for first in range(0, len(unpacked), piece_bytes):
                    yield unpacked[first : first + piece_bytes]
                data = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise EOFError


def as_utf8(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield text as UTF-8; UTF-16 text is recognised by its byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-16")("strict")
    try:
        for piece in pieces:
            if text := decoder.decode(piece):
                yield text.encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError:
        raise IngestError(f"{name} is damaged UTF-16 text. Save the file as UTF-8.") from None


def foreign_file_type(head: bytes) -> str | None:
    """Return what kind of file starts with ``head`` and the remedy; None if it may be a table."""
    for first_bytes, type_and_remedy in _FOREIGN.items():
        if head.startswith(first_bytes):
            return type_and_remedy
    return None
