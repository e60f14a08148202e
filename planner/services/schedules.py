"""Store, change, pause and remove schedules; ``services.schedule_firings`` starts their runs."""

from datetime import datetime
from typing import Annotated, Any, Literal

from django.db import IntegrityError, transaction
from pydantic import Field

from planner.domain.kinds.registry import KINDS
from planner.domain.options import RunOptions, options_of
from planner.errors import NotAllowed, PlannerError
from planner.models import Scenario, Schedule, User
from planner.services.access import check_may_plan, check_may_remove
from planner.services.audit import record
from planner.services.cron import Cron

FIELDS = ("name", "scenario", "kind", "options", "policy", "cron", "zone", "most_replicas",
          "most_cost")  # fmt: skip
LIMITS = ("most_replicas", "most_cost")  # up to these changes a plan becomes active unreviewed
Share = Annotated[float, Field(ge=0, le=10)]


class ScheduleSettings(RunOptions):
    """The settings of a schedule, as the REST API and the command line take them."""

    cron: str = Field("", title="Cron line", max_length=120)
    """Cron fields: minute, hour, day of month, month, weekday."""
    timezone: str = Field("UTC", title="Time zone", max_length=64)
    """IANA name. Default: UTC."""
    kind: Literal[tuple(Schedule.Kind.values)] = Field(Schedule.Kind.PLAN.value, title="Run")  # type: ignore[valid-type]
    """Kind of the runs. Default: plan."""
    policy: str = Field("", title="Policy", max_length=161)
    """Policy. Default: the recommended one."""
    most_replicas: Share | None = Field(None, title="Replica-hours")
    """Largest change of replica-hours without review, as a share. Default: everything is reviewed.
    For approvers and admins."""
    most_cost: Share | None = Field(None, title="Cost")
    """Largest change of cost without review, as a share."""


def schedule_create(
    *, owner: User | None, name: str, scenario: Scenario, cron: str, now: datetime, **fields: Any
) -> Schedule:
    """Create a schedule with ``fields`` in ``FIELDS``; raise PlannerError if one is invalid."""
    schedule = Schedule(owner=owner, name=name, scenario=scenario, cron=cron, **fields)
    return _check_and_save(schedule, owner, now, "made")


def schedule_change(
    *, schedule: Schedule, user: User | None, now: datetime, **fields: Any
) -> Schedule:
    """Change the given FIELDS of a schedule; compute its next due time from ``now`` on."""
    _check_may_change(schedule, user)
    for name, value in fields.items():
        if name not in FIELDS:
            raise PlannerError(f"{name}: a schedule has {', '.join(FIELDS)}.")
        setattr(schedule, name, value)
    return _check_and_save(schedule, user, now, "changed")


@transaction.atomic
def schedule_pause(*, schedule: Schedule, user: User | None) -> Schedule:
    """Pause a schedule until it is resumed; ``user`` None: the command line."""
    check_may_plan(user, refusal="not pause schedules")
    schedule.paused = True
    schedule.save(update_fields=["paused"])
    record("schedule.paused", schedule, by=user)
    return schedule


@transaction.atomic
def schedule_resume(*, schedule: Schedule, user: User | None, now: datetime) -> Schedule:
    """Resume a schedule from ``now`` on, without runs for the due times of the pause.

    ``user`` None: the command line.
    """
    check_may_plan(user, refusal="not resume schedules")
    schedule.paused = False
    schedule.next_due = cron_of(schedule).after(now)
    schedule.save(update_fields=["paused", "next_due"])
    record("schedule.resumed", schedule, by=user)
    return schedule


@transaction.atomic
def schedule_delete(*, schedule: Schedule, user: User) -> None:
    """Remove a schedule with the history of its firings; its runs and plans stay."""
    check_may_remove(user, schedule.owner_id, "this schedule")
    record("schedule.removed", schedule, by=user)
    schedule.delete()


def cron_of(schedule: Schedule) -> Cron:
    """Return the due times of a schedule."""
    return Cron.parse(schedule.cron, schedule.zone)


def _check_and_save(schedule: Schedule, user: User | None, now: datetime, action: str) -> Schedule:
    """Check a schedule, set its next due time, save it, and record the ``action``."""
    _check_may_change(schedule, user)
    if not schedule.name.strip():
        raise PlannerError("name: a schedule needs one.")
    if schedule.kind not in Schedule.Kind.values:
        raise PlannerError(f"kind: choose from {', '.join(Schedule.Kind.values)}.")
    schedule.options = options_of(
        KINDS[schedule.kind].options, schedule.options or {}
    ).explicit_values()
    _check_limits(schedule)
    schedule.next_due = cron_of(schedule).after(now)
    try:
        with transaction.atomic():
            schedule.save()
            record(
                f"schedule.{action}", schedule, by=user, cron=schedule.cron, timezone=schedule.zone,
                most_replicas=schedule.most_replicas, most_cost=schedule.most_cost,
            )  # fmt: skip
    except IntegrityError:
        raise PlannerError(
            f"name: a schedule {schedule.name!r} already exists. Choose another name."
        ) from None
    return schedule


def _check_limits(schedule: Schedule) -> None:
    """Raise PlannerError unless both limits are given as shares, or neither."""
    limits = {name: getattr(schedule, name) for name in LIMITS}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if len(given) == 1:
        raise PlannerError(
            "most_replicas, most_cost: give both or neither. A plan with less change becomes "
            "active without a review."
        )
    for name, limit in given.items():
        if not 0 <= limit <= 10:
            raise PlannerError(
                f"{name}: {limit:g} must be a share from 0 to 10, such as 0.1 for 10%."
            )


def _check_may_change(schedule: Schedule, user: User | None) -> None:
    """Raise NotAllowed unless the user may change this schedule.

    A schedule with limits activates plans without a review, so it needs the right to approve. All
    plans of a planner's own schedule are reviewed.
    """
    check_may_plan(user)
    has_limits = any(getattr(schedule, name) is not None for name in LIMITS)
    if has_limits and user is not None and not user.may_approve:
        raise NotAllowed(
            "Only an approver or an admin may set limits for activation without review, "
            "or change a schedule that has them. Leave both limits out, or ask one."
        )
