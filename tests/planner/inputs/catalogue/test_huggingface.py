"""config.json read against the catalogue's own facts, and what is said of those that lack some."""

from dataclasses import replace
from typing import Any

import pytest

from planner.errors import CatalogueError
from planner.inputs import catalogue
from planner.inputs.catalogue.config_keys import precision_of
from planner.inputs.catalogue.huggingface import shape_of
from simulation.performance.parameters import parameters
from tests.planner.inputs.catalogue.hf_configs import CONFIGS, MLA


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_the_shape_of_the_catalogue(name: str) -> None:
    expected, shape = catalogue.shape(name), shape_of(CONFIGS[name], name)
    if name == "deepseek-v4-pro":  # rounded there
        assert shape.kv_compression == pytest.approx(expected.kv_compression, rel=1e-3)
        shape = replace(shape, kv_compression=expected.kv_compression)
    assert shape == expected


def test_older_families_by_their_own_field_names() -> None:
    gpt2 = shape_of({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12,
                     "n_positions": 1024, "vocab_size": 50257}, "gpt2")  # fmt: skip
    assert (gpt2.hidden, gpt2.heads, gpt2.kv_heads, gpt2.intermediate) == (768, 12, 12, 3072)
    assert gpt2.tied_embeddings and not gpt2.gated
    neox = shape_of({"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576,
                     "max_position_embeddings": 2048, "num_attention_heads": 64,
                     "num_hidden_layers": 44, "vocab_size": 50432}, "neox")  # fmt: skip
    assert not neox.gated and not neox.tied_embeddings
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71,
              "num_hidden_layers": 32, "vocab_size": 65024,
              "max_position_embeddings": 2048}  # fmt: skip
    assert shape_of(falcon | {"multi_query": True}).kv_heads == 1
    newer = falcon | {"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8}
    assert shape_of(newer).kv_heads == 8


def test_routed_layers_may_be_every_other_or_listed() -> None:
    config = CONFIGS["qwen3-30b-a3b"]
    assert shape_of(config | {"decoder_sparse_step": 2}).dense_layers == 24
    assert shape_of(config | {"mlp_only_layers": [0, 1]}).dense_layers == 2


DENSE, ROUTED = CONFIGS["llama-3.1-8b"], CONFIGS["qwen3-30b-a3b"]


def test_widths_of_an_attention_that_is_off_change_nothing() -> None:
    assert shape_of(DENSE | MLA | {"q_lora_rank": None, "use_mla": False}) == shape_of(DENSE)
    assert shape_of(DENSE | MLA | {"use_mla": True}).kv_lora_rank == MLA["kv_lora_rank"]


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (DENSE | {"num_hidden_layers": None}, "num_hidden_layers"),
        *((DENSE | {"hidden_size": wrong}, "hidden_size") for wrong in ("4096", -1)),
        (DENSE | {"vocab_size": 0}, "vocab"),
        (ROUTED | {"num_experts_per_tok": None}, "num_experts_per_tok"),
        (ROUTED | {"moe_intermediate_size": None}, "moe_intermediate_size"),
        (CONFIGS["deepseek-v3"] | {"qk_nope_head_dim": None}, "qk_nope_head_dim"),
        (DENSE | {"use_mla": True}, "use_mla"),
        (CONFIGS["qwen3-next-80b-a3b"] | {"linear_num_value_heads": None},
         "linear_num_value_heads"),
        ([1, 2], "JSON object"),
        # fields of another form
        *((DENSE | changes, r"config\.json of mine") for changes in (
            {"num_attention_heads": 0}, {"layer_types": {"full": 32}, "sliding_window": 4096},
            {"vision_config": {"depth": "many"}}, {"compress_ratios": ["a", "b"]},
            {"num_hidden_layers": 500_000_000}, {"hybrid_override_pattern": [["M"]]},
        )),
        # encoders with other layers
        *((DENSE | changes, "encoder") for changes in (
            {"model_type": "modernbert", "local_attention": 128},
            {"model_type": "deberta-v2", "type_vocab_size": 0},
            {"model_type": "nomic_bert", "causal": False},
            {"model_type": "mine", "architectures": ["MineForMaskedLM"]},
            {"is_encoder_decoder": True, "encoder_layers": 12},
            {"model_type": "clip", "text_config": {"model_type": "clip_text_model"}},
        )),
        (DENSE | {"is_encoder_decoder": True}, "is_encoder_decoder"),
        # no attention
        ({"model_type": "mamba2", "d_model": 2560, "n_layer": 64, "vocab_size": 50280},
         "model_type"),
        ({"model_type": "mamba2", "hidden_size": 4096, "num_heads": 128, "state_size": 128,
          "num_hidden_layers": 64, "vocab_size": 32768}, "model_type"),
        ({"model_type": "rwkv", "hidden_size": 2048, "num_hidden_layers": 24, "vocab_size": 50277},
         "model_type"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_named(config: Any, names: str) -> None:
    with pytest.raises(CatalogueError, match=names):
        shape_of(config, "mine")


@pytest.mark.parametrize(
    ("quantised", "expected"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"moe_quant_type": "block_wise_fp8", "quantization": "mix_quant"}, "fp8"),
        ({"global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, "int4"),
    ],
)  # fmt: skip
def test_precision_of_the_weights(quantised: Any, expected: str) -> None:
    assert precision_of({"quantization_config": quantised}) == expected


@pytest.mark.parametrize(
    "quantised",
    [{"bits": [4]}, {"config_groups": [1]}, {"bits": {}}, "fp8", {"quant_method": "aqlm"},
     {"config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}}}],
)  # fmt: skip
def test_an_unknown_precision_is_refused(quantised: Any) -> None:
    with pytest.raises(CatalogueError, match="quantization_config"):
        precision_of({"quantization_config": quantised})


def test_precisions_beside_and_inside_the_text_model() -> None:
    packed = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    assert precision_of({"text_config": {"quantization_config": packed}}) == "fp4"
    assert precision_of({"expert_dtype": "fp4", "quantization_config": {"bits": 8}}) == "fp4"
    mixed = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "a": {"quant_algo": "FP8"},
            "b": {"quant_algo": "NVFP4"},
            "c": {"quant_algo": "NVFP4"},
        },
    }
    assert precision_of({"quantization_config": mixed}) == "fp4"
    assert precision_of({"quantization": {"group_size": 64, "bits": 4}}) == "int4"


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"moe_count": 64}, ["moe_count"]),
        ({"moe_intermediate_size": 512, "experts_in_layer": 8},
         ["moe_intermediate_size", "experts_in_layer"]),
        ({"ssm_state_dim": 16}, ["ssm_state_dim"]),
        ({"block_types": ["recurrent", "attention"], "lru_width": 4096},
         ["block_types", "lru_width"]),
        ({"mamba_d_state": 16, "mamba_d_conv": 4}, ["mamba_d_state", "mamba_d_conv"]),
        ({"cross_attention_layers": [3, 8]}, ["cross_attention_layers"]),
        ({"sparse_attention_config": {"use": True}}, ["sparse_attention_config"]),
        ({"mixer": {"ssm_width": 8}, "blocks": {"moe_count": 16}},
         ["mixer.ssm_width", "blocks.moe_count"]),
        ({"layer_types": ["conv", "full_attention"] * 16}, ["layer_types"]),
        ({"layers_block_type": ["mamba", "hybrid"] * 16}, ["layers_block_type"]),
        ({"num_kv_shared_layers": 15}, ["num_kv_shared_layers"]),
        ({"layer_group_size": 8}, ["layer_group_size"]),
        ({"use_cla": True, "cla_share_factor": 2}, ["use_cla"]),
        ({"pooling": "avg"}, ["pooling"]),
        ({"audio_config": {"num_mel_bins": 128}}, ["audio_config"]),
        ({"mm_vision_tower": "clip-vit"}, ["mm_vision_tower"]),
        ({"quantization_config": {"quant_method": "aqlm"}}, ["quantization_config.quant_method"]),
        ({"quantize": "w8a8_dynamic"}, ["quantize"]),
        ({"vision_config": {"hidden_size": 1280}}, ["vision_config"]),
        ({"mamba_ssm_cache_dtype": "float16"}, ["mamba_ssm_cache_dtype"]),
    ],
)  # fmt: skip
def test_a_key_that_matters_and_is_not_read_is_named(
    changes: dict[str, Any], keys: list[str]
) -> None:
    with pytest.raises(CatalogueError) as refused:
        shape_of(DENSE | changes, "mine")
    assert all(key in str(refused.value) for key in keys)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": False, "attention_dropout": 0.1, "attn_pdrop": 0.1, "qk_norm": True},
        {"moe_intermediate_size": None, "num_kv_shared_layers": 0, "mlp_only_layers": []},
        {"router_aux_loss_coef": 0.001, "output_router_logits": True, "norm_topk_prob": True},
        {"num_nextn_predict_layers": 1, "image_token_index": 7, "top_k": 50, "use_flash_attn": 1},
        {"rope_scaling": {"attention_factor": 1.2}, "no_rope_layers": [1, 1, 0]},
        {"moe_norm_min": 1e-12, "moe_z_loss_lambda": 1e-4, "use_cla": False, "pooler_type": "x"},
    ],
)
def test_a_key_without_effect_on_the_shape_changes_nothing(changes: dict[str, Any]) -> None:
    assert shape_of(DENSE | changes, "mine") == shape_of(DENSE, "mine")


@pytest.mark.parametrize("changes", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_a_decoder_without_a_mask_is_an_encoder(changes: dict[str, Any]) -> None:
    expected = replace(shape_of(DENSE, "mine"), causal=False, tied_embeddings=True)
    assert shape_of(DENSE | changes, "mine") == expected


HYBRIDS = {
    # billions of parameters on the model card, layers with a state, configuration
    "jamba": (51.6, 28, {
        "attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1,
        "expert_layer_period": 2, "intermediate_size": 14336, "mamba_d_conv": 4,
        "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "num_experts": 16,
        "num_experts_per_tok": 2, "vocab_size": 65536}),
    "bamba": (9.78, 29, {
        "attn_layer_indices": [9, 18, 27], "intermediate_size": 14336, "mamba_d_conv": 4,
        "mamba_d_head": "auto", "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1,
        "mamba_n_heads": 128, "vocab_size": 128256}),
    "falcon_h1": (7.59, 44, {
        "head_dim": 128, "hidden_size": 3072, "intermediate_size": 12288, "mamba_d_conv": 4,
        "mamba_d_head": 128, "mamba_d_ssm": 3072, "mamba_d_state": 256, "mamba_n_groups": 1,
        "mamba_n_heads": 24, "num_attention_heads": 12, "num_hidden_layers": 44,
        "num_key_value_heads": 2, "ssm_multipliers": [0.5], "vocab_size": 130048}),
    "minimax_text_01": (456, 70, {
        "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10, "head_dim": 128, "hidden_size": 6144,
        "intermediate_size": 9216, "num_attention_heads": 64, "num_experts_per_tok": 2,
        "num_hidden_layers": 80, "num_local_experts": 32, "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid", "vocab_size": 200064}),
}  # fmt: skip


@pytest.mark.parametrize("kind", HYBRIDS)
def test_hybrids_have_the_parameters_of_their_cards(kind: str) -> None:
    billions, states, config = HYBRIDS[kind]
    usual = {"model_type": kind, "hidden_size": 4096, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 8,
             "max_position_embeddings": 262144}  # fmt: skip
    shape = shape_of(usual | config, kind)
    assert shape.linear_layers == states and shape.linear_state_bytes > 0
    assert parameters(shape).total / 1e9 == pytest.approx(billions, rel=0.01)


OTHERS = {
    # billions of parameters on the model card, configuration
    "dbrx": (132, {
        "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768, "vocab_size": 100352,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}),
    "chatglm": (9.4, {
        "attention_softmax_in_fp32": True, "ffn_hidden_size": 13696, "hidden_size": 4096,
        "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2,
        "num_attention_heads": 32, "num_layers": 40, "padded_vocab_size": 151552,
        "seq_length": 131072}),
    "gpt_bigcode": (15.5, {
        "multi_query": True, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
        "n_positions": 8192, "scale_attn_weights": True, "vocab_size": 49152}),
    "qwen": (7.7, {
        "hidden_size": 4096, "intermediate_size": 22016, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 32, "use_logn_attn": True,
        "vocab_size": 151936}),
    "kimi_linear": (48, {
        "first_k_dense_replace": 1, "hidden_size": 2304, "intermediate_size": 9216,
        "kv_lora_rank": 512, "linear_attn_config": {
            "head_dim": 128, "kda_layers": list(range(20)), "num_heads": 32,
            "short_conv_kernel_size": 4},
        "mla_use_nope": True, "model_max_length": 1048576, "moe_intermediate_size": 1024,
        "num_attention_heads": 32, "num_experts": 256, "num_experts_per_token": 8,
        "num_hidden_layers": 27, "num_shared_experts": 1, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840}),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_families_with_other_names_have_the_parameters_of_their_cards(kind: str) -> None:
    billions, config = OTHERS[kind]
    shape = shape_of({"model_type": kind} | config, kind)
    assert parameters(shape).total / 1e9 == pytest.approx(billions, rel=0.03)


def test_lists_by_layer_count_where_all_layers_are_alike() -> None:
    config = CONFIGS["qwen3-30b-a3b"]
    alike = {"num_experts_per_tok": [8] * 48, "moe_intermediate_size": [768] * 48}
    assert shape_of(config | alike, "mine") == shape_of(config, "mine")
    with pytest.raises(CatalogueError, match="num_experts_per_tok"):
        shape_of(config | {"num_experts_per_tok": [8, 4] * 24}, "mine")


def test_windows_of_some_layers_alone() -> None:
    assert shape_of(DENSE | {"sliding_window": [4096, None]}).window_layers == 16
    late = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20}
    assert shape_of(DENSE | late).window_layers == 12
    assert shape_of(DENSE | {"sliding_window": 4096, "sliding_window_pattern": 4}).window == 4096
