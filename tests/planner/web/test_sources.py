"""Pages of live sources: made, looked at, paused, removed; what is refused says why."""

from datetime import UTC, datetime, timedelta

from planner.models import Source
from planner.services.sources import samples_store
from tests.planner.web.pages import json_in, signed_in, text_of


def test_a_source_is_made_shown_paused_and_removed(planner, viewer):
    client = signed_in(planner)
    assert "No live source yet" in text_of(client.get("/sources/"))
    assert "Live sources" in text_of(client.get("/traces/"))
    made = client.post("/sources/new/?kind=samples", {"name": "own-counts", "bin_s": "900"})
    assert made.status_code == 302 and made.url == "/sources/own-counts/"
    empty = text_of(client.get("/sources/own-counts/"))
    assert "Nothing has been read yet" in empty and "/api/v1/sources/own-counts/samples/" in empty
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    rows = [
        {"time": now - timedelta(minutes=15 * i), "model": "m", "requests": 90.0, "kv_use": 0.5}
        for i in (2, 3, 5)  # one is missing
    ]
    samples_store(source=Source.objects.get(), user=planner, rows=rows, now=now)
    shown = client.get("/sources/own-counts/")
    assert json_in(shown, "rates-data")["data"][0]["y"] == [0.1, None, 0.1, 0.1]
    assert json_in(shown, "kv-data")["data"][0]["y"] == [0.5, None, 0.5, 0.5]
    assert "1 of 4 bins" in text_of(shown) and "own-counts" in text_of(client.get("/sources/"))
    assert "270" in text_of(client.get("/traces/own-counts/"))
    reader = signed_in(viewer)
    assert "Pause" not in text_of(reader.get("/sources/own-counts/"))
    paused = client.post("/sources/own-counts/pause/", {"paused": "yes"}, follow=True)
    assert "own-counts is paused" in text_of(paused) and "Resume" in text_of(paused)
    assert client.post("/sources/own-counts/read/").status_code == 409
    removed = client.post("/sources/own-counts/delete/", follow=True)
    assert "is removed" in text_of(removed) and not Source.objects.exists()


def test_a_look_keeps_nothing_and_refusals_keep_what_was_typed(planner, settings, tmp_path):
    client = signed_in(planner)
    (tmp_path / "a.csv").write_text("x")
    settings.HEADROOM_SOURCE_FOLDERS = [str(tmp_path)]
    folder = {"name": "logs", "path": str(tmp_path), "bin_s": "300", "format": "auto"}
    looked = client.post("/sources/new/?kind=folder", folder | {"do": "look"})
    assert "a.csv" in text_of(looked) and 'value="logs"' in looked.content.decode()
    for do in ("look", "keep"):
        refused = client.post("/sources/new/?kind=folder", folder | {"do": do, "path": "/etc"})
        assert "adds it to HEADROOM_SOURCE_FOLDERS" in text_of(refused)
    prometheus = {"name": "live", "url": "http://10.0.0.1:9090", "bin_s": "300", "do": "look"}
    assert "adds it to HEADROOM_SOURCES" in text_of(client.post("/sources/new/", prometheus))
    wrong = client.post("/sources/new/", prometheus | {"match": "namespace"})
    assert "Line namespace" in text_of(wrong) and not Source.objects.exists()
    assert client.post("/sources/new/?kind=folder", folder | {"do": "keep"}).status_code == 302
    page = client.get("/sources/new/?kind=bucket").content.decode()
    assert 'name="secret_key_env"' in page and 'name="prefix"' in page
    bucket = folder | {"url": "https://elsewhere.example", "bucket": "traces", "do": "look"}
    refused = client.post("/sources/new/?kind=bucket", bucket)
    assert "is not an address that sources may read" in refused.content.decode()
    assert Source.objects.get().settings == {"path": str(tmp_path)}
