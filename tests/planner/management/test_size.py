"""bin/manage size: the contract of its answer, its laws, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from planner.domain.formats import digits
from planner.management.runs import load_scenario
from planner.models import Run
from planner.selectors.analyses import analyses_of
from planner.services.calibrations import calibration_path
from planner.services.scenarios import scenario_create
from tests.planner.estimates import estimate_one
from tests.planner.management.calling import SCENARIO, answer, command, problem
from tests.planner.reports import last_report, rows_of, tables_of

pytestmark = pytest.mark.django_db

POOL = {"model", "gpu", "tp", "role", "max_rps", "ttft_ms", "tbt_ms", "bound_by"}
LENGTHS = ("--isl", 400, "--osl", 30)
SPEED = "alpha_ms: 12, beta_ms: 0.15, gamma_ms: 12, delta_ms: 0.06"


def sized(folder: Path, old: str = "", new: str = "", *words: Any) -> dict[str, Any]:
    """The one pool of the scenario with ``old`` replaced by ``new``."""
    path = folder / "sized.yml"
    path.write_text(SCENARIO.replace(old, new) if old else SCENARIO)
    (pool,) = answer("size", path, *(words or LENGTHS))["pools"]
    assert isinstance(pool, dict)
    return pool


def on_catalogue_gpus(folder: Path, speed: str) -> Path:
    """The scenario with a model and a GPU of the catalogue, and ``speed`` as its profile."""
    path = folder / "catalogue.yml"
    path.write_text(
        "\n".join(
            line
            for line in SCENARIO.replace("model: m", "model: llama-3.1-8b").splitlines()
            if "weight_gb" not in line and "memory_gb" not in line and line != "gpus:"
        )
        .replace("models:", "models: [llama-3.1-8b]")
        .replace("gpu: G, " + SPEED, f"gpu: H100-SXM, {speed}")
        .replace("{G:", "{H100-SXM:")
    )
    return path


def test_the_answer_has_the_keys_of_the_contract_and_its_provenance(folder: Path) -> None:
    result = answer("size", folder / "plan.yml")
    (pool,) = result["pools"]
    assert pool.keys() >= POOL
    assert (pool["model"], pool["gpu"], pool["tp"], pool["role"]) == ("m", "G", 1, "mixed")
    assert pool["max_rps"] > 0 and pool["attainment"] >= 0.95
    assert pool["ttft_ms"] <= 1000 and pool["tbt_ms"] <= 100
    assert pool["provenance"] == {"kind": "assumed", "source": "scenario"}
    assert pool["expected_error"] is None and "not checked" in pool["error_basis"]
    assert pool["max_rps_if_slower"] is None and pool["max_rps_if_faster"] is None
    assert "scenario's traffic" in result["sized_by"] and "simulation" in result["sized_by"]


def test_a_run_of_a_stored_scenario_is_one_of_its_analyses(folder: Path) -> None:
    document, _ = load_scenario(str(folder / "plan.yml"), lambda *_: None)
    stored = scenario_create(owner=None, document=document)
    answer("size", folder / "plan.yml")
    answer("size", stored.name)
    kept = {state.analysis.kind: state.result for state in analyses_of(stored)}
    assert kept[Run.Kind.SIZE] == Run.objects.latest("pk") and not kept[Run.Kind.FORECAST]
    answer("forecast", stored.name)
    assert stored.runs.filter(kind=Run.Kind.FORECAST).count() == 1


def test_lengths_given_replace_those_of_the_traffic(folder: Path) -> None:
    result = answer("size", folder / "plan.yml", "--isl", 4000, "--osl", 30)
    assert "4,000 input and 30 output tokens" in result["sized_by"]
    (pool,) = result["pools"]
    assert pool["input_tps"] == pytest.approx(4000 * pool["max_rps"])
    assert pool["max_rps"] < sized(folder)["max_rps"]


def test_without_limits_in_reach_throughput_binds(folder: Path) -> None:
    """Prefill alone: an iteration of 2,048 tokens takes 12 + 0.06 * 2048 ms."""
    pool = sized(folder, "ttft_ms: 1000, tbt_ms: 100", "e2e_ms: 86400000", "--isl", 512, "--osl", 1)
    assert pool["bound_by"] == "throughput" and pool["tbt_ms"] is None
    assert pool["max_rps"] == pytest.approx(4 / 0.13488, rel=0.01)


def test_a_known_error_says_what_it_does_to_the_rate(folder: Path) -> None:
    path = on_catalogue_gpus(folder, "tp: 1")
    (pool,) = answer("size", path, *LENGTHS)["pools"]
    assert 0 < pool["expected_error"] < 1
    assert pool["max_rps_if_slower"] < pool["max_rps"] < pool["max_rps_if_faster"]
    (capacity,) = tables_of(last_report(), "Latency at capacity")
    (row,) = rows_of(capacity)
    assert row["Profile error"] == pool["expected_error"]
    assert (row["Capacity if slower"], row["Capacity if faster"]) == (
        pool["max_rps_if_slower"],
        pool["max_rps_if_faster"],
    )


def test_measured_rows_that_are_kept_move_a_computed_profile(folder: Path, tmp_path: Path) -> None:
    """Rows that take twice as long as the estimate says halve what an instance carries, about."""
    path = on_catalogue_gpus(folder, "tp: 1, kind: roofline, engine: vllm")
    (before,) = answer("size", path, *LENGTHS)["pools"]
    row = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "isl": 400, "osl": 30}
    lines = ["model,gpu,tp,isl,osl,concurrency,ttft_ms,tbt_ms"]
    for users in (1, 4, 16, 32, 64):
        estimated = estimate_one(row | {"concurrency": users})
        times = f"{2 * estimated['ttft_ms']},{2 * estimated['tbt_ms']}"
        lines.append(f"llama-3.1-8b,H100-SXM,1,400,30,{users},{times}")
    kept = tmp_path / "mine.csv"
    kept.write_text("\n".join(lines))
    calibration_path(path=kept)
    (after,) = answer("size", path, *LENGTHS)["pools"]
    assert 0.4 < after["max_rps"] / before["max_rps"] < 0.7
    assert "corrected by 5 measured rows of this deployment" in after["provenance"]["source"]
    other = path.read_text().replace("engine: vllm", "engine: trtllm")
    path.write_text(other)
    (far,) = answer("size", path, *LENGTHS)["pools"]
    assert "corrected by measured rows" in far["provenance"]["source"]


def test_the_report_has_the_figures_of_the_result(folder: Path) -> None:
    pool = sized(folder)
    report = last_report()
    (capacity,) = tables_of(report, "Latency at capacity")
    (pools,) = tables_of(report, "Pools")
    (row,), (pooled,) = rows_of(capacity), rows_of(pools)
    assert (row["Model"], row["GPUs"], row["Capacity"]) == ("m", "1 x G", pool["max_rps"])
    assert (row["TTFT"], row["TPOT"]) == (pool["ttft_ms"], pool["tbt_ms"])
    assert "Profile error" not in row and "Role" not in row  # no value in any row
    assert pooled["Single replica"] == pool["max_rps"]
    assert [fact.value for fact in report.facts] == [pool["max_rps"]]
    _, printed, _ = command("size", folder / "sized.yml", *LENGTHS)
    assert digits(pool["max_rps"]) in printed and "1 x G" in printed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--isl", "400"), "osl is missing. Give both"),
        (("--osl", "30"), "isl is missing. Give both"),
        (("--isl", "0", "--osl", "30"), "--isl 0: give a whole number from 1 to"),
        (("--isl", "400", "--osl", "-1"), "--osl -1: give a whole number from 1 to"),
        (("--isl", "131000", "--osl", "100"), "131,100 tokens, and the context of m is 131,072"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(
    folder: Path, words: tuple[str, ...], says: str
) -> None:
    message = problem("size", folder / "plan.yml", *words)
    assert says in message and "\n" not in message


def test_limits_that_no_rate_meets_are_refused(folder: Path) -> None:
    path = folder / "tight.yml"
    path.write_text(SCENARIO.replace("ttft_ms: 1000", "ttft_ms: 20"))
    message = problem("size", path, *LENGTHS)
    assert message.count("m on") == 1 and "tiers" in message
    assert "TTFT limit of 20 ms even at batch 1" in message
