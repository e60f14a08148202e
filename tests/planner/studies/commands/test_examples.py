"""Every worked example of the documentation parses and can be carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.ingest import IngestOptions, ingest_file
from planner.scenario.document import parse, with_traces
from planner.studies.commands import compare
from planner.studies.progress import silent
from planner.studies.traffic.sources import StoredTrace
from tests.planner.studies.builders import ROOT
from tests.shared import shared

EXAMPLES = sorted((ROOT / "docs/examples").glob("*.yml"))


def test_there_are_examples() -> None:
    assert EXAMPLES


def carried_out(path: Path, folder: Path) -> dict[str, Any]:
    """The comparison that an example makes of its own traffic."""
    text = path.read_text(encoding="utf-8")
    traces, names = {}, {}
    for index, source in enumerate(parse(text, path.name).traffic.sources):
        assert source.file is not None, "an example brings its own traffic"
        file = shared(path.parent / source.file)
        store = folder / str(index)
        report = ingest_file(file, store, IngestOptions(name=file.name))
        names[index] = f"{index}-{file.name}"
        traces[names[index]] = StoredTrace(file.name, report.kind, report.clock, store)
    scenario = parse(with_traces(text, names), path.name)
    # Rehearsals have tests of their own, and take as long again.
    return compare.run(scenario, traces, compare.Options(rehearse=0), progress=silent).document


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    document = carried_out(path, tmp_path)
    assert document["ranking"] and document["headline"]
    for figures in document["policies"].values():
        assert figures["arrived"] == document["requests"] > 0
        assert figures["arrived"] == (
            figures["completed"] + figures["rejected"] + figures["unfinished"] + figures["not_due"]
        )
