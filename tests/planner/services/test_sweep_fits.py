"""A serving benchmark swept over its load, from upload to a stored profile."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from planner.selectors.profiles import profile_get

pytestmark = pytest.mark.django_db


def run(users: int) -> dict[str, Any]:
    """As ``vllm bench serve --save-result --max-concurrency`` writes it."""
    tpot, ttft, isl, osl = 7.0 + 0.2 * users, 35.0 if users == 1 else 50.0 + 2 * users, 1024, 128
    count = 10 * users
    seconds = count / users * (ttft + tpot * (osl - 1)) / 1e3
    times = {f"{kind}_{name}_ms": value for name, value in (("ttft", ttft), ("tpot", tpot))
             for kind in ("mean", "median")}  # fmt: skip
    return {
        "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": count,
        "request_rate": "inf", "max_concurrency": users, "duration": seconds, "completed": count,
        "total_input_tokens": count * isl, "total_output_tokens": count * osl,
        "request_throughput": count / seconds, "output_throughput": count * osl / seconds, **times,
    }  # fmt: skip


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.json"
    path.write_text("\n".join(json.dumps(run(users)) for users in (1, 2, 4, 8, 16, 32)))
    return path


def imported(*words: object) -> dict[str, Any]:
    out = io.StringIO()
    call_command("profiles", "import", *map(str, words), "--json", stdout=out)
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def test_the_command_line_fits_it_and_says_what_is_modelled(measured: Path) -> None:
    made = imported(measured, "--kind", "linear", "--gpu", "H100-SXM", "--name", "sweep")
    assert (made["provenance"], made["tp"]) == ("modelled", 1)
    assert "Decode: sweep.json" in made["source"] and "(modelled)" in made["source"]
    assert "roofline" in made["notes"][0]
    alpha, beta, gamma, delta = (made["parameters"][p]["value"] for p in
                                 ("alpha", "beta", "gamma", "delta"))  # fmt: skip
    assert alpha == pytest.approx(7.0, rel=0.1)
    assert beta + 8 * delta == pytest.approx(0.2, rel=0.1)
    assert gamma + 1024 * delta <= 35.0 * 1.001
    kept = profile_get("sweep").profile
    assert kept.spread > 0.1  # type: ignore[attr-defined]
    assert made["error"] >= kept.spread  # type: ignore[attr-defined]
    made = imported(measured, "--kind", "roofline", "--gpu", "H100-SXM", "--name", "factors")
    assert set(made["parameters"]) == {"decode factor", "prefill factor"}
    assert any("left out" in check["against"] for check in made["checks"])


def test_a_gpu_may_be_called_as_benchmarks_call_it(measured: Path) -> None:
    made = imported(measured, "--kind", "roofline", "--gpu", "h100_sxm", "--name", "alias")
    assert made["gpu"] == "H100-SXM"


def test_built_in_profiles_that_were_carried_over_state_no_flattering_error() -> None:
    profile = profile_get("llama-3.1-70b:H100-SXM:tp4")
    assert max(check.mape for check in profile.checks) < 0.05  # of eight rows of one phase
    assert profile.stated_check is not None and profile.stated_check.mape > 0.1
    assert profile.stated_check.rows == 0
    measured = profile_get("llama-2-70b:H100-SXM:tp4")
    assert measured.stated_check is not None and measured.stated_check.rows > 0
