"""Both phases and several models on common GPUs, and batches that take time to fill."""

from pathlib import Path

import pytest

from planner.domain.kinds import provision
from planner.domain.kinds.provision import Options
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from tests.planner.domain import builders as make
from tests.planner.domain.provisioning.test_provisioning import LENGTHS, small


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    return make.demand_file(tmp_path_factory.mktemp("sharing"), {"a": [1200.0] * 300})


def test_what_services_need_together_is_beside_what_they_need_apart(stored: StoredTrace) -> None:
    document = provision.run(
        Inputs(small(), {"t": stored}), Options(level="operator"), silent
    ).document
    (service,) = document["sharing"]["services"]
    assert service["ways"]["apart"]["gpus"] == sum(
        min(level["gpus"] for level in pool["levels"].values()) for pool in document["pools"]
    )
    assert set(service["ways"]) <= {"apart", "together", "chunked_model", "chunked_operator"}
    confirmed = {name: way for name, way in service["ways"].items() if way["confirmed"]}
    best = confirmed[service["best"]]
    assert best["gpus"] == min(way["gpus"] for way in confirmed.values())
    # Requests confirm each way but the phases apart, whose levels they confirmed before.
    shared = [way for name, way in confirmed.items() if name != "apart"]
    assert shared and all(way["attainment"] >= 0.95 for way in shared)
    # Operators with chunked prefill are an answer like the others, once requests confirm them.
    operators = service["ways"]["chunked_operator"]
    assert operators["confirmed"] and operators["gpus"] <= best["gpus"]
    if "together" in service["ways"]:
        assert service["ways"]["together"]["gpus"] < service["ways"]["apart"]["gpus"]
    assert document["sharing"]["models"] == []


def test_models_of_a_region_may_share_gpus(stored: StoredTrace) -> None:
    sources = [make.source(model=m, scale=0.5, **LENGTHS) for m in ("llama-3.1-8b", "qwen2-7b")]
    scenario = small(
        models=["llama-3.1-8b", "qwen2-7b"],
        profiles=[
            {"model": m, "gpu": "A100-80GB", "tp": 1, "kind": "roofline"}
            for m in ("llama-3.1-8b", "qwen2-7b")
        ],
        traffic={"sources": sources},
    )
    document = provision.run(
        Inputs(scenario, {"t": stored}), Options(level="operator"), silent
    ).document
    (shared,) = document["sharing"]["models"]
    assert shared["models"] == ["llama-3.1-8b", "qwen2-7b"]
    assert shared["gpus"] <= shared["gpus_apart"]


def test_batches_that_fill_are_part_of_the_latency(tmp_path: Path) -> None:
    slow = make.demand_file(tmp_path, {"a": [30.0] * 300})  # one request in two seconds
    free, counted = (
        provision.run(Inputs(small(), {"t": slow}), Options(level="model", batch_wait=how), silent)
        for how in ("free", "counted")
    )
    notes = counted.document["notes"]
    assert any("chose its largest batch" in note for note in notes)
    level = counted.document["pools"][0]["levels"]["model"]
    assert level["batch"] == 1 and level["latency_ms"] <= level["slo_ms"]
    assert "batches of at most 1" in level["method"]
    assert counted.document["levels"]["model"]["gpus"] >= free.document["levels"]["model"]["gpus"]


def test_gpus_of_one_stream_share_nothing(stored: StoredTrace) -> None:
    many, lone = (
        provision.run(
            Inputs(small(), {"t": stored}),
            Options(level="module", single_stream=single),
            silent,
        ).document
        for single in (False, True)
    )
    assert "sharing" not in lone
    assert any("stream" in note for note in lone["notes"])
    assert lone["levels"]["module"]["gpus"] >= many["levels"]["module"]["gpus"]
