"""Find the pools that can prefill and decode a service, and the KV link between them."""

from dataclasses import dataclass

from planner.domain.sizing.curves import cached_blocks
from planner.domain.traffic.lengths import Lengths
from planner.errors import PlannerError
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.links import link_of, senders_of
from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.sizing.pd_ratio import PdService, RatioCapacity, best_split
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness, Workload
from simulation.trace import CachedTokens

MAX_INSTANCES = 256  # most replicas of both roles whose ratios are evaluated
# Largest default number of replicas: HeteroScale, section 4.1, has 16 nodes.
DEFAULT_INSTANCES = 16


@dataclass(frozen=True, slots=True)
class PairColumns:
    """The indices of a GPU column for prefill and one for decode, of one model."""

    prefill: int
    decode: int


def model_index(hardware: Hardware, service: str) -> int:
    """Return the index of the model with the name ``service``; raise PlannerError if unknown."""
    names = [model.name for model in hardware.models]
    if service not in names:
        raise PlannerError(
            f"service {service}: the scenario has no model of that name. Choose from "
            f"{', '.join(names)}."
        )
    return names.index(service)


def pairs_of(hardware: Hardware, m: int) -> list[PairColumns]:
    """Return the pairs of prefill and decode columns of model number ``m``.

    If the model lacks columns of one of these roles, use all pairs of its aggregated columns.
    """
    by_role: dict[str, list[int]] = {"prefill": [], "decode": [], "both": []}
    for model, g in hardware.profiles:
        if model == m:
            by_role[hardware.columns[g].role].append(g)
    prefill, decode = by_role["prefill"], by_role["decode"]
    if not (prefill and decode):
        prefill = decode = by_role["both"]
    return [PairColumns(p, d) for p in prefill for d in decode]


def _link(hardware: Hardware, m: int, g: int) -> KvLink:
    """Return the link over which a replica of model ``m`` on GPU column ``g`` sends KV caches.

    If the scenario has none, because the model does not prefill on ``g``, derive one.
    """
    if (m, g) in hardware.links:
        return hardware.links[m, g]
    section, transfer = hardware.sections[m, g], hardware.serving[m].kv_transfer
    gpus = senders_of(section, hardware.profiles[m, g])
    link, _ = link_of(hardware.models[m], hardware.gpus[g], gpus, section, transfer)
    return link


def service_of(
    hardware: Hardware,
    m: int,
    columns: PairColumns,
    lengths: Lengths,
    tier: Tier,
    shared: SharedPrompts | None = None,
    burstiness: Burstiness = 1.0,
) -> PdService:
    """Return model ``m`` on a pair of GPU columns as a service of closed forms and simulations.

    ``lengths`` are (input, output) tokens of sampled requests. ``shared`` has the cached tokens or
    prompt blocks of the model; None: not known.
    """
    lengths, blocks = cached_blocks(hardware, m, lengths, shared)
    counted = blocks if isinstance(blocks, CachedTokens) else None
    return PdService(
        prefill=hardware.profiles[m, columns.prefill],
        decode=hardware.profiles[m, columns.decode],
        workload=Workload(*lengths, cached=counted),
        tier=tier,
        link=_link(hardware, m, columns.prefill),
        batching=hardware.serving[m].batching,
        blocks=blocks,
        burstiness=burstiness,
    )


def usual_instances(hardware: Hardware, m: int, columns: PairColumns) -> int:
    """Return how many replicas of both pools of a pair are evaluated by default.

    They are as many as fit in the region with the most GPUs, at least 2 and at most
    ``DEFAULT_INSTANCES``. ``m`` is the index of the model.
    """
    pair = [columns.prefill, columns.decode]
    gpus_per_replica = max(hardware.profiles[m, g].tp for g in pair)
    # GPUs of the scarcer of the two types, by region.
    gpus = hardware.capacity_gpus[:, hardware.types[pair]].min(axis=1)
    return int(min(max(gpus.max() // gpus_per_replica, 2), DEFAULT_INSTANCES))


def todays_splits(hardware: Hardware, m: int, columns: PairColumns) -> dict[str, tuple[int, int]]:
    """Return today's (prefill, decode) replicas of a pair, by region.

    Regions without replicas of one of the pools are left out. The result is empty if the pair is of
    aggregated columns. ``m`` is the index of the model.
    """
    if hardware.today is None or hardware.columns[columns.prefill].role != "prefill":
        return {}
    by_role = hardware.today[m][:, [columns.prefill, columns.decode]]  # [region, role]
    return {
        region.name: (int(prefill), int(decode))
        for region, (prefill, decode) in zip(hardware.regions, by_role, strict=True)
        if prefill and decode
    }


def todays_instances(hardware: Hardware, m: int, columns: PairColumns) -> int:
    """Return today's replicas of both pools of a pair, in the region with the most; 0 if none.

    Regions without replicas of one of the pools do not count. ``m`` is the index of the model.
    """
    if hardware.today is None:
        return 0
    # Without profiles of their own, both roles are replicas of one column: count them once.
    pair = sorted({columns.prefill, columns.decode})
    by_role = hardware.today[m][:, pair]  # [region, role]
    has_both = by_role.min(axis=1) > 0
    replicas = by_role[has_both].sum(axis=1)
    return min(int(replicas.max(initial=0)), MAX_INSTANCES)


def strictest_split(
    hardware: Hardware,
    m: int,
    columns: PairColumns,
    lengths: Lengths,
    instances: int,
    shared: SharedPrompts | None = None,
    burstiness: Burstiness = 1.0,
) -> tuple[PdService, RatioCapacity]:
    """Return (service, ratio): model ``m`` at its most limiting tier, and its best ratio there.

    Both are by closed forms, for Poisson arrivals. ``instances`` is the number of prefill and
    decode replicas together. Raises SimulationError if no ratio meets a tier.
    """
    splits: list[tuple[PdService, RatioCapacity]] = []
    for tier in hardware.limits_of(m):
        service = service_of(hardware, m, columns, lengths, tier, shared, burstiness)
        best = best_split(service, instances)
        if best.max_rps <= 0:
            raise SimulationError(
                f"no split into {hardware.columns[columns.prefill].label} and "
                f"{hardware.columns[columns.decode].label} meets tier {tier.name}, even for one "
                "request at a time. Loosen the limits of the tier, or use faster GPUs"
            )
        splits.append((service, best))
    if not splits:
        raise SimulationError("the scenario has no interactive tier to size for")
    rates = [best.max_rps for _, best in splits]
    return splits[rates.index(min(rates))]
