"""Send the messages that start Celery tasks."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any


class BrokerAway(Exception):
    """The queue of messages cannot be reached."""


def send_task(
    name: str, *, args: Sequence[Any], queue: str | None = None, expires: float | None = None
) -> None:
    """Queue the task ``name`` with ``args``; a message expires after ``expires`` seconds.

    Without ``queue``, it goes to the one that Celery's settings name. Raises BrokerAway.
    """
    # Celery takes a tenth of a second to import, and most commands send nothing.
    from kombu.exceptions import OperationalError

    # Celery's current app is one per thread, so it may be another one here.
    app = import_module("planner.config.celery").app
    try:
        app.send_task(name, args=args, queue=queue, expires=expires)
    except OperationalError as problem:
        raise BrokerAway(str(problem)) from problem
