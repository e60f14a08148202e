"""Wait for a database that is being restarted."""

import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection

T = TypeVar("T")
MAX_WAIT_S = 30.0


def with_database_retries(action: Callable[[], T]) -> T:
    """Return ``action()``; repeat it while the database does not respond, for MAX_WAIT_S at most.

    After that, raise the error of the database. Within a transaction, raise it at once, since the
    transaction is lost.
    """
    give_up_s = time.monotonic() + MAX_WAIT_S
    while True:
        try:
            return action()
        except (OperationalError, InterfaceError):
            if connection.in_atomic_block or time.monotonic() > give_up_s:
                raise
            # Django opens a new connection at the next query; the old one stays broken.
            connection.close()
            time.sleep(0.5)
