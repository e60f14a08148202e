"""Plots without a library: valid, with every value where it belongs."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bench.experiments import (
    heteroscale,
    heteroscale_readings,
    heteroscale_service,
    heteroscale_workloads,
    sageserve,
    svg,
)
from bench.experiments.sageserve_day import ARRIVALS, HISTORY_DAYS, Day, Service, scenario_of
from bench.experiments.sageserve_fleet import DAYS, MODELS, MONDAY
from planner.domain.traffic.traffic import build_traffic
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.settings import settings_of
from tests.planner.coarse import coarse_sizes
from tests.shared_folder import shared

SVG = "{http://www.w3.org/2000/svg}"


def test_lines_leave_gaps_and_escape_words() -> None:
    plot = svg.lines("a < b", "hour", "n", [0, 1, 2, 3], {"one & two": [1, float("nan"), 3, 4]})
    tree = ElementTree.fromstring(plot)
    (path,) = tree.iter(f"{SVG}path")
    assert path.attrib["d"].count("M") == 2 and path.attrib["d"].count("L") == 1
    assert "a < b" in {text.text for text in tree.iter(f"{SVG}text")}


def test_bars_stand_on_the_axis_in_proportion() -> None:
    plot = svg.bars("t", "y", ["a", "b"], {"ours": [1.0, 2.0], "theirs": [None, 4.0]})
    tree = ElementTree.fromstring(plot)
    rects = [r.attrib for r in tree.iter(f"{SVG}rect") if "x" in r.attrib and r.attrib["y"] != "26"]
    heights = sorted(float(rect["height"]) for rect in rects)
    assert heights == pytest.approx([heights[0], 2 * heights[0], 4 * heights[0]], abs=0.2)
    assert len({round(float(r["y"]) + float(r["height"]), 1) for r in rects}) == 1


def test_the_day_is_the_busiest_that_has_days_before_it(tmp_path: Path) -> None:
    shared(ARRIVALS)
    day = Day(tmp_path, 0.5)
    assert str(day.date) == "2024-05-16"
    assert HISTORY_DAYS == 3 and day.isl["mean"] > day.osl["mean"] > 50
    calm, wild = (tmp_path / f"day{b}.csv" for b in ("1", "8"))
    Day(tmp_path, 0.5, bursts=8.0)
    assert calm.stat().st_size != wild.stat().st_size


def test_services_share_the_gpus_of_a_region_and_none_is_left_over() -> None:
    lengths = ({"mean": 100, "cv": 1.0}, {"mean": 10, "cv": 1.0})
    services = [
        Service(name, name, {"model": name, "gpu": "H100-SXM", "tp": tp}, "conv", 0.1, lengths)
        for name, (tp, _, _) in MODELS.items()
    ]
    built = build_hardware(parse(json.dumps(scenario_of(services, 0.5, MONDAY, days=DAYS))))
    assert built.today is not None
    held = sum(built.today[m, :, g] * built.profiles[m, g].tp for m, g in built.profiles)
    assert built.capacity_gpus[:, 0].tolist() == held.tolist() == [220] * 3  # 10 of 8, 8, 4, 2


def test_every_figure_of_theirs_has_one_of_ours_beside_it() -> None:
    assert set(sageserve.THEIRS) <= {"reactive", *sageserve.STRATEGIES}


def test_heteroscales_pieces_on_two_hours_of_little_traffic(tmp_path: Path) -> None:
    shared(ARRIVALS)
    workload = heteroscale_workloads.dialogue(tmp_path, 0.1)
    with coarse_sizes():
        served = heteroscale_service.service(workload, (6.0, 8.0))
    peak = heteroscale_service.load_of(served.study, 900.0).max()
    assert served.flat[0] == np.ceil(served.flat[1] * served.ratio - 1e-9)
    assert (served.flat * served.theta_tps >= peak * (1 - 1e-9)).all()
    results: dict[str, Any] = {"hours": (6.0, 8.0), "drawn": {}}
    results["policies"] = heteroscale.policies(served, ["flat", "decode-tps"], results)
    flat, driven = (results["policies"][name] for name in ("flat", "decode-tps"))
    assert flat["saved"] == 0 and flat["turns"] == flat["out"] == 0
    assert driven["saved"] == pytest.approx(1 - driven["gpu_hours"] / flat["gpu_hours"], abs=1e-3)
    assert results["signals"]["load"] == {
        "correlation": 1.0, "calm_over_busy": results["signals"]["load"]["calm_over_busy"]
    }  # fmt: skip
    assert set(results["signals"]) == {"load", "ttft", "tbt", *heteroscale.PROPORTIONAL}
    assert results["signals"]["prefill-tps"]["correlation"] > 0.9  # what arrives is computed


def test_a_request_holds_the_tokens_of_all_its_images() -> None:
    rates = pl.DataFrame(
        {
            "client": [1, 1, 2, 2, 3],
            "t_s": [0, 21_600, 0, 21_600, 0],
            "rate_rps": [1.0, 2.0, 3.0, 0.0, 4.0],
        }
    )
    lengths = [  # client, from, text, images, tokens of one, output
        (1, 0, 100.0, 2.0, 500.0, 10.0),
        (1, 21_600, 300.0, 1.0, 200.0, 20.0),
        (2, 0, 700.0, None, None, 50.0),  # no images; client 3 is not told of
    ]
    fields = "text_tokens", "image_count", "image_tokens", "output_tokens"
    stats = pl.DataFrame(
        [
            (client, window, field, mean)
            for client, window, *means in lengths
            for field, mean in zip(fields, means, strict=True)
            if mean is not None
        ],
        schema=["client", "window_start_s", "field", "mean"],
        orient="row",
    )
    table = heteroscale_workloads.by_bin(rates, stats)
    assert table["time"].to_list() == [0.0, 21_600.0]
    assert table["requests"].to_list() == [8 * 600.0, 2 * 600.0]
    # 1,100 tokens once and 700 three times: 800 on average, of client 3's four too.
    assert table["input_tokens"].to_list() == pytest.approx([8 * 600 * 800, 2 * 600 * 500])
    assert table["output_tokens"].to_list() == pytest.approx([8 * 600 * 40, 2 * 600 * 20])


@pytest.mark.parametrize("name", ["vision", heteroscale_workloads.STEADY])
def test_the_vision_language_day_is_what_its_clients_asked(tmp_path: Path, name: str) -> None:
    source = heteroscale_workloads.SOURCES[name]
    for file in source.files:
        shared(file)
    workload = source.read(tmp_path, 8.0)
    scenario = parse(json.dumps(heteroscale_service.scenario(workload, workload.hours)))
    traffic = build_traffic(settings_of(scenario).traffic, {"t": workload.stored})
    demand = traffic.demand
    assert len(demand.requests[0]) == 144 and demand.bin_s == 600
    clients = pl.read_parquet(heteroscale_workloads.CLIENTS)["rate_rps"].sum()
    assert demand.requests.sum() == pytest.approx(8 * 600 * clients)
    isl, osl = (
        part.sum() / demand.requests.sum() for part in (demand.input_tokens, demand.output_tokens)
    )
    assert isl == pytest.approx(1442, abs=1) and osl == pytest.approx(129.7, abs=0.1)
    by_bin = demand.input_tokens[0] / demand.requests[0]
    assert (np.ptp(by_bin) < 1) == (name == heteroscale_workloads.STEADY)


def test_turns_are_changes_of_direction() -> None:
    steps = np.array([[2, 1], [0, 0], [0, -1], [-1, 0], [1, 0], [1, -1]])
    assert heteroscale_readings.turns(steps) == 2
