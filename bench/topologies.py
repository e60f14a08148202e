"""Trees of switches at random, for benches and tests."""

import numpy as np

from simulation.topology import Shape, Topology, build_topology


def random_topology(
    seed: int,
    *,
    nodes: int,
    types: int = 2,
    centres: int = 1,
    s1_per_s2: int = 4,
    racks_per_s1: int = 2,
    nodes_per_rack: int = 8,
    gpus_per_node: int = 8,
) -> Topology:
    """Return a random tree of about ``nodes`` nodes, with types in random proportions.

    About a quarter of the S2 switches have high priority, a quarter medium, and the rest low.
    """
    rng = np.random.default_rng(seed)
    described = []
    for c in range(centres):
        share = rng.dirichlet(np.full(types, 4.0)) * (nodes // centres)
        by_type = np.maximum(1, share.astype(np.int64))
        per_s2 = s1_per_s2 * racks_per_s1 * nodes_per_rack
        s2 = int(np.ceil(by_type.sum() / per_s2))
        kinds = rng.choice(3, size=s2, p=(0.25, 0.25, 0.5))
        shape = Shape(
            s2,
            s1_per_s2,
            racks_per_s1,
            nodes_per_rack,
            int((kinds == 0).sum()),
            int((kinds == 1).sum()),
        )
        described.append((f"centre-{c}", shape, by_type.tolist()))
    names = [f"gpu-{t}" for t in range(types)]
    return build_topology(names, described, [gpus_per_node] * types)
