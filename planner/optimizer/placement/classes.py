"""Merge identical subtrees: S1 switches with equal nodes, in subgroups with equal switches."""

from dataclasses import dataclass

import numpy as np

from planner.optimizer.placement.problem import PlacementProblem
from simulation.arrays import IntArray

# Key of a column. unit: service, shape, alternative, class, 0. wide: the same with a subgroup
# class. part: service, role, alternative, S1 class, subgroup class. none: service, shape.
Key = tuple[str, int, int, int, int, int]
# Counts by such keys, with numbers of switches and subgroups instead of classes.
Where = dict[Key, int]


@dataclass(frozen=True, slots=True)
class SwitchClasses:
    """Classes of identical S1 switches and of identical subgroups, for fewer variables.

    ``switches[c]`` lists the S1 switches of class c, which belongs to subgroup class ``pool[c]``.
    ``pools[p]`` lists the subgroups of class p, each as its S1 switches.
    """

    switches: tuple[tuple[int, ...], ...]
    pool: tuple[int, ...]
    pools: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def are_single(self) -> bool:
        """Return True if every class is a single switch."""
        return all(len(members) == 1 for members in self.switches)

    def counts_by_class(self, subgroup: IntArray, where: Where) -> tuple[dict[Key, int], Where]:
        """Return unit counts by class from those by switch (``where``), and the counts of no class.

        Every class must be a single switch. ``subgroup`` is the subgroup of each S1 switch.
        """
        class_of_switch = {members[0]: c for c, members in enumerate(self.switches)}
        class_of_pool = {int(subgroup[copies[0][0]]): p for p, copies in enumerate(self.pools)}
        inside: dict[Key, int] = {}
        elsewhere: Where = {}
        for key, n in where.items():
            kind, s, k, a, place, pool = key
            classes = class_of_pool if kind == "wide" else class_of_switch
            if kind == "none":
                inside[key] = n
            elif place in classes:
                pool_class = class_of_pool[pool] if kind == "part" else 0
                inside[kind, s, k, a, classes[place], pool_class] = n
            else:
                elsewhere[key] = n
        return inside, elsewhere

    def counts_by_switch(self, subgroup: IntArray, counts: dict[Key, int]) -> Where:
        """Return counts by switch from counts by class (the reverse of ``counts_by_class``)."""
        switch = [members[0] for members in self.switches]
        pool = [int(subgroup[copies[0][0]]) for copies in self.pools]
        where: Where = {}
        for (kind, s, k, a, c, p), n in counts.items():
            place = 0 if kind == "none" else pool[c] if kind == "wide" else switch[c]
            where[kind, s, k, a, place, pool[p] if kind == "part" else 0] = n
        return where


def switch_classes(problem: PlacementProblem, *, together: bool) -> SwitchClasses:
    """Return the classes of identical S1 switches and subgroups.

    S1 switches are identical if their nodes have equal GPU types, sizes and free GPUs. Subgroups
    are if they lie in one data centre with equal priority, and have identical switches. Without
    ``together``, each switch and each subgroup is a class of its own.
    """
    tree = problem.topology
    free = tree.gpus - problem.taken
    order = np.lexsort((free, tree.gpus, tree.gpu, tree.s1))
    nodes: dict[int, list[tuple[int, int, int]]] = {}
    for n in order.tolist():
        nodes.setdefault(int(tree.s1[n]), []).append(
            (int(tree.gpu[n]), int(tree.gpus[n]), int(free[n]))
        )
    # Switches with the same list of nodes get the same kind.
    kind_of_nodes: dict[tuple[tuple[int, int, int], ...], int] = {}
    kind_of = {
        s1: kind_of_nodes.setdefault(tuple(node_list), len(kind_of_nodes)) if together else s1
        for s1, node_list in nodes.items()
    }
    subgroups: dict[int, list[int]] = {}
    for s1 in nodes:
        subgroups.setdefault(int(problem.subgroup[s1]), []).append(s1)
    # Subgroups with the same data centre, priority and kinds of switches are identical.
    identical: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for _, members in sorted(subgroups.items()):
        centre, tier = int(problem.centre_of_s1[members[0]]), int(problem.tiers[members[0]])
        key = (centre, tier, tuple(sorted(kind_of[s1] for s1 in members)))
        identical.setdefault(key, []).append(tuple(members))
    switches: list[tuple[int, ...]] = []
    pool_of_class: list[int] = []
    for pool, copies in enumerate(identical.values()):
        by_kind: dict[int, list[int]] = {}
        for s1 in (s1 for members in copies for s1 in members):
            by_kind.setdefault(kind_of[s1], []).append(s1)
        switches += [tuple(members) for members in by_kind.values()]
        pool_of_class += [pool] * len(by_kind)
    pools = tuple(tuple(copies) for copies in identical.values())
    return SwitchClasses(tuple(switches), tuple(pool_of_class), pools)
