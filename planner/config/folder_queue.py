"""Implement a message broker without a server: a folder with one file per message.

Kombu's own filesystem transport can read a file that is still being written, and loses the messages
of a killed worker. Here a message appears by an atomic rename. A worker takes a message by a lock
on its file. The kernel drops the lock when the worker dies, which puts the message back, and
acknowledging removes the file. Delivery is at least once.

The broker carries tasks to one folder's workers only. It has no fanout, so there is no remote
control and there are no events.
"""

import base64
import fcntl
import json
import logging
import os
import time
from datetime import datetime
from pathlib import Path
from queue import Empty
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

from kombu.transport import virtual

logger = logging.getLogger(__name__)


class TakenMessage(NamedTuple):
    """A message that a worker took and has not acknowledged."""

    path: Path
    descriptor: int  # of the locked file


class Channel(virtual.Channel):
    """A Kombu channel whose queues are subfolders of the ``folder`` transport option."""

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)  # type: ignore[no-untyped-call]
        self._folder = Path(connection.client.transport_options["folder"])
        self._taken: dict[str, TakenMessage] = {}  # by delivery tag

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        super().basic_ack(delivery_tag, multiple)  # type: ignore[no-untyped-call]
        self._finish(delivery_tag)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        super().basic_reject(delivery_tag, requeue)  # type: ignore[no-untyped-call]
        if not requeue:
            self._finish(delivery_tag)

    def _queue_folder(self, queue: str) -> Path:
        """Return the folder of a queue's messages, created if needed."""
        folder = self._folder / queue
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def _messages(self, queue: str) -> list[Path]:
        """Return the files of a queue's messages, oldest first."""
        return sorted(self._queue_folder(queue).glob("*.json"))

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        """Write a message to a new file."""
        path = self._queue_folder(queue) / f"{time.time_ns():020}-{uuid4().hex}.json"
        # Renamed once it is complete: nobody reads a file with another ending.
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(message), encoding="utf-8")
        unfinished.rename(path)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """Return the oldest message that no other worker holds; raise Empty if there is none."""
        for path in self._messages(queue):
            descriptor = _lock(path)
            if descriptor is None:
                continue
            message = _read(path)
            if message is None:
                _unlock(descriptor)
                continue
            delivery_tag = message["properties"]["delivery_tag"]
            self._taken[delivery_tag] = TakenMessage(path, descriptor)
            return message
        raise Empty

    def _restore(self, message: Any) -> None:
        """Put a taken message back by unlocking its file."""
        taken = self._taken.pop(message.delivery_tag)
        _unlock(taken.descriptor)

    def _finish(self, delivery_tag: str) -> None:
        """Remove the file of a message that was handled, and its lock."""
        taken = self._taken.pop(delivery_tag)
        taken.path.unlink(missing_ok=True)
        _unlock(taken.descriptor)

    def _size(self, queue: str) -> int:
        return len(self._messages(queue))

    def _purge(self, queue: str) -> int:
        """Remove the messages that no worker holds; return how many."""
        removed = 0
        for path in self._messages(queue):
            descriptor = _lock(path)
            if descriptor is not None:
                path.unlink()
                _unlock(descriptor)
                removed += 1
        return removed


class Transport(virtual.Transport):
    """A Kombu transport; name it in the broker URL by its module path."""

    Channel = Channel
    driver_type = "folder"
    driver_name = "folder"
    default_connection_params: ClassVar[dict[str, Any]] = {}  # no host to connect to

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Wait only briefly, whatever the ``timeout``, so that a worker notices a stop signal."""
        super().drain_events(  # type: ignore[no-untyped-call]
            connection, timeout=self.polling_interval
        )


def _read(path: Path) -> dict[str, Any] | None:
    """Return the message in a file; if it cannot be read, rename the file and return None.

    A full disk or a power cut can truncate a message, which would then stop every worker. The sweep
    of runs sends the message again.
    """
    try:
        message = json.loads(path.read_text(encoding="utf-8"))
        _check(message)
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        logger.warning(
            "the message %s cannot be read (%s); it is set aside", path.name, type(problem).__name__
        )
        path.rename(path.with_suffix(".unreadable"))
        return None
    return dict(message)


def _check(message: Any) -> None:
    """Raise an error for a message that Kombu or Celery cannot read, which would end the worker."""
    properties = message["properties"]
    headers = message["headers"]
    for value, kind in (
        (message["body"], str),
        (headers, dict),
        (message["content-type"], str),
        (message["content-encoding"], str),
        (properties["delivery_tag"], str),
        (properties["delivery_info"], dict),
    ):
        if not isinstance(value, kind):
            raise TypeError
    if properties.get("body_encoding", "base64") != "base64":
        raise ValueError
    base64.b64decode(message["body"], validate=True)
    if "task" in headers:
        _check_task(headers)


def _check_task(headers: dict[str, Any]) -> None:
    """Raise an error for headers of a task that Celery cannot read."""
    if not isinstance(headers["task"], str) or not isinstance(headers["id"], str):
        raise TypeError
    # These conversions raise an error for a wrong value.
    int(headers.get("retries") or 0)
    hard_limit_s, soft_limit_s = headers.get("timelimit") or (None, None)
    float(hard_limit_s or 0.0)
    float(soft_limit_s or 0.0)
    for name in ("eta", "expires"):
        if headers.get(name) is not None:
            datetime.fromisoformat(headers[name])


def _lock(path: Path) -> int | None:
    """Lock a file and return its descriptor; None if somebody holds the lock, or it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder may have removed the file between our opening and locking it.
        path.stat()
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        return None
    return descriptor


def _unlock(descriptor: int) -> None:
    """Unlock and close a file."""
    # close() does not unlock the file if a child that was forked meanwhile has it open too.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
