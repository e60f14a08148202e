"""Configure gunicorn, in addition to its command line."""

from functools import partial
from typing import Any

from gunicorn import util

from planner.config.child_processes import die_with_parent
from planner.config.public_addresses import MAX_BODY_BYTES_SIGNED_OUT
from planner.services.warm_up import warm_soon

# Before gunicorn closes a connection it reads up to 64 KB for up to 2 s, in the one thread that
# accepts connections. A refused client needs less to see the answer.
util.close_graceful = partial(util.close_graceful, timeout=0.5, max_drain=16_384)


def pre_request(worker: Any, request: Any) -> None:
    """Close the connection after a request whose body is large or of unknown length.

    To reuse the connection, gunicorn would first read the whole body, even if the application
    refused it.
    """
    headers = dict(request.headers)
    body_bytes = int(headers.get("CONTENT-LENGTH", "0"))
    if "TRANSFER-ENCODING" in headers or body_bytes > MAX_BODY_BYTES_SIGNED_OUT:
        request.force_close()


def post_fork(server: Any, worker: Any) -> None:
    """Have a worker end with its server."""
    die_with_parent()  # otherwise a worker of a killed server holds the port for a while


def post_worker_init(worker: Any) -> None:
    """Load in the background what the first requests of a worker need."""
    warm_soon()
