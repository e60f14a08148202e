"""Lines of the log: for people or, by HEADROOM_LOG=json, one JSON object each for machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_run: ContextVar[int | None] = ContextVar("run", default=None)


@contextmanager
def about_run(number: int) -> Iterator[None]:
    """Whatever is logged within is about this run, by whichever part of the program."""
    token = _run.set(number)
    try:
        yield
    finally:
        _run.reset(token)


class JsonLines(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message``; ``run`` and ``error`` where there are."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (number := _run.get()) is not None:
            line["run"] = number
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
