"""Power caps of profiles become columns; limits of sites and racks become rows."""

import itertools

import numpy as np
import pytest
from pydantic import ValidationError

from planner.domain.planning.power_limits import fullest_rack
from planner.errors import ScenarioError
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.schema import Gpu, Profile
from simulation.performance.profile import iteration_s
from tests.planner.inputs.scenario.test_build import BUILT_IN, GPU, MODEL, scenario

PLAIN = {"model": MODEL, "gpu": GPU, "tp": BUILT_IN[2]}
LINE = {"alpha_ms": 8, "beta_ms": 0.1, "gamma_ms": 8, "delta_ms": 0.05}


def test_each_cap_is_a_variant_that_shares_the_gpus() -> None:
    hardware = build_hardware(scenario(profiles=[PLAIN | {"power_caps": [0.6, 0.8]}]))
    caps = [hardware.sections[0, g].power_cap for g in range(3)]
    assert caps == [None, 0.6, 0.8]
    assert len({hardware.arrangement(0, g) for g in range(3)}) == 3
    assert set(hardware.types.tolist()) == {0}
    decode = [float(iteration_s(hardware.profiles[0, g], 32, 32_000, 0, 0)) for g in range(3)]
    prefill = [float(iteration_s(hardware.profiles[0, g], 0, 0, 2048, 2e6)) for g in range(3)]
    for seconds in (decode, prefill):
        assert seconds[1] >= seconds[2] >= seconds[0]
    assert prefill[1] / prefill[0] > decode[1] / decode[0]
    pools = hardware.fleet(np.ones((1, 2, 3), np.int64)).pools
    load = decode[0], 200.0, 200_000.0, 512.0, 1e5
    watts = [float(pool.power.watts(*load)) for pool in pools[:3] if pool.power]
    assert watts[1] <= 0.6 * hardware.gpus[0].tdp_w < watts[2] <= watts[0]


def test_speeds_measured_under_a_cap_are_taken_as_they_are() -> None:
    rows = [PLAIN | LINE, PLAIN | LINE | {"alpha_ms": 8.5, "power_cap": 0.5}]
    hardware = build_hardware(scenario(profiles=rows))
    seconds = [float(iteration_s(hardware.profiles[0, g], 1, 100, 0, 0)) for g in range(2)]
    assert seconds == pytest.approx([0.0081, 0.0086])
    power = hardware.fleet(np.ones((1, 2, 2), np.int64)).pools[1].power
    assert power is not None and power.model.cap == 0.5


def test_an_own_sweep_replaces_the_published_curve() -> None:
    sweep = [{"cap": 0.5, "prefill": 0.7, "decode": 0.9}, {"cap": 1.0, "prefill": 1, "decode": 1}]
    hardware = build_hardware(
        scenario(
            gpus=[{"name": GPU, "power_sweep": sweep}],
            profiles=[PLAIN | {"power_caps": [0.5, 0.75]}],
        )
    )
    free, half, most = (float(iteration_s(hardware.profiles[0, g], 1, 100, 0, 0)) for g in range(3))
    assert half == pytest.approx(free / 0.9) and most == pytest.approx(free / 0.95)


def test_a_sweep_of_clocks_gives_each_cap_its_clock() -> None:
    sweep: list[dict[str, float]] = [
        {"cap": 0.5, "prefill": 0.7, "decode": 0.9, "clock_mhz": 1000},
        {"cap": 1.0, "prefill": 1, "decode": 1, "clock_mhz": 2000},
    ]
    rows = [PLAIN | {"power_caps": [0.75]}, PLAIN | LINE | {"power_cap": 0.5}]
    hardware = build_hardware(scenario(gpus=[{"name": GPU, "power_sweep": sweep}], profiles=rows))
    caps = [getattr(hardware.profiles[0, g], "cap", None) for g in range(3)]
    assert [cap and cap.clock_mhz for cap in caps] == [None, 1500.0, 1000.0]
    with pytest.raises(ValidationError, match="clock_mhz"):
        Gpu.model_validate({"name": GPU, "power_sweep": [sweep[0] | {"clock_mhz": None}, sweep[1]]})


def test_caps_below_what_was_measured_and_contradictions_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"0\.2"):
        build_hardware(scenario(profiles=[PLAIN | {"power_caps": [0.2]}]))
    for wrong in ({"power_cap": 0.5, "power_caps": [0.6]}, {"power_cap": 1.2}):
        with pytest.raises(ValidationError):
            Profile.model_validate(PLAIN | wrong)


def test_the_fleet_of_today_runs_without_a_cap_unless_it_names_one() -> None:
    profiles = [PLAIN | {"power_caps": [0.6, 0.8]}]
    row = {"model": MODEL, "region": "east", "gpu": GPU, "replicas": 2}
    for cap, column in ((None, 0), (0.8, 2)):
        today = [row | ({} if cap is None else {"power_cap": cap})]
        hardware = build_hardware(scenario(profiles=profiles, fleet={"today": today}))
        assert hardware.today is not None
        assert hardware.today[0, 0].tolist() == [2 * (g == column) for g in range(3)]


def test_a_rack_holds_four_servers_unless_stated() -> None:
    east, west = (region.model_dump() for region in scenario().regions)
    east["power"] = {"rack_kw": 20, "gpus_per_rack": 16}
    hardware = build_hardware(scenario(regions=[east, west]))
    assert hardware.gpus_per_rack[:, 0].tolist() == [16, 4 * hardware.gpus[0].gpus_per_node]
    assert hardware.rack_kw.tolist() == [20, np.inf]
    assert hardware.site_kw.tolist() == [np.inf, np.inf]


@pytest.mark.parametrize("seed", range(20))
def test_the_fullest_rack_is_that_of_counting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    replicas = [(int(rng.integers(1, 5)), float(rng.uniform(0.5, 3))) for _ in range(3)]
    gpus, limit = int(rng.integers(4, 9)), float(rng.uniform(2, 9))
    best = max(
        sum(n * kw for n, (_, kw) in zip(counts, replicas, strict=True))
        for counts in itertools.product(range(9), repeat=3)
        if sum(n * tp for n, (tp, _) in zip(counts, replicas, strict=True)) <= gpus
        and sum(n * kw for n, (_, kw) in zip(counts, replicas, strict=True)) <= limit
    )
    assert fullest_rack(gpus, limit, replicas) == pytest.approx(best, abs=1e-5)
