"""Answer load balancers and monitors: whether the process answers, can serve, and runs get done."""

from datetime import timedelta

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from planner.config.startup_checks import serves_while_upgraded, unknown_migrations
from planner.models import Run
from planner.version import VERSION

WAITS_S = 90.0  # work counts as stalled if a run waits so long and no other run progresses


@never_cache
@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """Answer 200; a process that does not answer should be restarted."""
    return JsonResponse({"status": "ok", "version": VERSION})


@never_cache
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """Answer 200 if the database answers and fits this version, else 503: send no requests here.

    An upgrade migrates the database first. Processes of the old version that run already stay ready
    until they are replaced.
    """
    try:
        executor = MigrationExecutor(connection)
        latest_migrations = executor.loader.graph.leaf_nodes()
        missing = executor.migration_plan(latest_migrations)
        unknown = unknown_migrations()
    except DatabaseError:
        return _health_response("down", database="down")
    if unknown:
        status = "ok" if serves_while_upgraded() else "down"
        return _health_response(status, database="migrated by a newer version. Start that version")
    if missing:
        return _health_response("down", database="migrations are missing. Run manage.py migrate")
    return _health_response("ok", database="ok")


@never_cache
@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """Answer 200 if the database answers and runs get done, else 503; nothing in it is private."""
    try:
        stalled = work_stalled()
    except DatabaseError:
        return _health_response("down", database="down")
    if stalled:
        return _health_response("stalled", database="ok", work="runs wait and no worker is running")
    return _health_response("ok", database="ok", work="ok")


def work_stalled() -> bool:
    """Return whether a running run has had no heartbeat for WAITS_S, or runs wait in vain.

    They do if no run is running, one has waited for WAITS_S, and none has finished since.
    """
    limit = timezone.now() - timedelta(seconds=WAITS_S)
    running = Run.everywhere.filter(state=Run.State.RUNNING)
    if running.exists():
        return running.filter(heartbeat_at__lt=limit).exists()
    waiting = Run.everywhere.filter(state=Run.State.PENDING, enqueued_at__lt=limit)
    finished = Run.everywhere.filter(finished_at__gte=limit)
    return waiting.exists() and not finished.exists()


def _health_response(status: str, **parts: str) -> JsonResponse:
    """Return the answer with ``status``, and the status of ``parts`` such as the database."""
    answer = {"status": status, **parts, "version": VERSION}
    return JsonResponse(answer, status=200 if status == "ok" else 503)
