"""Send messages to two queues: short work that people wait for, and long simulations.

A message is a turn, not a run: its receiver takes the run whose turn it is
(``planner.services.run_queue``). A worker of the short queue never takes a long run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError as BrokerAway

from planner.models import Run

logger = logging.getLogger(__name__)

SHORT, LONG = "short", "long"
SHORT_KINDS = (Run.Kind.INGEST, Run.Kind.SIZE, Run.Kind.FORECAST)
EXECUTE = "planner.tasks.run_execute"  # by name, because services must not import tasks


def queue_of(kind: str) -> str:
    """Return the queue of a kind of run."""
    return SHORT if kind in SHORT_KINDS else LONG


def notify_workers(
    run_id: int, queue: str, *, times: int = 1, on_failure: Callable[[], object] | None = None
) -> None:
    """Send messages to ``queue`` once the transaction is committed; too many do no harm.

    ``on_failure`` is called if the broker does not answer.
    """

    def send() -> None:
        try:
            for _ in range(times):
                current_app.send_task(EXECUTE, args=[run_id, queue], queue=queue)
        except BrokerAway as problem:
            logger.warning("run %s waits for the broker: %s", run_id, problem)
            if on_failure is not None:
                on_failure()

    transaction.on_commit(send)
