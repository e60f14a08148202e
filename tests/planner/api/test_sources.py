"""Live sources over REST: made, sent samples, read, looked at, removed."""

from planner.models import Source

URL = "/api/v1/sources/"


def test_the_life_of_a_source_that_is_sent_samples(api, reader):
    made = api.post(URL, {"name": "own-counts", "kind": "samples", "bin_s": 900}, format="json")
    assert made.status_code == 201 and made.json()["links"]["trace"] is None
    url_of = f"{URL}own-counts/"
    bins = [
        {"time": f"2026-04-01T10:{m:02d}:00Z", "model": "m", "requests": 10 + m, "ttft": {"1": 9}}
        for m in (0, 15, 45)
    ]
    for _ in range(2):  # safe to repeat
        taken = api.post(f"{url_of}samples/", {"samples": bins}, format="json")
        assert taken.status_code == 200 and taken.json()["requests"] == 90
    source_now = api.get(url_of).json()
    assert (source_now["state"], source_now["bins"], source_now["gaps"]) == ("read", 4, 1)
    demand = api.get(f"{source_now['links']['trace']}demand/").json()["series"][0]
    assert demand["requests"] == [10, 25, None, 55]
    span = {"start": "2026-04-01T10:15:00Z", "end": "2026-04-01T11:00:00Z"}
    series = api.get(f"{url_of}series/", span).json()
    assert [row["requests"] for row in series["bins"]] == [25, 55]
    assert series["histograms"][0] | {"bin_start": 0} == {
        "model": "m", "region": "", "tier": "", "bin_start": 0, "what": "ttft_s",
        "least": 0, "most": 1, "count": 9,
    }  # fmt: skip
    assert api.get(f"{url_of}readings/").json()["count"] == 2
    assert reader.get(url_of).status_code == 200
    assert reader.post(f"{url_of}samples/", {"samples": bins}, format="json").status_code == 403
    assert api.post(f"{url_of}read/").status_code == 409  # nothing to read
    assert api.patch(url_of, {"paused": True}, format="json").json()["paused"] is True
    assert api.post(f"{url_of}samples/", {"samples": bins}, format="json").status_code == 409
    assert api.delete(url_of).status_code == 204 and api.get(url_of).status_code == 404


def test_what_is_refused_says_why(api, reader, settings):
    settings.HEADROOM_SOURCES = ["http://127.0.0.1:9"]
    gone = {"kind": "prometheus", "settings": {"url": "http://127.0.0.1:9"}}
    prometheus = {"kind": "prometheus", "settings": {"url": "http://10.0.0.1:9090"}}
    for path, body, status, says in (
        ("", {"name": "x", **prometheus}, 422, "HEADROOM_SOURCES"),
        ("preview/", prometheus, 422, "HEADROOM_SOURCES"),
        ("preview/", gone, 422, "did not answer"),
        ("", {"name": "x", "kind": "ftp"}, 400, "kind"),
        ("", {"name": "x", "kind": "samples", "bin": 3}, 400, "bin"),
        ("none/samples/", {"samples": []}, 404, "no source 'none'"),
    ):
        answer = api.post(f"{URL}{path}", body, format="json")
        assert answer.status_code == status and says in str(answer.json()), answer.json()
    made = api.post(URL, {"name": "x", "kind": "samples"}, format="json").json()
    url_of = f"{URL}{made['id']}/"
    for samples, status, says in (
        ([], 400, "samples"),
        ([{"time": "2026-04-01T10:00:01Z", "requests": 1}], 422, "bin of 300 s"),
        ([{"time": "2026-04-01T10:00:00Z", "requests": -1}], 400, "requests"),
        ([{"time": "2026-04-01T10:00:00Z", "tokens": 1}], 400, "tokens"),
        ([{"time": "2026-04-01T10:00:00Z", "kv_use": 1.5}], 400, "kv_use"),
        ([{"time": "2026-04-01T10:00:00Z", "requests": 1, "ttft": {"x": 1}}], 422, "no bucket"),
    ):
        answer = api.post(f"{url_of}samples/", {"samples": samples}, format="json")
        assert answer.status_code == status and says in str(answer.json()), answer.json()
    assert api.get(f"{url_of}series/", {"start": "1990-01-01T00:00:00Z"}).status_code == 400
    assert Source.objects.count() == 1
