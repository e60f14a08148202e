"""Find the links for KV caches from prefill to decode pools: stated, or the GPU's network."""

import math
from collections.abc import Sequence

from planner.errors import ScenarioError
from planner.inputs.catalogue.serving import typical_context
from planner.inputs.scenario.columns import Arrangements, ModelColumn
from planner.inputs.scenario.schema import KvTransfer, Profile
from simulation.fleet import KvLink
from simulation.performance.memory import kv_bytes_per_token
from simulation.performance.profile import Profile as Speed
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance

GIGA = 1e9
Facts = list[tuple[str, Provenance]]


def links_of(
    models: Sequence[ModelSpec],
    types: Sequence[GpuSpec],
    fleet: Arrangements,
    transfers: Sequence[KvTransfer],
    facts: Facts,
) -> dict[ModelColumn, KvLink]:
    """Return the link for KV caches of each prefill column, by (model, column).

    A column is a GPU type with an arrangement and a role. ``transfers`` has the transfer that the
    scenario states for each model. Without a stated rate, every GPU of an instance sends its part
    at its published rate. Adds the source of each link to ``facts``.
    """
    links: dict[ModelColumn, KvLink] = {}
    for (m, g), section in fleet.sections.items():
        model, column, transfer = models[m], fleet.columns[g], transfers[m]
        if column.role != "prefill":
            continue
        tp = senders_of(section, fleet.speeds[m, g])
        link, source = link_of(model, types[column.gpu], tp, section, transfer)
        links[m, g] = link
        shared = transfer.shared_gb_s
        between = "" if shared is None else f", {shared:g} GB/s between all"
        rate = f"{link.bytes_s / GIGA:g} GB/s per replica"
        fact = Provenance("assumed", f"{rate}{between}: {source}")
        facts.append((kv_transfer_title(model.name, column.label), fact))
    return links


def kv_transfer_title(model: str, column: str) -> str:
    """Return the title of the fact on KV transfer from a GPU column such as "L4, prefill"."""
    return f"KV transfer of {model} from prefill on {column.removesuffix(', prefill')}"


def senders_of(section: Profile, profile: Speed) -> int:
    """Return the number of GPUs of a prefill instance that each hold a part of the KV cache."""
    return section.attention_ffn.attention if section.attention_ffn else profile.tp


def link_of(
    model: ModelSpec, gpu: GpuSpec, tp: int, section: Profile, transfer: KvTransfer
) -> tuple[KvLink, str]:
    """Return the link for KV caches of a prefill instance, and the source of its rate.

    ``tp`` GPUs send its KV caches. ``transfer`` has the rate that the scenario states, or None in
    its place. Raise ScenarioError if the rate is neither stated nor in the catalogue.
    """
    rate, source = transfer.gb_s, "scenario"
    if rate is None:
        if gpu.network_bytes_s is None:
            raise ScenarioError(
                f"serving: {model.name} prefills on {gpu.name}, which has no network_gb_s. Give "
                "kv_transfer.gb_s, or the GPU's network_gb_s."
            )
        rate = gpu.network_bytes_s * tp / GIGA
        source = f"network bandwidth of {gpu.name} in the catalogue, all used for KV transfer"
    size = model.kv_bytes_per_token
    if section.kv_precision != "bf16" and model.shape is not None:
        context = typical_context(model.max_context)
        size = kv_bytes_per_token(model.shape, section.kv_precision, context)
    shared = math.inf if transfer.shared_gb_s is None else transfer.shared_gb_s * GIGA
    return KvLink(size, rate * GIGA, shared), source
