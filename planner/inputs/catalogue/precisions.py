"""Read the precision of published weights from a ``config.json``."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from planner.errors import CatalogueError

PLACES = ("quantization_config", "quantization", "compression_config")
NESTED = ("text_config", "llm_config", "language_config")
BITS = ("bits", "nbits", "w_bit", "weight_bits")


def precision_of(config: Mapping[str, Any]) -> str:
    """Return the precision of most of the quantised weights; bf16 if no weights are quantised.

    Raises CatalogueError naming the key if the planner does not support the precision.
    """
    parts = [config, *(config[key] for key in NESTED if isinstance(config.get(key), Mapping))]
    for part in reversed(parts):
        if part.get("expert_dtype"):
            return _precision(str(part["expert_dtype"]), "expert_dtype")
        for key in PLACES:
            if part.get(key):
                return _precision_of_section(part[key], key)
    return "bf16"


def _precision_of_section(section: Any, key: str) -> str:
    """Return the precision of most layers in a section such as ``quantization_config``."""
    if not isinstance(section, Mapping):
        raise _unknown(key, section)
    layers, groups = section.get("quantized_layers"), section.get("config_groups")
    algorithm = str(section.get("quant_algo") or "")
    if "mixed" in algorithm.lower() and isinstance(layers, Mapping):
        algorithms = Counter(
            str(part.get("quant_algo")) for part in layers.values() if isinstance(part, Mapping)
        )
        algorithm = algorithms.most_common(1)[0][0] if algorithms else algorithm
        return _precision(algorithm, f"{key}.quantized_layers")
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
    """Return the precision that all groups of layers share."""
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
    """Return the precision that a name of a method or format contains, or ""."""
    text = text.lower()
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
