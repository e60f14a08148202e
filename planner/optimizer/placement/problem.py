"""Define services to place, their units, and the resulting table of placements.

An S1 switch is the lowest switch above the racks, an S2 switch the one above S1 switches. Terms of
seed 003, section 3.3: a *deployment group* holds prefill and decode instances of one service under
one network affinity constraint. An *RDMA subgroup* is a set of S1 switches of one priority under
one S2 switch. A group grows by *units*: the smallest number of replicas with the ratio of the
roles. A unit hands over KV caches internally, so it is never split across subgroups. (The printed
algorithm could split it.)

The *shape* of a unit is its number of replicas of each role. An *alternative* is a choice of GPU
types for all roles of a service.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from simulation.arrays import BoolArray, IntArray
from simulation.topology import S1, S2, Topology

# where all instances of a unit must lie: under one S1 switch; under one S2 switch; anywhere
AFFINITIES = ("s1", "s2", "none")
LOW, MEDIUM, HIGH = range(3)  # priority of an RDMA subgroup
TIERS = ("low", "medium", "high")
MOST_ALTERNATIVES = 6  # combinations of GPU types tried for one service, the most preferred first


@dataclass(frozen=True, slots=True)
class Part:
    """Equal instances in a replica of a role, each on ``gpus`` GPUs of one type.

    Most roles have one part. A mixture of experts may have two: attention and FFN.
    """

    name: str
    gpus: int
    types: tuple[int, ...]  # allowed GPU types, the preferred first
    count: int = 1  # per replica of the role


@dataclass(frozen=True, slots=True)
class Role:
    """A role of a service: prefill, decode or both.

    A replica may have several parts (attention and FFN of a mixture of experts, methods.md D6). All
    its instances lie under one S1 switch.
    """

    name: str
    parts: tuple[Part, ...]

    @property
    def gpus(self) -> int:
        """Return the GPUs of a replica."""
        return sum(part.gpus * part.count for part in self.parts)


@dataclass(frozen=True)
class Service:
    """A service that wants ``wanted[i]`` replicas of ``roles[i]`` in a data centre."""

    name: str
    centre: int  # number of the data centre
    roles: tuple[Role, ...]
    wanted: tuple[int, ...]
    ratio: tuple[int, ...] = ()  # replicas of each role in a unit; empty: the smallest units
    affinity: str = "s2"  # of AFFINITIES
    priority: int = 0  # services of higher priority are placed first

    @cached_property
    def shapes(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Return the units to place as pairs: shape (replicas by role), number of such units."""
        return split_units(self.wanted, self.ratio)

    @cached_property
    def alternatives(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the choices of GPU types to try, ``[alternative][role][part]``.

        Choices with the fewest steps down the preference lists come first.
        """
        type_lists = [part.types for role in self.roles for part in role.parts]
        # A rank is a place in a part's list of preferences, from 0.
        all_ranks = product(*(range(len(types)) for types in type_lists))
        by_preference = sorted(all_ranks, key=lambda ranks: (sum(ranks), ranks))
        alternatives = []
        for ranks in by_preference[:MOST_ALTERNATIVES]:
            chosen = (types[rank] for types, rank in zip(type_lists, ranks, strict=True))
            by_role = (tuple(next(chosen) for _ in role.parts) for role in self.roles)
            alternatives.append(tuple(by_role))
        return tuple(alternatives)

    def gpus(self, shape: tuple[int, ...]) -> int:
        """Return the GPUs of one unit of ``shape`` (replicas by role)."""
        return sum(count * role.gpus for count, role in zip(shape, self.roles, strict=True))

    def fallback_gpus(
        self, shape: tuple[int, ...], alternative: tuple[tuple[int, ...], ...]
    ) -> int:
        """Return the GPUs of one unit of ``shape`` that are not of the preferred type.

        ``alternative`` has the GPU type of each part, by role.
        """
        return sum(
            replicas * part.gpus * part.count
            for replicas, role, types in zip(shape, self.roles, alternative, strict=True)
            for part, gpu in zip(role.parts, types, strict=True)
            if gpu != part.types[0]
        )

    @property
    def lowest_priority(self) -> int:
        """Return the lowest subgroup priority that can satisfy the service's affinity.

        A service with one GPU type needs no affinity across types, so it is low. Otherwise it is
        high for affinity to one S1 switch, and medium for affinity to one S2 switch.
        """
        if len({part.types[0] for role in self.roles for part in role.parts}) == 1:
            return LOW
        return {"s1": HIGH, "s2": MEDIUM, "none": LOW}[self.affinity]


def split_units(
    replicas: tuple[int, ...], ratio: tuple[int, ...] = ()
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Split ``replicas`` by role into units as equal as possible, with all roles in each.

    Return pairs of a unit's shape (replicas by role) and the number of such units. The number of
    units is the most that the ``ratio`` allows for the scarcest role: 31 and 20 at 3:2 are nine
    units of (3, 2) and one of (4, 2). Without a ratio, it is the count of the smallest role. If
    some roles have no replicas (an existing group grows in one role), there is a single unit.
    """
    if not any(replicas):
        return ()
    per_unit = ratio or (1,) * len(replicas)
    unit_count = min(count // each for count, each in zip(replicas, per_unit, strict=True))
    if unit_count < 1 or (len(replicas) > 1 and not all(replicas)):
        unit_count = 1
    # By role, the replicas in each unit: the first units get one more if it does not divide.
    counts_by_role = []
    for count in replicas:
        per_unit_count, left_over = divmod(count, unit_count)
        counts = [per_unit_count + (unit < left_over) for unit in range(unit_count)]
        counts_by_role.append(counts)
    shapes = list(zip(*counts_by_role, strict=True))
    return tuple((shape, shapes.count(shape)) for shape in dict.fromkeys(shapes))


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """A table of placements, with one row per instance and node.

    An instance larger than a node has several rows. All columns are ``[row]``.
    """

    service: IntArray
    unit: IntArray  # number of the unit in its service
    role: IntArray
    replica: IntArray  # number of the replica in its unit and role
    part: IntArray
    instance: IntArray  # number among all instances
    node: IntArray
    gpus: IntArray  # GPUs used on that node
    unplaced: tuple[UnplacedUnits, ...] = ()

    COLUMNS = ("service", "unit", "role", "replica", "part", "instance", "node", "gpus")

    def __post_init__(self) -> None:
        for name in self.COLUMNS:
            array = np.array(getattr(self, name), np.int64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def from_rows(
        cls, rows: list[tuple[int, ...]], unplaced: tuple[UnplacedUnits, ...] = ()
    ) -> Placement:
        """Return a placement from rows of ``COLUMNS``."""
        table = np.array(rows, np.int64).reshape(-1, len(cls.COLUMNS)).T
        service, unit, role, replica, part, instance, node, gpus = table
        return cls(service, unit, role, replica, part, instance, node, gpus, unplaced)

    def rows(self, mask: BoolArray) -> Placement:
        """Return the part of the table that ``mask`` selects."""
        return Placement(*(getattr(self, name)[mask] for name in self.COLUMNS))

    def used_gpus(self, nodes: int) -> IntArray:
        """Return the GPUs in use by node, shape ``[n]``."""
        gpus = np.zeros(nodes, np.int64)
        np.add.at(gpus, self.node, self.gpus)
        return gpus

    def __len__(self) -> int:
        return len(self.node)


@dataclass(frozen=True, slots=True)
class UnplacedUnits:
    """Units of one shape that could not be placed, and the reason."""

    service: int
    shape: tuple[int, ...]
    number: int
    reason: str


def join_placements(first: Placement, second: Placement) -> Placement:
    """Join two placements; ``second`` already numbers its instances after those of ``first``."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in second.COLUMNS
    }
    return replace(second, **columns)


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Services to place on the GPUs of ``topology`` that are not taken."""

    topology: Topology
    services: tuple[Service, ...]
    # [node] GPUs taken by others; default: none
    taken: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        taken = np.array(self.taken if len(self.taken) else np.zeros(len(self.topology)), np.int64)
        taken.setflags(write=False)
        object.__setattr__(self, "taken", taken)

    @cached_property
    def tiers(self) -> IntArray:
        """Return the priority of each S1 switch, ``[S1 switch]`` (seed 003, section 3.3).

        HIGH: several GPU types lie under the switch. MEDIUM: several lie under its S2 switch. LOW:
        otherwise.
        """
        tree = self.topology
        switch_count = int(tree.s1.max(initial=-1)) + 1
        is_mixed = {above: _has_several_types(tree, above) for above in (S1, S2)}
        tiers = np.full(switch_count, LOW, np.int64)
        # By node: ``tree.s1`` is the switch above it.
        under_mixed_s2, under_mixed_s1 = is_mixed[S2][tree.s2], is_mixed[S1][tree.s1]
        tiers[tree.s1[under_mixed_s2]] = MEDIUM
        tiers[tree.s1[under_mixed_s1]] = HIGH
        return tiers

    @cached_property
    def subgroup(self) -> IntArray:
        """Return the RDMA subgroup number of each S1 switch, ``[S1 switch]``.

        A subgroup is the S1 switches of one priority under one S2 switch.
        """
        return self.s2_of_s1 * len(TIERS) + self.tiers

    @cached_property
    def s2_of_s1(self) -> IntArray:
        """Return the S2 switch above each S1 switch, ``[S1 switch]``; 0 if it has no nodes."""
        tree = self.topology
        above = np.zeros(int(tree.s1.max(initial=-1)) + 1, np.int64)
        above[tree.s1] = tree.s2
        return above

    @cached_property
    def centre_of_s1(self) -> IntArray:
        """Return the data centre of each S1 switch, ``[S1 switch]``; -1 if it has no nodes."""
        tree = self.topology
        above = np.full(int(tree.s1.max(initial=-1)) + 1, -1, np.int64)
        above[tree.s1] = tree.centre
        return above


def _has_several_types(tree: Topology, level: int) -> BoolArray:
    """Return True for each switch of a network level with several GPU types under it."""
    under = tree.above(level)
    pairs = np.unique(np.stack([under, tree.gpu]), axis=1)
    return np.bincount(pairs[0], minlength=int(under.max(initial=-1)) + 1) > 1
