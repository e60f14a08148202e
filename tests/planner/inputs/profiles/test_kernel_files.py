"""Files of measured kernels: every format, what is refused and why, and the real ones."""

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planner.errors import IngestError
from planner.inputs.catalogue import hardware
from planner.inputs.profiles.kernel_files import KernelFile, kernel_format, read_kernels
from simulation.performance.kernel_tables import KernelRows, kernels
from simulation.performance.specs import ModelShape
from tests.shared_folder import PROFILES, shared

MAX_UPLOAD_BYTES = 50_000_000  # of planner.services.calibrations
TINY = ModelShape("tiny", 2, 512, 1000, 8, 4, 64, 2048, 4096)


def read(tmp_path: Path, text: str, name: str = "rows.csv") -> KernelFile:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_kernels(path, shapes={"tiny": TINY}, gpus=hardware.gpus())


def only(file: KernelFile, gpu: str) -> KernelRows:
    (rows,) = file.by_gpu[gpu]
    return rows


OWN = "op,dtype,m,n,k,batch,isl,context,heads,kv_heads,head_dim,latency_us,gpu,source"


def test_own_format(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        f"{OWN},sm_share,concurrent_with\n"
        "gemm,bf16,16,4096,1024,,,,,,,20,H200,script 1.0,,\n"
        "gemm,bf16,16,4096,1024,,,,,,,40,H200,script 1.0,0.5,\n"
        "gemm,bf16,16,4096,1024,,,,,,,50,H200,script 1.0,1,gemm:1\n"
        "attention_decode,bf16,,,,4,1,1000,32,8,128,12.5,H200,script 1.0,1,\n",
    )
    assert file.format == "own"
    gemm, decode = file.by_gpu["H200"]
    assert (gemm.op, gemm.precision) == ("gemm", "bf16")
    assert gemm.seconds == pytest.approx([2e-5])
    assert decode.columns["context"].tolist() == [1000]
    assert decode.seconds == pytest.approx([1.25e-5])
    assert sum(file.set_aside.values()) == 2
    half, beside = file.sharing
    assert half.op == beside.op == "gemm_memory_bound"  # 16 rows
    assert (half.sm_share, half.concurrent_with, half.slowdown) == (0.5, "", 2.0)
    assert (beside.sm_share, beside.concurrent_with, beside.slowdown) == (1.0, "gemm:1", 2.5)
    assert {half.gpu, beside.gpu} == {"H200"} and half.calls == beside.calls == 1


def test_own_format_in_json(tmp_path: Path) -> None:
    row = {"op": "norm", "dtype": "bf16", "m": 8, "n": 4096, "k": 8192, "latency_us": 3.5,
           "gpu": "My GPU", "source": "script"}  # fmt: skip
    file = read(tmp_path, json.dumps([row, {**row, "m": 16}]), "rows.json")
    rows = only(file, "My GPU")
    assert rows.columns["m"].tolist() == [8, 16]
    assert rows.seconds == pytest.approx([3.5e-6, 3.5e-6])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{OWN}\ngemm,bf16,16,x,64,,,,,,,20,H200,s\n", "line 2: n is 'x'"),
        (f"{OWN}\ngemm,bf16,16,64,64,,,,,,,20,H200,s\ngemm,bf16,1,2,3,,,,,,,0,H200,s\n",
         "line 3: latency_us"),
        (f"{OWN}\ngemm,bf16,16,,64,,,,,,,20,H200,s\n", "line 2: n is empty"),
        (f"{OWN}\nconv,bf16,16,64,64,,,,,,,20,H200,s\n", "line 2: op 'conv' is unknown"),
        (f"{OWN}\ngemm,fp7,16,64,64,,,,,,,20,H200,s\n", "line 2: dtype 'fp7' is unknown"),
        (f"{OWN}\n", "holds no measured kernel"),
        ("a,b\n1,2\n", "not in a known kernel format"),
        ("system,gemm_dtype,m,n,k,latency_ms\nh100_sxm,fp6,1,2,3,4\n", "'fp6' is unknown"),
        ("hardware,model,tp,kind,layer,n,time_us\nH100,nobody,1,x,o_proj,1,2\n",
         "unknown name in the catalogue. Add the model"),
    ],
)  # fmt: skip
def test_bad_files_are_told_what_to_change(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(IngestError, match=words):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["{", '{"op": "gemm"}', "[1]"])
def test_bad_json(tmp_path: Path, text: str) -> None:
    with pytest.raises(IngestError, match=r"rows\.json"):
        read(tmp_path, text, "rows.json")


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{OWN}\n", encoding="utf-8")
    with pytest.raises(IngestError, match="Choose one of auto, own"):
        read_kernels(path, shapes={}, gpus={}, format="mine")
    with pytest.raises(IngestError, match="lacks the column system"):
        read_kernels(path, shapes={}, gpus={}, format="aic_nccl")


def test_collectives_of_aiconfigurator_count_elements(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        "system,nccl_version,op_name,nccl_dtype,num_gpus,message_size,latency_ms\n"
        "h100_sxm,2.29,all_reduce,half,8,1000,0.02\nh100_sxm,2.29,alltoall,int8,8,1000,0.03\n",
    )
    rows = {table.op: table for table in file.by_gpu["H100-SXM"]}
    assert rows["all_reduce"].columns["message_bytes"].tolist() == [2000]
    assert rows["all_to_all"].columns["message_bytes"].tolist() == [1000]


def test_what_beats_the_peak_is_set_aside(tmp_path: Path) -> None:
    head = "system,gemm_dtype,m,n,k,latency_ms\n"
    good = [f"h100_sxm,bfloat16,8192,{n},8192,100\n" for n in range(8192, 8292)]
    bad = "h100_sxm,bfloat16,8192,8192,8192,0.001\n"
    file = read(tmp_path, head + "".join(good) + bad)
    assert only(file, "H100-SXM").seconds.size == 100
    assert list(file.set_aside.values()) == [1]
    file = read(tmp_path, head + "".join(good[:20]) + bad)
    assert file.by_gpu["H100-SXM"] == []
    assert "so the table is not used" in next(iter(file.set_aside))


def test_layers_of_a_model_become_products_of_its_sizes(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        "hardware,model,tp,kind,layer,n,activated_experts,time_us\n"
        "RTX4090,org/Tiny,2,dense_per_tokens,qkv_proj,16,,5\n"
        "RTX4090,org/Tiny,2,dense_per_tokens,layernorm,16,,3\n"
        "RTX4090,org/Tiny,2,per_sequences,sampler,16,,9\n",
    )
    gemm, norm = file.by_gpu["RTX-4090"]
    assert [gemm.columns[c].tolist() for c in "mnk"] == [[16], [(4 + 2 * 2) * 64], [512]]
    assert [norm.columns[c].tolist() for c in "nk"] == [[1024], [1024]]
    assert file.set_aside == {"layer sampler is no operator of the graph": 1}


def test_mixed_attention_calls_tell_what_decodes_take_beside_a_chunk(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        "hardware,model,tp,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
        "RTX4090,tiny,1,128,0,0,0,10\nRTX4090,tiny,1,0,0,4,256,12\n"
        "RTX4090,tiny,1,128,0,4,256,25\nRTX4090,tiny,1,64,0,4,256,25\n",
    )
    prefill, decode, beside = file.by_gpu["RTX-4090"]
    assert prefill.columns["isl"].tolist() == [128]
    assert decode.columns["batch"].tolist() == beside.columns["batch"].tolist() == [4]
    assert beside.seconds == pytest.approx([15e-6])
    assert list(file.set_aside.values()) == [1]
    tables = kernels("RTX-4090", "test", file.by_gpu["RTX-4090"])
    among = tables.among_prompts()
    assert among is not None
    (key,) = tables.decode
    point = np.array([4.0]), np.array([256.0])
    assert tables.decode[key].at(*point)[0] == pytest.approx([12e-6])
    assert among.decode[key].at(*point)[0] == pytest.approx([15e-6])


def test_csv_and_parquet_give_the_same(tmp_path: Path, shared_data: Path) -> None:
    source = shared_data / "profiles/aic_nccl.parquet"
    frame = pl.read_parquet(source)
    frame.write_csv(tmp_path / "aic_nccl.csv")
    first, two = (
        read_kernels(path, shapes={}, gpus=hardware.gpus())
        for path in (source, tmp_path / "aic_nccl.csv")
    )
    assert first.format == two.format == "aic_nccl"
    assert first.rows == two.rows == frame.height
    for gpu, rows in first.by_gpu.items():
        for a, b in zip(rows, two.by_gpu[gpu], strict=True):
            assert a.op == b.op
            np.testing.assert_allclose(a.seconds, b.seconds, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("aic_custom_allreduce.parquet", 5),
        ("aic_moe.parquet", 5),
        ("aic_generation_attention.parquet", 5),
        ("vidur_network.csv.gz", 2),
        ("llmservingsim_v0_attention.parquet", 2),
        ("llmservingsim_v1_layers.csv.gz", 2),
        ("llmservingsim_v1_attention.parquet", 2),
    ],
)
def test_real_files(shared_data: Path, name: str, gpus: int) -> None:
    shapes = {model: hardware.shape(model) for model in hardware.models()}
    file = read_kernels(shared_data / "profiles" / name, shapes=shapes, gpus=hardware.gpus())
    assert len(file.by_gpu) == gpus
    assert set(file.by_gpu) <= set(hardware.gpus())
    kept = sum(rows.seconds.size for tables in file.by_gpu.values() for rows in tables)
    assert kept > 0
    assert kept + sum(file.set_aside.values()) >= file.rows


def test_prompts_measured_on_h200_are_faster_than_it_can_be(shared_data: Path) -> None:
    path = shared_data / "profiles/aic_context_attention.parquet"
    file = read_kernels(path, shapes={}, gpus=hardware.gpus())
    assert file.by_gpu["H200"] == []
    assert len(file.by_gpu["H100-SXM"]) == 2


def test_what_an_upload_may_expand_to_is_bounded(tmp_path: Path) -> None:
    row = "norm,bf16,8,4096,4096,,,,,,,3.5,H200,script\n"
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress((f"{OWN}\n" + row * 200_000).encode()))
    limit = 500_000
    assert kernel_format(path, max_bytes=limit) == "own"  # its columns are read, not all of it
    with pytest.raises(IngestError, match="expands to more than"):
        read_kernels(path, shapes={}, gpus={}, max_bytes=limit)


def test_a_deep_json_is_no_list_of_measurements(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="nested too deeply"):
        read(tmp_path, "[" * 200_000 + "]" * 200_000, "deep.json")


@pytest.mark.parametrize(("column", "value"), [("tp", ""), ("n_head", "0"), ("n_embd", "many")])
def test_a_size_that_is_none_is_said(tmp_path: Path, column: str, value: str) -> None:
    sizes = {"gpu": "a100", "model": "m", "tp": "1", "n_head": "8", "n_kv_head": "8",
             "n_embd": "512", "n_expanded_embd": "2048", "vocab_size": "1000",
             "use_gated_mlp": "true", "num_tokens": "8"}  # fmt: skip
    times = dict.fromkeys(
        ("attn_pre_proj_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_down_proj_ms",
         "mlp_act_ms", "attn_rope_ms", "emb_ms", "input_layernorm_ms", "add_ms"), "0.1"
    )  # fmt: skip
    row = sizes | times
    text = f"{','.join(row)}\n{','.join(row.values())}\n"
    assert read(tmp_path, text).format == "vidur_mlp_ops"
    bad = row | {column: value}
    with pytest.raises(IngestError, match=r"rows\.csv is not as the format vidur_mlp_ops has it"):
        read(tmp_path, f"{','.join(bad)}\n{','.join(bad.values())}\n")


@pytest.mark.parametrize("name", [
    "aic_gemm.parquet", "aic_context_attention.parquet", "aic_generation_attention.parquet",
    "aic_moe.parquet", "aic_nccl.parquet", "aic_custom_allreduce.parquet", "vidur_mlp_ops.parquet",
    "vidur_network.csv.gz", "llmservingsim_v0_layers.parquet",
    "llmservingsim_v0_attention.parquet", "llmservingsim_v1_layers.csv.gz",
    "llmservingsim_v1_attention.parquet",
])  # fmt: skip
def test_every_published_file_can_be_uploaded(name: str) -> None:
    path = shared(PROFILES / name)
    shapes = {known: hardware.shape(known) for known in hardware.models()}
    file = read_kernels(path, shapes=shapes, gpus=hardware.gpus(), max_bytes=MAX_UPLOAD_BYTES)
    assert file.format == kernel_format(path, name, MAX_UPLOAD_BYTES)
    assert any(rows.seconds.size for tables in file.by_gpu.values() for rows in tables)


def test_tables_as_vidur_and_aiconfigurator_publish_them(tmp_path: Path) -> None:
    network = (
        ",time_stats.all_reduce.median,rank,num_workers,size,collective,devices_per_node\n"
        "0,0.037,0,8,2048,all_reduce,8\n1,0.05,0,8,4096,all_reduce,8\n"
    )
    path = tmp_path / "all_reduce.csv"
    path.write_text(network, encoding="utf-8")
    with pytest.raises(IngestError, match="GPU"):
        read_kernels(path, shapes={}, gpus={})
    read_network = read_kernels(path, shapes={}, gpus={}, gpu="H100-SXM")
    assert (read_network.format, read_network.rows) == ("vidur_network", 2)
    assert only(read_network, "H100-SXM").seconds.tolist() == pytest.approx([37e-6, 50e-6])
    table = pl.DataFrame(
        {
            "device": "NVIDIA H200", "op_name": "all_reduce", "kernel_source": "SGLang",
            "allreduce_dtype": "half", "num_gpus": [4, 4], "message_size": [128, 128],
            "latency": [0.0045, 0.02], "backend": ["sglang_graph", "sglang_eager"],
        }
    )  # fmt: skip
    table.write_parquet(tmp_path / "perf.parquet")
    read_table = read_kernels(tmp_path / "perf.parquet", shapes={}, gpus={})
    assert read_table.format == "aic_custom_allreduce" and list(read_table.by_gpu) == ["H200"]
    assert sum(read_table.set_aside.values()) == 1
