"""Merge identical subtrees: S1 switches with equal nodes, in subgroups with equal switches."""

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from planner.optimizer.placement.problem import PlacementProblem
from simulation.arrays import IntArray


class Key(NamedTuple):
    """What a column of the program counts; ``build_program`` describes the kinds."""

    kind: str  # "unit", "wide", "part" or "none"; "open": nodes in use
    service: int
    shape: int  # of a "part": the role
    alternative: int = 0  # set of GPU types; of "open": one type
    place: int = 0  # class of S1 switches; of a "wide": class of subgroups
    subgroup: int = 0  # class; only of a "part"


# Counts by keys with numbers of switches and subgroups instead of classes.
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
            classes = class_of_pool if key.kind == "wide" else class_of_switch
            if key.kind == "none":
                inside[key] = n
            elif key.place in classes:
                pool_class = class_of_pool[key.subgroup] if key.kind == "part" else 0
                inside[key._replace(place=classes[key.place], subgroup=pool_class)] = n
            else:
                elsewhere[key] = n
        return inside, elsewhere

    def counts_by_switch(self, subgroup: IntArray, counts: dict[Key, int]) -> Where:
        """Return counts by switch from counts by class (the reverse of ``counts_by_class``)."""
        switch = [members[0] for members in self.switches]
        pool = [int(subgroup[copies[0][0]]) for copies in self.pools]
        where: Where = {}
        for key, n in counts.items():
            if key.kind == "wide":
                key = key._replace(place=pool[key.place])
            elif key.kind == "part":
                key = key._replace(place=switch[key.place], subgroup=pool[key.subgroup])
            elif key.kind == "unit":
                key = key._replace(place=switch[key.place])
            where[key] = n
        return where


def switch_classes(problem: PlacementProblem, *, together: bool) -> SwitchClasses:
    """Return the classes of identical S1 switches and subgroups.

    S1 switches are identical if their nodes have equal GPU types, sizes and free GPUs. Subgroups
    are identical if they lie in one data centre with equal priority, and have identical switches.
    Without ``together``, each switch and each subgroup is a class of its own.
    """
    kind_of = _kinds_of_switches(problem, together=together)
    pools = _identical_subgroups(problem, kind_of)
    switches: list[tuple[int, ...]] = []
    pool_of_class: list[int] = []
    for pool, subgroups in enumerate(pools):
        by_kind: dict[int, list[int]] = {}
        for s1 in chain.from_iterable(subgroups):
            by_kind.setdefault(kind_of[s1], []).append(s1)
        switches += [tuple(members) for members in by_kind.values()]
        pool_of_class += [pool] * len(by_kind)
    return SwitchClasses(switches=tuple(switches), pool=tuple(pool_of_class), pools=pools)


def _kinds_of_switches(problem: PlacementProblem, *, together: bool) -> dict[int, int]:
    """Return a number for each S1 switch that has nodes, equal for switches with equal nodes.

    Without ``together`` it is the switch's own number.
    """
    tree = problem.topology
    free = tree.gpus - problem.taken
    nodes_of: dict[int, list[tuple[int, int, int]]] = {}  # by switch: GPU type, GPUs, free GPUs
    for n in np.lexsort((free, tree.gpus, tree.gpu, tree.s1)).tolist():
        node = (int(tree.gpu[n]), int(tree.gpus[n]), int(free[n]))
        nodes_of.setdefault(int(tree.s1[n]), []).append(node)
    if not together:
        return {s1: s1 for s1 in nodes_of}
    kinds: dict[tuple[tuple[int, int, int], ...], int] = {}
    return {s1: kinds.setdefault(tuple(nodes), len(kinds)) for s1, nodes in nodes_of.items()}


def _identical_subgroups(
    problem: PlacementProblem, kind_of: dict[int, int]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the classes of identical subgroups, each subgroup as its S1 switches.

    ``kind_of`` is the kind of each switch.
    """
    subgroups: dict[int, list[int]] = {}
    for s1 in kind_of:
        subgroups.setdefault(int(problem.subgroup[s1]), []).append(s1)
    identical: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for _, members in sorted(subgroups.items()):
        first = members[0]  # data centre and priority are those of the subgroup
        centre, priority = int(problem.centre_of_s1[first]), int(problem.tiers[first])
        key = (centre, priority, tuple(sorted(kind_of[s1] for s1 in members)))
        identical.setdefault(key, []).append(tuple(members))
    return tuple(tuple(copies) for copies in identical.values())
