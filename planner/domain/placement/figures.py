"""Define the figures and sentences of a placement run, for every method.

A service is a model in a region. A unit is the smallest set of its prefill and decode replicas in
their ratio: it passes KV caches within itself. A state is a placement at the start, after the
scale-out (grown), or after the scale-in (shrunk). An S1 switch connects nodes; subgroups of S1
switches form an RDMA network.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from planner.domain.formats import counted, milliseconds
from planner.domain.placement.methods import (
    ALGORITHM4,
    BLIND,
    EXACT,
    GROWN,
    LABELS,
    SHRUNK,
    START,
    State,
    States,
)
from planner.domain.placement.services import ServiceColumns
from planner.domain.placement.simulation import MethodReplay, Replay
from planner.domain.serialise import MERGED, OPTIONAL, gpu_words
from planner.inputs.scenario.build import Hardware
from planner.optimizer.placement import Measures, PlacementProblem, service_share
from planner.optimizer.placement.problem import TIERS

# Smaller differences do not count: relative in p95 E2E, absolute in SLO attainment.
SAME_E2E, SAME_POINTS = 0.01, 0.002
SAME_PENALTY = 1.001  # ratio of penalty points up to which a method is as good as the exact one


@dataclass(frozen=True, slots=True)
class Gap:
    """Equal units of a service that have no place, and why."""

    service: str
    unit: tuple[int, ...]  # replicas by role
    units: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFigures(Measures):
    """The figures of one method in one state (start, grown or shrunk)."""

    seconds: float
    bound: float | None  # proven lower bound of the points; None: the method has none
    gap: float | None  # of the points to that bound
    unplaced: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class ServiceUnits:
    """How the units of a service are placed."""

    service: str
    units: int
    groups: int  # number of RDMA subgroups, or of S1 switches if its affinity is "s1"
    bandwidth_share: float | None  # mean share of the KV bandwidth; None: no KV transfers
    worst_share: float | None  # lowest share of a unit
    missed: int  # units whose affinity is not honoured
    split: int  # units across several subgroups


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """The figures of one placement method in each state, and its simulation."""

    label: str
    start: StateFigures = field(metadata={MERGED: True})
    services: tuple[ServiceUnits, ...]  # in the state "start"
    grown: StateFigures | None = field(metadata={OPTIONAL: True})
    shrunk: StateFigures | None = field(metadata={OPTIONAL: True})
    simulated: MethodReplay | None


@dataclass(frozen=True, slots=True)
class RoleFigures:
    """The replicas of one role of a service.

    A replica has several ``parts`` if its GPUs are divided between attention and experts.
    """

    role: str
    gpu: str
    gpus: int
    instances: int
    parts: tuple[tuple[str, int, int], ...]  # (name, number in a replica, GPUs of each)
    fallbacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The replicas of a unit by role, and the number of such units."""

    instances: tuple[int, ...]
    units: int


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """The replicas that a service places, and what it requires of the network."""

    name: str
    model: str
    region: str
    affinity: str | None
    priority: int
    needs: str
    roles: tuple[RoleFigures, ...]
    units: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class RegionTree:
    """The network of a region. S1 switches are also counted by the priority of their subgroups."""

    region: str
    nodes: int
    gpus: int
    racks: int
    s1: int
    s2: int
    s1_low: int
    s1_medium: int
    s1_high: int


def method_figures(
    name: str, states: States, placed: Sequence[ServiceColumns], replay: MethodReplay | None
) -> MethodFigures:
    """Return the figures of the placement method ``name``.

    ``states`` are its placements: START, and GROWN and SHRUNK if they were computed. ``placed`` are
    the services, in the order of the placement's indices. ``replay`` is the simulation of the
    start; None: not simulated.
    """
    by_state: dict[str, StateFigures] = {}
    for step, state in states.items():
        service_names = [service.name for service in state.problem.services]
        by_state[step] = StateFigures(
            **asdict(state.measures),
            seconds=state.seconds,
            bound=state.bound,
            gap=state.gap,
            unplaced=tuple(
                Gap(service_names[gap.service], gap.shape, gap.number, gap.reason)
                for gap in state.placement.unplaced
            ),
        )
    return MethodFigures(
        label=LABELS[name],
        start=by_state[START],
        services=tuple(
            _service_units(states[START], s, service) for s, service in enumerate(placed)
        ),
        grown=by_state.get(GROWN),
        shrunk=by_state.get(SHRUNK),
        simulated=replay,
    )


def _service_units(state: State, s: int, placed: ServiceColumns) -> ServiceUnits:
    """Return how the units of the service ``placed``, number ``s``, are placed.

    Its shares of the KV bandwidth are None without KV transfers.
    """
    units, placement, problem = state.units, state.placement, state.problem
    is_own = units.service == s  # mask of the units of this service
    shares = service_share(units, s) if placed.has_kv_transfers else None
    mean, worst = shares or (None, None)
    # Groups that the service has nodes in: S1 switches if it wants to stay in one, else subgroups
    # of switches.
    groups = problem.topology.s1[placement.node[placement.service == s]]
    if problem.services[s].affinity != "s1":
        groups = problem.subgroup[groups]
    return ServiceUnits(
        service=placed.service.name,
        units=int(is_own.sum()),
        groups=len(np.unique(groups)),
        bandwidth_share=mean,
        worst_share=worst,
        missed=int((~units.honoured[is_own]).sum()),
        split=int(units.split[is_own].sum()),
    )


def service_figures(hardware: Hardware, placed: ServiceColumns) -> ServiceFigures:
    """Return what a service requires of the network, its replicas by role, and its units."""
    service = placed.service
    roles = []
    for g, role, instances in zip(placed.columns, service.roles, service.wanted, strict=True):
        first_part = role.parts[0]
        _, *fallbacks = first_part.types  # the preferred GPU type comes first
        roles.append(
            RoleFigures(
                role=hardware.role(g),
                gpu=hardware.gpus[g].name,
                gpus=role.gpus,
                instances=instances,
                parts=tuple((part.name, part.count, part.gpus) for part in role.parts),
                fallbacks=tuple(hardware.gpu_types[gpu_type].name for gpu_type in fallbacks),
            )
        )
    return ServiceFigures(
        name=service.name,
        model=hardware.models[placed.model].name,
        region=hardware.regions[placed.region].name,
        affinity=service.affinity if placed.has_kv_transfers else None,
        priority=service.priority,
        needs=TIERS[service.lowest_priority],
        roles=tuple(roles),
        units=tuple(Shape(instances, units) for instances, units in service.shapes),
    )


def region_trees(problem: PlacementProblem) -> Iterator[RegionTree]:
    """Yield the size of the network of each region."""
    tree = problem.topology
    for region, name in enumerate(tree.centres):
        nodes = tree.centre == region  # mask
        s1_switches = np.unique(tree.s1[nodes])
        # Each S1 switch has a tier: low, medium or high.
        low, medium, high = np.bincount(problem.tiers[s1_switches], minlength=len(TIERS)).tolist()
        yield RegionTree(
            region=name,
            nodes=int(nodes.sum()),
            gpus=int(tree.gpus[nodes].sum()),
            racks=len(np.unique(tree.rack[nodes])),
            s1=len(s1_switches),
            s2=len(np.unique(tree.s2[nodes])),
            s1_low=low,
            s1_medium=medium,
            s1_high=high,
        )


def headline(methods: Mapping[str, MethodFigures], has_kv_transfers: bool) -> str:
    """Return the main sentence of a placement run: the KV bandwidth that is left.

    Without KV transfers between prefill and decode, it is on the GPUs left over.
    """
    best = methods.get(EXACT) or next(iter(methods.values()))
    start = best.start
    if not has_kv_transfers:
        return (
            f"{start.units:,} replicas placed, {gpu_words(start.fragmented_gpus)} free on partly "
            "used nodes"
        )
    sentence = f"Best placement keeps {1 - start.bandwidth_lost:.0%} of prefill-decode bandwidth"
    blind = methods.get(BLIND)
    if blind is None or blind is best:
        return sentence
    return f"{sentence}. Ignoring topology keeps {1 - blind.start.bandwidth_lost:.0%}"


def warnings(methods: Mapping[str, MethodFigures], has_kv_transfers: bool) -> Iterator[str]:
    """Yield warnings: cases in which a simpler method is as good, and units without a place."""
    if has_kv_transfers and _topology_saves_no_time(methods):
        yield (
            "Topology-aware placement saves bandwidth here, not time. Ignoring topology raises E2E "
            f"p95 by at most {SAME_E2E:.0%}, and costs at most {100 * SAME_POINTS:g} points of "
            "attainment."
        )
    algorithm4, exact = methods.get(ALGORITHM4), methods.get(EXACT)
    if algorithm4 and exact and algorithm4.start.points <= exact.start.points * SAME_PENALTY:
        yield "Algorithm 4 is as good as the exact placement here."
    for method in methods.values():
        for gap in method.start.unplaced:
            yield (
                f"{method.label}: {counted(gap.units, 'unit')} of "
                f"{gap.service} found no place: {gap.reason}."
            )


def _topology_saves_no_time(methods: Mapping[str, MethodFigures]) -> bool:
    """Return whether the method that ignores topology is as good as every other, in simulation.

    It must have placed all units, and every method must have been simulated.
    """
    blind = methods.get(BLIND)
    informed = [method.simulated for name, method in methods.items() if name != BLIND]
    if blind is None or blind.simulated is None or blind.start.unplaced_units or not informed:
        return False
    blind_replay = blind.simulated.replay
    return all(row is not None and _is_as_good(blind_replay, row.replay) for row in informed)


def _is_as_good(replay: Replay, best: Replay) -> bool:
    """Return whether ``replay`` is about as good as ``best`` in p95 E2E and SLO attainment.

    False if one of them has no E2E. Tiers without requests do not count.
    """
    p95_ms, best_ms = replay.e2e_ms.p95, best.e2e_ms.p95
    if p95_ms is None or best_ms is None or p95_ms > (1 + SAME_E2E) * best_ms:
        return False
    shares = zip(replay.slo_attainment.values(), best.slo_attainment.values(), strict=True)
    known = [(share, high) for share, high in shares if share is not None and high is not None]
    return all(share >= high - SAME_POINTS for share, high in known)


def simulated_words(methods: Mapping[str, MethodFigures]) -> str:
    """Return the p95 latencies of each simulated method in words; "" if none was simulated."""
    words = []
    for method in methods.values():
        replay = None if method.simulated is None else method.simulated.replay
        if replay is not None and replay.e2e_ms.p95 is not None:
            words.append(
                f"{method.label}: E2E {milliseconds(replay.e2e_ms.p95)}, "
                f"TPOT {replay.tbt_ms.p95 or 0:,.1f} ms (95th percentiles)"
            )
    return "; ".join(words) + "." if words else ""


def notes(
    source: str, methods: Mapping[str, MethodFigures], has_kv_transfers: bool
) -> Iterator[str]:
    """Yield notes on the ``source`` of the replicas, the methods, and KV transfers if any."""
    yield f"Replicas: {source}."
    yield (
        "A unit is the smallest number of replicas in the ratio of prefill and decode. It "
        "passes KV caches within itself and is never split by Algorithm 4 or the exact "
        "placement. Score: a unit split across subgroups counts as not placed."
    )
    yield (
        "Fewer points are better. Per GPU: 1000 (times 1 + priority) for a unit without a place, "
        "100 for affinity missed, 30 for a fallback. 10 per step of priority above the need, 20 "
        "times the KV bandwidth lost, 0.01 per free GPU on a partly used node (assumed: an "
        "order of precedence)."
    )
    if has_kv_transfers:
        yield (
            "In the simulation, each service uses one KV bandwidth: the harmonic mean of its "
            "units, weighted by GPUs. KV transfer follows the first token. It affects TPOT and "
            "E2E, and TTFT only if transfers queue."
        )
    if any(method.start.fallback_gpus for method in methods.values()):
        yield (
            "Replicas on fallback GPUs are simulated at the speed of their preferred type. The "
            "figures are too good for a placement with them."
        )
