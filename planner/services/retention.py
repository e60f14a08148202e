"""Remove old runs and traces after the number of days that the operator sets.

Subscribers are notified NOTICE_PERIOD earlier, and the page shows the date. Data stays if a
scenario, a schedule, a live source, a proposal or an active or former plan needs it. The audit log
stays too: without its beginning nobody could check the rest.
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from planner.domain.formats import counted
from planner.errors import NotReady
from planner.models import ActivePlan, Event, Firing, Proposal, ProposalEntry, Run, Trace
from planner.models.workspace import current_workspace
from planner.services.audit import record
from planner.services.notifications import notify
from planner.services.runs import run_remove
from planner.services.traces import check_not_needed, trace_remove

NOTICE_PERIOD = timedelta(days=7)
MAX_ROWS = 1000  # rows of each kind in one sweep; the rest follows the next day
MAX_NAMED = 10  # rows of each kind that an announcement names
RULE = "kept for so many days"  # the actor of removals in the audit log


def retention_sweep(*, now: datetime) -> int:
    """Announce the removal of old data in the current workspace, and remove it later.

    Data is removed once NOTICE_PERIOD has passed since its announcement. Returns the number of
    removed rows.
    """
    removed = 0
    sentences = []
    for noun, days, old_rows in (
        ("run", settings.HEADROOM_KEEP_RUNS_DAYS, _removable_runs),
        ("trace", settings.HEADROOM_KEEP_TRACES_DAYS, _old_traces),
    ):
        if not days:
            continue
        oldest_kept = now - timedelta(days=days)
        to_remove = old_rows(oldest_kept).filter(removal_announced_at__lte=now - NOTICE_PERIOD)
        removed += sum(_remove(row) for row in to_remove.order_by("pk")[:MAX_ROWS])
        to_announce = old_rows(oldest_kept + NOTICE_PERIOD).filter(removal_announced_at=None)
        announced = [row for row in to_announce.order_by("pk")[:MAX_ROWS] if _is_removable(row)]
        if announced:
            announced_ids = [row.pk for row in announced]
            to_announce.filter(pk__in=announced_ids).update(removal_announced_at=now)
            names = [str(row.pk) if isinstance(row, Run) else row.name for row in announced]
            shown = ", ".join(names[:MAX_NAMED])
            if len(names) > MAX_NAMED:
                shown += f" and {len(names) - MAX_NAMED:,} more"
            sentences.append(
                f"{counted(len(announced), noun)} ({shown}) of over {days} days "
                f"will be removed from {now + NOTICE_PERIOD:%Y-%m-%d} on. Download them to keep "
                "them."
            )
    if sentences:
        notify(current_workspace(), Event.REMOVAL, " ".join(sentences), "/runs/")
    return removed


def removal_sentence(row: Run | Trace) -> str:
    """Return a sentence that says when a run or trace will be removed.

    Return "" if its removal has not been announced.
    """
    noun, days, since = "trace", settings.HEADROOM_KEEP_TRACES_DAYS, row.created_at
    if isinstance(row, Run):
        noun, days = "run", settings.HEADROOM_KEEP_RUNS_DAYS
        since = row.finished_at or row.created_at
    if not days or row.removal_announced_at is None:
        return ""
    removed_at = max(since + timedelta(days=days), row.removal_announced_at + NOTICE_PERIOD)
    return (
        f"This {noun} is old and will be removed after {removed_at:%Y-%m-%d}, unless something "
        "needs it by then. Download what you need longer."
    )


def _removable_runs(before: datetime) -> QuerySet[Run]:
    """Return the runs that ended before ``before`` and that nothing refers to."""
    firings = Firing.objects.exclude(run=None).order_by("due_at")
    entries = ProposalEntry.objects.filter(proposal__in=Proposal.objects.all())
    needed: list[Any] = [
        ActivePlan.objects.exclude(run=None).values("run"),
        entries.exclude(run=None).values("run"),
        # The last run of each schedule, with which the next one is compared: dict() keeps the last.
        list(dict(firings.values_list("schedule", "run")).values()),
    ]
    for name in ("run", "base_run", "replay", "outcome"):
        needed.append(Proposal.objects.exclude(**{name: None}).values(name))
    dated_runs = Run.objects.annotate(since=Coalesce(F("finished_at"), F("created_at")))
    runs = dated_runs.filter(since__lt=before).exclude(state__in=Run.ACTIVE_STATES)
    for needed_ids in needed:
        runs = runs.exclude(pk__in=needed_ids)
    return runs


def _old_traces(before: datetime) -> QuerySet[Trace]:
    """Return the traces created before ``before``."""
    return Trace.objects.filter(created_at__lt=before)


def _is_removable(row: Run | Trace) -> bool:
    """Return whether nothing needs the row."""
    if isinstance(row, Run):
        return True  # _removable_runs() has left out those that are needed
    try:
        check_not_needed(row)
    except NotReady:
        return False
    return True


@transaction.atomic
def _remove(row: Run | Trace) -> bool:
    """Remove a row because of its age; return False if something needs it."""
    try:
        with transaction.atomic():
            if isinstance(row, Trace):
                trace_remove(trace=row, by=None, rule=RULE)
            else:
                record("run.removed", row, by=None, rule=RULE, kind=row.kind)
                run_remove(run=row)
    except NotReady:
        if isinstance(row, Trace):
            Trace.objects.filter(pk=row.pk).update(removal_announced_at=None)  # needed again
        return False
    return True
