"""Traces over the API: uploading, reading, demand, removing."""

import pytest

from planner.models import Run, Trace
from planner.services.worker import run_execute

URL = "/api/v1/traces/"
# Four requests in 30 minutes: three in the first quarter of an hour, none in the second.
ROWS = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-18 00:00:10.0000000,100,10
2024-05-18 00:05:00.0000000,200,20
2024-05-18 00:14:59.0000000,300,30
2024-05-18 00:30:01.0000000,400,40
"""


@pytest.fixture
def upload(api, tmp_path):
    return uploader(api, tmp_path)


def uploader(client, tmp_path, url=URL):
    def send(content=ROWS, name="conv.csv", headers=None, **fields):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with path.open("rb") as file:
            return client.post(
                url, {"file": file, **fields}, format="multipart", headers=headers or {}
            )

    return send


@pytest.fixture
def ready(upload):
    """An uploaded file that has been read."""
    body = upload().json()
    run_execute(run_id=body["run"]["id"])
    return Trace.objects.get(pk=body["trace"]["id"])


@pytest.mark.parametrize("url", [URL, "/api/v1/ingest/"])
def test_an_upload_is_read_by_a_run_to_poll(api, planner, tmp_path, url):
    answer = uploader(api, tmp_path, url)()
    assert answer.status_code == 202
    body = answer.json()
    assert body["known"] is False
    assert body["trace"]["state"] == "uploaded"
    assert api.get(answer["Location"]).json() == body["run"]
    run = run_execute(run_id=body["run"]["id"])
    assert (run.state, run.kind, run.owner) == ("completed", "ingest", planner)
    trace = api.get(f"{URL}conv/").json()
    assert trace["state"] == "ready"
    assert (trace["kind"], trace["format"], trace["requests"]) == ("requests", "azure", 4)
    assert trace["report"]["rows"] == 4
    assert trace["report"]["rejected"] == 0
    assert (trace["report"]["input_tokens"], trace["report"]["output_tokens"]) == (1000, 100)
    assert trace["report"]["trace"] == "conv.csv"
    assert api.get(body["run"]["links"]["results"]).json()["rows"] == 4
    assert trace["start_at"].startswith("2024-05-18T00:00:10")


def test_the_same_file_is_recognised_whatever_it_is_called(upload, ready):
    answer = upload(name="other.csv")
    assert answer.status_code == 200
    assert answer.json()["known"] is True
    assert answer.json()["trace"]["id"] == ready.pk
    assert answer.json()["run"] is None
    assert Run.objects.count() == 1


def test_options_reach_the_reader(upload, api):
    columns = "when,prompt,answer\n2024-05-18T00:00:00Z,5,6\n"
    answer = upload(
        columns,
        format="csv",
        map=["arrival=when", "input_tokens=prompt", "output_tokens=answer"],
        model="mine",
        strict="true",
    )
    assert answer.status_code == 202
    run = run_execute(run_id=answer.json()["run"]["id"])
    assert run.state == "completed", run.problem
    report = api.get(f"{URL}conv/").json()["report"]
    assert (report["rows"], report["models"], report["input_tokens"]) == (1, ["mine"], 5)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"format": "excel"}, "format"),
        ({"missing": "maybe"}, "missing"),
        ({"map": "arrival"}, "map"),
        ({"map": "=x"}, "map"),
        ({"map": ["arrival=a", "arrival=b"]}, "map"),
        ({"strict": "perhaps"}, "strict"),
        ({"colour": "red"}, "colour"),
        ({"model": "m" * 81}, "model"),
    ],
)
def test_options_that_are_unknown_or_wrong_name_their_field(upload, fields, field):
    answer = upload(**fields)
    assert answer.status_code == 400
    assert [fault["field"] for fault in answer.json()["errors"]] == [field]
    assert not Trace.objects.exists()


def test_without_a_file_there_is_no_upload(api):
    answer = api.post(URL, {"format": "azure"}, format="multipart")
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == "file"
    assert api.post(URL, {"file": "text"}, format="multipart").status_code == 400
    refused = api.post(URL, {"file": "text"}, format="json")
    assert refused.status_code == 415
    assert "multipart/form-data" in refused.json()["detail"]
    assert "page 1" in api.get(URL, {"page": 9}).json()["detail"]
    assert api.post(URL, "x", content_type="multipart/form-data").status_code == 400


def test_a_file_above_the_quota_is_refused(upload, settings):
    settings.HEADROOM_MAX_UPLOAD_BYTES = 2000
    answer = upload(ROWS * 40)
    assert answer.status_code == 413
    assert answer.json()["status"] == 413
    assert not Trace.objects.exists()


def test_the_same_key_and_file_give_the_first_run(upload):
    key = {"Idempotency-Key": "one"}
    first = upload(headers=key)
    again = upload(headers=key)
    assert again["Location"] == first["Location"]
    run_execute(run_id=first.json()["run"]["id"])
    over = upload(headers=key)
    assert over.status_code == 200
    assert over["Location"] == first["Location"]
    assert over.json()["run"]["state"] == "completed"
    assert Run.objects.count() == 1


def test_the_same_key_with_another_file_is_refused_and_leaves_nothing(upload, data_dir):
    key = {"Idempotency-Key": "one"}
    upload(headers=key)
    kept = sorted((data_dir / "uploads").iterdir())
    answer = upload(ROWS + "2024-05-18 01:00:00.0000000,1,1\n", headers=key)
    assert answer.status_code == 422
    assert Trace.objects.count() == Run.objects.count() == 1
    assert sorted((data_dir / "uploads").iterdir()) == kept


def test_lists_are_short_filtered_ordered_and_paged(api, trace, upload, django_assert_num_queries):
    run_execute(run_id=upload().json()["run"]["id"])  # the name is taken: it becomes conv-2
    with django_assert_num_queries(4):  # token, where they belong, count, rows
        listed = api.get(URL).json()
    assert listed["count"] == 2
    assert "report" not in listed["results"][0]

    def names(query):
        return [item["name"] for item in api.get(f"{URL}?{query}").json()["results"]]

    assert names("ordering=requests") == ["conv-2", "conv"]
    assert names("kind=demand") == []
    assert names("format=azure&state=ready&ordering=name") == ["conv", "conv-2"]
    assert names("name=V-2") == ["conv-2"]


@pytest.mark.parametrize(
    ("query", "choices"),
    [
        ("kind=x", Trace.Kind.values),
        ("state=x", Trace.State.values),
        ("ordering=report", ["name"]),
        ("sort=name", ["ordering"]),
    ],
)
def test_a_list_refuses_what_it_does_not_know_with_the_choices(api, trace, query, choices):
    answer = api.get(f"{URL}?{query}")
    assert answer.status_code == 400
    assert all(choice in answer.json()["detail"] for choice in choices)


def test_a_trace_is_found_by_name_and_id_and_has_an_etag(api, trace):
    by_name = api.get(f"{URL}conv/")
    assert by_name.json() == api.get(f"{URL}{trace.pk}/").json()
    same = api.get(f"{URL}conv/", headers={"If-None-Match": by_name["ETag"]})
    assert same.status_code == 304


@pytest.mark.parametrize("which", ["none", "²", "9" * 100, "%00", ".."])
def test_a_trace_that_is_not_there_is_404(api, trace, which):
    assert api.get(f"{URL}{which}/").status_code == 404


def test_demand_is_counted_per_bin(api, ready):
    body = api.get(f"{URL}{ready.name}/demand/?bin_s=900").json()
    assert (body["trace"], body["clock"]) == ("conv", "utc")
    (series,) = body["series"]
    assert series["bin_s"] == 900
    assert series["requests"] == [3, 0, 1]
    assert series["input_tokens"] == [600, 0, 400]
    assert series["output_tokens"] == [60, 0, 40]
    assert series["start_s"] == 1715990400  # midnight
    tag = api.get(f"{URL}conv/demand/")["ETag"]
    assert api.get(f"{URL}conv/demand/", headers={"If-None-Match": tag}).status_code == 304


def test_a_demand_file_comes_in_its_own_bins_with_its_gaps(api, upload):
    rows = "bin_start,requests\n2024-05-18T00:00:00Z,5\n2024-05-18T00:20:00Z,7\n"
    rows += "2024-05-18T00:30:00Z,8\n"
    run = run_execute(run_id=upload(rows, format="demand").json()["run"]["id"])
    assert run.state == "completed", run.problem
    (series,) = api.get(f"{URL}conv/demand/").json()["series"]
    assert series["bin_s"] == 600
    assert series["requests"] == [5, None, 7, 8]
    assert series["input_tokens"] is None
    assert api.get(f"{URL}conv/demand/?bin_s=900").status_code == 400


@pytest.mark.parametrize("bin_s", ["0", "-1", "nan", "inf", "x", "1e9"])
def test_bins_that_cannot_be_are_refused(api, ready, bin_s):
    answer = api.get(f"{URL}conv/demand/?bin_s={bin_s}")
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == "bin_s"


def test_more_bins_than_an_answer_holds_are_refused(api, upload):
    far = ROWS + "2026-05-18 00:00:00.0000000,1,1\n"
    run_execute(run_id=upload(far).json()["run"]["id"])
    answer = api.get(f"{URL}conv/demand/?bin_s=1")
    assert answer.status_code == 400
    assert "bins" in answer.json()["detail"]


@pytest.mark.parametrize("what", ["demand", "character"])
def test_a_trace_that_is_not_read_yet_has_no_figures(api, upload, what):
    upload()
    answer = api.get(f"{URL}conv/{what}/")
    assert answer.status_code == 409
    assert "still being read" in answer.json()["detail"]


def test_a_trace_and_its_columns_are_removed(api, ready, data_dir):
    store = data_dir / ready.store
    assert store.exists()
    assert api.delete(f"{URL}conv/").status_code == 204
    assert not store.exists()
    assert api.delete(f"{URL}conv/").status_code == 404


def test_who_only_reads_is_refused_before_the_body_is_read(reader, monkeypatch):
    monkeypatch.setattr("planner.api.views.traces.UploadRequest", None)
    answer = reader.post("/api/v1/ingest/", {"file": "x"})
    assert answer.status_code == 403


def test_the_document_describes_what_a_trace_is_like(api, ready):
    """Every key of the answer is a property of its schema, and the other way round."""
    schema = api.get("/api/v1/schema/?format=json")
    assert schema.status_code == 200, schema.content[:500]
    answered = schema.json()["paths"][f"{URL}{{name}}/character/"]["get"]["responses"]["200"]
    shape = answered["content"]["application/json"]["schema"]["properties"]
    body = api.get(f"{URL}conv/character/").json()
    assert set(shape) == set(body)
    assert set(shape["lengths"]["items"]["properties"]) == set(body["lengths"][0])
    days = shape["days"]["properties"]["days"]["items"]
    assert set(days["properties"]) == set(body["days"]["days"][0])
    assert set(shape["rhythm"]["properties"]) == set(body["rhythm"])


def test_a_refused_file_is_read_again_as_is_said(api, upload):
    rows = "when,question,answer\n" + "1,10,2\n" * 5
    asked = upload(rows, "odd.csv").json()["run"]["id"]
    assert run_execute(run_id=asked).state == Run.State.FAILED
    shown = api.get(f"{URL}odd/reading/").json()
    assert (shown["columns"], shown["rows"][0]) == (
        ["when", "question", "answer"],
        ["1", "10", "2"],
    )
    body = {"map": ["arrival=when", "input_tokens=question", "output_tokens=answer"]}
    key = {"Idempotency-Key": "again"}
    answer = api.post(f"{URL}odd/reading/", body, format="json", headers=key)
    assert answer.status_code == 202
    same = api.post(f"{URL}odd/reading/", body, format="json", headers=key)
    assert same["Location"] == answer["Location"]
    other = {"map": ["arrival=when", "input_tokens=answer", "output_tokens=question"]}
    refused = api.post(f"{URL}odd/reading/", other, format="json", headers=key)
    assert (refused.status_code, "other values" in refused.json()["detail"]) == (422, True)
    assert run_execute(run_id=answer.json()["id"]).state == "completed"
    assert api.get(f"{URL}odd/").json()["report"]["input_tokens"] == 50
    assert api.get(f"{URL}odd/reading/").status_code == 409
    assert api.post(f"{URL}odd/reading/", body, format="json").status_code == 409
