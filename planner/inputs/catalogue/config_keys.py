"""Read the precision of weights from a ``config.json``, and find its unread keys.

An unread key matters if its name is about experts, state space, kinds of attention, encoders or
quantisation. It does not matter if its value switches something off, or if its name is among
``without_effect`` of ``config_keys.toml``.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.errors import CatalogueError

REMEDY = (
    "Describe the model by its shape in YAML (models: with shape:), or remove the key if the "
    "model's weights, caches and layers do not depend on it"
)
MOST_NAMED = 4
DECLARED = tomllib.loads((Path(__file__).parent / "config_keys.toml").read_text(encoding="utf-8"))
UNREAD, ASSUMED = DECLARED["unread"], DECLARED["assumed"]
STATE_SPACE = "|".join(UNREAD["state_space"])
TOPICS = re.compile("|".join((STATE_SPACE, *UNREAD["topics"])))
WITHOUT_EFFECT = re.compile("|".join(UNREAD["without_effect"]))
# Keys of a decoder whose attention has no mask.
BOTH_WAYS = ("is_causal", "causal", "use_bidirectional_attention")
ENCODERS = re.compile("|".join(UNREAD["encoders"]))
QUANTIZATION_SECTIONS = ("quantization_config", "quantization", "compression_config")
NESTED = ("text_config", "llm_config", "language_config")
BITS = ("bits", "nbits", "w_bit", "weight_bits")


def unread_keys(config: Mapping[str, Any], used: Collection[str]) -> list[str]:
    """Return the config keys that affect serving and are not in ``used``, at most MOST_NAMED."""
    unused = [key for key in _unread(config) if key.split(".")[0] not in used]
    return unused[:MOST_NAMED]


def state_space_keys(config: Mapping[str, Any], heads: Collection[str]) -> list[str]:
    """Return the config's keys of state-space layers, if no layer of the model has attention.

    At most MOST_NAMED are returned; [] if the model has attention. ``heads`` are the names that the
    number of attention heads may have.
    """
    if re.fullmatch(UNREAD["without_attention"], str(config.get("model_type"))):
        return [f"model_type {config['model_type']!r:.60}"]
    if any(name in config for name in heads):
        return []
    return [key for key in config if re.search(STATE_SPACE, key)][:MOST_NAMED]


def encoder_mark(config: Mapping[str, Any]) -> str:
    """Return the key of the config that shows that the model is an encoder; "" if none does."""
    architectures = [str(name) for name in config.get("architectures") or ()]
    encoders = ("ForMaskedLM", "BertModel", "RobertaModel")
    shows_encoder = {
        "model_type": ENCODERS.fullmatch(str(config.get("model_type", ""))),
        "type_vocab_size": config.get("type_vocab_size") is not None,
        "architectures": any(name.endswith(encoders) for name in architectures),
        "is_causal": config.get("is_causal") is False,
        "causal": config.get("causal") is False,
        "use_bidirectional_attention": config.get("use_bidirectional_attention") in (True, "all"),
    }
    return next((key for key, is_shown in shows_encoder.items() if is_shown), "")


def _unread(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys of a config that affect serving, each after the ``path`` of its object."""
    for key, value in config.items():
        name = str(key)
        if _is_off(value) or (WITHOUT_EFFECT.fullmatch(name) and name not in ASSUMED):
            continue
        values = value if isinstance(value, list) else [value]
        if name in ASSUMED and all(part in ASSUMED[name] for part in values):
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


def precision_of(config: Mapping[str, Any]) -> str:
    """Return the precision of most quantised weights (bf16: none), or raise CatalogueError.

    The parts of a nested config are read before the config itself.
    """
    parts = [config, *(config[key] for key in NESTED if isinstance(config.get(key), Mapping))]
    for part in reversed(parts):
        if part.get("expert_dtype"):
            return _precision(str(part["expert_dtype"]), "expert_dtype")
        for key in QUANTIZATION_SECTIONS:
            if part.get(key):
                return _precision_of_section(part[key], key)
    return "bf16"


def _precision_of_section(section: Any, key: str) -> str:
    """Return the precision of most layers in the section ``key`` (``quantization_config``).

    Each tool that quantizes states it in other fields. The first known one counts. Raise
    CatalogueError if there is none.
    """
    if not isinstance(section, Mapping):
        raise _unknown(key, section)
    layers, groups = section.get("quantized_layers"), section.get("config_groups")
    algorithm = str(section.get("quant_algo") or "")
    if "mixed" in algorithm.lower() and isinstance(layers, Mapping):
        parts = [part for part in layers.values() if isinstance(part, Mapping)]
        algorithms = Counter(str(part.get("quant_algo")) for part in parts)
        usual = max(algorithms, key=algorithms.__getitem__, default="")  # the first of several
        return _precision(usual or algorithm, f"{key}.quantized_layers")
    for field in ("quant_algo", "format", "qformat_weight", "moe_quant_type", "quant_method"):
        if precision := _precision_in(str(section.get(field) or "")):
            return precision
    if isinstance(groups, Mapping):
        return _precision_of_groups(groups, f"{key}.config_groups")
    for field in BITS:
        if section.get(field) is not None:
            return _precision(f"int{section[field]}", f"{key}.{field}")
    for field, name in (("load_in_4bit", "int4"), ("load_in_8bit", "int8")):
        if section.get(field) is True:
            return name
    weights = section.get("global_quant_config")  # AMD Quark
    if isinstance(weights, Mapping) and isinstance(weights.get("weight"), Mapping):
        return _precision(str(weights["weight"].get("dtype")), f"{key}.global_quant_config")
    field = next((name for name in ("quant_algo", "quant_method") if section.get(name)), "")
    raise _unknown(f"{key}.{field}".rstrip("."), section.get(field, section))


def _precision_of_groups(groups: Mapping[str, Any], key: str) -> str:
    """Return the precision that all groups of layers share; raise CatalogueError if they differ."""
    precisions = set()
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise _unknown(key, group)
        kind = "fp" if weights.get("type") == "float" else "int"
        precisions.add(_precision(f"{kind}{weights.get('num_bits')}", key))
    if len(precisions) != 1:
        raise _unknown(key, sorted(precisions))
    return precisions.pop()


def _precision_in(text: str) -> str:
    """Return the precision that the name of a method or format contains; "" if none."""
    text = text.lower()
    # In this order. "naive-quantized" states no precision: it may stand for integers or floats.
    for part, precision in (
        ("fp4", "fp4"), ("fp8", "fp8"), ("naive-quantized", ""), ("float-quantized", "fp8"),
        ("w4a", "int4"), ("int4", "int4"), ("int8", "int8"), ("w8a", "int8"),
    ):  # fmt: skip
        if part in text:
            return precision
    return ""


def _precision(text: str, key: str) -> str:
    """Return the precision in ``text``; raise CatalogueError naming ``key`` if unknown."""
    precision = _precision_in(text)
    if not precision:
        raise _unknown(key, text)
    return precision


def _unknown(key: str, value: Any) -> CatalogueError:
    """Return the error for an unknown precision under ``key``."""
    return CatalogueError(
        f"config.json: {key} is {value!r:.60}, an unknown precision of weights. Remove it, "
        "or give bits: 4 or 8."
    )
