"""Plan a block of operators by several methods, with SM shares (A5, equation 6).

Some operators of a phase form a separate problem. Operators between them are dropped. The limit
is the block's share of a pass. Each operator may run at a few batches, GPUs per replica and shares
of the SMs.

A place combines GPUs and share. Its price is the product, in ``unit`` parts of a GPU. Slots
(equation 8) then count parts of GPUs, and every method plans places without change. The slowdown by
a share is measured if a file has it, else it comes from ``latency_at_share``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.performance.curves import evaluate, scaled
from simulation.performance.efficiency import KINDS
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.frontier import frontiers
from simulation.provisioning.greedy import greedy_plan
from simulation.provisioning.interference import latency_at_share, measured_at_share
from simulation.provisioning.level import ReplayedLatency
from simulation.provisioning.levels import PRINTED, by_algorithm1, fewest_replicas
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, sojourns
from simulation.provisioning.replay import (
    MESSAGE_S,
    NO_BATCH_LIMIT,
    LevelReplay,
    replay_requests,
    station_graph,
)
from simulation.provisioning.workload import PhaseProblem, pass_seconds

MAX_REPLICAS = 64  # of an operator


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of each operator of a block, ascending; ``shares`` in percent of the SMs."""

    batches: tuple[int, ...] = (1, 8, 64)
    gpus: tuple[int, ...] = (1, 2)
    shares: tuple[int, ...] = (100,)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block as a scaling problem.

    ``problem`` has places as its parallelisms; ``gpus`` and ``share`` describe each place. One of
    its slots is ``unit`` of a GPU. ``table`` has its sojourns, inf where a replica does not fit in
    memory.
    """

    phase: PhaseProblem
    operators: IntArray  # [V] indices in the phase
    problem: OperatorProblem
    gpus: IntArray  # [P]
    share: FloatArray  # [P] share of the SMs
    unit: float
    slower: FloatArray  # [V, B, P] slowdown against all SMs
    least: IntArray  # [V, B, P] fewest replicas that fit in memory
    sojourn_s: FloatArray  # [V, B, P, R]
    table: FloatArray  # [V, B, P, R]
    plans: float  # number of possible plans

    def chosen(
        self, plan: OperatorPlan, choice_indices: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return the indices ``[V]`` of a plan's choices in arrays of the phase."""
        full = self.phase.problem
        b = np.searchsorted(full.batches, plan.batch)
        return self.operators, b, np.searchsorted(full.parallel, self.gpus[choice_indices])


def length_factors(phase: PhaseProblem, replay: LevelReplay) -> FloatArray:
    """Return the mean time of each operator over its time at the mean prompt length, ``[V]``.

    Attention is convex in length: long prompts cost more than short ones save. The result is 1 for
    decodes, because batches even out lengths.
    """
    if not phase.queues:
        return np.ones(len(phase.names))
    isl = np.concatenate([draw.isl for draw in replay.draws]).astype(np.float64)
    tokens = np.append(isl, isl.mean())
    ratios = []
    for name in phase.names:
        seconds = evaluate(replay.curve(0, (name,)), 0.0, 0.0, tokens, tokens**2 / 2.0)
        ratios.append(float(seconds[:-1].mean() / seconds[-1]))
    return np.array(ratios)


def block_of(
    phase: PhaseProblem,
    names: Sequence[str],
    choices: Choices,
    device_bytes: float,
    length_factors: FloatArray | None = None,
) -> Block:
    """Build the block of operators ``names`` of ``phase``, with latencies times ``length_factors``.

    Raises SimulationError for unknown options and for an infeasible load.
    """
    problem = phase.problem
    operators = tuple(v for v, name in enumerate(problem.names) if name in names)
    b = np.flatnonzero(np.isin(problem.batches, choices.batches))
    j = np.flatnonzero(np.isin(problem.parallel, choices.gpus))
    if not operators or not b.size or not j.size:
        raise SimulationError(
            f"A block needs operators ({', '.join(problem.names)}), batches "
            f"({', '.join(map(str, problem.batches))}) and GPUs of a replica "
            f"({', '.join(map(str, problem.parallel))}) that this phase has."
        )
    percent = gcd(*choices.shares)
    distinct_choices = sorted(
        ((int(p), int(share)) for p in j for share in choices.shares),
        key=lambda place: (int(problem.parallel[place[0]]) * place[1], place),
    )
    spread = np.array([p for p, _ in distinct_choices])
    share = np.array([percents for _, percents in distinct_choices]) / 100.0
    chosen = np.ix_(np.array(operators), b, spread)
    slower = _slowdown_by_share(phase, operators, chosen, share)
    longer = (
        np.ones((len(operators), 1, 1))
        if length_factors is None
        else length_factors[list(operators), None, None]
    )
    smaller = OperatorProblem(
        names=tuple(problem.names[v] for v in operators),
        edges=_precedence_among(problem, operators),
        batches=problem.batches[b],
        parallel=np.rint(problem.parallel[spread] * share * 100.0 / percent).astype(np.int64),
        latency_s=problem.latency_s[chosen] * slower * longer,
        transfer_s=problem.transfer_s[chosen],
        rate=problem.rate,
        slo_s=problem.slo_s * _block_share(problem, operators),
        max_replicas=MAX_REPLICAS,
    )
    # No method may choose replicas that exceed the memory, so they get inf below.
    sojourn_s, fewest = sojourns(smaller), fewest_replicas(phase, device_bytes)[chosen]
    table = np.where(np.arange(1, MAX_REPLICAS + 1) >= fewest[..., None], sojourn_s, np.inf)
    return Block(
        phase=phase,
        operators=np.array(operators),
        problem=smaller,
        gpus=problem.parallel[spread],
        share=share,
        unit=percent / 100.0,
        slower=slower,
        least=fewest,
        sojourn_s=sojourn_s,
        table=table,
        plans=_count_plans(smaller, table),
    )


def _slowdown_by_share(
    phase: PhaseProblem, operators: tuple[int, ...], chosen: tuple[IntArray, ...], share: FloatArray
) -> FloatArray:
    """Return the slowdown with each share against all SMs."""
    demand, alone = phase.demand, phase.problem.latency_s[chosen]
    times = latency_at_share(alone, demand.compute[chosen], demand.bandwidth[chosen], share) / alone
    if demand.table is not None and demand.kinds is not None:
        for row, v in enumerate(operators):
            kind = KINDS[int(demand.kinds[v].argmax())]
            measured = measured_at_share(demand.table, kind, share)
            times[row] = np.where(np.isfinite(measured), measured, times[row])
    return np.asarray(times)


def _precedence_among(
    problem: OperatorProblem, operators: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Return the precedence among ``operators``; edges skip the others."""
    edges = set()
    for index, v in enumerate(operators):
        waiting, seen = [v], set()
        while waiting:
            after = waiting.pop()
            for u in (u for u, w in problem.edges if w == after and u not in seen):
                seen.add(u)
                if u in operators:
                    edges.add((operators.index(u), index))
                else:
                    waiting.append(u)
    return tuple(sorted(edges))


def _block_share(problem: OperatorProblem, operators: tuple[int, ...]) -> float:
    """Return the block's share of a pass at the smallest batch on the fewest GPUs."""
    only = np.zeros_like(problem.latency_s)
    only[list(operators)] = problem.latency_s[list(operators)]
    by_batch = pass_seconds(problem.latency_s, problem.edges)
    return float(pass_seconds(only, problem.edges)[0, 0] / by_batch[0, 0])


def _count_plans(problem: OperatorProblem, table: FloatArray) -> float:
    """Return the number of possible plans; raise SimulationError if an operator has none."""
    counts = np.isfinite(table).sum(axis=(1, 2, 3)).astype(np.float64)  # [V]
    lacking = [problem.names[v] for v in np.flatnonzero(counts == 0)]
    if lacking:
        raise SimulationError(
            f"No {MAX_REPLICAS} replicas of {' and '.join(lacking)} keep up with this load at the "
            "batches, GPUs and shares of the block. Give more of them."
        )
    return float(counts.prod())


@dataclass(frozen=True, slots=True, eq=False)
class BlockPlan:
    """Plan of a block by one method, and the place index of each operator.

    The plan keeps its part of the limit on average. It is None if the method found none.
    """

    method: str
    plan: OperatorPlan | None
    places: IntArray  # [V]

    @property
    def key(self) -> bytes:
        """Return a key that is equal for equal plans."""
        if self.plan is None:
            return b""
        return np.stack([self.plan.replicas, self.plan.batch, self.places]).tobytes()


def plans_of(block: Block, epsilon: float = 0.0) -> tuple[BlockPlan, ...]:
    """Plan by Algorithm 1 in both readings, our greedy and the exact method."""
    problem, table = block.problem, block.table
    options = frontiers(problem, block.least)
    plan_by: dict[str, OperatorPlan | None] = {}
    for name in ("algorithm1", PRINTED):
        plans = by_algorithm1(problem, name, epsilon, table)
        plan_by[name] = min(plans, key=lambda plan: plan.slots, default=None)
    feasible = all(option.slots.size for option in options)
    plan_by["greedy"] = greedy_plan(problem, options) if feasible else None
    plan_by["exact"] = exact_plan(problem, options) if feasible else None
    return tuple(_block_plan(block, name, plan) for name, plan in plan_by.items())


def _block_plan(block: Block, method: str, plan: OperatorPlan | None) -> BlockPlan:
    """Convert a plan; sojourns tell apart places of equal price (half of two GPUs, all of one)."""
    problem = block.problem
    if plan is None or not plan.feasible:
        return BlockPlan(method, None, np.zeros(0, np.int64))
    every = np.arange(len(problem.names))
    b = np.searchsorted(problem.batches, plan.batch)
    distance = np.abs(block.sojourn_s[every, b, :, plan.replicas - 1] - plan.sojourn_s[:, None])
    distance[problem.parallel != plan.parallel[:, None]] = np.inf
    choice_indices = distance.argmin(axis=1)
    if (plan.replicas < block.least[every, b, choice_indices]).any():
        return BlockPlan(
            method, None, np.zeros(0, np.int64)
        )  # does not fit: Algorithm 1 as printed ignores memory
    return BlockPlan(method, plan, choice_indices)


def pack_shards(
    block: Block, choice: BlockPlan, device_bytes: float
) -> tuple[IntArray, IntArray, int]:
    """Pack shards first fit, largest first; return replica and device of each, and device count.

    A device must have the SM shares (equation 7), the memory, and the bandwidth while all shards
    run.
    """
    plan, phase = choice.plan, block.phase
    assert plan is not None
    chosen = block.chosen(plan, choice.places)
    takes = np.stack(
        [
            block.share[choice.places],
            phase.demand.shard_bytes(*chosen, plan.replicas) / device_bytes,
            bandwidth_shares(block, choice),
        ],
        axis=1,
    )
    first = np.r_[0, np.cumsum(plan.replicas)]
    left = np.empty((0, takes.shape[1]))  # [D, 3] free share of each device
    rows: list[tuple[int, int]] = []
    for v in np.argsort(-takes.max(axis=1), kind="stable"):
        for replica in range(int(plan.replicas[v])):
            needs = int(block.gpus[choice.places[v]])
            on = np.flatnonzero((left >= takes[v] - 1e-9).all(axis=1))[:needs]
            lacking = needs - on.size
            on = np.r_[on, np.arange(len(left), len(left) + lacking)]
            left = np.concatenate([left, np.ones((lacking, takes.shape[1]))])
            left[on] -= takes[v]
            rows += [(int(first[v]) + replica, int(d)) for d in on]
    shards = np.array(rows, np.int64)
    return shards[:, 0], shards[:, 1], len(left)


def bandwidth_shares(block: Block, choice: BlockPlan) -> FloatArray:
    """Return the share of a device's memory bandwidth per running operator, ``[V]``."""
    plan = choice.plan
    assert plan is not None
    v, b, j = block.chosen(plan, choice.places)
    batches = np.searchsorted(block.problem.batches, plan.batch)
    return np.asarray(
        block.phase.demand.bandwidth[v, b, j]
        / block.slower[np.arange(v.size), batches, choice.places]
    )


def replay_block(
    block: Block, choice: BlockPlan, replay: LevelReplay
) -> tuple[ReplayedLatency, int]:
    """Replay requests through a plan of the block alone; return results and device count.

    SM shares are reserved, so arithmetic is not shared.
    """
    plan, phase, problem = choice.plan, block.phase, block.problem
    assert plan is not None
    v, _, j = block.chosen(plan, choice.places)
    chosen = np.arange(v.size), np.searchsorted(problem.batches, plan.batch), choice.places
    of_shard, device, devices = pack_shards(block, choice, replay.device_bytes)
    rows = plan.batch * (phase.service.isl if phase.queues else 1.0)
    kept = np.zeros(v.size) if phase.demand.kept_bytes is None else phase.demand.kept_bytes[v, j]
    count = v.size
    graph = station_graph(
        curves=[
            scaled(replay.curve(int(j[i]), (problem.names[i],)), float(block.slower[chosen][i]))
            for i in range(count)
        ],
        batch=plan.batch,
        sticky=(kept > 0) & (not phase.queues),
        places=np.full(count, NO_BATCH_LIMIT),
        room=np.full(int(plan.replicas.sum()), np.inf),
        hop_s=np.asarray(phase.layers[v] * MESSAGE_S, np.float64),
        row_s=problem.transfer_s[chosen] / rows,
        edges=problem.edges,
        replicas=plan.replicas,
        of_shard=of_shard,
        device=device,
        compute=np.zeros(count),
        bandwidth=bandwidth_shares(block, choice),
        beside=np.empty((0, 0)),
        devices=devices,
    )
    alone = replace(phase, service=replace(phase.service, slo_s=problem.slo_s, start_s=0.0))
    latencies = [
        replay_requests(alone, graph, devices, draw, aligned=False) for draw in replay.draws
    ]
    return min(
        latencies, key=lambda replayed_once: (replayed_once.attainment, -replayed_once.p95_s)
    ), devices
