"""Faults, starts by source, lending and caches of a scenario, in what a simulation says."""

from typing import Any

import numpy as np
import pytest

from planner.domain.kinds import simulate
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from tests.planner.domain import builders as make

LENGTHS = {"input_tokens": {"mean": 800}, "output_tokens": {"mean": 60}}
SLOW = {"model": "m", "gpu": "G", "alpha_ms": 12, "beta_ms": 0.15, "gamma_ms": 12, "delta_ms": 0.15}
TIMETABLE = [
    {"at": f"00:{minute}", "replicas": count}
    for minute, count in ((30, 5), (38, 9), (45, 5), (52, 11), (59, 5))
]
TODAY = {"model": "m", "region": "east", "gpu": "G", "replicas": 5}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    wave = 900 - 700 * np.cos(2 * np.pi * (np.arange(60) - 30) / 20)  # low, high, low, high
    return make.demand_file(tmp_path_factory.mktemp("wave"), {"a": wave.round().tolist()})


def simulated(stored: StoredTrace, policy: str, **changes: Any) -> Outcome:
    scenario = make.scenario(
        profiles=[SLOW],
        policies=["flat-peak", {"name": "periodic", "timetable": TIMETABLE}],
        traffic={"sources": [make.source(**LENGTHS)]},
        horizon={"period_s": 300, "duration_s": 1800},
        **changes,
    )
    return simulate.run(Inputs(scenario, {"t": stored}), simulate.Options(policy=policy), silent)


def adds_up(document: dict[str, Any]) -> bool:
    parts = ("busy_gpu_hours", "idle_gpu_hours", "wasted_gpu_hours")
    return bool(
        document["arrived"] == document["completed"] + document["rejected"] + document["unfinished"]
        and document["gpu_hours"] == pytest.approx(sum(document[name] for name in parts))
    )


def test_a_crash_takes_one_replica_and_its_work_is_done_again(stored: StoredTrace) -> None:
    crash = [{"kind": "crash", "model": "m", "at_s": 600}]
    outcome = simulated(stored, "flat-peak", faults=crash)
    document, minutes = outcome.document, outcome.tables["replicas"]
    assert document["failures"] == 1 and document["retried"] > 0 and adds_up(document)
    assert document["completed"] == document["arrived"]  # one retry is enough
    ready = minutes.sort("time")["ready"]
    assert ready[9] == pytest.approx(ready[0]) and ready[10] == pytest.approx(ready[0] - 1, abs=0.1)
    lost = simulated(stored, "flat-peak", faults=crash, fleet={"retries": 0}).document
    assert lost["retried"] == 0 and lost["rejected"] == document["retried"]
    assert sum(lost["reject_reasons"].values()) == lost["rejected"] and adds_up(lost)


def test_an_outage_ends_all_replicas_of_its_region(stored: StoredTrace) -> None:
    outage = [{"kind": "outage", "region": "east", "from_s": 600, "to_s": 900}]
    outcome = simulated(stored, "flat-peak", faults=outage)
    minutes = outcome.tables["replicas"].sort("time")
    assert (minutes["ready"][10:15] == 0).all() and (minutes["held"][10:15] > 0).all()
    assert minutes["ready"][29] > 0  # started again
    assert outcome.document["starts"]["local weights"] >= outcome.document["failures"] > 0
    assert adds_up(outcome.document)


def test_instances_taken_out_are_lent_and_reclaimed(stored: StoredTrace) -> None:
    fleet = {"today": [TODAY], "starts": {"reclaim_s": 30}, "scale_in": {"lend": True}}
    outcome = simulated(stored, "periodic", fleet=fleet)
    document, minutes = outcome.document, outcome.tables["replicas"]
    assert document["donated_gpu_hours"] > 0 and document["starts"]["spot"] > 0
    assert adds_up(document)
    hours = minutes["lent"].sum() / 60  # a minute each, of one GPU
    assert hours == pytest.approx(document["donated_gpu_hours"])
    assert document["starts"]["spot"] == 4  # lent from 00:45 on and back at 00:52, with 2 new ones
    assert document["starts"]["local weights"] == 6
    kept = simulated(stored, "periodic", fleet={"today": [TODAY], "startup_s": 60}).document
    assert kept["donated_gpu_hours"] == kept["starts"]["spot"] == 0


def test_weights_from_afar_take_longer_and_burn_more(stored: StoredTrace) -> None:
    starts = {"remote_s": 240, "warm_hosts": 0}
    near = simulated(stored, "periodic", fleet={"today": [TODAY], "startup_s": 60}).document
    far = simulated(
        stored, "periodic", fleet={"today": [TODAY], "startup_s": 60, "starts": starts}
    ).document
    assert near["starts"]["remote weights"] == 0 < far["starts"]["remote weights"]
    assert far["wasted_gpu_hours"] > near["wasted_gpu_hours"]
