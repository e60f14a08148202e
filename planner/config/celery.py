"""Create the Celery app: workers, the schedule, and the signal that a worker is ready."""

import json
import logging.config
import os
import warnings
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.platforms import SecurityWarning

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")  # Django's checks import all pages

# Celery warns root of pickled messages, which are not accepted here.
warnings.simplefilter("ignore", SecurityWarning)

app = Celery("headroom")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["planner"])


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
    """Queue again the runs of the worker that this one replaces, with how it ended."""
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
