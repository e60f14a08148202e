"""What a team that plans together has beside scenarios and runs: proposals that were talked about,
plans in force and what came of them, a live source, a schedule with its history, a sweep, an audit
log and notifications. Needs Django set up."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np
from django.db.models import Model
from django.urls import reverse
from django.utils import timezone

from planner.domain.whatif.settings import Axis
from planner.models import (
    ActivePlan,
    Channel,
    Delivery,
    Firing,
    Outcome,
    Run,
    Scenario,
    Schedule,
    User,
)
from planner.outputs.options import ExportOptions
from planner.services.active_plans import plan_activate
from planner.services.audit import record
from planner.services.plan_outcomes import outcomes_tick
from planner.services.proposals import comment, propose
from planner.services.schedules import schedule_create
from planner.services.sources import samples_store, source_create
from planner.services.whatif import sweep_create

BIN_MIN, DAYS = 15, 28  # of the source's samples
COMMENTS = 20
WEEKS = 150  # of firings, plans in force and outcomes
RECORDS = 2_000  # of the audit log
Row = TypeVar("Row", bound=Model)


def create_team_rows(
    user: User, run: Run, plan: Run, scenario: Scenario, document: str
) -> tuple[str, ...]:
    """Create one row of each kind that a team has, and return the addresses of their pages.

    ``run`` is a completed comparison and ``plan`` a completed plan.
    """
    now = timezone.now()
    proposal = propose(by=user, title="Before the holidays", run=run, message="As every week.")
    for number in range(COMMENTS):
        comment(proposal=proposal, by=user, text=f"Note {number}: what of the second region?")
    first = plan_activate(
        run=run, options=ExportOptions(repeat="once"), user=user, now=now - timedelta(days=7)
    )
    judged = outcomes_tick(now=now)
    for number in range(RECORDS):
        record("run.asked", str(number), by=user, kind="compare")
    source = source_create(
        owner=user, name="chat-live", kind="samples", settings={}, bin_s=60 * BIN_MIN
    )
    samples_store(source=source, user=user, rows=_samples(now), now=now)
    schedule = schedule_create(
        owner=user, name="Mondays", scenario=scenario, cron="0 6 * * 1", now=now
    )
    _years(now, schedule, first, judged[0])
    axes = (Axis("tiers[chat].ttft_ms", (500, 1000, 2000)), Axis("forecast.quantile", (0.8, 0.9)))
    sweep = sweep_create(owner=user, document=document, axes=axes, enqueue=False)
    sweep.runs.update(state=Run.State.COMPLETED, result=plan.result, store=plan.store)
    return (
        reverse("web:proposal", args=[proposal.pk]),
        f"{reverse('web:proposal-new')}?run={run.pk}",
        reverse("web:source", args=[source.name]),
        reverse("web:schedule", args=[schedule.pk]),
        reverse("web:schedule-edit", args=[schedule.pk]),
        reverse("web:outcome", args=[judged[0].pk]),
        reverse("web:plan-in-force", args=[first.pk]),
        f"{reverse('web:plans-in-force')}?from={first.pk}&to={first.pk + 1}",
        f"{reverse('web:proposals')}?show=all",
        reverse("web:audit"),
        reverse("web:what-if", args=[sweep.pk]),
        reverse("web:scenario-versions", args=[scenario.pk]),
        f"{reverse('web:scenario-versions', args=[scenario.pk])}?part=policies",
        reverse("web:run-export", args=[run.pk]),
        f"{reverse('web:runs-compare')}?run={run.pk}&run={plan.pk}",
    )


def _years(now: datetime, schedule: Schedule, plan: ActivePlan, outcome: Outcome) -> None:
    """Copy plan, outcome and firing week after week, as if a team planned each Monday."""
    weeks = [now - timedelta(days=7 * n) for n in range(2, WEEKS)]
    plans = _like(plan, ({"since": week, "until": week + timedelta(days=7)} for week in weeks))
    _like(outcome, ({"plan_id": plan.pk, "begins": plan.since} for plan in plans))
    Firing.objects.bulk_create(
        Firing(
            schedule=schedule, due_at=week, as_of=week, fired_at=week, finished_at=week,
            state=Firing.State.REVIEW, run_id=plan.run_id, words="16.2% of replica-hours differ.",
        )
        for week in weeks
    )  # fmt: skip
    channel = Channel.objects.create(kind="webhook", address="https://chat.example/x", salt="x")
    Delivery.objects.bulk_create(
        Delivery(channel=channel, event="digest", text="A week.", due_at=week) for week in weeks
    )


def _like(row: Row, changes: Iterable[dict[str, Any]]) -> list[Row]:
    fields = [field.attname for field in row._meta.concrete_fields if not field.primary_key]
    same = {name: getattr(row, name) for name in fields}
    kind = type(row)
    return list(kind._default_manager.bulk_create(kind(**same | change) for change in changes))


def _samples(now: datetime) -> list[dict[str, object]]:
    """Return four weeks of samples up to ``now`` with a daily wave."""
    bins = DAYS * 24 * 60 // BIN_MIN
    first = now.replace(minute=0, second=0, microsecond=0) - timedelta(minutes=BIN_MIN * bins)
    day = 1.0 + 0.6 * np.sin(2 * np.pi * np.arange(bins) * BIN_MIN / 1440)
    return [
        {
            "time": first + timedelta(minutes=BIN_MIN * place), "model": "llama-3.1-8b",
            "requests": float(round(900 * height)), "input_tokens": 1e6 * height,
            "output_tokens": 2e5 * height,
        }
        for place, height in enumerate(day)
    ]  # fmt: skip
