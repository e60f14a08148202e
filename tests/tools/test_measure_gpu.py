"""The script that measures a GPU, as far as it goes without one: what it would time, and that what
it writes can be imported."""

import builtins
import csv
import json

import pytest

from planner.inputs import catalogue
from planner.inputs.profiles.kernel_files import native_format, read_kernels
from tools.catalogue import measure_gpu
from tools.catalogue.measure_gpu import (
    COLUMNS,
    SHAPES,
    Case,
    cases,
    gemms,
    main,
    representatives,
    row_of,
    shape_of,
    write,
)

LLAMA = SHAPES["llama-3.1-8b"]
H100 = catalogue.gpu("H100-SXM")


def test_columns_are_those_that_the_product_imports():
    assert set(native_format.COLUMNS) <= set(COLUMNS)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "tiny"])
def test_built_in_shapes_are_the_catalogue_s(name):
    ours, known = SHAPES[name], catalogue.shape(name)
    assert (ours.hidden, ours.heads, ours.kv_heads, ours.head_dim, ours.vocab) == (
        known.hidden, known.heads, known.kv_heads, known.head_dim, known.vocab,
    )  # fmt: skip
    assert (ours.experts, ours.top_k) == (known.experts, known.experts_per_token)
    assert ours.expert_intermediate == known.expert_intermediate


def test_gemms_of_llama_by_hand():
    assert gemms(LLAMA, 1) == {
        "qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096),
        "down": (4096, 14336), "head": (128256, 4096),
    }  # fmt: skip
    assert gemms(LLAMA, 4)["qkv"] == (8 * 128 + 2 * 2 * 128, 4096)
    assert gemms(SHAPES["qwen3-30b-a3b"], 8)["qkv"][0] == 4 * 128 + 2 * 128  # a KV head each


def test_cases_fill_the_columns_their_operator_needs_and_none_comes_twice():
    work = cases(SHAPES["qwen3-30b-a3b"], [1, 2], ["bf16", "fp8"], quick=False)
    for case in work:
        assert set(native_format.NEEDED[case.op]) <= set(case.size), case
        assert all(value >= 0 for value in case.size.values())
    assert len({(c.op, c.dtype, tuple(sorted(c.size.items()))) for c in work}) == len(work)
    assert {case.op for case in work} == set(native_format.NEEDED) - {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
    }  # fmt: skip
    assert (
        len(cases(LLAMA, [1], ["bf16"], quick=True)) < len(cases(LLAMA, [1], ["bf16"], False)) / 3
    )


def test_config_json():
    config = {
        "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 6144, "vocab_size": 151936, "hidden_act": "silu", "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    }  # fmt: skip
    assert shape_of(config) == SHAPES["qwen3-30b-a3b"]
    assert shape_of({"text_config": config}) == SHAPES["qwen3-30b-a3b"]
    with pytest.raises(ValueError, match="vocab_size"):
        shape_of({"hidden_size": 64, "num_attention_heads": 4})


def test_representatives_fill_their_columns_and_few_rows_wait_for_memory(tmp_path):
    few = representatives(LLAMA)
    for case in few:
        assert set(native_format.NEEDED[case.op]) <= set(case.size), case
    many_rows, few_rows = (case for case in few if case.op == "gemm")
    assert few_rows.size["m"] <= measure_gpu.FEW_ROWS == native_format.FEW_ROWS
    rows = [
        row_of(many_rows, [1200.0]), row_of(few_rows, [90.0]),
        row_of(many_rows, [3600.0], sm_share=0.5, concurrent_with="gemm_memory_bound:0.5"),
        row_of(few_rows, [135.0], sm_share=0.5, concurrent_with="gemm:0.5"),
    ]  # fmt: skip
    path = tmp_path / "own.csv"
    write(path, rows, "H100-SXM", "PyTorch")
    seen = {
        (row.op, row.concurrent_with, row.slowdown)
        for row in read_kernels(path, shapes={}, gpus={}).sharing
    }
    assert seen == {("gemm", "gemm_memory_bound:0.5", 3.0), ("gemm_memory_bound", "gemm:0.5", 1.5)}


def test_median_and_spread():
    row = row_of(Case("gemm", "bf16", {"m": 1}), [float(x) for x in range(1, 22)])
    assert row["latency_us"] == 11.0
    assert row["spread"] == pytest.approx((19.8 - 2.2) / 11, abs=1e-3)


def test_what_it_writes_is_imported(tmp_path):
    # Llama-3.1-8B's QKV GEMM at 1,024 tokens: 51.5 GFLOP, 52 us at the peak of an H100.
    rows = [
        row_of(Case("gemm", "bf16", {"m": 1024, "n": 6144, "k": 4096}), [90.0, 91.0, 92.0]),
        row_of(Case("gemm", "bf16", {"m": 2048, "n": 6144, "k": 4096}), [170.0]),
        row_of(Case("norm", "bf16", {"m": 1024, "n": 4096, "k": 4096}), [12.0]),
        row_of(
            Case("attention_decode", "bf16", {"batch": 8, "isl": 1, "context": 2048, "heads": 32,
                                              "kv_heads": 8, "head_dim": 128}), [60.0],
        ),
        row_of(Case("all_reduce", "bf16", {"gpus": 2, "message_bytes": 1 << 20}), [30.0]),
        row_of(Case("gemm", "bf16", {"m": 8, "n": 6144, "k": 4096}), [40.0], sm_share=0.5),
        row_of(Case("gemm", "bf16", {"m": 8, "n": 6144, "k": 4096}), [50.0],
               concurrent_with="attention_decode:1"),
    ]  # fmt: skip
    path = tmp_path / "own.csv"
    write(path, rows, "H100-SXM", "PyTorch 2.9.0, CUDA 13.0")
    with path.open() as file:
        assert next(csv.reader(file)) == list(COLUMNS)
    kernels = read_kernels(path, shapes={}, gpus={"H100-SXM": H100})
    assert kernels.format == "own"
    assert sum(kernels.set_aside.values()) == 2  # under a share and side by side


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", "tiny", "--tp", "3"], "3: 4 heads"),
        (["--shape", "tiny", "--tp", "two"], "give numbers"),
        (["--shape", "tiny", "--dtypes", "fp64"], "bf16 and fp8"),
        (["--shape", "tiny", "--sm-shares", "none"], "none"),
        (["--shape", "tiny", "--sm-shares", "0.5,1.5"], "1.5"),
        (["--config", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_arguments_in_one_sentence(arguments, words, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1


def test_without_torch_one_sentence(monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *rest, **named):
        if name == "torch":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["--shape", "tiny"]) == 2
    assert capsys.readouterr().err.strip() == measure_gpu.NO_TORCH


def test_list_counts_and_stops(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"hidden_size": 64, "num_attention_heads": 4,
                                  "intermediate_size": 128, "vocab_size": 256}))  # fmt: skip
    assert main(["--config", str(config), "--list", "--quick"]) == 0
    assert "6 kinds" in capsys.readouterr().out
