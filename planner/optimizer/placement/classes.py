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
    def alone(self) -> bool:
        """Return True if every class is a single switch."""
        return all(len(members) == 1 for members in self.switches)

    def counts_by_class(self, subgroup: IntArray, where: Where) -> tuple[dict[Key, int], Where]:
        """Return unit counts by class from those by switch (``where``), and the counts of no class.

        Every class must be a single switch. ``subgroup`` is the subgroup of each S1 switch.
        """
        switch = {members[0]: c for c, members in enumerate(self.switches)}
        pool = {int(subgroup[copies[0][0]]): p for p, copies in enumerate(self.pools)}
        inside: dict[Key, int] = {}
        elsewhere: Where = {}
        for key, n in where.items():
            kind, s, k, a, place, other = key
            numbers = {0: 0} if kind == "none" else pool if kind == "wide" else switch
            if place in numbers:
                other = pool[other] if kind == "part" else 0
                inside[kind, s, k, a, numbers[place], other] = n
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
    seen: dict[tuple[tuple[int, int, int], ...], int] = {}
    class_by_signature = {
        s1: seen.setdefault(tuple(node_list), len(seen)) if together else s1
        for s1, node_list in nodes.items()
    }
    groups: dict[int, list[int]] = {}
    for s1 in nodes:
        groups.setdefault(int(problem.subgroup[s1]), []).append(s1)
    by_key: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for number in sorted(groups):
        members = groups[number]
        centre = int(problem.centre_of_s1[members[0]])
        key = (
            centre,
            int(problem.tiers[members[0]]),
            tuple(sorted(class_by_signature[s1] for s1 in members)),
        )
        by_key.setdefault(key, []).append(tuple(members))
    switches: list[tuple[int, ...]] = []
    class_of_switches: list[int] = []
    for class_number, copies in enumerate(by_key.values()):
        kinds: dict[int, list[int]] = {}
        for s1 in (s1 for members in copies for s1 in members):
            kinds.setdefault(class_by_signature[s1], []).append(s1)
        switches += [tuple(members) for members in kinds.values()]
        class_of_switches += [class_number] * len(kinds)
    return SwitchClasses(
        tuple(switches),
        tuple(class_of_switches),
        tuple(tuple(copies_of_class) for copies_of_class in by_key.values()),
    )
