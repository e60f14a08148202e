"""Runs over the API: polling, results, tables, cancelling, removing."""

import csv
import io

import polars as pl
import pytest

from planner.models import Run
from planner.services.runs import run_create
from planner.storage import row_arrays
from tests.planner.samples import RESULT

URL = "/api/v1/runs/"


@pytest.fixture
def pending(planner, scenario):
    return run_create(owner=planner, kind=Run.Kind.PLAN, scenario=scenario)


def test_a_run_is_polled_until_it_is_over(api, pending):
    url = f"{URL}{pending.pk}/"
    waiting = api.get(url)
    assert waiting["Retry-After"] == "1"
    body = waiting.json()
    assert (body["state"], body["progress"]) == ("pending", 0.0)
    assert body["scenario"] == "Chat"
    tag = waiting["ETag"]
    assert api.get(url, headers={"If-None-Match": tag}).status_code == 304
    Run.objects.filter(pk=pending.pk).update(state=Run.State.COMPLETED, progress=1.0)
    over = api.get(url, headers={"If-None-Match": tag})
    assert over.status_code == 200
    assert over.json()["state"] == "completed"
    assert "Retry-After" not in over
    assert api.get(url, headers={"If-None-Match": over["ETag"]}).status_code == 304


def test_every_link_of_a_run_leads_somewhere(api, completed):
    links = api.get(f"{URL}{completed.pk}/").json()["links"]
    for name, link in links.items():
        if link and name != "cancel":
            assert api.get(link).status_code == 200, name


def test_a_bug_is_told_without_its_traceback(api, pending):
    Run.objects.filter(pk=pending.pk).update(
        state=Run.State.ERRORED, problem="An error.", traceback="secret path"
    )
    assert b"secret path" not in api.get(f"{URL}{pending.pk}/").content
    refused = api.get(f"{URL}{pending.pk}/results/")
    assert refused.status_code == 409
    assert b"secret path" not in refused.content


def test_runs_are_listed_narrowed_and_ordered(
    api, planner, scenario, trace, completed, pending, django_assert_num_queries
):
    ingest = Run.objects.create(kind="ingest", trace=trace, owner=planner, state="failed")
    with django_assert_num_queries(5):  # token, its first use, where they belong, count, rows
        listed = api.get(URL).json()
    assert listed["count"] == 3
    assert "log" not in listed["results"][0]

    def ids(query):
        return [run["id"] for run in api.get(f"{URL}?{query}").json()["results"]]

    assert ids("kind=ingest") == [ingest.pk]
    assert ids("state=completed") == [completed.pk]
    assert ids("trace=conv") == ids(f"trace={trace.pk}") == [ingest.pk]
    assert sorted(ids("scenario=Chat")) == sorted(ids(f"scenario={scenario.pk}"))
    assert sorted(ids("scenario=Chat")) == sorted([completed.pk, pending.pk])
    assert ids("scenario=Nobody") == []
    assert ids("ordering=created_at") == ids("ordering=-created_at")[::-1]
    assert ids("kind=plan&state=completed") == []


@pytest.mark.parametrize(
    "query", ["kind=magic", "state=done", "ordering=owner", "color=red", f"scenario={'9' * 200}"]
)
def test_a_list_refuses_what_it_does_not_know(api, completed, query):
    answer = api.get(f"{URL}?{query}")
    assert answer.status_code == 400
    assert answer.json()["errors"]


def test_results_are_the_figures_as_kept(api, completed):
    answer = api.get(f"{URL}{completed.pk}/results/")
    assert answer.json() == RESULT
    tagged = api.get(f"{URL}{completed.pk}/results/", headers={"If-None-Match": answer["ETag"]})
    assert tagged.status_code == 304


@pytest.mark.parametrize("what", ["results", "savings", "tables", "tables/demand"])
def test_a_run_that_is_not_completed_says_why_it_has_no_results(api, pending, what):
    Run.objects.filter(pk=pending.pk).update(
        state=Run.State.FAILED, problem="There is no trace 'conv'."
    )
    answer = api.get(f"{URL}{pending.pk}/{what}/")
    assert answer.status_code == 409
    assert answer.json()["title"] == "Not possible at this stage"
    assert "There is no trace 'conv'." in answer.json()["detail"]


def test_savings_count_against_the_baseline_asked_for(api, completed):
    url = f"{URL}{completed.pk}/savings/"
    results = api.get(url).json()
    assert results["baseline"] == "flat-peak"
    assert results["policies"]["lt-i"]["cost_usd"] == {
        "value": 60.0,
        "baseline": 80.0,
        "saved": 20.0,
        "fraction": 0.25,
        "equal": None,  # where the two serve equally well
    }
    other = api.get(f"{url}?baseline=lt-i").json()
    assert other["policies"]["flat-peak"]["gpu_hours"]["saved"] == -5.0
    assert other["policies"]["flat-peak"]["carbon_kg"]["fraction"] is None
    wrong = api.get(f"{url}?baseline=none")
    assert wrong.status_code == 400
    assert wrong.json()["errors"][0]["field"] == "baseline"


def test_tables_come_as_json_in_parts(api, completed):
    names = api.get(f"{URL}{completed.pk}/tables/").json()
    assert names["tables"] == ["demand"]
    first = api.get(names["links"]["demand"]).json()
    assert (first["total"], first["limit"], len(first["rows"])) == (1200, 1000, 1000)
    assert first["rows"][0] == {
        "time": "2024-05-18T00:00:00Z",
        "model": "llama-3.1-8b",
        "requests": 0.0,
    }
    assert first["rows"][1]["requests"] is None  # a gap
    rest = api.get(f"{names['links']['demand']}?offset=1000&limit=500").json()
    assert len(rest["rows"]) == 200
    assert rest["rows"][0]["requests"] == 1500.0


@pytest.mark.parametrize("accept", [{}, {"Accept": "text/csv"}])
def test_a_whole_table_comes_as_csv(api, completed, accept):
    query = "" if accept else "?format=csv"
    answer = api.get(f"{URL}{completed.pk}/tables/demand/{query}", headers=accept)
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert f"run-{completed.pk}-demand.csv" in answer["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert len(rows) == 1200
    assert rows[0]["time"] == "2024-05-18T00:00:00Z"
    assert rows[1]["requests"] == ""  # a gap
    table = row_arrays.table_read(completed.store, "demand").fill_nan(None)
    assert sum(float(row["requests"] or 0) for row in rows) == table["requests"].sum()


def test_a_whole_table_comes_as_the_file_it_is_kept_in(api, completed):
    answer = api.get(f"{URL}{completed.pk}/tables/demand/?format=parquet")
    assert answer["Content-Type"] == "application/vnd.apache.parquet"
    table = pl.read_parquet(io.BytesIO(b"".join(answer.streaming_content)))
    assert table.equals(row_arrays.table_read(completed.store, "demand"))
    none = api.get(f"{URL}{completed.pk}/tables/nothing/?format=parquet")
    assert none.status_code == 404 and none["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=-1", "offset=-1", "limit=x", "limit=1e99", f"offset={10**20}"]
)
def test_rows_that_cannot_be_are_refused(api, completed, query):
    assert api.get(f"{URL}{completed.pk}/tables/demand/?{query}").status_code == 400


@pytest.mark.parametrize("table", ["nothing", "..", "%2e%2e%2fsecret-key", "demand.parquet"])
def test_a_table_that_is_not_there_is_404(api, completed, table):
    answer = api.get(f"{URL}{completed.pk}/tables/{table}/")
    assert answer.status_code == 404
    assert answer["Content-Type"] == "application/problem+json"


def test_a_form_that_is_not_offered_is_refused(api, completed):
    url = f"{URL}{completed.pk}/tables/demand/"
    assert api.get(url, headers={"Accept": "application/pdf"}).status_code == 406
    assert api.get(f"{url}?format=pdf").status_code == 404


def test_a_waiting_run_is_cancelled_at_once_and_only_once(api, pending):
    answer = api.post(f"{URL}{pending.pk}/cancel/")
    assert answer.status_code == 200
    assert answer.json()["state"] == "cancelled"
    again = api.post(f"{URL}{pending.pk}/cancel/")
    assert again.status_code == 409
    assert "over" in again.json()["detail"]


def test_a_run_and_its_arrays_are_removed_when_it_is_over(api, completed, pending, data_dir):
    assert api.delete(f"{URL}{pending.pk}/").status_code == 409
    assert (data_dir / completed.store).exists()
    assert api.delete(f"{URL}{completed.pk}/").status_code == 204
    assert not (data_dir / completed.store).exists()
    assert api.delete(f"{URL}{completed.pk}/").status_code == 404


def test_a_run_comes_as_a_file(api, completed):
    """The same bytes as the command's; what is refused says so as a problem."""
    url = f"{URL}{completed.pk}/export/"
    figures = api.get(url, {"to": "json"}, headers={"Accept": "application/yaml"})
    assert figures.status_code == 200 and figures["Content-Type"] == "application/json"
    assert figures["Content-Disposition"] == f'attachment; filename="run-{completed.pk}.json"'
    assert figures.json()["scenario"] == "Chat"
    assert api.get(url, {"to": "csv", "table": "demand"}).content.startswith(b"time,model")
    refusals = {
        "": "This field is required",
        "to=word": "modelclaim",
        "to=keda&color=red": "not known here",
        "to=keda&timezone=Mars": "IANA time zone",
        "to=keda&names=x": "DEFAULT=NAME",
        "to=keda&at=now": "a moment with its zone",
    }
    for query, words in refusals.items():
        refused = api.get(f"{url}?{query}")
        assert refused.status_code == 400 and words in refused.content.decode(), query
    assert api.get(f"{URL}999/export/?to=keda").status_code == 404


def test_a_cursor_tells_every_row_once_while_others_are_made_and_removed(api, planner):
    def made():
        return Run.objects.create(kind="plan", owner=planner, state=Run.State.CANCELLED).pk

    first = [made() for _ in range(5)]
    page = api.get("/api/v1/runs/?cursor=&page_size=2").json()
    assert (page["count"], page["previous"]) == (5, None)
    numbers = [row["id"] for row in page["results"]]
    made()
    Run.objects.filter(pk=numbers[0]).delete()
    while page["next"]:
        page = api.get(page["next"]).json()
        numbers += [row["id"] for row in page["results"]]
    assert numbers == first[::-1]
    assert api.get(page["previous"]).json()["results"][-1]["id"] == first[1]
    assert api.get("/api/v1/runs/?cursor=&ordering=kind").status_code == 400
    assert api.get("/api/v1/runs/?cursor=nonsense").status_code == 404
