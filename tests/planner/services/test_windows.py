"""Which stretch of a trace a draft plans, and what it says of it."""

from pathlib import Path

import pytest

from planner.inputs.ingest import IngestOptions
from planner.inputs.scenario.document import parse
from planner.models import Trace
from planner.services.draft_windows import (
    BUSIEST_DAY,
    BUSIEST_WEEK,
    DEFAULT_WINDOW,
    LAST_DAY,
    window_choices,
)
from planner.services.drafts import scenario_draft
from planner.services.traces import trace_ingest_path

pytestmark = pytest.mark.django_db
DAYS = 21
BUSY, QUIET = 16, DAYS - 1  # of them, from 0


def ingested(folder: Path, start: str = "2024-05-") -> Trace:
    """Hours of three weeks: a hundred requests each, five times as many on one day, a tenth on the
    last."""
    lines = ["time,requests"]
    for day in range(DAYS):
        rate = {BUSY: 500, QUIET: 10}.get(day, 100)
        for hour in range(24):
            when = (
                f"2024-05-{day + 1:02d}T{hour:02d}:00:00Z" if start else day * 86400 + hour * 3600
            )
            lines.append(f"{when},{rate}")
    path = folder / "hours.csv"
    path.write_text("\n".join(lines) + "\n")
    return trace_ingest_path(path=path, options=IngestOptions(name=path.name, format="demand"))


def test_the_busiest_day_is_planned_and_every_choice_says_its_rank(tmp_path: Path) -> None:
    """The last day was planned whatever it was: of one trace the quietest of 61."""
    trace = ingested(tmp_path)
    choices = {choice.key: choice for choice in window_choices(trace)}
    assert list(choices) == [BUSIEST_DAY, LAST_DAY, BUSIEST_WEEK] and DEFAULT_WINDOW == BUSIEST_DAY
    assert choices[BUSIEST_DAY].label == "Busiest day"
    assert choices[BUSIEST_DAY].sentence == "17 May 2024 is the busiest of 21 days."
    last = choices[LAST_DAY]
    assert last.quiet and last.requests == 240
    assert "is the quietest of 21 days" in last.sentence and "50 times" in last.sentence
    assert choices[BUSIEST_WEEK].duration_s == 7 * 86400
    draft = parse(scenario_draft(trace, choices[BUSIEST_DAY]))
    assert f"{draft.horizon.start:%Y-%m-%d}" == "2024-05-17"
    assert draft.horizon.duration_s == 86400


def test_a_page_does_not_count_a_trace_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft's page binned all requests of its trace each time: half a second of ten million."""
    hours = [f"{hour * 3600},100,10" for hour in range(24 * 4)]
    path = tmp_path / "requests.csv"
    path.write_text("\n".join(["arrival,input_tokens,output_tokens", *hours]) + "\n")
    trace = trace_ingest_path(
        path=path, options=IngestOptions(name=path.name, mapping={"arrival": "arrival:s"})
    )
    expected = window_choices(trace)
    assert expected
    for name in ("bin_requests", "read_demand", "open_store"):
        monkeypatch.setattr(f"planner.inputs.ingest.store.{name}", None, raising=False)
    monkeypatch.setattr("planner.domain.trace_statistics.cache.characterise", None)
    assert window_choices(trace) == expected


def test_one_stretch_is_offered_once(tmp_path: Path) -> None:
    lines = ["time,requests"] + [f"{hour * 3600},{100 + hour}" for hour in range(24 * 6)]
    path = tmp_path / "growing.csv"
    path.write_text("\n".join(lines) + "\n")
    trace = trace_ingest_path(
        path=path, options=IngestOptions(name=path.name, format="demand", amounts="counts")
    )
    assert [choice.key for choice in window_choices(trace)] == [BUSIEST_DAY]


def test_a_trace_without_dates_has_its_busiest_day_too(tmp_path: Path) -> None:
    trace = ingested(tmp_path, start="")
    choice = window_choices(trace)[0]
    assert choice.start_s == BUSY * 86400
    document = scenario_draft(trace, choice)
    assert f"start: {BUSY * 86400}" in document
    assert parse(document).horizon.start.timestamp() == BUSY * 86400  # type: ignore[union-attr]
