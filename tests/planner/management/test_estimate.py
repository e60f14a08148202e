"""bin/manage estimate: the contract of its options, columns and answers."""

import gzip
import io
import math
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from django.urls import reverse
from django.utils import timezone

from planner.errors import PlannerError
from planner.inputs.catalogue.estimate_calibration import estimate_fit
from planner.services.estimates import UNSEEN
from tests.planner.estimates import estimate_many, estimate_one
from tests.planner.management.calling import answer, problem
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in

pytestmark = pytest.mark.django_db

ROW: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "gpu": "h200_sxm",
    "tp": 4,
    "isl": 1000,
    "osl": 300,
    "concurrency": 64,
}
KEYS = {
    "ttft_ms", "tbt_ms", "tokens_per_s", "power_w", "memory_gb", "profile", "provenance",
    "expected_error",
}  # fmt: skip

ALONE = ("next_measurement", "notes", "left_out")  # of a deployment asked by itself


def words(row: dict[str, Any]) -> list[str]:
    return [part for key, value in row.items() for part in (f"--{key}", str(value))]


answered, refused = partial(answer, "estimate"), partial(problem, "estimate")


def test_one_deployment_is_answered_with_the_keys_of_the_contract() -> None:
    result = answered(*words(ROW))
    assert result.keys() >= KEYS
    for key in ("ttft_ms", "tbt_ms", "tokens_per_s", "power_w", "memory_gb"):
        assert 0 < result[key] < math.inf, key
    assert 4 * 84 <= result["power_w"] <= 4 * 700
    assert 35 < result["memory_gb"] < 141
    assert result["j_per_token"] * result["tokens_per_s"] == pytest.approx(result["power_w"])
    assert result["j_per_request"] == pytest.approx(result["j_per_token"] * ROW["osl"])
    assert 0 < result["expected_error"]["tbt"] < result["expected_error"]["ttft"] < 1
    assert not result["expected_error"]["model_checked"]
    (outside,) = result["expected_error"]["outside"]
    assert "1,000" in outside and "1,024" in outside
    assert result["provenance"]["kind"] == "modelled"
    assert estimate_fit().source in result["provenance"]["source"]
    by = {row["what"]: row for row in result["left_out"]}
    assert by.keys() == set(UNSEEN.values()) and all(row["rows"] > 0 for row in by.values())
    shown = result["expected_error"]
    here = by["model and GPU type"]  # neither was measured
    assert all(here[name] == shown[name] for name in ("ttft", "tbt", "ttft_90", "tbt_90"))


@pytest.mark.parametrize(
    ("engine", "version", "later"),
    [("vllm", "0.99", True), ("vllm", "v0.12.0", False), ("vllm", "", False),
     ("sglang", "nightly-2027", False), ("sglang", "0.6.0rc1", True), ("trtllm", "1.0.0", False)],
)  # fmt: skip
def test_a_version_later_than_any_measured_one_states_the_age_of_the_data(
    engine: str, version: str, later: bool
) -> None:
    row = ROW | {"engine": engine, "engine_version": version}
    error = estimate_one(row)["expected_error"]
    notes = [note for note in error["outside"] if version and version in note]
    assert error["data_age_days"] == (timezone.localdate() - estimate_fit().published).days > 0
    assert (error["newest_version"] is not None) == later == bool(notes)
    if later:
        assert f"{engine} {error['newest_version']}" in estimate_fit().versions
        assert str(error["data_age_days"]) in notes[0]


def test_an_encoder_answers_with_its_prompt_alone() -> None:
    row = {"model": "BAAI/bge-m3", "gpu": "L4", "isl": 512, "concurrency": 8}
    assert estimate_one(row | {"osl": 1})["ttft_ms"] > 0
    with pytest.raises(PlannerError, match="osl"):
        estimate_one(row | {"osl": 20})


def test_prefill_and_decode_apart_have_their_own_options() -> None:
    apart = ROW | {
        "mode": "disagg", "prefill-tp": 2, "prefill-workers": 3, "decode-tp": 4,
        "decode-workers": 2, "engine": "sglang", "precision": "fp8",
    }  # fmt: skip
    del apart["tp"]
    result = answered(*words(apart))
    assert result["gpus"] == 3 * 2 + 2 * 4
    assert result["mode"] == "disagg"
    assert result["assumptions"] == []


LINES = """model,gpu,tp,isl,osl,concurrency,attention-dp
meta-llama/Llama-3.1-70B-Instruct,h200_sxm,4,1000,300,64,
no-such-model,h200_sxm,4,1000,300,64,
meta-llama/Llama-3.1-70B-Instruct,h200_sxm,four,1000,300,64,
meta-llama/Llama-3.1-70B-Instruct,L4,1,1000,300,64,
meta-llama/Llama-3.1-70B-Instruct,h200_sxm,4,,300,64,
meta-llama/Llama-3.1-70B-Instruct,h200_sxm,4,1000,300,64,1
"""


@pytest.mark.parametrize("form", ["csv", "csv.gz", "jsonl", "parquet"])
def test_a_file_is_answered_row_by_row_and_a_bad_row_says_why(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"rows.{form}"
    frame = pl.read_csv(io.StringIO(LINES), infer_schema=False)
    if form == "csv":
        path.write_text(LINES)
    elif form == "csv.gz":
        path.write_bytes(gzip.compress(LINES.encode()))
    elif form == "jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_parquet(path)
    rows = answered("--rows", path)["rows"]
    assert [sorted(row) == ["refused"] for row in rows] == [False, True, True, True, True, False]
    alone = answered(*words(ROW))
    assert rows[0] == rows[5] == {k: v for k, v in alone.items() if k not in ALONE}
    assert "no-such-model" in rows[1]["refused"]
    assert "tp 'four' is not a number" in rows[2]["refused"]
    assert "does not fit on 1 x L4" in rows[3]["refused"]
    assert "isl is missing" in rows[4]["refused"]


def test_the_columns_of_measured_deployments_are_known() -> None:
    known = {
        "model_path": ROW["model"], "system": "h200_sxm", "backend": "vllm", "mode": "agg",
        "isl": 1000, "osl": 300, "tp_size": 4.0, "pp_size": 1.0, "attention_dp_size": None,
        "moe_tp_size": 0.0, "moe_ep_size": 1.0, "batch_size": 64.0, "concurrency": None,
        "prefill_tp_size": None, "decode_num_workers": None, "precision": None,
        "gemm_quant_mode": "", "backend_version": "0.12.0",
    }  # fmt: skip
    estimated = estimate_one(ROW)
    assert estimate_many([known]) == [{k: v for k, v in estimated.items() if k not in ALONE}]


def test_precision_is_as_given_else_as_the_name_or_the_release_says() -> None:
    def memory(**fields: object) -> float:
        return float(estimate_one(ROW | fields)["memory_gb"])

    half = memory(precision="fp8")
    assert half < 0.6 * memory()
    assert memory(model="nvidia/Llama-3.1-70B-Instruct-FP8") == half
    assert memory(gemm_quant_mode="fp8_block") == half
    assert memory(moe_quant_mode="nvfp4", gemm_quant_mode="bfloat16") < half
    tight = estimate_one(ROW | {"gpu": "H100-SXM", "tp": 1})
    assert tight["assumptions"][0] == "precision not given: fp8 is used, because 16 bits do not fit"
    large = {"model": "deepseek-ai/DeepSeek-R1", "tp": 8}
    assert memory(**large) == memory(**large, precision="fp8")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "--model is missing"),
        ({"model": "x"}, "--gpu is missing"),
        (ROW | {"model": "no-such-model"}, "no-such-model"),
        (ROW | {"gpu": "no-such-gpu"}, "no-such-gpu"),
        (ROW | {"engine": "tgi"}, "engine 'tgi' is unknown. Use one of vllm, sglang, trtllm"),
        (ROW | {"mode": "both"}, "mode 'both' is unknown. Use one of agg, disagg"),
        (ROW | {"precision": "fp2"}, "precision 'fp2' is unknown"),
        (ROW | {"isl": -3}, "isl is -3"),
        (ROW | {"osl": 10_000_000}, "takes 131072 tokens"),
        (ROW | {"gpu": "L4", "tp": 1}, "does not fit on 1 x L4"),
        (ROW | {"gpu": "H100-SXM", "tp": 1, "precision": "bf16"}, "does not fit on 1 x H100-SXM"),
        ({"rows": "nowhere.csv"}, "nowhere.csv: there is no such file"),
        (ROW | {"rows": "rows.csv"}, "and --rows exclude each other"),
    ],
)
def test_bad_input_is_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    sentence_seen = refused(*words(fields))
    assert sentence in sentence_seen
    assert sentence_seen.count("\n") <= 1


@pytest.mark.parametrize("field", ["tp", "pp", "attention_dp", "concurrency", "decode_workers"])
def test_numbers_beyond_any_deployment_refuse_their_row_alone(field: str) -> None:
    wild, plain = estimate_many([ROW | {field: 1e200}, ROW])
    assert field in wild["refused"]
    assert plain["tbt_ms"] > 0


def test_a_file_of_too_many_rows_or_a_name_with_braces_is_a_sentence(tmp_path: Path) -> None:
    many = tmp_path / "many.csv.gz"
    many.write_bytes(gzip.compress(b"model,gpu\n" + b"a,b\n" * 2_000_000))
    assert "more than 100000 rows" in refused("--rows", many)
    odd = tmp_path / "{0.real}.csv"
    odd.write_text("model,gpu\na,b\na,b,c\n")
    rows = answered("--rows", odd)["rows"]
    assert "{0.real}.csv, line 3" in rows[1]["refused"]


def test_five_rows_of_ones_own_move_an_estimate_and_a_further_one_is_named(tmp_path: Path) -> None:
    plain = answered(*words(ROW))
    head = "model,gpu,tp,isl,osl,concurrency,engine_version,ttft_ms,tpot_ms"
    rows = [
        f"{ROW['model']},h200_sxm,4,1000,300,{n},0.19.0,{ttft},{tbt}"
        for n, ttft, tbt in (
            (1, 150, 22),
            (8, 220, 26),
            (32, 500, 36),
            (128, 1400, 63),
            (256, 2600, 90),
        )
    ]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([head, *rows, "no-such-model,h200_sxm,4,1,1,1,,1,1"]))
    result = answered(*words(ROW), "--engine-version", "0.19.0", "--measured", path)
    assert result["own"]["rows"] == 5 and result["own"]["ttft_ms_before"] == plain["ttft_ms"]
    assert abs(result["tbt_ms"] / 47.0 - 1) < 0.15  # between the rows at 32 and 128
    assert result["expected_error"]["tbt"] < plain["expected_error"]["tbt"]
    assert "row 6" in result["notes"][0] and "no-such-model" in result["notes"][0]
    advice = result["next_measurement"]
    assert advice["after"][1] <= advice["error"][1] < plain["next_measurement"]["error"][1]
    assert f"--max-concurrency {advice['concurrency']}" in advice["commands"][0]
    assert all("//localhost:8000 " in command for command in advice["commands"])
    short = ROW | {"model": "llama-3.1-8b", "engine": "sglang"}
    for command in estimate_one(short)["next_measurement"]["commands"]:
        assert "--model meta-llama/Llama-3.1-8B " in command and "localhost:30000 " in command
    other = answered(*words(ROW | {"gpu": "b200_sxm"}), "--measured", path)
    assert other["own"]["rows"] == 0 and other["own"]["alike"] == 5
    closer = result["own"]["tbt_factor"] - 1, other["own"]["tbt_factor"] - 1
    assert abs(closer[1]) < abs(closer[0])
    path.write_text(head.replace("tpot_ms", "speed") + "\n" + rows[0].replace("150,22", ",22"))
    assert "needs ttft_ms or tbt_ms" in refused(*words(ROW), "--measured", path)


def test_tensor_parallelism_divides_the_attention_heads(planner: Any) -> None:
    """Command, API and page refuse the same deployments; Llama 3.1 70B has 64 heads."""
    widths = range(1, 17)
    answers = estimate_many([ROW | {"tp": tp} for tp in widths])
    assert [tp for tp, row in zip(widths, answers, strict=True) if "heads" in str(row)] == [
        tp for tp in widths if 64 % tp
    ]
    asked = ROW | {"tp": 3}
    sentence = refused(*words(asked))
    posted = client_of(planner).post("/api/v1/estimates/", asked, format="json")
    assert posted.status_code == 400 and posted.json()["detail"] in sentence
    shown = signed_in(planner).get(reverse("web:estimate"), asked)
    assert shown.context["problem"] in sentence and not shown.context.get("found")
