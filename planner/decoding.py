"""Rows of a Parquet file that nobody vouches for, decoded by a process that may die of them."""

from __future__ import annotations

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

from planner import decoder
from planner.errors import IngestError

logger = logging.getLogger(__name__)

PIECE = 1 << 20  # rows proved at a time


class Worker:
    """The process; ``bench/fuzz.py`` has one for many files, the product one for each."""

    def __init__(self) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter, a file of its own
            [sys.executable, "-I", decoder.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.output,
        )
        self.waiting = False  # an answer that nobody has read

    def end(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # a question that it did not live to read
                    stream.close()
        self.process.wait()
        self.output.close()


start: Callable[[], Worker] = Worker


class Decoder:
    """``columns`` that a field can be read from, ``left_out`` the others by type, and rows."""

    def __init__(self, path: Path, name: str) -> None:
        self._name, self._path = name, str(path.resolve())
        self._worker = start()
        weakref.finalize(self, self._worker.end)
        self._ask({})
        answer = self._answer()
        self.columns: tuple[str, ...] = tuple(answer["columns"])
        self.left_out: Mapping[str, str] = answer["left_out"]
        self.rows: int = answer["rows"]

    def ask(self, columns: Sequence[str], offset: int, rows: int) -> None:
        """Have rows decoded; what was asked for before and not taken is dropped."""
        if self._worker.waiting:
            self._content(self._answer())
        self._ask({"columns": list(columns), "offset": offset, "rows": rows})

    def take(self) -> pl.DataFrame:
        """What was asked for."""
        return pl.read_ipc_stream(io.BytesIO(self._content(self._answer())))

    def prove(self) -> None:
        """Have all of it decoded, and nothing sent; raises IngestError where that cannot be."""
        for offset in range(0, self.rows, PIECE):
            self._ask({"offset": offset, "rows": PIECE})
            self._answer()

    def _ask(self, question: dict[str, Any]) -> None:
        out = cast(io.BufferedWriter, self._worker.process.stdin)
        try:
            out.write(json.dumps({"path": self._path, **question}).encode() + b"\n")
            out.flush()
        except BrokenPipeError:
            raise self._died() from None
        self._worker.waiting = True

    def _answer(self) -> dict[str, Any]:
        line = cast(io.BufferedReader, self._worker.process.stdout).readline()
        self._worker.waiting = False
        if not line.endswith(b"\n"):
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            logger.warning("%s: %s", self._name, answer["error"])
            raise self._refused(answer["error"].split("\n", 1)[0].strip().rstrip(".")[:200])
        return answer

    def _content(self, answer: dict[str, Any]) -> bytes:
        content = cast(io.BufferedReader, self._worker.process.stdout).read(answer["bytes"])
        if len(content) < answer["bytes"]:
            raise self._died()
        return content

    def _died(self) -> IngestError:
        """Of a limit, or of what the file holds."""
        status = self._worker.process.wait()
        self._worker.output.seek(0)
        output = self._worker.output.read(100_000).decode("utf-8", "replace")
        first = output.split("\n", 1)[0]
        logger.warning("%s: its decoder ended with %d: %s", self._name, status, first)
        if status == -signal.SIGXCPU:
            cause = f"a part of it took more than {decoder.ANSWER_CPU_S} s to decode"
        elif "memory allocation" in output or status == -signal.SIGKILL:
            cause = f"it asks for more than {decoder.MEMORY_BYTES >> 30} GB of memory at once"
        else:
            cause = "what it holds ended its decoder"
        return self._refused(cause)

    def _refused(self, cause: str) -> IngestError:
        return IngestError(
            f"{self._name} is not a readable Parquet file ({cause}); write it again."
        )
