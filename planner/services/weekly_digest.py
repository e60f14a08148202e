"""Summarize a week in a few lines: plans that were made, approved and compared with traffic."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from planner.models import Firing, Outcome
from planner.models.notification import Event
from planner.models.workspace import current_workspace
from planner.selectors.active_plans import active_plans
from planner.services.notifications import notify

WEEK = timedelta(days=7)
LISTED_STATES = (Firing.State.REVIEW, Firing.State.FAILED, Firing.State.MISSED)  # listed one by one
MAX_LINES = 20  # lines per kind of event


def digest_text(*, now: datetime) -> str:
    """Return the digest of the seven days before ``now``."""
    return "\n".join(_lines(now))


def digest_send(*, now: datetime) -> None:
    """Notify the subscribers of the digest."""
    notify(current_workspace(), Event.DIGEST, digest_text(now=now), "/schedules/")


def _lines(now: datetime) -> Iterator[str]:
    """Yield the lines: active plans, how schedules fired, and outcomes of plans that ended."""
    since = now - WEEK
    dates = f"{since:%Y-%m-%d} to {now:%Y-%m-%d} (UTC)"
    yield f"Headroom, {dates}, workspace {current_workspace().name}."
    plans = active_plans()
    if not plans:
        yield "No plan is active."
    for plan in plans:
        ends = f" until {plan.ends:%Y-%m-%d %H:%M} UTC" if plan.repeat == "once" else ""
        policy = plan.label or plan.policy
        yield f"Active: run {plan.number} of {plan.scenario}, {policy}, {plan.repeat}{ends}."
    fired = list(
        Firing.objects.select_related("schedule").filter(due_at__gt=since, due_at__lte=now)
    )
    if fired:
        counts = Counter(firing.get_state_display().lower() for firing in fired)
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"Schedules fired {len(fired)} times: {states}."
    else:
        yield "No schedule fired."
    # Only firings that need somebody's attention get their own line.
    listed = [firing for firing in fired if firing.state in LISTED_STATES]
    for firing in listed[:MAX_LINES]:
        when = f"{firing.due_at:%Y-%m-%d %H:%M} UTC"
        yield f"- {firing.schedule.name}, {when}: {firing.get_state_display()}. {firing.words}"
    outcomes = Outcome.objects.filter(ends__gt=since, ends__lte=now).exclude(
        state=Outcome.State.RUNNING
    )
    yield from (
        f"- {outcome.begins:%Y-%m-%d} to {outcome.ends:%Y-%m-%d}: {outcome.words}"
        for outcome in outcomes[:MAX_LINES]
    )
    if not outcomes:
        yield "No plan ended with known traffic."
