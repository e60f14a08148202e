"""The way of a KV cache from prefill to decode pools: the scenario's, or the GPU's own network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from planner.catalogue.serving import typical_context
from planner.errors import ScenarioError
from planner.scenario.columns import Column
from planner.scenario.schema import KvTransfer, Profile
from simulation.fleet import KvLink
from simulation.performance.memory import kv_bytes_per_token
from simulation.performance.profile import Profile as Speed
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance

GIGA = 1e9
At = tuple[int, int]  # model, column
Facts = list[tuple[str, Provenance]]


def links_of(
    models: Sequence[ModelSpec],
    types: Sequence[GpuSpec],
    columns: Sequence[Column],
    sections: Mapping[At, Profile],
    profiles: Mapping[At, Speed],
    given: Sequence[KvTransfer],
    facts: Facts,
) -> dict[At, KvLink]:
    """The link of each prefill column, with what it rests on added to ``facts``; ``given`` is what
    the scenario says, by model.

    Where it says nothing, every GPU of an instance sends its part at the rate published for it.
    """
    links: dict[At, KvLink] = {}
    for (m, g), section in sections.items():
        if columns[g].role != "prefill":
            continue
        gpu, rate, source = types[columns[g].gpu], given[m].gb_s, "scenario"
        if rate is None and gpu.network_bytes_s is not None:
            rate = gpu.network_bytes_s * profiles[m, g].tp / GIGA
            source = f"{gpu.name}'s published network, all of it for KV caches"
        if rate is None:
            raise ScenarioError(
                f"serving: {models[m].name} prefills on {gpu.name}, whose network_gb_s is not "
                "known; give kv_transfer.gb_s, or the GPU's network_gb_s."
            )
        shared = given[m].shared_gb_s
        links[m, g] = KvLink(
            _bytes_per_token(models[m], section),
            rate * GIGA,
            math.inf if shared is None else shared * GIGA,
        )
        between = "" if shared is None else f", {shared:g} GB/s between all"
        told = Provenance("assumed", f"{rate:g} GB/s an instance{between}: {source}")
        facts.append((f"KV transfer of {models[m].name} from {columns[g].label}", told))
    return links


def _bytes_per_token(model: ModelSpec, section: Profile) -> float:
    if section.kv_precision == "bf16" or model.shape is None:
        return model.kv_bytes_per_token
    context = typical_context(model.max_context)
    return kv_bytes_per_token(model.shape, section.kv_precision, context)
