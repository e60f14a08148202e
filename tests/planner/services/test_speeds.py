"""From samples to a notice: replicas that have become slower than the profile of the plan in force
are told of once, at the reading that shows it, and again in what came of the plan."""

from datetime import UTC, datetime, timedelta

import pytest

from planner.models import ActivePlan, Channel, Delivery, Outcome, Run, Source, User
from planner.models.notification import Event
from planner.outputs.options import ExportOptions
from planner.selectors.schedules import observed_speeds
from planner.services.active_plans import plan_activate
from planner.services.plan_outcomes import outcomes_tick, speeds_judge
from planner.services.runs import run_create
from planner.services.scenarios import scenario_create
from planner.services.sources import samples_store, source_create
from planner.services.worker import run_execute
from tests.planner.toy import FLEET
from tests.planner.web.pages import signed_in, text_of

SCENARIO = (
    """\
version: 1
name: Live
"""
    + FLEET
    + """\
traffic:
  bin_s: 300
  sources:
    - {trace: engines, model: m, regions: {east: 1}, tiers: {chat: 1}}
fleet: {startup_s: 60}
policies: [flat-peak, lt-i]
forecast: {method: last-value}
horizon: {start: end, period_s: 900, duration_s: 1800}
"""
)
NOW = datetime(2026, 4, 1, 12, tzinfo=UTC)
BIN = timedelta(minutes=5)
PROFILE_S = 0.0125  # three sequences and hardly a prompt: 12 ms + 3 x 0.15 ms + 0.06 ms x 0.5


def send(source: Source, user: User, begins: datetime, bins: int, times: float) -> datetime:
    """Bins of two replicas whose iterations take ``times`` as long as the profile says."""
    rows = [
        {
            "time": begins + n * BIN, "model": "m", "requests": 60.0, "input_tokens": 24_000.0,
            "output_tokens": 1_800.0, "running": 4.0, "replicas": 2.0,
            "tbt_mean_s": PROFILE_S * times,
        }
        for n in range(bins)
    ]  # fmt: skip
    ends = begins + bins * BIN
    samples_store(source=source, user=user, rows=rows, now=ends)
    return ends


@pytest.fixture
def source(planner: User) -> Source:
    """With a day before NOW, and a plan in force from then on."""
    made = source_create(owner=planner, name="engines", kind="samples", settings={}, bin_s=300)
    send(made, planner, NOW - timedelta(days=1), 288, 1.0)
    scenario = scenario_create(owner=planner, document=SCENARIO)
    run = run_create(owner=planner, kind=Run.Kind.PLAN, scenario=scenario, enqueue=False)
    run_execute(run_id=run.pk, raise_errors=True)
    run.refresh_from_db()
    plan_activate(run=run, options=ExportOptions(repeat="daily"), user=None, now=NOW)
    return made


def told() -> list[str]:
    rows = Delivery.objects.filter(event=Event.DRIFT).order_by("pk")
    return list(rows.values_list("text", flat=True))


def test_a_drift_is_told_once_while_it_lasts(planner, source):
    Channel.objects.create(kind="email", address="ops@example.com", user=planner, by=planner)
    assert speeds_judge(source_id=source.pk) == []  # nothing of the plan's time yet
    until = send(source, planner, NOW, 12, 1.0)
    (kept,) = speeds_judge(source_id=source.pk)
    assert (
        kept.drift.times == pytest.approx(1.0, abs=0.03) and not kept.drift.flagged and told() == []
    )
    for _ in range(3):
        until = send(source, planner, until, 12, 1.4)
        (kept,) = speeds_judge(source_id=source.pk)
    assert kept.drift.times == pytest.approx(1.4, rel=0.05) and kept.drift.flagged
    assert (kept.drift.model, kept.drift.region, kept.drift.gpu) == ("m", "east", "G")
    (words,) = told()
    assert "plan of Live: the speed of m on G in east has drifted: iterations take 4" in words
    assert kept.drift.since is not None and kept.drift.since >= NOW + timedelta(hours=1)
    page = text_of(signed_in(planner).get("/sources/engines/"))
    assert "Drifted." in page and "times as long as the profile says" in page
    assert [(speed.source, speed.outcome) for speed in observed_speeds("m", "G", 1)] == [
        ("engines", None)
    ]
    # Over: what comes then is another.
    for times in (1.0, 1.0, 1.0, 1.0, 1.4, 1.4, 1.4):
        until = send(source, planner, until, 12, times)
        (kept,) = speeds_judge(source_id=source.pk)
    assert kept.drift.flagged and len(told()) == 2
    # What came of the plan, once it is over, tells of what it was at its end.
    ActivePlan.objects.update(until=until)
    (outcome,) = outcomes_tick(now=until)
    assert outcome.state == Outcome.State.DONE, outcome.words
    (drift,) = outcome.figures["speed"]
    assert drift["flagged"] and drift["times"] == pytest.approx(1.4, rel=0.05)
    assert told()[2:] == [outcome.words] and "in east has drifted" in outcome.words
