"""What a week brought: plans that were made, decided on and came true, in a few lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from planner.models import Firing, Outcome
from planner.models.notice import Event
from planner.models.workspace import current_workspace
from planner.selectors.in_force import plans_in_force
from planner.services.notices import notify

WEEK = timedelta(days=7)
TOLD = (Firing.State.REVIEW, Firing.State.FAILED, Firing.State.MISSED)  # one by one
MOST = 20  # lines of a kind


def digest_text(*, now: datetime) -> str:
    """Of the seven days before ``now``."""
    return "\n".join(_lines(now))


def digest_send(*, now: datetime) -> None:
    notify(current_workspace(), Event.DIGEST, digest_text(now=now), "/schedules/")


def _lines(now: datetime) -> Iterator[str]:
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
        counts = Counter(one.get_state_display().lower() for one in fired)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"Schedules fired {len(fired)} times: {told}."
    else:
        yield "No schedule fired."
    apart = [one for one in fired if one.state in TOLD]
    for one in apart[:MOST]:
        when = f"{one.due_at:%Y-%m-%d %H:%M}"
        yield f"- {one.schedule.name}, {when}: {one.get_state_display()}. {one.words}"
    came = Outcome.objects.filter(ends__gt=since, ends__lte=now).exclude(
        state=Outcome.State.RUNNING
    )
    yield from (
        f"- {one.begins:%Y-%m-%d} to {one.ends:%Y-%m-%d}: {one.words}" for one in came[:MOST]
    )
    if not came:
        yield "No plan's time was over and known."
