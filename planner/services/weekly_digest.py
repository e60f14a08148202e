"""Summarize a week in a few lines: plans that were made, approved and compared with traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from planner.models import Firing, Outcome
from planner.models.notification import Event
from planner.models.workspace import current_workspace
from planner.selectors.active_plans import plans_in_force
from planner.services.notifications import notify

WEEK = timedelta(days=7)
TOLD = (Firing.State.REVIEW, Firing.State.FAILED, Firing.State.MISSED)  # listed one by one
MOST = 20  # lines per kind of event


def digest_text(*, now: datetime) -> str:
    """Return the digest of the seven days before ``now``."""
    return "\n".join(_lines(now))


def digest_send(*, now: datetime) -> None:
    """Notify the subscribers of the digest."""
    notify(current_workspace(), Event.DIGEST, digest_text(now=now), "/schedules/")


def _lines(now: datetime) -> Iterator[str]:
    """Yield the lines: active plans, firings of schedules, and compared plans."""
    since = now - WEEK
    yield f"Headroom, {since:%Y-%m-%d} to {now:%Y-%m-%d}, workspace {current_workspace().name}."
    plans = plans_in_force()
    if not plans:
        yield "No plan is in force."
    for plan in plans:
        ends = f" until {plan.ends:%Y-%m-%d %H:%M} UTC" if plan.repeat == "once" else ""
        policy = plan.label or plan.policy
        yield f"In force: run {plan.number} of {plan.scenario}, {policy}, {plan.repeat}{ends}."
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
    apart = [firing for firing in fired if firing.state in TOLD]
    for firing in apart[:MOST]:
        when = f"{firing.due_at:%Y-%m-%d %H:%M}"
        yield f"- {firing.schedule.name}, {when}: {firing.get_state_display()}. {firing.words}"
    came = Outcome.objects.filter(ends__gt=since, ends__lte=now).exclude(
        state=Outcome.State.RUNNING
    )
    yield from (
        f"- {outcome.begins:%Y-%m-%d} to {outcome.ends:%Y-%m-%d}: {outcome.words}"
        for outcome in came[:MOST]
    )
    if not came:
        yield "No plan's time was over and known."
