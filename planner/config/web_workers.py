"""Settings of gunicorn, beside those of its command line."""

from typing import Any

from planner.config.leash import die_with_parent
from planner.services.warming import warm_soon


def post_fork(server: Any, worker: Any) -> None:
    die_with_parent()  # else one whose server was killed holds the port until it looks for it


def post_worker_init(worker: Any) -> None:
    warm_soon()
