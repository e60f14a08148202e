"""config.json read against the catalogue's own facts, and what is said of those that lack some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.errors import CatalogueError
from planner.inputs import catalogue
from planner.inputs.catalogue.huggingface import precision_of, shape_of
from tests.planner.inputs.catalogue.hf_configs import CONFIGS


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


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("llama-3.1-8b", {"num_hidden_layers": None},
         r"config.json of mine: num_hidden_layers \(or n_layer, .*\) is missing"),
        ("llama-3.1-8b", {"hidden_size": "4096"}, "hidden_size must be a whole number, not '4096'"),
        ("llama-3.1-8b", {"hidden_size": -1}, "hidden_size must be a whole number, not -1"),
        ("llama-3.1-8b", {"is_encoder_decoder": True}, "only decoder models"),
        ("llama-3.1-8b", {"vocab_size": 0}, "vocab must be at least 1"),
        ("qwen3-30b-a3b", {"num_experts_per_tok": None}, "num_experts_per_tok"),
        ("qwen3-30b-a3b", {"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        ("deepseek-v3", {"qk_nope_head_dim": None}, "qk_nope_head_dim is missing"),
        ("qwen3-next-80b-a3b", {"linear_num_value_heads": None}, "linear_num_value_heads"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_named(name: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CatalogueError, match=says):
        shape_of(CONFIGS[name] | changes, "mine")


def test_something_else_than_an_object_is_refused() -> None:
    with pytest.raises(CatalogueError, match="expected one JSON object"):
        shape_of([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quantised", "expected"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, "int4"),
    ],
)  # fmt: skip
def test_precision_of_the_weights(quantised: Any, expected: str) -> None:
    assert precision_of({"quantization_config": quantised}) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 0},
        {"layer_types": 7, "sliding_window": 4096},
        {"vision_config": {"depth": "many"}},
        {"compress_ratios": ["a", "b"]},
        {"num_hidden_layers": 500_000_000},
        {"hybrid_override_pattern": [["M"]]},
    ],
)
def test_a_field_of_another_form_is_a_sentence(changes: dict[str, Any]) -> None:
    with pytest.raises(CatalogueError, match=r"config\.json of mine"):
        shape_of(CONFIGS["llama-3.1-8b"] | changes, "mine")


@pytest.mark.parametrize("quantised", [{"bits": [4]}, {"config_groups": [1]}, {"bits": {}}, "fp8"])
def test_a_precision_that_is_not_said_in_a_known_form_is_16_bits(quantised: Any) -> None:
    assert precision_of({"quantization_config": quantised}) == "bf16"
