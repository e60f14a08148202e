"""Turn the program's counts into nodes: a switch for every unit, then nodes, largest first."""

import numpy as np

from planner.optimizer.placement.classes import Key, SwitchClasses, Where
from planner.optimizer.placement.free_slots import FreeSlots
from planner.optimizer.placement.ledger import Block, Ledger, unit_blocks
from planner.optimizer.placement.problem import Placement, PlacementProblem, Unplaced


class SwitchAssigner:
    """Assigns units to switches by counting free slots, without choosing nodes.

    Arguments are indices: service ``s``, its unit shape ``k``, and its alternative ``a`` of GPU
    types. ``parts`` are the replicas of the unit.
    """

    def __init__(self, problem: PlacementProblem, room: FreeSlots) -> None:
        self.problem, self.room = problem, room
        self.slots = room.slots.copy()
        self.counts: Where = {}

    def place_near(
        self, s: int, k: int, a: int, members: tuple[int, ...], parts: list[Block]
    ) -> bool:
        """Place a unit under the fullest of the switches ``members`` with room; return success."""
        need, switches = self.room.of_unit(parts), np.array(members)
        fitting_switches = switches[(self.slots[switches] >= need).all(axis=1)]
        if not len(fitting_switches):
            return False
        s1 = int(fitting_switches[np.argmin(self.slots[fitting_switches].sum(axis=1))])
        self.slots[s1] -= need
        self.count(("unit", s, k, a, s1, 0))
        return True

    def place_across(
        self, s: int, k: int, a: int, members: tuple[int, ...], parts: list[Block]
    ) -> bool:
        """Place a unit's replicas under several switches of one subgroup; return success.

        Each replica goes to the fullest switch with room. On failure nothing is placed.
        """
        before, switches, chosen = self.slots.copy(), np.array(members), []
        for block in parts:
            need = self.room.of_block(block)
            fitting_switches = switches[(self.slots[switches] >= need).all(axis=1)]
            if not len(fitting_switches):
                self.slots = before
                return False
            s1 = int(fitting_switches[np.argmin(self.slots[fitting_switches].sum(axis=1))])
            self.slots[s1] -= need
            chosen.append((block, s1))
        self._count_wide(s, k, a, chosen)
        return True

    def place_chosen(self, s: int, k: int, a: int, chosen: list[tuple[Block, int]]) -> None:
        """Place replicas on the switches that the program chose."""
        for block, s1 in chosen:
            self.slots[s1] -= self.room.of_block(block)
        self._count_wide(s, k, a, chosen)

    def _count_wide(self, s: int, k: int, a: int, chosen: list[tuple[Block, int]]) -> None:
        """Count a unit under several switches of a subgroup, and each replica's switch."""
        pool = int(self.problem.subgroup[chosen[0][1]])
        self.count(("wide", s, k, a, pool, 0))
        for block, s1 in chosen:
            self.count(("part", s, block.role, a, s1, pool))

    def count(self, key: Key, number: int = 1) -> None:
        """Add ``number`` to a count of the answer; ``key`` is that of the program."""
        self.counts[key] = self.counts.get(key, 0) + number


def assign_switches(
    problem: PlacementProblem, kinds: SwitchClasses, room: FreeSlots, counts: Where
) -> Where:
    """Return the program's ``counts`` of units by single switch, given those by class of switches.

    Units that find no switch of their class go wherever their affinity allows. Otherwise they go
    anywhere in a subgroup, or stay unplaced.
    """
    assigner = SwitchAssigner(problem, room)
    pending: list[tuple[int, str, int, int, int, int]] = []
    for (kind, s, k, a, where, _), n in counts.items():
        if kind in ("unit", "wide"):
            size = problem.services[s].gpus(problem.services[s].shapes[k][0])
            pending += [(-size, kind, s, k, a, where)] * n
    chosen = _switches_of_replicas(kinds, counts) if kinds.alone else {}
    over: list[tuple[int, int]] = []
    # The largest units first: they find a switch least easily.
    for _, kind, s, k, a, where in sorted(pending):
        service = problem.services[s]
        parts = unit_blocks(service, service.shapes[k][0], service.alternatives[a])
        if kind == "unit":
            fine = assigner.place_near(s, k, a, kinds.switches[where], parts)
        elif kinds.alone:
            placed = [(block, chosen[s, block.role, a, where].pop()) for block in parts]
            assigner.place_chosen(s, k, a, placed)
            fine = True
        else:
            fine = any(
                assigner.place_across(s, k, a, members, parts) for members in kinds.pools[where]
            )
        if not fine:
            over.append((s, k))
    for (kind, s, k, *_), n in counts.items():
        if kind == "none":
            assigner.count(("none", s, k, 0, 0, 0), n)
    for s, k in over:
        if not _place_in_any_subgroup(assigner, s, k):
            assigner.count(("none", s, k, 0, 0, 0))
    return assigner.counts


def _switches_of_replicas(
    kinds: SwitchClasses, counts: dict[Key, int]
) -> dict[tuple[int, int, int, int], list[int]]:
    """Return the switches that the program chose for replicas of units under several switches.

    The key is service, role, alternative and class of the subgroup.
    """
    switches_of: dict[tuple[int, int, int, int], list[int]] = {}
    for (kind, service, role, alternative, switch_class, pool), replicas in counts.items():
        if kind == "part":
            # A class is a single switch here.
            switch = kinds.switches[switch_class][0]
            key = (service, role, alternative, pool)
            switches_of.setdefault(key, []).extend([switch] * replicas)
    return {key: sorted(switches) for key, switches in switches_of.items()}


def _place_in_any_subgroup(assigner: SwitchAssigner, s: int, k: int) -> bool:
    """Place a unit in any subgroup of its data centre, low priorities first; return success."""
    problem = assigner.problem
    service = problem.services[s]
    s1s = np.flatnonzero(problem.centre_of_s1 == service.centre)
    by_tier = [s1s[problem.tiers[s1s] == tier] for tier in np.unique(problem.tiers[s1s])]
    for a, alternative in enumerate(service.alternatives):
        parts = unit_blocks(service, service.shapes[k][0], alternative)
        if any(assigner.place_near(s, k, a, tuple(members.tolist()), parts) for members in by_tier):
            return True
        if len(parts) > 1:
            groups = problem.subgroup[s1s]
            for g in np.unique(groups):
                if assigner.place_across(s, k, a, tuple(s1s[groups == g].tolist()), parts):
                    return True
    return False


def placement_of(problem: PlacementProblem, counts: Where) -> Placement:
    """Choose a node for each instance of the ``counts`` by switch, the largest instances first.

    In that order, all instances fit if their slots do (``FreeSlots``) and sizes divide one another.
    Otherwise an instance may not fit. Its unit is then unplaced.
    """
    parts: dict[tuple[int, int, int, int], list[int]] = {}
    for (kind, s, r, a, s1, pool), n in sorted(counts.items()):
        if kind == "part":
            parts.setdefault((s, r, a, pool), []).extend([s1] * n)
    lost = [(s, k, n) for (kind, s, k, *_), n in counts.items() if kind == "none"]
    number = [0] * len(problem.services)
    units: list[tuple[int, int, int]] = []
    instances: list[tuple[int, int, Block, int, int, int]] = []
    for (kind, s, k, a, where, _), n in sorted(counts.items()):
        if kind not in ("unit", "wide"):
            continue
        service = problem.services[s]
        listed = unit_blocks(service, service.shapes[k][0], service.alternatives[a])
        for _ in range(n):
            units.append((s, number[s], k))
            number[s] += 1
            for block in listed:
                s1 = where if kind == "unit" else parts[s, block.role, a, where].pop()
                for part, gpu, size in block.instances:
                    instances.append((-size, len(units) - 1, block, part, gpu, s1))
    instances.sort(
        key=lambda instance: (instance[0], instance[1], instance[2].role, instance[2].replica)
    )
    ledger = Ledger(problem)
    rows: dict[int, list[tuple[int, ...]]] = {}
    failed: set[int] = set()
    for i, (size, u, block, part, gpu, s1) in enumerate(instances):
        taken = ledger.take(ledger.nodes(s1, gpu), -size)
        if not taken:
            failed.add(u)
        s, unit, _ = units[u]
        rows.setdefault(u, []).extend(
            (s, unit, block.role, block.replica, part, i, node, gpus) for node, gpus in taken
        )
    lost += [(units[u][0], units[u][2], 1) for u in sorted(failed)]
    reason = "no placement of all services together has room for it"
    unplaced = tuple(Unplaced(s, problem.services[s].shapes[k][0], n, reason) for s, k, n in lost)
    return Placement.of(
        [row for u, listed in rows.items() if u not in failed for row in listed], unplaced
    )
