"""What a flat fleet that serves as well would cost: by brute force, and by its laws."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.domain.progress import silent
from planner.domain.replay.equal_attainment import FlatFleets, equally_good, with_flat_costs
from planner.domain.replay.replay import run_policy
from planner.domain.study import PolicyRun, Study
from planner.policies.choice import policy_of
from tests.planner.domain.replay.test_policies import study


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(
        tmp_path_factory.mktemp("equal"),
        horizon={"period_s": 300, "lead_s": 120, "duration_s": 900},
    )


@pytest.fixture(scope="module")
def fleets(toy: Study) -> FlatFleets:
    return FlatFleets(toy, toy.counts_by_pool(toy.peak), seed=1)


def played(toy: Study, name: str, **arguments: Any) -> PolicyRun:
    return run_policy(toy, policy_of(name, **arguments), seed=1, progress=silent)


def test_the_smallest_flat_fleet_as_good_is_what_trying_all_finds(fleets: FlatFleets) -> None:
    tried = [fleets.replay(np.array([n])) for n in range(1, 9)]
    for summary in tried:
        good = [seen.cost_usd for seen in tried if equally_good(seen, summary)]
        flat = fleets.as_good_as(summary)
        assert flat is not None and flat.cost_usd == pytest.approx(min(good))


def test_it_is_paid_for_as_the_policy_is(toy: Study, fleets: FlatFleets) -> None:
    run = played(toy, "flat-peak")
    assert fleets.replay(toy.counts_by_pool(toy.peak)).cost_usd == pytest.approx(
        run.summary.cost_usd
    )


def test_what_was_replayed_flat_is_not_replayed_again(toy: Study) -> None:
    run = played(toy, "flat-peak")
    again = FlatFleets(toy, toy.counts_by_pool(toy.peak), seed=1)
    replayed = again.replay(toy.counts_by_pool(toy.peak))
    again.record(run)
    summary = again.replay(toy.counts_by_pool(toy.peak))
    assert summary is run.summary
    for name in ("slo_attainment", "worst_hour", "cost_usd", "gpu_hours", "energy_kwh", "arrived"):
        assert getattr(summary, name) == getattr(replayed, name), name
    moving = played(toy, "lt-i")  # begins as some flat fleet does, and is none
    began = np.array([pool.initial for pool in moving.fleet.pools])
    again.record(moving)
    assert again.replay(began) is not moving.summary


def test_nothing_is_searched_where_all_serve_equally_well(toy: Study) -> None:
    run = played(toy, "flat-peak")
    same = replace(run, name="flat-min")
    assert [r.flat_usd for r in with_flat_costs(toy, [run, same], seed=1, progress=silent)] == [
        None,
        None,
    ]


def test_a_worse_policy_is_worth_a_smaller_fleet_and_a_hopeless_one_none(toy: Study) -> None:
    good = played(toy, "flat-peak")

    def served(run: PolicyRun, share: float, name: str) -> PolicyRun:
        tiers = {"chat": share, "night": run.summary.slo_attainment["night"]}
        return replace(run, name=name, summary=replace(run.summary, slo_attainment=tiers))

    worse, hopeless = served(good, 0.9, "lt-i"), served(good, 0.3, "reactive")
    runs = with_flat_costs(toy, [good, worse, hopeless], seed=1, progress=silent)
    usd = [run.flat_usd for run in runs]
    assert usd[0] is not None and usd[1] is not None and usd[1] <= usd[0] and usd[2] is None


def test_where_no_fleet_within_the_gpus_is_as_good_there_is_none(tmp_path: Path) -> None:
    region = {"name": "east", "capacity": {"G": 1}, "usd_per_gpu_hour": {"G": 2},
              "carbon_g_per_kwh": 400, "pue": 1.2}  # fmt: skip
    small = study(tmp_path, regions=[region], horizon={"period_s": 300, "duration_s": 900})
    fleets = FlatFleets(small, np.array([1]), seed=1)
    seen = fleets.replay(np.array([1]))
    assert seen.slo_attainment["chat"] < 0.9
    perfect = replace(seen, slo_attainment={"chat": 1.0, "night": None})
    assert fleets.as_good_as(perfect) is None and fleets.as_good_as(seen) is not None
