"""Schedules on pages and over HTTP: made, paused, fired, and what came of them."""

from datetime import UTC, datetime, timedelta

import pytest

from planner.models import ActivePlan, Firing, Outcome, Run, Schedule
from planner.services.notifications import digest_text
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of

API = "/api/v1"
MONDAY = datetime(2024, 5, 13, tzinfo=UTC)
NEW = {"name": "Mondays", "cron": "0 6 * * 1"}


def outcome(week: int) -> Outcome:
    """As a worker would have left it."""
    begins = MONDAY + timedelta(days=7 * week)
    plan = ActivePlan.objects.create(
        number=7 + week, scenario="Chat", policy="lt-i", repeat="once", zone="UTC", begins=begins,
        ends=begins + timedelta(days=7), pools=[], since=begins,
    )  # fmt: skip
    hour = {"begins": begins.isoformat(), "held": 4, "needed": 3, "came_tps": 9.0,
            "forecast_tps": 8.0, "planned_tps": 10.0}  # fmt: skip
    drift = {"model": "m", "input_known": 600.0, "input_came": 900.0, "output_known": 200.0,
             "output_came": 201.0, "flagged": True}  # fmt: skip
    speed = {"model": "llama-3.1-8b", "gpu": "A100-80GB", "tp": 1, "observations": 2016,
             "times": 1.12, "low": 1.1, "high": 1.14, "flagged": True,
             "since": "2024-05-15T06:00:00Z"}  # fmt: skip
    figures = {
        "demand": {"wape": 0.1, "bias": 0.02, "covered": 0.99, "hours": 168.0},
        "attainment": {"chat": 0.97}, "replica_hours": 672.0, "needed_replica_hours": 504.0,
        "lengths": [drift], "speed": [speed], "hours": [hour], "notes": ["A note."],
    }  # fmt: skip
    return Outcome.objects.create(
        plan=plan, begins=plan.begins, ends=plan.ends, started_at=plan.ends, figures=figures,
        state=Outcome.State.DONE, words=f"It came true; week {week}.",
    )  # fmt: skip


def test_a_schedule_is_made_changed_and_read(approver, planner, viewer, scenario):
    page = signed_in(planner)
    form = page.get("/schedules/new/").content.decode()
    assert 'name="cron"' in form and 'name="replicas"' not in form  # those are for approvers
    asked = {**NEW, "scenario": scenario.pk, "zone": "UTC", "kind": "plan"}
    wrong = page.post("/schedules/new/", {**asked, "cron": "0 6 * *"})
    assert wrong.status_code == 400 and "has 4 fields and needs 5" in text_of(wrong)
    assert page.post("/schedules/new/", asked).status_code == 302
    kept = Schedule.objects.get()
    deciding = signed_in(approver)
    changed = {**asked, "replicas": "10", "cost": "5", "policy": "lt-i"}
    deciding.post(f"/schedules/{kept.pk}/change/", changed)
    kept.refresh_from_db()
    assert kept.policy == "lt-i"
    form = deciding.get(f"/schedules/{kept.pk}/change/").content.decode()
    assert '<option value="lt-i" selected>' in form
    assert (
        deciding.post(f"/schedules/{kept.pk}/change/", changed | {"policy": "x"}).status_code == 400
    )
    assert "Up to 10.0% of replica-hours and 5.0% of cost" in text_of(
        deciding.get(f"/schedules/{kept.pk}/")
    )
    page.post(f"/schedules/{kept.pk}/pause/")
    assert "paused" in text_of(page.get("/schedules/"))
    page.post(f"/schedules/{kept.pk}/resume/")
    page.post(f"/schedules/{kept.pk}/fire/")
    firing = Firing.objects.get()
    assert (firing.by, firing.run.state) == (planner, Run.State.PENDING)
    no = page.post(f"/schedules/{kept.pk}/fire/", {"as_of": "yesterday"})
    assert no.status_code == 400 and "'yesterday'" in text_of(no)
    firing.delete()
    page.post(f"/schedules/{kept.pk}/fire/", {"as_of": "2024-05-13T06:00"})
    assert Firing.objects.get().as_of == MONDAY + timedelta(hours=6)
    assert "known at 13 May 2024, 06:00 UTC" in text_of(page.get(f"/schedules/{kept.pk}/"))
    assert page.post(f"/schedules/{kept.pk}/nonsense/").status_code == 404
    reading = signed_in(viewer)
    assert "Plan now" not in text_of(reading.get(f"/schedules/{kept.pk}/"))


@pytest.mark.parametrize(
    ("posted", "cron"),
    [
        ({"often": "* * 1-5", "at": "05:30"}, "30 5 * * 1-5"),
        ({"often": "*", "at": "00:15"}, "15 * * * *"),
        ({"often": "1 * *", "at": "23:00"}, "0 23 1 * *"),
        ({"often": "* * *", "at": "06:00", "cron": "*/5 8 * * *"}, "*/5 8 * * *"),
    ],
)
def test_times_in_words_are_kept_through_the_form(planner, scenario, posted, cron):
    page, sent = signed_in(planner), {"name": "A", "scenario": scenario.pk, "zone": "UTC"}
    page.post("/schedules/new/", sent | {"kind": "plan"} | posted)
    schedule = Schedule.objects.get()
    assert schedule.cron == cron
    form = page.get(f"/schedules/{schedule.pk}/change/").context["form"]
    values = {field.name: field.value() for field in form if field.value() is not None}
    page.post(f"/schedules/{schedule.pk}/change/", values)
    schedule.refresh_from_db()
    assert schedule.cron == cron


def test_what_came_is_shown_by_week_and_hour(planner):
    first, _ = outcome(0), outcome(1)
    page = signed_in(planner)
    listing = page.get("/schedules/").content.decode()
    assert "It came true; week 1." in listing and "weeks-data" in listing
    detail = page.get(f"/outcomes/{first.pk}/").content.decode()
    assert (
        "held-data" in detail
        and "came-data" in detail
        and "yes" in text_of(page.get(f"/outcomes/{first.pk}/"))
    )
    assert "1.12 1.10 to 1.14 2,016 yes, since 15 May 2024, 06:00 UTC" in text_of(
        page.get(f"/outcomes/{first.pk}/")
    )
    profile = text_of(page.get("/hardware/profiles/llama-3.1-8b:A100-80GB:tp1/"))
    assert "Speed drift: iterations take 1.12 times as long" in profile
    assert "since 15 May 2024, 06:00 UTC" in profile
    api = client_of(planner)
    assert [outcome["run"] for outcome in api.get(f"{API}/outcomes/").json()["results"]] == [8, 7]
    figures = api.get(f"{API}/outcomes/{first.pk}/").json()["figures"]
    assert figures["demand"]["wape"] == 0.1
    text = digest_text(now=MONDAY + timedelta(days=7, hours=6))
    assert "- 2024-05-13 to 2024-05-20: It came true; week 0." in text
    assert "week 1" not in text and "Active: run 8" in text and "No schedule fired" in text


def test_over_http(approver, planner, viewer, scenario):
    api, deciding = client_of(planner), client_of(approver)
    body = {**NEW, "scenario": scenario.name, "timezone": "Europe/Berlin"}
    assert client_of(viewer).post(f"{API}/schedules/", body, format="json").status_code == 403
    limits = {"most_replicas": 0.1, "most_cost": 0.1}
    refused = api.post(f"{API}/schedules/", {**body, **limits}, format="json")
    assert refused.status_code == 403 and "approver" in refused.json()["detail"]
    made = api.post(f"{API}/schedules/", body, format="json")
    assert made.status_code == 201, made.content
    link = made["Location"]
    assert api.get(link).json()["timezone"] == "Europe/Berlin"
    assert deciding.patch(link, limits, format="json").json()["most_cost"] == 0.1
    wrong = deciding.patch(link, {"cron": "61 * * * *"}, format="json")
    assert wrong.status_code == 400 and "minute" in wrong.json()["detail"]
    assert api.post(f"{link}pause/").json()["paused"] is True
    assert api.post(f"{link}resume/").json()["paused"] is False
    fired = api.post(f"{link}fire/", {"as_of": "2024-05-13T06:00:00Z"}, format="json")
    assert fired.status_code == 201, fired.content
    firing = api.get(fired["Location"]).json()
    assert (firing["state"], firing["as_of"]) == ("running", "2024-05-13T06:00:00Z")
    assert [firing["id"] for firing in api.get(f"{link}firings/").json()["results"]] == [
        firing["id"]
    ]
    assert "Schedules fired 1 times: 1 running" in api.get(f"{API}/digest/").json()["text"]
    assert api.delete(link).status_code == 204
    assert not Schedule.objects.exists() and Run.objects.exists()
