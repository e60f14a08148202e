"""Find the keys of a ``config.json`` that matter to a model's shape and that nothing has read.

A key matters if its name is about experts, state space, kinds of attention, encoders or
quantisation. It does not matter if its value switches something off, or if its name is among
``WITHOUT_EFFECT``.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

REMEDY = (
    "Describe the model by its shape in YAML (models: with shape:), or remove the key if the "
    "model's weights, caches and layers do not depend on it"
)
MOST_NAMED = 4
WITHOUT_ATTENTION = re.compile(r"(?:falcon_|codestral_)?mamba\d?|rwkv\w*|xlstm")  # model types
STATE_SPACE = (
    r"mamba|ssm|state_size|d_state|conv|rnn|lstm|rwkv|recurren|lru_|lightning|linear_|delta|kda|retent"
    r"|time_decay|hybrid|block_type|layer_group"
)
TOPICS = re.compile(
    rf"expert|moe|mixture|rout(?:e|ing)|topk|top_k_|dense_(?:replace|layer)|sparse_step|{STATE_SPACE}"
    r"|att(?:n|ention)|window|swa_|sparse|index_|indexer|latent|lora_rank|layer_type|block_config"
    r"|pattern|kv_|_kv|head_dim|qk_|mla_|global_|compress|(?:^|_)cla(?:_|$)|cross_|encoder|is_decoder"
    r"|_tower|audio_config|speech"
    r"|bidirection|causal|pool|type_vocab|quant|(?:^|_)n?bits?(?:$|_)"
)
WITHOUT_EFFECT = re.compile(
    "|".join(
        (
            # training, initial values, limits of numbers
            r"\w*(?:drop|loss|jitter|noise|balanc|capacity|aux|init)\w*",
            r"\w*(?:bias|eps|epsilon|dtype|scal(?:e|ar|ing)|factor|multipliers?|norm|norm_type"
            r"|activation|act|activation_func|clip|clip_qkv|softcap|softcapping|alibi|beta)",
            r"\w*(?:temperature|sink)\w*",
            # which experts are chosen, not how many
            r"norm_topk_prob|topk_method|topk_group|num_expert_groups?|num_expert_groups_per_tok",
            r"use_grouped_topk|moe_renormalize|moe_gate\w*|moe_use_\w+|moe_norm_\w+|moe_group|latent_moe_use_norm",
            r"shared_moe_mode|use_mixed_mlp_moe|layernorm_\w+",
            r"(?:moe_)?router_(?!topk|top_k|layer)\w+|use_(?:moe_)?(?:router|routing)_bias",
            # positions: rotary angles, and layers without them
            r"(?!\w*head_dim)\w*(?:rope|rotary|theta|nope)\w*",
            # how software runs it
            r"(?:mamba_)?chunk_size|chunk_size_feed_forward|use_mamba_kernels|use_flash_attn\w*",
            r"\w*(?:implementation|_impl|_kernels?|overlap)|expert_(?:model_)?parallel",
            r"\w*parallel_attn|scale_attn\w*|use_logn_attn|\w*in_fp32|pre_allocate_kv_cache",
            r"output_\w+|mamba_(?:dt_\w+|rms_norm|norm_before_gate|use_mlp)",
            r"(?:mamba_)?expand|qk_head_dim|index_skip_topk_offset",  # follow from other sizes
            # layers that draft tokens are described by options of a deployment
            r"(?:num_)?(?:mtp|nextn)\w*|index_share_for_mtp_iteration",
            # of a tokenizer, an image or a processor, or of generation
            r"\w*token\w*_(?:id|index)s?|ignore_index|(?!\w*tower)(?:use_unified_)?(?:vision|image|img|video|mm)_\w+",
            r"pooler_\w+|tie_encoder_decoder|encoder_no_repeat_ngram_size|is_decoder|decoder_start_token_id",
            # The cache's precision is chosen at the start of the engine.
            r"kv_cache_\w+",
            # Left out of shapes: they change the weights by less than 2%.
            r"o_lora_rank|o_groups|index_n_heads|attention_k_eq_v",
            # Read by ``precisions``.
            r"quantization_config|quantization|compression_config",
        )
    )
)
# Values of keys that describe what is assumed anyway.
ASSUMED: Mapping[str, tuple[Any, ...]] = {
    "mamba_ssm_dtype": ("float32",),
    "mamba_ssm_cache_dtype": ("float32",),
    "is_causal": (True,),
    "causal": (True,),
    "use_bidirectional_attention": ("vision",),
    "attn_type": ("multihead_attention", "grouped_query_attention"),
    "index_topk_freq": (1,),
    "indexer_types": ("full",),  # of each layer
}
# Keys of a decoder whose attention has no mask.
BOTH_WAYS = ("is_causal", "causal", "use_bidirectional_attention")
ENCODER_KINDS = re.compile(
    r"(?!.*decoder)[\w-]*bert[\w-]*|electra|mpnet|xlm|layoutlm\w*|new|gte|clip\w*|siglip\w*|vit\w*"
    r"|dinov\w*|esm|big_?bird\w*|longformer|ernie|ernie_m|t5|mt5|umt5|bart|mbart|whisper|wav2vec2"
)


def unread_keys(config: Mapping[str, Any], used: Collection[str]) -> list[str]:
    """Return the config keys that affect serving and are not in ``used``, at most MOST_NAMED."""
    return [key for key in _unread(config) if key.split(".")[0] not in used][:MOST_NAMED]


def state_space_keys(config: Mapping[str, Any], heads: Collection[str]) -> list[str]:
    """Return the keys about state-space layers if the config has no attention heads.

    At most ``MOST_NAMED`` are returned. ``heads`` are the known names of the number of heads.
    """
    if WITHOUT_ATTENTION.fullmatch(str(config.get("model_type"))):
        return [f"model_type {config['model_type']!r:.60}"]
    if any(name in config for name in heads):
        return []
    return [key for key in config if re.search(STATE_SPACE, key)][:MOST_NAMED]


def encoder_mark(config: Mapping[str, Any]) -> str:
    """Return the config key that marks a model as an encoder, or ""."""
    marks: Mapping[str, Callable[[Any], object]] = {
        "model_type": lambda value: ENCODER_KINDS.fullmatch(str(value)),
        "type_vocab_size": lambda value: value is not None,
        "architectures": lambda value: any(
            str(name).endswith(("ForMaskedLM", "BertModel", "RobertaModel")) for name in value or ()
        ),
        "is_causal": lambda value: value is False,
        "causal": lambda value: value is False,
        "use_bidirectional_attention": lambda value: value in (True, "all"),
    }
    return next((key for key, shows in marks.items() if key in config and shows(config[key])), "")


def _unread(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys that affect serving; keys of nested objects come with their path."""
    for key, value in config.items():
        name = str(key)
        if _is_off(value) or (WITHOUT_EFFECT.fullmatch(name) and name not in ASSUMED):
            continue
        parts = value if isinstance(value, list) else [value]
        if name in ASSUMED and all(part in ASSUMED[name] for part in parts):
            continue
        if TOPICS.search(name.lower()):
            yield path + name
        elif isinstance(value, Mapping) and not re.search(r"rope|map$|id2label|label2id", name):
            yield from _unread(value, f"{path}{name}.")


def _is_off(value: Any) -> bool:
    """Return whether ``value`` disables the feature of its key."""
    if isinstance(value, list | tuple):
        return all(_is_off(part) for part in value)
    return not value
