"""Small placement problems, by hand and at random."""

import numpy as np

from bench.topologies import random_topology
from planner.optimizer.placement import Part, PlacementProblem, Role, Service
from simulation.topology import Shape, build_topology

SIZES = (1, 2, 4, 8)


def pd(name="s", counts=(2, 2), *, p=4, d=4, pt=(0,), dt=(0,), **how):
    """A service of prefill and decode instances of ``p`` and ``d`` GPUs."""
    roles = (Role("prefill", (Part("prefill", p, pt),)), Role("decode", (Part("decode", d, dt),)))
    return Service(name, 0, roles, counts, **how)


def mixed(name="m", counts=2, gpus=2, types=(0,), **how):
    """A service of instances that do both."""
    return Service(name, 0, (Role("both", (Part("both", gpus, types),)),), (counts,), **how)


def moe(name="e", counts=(1, 1), *, attention=2, ffn=1, types=(0,), **how):
    """Prefill replicas of attention and FFN instances of 2 and 4 GPUs, decode instances of 4."""
    prefill = (Part("attention", 2, types, attention), Part("ffn", 4, types, ffn))
    roles = (Role("prefill", prefill), Role("decode", (Part("decode", 4, types),)))
    return Service(name, 0, roles, counts, **how)


def tree(s2=2, s1=2, racks=1, nodes=2, types=(8,), gpus=8, **how):
    """A data centre with ``types[i]`` nodes of type i."""
    shape = Shape(s2, s1, racks, nodes, **how)
    names = [f"gpu-{t}" for t in range(len(types))]
    return build_topology(names, [("x", shape, types)], [gpus] * len(types))


def problem(topology, *services, taken=()):
    return PlacementProblem(topology, tuple(services), np.array(taken, np.int64))


def random_problem(seed, *, nodes=48, fill=0.8, services=6, sizes=SIZES):
    """Services of all kinds on a random tree, asking for ``fill`` of its GPUs."""
    topology = random_topology(seed, nodes=nodes, nodes_per_rack=2)
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(services, 2.0)) * topology.gpus.sum() * fill
    drawn = []
    for i in range(services):
        kind, (a, b) = rng.integers(4), rng.permutation(2).tolist()
        p, d = rng.choice(sizes, 2).tolist()
        affinity = ("s1", "s2", "none")[rng.integers(3)]
        if kind == 0:
            count = max(1, int(share[i] // p))
            drawn.append(mixed(f"m{i}", count, p, (a, b), affinity="none"))
            continue
        ratio = ((1, 1), (1, 2), (2, 1), (3, 2), (1, 5))[rng.integers(5)]
        count = max(1, int(share[i] // (ratio[0] * p + ratio[1] * d)))
        counts = (ratio[0] * count, ratio[1] * count)
        how = {"ratio": ratio, "affinity": affinity, "priority": int(rng.integers(3))}
        dt = (a,) if kind == 1 else (b, a) if kind == 2 else (b,)
        drawn.append(pd(f"s{i}", counts, p=p, d=d, pt=(a,), dt=dt, **how))
    return problem(topology, *drawn)
