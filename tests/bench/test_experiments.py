"""Plots without a library: valid, with every value where it belongs."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bench.experiments import (
    heteroscale_service,
    heteroscale_workloads,
)
from bench.experiments.sageserve_day import Service, scenario_of
from bench.experiments.sageserve_fleet import DAYS, MODELS, MONDAY
from planner.domain.traffic.traffic import build_traffic
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.settings import settings_of
from tests.shared_folder import shared


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
