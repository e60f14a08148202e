"""Identical subtrees as one: S1 switches with the same nodes, in subgroups with the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.optimizer.placement.problem import PlacementProblem


@dataclass(frozen=True, slots=True)
class Classes:
    """``switches[c]``: the S1 switches of class c, which lies in subgroup class ``pool[c]``;
    ``pools[p]``: the subgroups of a class, each as its S1 switches."""

    switches: tuple[tuple[int, ...], ...]
    pool: tuple[int, ...]
    pools: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def alone(self) -> bool:
        """Whether every class is a single switch."""
        return all(len(members) == 1 for members in self.switches)


def classes(problem: PlacementProblem, *, together: bool) -> Classes:
    """Classes of identical subtrees, or with ``together`` False each switch by itself."""
    tree = problem.topology
    free = tree.gpus - problem.taken
    order = np.lexsort((free, tree.gpus, tree.gpu, tree.s1))
    nodes: dict[int, list[tuple[int, int, int]]] = {}
    for n in order.tolist():
        nodes.setdefault(int(tree.s1[n]), []).append(
            (int(tree.gpu[n]), int(tree.gpus[n]), int(free[n]))
        )
    seen: dict[tuple[tuple[int, int, int], ...], int] = {}
    alike = {
        s1: seen.setdefault(tuple(there), len(seen)) if together else s1
        for s1, there in nodes.items()
    }
    groups: dict[int, list[int]] = {}
    for s1 in nodes:
        groups.setdefault(int(problem.subgroup[s1]), []).append(s1)
    by_key: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for number in sorted(groups):
        members = groups[number]
        centre = int(problem.centre_of_s1[members[0]])
        key = (centre, int(problem.tiers[members[0]]), tuple(sorted(alike[s1] for s1 in members)))
        by_key.setdefault(key, []).append(tuple(members))
    switches: list[tuple[int, ...]] = []
    pool: list[int] = []
    for p, copies in enumerate(by_key.values()):
        kinds: dict[int, list[int]] = {}
        for s1 in (s1 for members in copies for s1 in members):
            kinds.setdefault(alike[s1], []).append(s1)
        switches += [tuple(members) for members in kinds.values()]
        pool += [p] * len(kinds)
    return Classes(tuple(switches), tuple(pool), tuple(tuple(c) for c in by_key.values()))
