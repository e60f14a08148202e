"""Read a model's shape and weight precision from its ``config.json`` on Hugging Face.

The fields of transformers' configurations have several names. The layouts in use are covered:
mixtures of experts, latent attention, sliding windows and hybrid layers. A required field that is
missing is named in an error. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import CatalogueError
from planner.inputs.catalogue import mixers
from simulation.errors import SimulationError
from simulation.performance.specs import ModelShape

Config = Mapping[str, Any]
LARGEST = 1_000_000_000
MOST_LAYERS = 10_000
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
INTERMEDIATE = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
)
DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers", "num_layers")
TEXT = ("text_config", "llm_config", "language_config")
# Families with two projections per feed-forward layer, and with embeddings shared with the head, if
# the config is silent: the defaults of transformers.
PLAIN = {"gpt2", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "phi",
         "starcoder2", "nemotron", "nemotron_h"}  # fmt: skip
TIED = {"gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "gemma", "gemma2", "gemma3",
        "gemma3_text", "gemma4", "gemma4_text"}  # fmt: skip
# every layer routes; there is no separate expert width
MIXED = {"mixtral", "gpt_oss", "minimax_m2", "phimoe", "dbrx"}
WINDOWS = ("sliding_attention", "chunked_attention")


def shape_of(config: Config, name: str = "") -> ModelShape:
    """Return the shape in a ``config.json``; raises CatalogueError naming a missing field.

    ``name`` is the model's display name. Default: ``_name_or_path`` of the config.
    """
    if not isinstance(config, Mapping):
        raise CatalogueError("config.json: expected one JSON object of named fields.")
    called = name or str(config.get("_name_or_path") or "model")
    try:
        return _shape(_Reader(config, called))
    except SimulationError as error:
        raise CatalogueError(f"config.json of {called}: {error}") from None
    except (TypeError, AttributeError, LookupError, ArithmeticError):
        raise CatalogueError(
            f"config.json of {called}: a field has another form than transformers give it (a list "
            "where a number belongs, or a 0). Give the file as it was published."
        ) from None


def _shape(reader: _Reader) -> ModelShape:
    if reader.outer.get("is_encoder_decoder"):
        raise reader.refuse("is_encoder_decoder is true; only decoder models are served here")
    values = reader.base() | reader.attention() | reader.experts()
    values |= reader.hybrid(values)
    if "linear_layers" not in values:
        values |= reader.windows(values["layers"])
    return ModelShape(name=reader.name, encoder=reader.encoder(), **values)


def precision_of(config: Config) -> str:
    """Return the precision of the weights from ``quantization_config``, else bf16."""
    quantised = config.get("quantization_config") or {}
    if not isinstance(quantised, Mapping):
        return "bf16"
    method = str(quantised.get("quant_method") or "").lower()
    algorithm = str(quantised.get("quant_algo") or "").lower()
    text = f"{method} {algorithm} {str(quantised.get('format') or '').lower()}"
    if "fp4" in text:
        return "fp4"
    if "fp8" in text or "float-quantized" in text:
        return "fp8"
    bits = quantised.get("bits") or 4 * bool(quantised.get("load_in_4bit")) or _bits(quantised)
    return {"4": "int4", "8": "int8"}.get(str(bits), "bf16")


def _bits(quantised: Mapping[str, Any]) -> Any:
    """Return the bits of the first group of a compressed-tensors config, or 0."""
    try:
        group = next(iter(quantised["config_groups"].values()))
        return group["weights"]["num_bits"]
    except (LookupError, TypeError, AttributeError, StopIteration):
        return 0


class _Reader:
    """A config with the names that different families use for the same field.

    ``outer`` is the whole config. ``text`` adds the fields of the language model.
    """

    def __init__(self, config: Config, name: str) -> None:
        self.name = name
        outer = config.get("thinker_config") or config  # Qwen-Omni
        inner: Config = next(
            (outer[key] for key in TEXT if isinstance(outer.get(key), Mapping)), {}
        )
        self.outer, self.text = outer, {**outer, **inner}
        self.kind = str(inner.get("model_type") or config.get("model_type") or "")

    def refuse(self, what: str) -> CatalogueError:
        return CatalogueError(f"config.json of {self.name}: {what}.")

    def number(self, *fields: str, source: Config | None = None) -> int | None:
        """Return the first field that is present, a whole number of at least 0."""
        for field in fields:
            value = (self.text if source is None else source).get(field)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
                raise self.refuse(f"{field} must be a whole number, not {value!r}")
            return value
        return None

    def needed(self, *fields: str) -> int:
        """Return the first field that is present; raises CatalogueError if all are missing."""
        number = self.number(*fields)
        if number is None:
            others = f" (or {', '.join(fields[1:])})" if fields[1:] else ""
            raise self.refuse(f"{fields[0]}{others} is missing. Add it to describe the model")
        return number

    def base(self) -> dict[str, Any]:
        """Return layers, widths, vocabulary and context."""
        layers, hidden = self.needed(*LAYERS), self.needed(*HIDDEN)
        if layers > MOST_LAYERS:
            raise self.refuse(f"{layers:,} layers are more than any model has. Correct it")
        intermediate = self.number(*INTERMEDIATE)
        if intermediate is None:
            # GPT-2, Bloom and Falcon use four times the width; MoE configs may omit the field
            intermediate = self.number("moe_intermediate_size") or 4 * hidden
        tied = self.text.get("tie_word_embeddings", self.outer.get("tie_word_embeddings"))
        return {
            "layers": layers,
            "hidden": hidden,
            "vocab": self.needed("vocab_size"),
            "intermediate": intermediate,
            "max_context": self.needed(*CONTEXT),
            "gated": self.kind not in PLAIN,
            "tied_embeddings": self.kind in TIED if tied is None else bool(tied),
        }

    def attention(self) -> dict[str, Any]:
        """Return heads and head widths, and the variant of attention."""
        heads = self.needed(*HEADS)
        kv_heads = self.number(*KV_HEADS) or heads
        if self.text.get("multi_query") and not self.text.get("new_decoder_architecture"):
            kv_heads = 1  # Falcon, GPT-BigCode
        head_dim = self.number("head_dim", "attention_head_dim") or self.needed(*HIDDEN) // heads
        values: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        if self.text.get("attn_output_gate") or self.kind == "qwen3_next":
            values["attention_gate"] = True
        if self.number("index_topk"):
            values["sparse_top_k"] = self.needed("index_topk")
            values["index_head_dim"] = self.needed("index_head_dim")
        if self.number("kv_lora_rank"):
            return values | self.latent()
        if self.text.get("compress_ratios"):
            return values | self.compressed(head_dim)
        if self.number("global_head_dim"):  # Gemma 4: the other figures are of window layers
            return values | {
                "head_dim": self.needed("global_head_dim"),
                "kv_heads": self.number("num_global_key_value_heads") or kv_heads,
                "window_head_dim": head_dim,
                "window_kv_heads": kv_heads,
            }
        if self.number("v_head_dim") not in (None, head_dim):
            values["v_head_dim"] = self.needed("v_head_dim")
        return values

    def latent(self) -> dict[str, Any]:
        """Return the widths of multi-head latent attention (MLA)."""
        nope, rope = self.needed("qk_nope_head_dim"), self.needed("qk_rope_head_dim")
        return {
            "kv_lora_rank": self.needed("kv_lora_rank"),
            "q_lora_rank": self.number("q_lora_rank") or 0,
            "nope_head_dim": nope,
            "rope_head_dim": rope,
            "v_head_dim": self.needed("v_head_dim"),
            "head_dim": nope + rope,
        }

    def compressed(self, head_dim: int) -> dict[str, Any]:
        """Return DeepSeek-V4's attention: one shared vector per 4 or 128 tokens.

        A ratio of 0 is a window layer.
        """
        ratios = self.text["compress_ratios"][: self.needed(*LAYERS)]
        shares = [1 / ratio for ratio in ratios if ratio]
        rope = self.needed("qk_rope_head_dim")
        return {
            "kv_lora_rank": head_dim - rope,
            "q_lora_rank": self.needed("q_lora_rank"),
            "rope_head_dim": rope,
            "nope_head_dim": head_dim - rope,
            "v_head_dim": head_dim,
            "kv_compression": len(shares) / sum(shares) if shares else 1.0,
        }

    def experts(self) -> dict[str, Any]:
        """Return the experts of a mixture, or nothing for a dense model."""
        experts = self.number(*EXPERTS) or 0
        if experts < 2:
            return {}
        intermediate = self.number("moe_intermediate_size")
        values: dict[str, Any] = {
            "experts": experts,
            "experts_per_token": self.needed(*EXPERTS_PER_TOKEN),
            "expert_intermediate": intermediate or self.needed(*INTERMEDIATE),
            "dense_layers": self.dense_layers(),
        }
        if intermediate is None and self.kind not in MIXED and not self.kind.startswith("llama4"):
            raise self.refuse("moe_intermediate_size is missing. Add the width of one expert")
        shared = self.number(
            "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
            "share_expert_dim",
        )  # fmt: skip
        if shared is None:
            shared = (self.number("n_shared_experts", "num_shared_experts") or 0) * (
                intermediate or 0
            )
        if self.kind.startswith("llama4"):
            shared = self.needed("intermediate_size")
            values["intermediate"] = self.needed("intermediate_size_mlp")
        if self.kind.startswith("gemma4"):  # a dense part runs in parallel to the experts
            shared = self.needed("intermediate_size")
        values["shared_intermediate"] = shared
        if latent := self.number("moe_latent_size", "routed_expert_hidden_size"):
            values["expert_hidden"] = latent
        return values

    def dense_layers(self) -> int:
        """Return the number of layers without routed experts."""
        layers = self.needed(*LAYERS)
        if self.number("first_k_dense_replace"):
            return self.needed("first_k_dense_replace")
        for field in ("moe_layer_freq", "moe_layers"):
            listed = self.text.get(field)
            if isinstance(listed, Sequence) and not isinstance(listed, str):
                return layers - (sum(listed) if field == "moe_layer_freq" else len(listed))
        step = self.number("interleave_moe_layer_step", "decoder_sparse_step") or 1
        without = set(self.text.get("mlp_only_layers") or ())
        routed = [i for i in range(layers) if (i + 1) % step == 0 and i not in without]
        return layers - len(routed)

    def windows(self, layers: int) -> dict[str, Any]:
        """Return the layers that attend only to the last tokens."""
        window = self.number("sliding_window", "sliding_window_size", "attention_chunk_size")
        if not window or self.text.get("use_sliding_window") is False:
            return {}
        kinds = self.text.get("layer_types")
        if kinds:
            count = sum(kind in WINDOWS for kind in kinds[:layers])
        elif self.text.get("compress_ratios"):
            count = sum(not ratio for ratio in self.text["compress_ratios"][:layers])
        elif self.text.get("hybrid_layer_pattern"):  # MiMo-V2: 1 is a window layer
            count = sum(self.text["hybrid_layer_pattern"][:layers])
        elif self.kind.startswith("llama4"):
            # every fourth layer attends to everything (no_rope_layers)
            count = layers - layers // 4
        elif self.kind == "gemma2":
            count = layers - layers // 2
        elif self.kind.startswith(("gemma", "cohere2")):
            pattern = self.number("sliding_window_pattern") or (4 if self.kind == "cohere2" else 6)
            count = layers - layers // pattern
        else:
            count = layers
        windows: dict[str, Any] = {"window_layers": count, "window": window} if count else {}
        if count and self.number("swa_num_key_value_heads"):
            windows["window_kv_heads"] = self.needed("swa_num_key_value_heads")
        return windows

    def hybrid(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the layers with a fixed-size state.

        They are Mamba-2 in Nemotron-H and DeltaNet in Qwen3-Next.
        """
        blocks = self.text.get("hybrid_override_pattern") or self.text.get("layers_block_type")
        if blocks:
            return self.nemotron(blocks)
        kimi = self.text.get("linear_attn_config")
        if isinstance(kimi, Mapping) and kimi.get("kda_layers"):
            return self.kimi(kimi)
        layers, kinds = values["layers"], self.text.get("layer_types") or ()
        linear = sum(kind == "linear_attention" for kind in kinds[:layers])
        interval = self.number("full_attention_interval")
        if not kinds and interval:
            linear = layers - layers // interval
        if not linear:
            return {}
        return {"linear_layers": linear} | mixers.delta_net(
            key_heads=self.needed("linear_num_key_heads"),
            key_dim=self.needed("linear_key_head_dim"),
            value_heads=self.needed("linear_num_value_heads"),
            value_dim=self.needed("linear_value_head_dim"),
            conv=self.needed("linear_conv_kernel_dim"),
        )

    def kimi(self, linear: Config) -> dict[str, Any]:
        """Return the layers with Kimi Delta Attention."""
        heads, width = (self.number(key, source=linear) for key in ("num_heads", "head_dim"))
        conv = self.number("short_conv_kernel_size", source=linear)
        if not heads or not width:
            raise self.refuse("linear_attn_config has no num_heads or head_dim. Add them")
        return {"linear_layers": len(linear["kda_layers"])} | mixers.delta_net(
            key_heads=heads, key_dim=width, value_heads=heads, value_dim=width, conv=conv or 1
        )

    def nemotron(self, blocks: str | Sequence[str]) -> dict[str, Any]:
        """Return Nemotron's layers from its pattern of mixers and feed-forward parts.

        Letters: M Mamba, * attention, - dense, E experts.
        """
        letters = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
        pattern = "".join(letters.get(block, block) for block in blocks)
        mamba, dense, routed = pattern.count("M"), pattern.count("-"), pattern.count("E")
        return {
            "layers": mamba + pattern.count("*"),
            "linear_layers": mamba,
            "ffn_layers": dense + routed,
            "dense_layers": dense if routed else 0,
        } | mixers.mamba(
            heads=self.needed("mamba_num_heads"),
            head_dim=self.needed("mamba_head_dim"),
            state=self.needed("ssm_state_size", "mamba_d_state"),
            groups=self.needed("n_groups", "mamba_n_groups"),
            conv=self.needed("conv_kernel", "mamba_d_conv"),
        )

    def encoder(self) -> ModelShape | None:
        """Return the image encoder, or None unless the config describes it completely."""
        vision = self.outer.get("vision_config")
        if not isinstance(vision, Mapping):
            return None
        layers = self.number(*DEPTH, source=vision)
        hidden = self.number("hidden_size", "embed_dim", "vt_hidden_size", source=vision)
        heads = self.number("num_heads", "num_attention_heads", "vt_num_attention_heads",
                            source=vision)  # fmt: skip
        width = self.number("intermediate_size", "vt_intermediate_size", source=vision)
        if not (layers and hidden and heads and width):
            return None
        return ModelShape(
            name=f"{self.name} encoder",
            layers=layers,
            hidden=hidden,
            vocab=1,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            intermediate=width,
            max_context=16_384,
            gated=vision.get("model_type") in ("pixtral", "qwen2_5_vl"),
        )
