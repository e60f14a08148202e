"""The way of a KV cache from prefill to decode pools: the scenario's, or the GPU's own network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.catalogue.serving import typical_context
from planner.errors import ScenarioError
from planner.scenario.columns import Column
from planner.scenario.schema import Profile
from simulation.fleet import KvLink
from simulation.performance.memory import kv_bytes_per_token
from simulation.performance.profile import Profile as Speed
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance

At = tuple[int, int]  # model, column
Facts = list[tuple[str, Provenance]]


def links_of(
    models: Sequence[ModelSpec],
    types: Sequence[GpuSpec],
    columns: Sequence[Column],
    sections: Mapping[At, Profile],
    profiles: Mapping[At, Speed],
    facts: Facts,
) -> dict[At, KvLink]:
    """The link of each prefill column, with what it rests on added to ``facts``.

    Every GPU of an instance sends its part at the rate published for it to other nodes.
    """
    links: dict[At, KvLink] = {}
    for (m, g), section in sections.items():
        if columns[g].role != "prefill":
            continue
        gpu = types[columns[g].gpu]
        if gpu.network_bytes_s is None:
            raise ScenarioError(
                f"gpus: {gpu.name} prefills for other instances and its network_gb_s is not known; "
                "give it."
            )
        rate = gpu.network_bytes_s * profiles[m, g].tp
        links[m, g] = KvLink(_bytes_per_token(models[m], section), rate)
        source = f"{rate / 1e9:,.0f} GB/s, {gpu.name}'s published network, of nothing else"
        facts.append((f"KV link of {columns[g].label}", Provenance("assumed", source)))
    return links


def _bytes_per_token(model: ModelSpec, section: Profile) -> float:
    if section.kv_precision == "bf16" or model.shape is None:
        return model.kv_bytes_per_token
    context = typical_context(model.max_context)
    return kv_bytes_per_token(model.shape, section.kv_precision, context)
