"""Settings of gunicorn, beside those of its command line."""

from typing import Any

from planner.services.warming import warm_soon


def post_worker_init(worker: Any) -> None:
    warm_soon()
