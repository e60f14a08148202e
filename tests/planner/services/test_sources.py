"""Live sources: their series as traces, snapshots, refusals."""

import shutil
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from planner.errors import NotAllowed, NotReady, SourceError
from planner.inputs.ingest import read_demand
from planner.inputs.scenario import document as text
from planner.models import Source, Trace
from planner.services.scenarios import scenario_create
from planner.services.sources import (
    current_trace,
    pin_live_sources,
    samples_store,
    source_change,
    source_create,
    source_delete,
)
from planner.services.traces import trace_delete
from planner.storage import row_arrays
from tests.planner.samples import DOCUMENT

START = datetime(2026, 4, 1, tzinfo=UTC)
NOW = datetime(2026, 5, 1, tzinfo=UTC)


def sent(first, values, model="llama-3.1-8b"):
    rows = [
        {
            "time": START + timedelta(minutes=15 * (first + i)), "model": model,
            "requests": float(n), "input_tokens": 100.0 * n, "output_tokens": 10.0 * n,
        }
        for i, n in enumerate(values)
    ]  # fmt: skip
    return {"rows": rows, "now": NOW}


@pytest.fixture
def source(planner):
    return source_create(owner=planner, name="chat-live", kind="samples", settings={}, bin_s=900)


def requests_of(trace: Trace):
    (series,) = read_demand(row_arrays.folder(trace.store))
    return series.requests.tolist()


def test_a_number_that_is_given_again_brings_nothing_of_who_had_it(source, planner):
    """As after a restore: rows and numbers are those of the backup, folders are not all."""
    samples_store(source=source, user=planner, **sent(0, [4], model="llama-3.1-70b"))
    had = row_arrays.folder(Source.objects.get(pk=source.pk).store)
    for number in range(source.pk + 1, source.pk + 9):
        left = had.with_name(had.name.replace(str(source.pk), str(number), 1))
        shutil.copytree(had, left)
    other = source_create(owner=planner, name="other", kind="samples", settings={}, bin_s=900)
    assert source.pk < other.pk < source.pk + 9
    samples_store(source=other, user=planner, **sent(0, [5]))
    assert requests_of(current_trace(Source.objects.get(pk=other.pk))) == [5.0]


def test_samples_become_a_trace_that_grows(source, planner):
    samples_store(source=source, user=planner, **sent(0, [4, 5]))
    first = current_trace(source)
    assert (first.name, first.kind, first.state) == ("chat-live", "demand", "ready")
    samples_store(source=source, user=planner, **sent(1, [5, 6]))  # a bin again, and one more
    again = current_trace(Source.objects.get(pk=source.pk))
    assert again.pk == first.pk and requests_of(again) == [4.0, 5.0, 6.0]
    assert requests_of(first) == [4.0, 5.0]  # for a run that has begun on it
    assert again.requests == 15 and source.readings.count() == 2


def test_what_was_known_at_a_moment_stays_as_it_was(source, planner):
    samples_store(source=source, user=planner, **sent(0, range(1, 9)))
    until = START + timedelta(hours=1)
    pin = current_trace(source, until)
    assert pin.name == "chat-live-20260401t0100z" and requests_of(pin) == [1.0, 2.0, 3.0, 4.0]
    assert current_trace(source, until).pk == pin.pk
    samples_store(source=source, user=planner, **sent(1, [20]))  # late
    other = current_trace(source, until)
    assert other.pk != pin.pk and requests_of(other) == [1.0, 20.0, 3.0, 4.0]
    assert requests_of(pin) == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(NotReady, match="no request before"):
        current_trace(source, START)


def test_a_scenario_names_a_source_and_is_pinned(source, planner):
    samples_store(source=source, user=planner, **sent(0, range(1, 9)))
    document = text.edit(DOCUMENT, {"traffic.sources[0].trace": "chat-live"})
    scenario = scenario_create(owner=planner, document=document)
    pinned_text = pin_live_sources(document, START + timedelta(hours=2))
    assert text.outline(pinned_text)["traffic"]["sources"][0]["trace"] == "chat-live-20260401t0200z"
    assert (
        pin_live_sources(DOCUMENT, NOW) == DOCUMENT and pin_live_sources(document, None) == document
    )
    with pytest.raises(NotReady, match="used by scenario"):
        source_delete(source=Source.objects.get(pk=source.pk), user=planner)
    scenario.delete()
    with pytest.raises(NotReady, match="of the live source"):
        trace_delete(trace=current_trace(source), user=planner)
    trace = current_trace(source)
    source_delete(source=Source.objects.get(pk=source.pk), user=planner)
    assert not Source.objects.exists() and not Trace.objects.filter(pk=trace.pk).exists()
    assert not row_arrays.folder(trace.store).exists()


def test_who_may_and_what_is_refused(source, planner, viewer, trace):
    with pytest.raises(NotAllowed):
        samples_store(source=source, user=viewer, **sent(0, [1]))
    with pytest.raises(NotAllowed):
        source_create(owner=viewer, name="mine", kind="samples", settings={})
    make = lambda **more: source_create(  # noqa: E731
        **{"owner": planner, "name": "new", "kind": "samples", "settings": {}} | more
    )
    address = "http://prom:9090"
    prometheus = {"kind": "prometheus"}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"name": "chat-live"}, "a source chat-live already"),
        ({"name": trace.name}, "a trace has the name conv"),
        ({"name": "Chat Live"}, "Chat Live"),
        ({"kind": "ftp"}, "Give one of prometheus, folder, bucket, samples"),
        ({"settings": {"url": "http://x"}}, "url: is not known here"),
        ({"settings": {"url": "a\0b"}}, "NUL character"),
        ({"bin_s": 7}, "bin_s: 7 s"),
        ({"every_s": 1}, "every_s: 1 s"),
        (prometheus, "url: is needed"),
        (prometheus | {"settings": {"url": address}}, "adds it to HEADROOM_SOURCES"),
        (prometheus | {"settings": {"url": "file:///etc/passwd"}}, "no address of a server"),
        (
            prometheus | {"settings": {"url": address, "token_env": "SECRET_KEY"}},
            "token_env: name an environment variable that begins with HEADROOM_SOURCE_",
        ),
        ({"kind": "folder", "settings": {"path": "/etc"}}, "adds it to HEADROOM_SOURCE_FOLDERS"),
    ]  # fmt: skip
    for more, says in refused:
        with pytest.raises(SourceError, match=says):
            make(**more)
    with pytest.raises(SourceError, match="bin_s: this cannot be changed"):
        source_change(source=source, user=planner, changes={"bin_s": 60})
    source_change(source=source, user=planner, changes={"paused": True})
    with pytest.raises(NotReady, match="is paused"):
        samples_store(source=Source.objects.get(), user=planner, **sent(0, [1]))


def test_lengths_of_histograms_are_those_that_are_drawn(source, planner):
    rows = [
        {
            "time": START, "model": "llama-3.1-8b", "requests": 1000.0, "input_tokens": 51_500.0,
            "output_tokens": 20_000.0, "input_lengths": {"2": 500, "100": 0, "102": 500},
        }
    ]  # fmt: skip
    samples_store(source=source, user=planner, rows=rows, now=NOW)
    (series,) = read_demand(row_arrays.folder(current_trace(source).store))
    assert series.input_lengths is not None and series.output_lengths is None
    assert np.mean(series.input_lengths > 50) == 0.5
