"""GPUs, models, profiles, calibration, observations and estimates over REST."""

import io
import json

import polars as pl
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from planner.api.schema import CONFIG, DEPLOYMENT, GPU, MODEL
from planner.domain.verification.profile_error import stated_error
from planner.models import OwnGpu, Profile, ProfileVersion
from planner.selectors.profiles import built_in_name, profile_get
from simulation.performance.profile import iteration_s
from tests.planner.web.test_hardware import HEAD, MEASURED

FIT = {
    "name": "mine", "kind": "linear", "model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1,
    "rows_model": "llama-3.1-8b", "rows_gpu": "H100-SXM",
}  # fmt: skip


def upload(client, text=MEASURED, key="", **fields):
    headers = {"Idempotency-Key": key} if key else {}
    file = SimpleUploadedFile("bench.csv", text.encode())
    return client.post("/api/v1/calibrations/", {"file": file, **fields}, headers=headers)


@pytest.fixture
def fits(api):
    """Address that fits the uploaded rows."""
    return upload(api).json()["links"]["fits"]


def test_a_gpu_is_made_read_changed_by_etag_and_removed(api):
    made = api.post("/api/v1/gpus/", GPU, format="json")
    assert made.status_code == 201
    assert made["Location"].endswith("/api/v1/gpus/X100/")
    assert made.json()["facts"]["memory_gb"] == 96
    assert made.json()["facts"]["fp8_tflops"] is None
    tag = api.get(made["Location"])["ETag"]
    change = GPU | {"idle_w": 80}
    saved = api.put(made["Location"], change, format="json", headers={"If-Match": tag})
    assert saved.json()["facts"]["idle_w"] == 80
    stale = api.put(made["Location"], change, format="json", headers={"If-Match": tag})
    assert stale.status_code == 412
    assert api.delete(made["Location"]).status_code == 204
    assert not OwnGpu.objects.exists()


def test_a_field_that_is_wrong_is_named(api):
    for change, field in ({"memory_gb": "much"}, "memory_gb"), ({"memory": 1}, "memory"):
        answer = api.post("/api/v1/gpus/", GPU | change, format="json")
        assert answer.status_code == 400
        assert field in [fault["field"] for fault in answer.json()["errors"]]
    taken = api.post("/api/v1/gpus/", GPU | {"name": "new"}, format="json")
    assert taken.status_code == 422  # a word of addresses
    built_in = api.put("/api/v1/gpus/H100-SXM/", GPU, format="json")
    assert built_in.status_code == 404
    assert "built in" in built_in.json()["detail"]


def test_models_by_memory_and_by_config(api):
    assert api.post("/api/v1/models/", MODEL, format="json").status_code == 201
    made = api.post("/api/v1/models/", CONFIG, format="json").json()
    assert made["shape"]["layers"] == 32
    known = api.get("/api/v1/models/llama-3.1-8b/").json()
    assert made["kv_bytes_per_token"] == known["kv_bytes_per_token"]
    listed = api.get("/api/v1/models/?search=my-&gpu=L4").json()
    assert [entry["name"] for entry in listed["results"]] == ["my-llama", "my-model"]
    assert listed["results"][0]["fit"]["gpu"] == "L4"
    both = api.post("/api/v1/models/", CONFIG | {"name": "x", "weight_gb": 1}, format="json")
    assert both.status_code == 422
    assert "weight_gb" in both.json()["detail"]


def test_a_file_of_hardware_is_taken_over_or_not_at_all(api):
    good = SimpleUploadedFile("own.yaml", json.dumps({"gpus": [GPU]}).encode())
    answer = api.post("/api/v1/hardware/", {"file": good})
    assert (answer.status_code, answer.json()) == (201, {"gpus": ["X100"], "models": []})
    half = {"gpus": [GPU | {"name": "ok"}, {"name": "bad"}]}
    refused = api.post(
        "/api/v1/hardware/", {"file": SimpleUploadedFile("own.yaml", json.dumps(half).encode())}
    )
    assert refused.status_code == 422
    assert not OwnGpu.objects.filter(name="ok").exists()


@pytest.mark.parametrize("path", ["gpus", "models", "profiles", "prices", "carbon"])
def test_lists_are_paged_searched_and_strict(reader, path):
    first = reader.get(f"/api/v1/{path}/?page_size=2")
    assert first.status_code == 200
    assert len(first.json()["results"]) == 2
    assert first.json()["count"] > 2
    again = reader.get(f"/api/v1/{path}/?page_size=2", headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 304
    assert reader.get(f"/api/v1/{path}/?search=zzzz").json()["count"] == 0
    assert reader.get(f"/api/v1/{path}/?flavour=a").status_code == 400


def test_measurements_become_a_profile_with_its_errors(api, fits):
    made = api.post(fits, FIT, format="json")
    assert made.status_code == 201
    body = made.json()
    assert body["version"] == 1
    assert body["parameters"]["alpha"]["value"] == pytest.approx(20)
    assert body["parameters"]["delta"]["unit"] == "ms per token"
    assert {c["quantity"] for c in body["checks"]} == {"prefill time", "TBT"}
    checks = api.get(body["links"]["checks"]).json()
    assert checks["checks"] == body["checks"]
    residuals = api.get(body["links"]["residuals"]).json()
    assert residuals["total"] == 24
    assert residuals["rows"][0]["predicted"] == pytest.approx(residuals["rows"][0]["measured"])
    text = api.get(body["links"]["residuals"], headers={"Accept": "text/csv"}).content.decode()
    assert len(text.splitlines()) == 25


def test_versions_are_kept_and_asked_for_by_number(api, fits):
    api.post(fits, FIT, format="json")
    second = api.post(fits, FIT | {"kind": "table"}, format="json").json()
    assert second["version"] == 2
    versions = api.get("/api/v1/profiles/mine/versions/").json()["results"]
    assert [(v["version"], v["kind"]) for v in versions] == [(2, "table"), (1, "linear")]
    assert api.get("/api/v1/profiles/mine/?version=1").json()["kind"] == "linear"
    assert api.get("/api/v1/profiles/mine/?version=7").status_code == 404


def test_a_key_makes_one_thing_however_often_it_is_sent(api):
    first, second = upload(api, key="a").json(), upload(api, key="a").json()
    assert first["id"] == second["id"]
    assert upload(api, text=f"{MEASURED}\n", key="a").status_code == 422
    key = {"Idempotency-Key": "fit"}
    where = first["links"]["fits"]
    for _ in range(2):
        assert api.post(where, FIT, format="json", headers=key).json()["version"] == 1
    assert ProfileVersion.objects.count() == 1
    other = api.post(where, FIT | {"kind": "table"}, format="json", headers=key)
    assert other.status_code == 422
    assert "'fit'" in other.json()["detail"]


def test_a_profile_is_compared_without_a_trace(api, fits):
    api.post(fits, FIT, format="json")
    where = fits.replace("/fits/", "/comparisons/")
    asked = {"profile": "mine", "rows_model": "llama-3.1-8b", "rows_gpu": "H100-SXM"}
    compared = api.post(where, asked, format="json").json()
    assert all(check["mape"] < 1e-6 for check in compared["checks"])
    assert "bench.csv" in compared["checks"][0]["against"]
    assert ProfileVersion.objects.count() == 1


def observed(slower: float) -> list[dict[str, float]]:
    """Pure decodes and prefills of the fitted profile, times ``slower``."""
    written = []
    for i in range(60):
        b, p = (8.0 * (i % 4 + 1), 0.0) if i % 2 else (0.0, 256.0 * (i % 3 + 1))
        seconds = (0.020 + 0.0005 * b) if b else (0.010 + 0.0001 * p)
        written.append(
            {"at_s": 60.0 * i, "decodes": b, "prefill_tokens": p, "seconds": slower * seconds}
        )
    return written


def test_observations_move_a_profile_into_its_next_version(api, fits):
    api.post(fits, FIT, format="json")
    asked = {"profile": "mine", "observations": observed(1.2)}
    tuned = api.post("/api/v1/observations/", asked, format="json")
    assert tuned.status_code == 201
    body = tuned.json()
    assert (body["version"], body["kind"]) == (2, "linear")
    assert body["parameters"]["alpha"]["value"] == pytest.approx(24, rel=0.05)
    assert [check["rows"] for check in body["checks"]] == [30, 30]
    assert [(phase["name"], phase["kind"]) for phase in body["phases"]] == [
        ("prefill", "measured"),
        ("decode", "measured"),
    ]
    assert [phase["most"] for phase in body["phases"]] == [768, 32]
    more = api.post("/api/v1/observations/", asked, format="json").json()
    low, high = (body["parameters"]["alpha"][end] for end in ("low", "high"))
    later = more["parameters"]["alpha"]
    assert later["high"] - later["low"] < high - low  # it goes on from what it knew
    bad = {"profile": "mine", "observations": [{"at_s": 0, "decodes": 0, "seconds": 1}]}
    refused = api.post("/api/v1/observations/", bad, format="json")
    assert refused.status_code == 400
    assert "prefill_tokens" in refused.json()["detail"]


def test_a_built_in_profile_is_tuned_under_a_name_of_its_own(api):
    name = built_in_name("llama-2-70b", "A100-80GB", 4)
    asked = {"profile": name, "observations": observed(1.0)[:4]}
    assert api.post("/api/v1/observations/", asked, format="json").status_code == 422
    kept = api.post("/api/v1/observations/", asked | {"keep_as": "ours"}, format="json")
    assert kept.status_code == 201
    assert Profile.objects.get().name == "ours"


def test_roles_are_asked_for_everywhere(reader, api, fits):
    assert reader.post(fits, FIT, format="json").status_code == 403
    assert reader.post("/api/v1/gpus/", GPU, format="json").status_code == 403
    assert reader.post("/api/v1/models/", MODEL, format="json").status_code == 403
    api.post(fits, FIT, format="json")
    asked = {"profile": "mine", "observations": observed(1.0)}
    assert reader.post("/api/v1/observations/", asked, format="json").status_code == 403


def test_measured_rows_of_ones_own_move_estimates_when_sent_along_and_when_kept(api):
    load = {"isl": 1024, "osl": 256}
    sent = [
        load | {"concurrency": n, "ttft_ms": 1.6 * ttft, "tbt_ms": 1.6 * tbt}
        for n, ttft, tbt in (
            (1, 60, 8),
            (4, 75, 8.6),
            (8, 90, 9.5),
            (16, 115, 10.8),
            (32, 151, 13.1),
        )
    ]
    plain = api.post("/api/v1/estimates/", DEPLOYMENT, format="json").json()
    assert plain["own"] is None
    body = DEPLOYMENT | {"measured": sent}
    estimated = api.post("/api/v1/estimates/", body, format="json").json()
    assert estimated["own"]["rows"] == 5 and estimated["own"]["tbt_ms_before"] == plain["tbt_ms"]
    assert 1.2 * plain["tbt_ms"] < estimated["tbt_ms"] <= max(row["tbt_ms"] for row in sent)
    assert estimated["expected_error"]["tbt"] < plain["expected_error"]["tbt"]
    rows = [
        f"llama-3.1-8b,H100-SXM,1,1024,256,{r['concurrency']},{r['ttft_ms']},{r['tbt_ms']}"
        for r in sent
    ]
    head = "model,gpu,tp,isl,osl,concurrency,ttft_ms,tbt_ms"
    assert upload(api, text="\n".join([head, *rows])).status_code == 201
    kept = api.post("/api/v1/estimates/", DEPLOYMENT, format="json").json()
    # The file states no engine version, so its rows weigh less.
    assert plain["tbt_ms"] < kept["tbt_ms"] < estimated["tbt_ms"]
    alone = DEPLOYMENT | {"kept": False}
    assert api.post("/api/v1/estimates/", alone, format="json").json()["own"] is None
    wrong = DEPLOYMENT | {"measured": [load | {"concurrency": 8}]}
    refused = api.post("/api/v1/estimates/", wrong, format="json")
    assert refused.status_code == 400 and "ttft_ms or tbt_ms" in refused.json()["detail"]


def test_estimates_one_and_many_in_json_and_csv(api):
    estimated = api.post("/api/v1/estimates/", DEPLOYMENT, format="json").json()
    assert {"ttft_ms", "tbt_ms", "tokens_per_s", "power_w", "memory_gb", "provenance"} <= set(
        estimated
    )
    assert estimated["expected_error"]["tbt"] > 0
    rows = [DEPLOYMENT, DEPLOYMENT | {"gpu": "abacus"}]
    many = api.post("/api/v1/estimates/rows/", {"rows": rows}, format="json").json()["rows"]
    assert estimated.keys() - many[0].keys() == {"left_out", "next_measurement", "notes"}
    assert many[0] == {key: estimated[key] for key in many[0]}
    assert "abacus" in many[1]["refused"]
    header = "model,gpu,tp,isl,osl,concurrency"
    text = f"{header}\nllama-3.1-8b,H100-SXM,1,1024,256,32\n,H100-SXM,1,1024,256,32\n"
    answer = api.post(
        "/api/v1/estimates/rows/", text, content_type="text/csv", headers={"Accept": "text/csv"}
    )
    lines = list(io.StringIO(answer.content.decode()))
    assert len(lines) == 3
    assert "model is missing" in lines[2]
    unknown = api.post("/api/v1/estimates/", DEPLOYMENT | {"colour": "red"}, format="json")
    assert unknown.status_code == 400


def test_measured_kernels_become_an_operator_profile(api, shared_data):
    """H100 kernels of aiconfigurator, a part of each file; the sum is slower than the peaks."""
    numbers = []
    for name in ("aic_gemm", "aic_generation_attention", "aic_context_attention"):
        path = shared_data / "profiles" / f"{name}.parquet"
        table = pl.read_parquet(path).filter(pl.col("system") == "h100_sxm")
        body = io.BytesIO()
        table.gather_every(4).write_parquet(body)
        file = SimpleUploadedFile(f"{name}.parquet", body.getvalue())
        made = api.post("/api/v1/calibrations/", {"file": file, "source": "aiconfigurator"})
        assert made.status_code == 201, made.json()
        assert made.json()["kind"] == "kernels"
        numbers.append(made.json()["id"])
    asked = {"name": "by kernels", "kind": "operator", "model": "llama-3.1-8b", "gpu": "H100-SXM"}
    without = api.post("/api/v1/profiles/", asked, format="json")
    assert without.status_code == 422
    assert "file of measured kernels" in without.json()["detail"]
    elsewhere = api.post(
        "/api/v1/profiles/", asked | {"kernels": numbers, "gpu": "L4"}, format="json"
    )
    assert "H100-SXM" in elsewhere.json()["detail"]
    made = api.post("/api/v1/profiles/", asked | {"kernels": numbers}, format="json")
    assert made.status_code == 201, made.json()
    assert "measured on H100-SXM" in made.json()["provenance"]["source"]
    by_kernels = profile_get("by kernels").profile
    peak_s = 16e9 / 3.35e12  # every weight read once at the published bandwidth
    assert peak_s < float(iteration_s(by_kernels, 1, 512, 0, 0)) < 3 * peak_s
    assert stated_error(by_kernels) is not None


def test_a_roofline_needs_nothing_but_the_catalogue(api):
    asked = {"name": "peaks", "kind": "roofline", "model": "llama-3.1-8b", "gpu": "H200"}
    made = api.post("/api/v1/profiles/", asked, format="json").json()
    assert (made["kind"], made["version"]) == ("roofline", 1)
    assert made["checks"]
    wrong = api.post("/api/v1/profiles/", asked | {"kind": "linear"}, format="json")
    assert wrong.status_code == 400


def test_a_roofline_is_scaled_to_measured_rows(api):
    rows = f"{HEAD}\n" + "\n".join(
        f"llama-3.1-8b,H200,1,{b},{isl},128,{0.06 * b * isl + 9},{7 + 0.05 * b}"
        for b in (1, 4, 16, 64)
        for isl in (256, 512, 1024)
    )
    where = upload(api, text=rows).json()["links"]["fits"]
    asked = {"name": "scaled", "kind": "roofline", "model": "llama-3.1-8b", "gpu": "H200",
             "rows_model": "llama-3.1-8b", "rows_gpu": "H200"}  # fmt: skip
    made = api.post(where, asked, format="json")
    assert made.status_code == 201, made.json()
    assert set(made.json()["parameters"]) == {"decode factor", "prefill factor"}


def test_the_json_of_a_serving_benchmark_is_taken_for_what_it_is(api):
    runs = [
        {"completed": 100, "total_input_tokens": 100 * isl, "total_output_tokens": 12_800,
         "request_throughput": 4.0 * c, "max_concurrency": c, "model_id": "meta-llama/Llama-3.1-8B",
         "median_ttft_ms": 40 + c, "mean_ttft_ms": 45 + c,
         "median_tpot_ms": 8 + 0.1 * c + 1e-4 * c * isl,
         "mean_tpot_ms": 8 + 0.1 * c + 1e-4 * c * isl}
        for c in (2, 4, 8, 16, 32)
        for isl in (256, 1024)
    ]  # fmt: skip
    file = SimpleUploadedFile("vllm.json", json.dumps(runs).encode())
    made = api.post("/api/v1/calibrations/", {"file": file, "gpu": "H100-SXM", "tp": 1}).json()
    assert (made["kind"], made["format"], made["rows"]) == ("benchmark", "vllm", 10)
    asked = FIT | {"rows_model": "meta-llama/Llama-3.1-8B"}
    fitted = api.post(made["links"]["fits"], asked, format="json")
    assert fitted.status_code == 201, fitted.json()
    assert {check["quantity"] for check in fitted.json()["checks"]} >= {"TBT while serving"}


@pytest.mark.parametrize(
    "text",
    [
        "gpus: &.a [1, 1]\nmodels: [*.a, *.a]\n",
        'models: [{"source":&b [1, 1]}, *b]\n',
        "models:\n- {name: m, shape: {layers: 2, hidden: 8, vocab: 9, heads: 1, kv_heads: 1, "
        "head_dim: 8, intermediate: xy, max_context: 9}}\n",
    ],
)
def test_a_file_that_would_blow_up_is_refused(api, text):
    file = SimpleUploadedFile("own.yaml", text.encode())
    refused = api.post("/api/v1/hardware/", {"file": file})
    assert refused.status_code == 422, refused.content
    assert "anchors" in refused.json()["detail"] or "intermediate" in refused.json()["detail"]
