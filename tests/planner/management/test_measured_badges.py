"""A speed is called measured as far as the measurements go, on every surface that says it."""

from pathlib import Path
from typing import Any

import pytest

from tests.planner.management.calling import SCENARIO, answer

pytestmark = pytest.mark.django_db

# Built in, measured on batches of up to 64 sequences and contexts of up to 4,160 tokens.
MEASURED = (
    SCENARIO.replace("name: m, weight_gb: 16, kv_bytes_per_token: 131072, max_context: 131072",
                     "name: llama-2-70b")
    .replace("model: m, gpu: G, alpha_ms: 12, beta_ms: 0.15, gamma_ms: 12, delta_ms: 0.06",
             "model: llama-2-70b, gpu: A100-80GB, tp: 4")
    .replace("gpus:\n  - {name: G, memory_gb: 80, idle_w: 60, prefill_w: 400, decode_w: 250}\n", "")
    .replace("{G: 32}", "{A100-80GB: 256}").replace("{G: 2}", "{A100-80GB: 2}")
    .replace("model: m", "model: llama-2-70b")
    .replace("output_tokens: {mean: 30}", "output_tokens: {mean: 400}")
)  # fmt: skip
SPEED = "Speed of llama-2-70b on 4 x A100-80GB"
FEW, MANY = "ttft_ms: 2000, tbt_ms: 55", "ttft_ms: 4000, tbt_ms: 140"  # in a batch


def written(folder: Path, limits: str) -> Path:
    path = folder / "badge.yml"
    path.write_text(MEASURED.replace("ttft_ms: 1000, tbt_ms: 100", limits))
    return path


def kinds(document: dict[str, Any]) -> set[str]:
    """Of the speed, wherever a result says it."""
    speed_kinds = {fact["kind"] for fact in document["provenance"] if fact["what"] == SPEED}
    rows = document.get("assumptions", ())
    speed_kinds |= {
        row["provenance"] for row in rows if row["what"].startswith("Speed of llama-2-70b")
    }
    speed_kinds |= {row["provenance"] for row in document.get("capacity", ())}
    return speed_kinds | {pool["provenance"]["kind"] for pool in document.get("pools", ())}


@pytest.mark.parametrize(("limits", "kind"), [(FEW, "measured"), (MANY, "modelled")])
def test_sizes_and_plans_call_a_speed_measured_within_the_measurements_alone(
    folder: Path, limits: str, kind: str
) -> None:
    path = written(folder, limits)
    size, plan = answer("size", path), answer("plan", path)
    assert kinds(size) == kinds(plan) == {kind}
    (pool,) = size["pools"]
    if kind == "modelled":
        assert "beyond the measured range (up to 64 sequences, " in pool["provenance"]["source"]
        assert pool["provenance"]["source"].endswith(
            "splitwise-sim data/perf_model.csv @ 8f99e7d (MIT)"
        )


def test_an_estimate_at_a_rate_does_too() -> None:
    words = ("llama-2-70b", "--gpu", "A100-80GB", "--tp", 4, "--isl", 400, "--osl", 400)
    few, many = (
        answer("estimate", "--model", *words, "--rate", rate)["provenance"] for rate in (0.5, 2)
    )
    assert (few["kind"], many["kind"]) == ("measured", "modelled")
    assert "are beyond the measured range" in many["source"]
