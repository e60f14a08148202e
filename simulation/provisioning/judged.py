"""Levels that their replay confirms: what a plan promises on average is not what requests get.

The latencies that plans are made by are means of queues with full batches. Here every plan is
replayed with the same requests (``replay``), and taken only if as many of them are within the limit
as are asked for. A plan that misses is made again for a tighter limit, whole replicas also for more
load, until one keeps it; a finer level that is not confirmed, or whose requests wait longer than
those of the coarser one, stands as that one does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulation.provisioning.level import FALLEN_BACK, Level
from simulation.provisioning.levels import fewest_of_load, level_of
from simulation.provisioning.replay import Replay
from simulation.provisioning.replicas import ReplicaPlan, under, whole_replicas
from simulation.provisioning.workload import PhaseProblem, at_rate

SAFER = (
    (1.0, 1.0), (1.0, 1.05), (1.0, 1.1), (1.0, 1.2), (1.0, 1.35), (1.0, 1.7),
    (0.7, 1.0), (0.7, 1.1), (0.7, 1.35), (0.5, 1.0), (0.5, 1.2), (0.5, 1.7), (0.5, 2.5),
    (0.35, 1.0), (0.35, 1.35), (0.25, 1.0), (0.25, 1.35), (0.25, 2.0),
    (0.15, 1.0), (0.15, 2.0), (0.08, 1.0), (0.08, 2.0),
)  # fmt: skip
"""Shares of the limit, and times the load, that whole replicas are planned for."""
TIGHTER = (1.0, 0.7, 0.5)  # shares of the limit that finer levels are planned for
AS_LONG = 1.001  # times the requests' latency of a coarser level that a finer one may take


def whole(phase: PhaseProblem, replay: Replay, attainment: float) -> Level | None:
    """The fewest whole replicas that keep the limit for ``attainment`` of the requests; where none
    of those planned does, the ones that come nearest. None where a pass alone takes too long."""
    room = replay.device_bytes
    plans: dict[tuple[int, ...], ReplicaPlan] = {}
    for share, times in SAFER:
        safer = at_rate(phase, phase.service.requests_s * times)
        safer = replace(safer, problem=replace(safer.problem, slo_s=share * phase.problem.slo_s))
        planned = whole_replicas(safer, room)
        plan = None if planned is None else under(phase, planned)
        if plan is not None:
            plans[plan.devices, plan.replicas, plan.parallel, plan.batch] = plan
    best: Level | None = None
    for key in sorted(plans):
        level = level_of(phase, plans[key])
        came = replay.of(level)
        if best is None or best.replayed is None or came.attainment > best.replayed.attainment:
            best = replace(level, replayed=came)
        if came.attainment >= attainment:
            break
    if best is None:
        return None
    return replace(best, least_devices=min(fewest_of_load(phase, room), best.devices))


def finer(
    name: str,
    phase: PhaseProblem,
    replay: Replay,
    attainment: float,
    coarser: list[Level],
    plan: Callable[[PhaseProblem], Level | None],
) -> Level | None:
    """A level that ``plan`` makes within a limit, if requests confirm it; else the coarser one."""
    standing = min(coarser, key=lambda level: (level.devices, level.power_w), default=None)
    trade: Level | None = None
    for share in TIGHTER:
        problem = replace(phase.problem, slo_s=share * phase.problem.slo_s)
        found = plan(replace(phase, problem=problem))
        if found is None:
            break
        if found.trade is not None and trade is None:
            came = replay.of(found.trade)
            if came.attainment >= attainment:
                trade = replace(found.trade, replayed=came)
        if found.method.startswith(tuple(FALLEN_BACK.values())):
            break
        came = replay.of(found)
        longest = min((one.replayed.p95_s for one in coarser if one.replayed), default=came.p95_s)
        if came.attainment >= attainment and came.p95_s <= AS_LONG * longest:
            return replace(found, slo_s=phase.problem.slo_s, replayed=came, trade=trade)
    if standing is None:
        return None
    stands_as = "module" if standing.replicas is None else "model"
    return replace(standing, level=name, method=FALLEN_BACK[stands_as], gap_slots=None, trade=trade)
