"""Show planning schedules with their history, and plans versus actual demand."""

from __future__ import annotations

from datetime import datetime, time, tzinfo
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.domain.formats import zone_name
from planner.domain.retrospective.figures import PlanEvaluation
from planner.domain.serialise import from_json
from planner.errors import PlannerError
from planner.models import Scenario, Schedule, User
from planner.policies.registry import POLICIES
from planner.selectors.runs import scheduled_runs
from planner.selectors.scenarios import scenarios_list
from planner.selectors.schedules import (
    firings_list,
    outcome_get,
    outcomes_list,
    schedule_get,
    schedules_list,
)
from planner.services.cron import zone_of
from planner.services.schedule_firings import schedule_fire
from planner.services.schedules import (
    schedule_change,
    schedule_create,
    schedule_delete,
    schedule_pause,
    schedule_resume,
)
from planner.web.charts.retrospective import demand_figure, hours_figure, weeks_figure
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, render_form
from planner.web.forms.widgets import LongSelect, dress, zone_choices
from planner.web.paging import is_short, page_of
from planner.web.request import Request, TemplateContext

FIELDS = ("name", "scenario", "zone", "kind", "policy")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HOURLY = "*"
CLOCK = r"([01]?\d|2[0-3]):[0-5]\d"  # a time of day, 24 hours
# Choices in words, by the cron fields after minute and hour.
REPEATS = {
    HOURLY: "Every hour", "* * *": "Every day", "* * 1-5": "Monday to Friday",
    **{f"* * {day}": f"Every {name}" for day, name in enumerate(DAYS, 1)},
    "1 * *": "First day of the month",
}  # fmt: skip
# Examples for an empty list: label, words, and the key in REPEATS.
EXAMPLES = (
    ("Every day", "Plan the day ahead at 06:00.", "* * *"),
    ("Every Monday", "Plan the week ahead at 06:00.", "* * 1"),
    ("First day of the month", "Review cost and commitments.", "1 * *"),
)
FIRST, LAST = 1970, 2261  # accepted years of a time
SHOWN = 26  # outcomes shown: half a year of weeks


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the schedules, with the latest outcomes."""
    outcomes = list(outcomes_list()[:SHOWN])
    page = page_of(request, schedules_list())
    offers_examples = request.user.may_plan and not page.object_list
    address = reverse("web:schedule-new")
    context = {
        "page": page,
        "choices": [
            (label, words, f"{address}?{urlencode({'often': often})}")
            for label, words, often in EXAMPLES
            if offers_examples
        ],
        "outcomes": outcomes,
        "runs": scheduled_runs() if is_short(page) and not outcomes else (),
        "weeks_figure": weeks_figure(outcomes),
    }
    return render(request, "web/schedules.html", context)


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Show the form for a new schedule, or create it."""
    if request.method != "POST":
        initial = {name: request.GET[name] for name in ("scenario", "often") if name in request.GET}
        return _form(request, ScheduleForm(user=request.user, initial=initial), None)
    form = ScheduleForm(request.POST, user=request.user)
    schedule, problem = attempt(
        form, lambda: schedule_create(owner=request.user, now=timezone.now(), **form.chosen())
    )
    if schedule is None:
        return _form(request, form, None, problem)
    return redirect("web:schedule", schedule.pk)


@require_http_methods(["GET", "POST"])
@planners_only
def edit(request: Request, pk: int) -> HttpResponse:
    """Show the form for a schedule, or save the change."""
    schedule = schedule_get(str(pk))
    if request.method != "POST":
        return _form(request, ScheduleForm(user=request.user, initial=_values(schedule)), schedule)
    initial = {"policy": schedule.policy}
    form = ScheduleForm(request.POST, user=request.user, initial=initial)
    changed, problem = attempt(
        form,
        lambda: schedule_change(
            schedule=schedule, user=request.user, now=timezone.now(), **form.chosen()
        ),
    )
    if changed is None:
        return _form(request, form, schedule, problem)
    return redirect("web:schedule", pk)


@require_safe
def detail(request: Request, pk: int) -> HttpResponse:
    """Show one schedule with its firings and outcomes."""
    schedule = schedule_get(str(pk))
    outcomes = list(outcomes_list(schedule)[:SHOWN])
    context = {
        "schedule": schedule,
        "page": page_of(request, firings_list(schedule)),
        "outcomes": outcomes,
        "weeks_figure": weeks_figure(outcomes),
    }
    return render(request, "web/schedule.html", context)


@require_safe
def outcome(request: Request, pk: int) -> HttpResponse:
    """Show the comparison of a plan with actual traffic."""
    judged = outcome_get(pk)
    context: TemplateContext = {"outcome": judged}
    if judged.figures:
        evaluation = from_json(PlanEvaluation, judged.figures)
        context["hours_figure"] = hours_figure(evaluation)
        context["demand_figure"] = demand_figure(evaluation)
    return render(request, "web/outcome.html", context)


@require_POST
@planners_only
def pause(request: Request, pk: int) -> HttpResponse:
    schedule_pause(schedule=schedule_get(str(pk)), user=request.user)
    return redirect("web:schedule", pk)


@require_POST
@planners_only
def resume(request: Request, pk: int) -> HttpResponse:
    schedule_resume(schedule=schedule_get(str(pk)), user=request.user, now=timezone.now())
    return redirect("web:schedule", pk)


@require_POST
@planners_only
def fire(request: Request, pk: int) -> HttpResponse:
    """Start the run of a schedule now, with data up to the posted moment (empty: now)."""
    schedule = schedule_get(str(pk))
    as_of = _moment(request.POST.get("as_of", "").strip(), zone_of(schedule.zone))
    schedule_fire(schedule=schedule, user=request.user, now=timezone.now(), as_of=as_of)
    messages.info(request, "The schedule runs now. See its line below.")
    return redirect("web:schedule", pk)


@require_POST
def delete(request: Request, pk: int) -> HttpResponse:
    schedule = schedule_get(str(pk))
    schedule_delete(schedule=schedule, user=request.user)
    messages.success(request, f"{schedule.name} is removed; its runs and plans stay.")
    return redirect("web:schedules")


def _form(
    request: Request,
    form: ScheduleForm,
    schedule: Schedule | None,
    problem: Exception | None = None,
) -> HttpResponse:
    """Show the form of a new schedule (None) or of an existing one."""
    context = {"form": form, "schedule": schedule}
    return render_form(request, "web/schedule_form.html", context, problem)


def _moment(text: str, zone: tzinfo) -> datetime | None:
    """Return the time in a form field, in ``zone``; None if the field is empty."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min  # refused below
    if not FIRST <= moment.year <= LAST:
        raise PlannerError(
            f"as_of: {text[:40]!r} is not a time from {FIRST} to {LAST}. Write 2026-05-04T06:00."
        )
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


def _values(schedule: Schedule) -> dict[str, Any]:
    """Return the initial values of ScheduleForm for a schedule, with limits in percent."""
    values = {name: getattr(schedule, name) for name in FIELDS}
    limits = {"replicas": schedule.most_replicas, "cost": schedule.most_cost}
    for name, share in limits.items():
        values[name] = None if share is None else round(100 * share, 6)
    return values | _repeat_of(schedule.cron)


def _repeat_of(cron: str) -> dict[str, str | time]:
    """Return a cron line as form values: ``often`` and ``at`` if they suffice, else ``cron``."""
    minute, hour, days = cron.split(maxsplit=2)
    often = HOURLY if hour == "*" and days == "* * *" else days
    try:
        at = time(0 if often == HOURLY else int(hour), int(minute))
    except ValueError:  # a list, a range or steps
        return {"cron": cron}
    return {"often": often, "at": at} if often in REPEATS else {"cron": cron}


class ScheduleForm(forms.Form):
    name = forms.CharField(label="Name", max_length=120)
    scenario: forms.ModelChoiceField[Scenario] = forms.ModelChoiceField(
        label="Scenario", queryset=None, empty_label="Choose a scenario"
    )
    often = forms.ChoiceField(label="Repeat", required=False, choices=REPEATS, initial="* * 1")
    at = forms.TimeField(
        label="At",
        required=False,
        initial=time(6),
        # A field of type "time" may show 12 hours, as the browser's language does.
        widget=forms.TimeInput(attrs={"pattern": CLOCK, "placeholder": "06:00"}, format="%H:%M"),
    )
    zone = forms.ChoiceField(
        label="Time zone",
        initial=zone_name,
        choices=zone_choices,
        widget=LongSelect,
    )
    kind = forms.ChoiceField(
        label="Run", choices=Schedule.Kind.choices, initial=Schedule.Kind.COMPARE
    )
    replicas = forms.FloatField(
        label="Replica-hours change by at most, %",
        required=False,
        min_value=0,
        max_value=1000,
    )
    cost = forms.FloatField(
        label="Cost changes by at most, %",
        required=False,
        min_value=0,
        max_value=1000,
    )
    policy = forms.ChoiceField(
        label="Policy to propose", required=False, help_text="Only for Plan and compare."
    )
    cron = forms.CharField(
        label="Cron line",
        max_length=120,
        required=False,
        help_text="Replaces Repeat and At. 0 6 * * 1 is Mondays at 06:00.",
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        """Offer the scenarios and policies; limits only to a ``user`` who may approve."""
        super().__init__(*args, **kwargs)
        self.fields["scenario"].queryset = scenarios_list()  # type: ignore[attr-defined]
        policy = self.initial.get("policy", "")  # maybe one with a label, of the API
        names = {"": "the recommended policy"} | POLICIES
        self.fields["policy"].choices = [*({policy: policy} | names).items()]  # type: ignore[attr-defined]
        if not user.may_approve:  # only approvers may let plans take effect without review
            del self.fields["replicas"], self.fields["cost"]
        dress(self)

    def chosen(self) -> dict[str, Any]:
        """Return the arguments of ``schedule_create``."""
        sent = self.cleaned_data
        arguments = {name: sent[name] for name in FIELDS}
        percents = {"most_replicas": sent.get("replicas"), "most_cost": sent.get("cost")}
        for name, percent in percents.items():
            arguments[name] = None if percent is None else percent / 100
        days, at = sent["often"] or "* * *", sent["at"] or time()
        cron = f"{at.minute} {at.hour} {days}"
        if days == HOURLY:
            cron = f"{at.minute} * * * *"
        return arguments | {"cron": sent["cron"] or cron}
