"""Define the Celery tasks: each takes an id and calls one service.

A service is imported at its first call. The scheduler knows these tasks by name alone, and an idle
worker loads no solver.
"""

from collections.abc import Callable
from typing import Any

from celery import shared_task
from django.utils import timezone

from planner.models.workspace import Workspace, use_workspace


def _in_every_workspace(service: Callable[..., Any]) -> None:
    """Call a service in each workspace, with the present time."""
    for workspace in Workspace.objects.all():
        with use_workspace(workspace):
            service(now=timezone.now())


@shared_task(name="planner.tasks.run_execute", acks_late=True)  # type: ignore[untyped-decorator]
def run_execute_task(run_id: int, queue: str = "long") -> None:
    """Execute the next run of a queue, which need not be ``run_id``: the order may have changed."""
    from planner.services import worker

    worker.run_next(queue)


@shared_task(name="planner.tasks.runs_sweep")  # type: ignore[untyped-decorator]
def runs_sweep_task(queue: str = "short") -> None:
    """Queue runs again that lost their worker, and send lost messages again."""
    from planner.services import runs

    runs.resend_lost_messages(queue)
    runs.runs_sweep(confirm_s=runs.CONFIRM_S)


@shared_task(name="planner.tasks.orphans_sweep")  # type: ignore[untyped-decorator]
def orphans_sweep_task() -> None:
    """Remove orphaned files, expired sessions and old attempts."""
    from planner.services import arrays, login_limits, sessions

    arrays.orphans_sweep()
    sessions.sessions_sweep(now=timezone.now())
    login_limits.attempts_sweep(now=timezone.now())


@shared_task(name="planner.tasks.retention_sweep")  # type: ignore[untyped-decorator]
def retention_sweep_task() -> None:
    """Remove old runs and traces of every workspace."""
    from planner.services import retention

    _in_every_workspace(retention.retention_sweep)


@shared_task(name="planner.tasks.schedules_tick")  # type: ignore[untyped-decorator]
def schedules_tick_task() -> None:
    """Fire and settle the schedules of every workspace."""
    from planner.services import schedule_firings

    _in_every_workspace(schedule_firings.schedules_tick)


@shared_task(name="planner.tasks.outcomes_tick")  # type: ignore[untyped-decorator]
def outcomes_tick_task() -> None:
    """Compare finished plans with the traffic that came, in every workspace."""
    from planner.services import plan_outcomes

    _in_every_workspace(plan_outcomes.outcomes_tick)


@shared_task(name="planner.tasks.notice_send", acks_late=True)  # type: ignore[untyped-decorator]
def notice_send_task(number: int) -> None:
    """Send one notification."""
    from planner.services import notifications

    notifications.notice_send(number=number)


@shared_task(name="planner.tasks.notices_sweep")  # type: ignore[untyped-decorator]
def notices_sweep_task() -> None:
    """Send due notifications, and remove old ones."""
    from planner.services import notifications

    notifications.notices_sweep()


@shared_task(name="planner.tasks.sources_read")  # type: ignore[untyped-decorator]
def sources_read_task() -> None:
    """Have workers read every source that is due."""
    from planner.services import source_reading

    source_reading.sources_enqueue()


@shared_task(name="planner.tasks.source_read")  # type: ignore[untyped-decorator]
def source_read_task(source_id: int) -> None:
    """Read one source."""
    from planner.services import source_reading

    source_reading.source_read(source_id=source_id)


@shared_task(name="planner.tasks.source_speeds")  # type: ignore[untyped-decorator]
def source_speeds_task(source_id: int) -> None:
    """Compare the replica speeds that a source measured with those of active plans."""
    from planner.services import plan_outcomes

    plan_outcomes.speeds_judge(source_id=source_id)


@shared_task(name="planner.tasks.password_mail")  # type: ignore[untyped-decorator]
def password_mail_task(name: str) -> None:
    """Mail a link to choose a new password."""
    from planner.services import passwords

    passwords.password_mail(name=name)


@shared_task(name="planner.tasks.digests_send")  # type: ignore[untyped-decorator]
def digests_send_task() -> None:
    """Send the weekly digest of every workspace."""
    from planner.services import notifications

    _in_every_workspace(notifications.digest_send)
