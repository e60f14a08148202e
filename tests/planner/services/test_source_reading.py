"""Sources that are read: a real Prometheus, and a folder that files are dropped into."""

import os
import time
from contextlib import ExitStack
from datetime import UTC, datetime

import numpy as np
import pytest

from planner.errors import NotReady, SourceError
from planner.inputs.ingest import read_demand
from planner.inputs.live.publication import sample_of
from planner.models import Source
from planner.services.source_reading import (
    source_preview,
    source_read,
    source_request_reading,
    sources_enqueue,
)
from planner.services.sources import current_trace, source_change, source_create, source_series
from planner.storage import row_arrays
from tests.prometheus import Engine, await_value, exporter, prometheus

BIN_S = 6


def test_a_real_prometheus(planner, settings, tmp_path):
    """An hour of a trace replayed in seconds, two engines, one of which begins anew: what is read
    are the trace's sums."""
    rng = np.random.default_rng(3)
    trace = list(
        zip(rng.integers(2, 900, 80).tolist(), rng.integers(1, 90, 80).tolist(), strict=True)
    )
    first, two = Engine("chat", kv_use=0.25), Engine("chat", kv_use=0.75, waiting=4)
    with ExitStack() as stack:
        targets = [stack.enter_context(exporter(engine)) for engine in (first, two)]
        url = stack.enter_context(prometheus(tmp_path, targets))
        settings.HEADROOM_SOURCES = [url]
        await_value(url, "count(vllm:request_success_total)", 2)
        for i, (prompt, answer) in enumerate(trace[:60]):
            (first, two)[i % 2].finish(prompt, answer, 0.3 if i % 4 else 2.0)
            time.sleep(0.04)
        await_value(url, "sum(vllm:request_success_total)", 60)
        # What is counted and lost by beginning anew within the first bin is not to be seen.
        time.sleep(BIN_S - time.time() % BIN_S + 0.2)
        first.restart()
        for prompt, answer in trace[60:]:
            first.finish(prompt, answer)
        preview = source_preview(user=planner, kind="prometheus", fields={"url": url})
        source = source_create(
            owner=planner, name="chat-live", kind="prometheus", bin_s=BIN_S, every_s=10,
            settings={"url": url, "delay_s": 0, "days": 0.01, "region": "east"},
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while source_series(source).read().requests < 80 and time.monotonic() < deadline:
            time.sleep(0.5)
            source_read(source_id=source.pk, raise_errors=True, only_due=False)
        again = source_read(source_id=source.pk, raise_errors=True, only_due=False)
    samples = source_series(source).read()
    if samples.bins.filter(model="chat")["requests"].null_count():
        pytest.skip("The machine was too busy to scrape every few seconds: those bins are gaps")
    assert samples.requests == 80
    assert samples.bins["input_tokens"].sum() == sum(prompt for prompt, _ in trace)
    assert samples.bins["output_tokens"].sum() == sum(answer for _, answer in trace)
    chat = samples.bins.filter(model="chat")
    assert set(chat["region"]) == {"east"} and chat["replicas"].max() == 2
    assert chat["waiting"].max() == 4 and chat["kv_use"].median() == pytest.approx(0.5)
    assert samples.bins["power_w"].max() == 600
    ttft = samples.histograms.filter(what="ttft_s")
    # Of buckets Prometheus itself tells the increase, about.
    sample = sample_of(ttft)
    assert sample is not None and np.quantile(sample, 0.3) <= 1.0 < sample.max()
    assert again is not None and again.state == Source.State.READ
    kept = current_trace(again)
    (demand,) = read_demand(row_arrays.folder(kept.store))
    assert (demand.model, demand.region, kept.requests) == ("chat", "east", 80)
    assert demand.input_lengths is not None and 1 < np.median(demand.input_lengths) < 1000
    assert any(asked.what == "kv_use" and "gpu_cache" in asked.query for asked in preview.queries)
    assert again.found["engines"] == ["vLLM"]
    # Gone: said once, however often it is asked, and what was read stays.
    for _ in range(2):
        gone = source_read(source_id=source.pk, only_due=False)
    assert gone is not None and gone.state == Source.State.PROBLEM
    assert "did not answer" in gone.problem
    assert source.readings.exclude(problem="").count() == 1
    assert source_series(source).read().requests == 80


@pytest.fixture
def inbox(settings, tmp_path):
    folder = tmp_path / "inbox"
    folder.mkdir()
    settings.HEADROOM_SOURCE_FOLDERS = [str(folder)]
    return folder


def drop(folder, name, text):
    path = folder / name
    path.write_text(text)
    os.utime(path, (time.time() - 60,) * 2)
    return path


def requests_csv(first, last, step=20):
    begin = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
    rows = [
        f"{datetime.fromtimestamp(begin + s, UTC).isoformat()},{100 + s % 7},{20 + s % 5},chat"
        for s in range(first, last, step)
    ]
    return "\n".join(["arrival,input_tokens,output_tokens,model", *rows]) + "\n"


def test_a_folder_that_files_are_dropped_into(planner, inbox):
    source = source_create(
        owner=planner, name="logs", kind="folder", settings={"path": str(inbox)}, bin_s=300
    )
    read = lambda: source_read(source_id=source.pk, only_due=False)  # noqa: E731
    drop(inbox, "1.csv", requests_csv(0, 1000))  # ends in the middle of a bin, where 2.csv goes on
    drop(inbox, "2.csv", requests_csv(1000, 3000))
    (inbox / "still.csv").write_text("arrival,input_to")  # being written
    drop(inbox, "more.csv.part", "x")
    assert read().state == Source.State.READ
    bins = source_series(source).read().bins
    # From the second bin on: the first and the last were seen in part by one file alone.
    assert bins["requests"].to_list() == [None, *[15.0] * 8, None]
    assert read().readings.count() == 2  # each once
    drop(inbox, "again.csv", (inbox / "1.csv").read_text())  # the same bytes
    assert read().readings.count() == 2
    drop(inbox, "3.csv", requests_csv(1500, 2500, step=30))
    drop(inbox, "4.csv", "no,such\n1,2\n")
    drop(inbox, "5.csv", requests_csv(6000, 6900))
    after = read()
    assert after.state == Source.State.PROBLEM and "3.csv, 4.csv" in after.problem
    problems = dict(
        after.readings.exclude(problem="").exclude(file_name="").values_list("file_name", "problem")
    )
    assert "would count twice" in problems["3.csv"] and set(problems) == {"3.csv", "4.csv"}
    trace = current_trace(after)
    (demand,) = read_demand(row_arrays.folder(trace.store))
    assert np.isnan(demand.requests[9:20]).all() and demand.requests[20] == 15  # 5.csv was read
    assert demand.output_lengths is not None and 20 <= np.median(demand.output_lengths) <= 24


def test_counts_in_a_folder_replace_what_was_there(planner, inbox):
    source = source_create(
        owner=planner, name="counts", kind="folder", settings={"path": str(inbox)}, bin_s=300
    )
    head = "time,requests,model\n"
    minutes = [f"2026-04-01T00:{m:02d}:00Z" for m in range(10)]
    drop(inbox, "a.csv", head + "".join(f"{t},1,chat\n" for t in minutes))
    drop(inbox, "b.csv", head + "".join(f"{t},2,chat\n" for t in minutes[5:]))
    source_read(source_id=source.pk, raise_errors=True, only_due=False)
    assert source_series(source).read().bins["requests"].to_list() == [5.0, 10.0]
    drop(inbox, "c.csv", "time,requests\n2026-04-01T00:00:00Z,1\n2026-04-01T01:00:00Z,1\n")
    with pytest.raises(SourceError, match=r"Refused: c\.csv"):
        source_read(source_id=source.pk, raise_errors=True, only_due=False)


def test_a_refused_file_is_tried_again_after_a_remedy_outside_of_it(planner, inbox):
    settings = {"path": str(inbox), "mapping": {"input_tokens": "none"}}
    source = source_create(owner=planner, name="logs", kind="folder", settings=settings, bin_s=300)
    drop(inbox, "1.csv", requests_csv(0, 900))
    for _ in range(2):  # each reading states the reason, and the record has it once
        with pytest.raises(SourceError, match=r"Refused: 1\.csv"):
            source_read(source_id=source.pk, raise_errors=True, only_due=False)
    assert source.readings.filter(file_name="1.csv").count() == 1
    assert not source.readings.filter(problem="").exists()
    source_change(source=source, user=planner, changes={"settings": {"path": str(inbox)}})
    assert source_read(source_id=source.pk).state == Source.State.READ
    assert [reading.requests for reading in source.readings.filter(problem="")] == [45.0]


def test_local_times_in_a_folder_are_read_in_the_stated_zone(planner, inbox):
    settings = {"path": str(inbox), "timezone": "America/New_York"}
    source = source_create(owner=planner, name="logs", kind="folder", settings=settings, bin_s=300)
    drop(inbox, "a.csv", "time,requests\n2026-04-01 00:00:00,1\n2026-04-01 00:05:00,2\n")
    source_read(source_id=source.pk, raise_errors=True, only_due=False)
    first = source_series(source).read().bins["bin_start"].min()
    assert first == datetime(2026, 4, 1, 4, tzinfo=UTC).timestamp()
    wrong = settings | {"timezone": "Mars/Base"}
    with pytest.raises(SourceError):
        source_create(owner=planner, name="other", kind="folder", settings=wrong, bin_s=300)


def test_what_is_due_is_read_by_one_and_pauses_are_kept(planner, inbox):
    source = source_create(
        owner=planner, name="logs", kind="folder", settings={"path": str(inbox)}, bin_s=300
    )
    assert sources_enqueue() == 1
    Source.objects.update(reading_since=datetime.now(UTC))
    assert sources_enqueue() == 0 and source_read(source_id=source.pk) is None  # somebody has it
    Source.objects.update(reading_since=None)
    assert source_read(source_id=source.pk) is not None
    assert source_read(source_id=source.pk) is None and sources_enqueue() == 0  # not due again
    source_change(source=source, user=planner, changes={"paused": True})
    source.refresh_from_db()
    with pytest.raises(NotReady, match="is paused"):
        source_request_reading(source=source, user=planner)
    assert sources_enqueue() == 0
    inbox.rmdir()
    source_change(source=source, user=planner, changes={"paused": False})
    with pytest.raises(SourceError, match="inbox"):
        source_read(source_id=source.pk, raise_errors=True)


def test_secrets_come_from_the_environment(planner, settings, monkeypatch):
    settings.HEADROOM_SOURCES = ["http://127.0.0.1:9"]
    fields = {"url": "http://127.0.0.1:9", "token_env": "HEADROOM_SOURCE_TOKEN"}
    with pytest.raises(SourceError, match="nothing usable in HEADROOM_SOURCE_TOKEN"):
        source_preview(user=planner, kind="prometheus", fields=fields)
    monkeypatch.setenv("HEADROOM_SOURCE_TOKEN", "abc")
    with pytest.raises(SourceError, match="did not answer"):
        source_preview(user=planner, kind="prometheus", fields=fields)
