"""Create the Celery app: workers, the schedule, and the signal that a worker is ready."""

import json
import logging.config
import os
import warnings
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.platforms import SecurityWarning
from celery.schedules import crontab
from kombu.entity import Exchange, Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")  # Django's checks import all pages

# Celery warns root of pickled messages, which are not accepted here.
warnings.simplefilter("ignore", SecurityWarning)

app = Celery("headroom")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["planner"])
# "short" has work that people wait for, "long" has simulations. By default a worker takes both.
QUEUES = ("short", "long")
app.conf.task_queues = [
    Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]
    for name in QUEUES
]
# Messages expire, so that they do not accumulate while no worker is free.
app.conf.beat_schedule = {
    name: {
        "task": f"planner.tasks.{name.replace('-', '_')}",
        "schedule": every,  # seconds, or times in UTC
        "options": {"expires": expires_s},
    }
    for name, every, expires_s in (
        ("notices-sweep", 60.0, 60.0),
        ("schedules-tick", 30.0, 30.0),
        ("digests-send", crontab(minute=0, hour=6, day_of_week=1), 86_400.0),  # Mondays
        ("outcomes-tick", 600.0, 600.0),
        ("sources-read", 10.0, 10.0),
        ("retention-sweep", crontab(minute=30, hour=3), 3600.0),
        ("orphans-sweep", 600.0, 600.0),
    )
} | {
    f"runs-sweep-{queue}": {
        "task": "planner.tasks.runs_sweep",
        "args": [queue],
        "schedule": 10.0,
        "options": {"expires": 10.0, "queue": queue},
    }
    for queue in QUEUES
}


def _load_settings(**_: Any) -> None:
    """Load Django's settings when Celery is configured; wrong settings end the process."""
    from django.conf import settings

    from planner.config.startup_checks import exit_with_sentence

    with exit_with_sentence():
        settings.INSTALLED_APPS  # noqa: B018 - loads all of them


def _check_database(**_: Any) -> None:
    """End a worker or the scheduler at its start if the database does not fit this version."""
    from planner.config.startup_checks import check_migrations, exit_with_sentence

    with exit_with_sentence():
        check_migrations()


def _use_django_logging(**_: Any) -> None:
    """Set up logging as in all processes; Celery sets up none if this handler exists."""
    from django.conf import settings

    logging.config.dictConfig(settings.LOGGING)


def _report_predecessor(**_: Any) -> None:
    """Queue the runs of the worker that this one replaces again, and record why it ended.

    The supervisor passes the worker and the cause in HEADROOM_WORKER_ENDED; empty: there is none.
    """
    predecessor = os.environ.pop("HEADROOM_WORKER_ENDED", "")
    if not predecessor:
        return
    from django.db import Error

    from planner.services.database_retry import with_database_retries
    from planner.services.runs import WorkerEnd, worker_ended

    ended = json.loads(predecessor)
    worker, end = ended["worker"], WorkerEnd(ended["cause"])
    try:
        with_database_retries(lambda: worker_ended(worker=worker, end=end))
    except Error as problem:  # the sweep will take its runs up later
        logging.getLogger(__name__).warning("how a worker ended is not recorded: %s", problem)


def _tell_ready(**_: Any) -> None:
    """Create the file HEADROOM_WORKER_READY, if set, for which health checks wait."""
    ready_file = os.environ.get("HEADROOM_WORKER_READY")
    if ready_file:
        Path(ready_file).touch()


app.on_configure.connect(_load_settings)
signals.worker_init.connect(_check_database)
signals.beat_init.connect(_check_database)
signals.setup_logging.connect(_use_django_logging)
signals.worker_ready.connect(_report_predecessor)
signals.worker_ready.connect(_tell_ready)
