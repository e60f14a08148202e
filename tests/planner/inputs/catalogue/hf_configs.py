"""Excerpts of published config.json files, by the catalogue's name of the model."""

from typing import Any

LINEAR = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
          "linear_value_head_dim": 128}  # fmt: skip
GEMMA3 = {"model_type": "gemma3_text", "sliding_window": 1024, "vocab_size": 262208,
          "max_position_embeddings": 131072, "head_dim": 128}  # fmt: skip
SIGLIP = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
LLAMA4 = {
    "model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_attention_heads": 40,
    "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "vocab_size": 202048,
}  # fmt: skip
LLAMA4_VISION = {"hidden_size": 1408, "intermediate_size": 5632, "num_attention_heads": 16,
                 "num_hidden_layers": 34, "model_type": "llama4_vision_model"}  # fmt: skip

ERNIE = {"model_type": "ernie4_5_moe", "max_position_embeddings": 131072, "moe_layer_interval": 1,
         "moe_num_experts": 64, "vocab_size": 103424}  # fmt: skip
GRANITE = {
    "model_type": "granitemoehybrid", "attention_multiplier": 0.0078, "mamba_chunk_size": 256,
    "layer_types": (["mamba"] * 9 + ["attention"]) * 4, "mamba_conv_bias": True, "mamba_d_conv": 4,
    "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1,
    "mamba_proj_bias": False, "max_position_embeddings": 131072, "num_hidden_layers": 40,
    "output_router_logits": False, "position_embedding_type": "nope", "tie_word_embeddings": True,
    "vocab_size": 100352,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 131072, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    "mistral-7b": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 32000,
    },
    "qwen2-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "max_position_embeddings": 32768, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "sliding_window": 131072, "use_sliding_window": False,
        "max_window_layers": 28, "tie_word_embeddings": False, "vocab_size": 152064,
    },
    "qwen2-57b-a14b": {
        "model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_size": 3584,
        "intermediate_size": 18944, "max_position_embeddings": 32768, "mlp_only_layers": [],
        "moe_intermediate_size": 2560, "num_attention_heads": 28, "num_experts": 64,
        "num_experts_per_tok": 8, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "shared_expert_intermediate_size": 20480, "sliding_window": 65536,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "sliding_window": None, "use_sliding_window": False, "vocab_size": 151936,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "sliding_window": None, "vocab_size": 32000,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168,
        "intermediate_size": 18432, "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536,
        "num_nextn_predict_layers": 1, "vocab_size": 129280, **MLA,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048,
        "intermediate_size": 10944, "max_position_embeddings": 163840,
        "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": None,
        "vocab_size": 102400, **MLA,
    },
    "deepseek-v4-pro": {
        "model_type": "deepseek_v4", "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
        "head_dim": 512, "hidden_size": 7168, "index_head_dim": 128, "index_topk": 1024,
        "max_position_embeddings": 1048576, "moe_intermediate_size": 3072,
        "n_routed_experts": 384, "n_shared_experts": 1, "num_attention_heads": 128,
        "num_experts_per_tok": 6, "num_hidden_layers": 61, "num_key_value_heads": 1,
        "q_lora_rank": 1536, "qk_rope_head_dim": 64, "sliding_window": 128,
        "tie_word_embeddings": False, "vocab_size": 129280,
    },
    "glm-4.5": {
        "model_type": "glm4_moe", "num_hidden_layers": 92, "hidden_size": 5120,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 12288, "vocab_size": 151552, "max_position_embeddings": 131072,
        "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536, "first_k_dense_replace": 3,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
        "sliding_window": 128, "tie_word_embeddings": False, "vocab_size": 201088,
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "text_config": GEMMA3 | {
            "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32,
            "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window_pattern": 6,
        },
        "vision_config": {"hidden_size": 1152, "intermediate_size": 4304,
                          "num_attention_heads": 16, "num_hidden_layers": 27},
    },
    "gemma-4-31b": {
        "model_type": "gemma4", "tie_word_embeddings": True,
        "text_config": {
            "model_type": "gemma4_text", "global_head_dim": 512, "head_dim": 256,
            "hidden_size": 5376, "intermediate_size": 21504,
            "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 10,
            "max_position_embeddings": 262144, "num_attention_heads": 32,
            "num_global_key_value_heads": 4, "num_hidden_layers": 60, "num_key_value_heads": 16,
            "sliding_window": 1024, "vocab_size": 262144,
        },
        "vision_config": SIGLIP,
    },
    "bloom-176b": {
        "model_type": "bloom", "n_embed": 14336, "hidden_size": 14336, "n_layer": 70,
        "num_attention_heads": 112, "seq_length": 2048, "vocab_size": 250880,
    },
    "opt-13b": {
        "model_type": "opt", "ffn_dim": 20480, "hidden_size": 5120,
        "max_position_embeddings": 2048, "num_attention_heads": 40, "num_hidden_layers": 40,
        "vocab_size": 50272,
    },
    "llama-4-maverick": {
        "model_type": "llama4", "tie_word_embeddings": False,
        "text_config": LLAMA4 | {"max_position_embeddings": 1048576, "num_local_experts": 128,
                                 "interleave_moe_layer_step": 2},
        "vision_config": LLAMA4_VISION,
    },
    "llama-4-scout": {
        "model_type": "llama4", "tie_word_embeddings": False,
        "text_config": LLAMA4 | {"max_position_embeddings": 10485760, "num_local_experts": 16,
                                 "interleave_moe_layer_step": 1},
        "vision_config": LLAMA4_VISION,
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next", "full_attention_interval": 4, "head_dim": 256,
        "hidden_size": 2048, "intermediate_size": 5120, "linear_num_value_heads": 32,
        "max_position_embeddings": 262144, "mlp_only_layers": [], "moe_intermediate_size": 512,
        "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
        "num_hidden_layers": 48, "num_key_value_heads": 2, "shared_expert_intermediate_size": 512,
        "vocab_size": 151936, "decoder_sparse_step": 1, **LINEAR,
    },
    "qwen3.5-397b-a17b": {
        "model_type": "qwen3_5_moe", "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_moe_text", "attn_output_gate": True, "head_dim": 256,
            "hidden_size": 4096,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 15,
            "linear_num_value_heads": 64, "max_position_embeddings": 262144,
            "moe_intermediate_size": 1024, "num_attention_heads": 32, "num_experts": 512,
            "num_experts_per_tok": 10, "num_hidden_layers": 60, "num_key_value_heads": 2,
            "shared_expert_intermediate_size": 1024, "vocab_size": 248320, **LINEAR,
        },
        "vision_config": SIGLIP,
    },
    "nemotron-3-nano-30b-a3b": {
        "model_type": "nemotron_h", "hidden_size": 2688, "head_dim": 128, "conv_kernel": 4,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "intermediate_size": 1856, "mamba_head_dim": 64, "mamba_num_heads": 64,
        "max_position_embeddings": 262144, "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "n_groups": 8, "n_routed_experts": 128,
        "n_shared_experts": 1, "num_attention_heads": 32, "num_experts_per_tok": 6,
        "num_hidden_layers": 52, "num_key_value_heads": 2, "ssm_state_size": 128,
        "tie_word_embeddings": False, "vocab_size": 131072,
    },
    "nemotron-h-56b": {
        "model_type": "nemotron_h", "attention_head_dim": 128, "conv_kernel": 4, "expand": 2,
        "chunk_size": 128, "hidden_size": 8192, "intermediate_size": 32768,
        "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
        "mamba_head_dim": 64, "mamba_num_heads": 256, "mamba_proj_bias": False,
        "max_position_embeddings": 8192, "n_groups": 8, "num_attention_heads": 64,
        "num_hidden_layers": 118, "num_key_value_heads": 8, "ssm_state_size": 256,
        "time_step_rank": 512, "use_conv_bias": True, "use_mamba_kernels": True,
        "vocab_size": 131072,
    },
    "ernie-4.5-21b-a3b": ERNIE | {
        "hidden_size": 2560, "intermediate_size": 12288, "moe_capacity": [64, 64, 64],
        "moe_gate": "topk", "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_end_index": 27,
        "moe_layer_start_index": 1, "moe_num_shared_experts": 2, "moe_use_aux_free": True,
        "num_attention_heads": 20, "num_hidden_layers": 28, "num_key_value_heads": 4,
    },
    "ernie-4.5-300b-a47b": ERNIE | {
        "hidden_size": 8192, "intermediate_size": 28672, "moe_intermediate_size": 3584, "moe_k": 8,
        "moe_layer_end_index": 53, "moe_layer_start_index": 3, "moe_num_shared_experts": 0,
        "num_attention_heads": 64, "num_hidden_layers": 54, "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
    "granite-4.0-micro": GRANITE | {
        "hidden_size": 2560, "intermediate_size": 8192, "layer_types": ["attention"] * 40,
        "mamba_d_head": 40, "mamba_d_state": 256, "mamba_n_heads": 128, "num_attention_heads": 40,
        "num_experts_per_tok": 0, "num_key_value_heads": 8, "num_local_experts": 0,
        "shared_intermediate_size": 8192,
    },
    "granite-4.0-h-micro": GRANITE | {
        "hidden_size": 2048, "intermediate_size": 8192, "mamba_n_heads": 64,
        "num_attention_heads": 32, "num_experts_per_tok": 0, "num_key_value_heads": 8,
        "num_local_experts": 0, "shared_intermediate_size": 8192,
    },
    "granite-4.0-h-small": GRANITE | {
        "hidden_size": 4096, "intermediate_size": 768, "mamba_n_heads": 128,
        "num_attention_heads": 32, "num_experts_per_tok": 10, "num_key_value_heads": 8,
        "num_local_experts": 72, "router_aux_loss_coef": 0.0, "shared_intermediate_size": 1536,
    },
    "olmo-3-32b": {
        "model_type": "olmo3", "attention_bias": False, "hidden_size": 5120,
        "intermediate_size": 27648, "layer_types": [*["sliding_attention"] * 3,
                                                    "full_attention"] * 16,
        "max_position_embeddings": 65536, "num_attention_heads": 40, "num_hidden_layers": 64,
        "num_key_value_heads": 8, "rope_scaling": {"attention_factor": 1.2, "rope_type": "yarn"},
        "sliding_window": 4096, "vocab_size": 100278,
    },
    "mistral-large-3-675b": {  # params.json
        "dim": 7168, "head_dim": 192, "hidden_dim": 16384, "kv_lora_rank": 512,
        "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 8192},
        "max_position_embeddings": 294912, "n_heads": 128, "n_kv_heads": 128, "n_layers": 61,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "tied_embeddings": False, "vocab_size": 131072, "yarn": {"alpha": 1, "factor": 36},
        "moe": {
            "expert_hidden_dim": 4096, "expert_model_parallel": 1, "expert_parallel": 1,
            "first_k_dense_replace": 3, "num_expert_groups": 1, "num_expert_groups_per_tok": 1,
            "num_experts": 128, "num_experts_per_tok": 4, "num_shared_experts": 1,
            "route_every_n": 1, "routed_scale": 1.0,
        },
        "vision_encoder": {"hidden_size": 1664, "intermediate_size": 8192, "patch_size": 14,
                           "num_attention_heads": 16, "num_hidden_layers": 48},
    },
    "qwen3-embedding-4b": {
        "model_type": "qwen3", "head_dim": 128, "hidden_size": 2560, "intermediate_size": 9728,
        "max_position_embeddings": 40960, "max_window_layers": 36, "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "sliding_window": None,
        "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151665,
    },
    "bge-m3": {
        "architectures": ["XLMRobertaModel"], "attention_probs_dropout_prob": 0.1,
        "classifier_dropout": None, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 1024, "intermediate_size": 4096, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 8194, "model_type": "xlm-roberta", "num_attention_heads": 16,
        "num_hidden_layers": 24, "output_past": True, "position_embedding_type": "absolute",
        "type_vocab_size": 1, "vocab_size": 250002,
    },
    "bge-small-en-v1.5": {
        "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1,
        "hidden_size": 384, "id2label": {"0": "LABEL_0"}, "intermediate_size": 1536,
        "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
        "num_hidden_layers": 12, "position_embedding_type": "absolute", "type_vocab_size": 2,
        "vocab_size": 30522,
    },
}  # fmt: skip
