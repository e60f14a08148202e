"""Every worked example of the documentation parses and can be carried out."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from planner.domain.formats import figure
from planner.domain.kinds import compare
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.reports.registry import REPORTS
from planner.domain.traffic.sources import StoredTrace
from planner.inputs.ingest import IngestOptions, ingest_file
from planner.inputs.scenario.document import parse, with_traces
from planner.inputs.scenario.schema import Scenario
from tests.planner.domain.builders import ROOT
from tests.shared_folder import shared

SHORT_S = 3600
LAST_VALUE = {"method": "last-value", "quantile": "mean"}
AS_THEY_ARE = ("prefill-decode", "roles")  # tests below hold at their traffic
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.yml"))


def test_there_are_examples() -> None:
    assert EXAMPLES


def example(path: Path, folder: Path) -> tuple[Scenario, dict[str, StoredTrace]]:
    """An example with its own traffic, taken in."""
    text = path.read_text(encoding="utf-8")
    traces, names = {}, {}
    for index, source in enumerate(parse(text, path.name).traffic.sources):
        if source.launch is not None:  # drawn, from no file
            continue
        assert source.file is not None, "an example brings its own traffic"
        file = shared(path.parent / source.file)
        store = folder / str(index)
        report = ingest_file(file, store, IngestOptions(name=file.name))
        names[index] = f"{index}-{file.name}"
        traces[names[index]] = StoredTrace(file.name, report.kind, report.clock, store)
    return parse(with_traces(text, names), path.name), traces


@pytest.fixture(scope="module")
def carried_out(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Path], dict[str, Any]]:
    """The comparison that an example makes of its own traffic, made once; of an hour or of one
    period, on the last value, at half of a file's traffic at most. Test days, methods of forecasts
    and large fleets have tests of their own."""

    @cache
    def made(path: Path) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(path.stem)
        scenario, traces = example(path, folder)
        short = max(SHORT_S, scenario.horizon.period_s or 0)
        short = min(scenario.horizon.duration_s or short, short)
        horizon = scenario.horizon.model_copy(update={"duration_s": short})
        most = math.inf if path.stem in AS_THEY_ARE else 0.25
        sources = [
            source.model_copy(update={"scale": min(source.scale, most)})
            for source in scenario.traffic.sources
        ]
        changes = {
            "horizon": horizon,
            "test_days": [],
            "forecast": scenario.forecast.model_copy(update=LAST_VALUE),
            "traffic": scenario.traffic.model_copy(update={"sources": sources}),
        }
        scenario = scenario.model_copy(update=changes)
        return compare.run(Inputs(scenario, traces), compare.Options(), silent).document

    return made


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, carried_out: Callable[[Path], dict[str, Any]]) -> None:
    document = carried_out(path)
    assert document["ranking"] and document["headline"]
    for figures in document["policies"].values():
        assert figures["arrived"] == document["requests"] > 0
        assert figures["arrived"] == (
            figures["completed"] + figures["rejected"] + figures["unfinished"] + figures["not_due"]
        )


def test_todays_autoscaler_is_next_to_the_plan(
    carried_out: Callable[[Path], dict[str, Any]],
) -> None:
    document = carried_out(ROOT / "docs/examples/autoscalers.yml")
    report = REPORTS["compare"].of(document, lambda _: pl.DataFrame())
    assert document["baseline"] == "epp-inflight:today"
    assert report.opening == document["autoscaler"]
    for name in (document["baseline"], document["recommended"]["policy"]):
        figures = document["policies"][name]
        once = figures["before_cost_usd"] + figures["after_cost_usd"]
        daily = (figures["cost_usd"] - once) * 86_400 / figures["duration_s"]
        assert figure(daily, "$") in report.opening


def test_prefill_and_decode_are_planned(carried_out: Callable[[Path], dict[str, Any]]) -> None:
    document = carried_out(ROOT / "docs/examples/prefill-decode.yml")
    held = {row["role"]: row["target"] for row in document["plan"]["decisions"]}
    assert held["prefill"] > held["decode"] > 0 == held["mixed"]


def test_changing_roles_attain_more_with_the_same_gpus(
    carried_out: Callable[[Path], dict[str, Any]],
) -> None:
    policies = carried_out(ROOT / "docs/examples/roles.yml")["policies"]
    today = policies["today"]
    for name, counted in (("role-switch", "switches"), ("convertible-decode", "diverted")):
        figures = policies[name]
        assert figures["slo_attainment"]["chat"] > today["slo_attainment"]["chat"] + 0.08
        assert figures["gpu_hours"] == pytest.approx(today["gpu_hours"], rel=0.02)
        assert figures[counted] > 0 == today[counted]
    days = policies["role-switch"]["duration_s"] / 86_400
    assert policies["role-switch"]["switches_per_day"] == pytest.approx(
        policies["role-switch"]["switches"] / days
    )
