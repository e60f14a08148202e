"""Format lines of the log: text for people or, with HEADROOM_LOG=json, JSON for machines."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

# A context variable, so that each thread and task has its own run.
_run: ContextVar[int | None] = ContextVar("run", default=None)


@contextmanager
def logging_run(number: int) -> Iterator[None]:
    """Add the number of this run to everything that is logged within the block."""
    token = _run.set(number)
    try:
        yield
    finally:
        _run.reset(token)


class JsonLines(logging.Formatter):
    """A log formatter that writes one JSON object per line.

    Its fields are ``time`` (UTC), ``level``, ``logger`` and ``message``. Lines of a run also have
    ``run``, its number, and those of an exception ``error``, its traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        number = _run.get()
        if number is not None:
            line["run"] = number
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
