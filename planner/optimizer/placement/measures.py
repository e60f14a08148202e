"""Score a placement: affinity, KV bandwidth, subgroup priorities and fragments.

``placement.problem`` explains unit, subgroup, S1 and S2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.optimizer.placement.problem import HIGH, Placement, PlacementProblem
from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.topology import CENTRE, KV_SHARE, NODE, RACK, S1, S2


@dataclass(frozen=True, slots=True)
class Points:
    """Penalty points per GPU of a unit; fewer are better.

    The values are assumed. They set an order of precedence, not a price: each is well below the one
    before.
    """

    unplaced: float = 1000.0  # times 1 + the service's priority; also for a unit that is split
    missed: float = 100.0  # affinity not met
    fallback: float = 30.0  # GPU that is not of the preferred type
    tier: float = 10.0  # per step of subgroup priority above the service's need
    bandwidth: float = 20.0  # times the share of KV bandwidth lost: 4 in all across S1 switches
    fragment: float = 0.01  # per free GPU on a partly used node


POINTS = Points()


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Properties of placed units. All arrays are ``[unit]``."""

    service: IntArray
    unit: IntArray  # number of the unit in its service
    gpus: IntArray
    level: IntArray  # lowest network level that holds the whole unit
    honoured: BoolArray  # affinity met, and each replica of several parts under one S1 switch
    split: BoolArray  # its roles lie in more than one subgroup
    share: FloatArray  # share of the network bandwidth for KV hand-over; 1 with a single role
    fallback_gpus: IntArray  # GPUs that are not of the preferred type
    dear_gpus: IntArray  # GPUs times the steps of priority above what the service needs
    tier: IntArray  # highest priority of the unit's subgroups


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The figures of one placement; shares are fractions."""

    points: float  # penalty by ``Points``; fewer are better
    units: int
    gpus: int
    unplaced_units: int
    # Share of the placed units with several roles whose affinity is met; None without such units.
    affinity_honoured: float | None
    affinity_missed: int  # units whose affinity is not met
    split_units: int
    # Share of KV bandwidth, mean over units with several roles, weighted by GPUs; 0 without any.
    bandwidth_lost: float
    fallback_gpus: int
    dear_gpus: int  # GPUs times the steps of priority above what the service needs
    high_free_gpus: int  # free GPUs on subgroups of high priority
    high_gpus: int  # all GPUs on subgroups of high priority
    fragmented_gpus: int  # free GPUs on partly used nodes


def measure_placement(
    problem: PlacementProblem, placement: Placement, shares: Sequence[float] = KV_SHARE
) -> Measures:
    """Return all figures of ``placement``, and its penalty points.

    A unit's KV bandwidth is that of the lowest switch above all its instances. ``shares`` gives the
    share of bandwidth at each level of switches.
    """
    units = measure_units(problem, placement, shares)
    used_gpus = problem.taken + placement.used_gpus(len(problem.topology))
    free_gpus = problem.topology.gpus - used_gpus
    fragment_gpus = int(free_gpus[(used_gpus > 0) & (free_gpus > 0)].sum())
    is_high = problem.tiers[problem.topology.s1] == HIGH
    # Only units with several roles exchange KV caches.
    has_several_roles = np.array([len(service.roles) > 1 for service in problem.services], bool)
    sends_kv = has_several_roles[units.service]
    kv_gpus = units.gpus * sends_kv
    honoured = float(units.honoured[sends_kv].mean()) if sends_kv.any() else None
    return Measures(
        points=_unit_points(problem, placement, units) + POINTS.fragment * fragment_gpus,
        units=len(units.unit),
        gpus=int(units.gpus.sum()),
        unplaced_units=sum(gap.number for gap in placement.unplaced),
        affinity_honoured=honoured,
        affinity_missed=int((~units.honoured).sum()),
        split_units=int(units.split.sum()),
        bandwidth_lost=float((kv_gpus * (1 - units.share)).sum() / max(1, kv_gpus.sum())),
        fallback_gpus=int(units.fallback_gpus.sum()),
        dear_gpus=int(units.dear_gpus.sum()),
        high_free_gpus=int(free_gpus[is_high].sum()),
        high_gpus=int(problem.topology.gpus[is_high].sum()),
        fragmented_gpus=fragment_gpus,
    )


def _unit_points(problem: PlacementProblem, placement: Placement, units: Units) -> float:
    """Return the penalty points of all units of ``placement``, without those of fragments."""
    service_weight = np.array([1.0 + service.priority for service in problem.services])
    points: float = POINTS.unplaced * sum(
        service_weight[gap.service] * gap.number * problem.services[gap.service].gpus(gap.shape)
        for gap in placement.unplaced
    )
    # A unit that is split over several subgroups counts as unplaced. It earns nothing for filling
    # fragments (free GPUs on nodes in part use), so their points are added.
    points_per_gpu = POINTS.unplaced * service_weight[units.service] + POINTS.fragment
    points += float((points_per_gpu * units.gpus)[units.split].sum())
    is_whole = ~units.split
    points += POINTS.missed * float(units.gpus[is_whole & ~units.honoured].sum())
    points += POINTS.bandwidth * float((units.gpus * (1 - units.share))[is_whole].sum())
    points += POINTS.fallback * float(units.fallback_gpus[is_whole].sum())
    return points + POINTS.tier * float(units.dear_gpus[is_whole].sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """The rows of a placement in groups, such as units or replicas."""

    of_row: IntArray  # [row] index of its group
    count: int

    def sums(self, values: IntArray) -> IntArray:
        """Return the sum of ``values [row]`` in each group."""
        total = np.zeros(self.count, np.int64)
        np.add.at(total, self.of_row, values)
        return total

    def largest(self, values: IntArray) -> IntArray:
        """Return the largest of ``values [row]`` in each group; 0 if none is above."""
        largest = np.zeros(self.count, np.int64)
        np.maximum.at(largest, self.of_row, values)
        return largest

    def are_equal(self, values: IntArray) -> BoolArray:
        """Return the mask of groups whose ``values [row]`` are all equal."""
        low = np.full(self.count, np.iinfo(np.int64).max)
        high = np.full(self.count, -1, np.int64)
        np.minimum.at(low, self.of_row, values)
        np.maximum.at(high, self.of_row, values)
        return np.asarray(low == high)


def measure_units(
    problem: PlacementProblem, placement: Placement, shares: Sequence[float] = KV_SHARE
) -> Units:
    """Return the properties of each placed unit.

    A unit is the smallest number of replicas that keeps a service's ratio of prefill and decode.
    ``shares`` gives the share of bandwidth at each level of switches.
    """
    tree, services = problem.topology, problem.services
    # A row of the placement is the part of an instance on one node. Here ``*_of_row`` is by row,
    # and other arrays are by unit.
    (service, number), unit_of_row = np.unique(
        np.stack([placement.service, placement.unit]), axis=1, return_inverse=True
    )
    by_unit = _Groups(unit_of_row.reshape(-1), len(number))
    s1_of_row = tree.s1[placement.node]
    has_several_roles = np.array([len(spec.roles) > 1 for spec in services], bool)[service]
    # The lowest level at which all nodes of a unit have one parent: tried downwards.
    level = np.full(by_unit.count, CENTRE, np.int64)
    for tried in (CENTRE, S2, S1, RACK, NODE):
        level[by_unit.are_equal(tree.above(tried)[placement.node])] = tried
    # The highest network level that the affinity of each service allows.
    levels = {"s1": S1, "s2": S2, "none": CENTRE}
    allowed_level = np.array([levels[spec.affinity] for spec in services])
    is_near = ~has_several_roles | (level <= allowed_level[service])
    type_by_part = _preferred_types(problem)  # [service, role, part]
    type_of_row = type_by_part[placement.service, placement.role, placement.part]
    is_fallback_of_row = tree.gpu[placement.node] != type_of_row
    # Priority tiers of the switch above the one that the service needs.
    needed_tier = np.array([spec.lowest_priority for spec in services], np.int64)  # [service]
    tier_of_row = problem.tiers[s1_of_row]
    excess_of_row = np.maximum(0, tier_of_row - needed_tier[placement.service])
    return Units(
        service=service,
        unit=number,
        gpus=by_unit.sums(placement.gpus),
        level=level,
        honoured=is_near & ~_has_broken_replica(problem, placement, by_unit),
        split=has_several_roles & ~by_unit.are_equal(problem.subgroup[s1_of_row]),
        share=np.where(has_several_roles, np.asarray(shares, float)[level], 1.0),
        fallback_gpus=by_unit.sums(placement.gpus * is_fallback_of_row),
        dear_gpus=by_unit.sums(placement.gpus * excess_of_row),
        tier=by_unit.largest(tier_of_row),
    )


def _has_broken_replica(
    problem: PlacementProblem, placement: Placement, by_unit: _Groups
) -> BoolArray:
    """Return the mask ``[unit]`` of units with a replica whose parts lie under several S1 switches.

    Only services with replicas of several parts count.
    """
    # Each column of ``replicas`` is a replica: its unit, role and number. ``replica_of_row`` is the
    # index of that column for each row of the placement.
    replicas, replica_of_row = np.unique(
        np.stack([by_unit.of_row, placement.role, placement.replica]), axis=1, return_inverse=True
    )
    by_replica = _Groups(replica_of_row.reshape(-1), replicas.shape[1])
    is_under_one_s1 = by_replica.are_equal(problem.topology.s1[placement.node])  # [replica]
    has_parts_by_service = [
        any(len(role.parts) > 1 for role in spec.roles) for spec in problem.services
    ]
    has_parts_by_row = np.array(has_parts_by_service, bool)[placement.service]
    is_broken_by_row = ~is_under_one_s1[by_replica.of_row] & has_parts_by_row
    return by_unit.sums(is_broken_by_row) > 0


def service_share(units: Units, service_id: int) -> tuple[float, float] | None:
    """Return the mean and the worst share of bandwidth for the KV transfers of a service.

    The mean is harmonic over the service's units, weighted by GPUs, so it gives the mean transfer
    time. None: the service has no units.
    """
    of_service = units.service == service_id
    if not of_service.any():
        return None
    gpus, share = units.gpus[of_service], np.maximum(units.share[of_service], 1e-9)
    return float(gpus.sum() / (gpus / share).sum()), float(share.min())


def _preferred_types(problem: PlacementProblem) -> IntArray:
    """Return the preferred GPU types, ``[service, role, part]``."""
    services = problem.services
    roles = max((len(service.roles) for service in services), default=0)
    parts = max((len(role.parts) for service in services for role in service.roles), default=0)
    types = np.zeros((len(services), roles, parts), np.int64)
    for service_id, service in enumerate(services):
        for role_index, role in enumerate(service.roles):
            for part_index, part in enumerate(role.parts):
                types[service_id, role_index, part_index] = part.types[0]
    return types
