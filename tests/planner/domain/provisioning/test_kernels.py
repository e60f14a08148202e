"""Kernels and slowdowns that were measured and imported, in what is provisioned."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from planner.domain.kinds import provision
from planner.domain.kinds.provision import IMAGE_TOKENS, Options
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.provisioning.levels import interference_table, measured_on, problem_of
from planner.domain.provisioning.pools import Images
from planner.domain.traffic.sources import StoredTrace
from planner.errors import CatalogueError
from planner.inputs import catalogue
from planner.inputs.profiles.kernel_files import Sharing
from planner.inputs.scenario.user_facts import KernelSource, UserFacts
from simulation.provisioning.workload import PhaseLoad
from tests.planner.domain import builders as make
from tests.planner.domain.provisioning.test_provisioning import LENGTHS, small

GPU = "A100-80GB"
QKV = (6144, 4096)  # n and k of llama-3.1-8b's query, key and value projection


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Hold few requests, since the time to place replicas grows with the cube of their number."""
    return make.demand_file(tmp_path_factory.mktemp("kernels"), {"a": [1200.0] * 300})


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> UserFacts:
    """One projection at half the peak, and it beside attention twice as long."""
    rows = ["op,dtype,m,n,k,batch,context,heads,kv_heads,head_dim,sm_share,concurrent_with,"
            "latency_us,gpu,source"]  # fmt: skip
    k = QKV[1]
    spread = [QKV[0] // tp for tp in (1, 2, 4, 8)]
    for m, n in product((1, 16, 64, 256, 1024, 4096, 16384, 65536, 262144), spread):
        us = max(40.0, 2 * m * n * k / (0.5 * 312e12) * 1e6)
        rows.append(f"gemm,bf16,{m},{n},{k},,,,,,,,{us},{GPU},own harness")
    attention = "attention_decode,bf16,,,,64,1024,32,8,128"
    rows.append(f"{attention},,,100,{GPU},own harness")
    rows.append(f"{attention},0.5,gemm:0.5,300,{GPU},own harness")
    rows.append(f"{attention},0.5,,150,{GPU},own harness")
    path = tmp_path_factory.mktemp("files") / "kernels.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return UserFacts(kernels={GPU: (KernelSource(path, "kernels.csv", "auto", "our harness"),)})


def provisioned(stored: StoredTrace, known: UserFacts, **asked: Any) -> Any:
    return provision.run(Inputs(small(), {"t": stored}, known), Options(**asked), silent)


@pytest.fixture(scope="module")
def measured(stored: StoredTrace, known: UserFacts) -> Any:
    return provisioned(stored, known)


def facts(document: dict[str, Any], what: str) -> dict[str, Any]:
    return next(fact for fact in document["provenance"] if fact["what"].startswith(what))


def test_each_operator_says_whether_it_was_measured(known: UserFacts, measured: Any) -> None:
    service = PhaseLoad(
        catalogue.shape("llama-3.1-8b"), catalogue.gpu(GPU), "decode", 5.0, 99, 9, 1.0
    )
    phase = problem_of(service, "bf16", measured=measured_on(known, [GPU])[GPU])
    inside, beyond = (
        dict(zip(phase.problem.names, phase.measured[0], strict=True)),
        phase.measured[1],
    )
    assert inside["qkv_projection"] == pytest.approx(1.0)
    assert inside["down_projection"].max() == 0.0
    assert beyond.max() == pytest.approx(1.0)
    outcome = measured
    words = set(outcome.tables["operators"]["timing"])
    assert words <= {"measured", "beyond what was measured", "measured in part", "modelled"}
    assert words != {"modelled"}
    for pool in outcome.document["pools"]:
        for level in pool["levels"].values():
            assert sum(level["timing"].values()) == pytest.approx(1.0)
            assert 0.0 < level["timing"]["measured"] < 1.0
    assert facts(outcome.document, "Seconds of operators on A100")["kind"] == "modelled"
    assert "our harness" in facts(outcome.document, "Seconds of operators")["source"]
    interference = facts(outcome.document, "Interference on a shared A100")
    assert interference["kind"] == "measured"
    assert "attention decode beside gemm 3.00 times" in interference["source"]


def test_measurements_can_be_left_out(stored: StoredTrace, known: UserFacts, measured: Any) -> None:
    asked = {"kernels": "modelled", "interference": "modelled"}
    outcome = provisioned(stored, known, **asked)
    assert set(outcome.tables["operators"]["timing"]) == {"modelled"}
    assert facts(outcome.document, "Interference")["kind"] == "modelled"
    assert outcome.document["levels"] != measured.document["levels"]


def test_a_file_that_was_removed_is_named(stored: StoredTrace, tmp_path: Path) -> None:
    gone = UserFacts(kernels={GPU: (KernelSource(tmp_path / "gone", "old.csv", "auto", ""),)})
    with pytest.raises(CatalogueError, match=r"old\.csv have been removed"):
        provisioned(stored, gone)


def test_of_several_splits_the_even_one_counts() -> None:
    def row(share: float, beside: str, slowdown: float) -> Sharing:
        return Sharing(GPU, "norm", "bf16", share, beside, slowdown, 3)

    table = interference_table(
        GPU, "s", [row(0.2, "rope:0.8", 5.0), row(0.5, "rope:0.5", 2.0), row(0.25, "", 3.0)]
    )
    assert table.pairs == {("elementwise", "elementwise"): 2.0}
    assert table.alone == {"elementwise": ((0.25,), (3.0,))} and not table.reserved
    both = interference_table(GPU, "s", [row(0.5, "rope:0.5", 2.0), row(0.5, "", 1.6)])
    assert both.reserved == {("elementwise", "elementwise"): 1.25}


def test_encoders_work_on_the_images_that_requests_bring(stored: StoredTrace) -> None:
    scenario = small(
        models=["qwen2.5-vl-7b"],
        profiles=[{"model": "qwen2.5-vl-7b", "gpu": GPU, "tp": 1, "kind": "roofline"}],
        traffic={"sources": [make.source(model="qwen2.5-vl-7b", scale=3.0, **LENGTHS)]},
    )  # fmt: skip
    seen, times = {}, set()
    for images in (0.0, 2.0):
        options = Options(level="operator", images=images)
        outcome = provision.run(Inputs(scenario, {"t": stored}), options, silent)
        (prefill, _) = outcome.document["pools"]
        assert prefill["images"] == images
        seen[images] = prefill["levels"]["operator"]["gpus"]
        words = " ".join(outcome.document["notes"])
        assert ("bring no images (the default)" in words) == (not images)
        assert ("2 images of 1,024 tokens" in words) == bool(images)
        times.add(round(prefill["times"], 6))
    assert seen[2.0] > seen[0.0] and len(times) == 1  # profiles time no encoder


def test_only_an_encoder_looks_at_images() -> None:
    def names(model: str, images: float) -> set[str]:
        service = PhaseLoad(
            catalogue.shape(model), catalogue.gpu(GPU), "prefill", 5.0, 1024, 1, 2.0
        )
        phase = problem_of(Images(images, IMAGE_TOKENS).added_to(service), "bf16")
        return {name for name in phase.problem.names if name.startswith("encoder_")}

    assert "encoder_attention_prefill" in names("qwen2.5-vl-7b", 2.0)
    assert not names("qwen2.5-vl-7b", 0.0) and not names("qwen2-7b", 2.0)
