"""Attention and experts on GPUs of their own, end to end: sized, divided, replayed, paid."""

from typing import Any

import pytest

from planner.domain.kinds import simulate, size
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from planner.errors import ScenarioError
from planner.inputs.scenario.schema import Scenario
from tests.planner.domain import builders as make

MODEL = "qwen3-30b-a3b"
ON = {"model": MODEL, "gpu": "H100-SXM", "kind": "roofline", "precision": "fp8"}
APART = {"attention_ffn": {"attention": 2, "ffn": 2}}


def asked(**decode: Any) -> Scenario:
    region = {
        "name": "east", "capacity": {"H100-SXM": 64}, "usd_per_gpu_hour": {"H100-SXM": 2},
        "carbon_g_per_kwh": 400, "pue": 1.2,
    }  # fmt: skip
    lengths = {"input_tokens": {"mean": 600}, "output_tokens": {"mean": 40}}
    today = {"model": MODEL, "region": "east", "gpu": "H100-SXM"}
    return make.scenario(
        models=[MODEL],
        gpus=None,
        profiles=[ON | {"role": "prefill"}, ON | {"role": "decode"} | decode],
        regions=[region],
        tiers=[{"name": "chat", "ttft_ms": 1000, "tbt_ms": 40}],
        traffic={"sources": [make.source(model=MODEL, **lengths)]},
        fleet={
            "minimum": 0,
            "today": [today | {"role": "prefill", "replicas": 2},
                      today | {"role": "decode", "replicas": 1}],
        },
        horizon={"period_s": 300, "duration_s": 300},
    )  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    return make.demand_file(tmp_path_factory.mktemp("flat"), {"a": [300.0] * 40})


def test_every_division_is_there_and_the_best_carries_most(stored: StoredTrace) -> None:
    options = size.Options(isl=600, osl=40)
    document = size.run(Inputs(asked(**APART), {"t": stored}), options, silent).document
    rows = document["splits"]
    assert [(row["attention"], row["ffn"]) for row in rows] == [(1, 3), (2, 2), (3, 1)]
    best = next(row for row in rows if row["best"])
    assert best["predicted_rps"] == max(row["predicted_rps"] or 0.0 for row in rows)
    stated = next(row for row in rows if row["stated"])
    decode = next(pool for pool in document["pools"] if pool["role"] == "decode")
    assert stated["max_rps"] == decode["max_rps"]
    assert decode["arrangement"] == "4 x H100-SXM, 2 attention and 2 FFN, fp8, decode"


def test_it_is_replayed_and_paid_as_all_of_its_gpus(stored: StoredTrace) -> None:
    options = simulate.Options(policy="today")
    document = simulate.run(Inputs(asked(**APART), {"t": stored}), options, silent).document
    assert document["completed"] == document["arrived"] > 0
    hours = document["after_gpu_hours"] + (2 * 1 + 1 * 4) * 300 / 3600
    assert document["gpu_hours"] == pytest.approx(hours, rel=1e-6)
    assert document["energy_kwh"] > 0


def test_what_cannot_be_divided_is_refused(stored: StoredTrace) -> None:
    scenario = asked(attention_ffn={"attention": 2, "ffn": 256})
    with pytest.raises(ScenarioError, match="one GPU per expert"):
        size.run(Inputs(scenario, {"t": stored}), size.Options(isl=600, osl=40), silent)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"role": "mixed"}, "prefill or decode"),
        ({"attention_dp": 2}, "Leave out attention_dp"),
        ({"kind": "linear"}, "kind: roofline"),
    ],
)
def test_a_scenario_says_what_does_not_go_with_it(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        asked(**(APART | changes))
