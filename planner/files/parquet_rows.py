"""Decode rows of an untrusted Parquet file in a separate process, which may crash on them."""

import io
import json
import logging
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import polars as pl

from planner.errors import IngestError
from planner.files import parquet_decoder

logger = logging.getLogger(__name__)

CHECKED_ROWS = 1 << 20  # rows that ``check`` decodes at a time


class Worker:
    """A process that decodes Parquet files; see ``parquet_decoder`` for requests and answers."""

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter, a file of its own
            [sys.executable, "-I", parquet_decoder.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )
        self.has_unread_answer = False

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # it ended before it read a request
                    stream.close()
        self.process.wait()
        self.errors.close()


start: Callable[[], Worker] = Worker


class Decoder:
    """A Parquet file that another process decodes.

    ``columns`` are the readable columns, ``left_out`` the types of the others by name, and ``rows``
    is the number of rows. A given ``worker`` is ended by the caller, since it may decode other
    files too. Methods raise IngestError if the file cannot be read.
    """

    def __init__(self, path: Path, name: str, worker: Worker | None = None) -> None:
        self._name, self._path = name, str(path.resolve())
        self._worker = worker or start()
        if worker is None:
            weakref.finalize(self, self._worker.end)
        self._send({})
        answer = self._answer()
        self.columns: tuple[str, ...] = tuple(answer["columns"])
        self.left_out: Mapping[str, str] = answer["left_out"]
        self.rows: int = answer["rows"]

    def request_rows(self, columns: Sequence[str], offset: int, rows: int) -> None:
        """Begin to decode ``rows`` rows; the answer to an earlier request is discarded."""
        if self._worker.has_unread_answer:
            self._content(self._answer())
        self._send({"columns": list(columns), "offset": offset, "rows": rows})

    def take_rows(self) -> pl.DataFrame:
        """Return the rows that were requested last."""
        return pl.read_ipc_stream(io.BytesIO(self._content(self._answer())))

    def check(self) -> None:
        """Decode the whole file to check it; raise IngestError if that fails."""
        for offset in range(0, self.rows, CHECKED_ROWS):
            self._send({"offset": offset, "rows": CHECKED_ROWS})
            self._answer()

    def _send(self, request: dict[str, Any]) -> None:
        """Send a request to the process; raise IngestError if it has ended."""
        stdin = cast(io.BufferedWriter, self._worker.process.stdin)
        line = json.dumps({"path": self._path, **request})
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._process_error() from None
        self._worker.has_unread_answer = True

    def _answer(self) -> dict[str, Any]:
        """Return the answer of the process; raise IngestError for an unreadable file."""
        line = cast(io.BufferedReader, self._worker.process.stdout).readline()
        self._worker.has_unread_answer = False
        if not line.endswith(b"\n"):  # the process ended before
            raise self._process_error()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            error: str = answer["error"]
            logger.warning("%s: %s", self._name, error)
            first_line = error.partition("\n")[0]
            raise self._unreadable_error(first_line.strip().rstrip(".")[:200])
        return answer

    def _content(self, answer: dict[str, Any]) -> bytes:
        """Return the bytes that follow an answer; raise IngestError if the process ended."""
        content = cast(io.BufferedReader, self._worker.process.stdout).read(answer["bytes"])
        if len(content) < answer["bytes"]:
            raise self._process_error()
        return content

    def _process_error(self) -> IngestError:
        """Return the error for a process that hit a limit, or crashed on the file's content."""
        status = self._worker.process.wait()
        self._worker.errors.seek(0)
        messages = self._worker.errors.read(100_000).decode("utf-8", "replace")
        first_line = messages.partition("\n")[0]
        logger.warning("%s: its decoder ended with %d: %s", self._name, status, first_line)
        if status == -signal.SIGXCPU:
            cause = f"a part of it took more than {parquet_decoder.ANSWER_CPU_S} s to decode"
        elif "memory allocation" in messages or status == -signal.SIGKILL:
            limit_gb = parquet_decoder.MEMORY_BYTES >> 30
            cause = f"it asks for more than {limit_gb} GB of memory at once"
        else:
            cause = "its content crashed the decoder"
        return self._unreadable_error(cause)

    def _unreadable_error(self, cause: str) -> IngestError:
        """Return the error for a file that is not readable as Parquet."""
        return IngestError(
            f"{self._name} is not a readable Parquet file ({cause}). Write it again."
        )
