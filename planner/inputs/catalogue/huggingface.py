"""Read a model's shape from its ``config.json`` on Hugging Face, or from Mistral's ``params.json``.

The fields of transformers' configurations have several names, which ``config_keys.toml`` lists. The
layouts in use are covered: mixtures of experts, latent attention, sliding windows and hybrid
layers. A required field that is missing is named in an error. So is a key that matters and that
nothing here reads. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import CatalogueError
from planner.inputs.catalogue import mixers
from planner.inputs.catalogue.config_keys import (
    BOTH_WAYS,
    DECLARED,
    REMEDY,
    encoder_mark,
    precision_of,
    state_space_keys,
    unread_keys,
)
from planner.inputs.catalogue.hardware import image_encoder
from simulation.errors import SimulationError
from simulation.performance.specs import ModelShape

Config = Mapping[str, Any]
LARGEST = 1_000_000_000
MOST_LAYERS = 10_000
FIELDS, OBJECTS, FAMILIES = (
    {name: tuple(keys.split()) for name, keys in DECLARED[table].items()}
    for table in ("fields", "objects", "families")
)
WINDOWS = ("sliding_attention", "chunked_attention")
FULL = ("full_attention", "attention", "deepseek_sparse_attention")
LINEAR, MAMBA = "linear_attention", "mamba"


def shape_of(config: Config, name: str = "") -> ModelShape:
    """Return the shape in a ``config.json``; raises CatalogueError naming a missing field.

    ``name`` is the model's display name. Default: ``_name_or_path`` of the config.
    """
    if not isinstance(config, Mapping):
        raise CatalogueError("config.json: expected one JSON object of named fields.")
    called = name or str(config.get("_name_or_path") or "model")
    precision_of(config)  # refuses a precision that is not known
    try:
        return _shape(_ConfigReader(config, called))
    except SimulationError as error:
        raise CatalogueError(f"config.json of {called}: {error}") from None
    except (TypeError, AttributeError, LookupError, ArithmeticError):
        raise CatalogueError(
            f"config.json of {called}: a field has another form than transformers give it (a list "
            "where a number belongs, or a 0). Give the file as it was published."
        ) from None


def _shape(reader: _ConfigReader) -> ModelShape:
    """Return the model's shape; raise CatalogueError for a config that is not fully supported.

    Later fields replace earlier ones: those of hybrid or windowed layers correct the base.
    """
    is_encoder = reader.attends_both_ways()
    if keys := state_space_keys(reader.text, FIELDS["heads"]):
        raise reader.refuse(f"{', '.join(keys)}: no layer attends. {REMEDY}")
    values = reader.base() | reader.attention() | reader.experts()
    values |= reader.hybrid(values)
    if "linear_layers" not in values:
        values |= reader.windows(values["layers"])
    if is_encoder:  # without an output head
        values |= {"causal": False, "tied_embeddings": True}
    if keys := unread_keys(reader.text, reader.used):
        raise reader.refuse(f"{', '.join(keys)} would be ignored. {REMEDY}")
    return ModelShape(name=reader.name, encoder=reader.encoder(), **values)


def _keys(fields: Sequence[str]) -> list[str]:
    """Return the keys of fields: those of ``config_keys.toml``, or a field itself as a key."""
    return [key for field in fields for key in FIELDS.get(field, (field,))]


class _ConfigReader:
    """A model's config.json, read by field names that hide those of the model families.

    Methods such as ``base`` and ``experts`` return fields of ModelShape. ``outer`` is the whole
    config. ``text`` adds the fields of the language model. ``used`` are the keys of ``text`` that
    were read. ``kind`` is the family of the model (``model_type``).
    """

    def __init__(self, config: Config, name: str) -> None:
        """Collect the fields of the language model in ``config`` of the model ``name``."""
        self.name = name
        self.outer = config.get("thinker_config") or config  # Qwen-Omni
        # The language model has an object of its own, or its fields are among the others.
        nested = (self.outer.get(key) for key in OBJECTS["text"])
        language_model: Config = next((part for part in nested if isinstance(part, Mapping)), {})
        self.text = {**self.outer, **language_model}
        # Some families state fields of the language model in an object per part of it.
        for key in OBJECTS["parts"]:
            part = self.text.get(key)
            self.text |= part if isinstance(part, Mapping) else {}
        self.used = {
            *OBJECTS["text"],
            *OBJECTS["parts"],
            "vision_config",
            "vision_encoder",
            "model_type",
        }
        self.kind = str(language_model.get("model_type") or config.get("model_type") or "")
        self.text["model_type"] = self.kind

    def refuse(self, fault: str) -> CatalogueError:
        """Return the error that this config has the ``fault``, a sentence without its full stop."""
        return CatalogueError(f"config.json of {self.name}: {fault}.")

    def get(self, *fields: str) -> Any:
        """Return the value of the first field that is present, and mark all ``fields`` as read."""
        self.used.update(fields)
        return next((self.text[key] for key in fields if self.text.get(key) is not None), None)

    def mark_read(self, *prefixes: str) -> None:
        """Mark all fields whose names begin with one of ``prefixes`` as read."""
        self.used.update(key for key in self.text if key.startswith(prefixes))

    def number(self, *fields: str, source: Config | None = None) -> int | None:
        """Return the value of the first field that is present, a whole number of at least 0.

        A list with one number per layer is accepted if all its numbers are equal. None: no field is
        present. Fields are read from ``source``, by default the text model's part.
        """
        keys = _keys(fields)
        if source is None:
            self.used.update(keys)
        for field in keys:
            value = (self.text if source is None else source).get(field)
            if value is None:
                continue
            if isinstance(value, list) and value and value.count(value[0]) == len(value):
                value = value[0]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
                raise self.refuse(
                    f"{field} must be a whole number, not {value!r:.60}. Correct it, or describe "
                    "the model by its shape"
                )
            return value
        return None

    def required_number(self, *fields: str) -> int:
        """Return the number in the first field that is present; raise CatalogueError if none is."""
        number = self.number(*fields)
        if number is None:
            first, *others = _keys(fields)
            alternatives = f" (or {', '.join(others)})" if others else ""
            raise self.refuse(f"{first}{alternatives} is missing. Add it to describe the model")
        return number

    def list_field(self, *fields: str) -> Sequence[Any]:
        """Return the list in the first field that is present; [] if none, TypeError if no list."""
        value = self.get(*fields)
        if value is not None and not isinstance(value, list):
            raise TypeError(f"{fields[0]} is no list")
        return value or ()

    def attends_both_ways(self) -> bool:
        """Return whether every token attends to all others, as in an encoder.

        Supported are the layers of BERT, and decoders whose attention has no mask. Raises
        CatalogueError for other encoders.
        """
        if self.text.get("is_encoder_decoder"):
            raise self.refuse(
                "is_encoder_decoder is true: an encoder with a decoder is not simulated. Add the "
                "model by its memory (weight_gb, kv_bytes_per_token, max_context), and measure "
                "its profile"
            )
        mark = encoder_mark(self.text)
        if mark and mark not in BOTH_WAYS and self.kind not in FAMILIES["bert"]:
            raise self.refuse(
                f"{mark} {self.text[mark]!r:.60} marks an encoder with layers that are not read. "
                "Describe the model by its shape in YAML, with causal: false"
            )
        self.used.update((*BOTH_WAYS, "type_vocab_size") if mark else ())
        return bool(mark)

    def layers(self) -> int:
        """Return the number of layers, if need be from the length of the list of layer kinds."""
        layers = self.number("layers") or len(self.list_field("layers_block_type"))
        layers = layers or self.required_number("layers")
        if layers > MOST_LAYERS:
            raise self.refuse(f"{layers:,} layers are more than any model has. Correct it")
        return layers

    def base(self) -> dict[str, Any]:
        """Return the fields of layers, widths, vocabulary and context."""
        layers, hidden = self.layers(), self.required_number("width")
        intermediate = self.number("dense_intermediate_size", "feed_forward")
        if self.kind == "granitemoehybrid" and not self.number("experts"):
            # Without experts, the shared part alone remains.
            intermediate = self.required_number("shared_width")
        if intermediate and self.kind == "qwen":
            intermediate //= 2  # its configs count the gate too
        if intermediate is None:
            # GPT-2, Bloom and Falcon use four times the width; MoE configs may omit the field
            intermediate = self.number("expert_width") or 4 * hidden
        tied = self.get("tie_word_embeddings", "tied_embeddings")
        padding = 2 if self.kind in FAMILIES["roberta"] else 0  # its first positions
        return {
            "layers": layers,
            "hidden": hidden,
            "vocab": self.required_number("vocab_size", "padded_vocab_size"),
            "intermediate": intermediate,
            "max_context": self.required_number("context") - padding,
            "gated": self.kind not in FAMILIES["plain"] and self.kind not in FAMILIES["bert"],
            "tied_embeddings": self.kind in FAMILIES["tied"] if tied is None else bool(tied),
        }

    def attention(self) -> dict[str, Any]:
        """Return the fields of heads, their widths, and sparse, latent or other attention.

        Most families have one exception at most. Raise CatalogueError if latent attention lacks its
        rank.
        """
        heads = self.required_number("heads")
        kv_heads = self.number("kv_heads") or heads
        if self.number("multi_query_group_num"):
            self.used.add("multi_query_attention")
        if self.get("multi_query") and not self.get("new_decoder_architecture"):
            kv_heads = 1  # Falcon and GPT-BigCode: all heads share their keys and values
        head_dim = self.number("head_width") or self.required_number("width") // heads
        values: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        if self.get("attn_output_gate", "attention_output_gate") or self.kind == "qwen3_next":
            values["attention_gate"] = True
        if self.number("index_topk"):
            values["sparse_top_k"] = self.required_number("index_topk")
            values["index_head_dim"] = self.required_number("index_head_dim")
        use_mla = self.get("use_mla")  # None: not stated
        if self.number("kv_lora_rank") and use_mla is not False:
            return values | self.latent()
        if use_mla is False:  # widths of the attention that is off
            self.used.update(("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        elif use_mla:
            raise self.refuse("use_mla is true without kv_lora_rank. Add kv_lora_rank")
        if self.get("compress_ratios"):
            return values | self.compressed_attention(head_dim)
        if self.number("global_head_dim"):  # Gemma 4: the other figures are of window layers
            return values | {
                "head_dim": self.required_number("global_head_dim"),
                "kv_heads": self.number("num_global_key_value_heads") or kv_heads,
                "window_head_dim": head_dim,
                "window_kv_heads": kv_heads,
            }
        if use_mla is not False and self.number("v_head_dim") not in (None, head_dim):
            values["v_head_dim"] = self.required_number("v_head_dim")
        return values

    def latent(self) -> dict[str, Any]:
        """Return the fields of multi-head latent attention (MLA)."""
        nope = self.required_number("qk_nope_head_dim")
        rope = self.required_number("qk_rope_head_dim")
        return {
            "kv_lora_rank": self.required_number("kv_lora_rank"),
            "q_lora_rank": self.number("q_lora_rank") or 0,
            "nope_head_dim": nope,
            "rope_head_dim": rope,
            "v_head_dim": self.required_number("v_head_dim"),
            "head_dim": nope + rope,
        }

    def compressed_attention(self, head_dim: int) -> dict[str, Any]:
        """Return the fields of DeepSeek-V4's compressed attention, as fields of MLA.

        A layer caches one vector of ``head_dim`` per 4 or 128 tokens. All its heads share the
        vector, as in MLA. A compression ratio of 0 marks a layer with windowed attention.
        """
        ratios = self.get("compress_ratios")[: self.layers()]
        # A layer's bytes are in proportion to 1 / ratio, so the mean ratio is a harmonic mean.
        shares = [1 / ratio for ratio in ratios if ratio]
        rope = self.required_number("qk_rope_head_dim")
        return {
            "kv_lora_rank": head_dim - rope,
            "q_lora_rank": self.required_number("q_lora_rank"),
            "rope_head_dim": rope,
            "nope_head_dim": head_dim - rope,
            "v_head_dim": head_dim,
            "kv_compression": len(shares) / sum(shares) if shares else 1.0,
        }

    def experts(self) -> dict[str, Any]:
        """Return the fields of a mixture of experts; empty for a dense model.

        Shared experts are computed for every token, and are given as one width in all. Raise
        CatalogueError if the width of an expert is missing.
        """
        experts = self.number("experts")
        if experts is None:
            return {}
        self.used.add("enable_moe_block")
        if experts < 2:
            self.used.update(key for key in self.text if "expert" in key or key.startswith("moe"))
            return {}
        expert_width = self.number("expert_width")
        values: dict[str, Any] = {
            "experts": experts,
            "experts_per_token": self.required_number("experts_per_token"),
            "expert_intermediate": expert_width or self.required_number("feed_forward"),
            "dense_layers": self.dense_layers(),
        }
        is_llama4 = self.kind.startswith("llama4")
        # In these families, the width of the feed-forward part is that of an expert.
        has_common_width = self.kind in FAMILIES["mixed"] or is_llama4
        needs_width = expert_width is None and not has_common_width
        if needs_width and not self.number("dense_intermediate_size"):
            raise self.refuse("moe_intermediate_size is missing. Add the width of one expert")
        # The width of all shared experts together.
        shared_width = self.number("shared_width")
        shared_experts = self.number("shared_experts") or 0
        if shared_width is None:
            shared_width = shared_experts * (expert_width or 0)
        if is_llama4:
            shared_width = self.required_number("intermediate_size")
            values["intermediate"] = self.required_number("intermediate_size_mlp")
        if self.kind.startswith("gemma4"):  # a dense part runs in parallel to the experts
            shared_width = self.required_number("intermediate_size")
        values["shared_intermediate"] = shared_width
        if expert_input_width := self.number("moe_latent_size", "routed_expert_hidden_size"):
            values["expert_hidden"] = expert_input_width
        return values

    def dense_layers(self) -> int:
        """Return the number of layers without routed experts.

        Configurations state them as a kind per layer, as a list of layers, or as a first layer and
        a step. ``mlp_only_layers`` lists exceptions.
        """
        layers = self.layers()
        # Read all fields, also those that another one overrules: a field counts as used once read.
        kinds = self.list_field("mlp_layer_types")
        by_layer = self.get("moe_layer_freq")
        routed_list = self.get("moe_layers", "moe_layers_enum")
        first = self.number("first_routed") or 0
        last = self.number("moe_layer_end_index")
        without = set(self.list_field("mlp_only_layers"))
        period = self.number("expert_layer_period")  # Jamba
        offset = self.number("expert_layer_offset") or 0
        step = self.number("expert_step") or 1
        if kinds:
            return sum(kind == "dense" for kind in kinds[:layers])
        if isinstance(by_layer, list):
            return layers - sum(by_layer[:layers])
        if routed_list:
            listed = routed_list.split(",") if isinstance(routed_list, str) else routed_list
            return layers - len(listed)
        if period:
            return sum(i % period != offset for i in range(layers))
        end = layers if last is None or last < 0 else min(last + 1, layers)
        routed = [i for i in range(first, end) if (i + 1) % step == 0 and i not in without]
        return layers - len(routed)

    def windows(self, layers: int) -> dict[str, Any]:
        """Return the fields of layers with windowed attention, which see only the last tokens.

        {} if no layer has a window. Raise CatalogueError if these layers have other heads.
        """
        names = ("sliding_window", "sliding_window_size", "attention_chunk_size")
        kinds = self.list_field("layer_types")[:layers]
        use_windows = self.get("use_sliding_window")  # Qwen; None: not stated
        # Mistral's params.json lists windows (null for none), which repeat over the layers. Replace
        # the list by its one window.
        cycle = self.get(names[0])
        if isinstance(cycle, list):
            kinds = [WINDOWS[0] if cycle[i % len(cycle)] else FULL[0] for i in range(layers)]
            self.text[names[0]] = max(filter(None, cycle), default=None)
        window, window_layers = self.number(*names), self.window_layers(layers, kinds, use_windows)
        if not window or use_windows is False or not window_layers:
            return {}
        windows: dict[str, Any] = {"window_layers": window_layers, "window": window}
        if self.number("swa_num_key_value_heads"):
            windows["window_kv_heads"] = self.required_number("swa_num_key_value_heads")
            for field, of_other_layers in (
                ("swa_num_attention_heads", ("heads",)),
                ("swa_head_dim", ("head_width",)),
                ("swa_v_head_dim", ("v_head_dim", "head_width")),
            ):
                if self.number(field) not in (None, self.number(*of_other_layers)):
                    raise self.refuse(f"{field} differs from {_keys(of_other_layers)[0]}. {REMEDY}")
        return windows

    def window_layers(self, layers: int, kinds: Sequence[str], use_windows: Any) -> int:
        """Return the number of layers with windowed attention, of all ``layers``.

        The first field of the config that says so decides: a list with an entry for each layer,
        else the rule of the model's family. Without either, all layers have a window. ``kinds``
        names the kind of each layer; empty if the config has no such list. ``use_windows`` is the
        value of Qwen's use_sliding_window.
        """
        pattern = self.list_field("hybrid_layer_pattern")
        ratios = self.list_field("compress_ratios")
        first = self.number("max_window_layers") or 0
        every = self.get("sliding_window_pattern")
        if kinds:
            return sum(kind in WINDOWS for kind in kinds)
        if ratios:
            return sum(not ratio for ratio in ratios[:layers])
        if pattern:  # MiMo-V2: 1 is a window layer
            return sum(pattern[:layers])
        if use_windows:  # Qwen2: the first layers have full attention
            return layers - min(first, layers)
        if self.kind.startswith("llama4"):
            return layers - layers // 4  # every fourth attends to everything (no_rope_layers)
        if self.kind == "gemma2":
            return layers - layers // 2
        if every or self.kind.startswith(("gemma", "cohere2")):
            step = self.number("sliding_window_pattern") or (4 if self.kind == "cohere2" else 6)
            return layers - layers // step
        return layers

    def layer_kinds(self, layers: int) -> Sequence[Any]:
        """Return the stated kind of each layer, or []; raise CatalogueError for an unknown kind."""
        kinds = self.list_field("layer_types")[:layers]
        for kind in kinds:
            if kind not in (*FULL, *WINDOWS, LINEAR, MAMBA):
                raise self.refuse(f"layer_types names {kind!r:.60}, which is not read. {REMEDY}")
        if kinds:  # these fields repeat the kinds in another form, so mark them as read
            self.get("global_attn_every_n_layers", "sliding_window_pattern")
        if kinds and MAMBA not in kinds:  # Granite 4.0 Micro lists the sizes of no such layer
            self.mark_read("mamba_")
        if kinds and LINEAR not in kinds:
            self.mark_read("linear_")
        return kinds

    def hybrid(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of layers with a fixed state: Mamba, DeltaNet, Kimi, lightning.

        ``values`` are the fields of ModelShape that are known. {} without such layers.
        """
        blocks = self.get("hybrid_override_pattern", "layers_block_type")
        if blocks:
            return self.nemotron(blocks)
        kimi = self.get("linear_attn_config")
        if isinstance(kimi, Mapping) and kimi.get("kda_layers"):
            return self.kimi(kimi)
        layers = values["layers"]
        kinds = self.layer_kinds(layers)
        linear_layers = sum(kind == LINEAR for kind in kinds)
        interval = self.number("full_attention_interval")
        if not kinds and interval:
            linear_layers = layers - layers // interval
        # In MiniMax's list, 0 is a layer of lightning attention.
        lightning_layers = self.list_field("attn_type_list")[:layers].count(0)
        if self.kind == "minimax":  # what its layer_types call linear is lightning attention
            lightning_layers, linear_layers = linear_layers, 0
        if linear_layers:
            return {"linear_layers": linear_layers} | mixers.delta_net(
                key_heads=self.required_number("linear_num_key_heads"),
                key_dim=self.required_number("linear_key_head_dim"),
                value_heads=self.required_number("linear_num_value_heads"),
                value_dim=self.required_number("linear_value_head_dim"),
                conv=self.required_number("linear_conv_kernel_dim"),
            )
        if lightning_layers:
            heads, width = values["heads"], values["head_dim"]
            return {"linear_layers": lightning_layers} | mixers.delta_net(
                key_heads=heads, key_dim=width, value_heads=heads, value_dim=width, conv=1
            )
        return self.state_space(layers, kinds)

    def state_space(self, layers: int, kinds: Sequence[str]) -> dict[str, Any]:
        """Return the fields of Mamba layers (Granite, Bamba, Jamba, Falcon-H1); {} without any.

        ``kinds`` names the kind of each layer; empty if the config does not list them.
        """
        period = self.number("attn_layer_period") if self.kind == "jamba" else None
        attention_layers = self.list_field("attn_layer_indices")
        if kinds:
            mamba_layers = sum(kind == MAMBA for kind in kinds)
        elif period:
            offset = self.number("attn_layer_offset") or 0
            mamba_layers = sum(i % period != offset for i in range(layers))
        elif attention_layers:  # Bamba
            mamba_layers = layers - len(attention_layers)
        elif self.kind == "falcon_h1":  # each layer has both mixers
            return {"layers": 2 * layers, "ffn_layers": layers} | self.mamba(layers)
        else:
            mamba_layers = 0
        return self.mamba(mamba_layers) if mamba_layers else {}

    def mamba(self, layers: int) -> dict[str, Any]:
        """Return the fields of ``layers`` layers of Mamba-2, or of Mamba-1 if it has no heads."""
        heads = self.number("mamba_num_heads", "mamba_n_heads")
        inner_width = self.number("mamba_d_ssm")
        if not inner_width:
            expansion = self.number("mamba_expand", "expand") or 2
            inner_width = self.required_number("width") * expansion
        head_dim = self.get("mamba_head_dim", "mamba_d_head")
        if heads and head_dim == "auto":  # write the number into the config, to be read below
            self.text["mamba_d_head"] = inner_width // heads
        if heads and head_dim is None:
            raise self.refuse("mamba_head_dim is missing. Add it to describe the model")
        return {"linear_layers": layers} | mixers.mamba(
            heads=heads or inner_width,
            head_dim=self.required_number("mamba_head_dim", "mamba_d_head") if heads else 1,
            state=self.required_number("ssm_state_size", "mamba_d_state"),
            groups=self.required_number("n_groups", "mamba_n_groups") if heads else 1,
            conv=self.required_number("conv_kernel", "mamba_d_conv"),
        )

    def kimi(self, linear: Config) -> dict[str, Any]:
        """Return the fields of layers with Kimi Delta Attention; ``linear`` is its section."""
        heads = self.number("num_heads", source=linear)
        width = self.number("head_dim", source=linear)
        conv = self.number("short_conv_kernel_size", source=linear)
        if not heads or not width:
            raise self.refuse("linear_attn_config has no num_heads or head_dim. Add them")
        return {"linear_layers": len(linear["kda_layers"])} | mixers.delta_net(
            key_heads=heads, key_dim=width, value_heads=heads, value_dim=width, conv=conv or 1
        )

    def nemotron(self, blocks: str | Sequence[str]) -> dict[str, Any]:
        """Return the fields of Nemotron's layers from its pattern ``blocks``.

        Each block has one mixer or feed-forward part: M Mamba, * attention, - dense, E experts.
        """
        letters = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
        kinds = [letters.get(block, block) for block in blocks]
        for kind in kinds:
            if kind not in letters.values():
                raise self.refuse(f"layers_block_type names {kind!r:.60}, not read. {REMEDY}")
        mamba, attention = kinds.count("M"), kinds.count("*")
        dense, with_experts = kinds.count("-"), kinds.count("E")
        return {
            "layers": mamba + attention,
            "ffn_layers": dense + with_experts,
            "dense_layers": dense if with_experts else 0,
        } | self.mamba(mamba)

    def encoder(self) -> ModelShape | None:
        """Return the shape of the image encoder or None; raise CatalogueError without sizes."""
        vision = self.outer.get("vision_config") or self.outer.get("vision_encoder")
        if not isinstance(vision, Mapping):
            return None
        hidden = self.number("embed_dim", "hidden_size", "vt_hidden_size", source=vision) or 0
        heads = ("num_heads", "num_attention_heads", "vt_num_attention_heads")
        width = self.number("intermediate_size", "vt_intermediate_size", source=vision)
        ratio = vision.get("mlp_ratio")
        if width is None and isinstance(ratio, int | float):
            width = int(ratio * hidden)
        sizes = {
            "layers": self.number("encoder_layers", source=vision) or 0,
            "hidden": hidden,
            "heads": self.number(*heads, source=vision) or 0,
            "intermediate": width or 0,
        }
        if missing := [name for name, size in sizes.items() if not size]:
            raise self.refuse(
                f"vision_config lacks the size of {', '.join(missing)} of the encoder. Add it, or "
                "remove vision_config to plan for text alone"
            )
        # Encoders of Pixtral and Qwen2.5-VL have a gated FFN. Pixtral's own format of the file has
        # the key vision_encoder.
        gated_type = vision.get("model_type") in ("pixtral", "qwen2_5_vl")
        is_gated = gated_type or "vision_encoder" in self.outer
        return image_encoder(self.name, gated=is_gated, **sizes)
