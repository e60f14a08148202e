"""What /metrics says of the work: counted by hand on a few runs."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from planner.models import Run, Workspace
from planner.models.workspace import use_workspace
from planner.selectors.queue_statistics import work_statistics
from planner.services.tokens import token_create
from planner.services.worker import run_execute
from planner.services.workspaces import installation_admin

NOW = timezone.now()


def made(kind: str, state: str, *, took: float | None = None, **fields: object) -> Run:
    begin = NOW - timedelta(seconds=1000)
    if took is not None:
        fields |= {"started_at": begin, "finished_at": begin + timedelta(seconds=took)}
    return Run.objects.create(kind=kind, state=state, **fields)


@pytest.fixture
def runs(db):
    for took in (1.0, 2.0, 9.0):
        made("plan", "completed", took=took)
    made("plan", "failed", took=1.0, reason="No plan is feasible")
    made("plan", "running", started_at=NOW - timedelta(seconds=30))
    for age in (20, 5):
        row = made("compare", "pending")
        Run.objects.filter(pk=row.pk).update(created_at=NOW - timedelta(seconds=age))
    with use_workspace(Workspace.objects.create(slug="other", name="Other")):
        made("size", "cancelled", took=1.0)


def test_what_waits_what_ended_and_how_long_it_took(runs):
    work = work_statistics(NOW)
    assert {(g.kind, g.state, g.runs, round(g.oldest_s)) for g in work.unfinished} == {
        ("compare", "pending", 2, 20),
        ("plan", "running", 1, 30),
    }
    assert [(e.kind, e.state, e.reason, e.runs) for e in work.ended] == [
        ("plan", "completed", "", 3),
        ("plan", "failed", "No plan is feasible", 1),
    ]
    (took,) = work.times
    assert (took.kind, took.median_s, took.longest_s) == ("plan", 2.0, 9.0)
    every = work_statistics(NOW, everywhere=True).ended
    assert {(e.workspace, e.kind) for e in every} == {("main", "plan"), ("other", "size")}


def test_prometheus_reads_it_and_a_token_only_its_own(runs, reader, admin):
    installation_admin(person=admin, on=True)
    near = _scraped(token_create(user=admin).key)
    of = 'workspace="main",kind="plan"'
    assert 'headroom_runs_going{workspace="main",kind="compare",state="waiting"} 2\n' in near
    assert f'headroom_runs_ended{{{of},state="failed",reason="No plan is feasible"}} 1\n' in near
    assert f'headroom_run_seconds{{{of},quantile="0.5"}} 2.000\n' in near
    assert "# TYPE headroom_run_seconds summary\n" in near  # quantiles are of summaries alone
    assert 'workspace="other"' in near
    key = reader._credentials["HTTP_AUTHORIZATION"].split()[1]
    metrics_text = _scraped(key)
    assert of in metrics_text and "other" not in metrics_text


def _scraped(key: str) -> str:
    return Client().get("/metrics", headers={"Authorization": f"Bearer {key}"}).content.decode()


def test_a_run_says_what_kind_of_ending_it_had(planner):
    run = Run.objects.create(kind="plan", state="pending", document="no scenario", owner=planner)
    run_execute(run_id=run.pk)
    run.refresh_from_db()
    assert (run.state, run.reason) == ("failed", "The scenario is not valid")
