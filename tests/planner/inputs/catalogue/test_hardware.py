"""GPU types and models: every name resolves to one of them; the facts are the published ones."""

import csv
from dataclasses import replace

import pytest

from planner.errors import CatalogueError
from planner.inputs import catalogue
from planner.inputs.catalogue.files import read
from planner.inputs.catalogue.names import aliases
from simulation.performance.graph import operator_graph
from simulation.performance.memory import gpu_weight_bytes, kv_bytes_per_token
from simulation.performance.parameters import parameters
from simulation.performance.specs import Arrangement
from tests.shared_folder import DATA, needs_shared
from tests.simulation.performance.oracles import active_parameters

needs_data = needs_shared(DATA)
WANTED_GPUS = [
    "A100-40GB", "A100-80GB", "H100-SXM", "H100-PCIe", "H100-NVL", "H200", "B200", "B300", "GB200",
    "GB300", "H20", "L20", "L40S", "L4", "A10", "A30", "A40", "RTX-PRO-6000", "RTX-4090", "MI300X",
    "MI325X", "MI350X", "MI355X", "Gaudi-3", "H800", "V100-16GB", "V100-32GB", "RTX-5090", "GB10",
    "Rubin", "TPU-v5e", "TPU-v6e", "TPU-v7", "Trainium2", "Trainium3",
]  # fmt: skip
# Facts that no public source states.
UNPUBLISHED = {
    "tdp_w": {"Rubin", "TPU-v5e", "TPU-v6e", "TPU-v7", "Trainium2", "Trainium3"},
    "link_bytes_s": {"GB10"},
    "network_bytes_s": {"Trainium3"},
}
GPU_NAMES = {
    "h100_sxm": "H100-SXM", "h200_sxm": "H200", "b200_sxm": "B200", "a100_sxm": "A100-80GB",
    "gb200": "GB200", "l40s": "L40S", "rtx_pro_6000_server": "RTX-PRO-6000",
    "a100-80gb": "A100-80GB", "h100-80gb": "H100-SXM", "H100": "H100-SXM", "B200": "B200",
    "RTXPRO6000": "RTX-PRO-6000", "RTX4090": "RTX-4090", "NVIDIA-H100-80GB-HBM3": "H100-SXM",
    "H100NVL": "H100-NVL", "mi300x": "MI300X", "gaudi3": "Gaudi-3", "a40": "A40",
}  # fmt: skip
MODEL_NAMES = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
    "llama2-70b": "llama-2-70b",
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": "qwen3-32b",
    "Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b-2507",
    "nvidia/DeepSeek-R1-0528-NVFP4": "deepseek-r1",
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": "llama-4-scout",
    "codellama-34b-instruct-hf": "codellama-34b",
    "Qwen/Qwen2.5-VL-32B-Instruct": "qwen2.5-vl-32b",
    "bigscience/bloom": "bloom-176b",
}
# Parts that the shape leaves out: the mergers of Qwen3-VL's intermediate image features, what the
# output projection of DeepSeek-V4 saves by its groups, and the learned positions of encoders.
INEXACT = {"qwen3-vl-2b": 0.05, "qwen3-vl-4b": 0.03, "qwen3-vl-8b": 0.02,
           "nemotron-nano-12b-v2-vl": 0.03, "deepseek-v4-flash": 0.02, "bge-m3": 0.02}  # fmt: skip


def rows(path):
    with (DATA / path).open() as file:
        return list(csv.DictReader(file))


def test_the_gpus_people_have_are_there_with_every_fact():
    for name in WANTED_GPUS:
        gpu = catalogue.gpu(name)
        assert gpu.name == name
        assert gpu.bandwidth_bytes_s and gpu.peak_flops["bf16"] > 0
        assert gpu.family and gpu.vendor and 2017 <= gpu.year <= 2026
        for fact, absent in UNPUBLISHED.items():
            assert (getattr(gpu, fact) is None) == (name in absent)
        most = gpu.tdp_w or gpu.prefill_w
        assert 0 < gpu.idle_w < gpu.decode_w <= gpu.prefill_w <= most


@pytest.mark.parametrize("name", list(catalogue.gpus()))
def test_every_fact_of_a_gpu_has_a_source(name):
    sources = catalogue.gpu_sources(name)
    unknown = {fact for fact, gpus in UNPUBLISHED.items() if name in gpus}
    assert len(set(sources) - {"idle_w"}) == 7 - len(unknown) and not unknown & set(sources)
    kinds = {fact: source.kind for fact, source in sources.items()}
    assert kinds.pop("idle_w", "measured") in ("measured", "published")
    assert set(kinds.values()) <= {"published", "assumed"}
    assert all(len(source.source) > 10 for source in sources.values())
    assert all(s.source in catalogue.gpu(name).provenance.source for s in sources.values())


def test_no_source_is_unused_or_missing():
    for kind in ("gpus", "models"):
        document = read(kind)
        used = {e["source"] for e in document[kind]}
        used |= {s for e in document[kind] for s in e.get("sources", {}).values()}
        assert used == set(document["sources"])


@pytest.mark.parametrize("kind", ["gpus", "models"])
def test_every_name_resolves_to_its_own_entry_whatever_its_case(kind):
    find = catalogue.gpu_name if kind == "gpus" else catalogue.model_name
    entries = read(kind)[kind]
    assert len({e["name"] for e in entries}) == len(entries)
    for entry in entries:
        for name in (entry["name"], *entry.get("aliases", ()), *entry.get("hf", ())):
            assert find(name) == find(name.upper()) == entry["name"]
            assert find(name.replace("-", "_")) == entry["name"]


def test_a_name_that_two_share_is_refused():
    with pytest.raises(ValueError, match="Two is a name of one and of other"):
        aliases([("one", ["two"]), ("other", ["Two"])])


@pytest.mark.parametrize(("name", "expected"), GPU_NAMES.items())
def test_gpus_go_by_the_names_of_tools_and_clouds(name, expected):
    assert catalogue.gpu(name).name == expected


@pytest.mark.parametrize(("name", "expected"), MODEL_NAMES.items())
def test_models_go_by_their_ids_and_old_names(name, expected):
    assert catalogue.shape(name).name == catalogue.model(name).name == expected


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(CatalogueError, match=r"Model 'Qwen3-33B' is not built in.*qwen3-32b"):
        catalogue.shape("Qwen3-33B")
    with pytest.raises(CatalogueError, match=r"GPU 'h101_sxm' is not built in.*H100-SXM"):
        catalogue.gpu("h101_sxm")


def test_the_precision_of_published_weights():
    for name, precision in (
        ("Qwen/Qwen3-32B", "bf16"),
        ("Qwen/Qwen3-32B-FP8", "fp8"),
        ("deepseek-ai/DeepSeek-R1", "fp8"),
        ("nvidia/DeepSeek-R1-NVFP4", "fp4"),
        ("openai/gpt-oss-120b", "fp4"),
        ("moonshotai/Kimi-K2.5", "int4"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "int8"),
        ("amd/Llama-3.1-405B-Instruct-FP8-KV", "fp8"),
        ("RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8", "fp4"),
    ):
        assert catalogue.published_precision(name) == precision


@pytest.mark.parametrize(
    ("name", "billions"),
    [(e["name"], e["params_b"]) for e in read("models")["models"] if "params_b" in e],
)
def test_parameters_follow_from_the_shape(name, billions):
    assert parameters(catalogue.shape(name)).total == pytest.approx(
        billions * 1e9, rel=INEXACT.get(name, 0.01)
    )


@pytest.mark.parametrize(
    ("name", "active_b"),
    [("mixtral-8x7b", 12.9), ("qwen3-235b-a22b", 22), ("qwen3-30b-a3b", 3.3), ("deepseek-v3", 37),
     ("gpt-oss-120b", 5.1), ("gpt-oss-20b", 3.6), ("qwen3-coder-480b-a35b", 35), ("kimi-k2", 32),
     ("glm-4.5", 32), ("llama-4-maverick", 17), ("nemotron-3-super-120b-a12b", 12)],
)  # fmt: skip
def test_active_parameters_are_those_of_the_model_card(name, active_b):
    """Cards round, and count embeddings or not: within a tenth."""
    assert active_parameters(catalogue.shape(name)) / 1e9 == pytest.approx(active_b, rel=0.1)


@pytest.mark.parametrize("name", list(catalogue.models()))
def test_weights_per_gpu_are_those_of_the_operators(name):
    """Counted twice, from parts of the model and from the products it computes."""
    shape = catalogue.shape(name)
    text = replace(shape, encoder=None)
    for precision in ("bf16", "fp8"):
        where = Arrangement(tp=4, moe_tp=4, weights=precision)
        operators = operator_graph(text, where).weight_bytes
        assert gpu_weight_bytes(text, where) == pytest.approx(operators, rel=0.03)


@needs_data
def test_shapes_are_those_of_the_table_of_models():
    """Where its columns mean the same: hybrids count blocks, others name another layer's width."""
    columns = {
        "layers": "num_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
        "kv_heads": "num_kv_heads", "vocab": "vocab_size", "max_context": "max_position",
        "experts": "num_experts", "experts_per_token": "experts_per_token",
        "expert_intermediate": "moe_intermediate_size", "kv_lora_rank": "kv_lora_rank",
        "rope_head_dim": "qk_rope_head_dim", "intermediate": "intermediate_size",
    }  # fmt: skip
    other = {
        "NemotronHForCausalLM": {"layers"},
        "DeciLMForCausalLM": {"layers"},
        "Gemma4ForConditionalGeneration": {"kv_heads"},
        "Llama4ForConditionalGeneration": {"intermediate"},
        "MiniMaxM3ForCausalLM": {"intermediate"},
        "MiniMaxM3SparseForConditionalGeneration": {"intermediate"},
    }
    table = rows("profiles/models.csv")
    assert len(table) == 99
    for row in table:
        shape = catalogue.shape(row["model"])
        skipped = other.get(row["architecture"], set())
        if row["model"] == "nvidia/MiniMax-M2.7-NVFP4":  # a shorter context than the original
            skipped = {"max_context"}
        for field, column in columns.items():
            if row[column] and field not in skipped:
                assert getattr(shape, field) == int(row[column]), (row["model"], field)
        if row["kv_bytes_per_token_fp16"]:
            assert kv_bytes_per_token(shape) == float(row["kv_bytes_per_token_fp16"])


@needs_data
def test_every_model_and_gpu_that_was_measured_resolves():
    for row in rows("power/mlenergy_llm_inference.csv"):
        assert catalogue.shape(row["model_id"])
        assert catalogue.gpu(row["gpu_model"])


@needs_data
def test_gpus_are_those_of_the_table_of_specs():
    """But for what the vendor's own documents say otherwise: memory kept for ECC, one port each."""
    columns = {
        "memory_bytes": "mem_capacity_bytes", "bandwidth_bytes_s": "mem_bw_bytes_s",
        "tdp_w": "power_w", "link_bytes_s": "intra_node_bw_bytes_s",
        "network_bytes_s": "inter_node_bw_bytes_s",
    }  # fmt: skip
    peaks = {"bf16": "bf16_flops", "fp8": "fp8_flops", "fp4": "fp4_flops", "int8": "int8_ops"}
    ours = {("l4", "memory_bytes"), ("b200_sxm", "network_bytes_s")}
    for row in rows("profiles/gpu_specs.csv"):
        gpu = catalogue.gpu(row["system"])
        for field, column in columns.items():
            if (row["system"], field) not in ours:
                assert getattr(gpu, field) == float(row[column]), (gpu.name, field)
        for precision, column in peaks.items():
            if row[column]:
                assert gpu.peak_flops[precision] == pytest.approx(float(row[column]), rel=1e-3)


@pytest.mark.parametrize(
    ("instance", "gpu"),
    [("p5.48xlarge", "H100-SXM"), ("a3-highgpu-8g", "H100-SXM"), ("ND H100 v5", "H100-SXM"),
     ("ND A100 v4", "A100-40GB"), ("Standard_ND96amsr_A100_v4", "A100-80GB"),
     ("BM.GPU.MI300X.8", "MI300X"), ("a4x-highgpu-4g", "GB200"),
     ("Standard_ND96isr_H100_v5", "H100-SXM"), ("p5en.48xlarge", "H200"), ("p5e.48xlarge", "H200"),
     ("a3-ultragpu-8g", "H200"), ("p4de.24xlarge", "A100-80GB"), ("g6e.12xlarge", "L40S"),
     ("p3.16xlarge", "V100-16GB"), ("p3dn.24xlarge", "V100-32GB"), ("p5en", "H200"),
     ("p6", "B200"), ("p6-b300.48xlarge", "B300"), ("u-p6e-gb200x72", "GB200"), ("a4", "B200"),
     ("trn2", "Trainium2"), ("trn2u.48xlarge", "Trainium2"), ("trn3", "Trainium3"),
     ("ct5lp-hightpu-8t", "TPU-v5e"), ("ct6e-standard-4t", "TPU-v6e"), ("v6e-8", "TPU-v6e"),
     ("tpu7x-standard-4t", "TPU-v7"), ("tpu-v5-lite-podslice", "TPU-v5e"),
     ("BM.GPU.MI355X-v1.8", "MI355X"), ("gpu-mi325x8-2048gb", "MI325X"),
     ("gpu-mi355x8-2304gb-spot", "MI355X"), ("trn3pd98.3xlarge", "Trainium3"),
     ("gx3-48x240x2l40s", "L40S"), ("gx3d-160x1792x8gaudi3", "Gaudi-3"),
     ("Standard_ND96isr_MI300X_v5", "MI300X"),
     ("DGX Spark", "GB10"), ("AMD_Instinct_MI325X_OAM", "MI325X"), ("Tesla-V100-SXM2-32GB",
     "V100-32GB"), ("ml.p4d.24xlarge", "A100-40GB"), ("g6.xlarge", "L4"),
     ("Standard_NC24ads_A100_v4", "A100-80GB-PCIe"), ("p6-b200.48xlarge", "B200"),
     ("ND MI300X v5", "MI300X")],
)  # fmt: skip
def test_cloud_instances_resolve_to_their_gpus(instance, gpu):
    assert catalogue.hardware.gpu_name(instance) == gpu
