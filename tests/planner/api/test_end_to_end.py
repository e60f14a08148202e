"""A script's whole way over HTTP, with a real worker: upload, plan, poll, results as CSV."""

import csv
import io
import time
from pathlib import Path

import pytest

from tests.planner.samples import client_of

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
OVER_WITHIN_S = 240.0

pytestmark = pytest.mark.e2e


def polled(api, started):
    """The run in Location, when it is over."""
    assert started.status_code == 202, started.content
    until = time.monotonic() + OVER_WITHIN_S
    while time.monotonic() < until:
        run = api.get(started["Location"]).json()
        if run["state"] not in ("pending", "running"):
            return run
        time.sleep(0.2)
    pytest.fail(f"run {run['id']} is still {run['state']}: {run['stage']}")


def test_from_a_file_to_a_plan(celery_worker_process, planner):
    api = client_of(planner)
    with (EXAMPLES / "small-week.csv").open("rb") as file:
        upload = api.post("/api/v1/ingest/", {"file": file}, format="multipart")
    assert polled(api, upload)["state"] == "completed"

    document = (EXAMPLES / "first-plan.yml").read_text()
    document = document.replace("file: small-week.csv", "trace: small-week")
    run = polled(api, api.post("/api/v1/plan/", {"document": document}, format="json"))
    assert run["state"] == "completed", run["problem"]
    assert (run["progress"], run["name"]) == (1.0, "First plan")
    assert run["log"]

    result = api.get(run["links"]["results"]).json()
    assert result["plan"]["status"] in ("optimal", "feasible")
    decisions = result["plan"]["decisions"]
    tables = api.get(run["links"]["tables"]).json()["links"]
    text = api.get(tables["plan"], headers={"Accept": "text/csv"}).content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["target"]) for row in rows] == [d["target"] for d in decisions]
    assert [row["period_start"] for row in rows] == [d["period"] for d in decisions]
    assert all(row["target"] >= 1 for row in decisions)
