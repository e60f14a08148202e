"""Catalogue pages, own GPUs and models, profiles and calibration."""

import json
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from planner.inputs.scenario.document import edit, outline
from planner.models import Calibration, OwnGpu, OwnModel, Scenario, User
from planner.selectors.hardware import model_get
from planner.selectors.run_hardware import stored_hardware
from planner.services.calibrations import CalibrationOptions, calibration_path
from planner.services.estimates import MeasurementSource, estimate_sweep
from planner.services.scenarios import scenario_create, scenario_run
from planner.web.forms.document import row_changes
from planner.web.forms.editor import names_of
from planner.web.forms.profile_choice import ProfileChoice
from simulation.performance.specs import Provenance
from tests.planner.estimates import estimate_one
from tests.planner.web.pages import json_in, text_of
from tests.planner.web.study import DOCUMENT as SCENARIO
from tests.planner.web.study import completed_run

GPU = {
    "name": "X100", "memory_gb": 96, "idle_w": 70, "prefill_w": 700, "decode_w": 450,
    "bandwidth_gb_s": 3350, "bf16_tflops": 990, "kind": "published", "source": "its data sheet",
}  # fmt: skip
HEAD = "model,gpu,tp,batch,isl,osl,prefill_ms,tbt_ms"
# exactly linear: prefill = 10 + 0.1 tokens ms, TBT = 20 + 0.5 batch ms
ROWS = "\n".join(
    f"llama-3.1-8b,H100-SXM,1,{b},{isl},128,{10 + 0.1 * b * isl},{20 + 0.5 * b}"
    for b in (1, 2, 4, 8)
    for isl in (64, 128, 256)
)
MEASURED = f"{HEAD}\n{ROWS}\n"


def test_profiles_that_a_plan_computed_are_shown_with_their_source(
    client: Client, planner: User, pools: Scenario
) -> None:
    run = completed_run(planner, pools)
    listed, computed = run.result["profile_error"][0], {"kind": "roofline", "error": 0.2}
    speed = {"what": "Speed of llama-3.1-8b on 1 x A100-80GB", "provenance": "modelled"}
    run.result["profile_error"] = [listed, listed | computed, listed | computed]
    run.result["assumptions"] = [speed | {"source": "measured kernels"}]
    run.save()
    (shown,) = client.get(reverse("web:profiles")).context["computed"]
    assert (shown.run, shown.model, shown.error) == (run.pk, "llama-3.1-8b", 0.2)
    assert shown.provenance == Provenance("modelled", "measured kernels")
    assert "computed" not in client.get(reverse("web:profiles"), {"search": "llama"}).context


@pytest.fixture
def calibration(planner: User, tmp_path: Path) -> Calibration:
    path = tmp_path / "bench.csv"
    path.write_text(MEASURED)
    stored = calibration_path(path=path, options=CalibrationOptions(), source="our cluster")
    stored.owner = planner
    stored.save()
    return stored


def fit_fields(calibration: Calibration, **changes: object) -> dict[str, object]:
    arrangement = calibration.report["arrangements"][0]
    return {
        "rows": json.dumps([arrangement["model"], arrangement["gpu"], arrangement["tp"]]),
        "kind": "linear", "name": "mine", "model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1,
        "precision": "bf16", **changes,
    }  # fmt: skip


def test_a_search_answers_with_the_rows_alone(client: Client) -> None:
    asked = {"HX-Request": "true", "HX-Target": "rows"}
    part = client.get("/hardware/gpus/?search=h200", headers=asked)
    assert "<html" not in part.content.decode()
    assert "H200" in text_of(part) and "L40S" not in text_of(part)
    none = text_of(client.get("/hardware/models/?search=nothing-like-it"))
    assert "No model matches" in none


def test_an_own_gpu_is_kept_shown_changed_and_removed(client: Client) -> None:
    answer = client.post(reverse("web:gpu-new"), GPU)
    assert answer.status_code == 302
    page = text_of(client.get(answer["Location"]))
    assert "89.4 GiB" in page and "its data sheet" in page and "3,350 GB/s" in page
    edited = client.post(reverse("web:gpu-edit", args=["X100"]), GPU | {"version": 1, "idle_w": 80})
    assert edited.status_code == 302
    assert OwnGpu.objects.get().facts["idle_w"] == 80
    stale = client.post(reverse("web:gpu-edit", args=["X100"]), GPU | {"version": 1})
    assert stale.status_code == 412 and "another person" in text_of(stale)
    assert client.post(reverse("web:gpu-delete", args=["X100"])).status_code == 302
    assert not OwnGpu.objects.exists()


def test_what_is_wrong_with_a_gpu_is_said_at_its_field(client: Client) -> None:
    page = client.post(reverse("web:gpu-new"), GPU | {"memory_gb": -1, "source": "x"})
    assert page.status_code == 400
    taken = client.post(reverse("web:gpu-new"), GPU | {"name": "H100-SXM"})
    assert "built-in GPU" in text_of(taken)


def test_models_of_scenarios_are_listed_first(client: Client, planner: User) -> None:
    address = reverse("web:models")
    last = client.get(address).context["models"][-1][0].name
    text = "{version: 1, name: a, models: [" + last + "]}"
    Scenario.objects.create(name="a", owner=planner, document=text)
    names = [entry.name for entry, _ in client.get(address).context["models"]]
    assert names[0] == last and len(set(names)) == len(names)


def test_models_and_gpus_come_from_a_file(client: Client) -> None:
    text = "gpus:\n- {name: Y1, memory_gb: 24, idle_w: 10, prefill_w: 70, decode_w: 60}\n"
    text += "models:\n- {name: m1, weight_gb: 8, kv_bytes_per_token: 1000, max_context: 4096}\n"
    answer = client.post(reverse("web:hardware-import"), {"file": _file("own.yaml", text)})
    assert answer.status_code == 302
    assert OwnGpu.objects.get().source == "own.yaml" and OwnModel.objects.get().name == "m1"
    page = text_of(client.get(reverse("web:model", args=["m1"])))
    assert "8 GB" in page and "Y1" in page
    broken = client.post(reverse("web:hardware-import"), {"file": _file("own.yaml", "gpus: [1]")})
    assert broken.status_code == 422 and "gpus[0]" in text_of(broken)
    assert OwnGpu.objects.count() == 1


def test_a_file_that_cannot_be_read_says_where(client: Client) -> None:
    sent = {"file": _file("bench.csv", f"{HEAD}\nm,g,1,0,64,128,1,1\n")}
    answer = client.post(
        reverse("web:calibration-new"), sent, headers={"Accept": "application/json"}
    )
    assert answer.status_code == 422
    assert "line 2" in answer.json()["problem"] and "batch" in answer.json()["problem"]


def _file(name: str, text: str) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, text.encode())


CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip


def test_options_of_the_engine_are_those_of_the_command_line(client: Client) -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1, "isl": 1024, "osl": 256,
             "concurrency": 32}  # fmt: skip
    more = {"lora_rank": 16, "lora_active": 8, "kv_cache": "fp8", "draft_tokens": 2,
            "accepted_tokens": 1.2, "equal_lengths": "no", "rounds": 1000}  # fmt: skip
    page = client.get(reverse("web:estimate"), asked | more)
    shown, known = page.context["found"], estimate_one(asked | more)
    assert (shown.ttft_ms, shown.tbt_ms) == (known["ttft_ms"], known["tbt_ms"])
    assert shown.tbt_ms != estimate_one(asked)["tbt_ms"]
    assert "8 LoRA adapters of rank 16" in text_of(page)
    assert "lora_active is missing" in text_of(
        client.get(reverse("web:estimate"), asked | {"lora_rank": 16})
    )


def test_an_estimate_at_a_rate_is_the_replays(client: Client) -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1, "engine": "vllm", "isl": 1024,
             "osl": 64, "rate": 4}  # fmt: skip
    answer = client.get(reverse("web:estimate"), asked | {"concurrency": 32})
    at_rate = estimate_one(asked)["at_rate"]
    page = text_of(answer)
    assert "At 4 requests/s" in page and f"{at_rate['most_rps']:.3g}" in page
    assert at_rate["by"] in page
    loads = json_in(answer, "latency-data")["data"][0]["x"]
    assert any(abs(load - max(at_rate["in_flight"], 1.0)) < 1e-9 for load in loads)
    typed = {"measured": "8 1024 64 95 9.4"}  # rows are of requests in flight, whatever is asked
    text = text_of(client.get(reverse("web:estimate"), asked | {"concurrency": 32} | typed))
    assert "Your own measurements, at constant requests in flight" in text
    assert "With 1 row" in text
    row = {name: value for name, value in asked.items() if name != "rate"}
    row |= {"concurrency": 8, "ttft_ms": 95, "tbt_ms": 9.4}
    moved = estimate_one(asked, MeasurementSource([row], "typed"))["at_rate"]
    assert f"{moved['closed_loop_tbt_ms']:#.3g} ms" in text
    refused = text_of(client.get(reverse("web:estimate"), asked | {"concurrency": 32, "rate": 1e5}))
    assert "sustains at most" in refused


def test_a_sweep_is_of_one_deployment_whatever_was_left_out(client: Client) -> None:
    row = {"model": "deepseek-v3", "gpu": "H200", "tp": 8, "isl": 4096, "osl": 1024,
           "concurrency": 64, "mode": "disagg"}  # fmt: skip
    estimated = estimate_one(row)
    swept = dict(estimate_sweep(row, [16, 64, 256]))
    assert {answer.gpus for answer in swept.values()} == {estimated["gpus"]}
    for key in ("ttft_ms", "tbt_ms", "power_w"):
        assert getattr(swept[64], key) == pytest.approx(estimated[key], rel=1e-9)
    # beyond 128 in flight one worker is taken where the row does not say how many
    assert estimate_one(row | {"concurrency": 256})["gpus"] < estimated["gpus"]


def test_an_own_gpu_and_model_are_estimated_too(client: Client) -> None:
    gpu = GPU | {"link_gb_s": 450, "family": "hopper", "gpus_per_node": 8}
    client.post(reverse("web:gpu-new"), gpu)
    sent = {"file": _file("config.json", json.dumps(CONFIG)), "name": "tuned-8b"}
    client.post(reverse("web:hardware-import"), sent)
    asked = {"model": "tuned-8b", "gpu": "X100", "tp": 1, "isl": 512, "osl": 64, "concurrency": 8}
    page = text_of(client.get(reverse("web:estimate"), asked))
    assert "tuned-8b on 1 x X100" in page and "Expected error" in page


def test_the_scenario_form_offers_kept_profiles_and_writes_them(
    client: Client, calibration: Calibration, planner: User
) -> None:
    where = reverse("web:calibration", args=[calibration.pk])
    client.post(where, fit_fields(calibration))
    text = SCENARIO.replace("A100-80GB", "H100-SXM")
    data = outline(text)
    choices = dict(dict(names_of(data).profiles[1:])["llama-3.1-8b"])
    choice = ProfileChoice("llama-3.1-8b", "H100-SXM", 1, "mine")
    assert choices[choice.encode()].endswith("(mine, newest version)")
    changes = row_changes(data, "profiles", [{"at": 0, "profile": choice}])
    (row,) = changes["profiles"]
    assert row == {"model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1, "name": "mine"}
    kept = scenario_create(owner=planner, document=edit(text, changes))
    client.post(where, fit_fields(calibration, kind="table"))
    run = scenario_run(scenario=kept, owner=planner, kind="plan")
    client.post(where, fit_fields(calibration))
    assert run.resolved["profiles"]["mine"]["version"] == 2  # the newest when it was made
    profile = stored_hardware(run.resolved).profiles["mine"]
    assert (profile.kind, profile.gpu) == ("table", "H100-SXM")


def test_a_model_keeps_its_shape_when_its_form_is_saved(client: Client) -> None:
    sent = {"file": _file("config.json", json.dumps(CONFIG)), "name": "tuned-8b"}
    client.post(reverse("web:hardware-import"), sent)
    before = model_get("tuned-8b").spec
    address = reverse("web:model-edit", args=["tuned-8b"])
    page = client.get(address).content.decode()
    assert "Computed from the shape" in page
    row = OwnModel.objects.get(name="tuned-8b")
    saved = client.post(
        address,
        {"name": "tuned-8b", "kind": "measured", "source": "ours", "version": row.version,
         "weight_gb": 1},
    )  # fmt: skip
    assert saved.status_code == 302, (saved.context["problem"], saved.context["form"].errors)
    after = model_get("tuned-8b").spec
    assert (after.shape, after.weight_bytes) == (before.shape, before.weight_bytes)
    assert (after.provenance.kind, after.provenance.source) == ("measured", "ours")
