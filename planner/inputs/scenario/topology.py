"""Build the network of a scenario: one tree of all regions, with its sources."""

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import ScenarioError
from planner.inputs.scenario.build import NODES_PER_RACK, Hardware
from planner.inputs.scenario.schema import PlacedService, Region, Scenario
from simulation.errors import SimulationError
from simulation.performance.specs import Provenance
from simulation.topology import (
    CENTRE,
    KV_SHARE,
    KV_SHARE_SOURCE,
    S2,
    Shape,
    Topology,
    build_topology,
)

# Default of a region: 2 racks per S1 switch, 4 S1 per S2 switch (assumed).
RACKS_PER_S1, S1_PER_S2 = 2, 4
Facts = list[tuple[str, Provenance]]


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """The network on which the instances of a scaling fleet are placed.

    ``topology`` is the tree of all regions. ``shares`` is the share of the link bandwidth that KV
    caches get, by the lowest level of the tree that sender and receiver have in common. ``rules``
    ``[model]`` is the placement rule of each model.
    """

    topology: Topology
    shares: tuple[float, ...]
    rules: tuple[PlacedService, ...]


def network_of(scenario: Scenario, hardware: Hardware) -> Network | None:
    """Return the network, or None if it has no effect or, with spot GPUs, is not known."""
    has_topology = any(region.topology is not None for region in scenario.regions)
    if not has_topology or not hardware.links or hardware.spot.any():
        return None
    unused_facts: Facts = []  # the sources are listed elsewhere
    topology = topology_of(scenario, hardware, unused_facts)
    rules = tuple(rules_of(scenario, model.name) for model in hardware.models)
    return Network(topology, kv_shares(scenario, unused_facts), rules)


def rules_of(scenario: Scenario, model: str) -> PlacedService:
    """Return the placement rule of a model: its own row, else the row for all models."""
    rows = {row.model: row for row in scenario.placement.services}
    return rows.get(model, rows.get(None, PlacedService()))


def topology_of(scenario: Scenario, hardware: Hardware, facts: Facts) -> Topology:
    """Return all regions as one tree, in which region ``r`` is centre ``r``; add ``facts``."""
    types = [gpu.name for gpu in hardware.gpu_types]
    gpus_per_node = np.ones_like(hardware.capacity_gpus)  # [region, GPU type]
    for r, section in enumerate(scenario.regions):
        stated = section.topology.gpus_per_node if section.topology else {}
        if unknown := sorted(set(stated) - set(types)):
            raise ScenarioError(
                f"regions[{r}].topology.gpus_per_node: {unknown[0]!r} has no profile in this "
                f"scenario, which has {', '.join(types)}."
            )
        gpus_per_node[r] = [stated.get(gpu.name, gpu.gpus_per_node) for gpu in hardware.gpu_types]
    # Round up: a partly filled node is a node.
    nodes = -(-hardware.capacity_gpus // gpus_per_node)
    centres = []
    for section, counts in zip(scenario.regions, nodes.tolist(), strict=True):
        shape = _shape(section, sum(counts))
        centres.append((section.name, shape, counts))
        words = (
            f"{section.name}: {shape.s2} S2 x {shape.s1_per_s2} S1 x {shape.racks_per_s1} racks x "
            f"{shape.nodes_per_rack} nodes"
        )
        if section.topology is None:
            words += ", derived from the capacity. To change it, give regions[].topology"
        facts.append((f"Network of {section.name}", Provenance("assumed", words)))
    try:
        # GPUs per node: 1 for now, because they differ between regions.
        tree = build_topology(types, centres, [1] * len(types))
    except SimulationError as problem:
        raise ScenarioError(f"regions[].topology: {problem}") from None
    gpus_by_node = gpus_per_node[tree.centre, tree.gpu]
    # The last node of a region and type has the GPUs that do not fill a whole node.
    rest = hardware.capacity_gpus % gpus_per_node
    for r, t in np.argwhere(rest).tolist():
        last_node = np.flatnonzero((tree.centre == r) & (tree.gpu == t))[-1]
        gpus_by_node[last_node] = rest[r, t]
    return replace(tree, gpus=gpus_by_node)


def kv_shares(scenario: Scenario, facts: Facts) -> tuple[float, ...]:
    """Return the share of link bandwidth that KV caches get, by level of the tree.

    The level (of ``simulation.topology``) is the lowest that sender and receiver have in common.
    Adds the source to ``facts``.
    """
    shares = list(KV_SHARE)
    section = scenario.placement
    shares[S2], shares[CENTRE] = section.across_s1, section.across_s2
    is_stated = (section.across_s1, section.across_s2) != (KV_SHARE[S2], KV_SHARE[CENTRE])
    source = Provenance("assumed", "scenario") if is_stated else KV_SHARE_SOURCE
    facts.append(("KV bandwidth across switches", source))
    return tuple(shares)


def _shape(section: Region, nodes: int) -> Shape:
    """Return the stated shape of a region, or the default shape with enough S2 switches."""
    topology = section.topology
    if topology is None:
        per_s2 = S1_PER_S2 * RACKS_PER_S1 * NODES_PER_RACK
        s2 = max(1, -(-nodes // per_s2))
        return Shape(s2, S1_PER_S2, RACKS_PER_S1, NODES_PER_RACK)
    if topology.mixed_s1 + (topology.mixed_s2 or 0) > topology.s2:
        raise ScenarioError(
            f"regions: the topology of {section.name} has {topology.s2} S2 switches and "
            f"{topology.mixed_s1 + (topology.mixed_s2 or 0)} of them are to be mixed. Lower "
            "mixed_s1 or mixed_s2."
        )
    return Shape(**topology.model_dump(exclude={"gpus_per_node"}))
