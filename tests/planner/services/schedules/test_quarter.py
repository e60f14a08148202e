"""The quarter of docs/examples, cut down to two thin weeks: each planned on what was known by then,
reviewed by rule, and held against what came."""

import importlib.util
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from planner.models import ActivePlan, Outcome
from planner.services.plan_outcomes import active_periods, due_periods

SCRIPT = Path(__file__).parents[4] / "docs" / "examples" / "quarter.py"
MONDAY = datetime(2024, 1, 15, tzinfo=UTC)
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("quarter", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_thin_weeks(db, script, shared_data, tmp_path):
    settings = {"scale": 2e-4, "burst": 0.2, "method": "seasonal-naive-week", "period_s": 86_400}
    scenario = script.write(tmp_path, shared_data / "traces", 4, **settings)
    done = script.quarter(scenario, 2, most_replicas=0.5, most_cost=0.5)
    first, second = done["firings"]
    assert (first["state"], second["state"]) == ("review", "approved")
    assert [firing["as_of"] for firing in done["firings"]] == [
        "2024-01-15T00:00:00Z", "2024-01-22T00:00:00Z"
    ]  # fmt: skip
    came = [outcome["figures"] for outcome in done["outcomes"]]
    assert [figures["begins"] for figures in came] == [
        "2024-01-15T00:00:00Z",
        "2024-01-22T00:00:00Z",
    ]
    for figures in came:
        assert figures["demand"]["hours"] == 7 * 24 and figures["demand"]["wape"] > 0
        assert len(figures["hours"]) == 7
        assert figures["replica_hours"] == 24 * sum(row["held"] for row in figures["hours"])
        assert figures["attainment"]["chat"] > 0.5
    assert Outcome.objects.count() == 2 and due_periods(MONDAY + 2 * WEEK) == []


def held(repeat, since, until=None, begins=MONDAY, ends=MONDAY + WEEK):
    return {"repeat": repeat, "since": since, "until": until, "begins": begins, "ends": ends}


@pytest.mark.parametrize(
    ("plan", "now", "expected"),
    [
        (held("once", MONDAY - DAY), MONDAY + DAY, []),  # under way
        (held("once", MONDAY - DAY), MONDAY + WEEK, [(0, 168)]),
        (held("once", MONDAY + HOUR / 2), MONDAY + WEEK, [(0, 168)]),
        (held("once", MONDAY - DAY, MONDAY + DAY), MONDAY + DAY, [(0, 24)]),  # another came
        (held("once", MONDAY - DAY, MONDAY - HOUR), MONDAY + WEEK, []),  # before its time
        (held("once", MONDAY + 9 * WEEK), MONDAY + 9 * WEEK, [(0, 168)]),  # of the past
        (held("weekly", MONDAY), MONDAY + 2.5 * WEEK, [(0, 168), (168, 336)]),
        (held("daily", MONDAY, MONDAY + 30 * HOUR), MONDAY + WEEK, [(0, 30)]),
    ],
)
def test_the_time_that_a_plan_is_judged_on(plan, now, expected):
    judged = active_periods(ActivePlan(workspace_id=1, **plan), now)
    hours = [tuple((edge - MONDAY) / HOUR for edge in stretch) for stretch in judged]
    assert hours == expected
