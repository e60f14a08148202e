"""A scenario that names own hardware and a kept profile, from its file to its results."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planner.errors import CatalogueError, ScenarioError
from planner.inputs.ingest import IngestOptions
from planner.inputs.profiles.spec import ProfileSpec
from planner.models import Run, Scenario, User
from planner.selectors.runs import run_result
from planner.services.calibrations import calibration_path
from planner.services.hardware import gpu_save, model_save
from planner.services.profile_fits import profile_fit
from planner.services.profiles import profile_delete
from planner.services.scenarios import scenario_create, scenario_run
from planner.services.traces import trace_ingest_path
from planner.services.worker import run_execute

HEAD = "model,gpu,tp,batch,isl,osl,prefill_ms,tbt_ms"
DOCUMENT = """\
version: 1
name: Ours
models: [our-model]
profiles:
  - {model: our-model, gpu: our-gpu, name: ours}
regions:
  - name: east
    capacity: {our-gpu: 64}
    usd_per_gpu_hour: {our-gpu: 2}
    carbon_g_per_kwh: 300
    pue: 1.2
tiers:
  - {name: chat, ttft_ms: 2000, tbt_ms: 100}
traffic:
  sources:
    - trace: demand
      model: our-model
      regions: {east: 1}
      tiers: {chat: 1}
      input_tokens: {mean: 300}
      output_tokens: {mean: 40}
fleet: {startup_s: 60}
forecast: {method: last-value}
horizon: {period_s: 300, duration_s: 900}
"""
GPU = {"memory_gb": 48, "idle_w": 30, "prefill_w": 300, "decode_w": 200}
MODEL = {"weight_gb": 16, "kv_bytes_per_token": 131072, "max_context": 8192}


def rows(slower: float, seed: int) -> str:
    """A linear machine with a tenth of noise."""
    rng = np.random.default_rng(seed)
    lines = [
        f"our-model,our-gpu,1,{b},{isl},128,"
        f"{slower * (10 + 0.1 * b * isl) * rng.uniform(0.9, 1.1):.4f},"
        f"{slower * (20 + 0.5 * b) * rng.uniform(0.9, 1.1):.4f}"
        for b in (1, 2, 4, 8, 16, 32)
        for isl in (16, 32, 64)
    ]
    return "\n".join([HEAD, *lines, ""])


def fitted(user: User, folder: Path, slower: float) -> None:
    path = folder / f"bench-{slower:g}.csv"
    path.write_text(rows(slower, seed=1))
    calibration = calibration_path(path=path)
    spec = ProfileSpec("ours", "linear", "our-model", "our-gpu", 1, "our-model", "our-gpu")
    profile_fit(user=user, calibration=calibration, spec=spec)


@pytest.fixture
def scenario(planner: User, tmp_path: Path) -> Scenario:
    gpu_save(user=planner, name="our-gpu", facts=GPU, source="its data sheet")
    model_save(user=planner, name="our-model", facts=MODEL, source="own count")
    fitted(planner, tmp_path, 1.0)
    path = tmp_path / "demand.csv"
    times = [f"2024-05-13T{i // 60:02d}:{i % 60:02d}:00Z" for i in range(60)]
    requests = (900 + 500 * np.sin(np.arange(60) / 8)).round()
    pl.DataFrame({"time": times, "requests": requests}).write_csv(path)
    trace_ingest_path(path=path, options=IngestOptions(format="demand"), owner=planner)
    return scenario_create(owner=planner, document=DOCUMENT)


def executed(scenario: Scenario, user: User) -> Run:
    run = scenario_run(scenario=scenario, owner=user, kind="plan")
    run_execute(run_id=run.pk)
    run.refresh_from_db()
    assert run.problem == ""
    return run


def test_a_run_rests_on_what_was_kept_when_it_was_made(
    scenario: Scenario, planner: User, tmp_path: Path
) -> None:
    before = scenario_run(scenario=scenario, owner=planner, kind="plan")
    row = planner.owngpu_set.get()
    gpu_save(user=planner, name="our-gpu", facts=GPU | {"idle_w": 99}, row=row)
    fitted(planner, tmp_path, 2.0)  # a second version, twice as slow
    run_execute(run_id=before.pk)
    before.refresh_from_db()
    after = executed(scenario, planner)
    assert before.resolved["profiles"]["ours"]["version"] == 1
    assert before.resolved["gpus"]["our-gpu"]["facts"]["idle_w"] == 30
    assert after.resolved["profiles"]["ours"]["version"] == 2
    assert after.resolved["gpus"]["our-gpu"]["facts"]["idle_w"] == 99
    slow, fast = (run_result(run)["capacity"][0]["input_tps"] for run in (after, before))
    assert slow < 0.7 * fast
    sources = {fact["what"]: fact["source"] for fact in run_result(before)["provenance"]}
    # Its prompts are longer than what was measured, which is said before it.
    assert sources["Speed of our-model on 1 x our-gpu"].endswith("extrapolated; bench-1.csv")
    assert sources["Memory and power of our-gpu"] == "its data sheet"


def test_the_plan_states_the_error_of_the_kept_profile(scenario: Scenario, planner: User) -> None:
    (row,) = run_result(executed(scenario, planner))["profile_error"]
    assert 0.02 < row["error"] < 0.1  # a tenth of noise either way is 5% on average
    assert "left out of the fit" in row["basis"]
    assert row["replicas_if_faster"] <= row["replicas"] <= row["replicas_if_slower"]


def test_a_scenario_may_ask_for_a_version(
    scenario: Scenario, planner: User, tmp_path: Path
) -> None:
    fitted(planner, tmp_path, 2.0)
    text = DOCUMENT.replace("name: ours}", "name: ours, version: 1}").replace("Ours", "First")
    pinned = scenario_create(owner=planner, document=text)
    run = scenario_run(scenario=pinned, owner=planner, kind="plan")
    assert run.resolved["profiles"]["ours"]["version"] == 1
    missing = scenario_create(
        owner=planner, document=text.replace("version: 1}", "version: 9}").replace("First", "Ninth")
    )
    with pytest.raises(ScenarioError, match=r"profiles\[0\].name: .* has no version 9"):
        scenario_run(scenario=missing, owner=planner, kind="plan")


def test_a_run_whose_profile_has_gone_says_so(scenario: Scenario, planner: User) -> None:
    run = scenario_run(scenario=scenario, owner=planner, kind="plan")
    Run.objects.filter(pk=run.pk).update(resolved={**run.resolved, "profiles": {
        "ours": {"version": 4, "id": 10**6}
    }})  # fmt: skip
    run_execute(run_id=run.pk)
    run.refresh_from_db()
    assert run.state == Run.State.FAILED
    assert "version 4, has been removed" in run.problem


def test_what_is_in_use_is_not_removed(scenario: Scenario, planner: User) -> None:
    profile = planner.profile_set.get()
    with pytest.raises(Exception, match="used by scenario Ours"):
        profile_delete(profile=profile, user=planner)
    with pytest.raises(CatalogueError, match="cannot be named"):
        gpu_save(user=planner, name="a/b", facts=GPU)
