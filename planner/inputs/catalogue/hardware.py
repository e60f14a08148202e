"""Look up GPU types and models of the catalogue by any of their names."""

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any

from planner.inputs.catalogue import mixers, names
from planner.inputs.catalogue.files import read
from simulation.performance.memory import kv_bytes_per_token, weight_bytes
from simulation.performance.specs import GpuSpec, ModelShape, ModelSpec, Provenance

GIGA, TERA = 1e9, 1e12
# Shares of the TDP for GPUs without a measurement. They lie between those that the authors of
# splitwise-sim chose for A100 (0.16, 1, 0.63) and for H100 (0.11, 1, 0.54).
ASSUMED_WATTS = {"idle": 0.12, "prefill": 1.0, "decode": 0.6}
# Facts of a GPU type, with their keys in gpus.yaml. The last four may be missing.
GPU_FACTS = {
    "memory_bytes": "memory_bytes", "bandwidth_bytes_s": "bandwidth_gb_s", "peak_flops": "tflops",
    "tdp_w": "tdp_w", "link_bytes_s": "link_gb_s", "network_bytes_s": "network_gb_s",
    "idle_w": "idle_w",
}  # fmt: skip
FACT_LABELS = {"peak_flops": "peak FLOPS", "tdp_w": "TDP", "idle_w": "idle power", "watts": "power"}
# Tokens of a sequence over which its KV cache is averaged, if bytes per token depend on it (sliding
# windows, fixed states): prompt and output of a chat with some history.
TYPICAL_CONTEXT = 4096
SHAPE_FIELDS = {field.name for field in fields(ModelShape)} - {"name", "encoder", "adapters"}


@cache
def gpus() -> Mapping[str, GpuSpec]:
    """Return GPU types by name, built once."""
    return MappingProxyType({name: _gpu(entry) for name, entry in _entries("gpus").items()})


def gpu(name: str) -> GpuSpec:
    """Return a GPU type by any of its names; raise CatalogueError with the most similar names."""
    return gpus()[gpu_name(name)]


def gpu_sources(name: str) -> dict[str, Provenance]:
    """Return the source of each known fact of a GPU type, by ``GPU_FACTS`` and "watts"."""
    entry = _entries("gpus")[gpu_name(name)]
    texts, source_of_fact = read("gpus")["sources"], entry.get("sources", {})
    facts = [fact for fact, key in GPU_FACTS.items() if key in entry]
    sources = {}
    for fact in [*facts, "watts"]:
        key = source_of_fact.get(fact, entry["source"])
        prefix = key.partition("-")[0]  # the key of a source may begin with its kind
        kind = prefix if prefix in ("assumed", "measured") else entry["kind"]
        sources[fact] = Provenance(kind, texts[key])
    if "watts" not in entry:
        shares = ", ".join(f"{state} {share:g}" for state, share in ASSUMED_WATTS.items())
        sources["watts"] = Provenance("assumed", f"shares of the TDP: {shares}")
    return sources


@cache
def models(weights: str = "bf16", kv_cache: str = "bf16") -> Mapping[str, ModelSpec]:
    """Return models by their short names, with memory for these precisions, built once."""
    texts, specs = read("models")["sources"], {}
    for name, entry in _entries("models").items():
        source = Provenance("published", texts[entry["source"]])
        if assumed_fields := entry.get("assumed"):
            words = ", ".join(assumed_fields).replace("_", " ")
            source = Provenance("assumed", f"{source.source}; assumed: {words}")
        specs[name] = model_of_shape(_shape(name), source, weights, kv_cache)
    return MappingProxyType(specs)


def model(name: str, weights: str = "bf16", kv_cache: str = "bf16") -> ModelSpec:
    """Return a model by any name, with memory for these precisions; or raise CatalogueError."""
    return models(weights, kv_cache)[model_name(name)]


def shape(name: str) -> ModelShape:
    """Return the shape of a model by any of its names, including its Hugging Face id."""
    return _shape(model_name(name))


def model_name(name: str) -> str:
    """Return the short name of a model; raise CatalogueError with the most similar names."""
    canonical = known_model(name)
    if canonical is None:
        raise names.UnknownName("Model", name, _canonical_names("models"))
    return canonical


def known_model(name: str) -> str | None:
    """Return the short name of a model, or None if it is not in the catalogue."""
    return names.find_model(name, _canonical_names("models"))


def repository(name: str) -> str:
    """Return a built-in model's name on Hugging Face; other names are returned unchanged."""
    canonical = known_model(name)
    if "/" in name or canonical is None:
        return name
    return str(next(iter(_entries("models")[canonical].get("hf", ())), name))


def gpu_name(name: str) -> str:
    """Return the catalogue's name of a GPU or cloud instance type, or raise CatalogueError."""
    canonical = _find_gpu(name)
    if canonical is None:
        raise names.UnknownName("GPU", name, _canonical_names("gpus"))
    return canonical


def model_known_as(name: str) -> str:
    """Return the catalogue's name of a model, or ``name`` if it has none."""
    return known_model(name) or name


def gpu_known_as(name: str) -> str:
    """Return the catalogue's name of a GPU type, or ``name`` if it has none."""
    return _find_gpu(name) or name


def published_precision(name: str) -> str:
    """Return the precision of published weights: from the name, else from the release."""
    entry = _entries("models")[model_name(name)]
    return names.stated_precision(name) or str(entry.get("precision", "bf16"))


def _gpu(entry: Mapping[str, Any]) -> GpuSpec:
    """Return a GPU type from its entry, in SI units; powers may be assumed shares of its TDP."""
    watts = entry.get("watts") or {
        state: share * entry["tdp_w"] for state, share in ASSUMED_WATTS.items()
    }
    vendor, year = vendor_and_year(entry["family"])
    # The provenance lists each text once, after its facts. Its kind is that of memory size and peak
    # rates, which matter most.
    facts_of_text: dict[str, list[str]] = {}
    for fact, source in gpu_sources(entry["name"]).items():
        label = FACT_LABELS.get(fact, fact.partition("_")[0])
        facts_of_text.setdefault(source.source, []).append(label)
    source_texts = [f"{', '.join(facts)}: {text}" for text, facts in facts_of_text.items()]
    link_rates = {
        f"{link}_bytes_s": entry[f"{link}_gb_s"] * GIGA
        for link in ("link", "network")
        if f"{link}_gb_s" in entry
    }
    return GpuSpec(
        name=entry["name"],
        memory_bytes=float(entry["memory_bytes"]),
        idle_w=float(entry.get("idle_w", watts["idle"])),
        prefill_w=float(watts["prefill"]),
        decode_w=float(watts["decode"]),
        provenance=Provenance(entry["kind"], "; ".join(source_texts)),
        bandwidth_bytes_s=entry["bandwidth_gb_s"] * GIGA,
        peak_flops={name: peak * TERA for name, peak in entry["tflops"].items()},
        tdp_w=float(entry["tdp_w"]) if "tdp_w" in entry else None,
        **link_rates,
        gpus_per_node=entry["gpus_per_node"],
        family=entry["family"],
        vendor=vendor,
        year=year,
    )


def vendor_and_year(family: str) -> tuple[str, int]:
    """Return the vendor of a GPU family and the year it first shipped; ("", 0) if unknown."""
    vendor, year = read("gpus")["families"].get(family, ("", 0))
    return str(vendor), int(year)


@cache
def _entries(kind: str) -> dict[str, dict[str, Any]]:
    """Return the entries of gpus.yaml or models.yaml by name; ``kind`` is "gpus" or "models"."""
    return {entry["name"]: entry for entry in read(kind)[kind]}


@cache
def _canonical_names(kind: str) -> dict[str, str]:
    """Return the catalogue's name of each entry by all its names; ``kind`` as in ``_entries``."""
    names_of_entries = []
    for name, entry in _entries(kind).items():
        names_of_entries.append((name, (*entry.get("hf", ()), *entry.get("aliases", ()))))
    return names.aliases(names_of_entries)


def _find_gpu(name: str) -> str | None:
    """Return the catalogue's name of a GPU type or of a cloud instance's GPUs, or None."""
    plain = names.plain_name(name)
    if (gpu := _canonical_names("gpus").get(plain)) is not None:
        return gpu
    for gpu, instance_patterns in read("gpus")["instances"].items():
        if any(re.fullmatch(pattern, plain) for pattern in instance_patterns):
            return str(gpu)
    return None


@cache
def _shape(name: str) -> ModelShape:
    """Return the shape of a built-in model from its catalogue entry."""
    entry, encoder = _resolve_like(name), None
    if sizes := entry.get("encoder"):
        if isinstance(sizes, str):  # the name of an encoder that models share
            sizes = read("models")["encoders"][sizes]
        encoder = image_encoder(name, **sizes)
    for kind, maker in (("linear", mixers.delta_net), ("mamba", mixers.mamba)):
        if kind in entry:
            entry |= maker(**entry[kind])
    values = {key: value for key, value in entry.items() if key in SHAPE_FIELDS}
    return ModelShape(name=name, encoder=encoder, **values)


def _resolve_like(name: str) -> dict[str, Any]:
    """Return the entry of a model; fields that it lacks come from the entry in its ``like``."""
    entry = _entries("models")[name]
    if "like" not in entry:
        return dict(entry)
    base = _resolve_like(entry["like"])
    return {key: base[key] for key in base if key not in ("encoder", "assumed")} | entry


def image_encoder(model: str, **sizes: Any) -> ModelShape:
    """Return the shape of the image encoder of ``model``; ``sizes`` are fields of ModelShape."""
    return ModelShape(
        name=f"{model} encoder",
        vocab=1,
        kv_heads=sizes["heads"],
        head_dim=sizes["hidden"] // sizes["heads"],
        max_context=16_384,  # patches; larger images are resized
        **sizes,
    )


def model_of_shape(
    shape: ModelShape, provenance: Provenance, weights: str = "bf16", kv_cache: str = "bf16"
) -> ModelSpec:
    """Return a model with its shape's memory; KV cache is the mean over TYPICAL_CONTEXT."""
    context = min(TYPICAL_CONTEXT, shape.max_context)
    return ModelSpec(
        name=shape.name,
        weight_bytes=weight_bytes(shape, weights),
        kv_bytes_per_token=kv_bytes_per_token(shape, kv_cache, context),
        max_context=shape.max_context,
        provenance=provenance,
        shape=shape,
    )
