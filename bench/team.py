"""What a team that plans together has beside scenarios and runs: a proposal that was talked about,
a live source, a schedule, a sweep. Needs Django set up."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
from django.urls import reverse
from django.utils import timezone

from planner.ingest.live.sent import of_rows
from planner.models import Run, Scenario, User
from planner.services.proposals import comment, propose
from planner.services.schedules import schedule_create
from planner.services.sources import samples_take, source_create
from planner.services.sweeps import Axis, sweep_create

BIN_MIN, DAYS = 15, 28  # of the source's samples
COMMENTS = 20


def team_made(
    user: User, run: Run, plan: Run, scenario: Scenario, document: str
) -> tuple[str, ...]:
    """Addresses of one of each; ``run`` is a comparison and ``plan`` a plan, both carried out."""
    now = timezone.now()
    proposal = propose(by=user, title="Before the holidays", run=run, message="As every week.")
    for number in range(COMMENTS):
        comment(proposal=proposal, by=user, text=f"Note {number}: what of the second region?")
    source = source_create(
        owner=user, name="chat-live", kind="samples", settings={}, bin_s=60 * BIN_MIN
    )
    samples_take(source=source, user=user, sent=of_rows(_samples(now), now))
    schedule = schedule_create(
        owner=user, name="Mondays", scenario=scenario, cron="0 6 * * 1", now=now
    )
    axes = (Axis("tiers[chat].ttft_ms", (500, 1000, 2000)), Axis("forecast.quantile", (0.8, 0.9)))
    sweep = sweep_create(owner=user, document=document, axes=axes, enqueue=False)
    sweep.runs.update(state=Run.State.COMPLETED, result=plan.result, store=plan.store)
    return (
        reverse("web:proposal", args=[proposal.pk]),
        f"{reverse('web:proposal-new')}?run={run.pk}",
        reverse("web:source", args=[source.name]),
        reverse("web:schedule", args=[schedule.pk]),
        reverse("web:sweep", args=[sweep.pk]),
        reverse("web:scenario-versions", args=[scenario.pk]),
        reverse("web:run-export", args=[run.pk]),
        f"{reverse('web:runs-compare')}?run={run.pk}&run={plan.pk}",
    )


def _samples(now: datetime) -> list[dict[str, object]]:
    """Four weeks of days that rise and fall, up to ``now``."""
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
