"""Faults of a scenario: which pools they are about, and their refusals."""

from typing import Any

import pytest

from planner.errors import ScenarioError
from planner.inputs.scenario.document import dump, parse
from planner.inputs.scenario.faults import faults_of
from simulation.faults import (
    ControllerOutage,
    Crash,
    FailedStarts,
    RandomCrashes,
    RegionOutage,
    SlowInstance,
)
from tests.planner.inputs.scenario.test_columns import BIG, SMALL, Hardware, built, on
from tests.planner.inputs.scenario.test_serving import TEXT

APART = [on(BIG, tp=8, role="prefill"), on(BIG, tp=8, role="decode"), on(SMALL)]
FAULTS = [
    {"kind": "crash", "model": BIG, "role": "decode", "at_s": 60, "instance": 2},
    {"kind": "crashes", "per_instance_hour": 0.01},
    {"kind": "slow", "model": SMALL, "region": "west", "from_s": 0, "to_s": 9, "factor": 3},
    {"kind": "outage", "region": "west", "from_s": 10, "to_s": 20},
    {"kind": "failed-starts", "probability": 0.1, "nth": [1, 3]},
    {"kind": "controller", "from_s": 5, "to_s": 6, "state": "lost"},
]


def hardware(**changes: Any) -> Hardware:
    return built(APART, faults=FAULTS, fleet={"retries": 3}, **changes)


def test_each_fault_is_about_the_pools_that_fit_it() -> None:
    machines = hardware()
    fleet = machines.fleet(machines.minimum)
    place_of = {(p.model, p.region, p.role): i for i, p in enumerate(fleet.pools)}
    assert fleet.retries == 3 and len(place_of) == 6
    every = tuple(range(6))
    assert set(fleet.faults) == {
        Crash(place_of[BIG, "east", "decode"], 60, 2),
        Crash(place_of[BIG, "west", "decode"], 60, 2),
        RandomCrashes(0.01, every),
        SlowInstance(place_of[SMALL, "west", "both"], 0, 9, 3),
        RegionOutage("west", 10, 20),
        FailedStarts(0.1, (1, 3), every),
        ControllerOutage(5, 6, state_kept=False),
    }


def test_pools_that_a_policy_has_cut_apart_are_found_again() -> None:
    machines = hardware()
    pools = machines.fleet(machines.minimum).pools
    turned = tuple(reversed(pools))
    crashes = [f for f in faults_of(machines.faults, turned) if isinstance(f, Crash)]
    assert {turned[crash.pool].role for crash in crashes} == {"decode"}


def test_a_fault_after_the_window_is_refused() -> None:
    text = TEXT + "horizon: {duration_s: 3600}\nfaults: [{kind: crash, at_s: 3600}]\n"
    with pytest.raises(ScenarioError, match="the window ends before"):
        parse(text)
    assert parse(text.replace("at_s: 3600}", "at_s: 3599}")).faults


def test_faults_survive_writing_and_reading() -> None:
    rows = "\n".join(f"  - {fault}".replace("'", "") for fault in FAULTS)
    scenario = parse(TEXT.replace("name: east,", "name: west,") + f"faults:\n{rows}\n")
    assert parse(dump(scenario)) == scenario and len(scenario.faults) == len(FAULTS)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("{kind: crash, model: gpt, at_s: 1}", "line 12: faults[0].model: model 'gpt' is not in"),
        ("{kind: outage, region: mars, from_s: 0, to_s: 1}", "faults[0].region: region 'mars'"),
        ("{kind: slow, from_s: 9, to_s: 1, factor: 2}", "faults[0]: to_s must be after from_s"),
        ("{kind: failed-starts}", "faults[0]: give a probability above 0, or nth"),
        ("{kind: crash, at_s: -1}", "faults[0].at_s: input should be greater than or equal to 0"),
        ("{kind: fire}", "line 12: faults[0]: "),
    ],
)
def test_faults_about_nothing_are_refused_with_their_place(fault: str, words: str) -> None:
    with pytest.raises(ScenarioError) as problem:
        parse(TEXT + f"faults:\n  - {fault}\n")
    assert words in str(problem.value)
