"""Replay the same requests through the plans of every level, to compare plan and result.

Request lengths are drawn evenly from a sample. Arrivals are Poisson at the load's rate.
``LevelReplay`` sends them through a level as a graph of ``stations``. Each whole replica is one
station, or one per stage of a pipeline. Runs of layers and operators are stations with replicas on
the devices of their placement. Tensors between devices use NVLink within a node and the network
between nodes. Each hop adds ``MESSAGE_S``. Operators with chunked prefill compute prompts in the
chunks of their plan. Their requests must keep both limits: TTFT and TBT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.performance.compiled_graph import compile_graph
from simulation.performance.curves import Curve, scale_curve
from simulation.performance.graph import operator_graph
from simulation.performance.specs import Arrangement
from simulation.performance.work import Collective
from simulation.provisioning.interference import joint_interference
from simulation.provisioning.level import Level, ReplayedLatency
from simulation.provisioning.placement import packing_plan
from simulation.provisioning.replicas import ReplicaPlan
from simulation.provisioning.station_state import Graph, Passes, ReplayState
from simulation.provisioning.stations import VISITED, replay
from simulation.provisioning.topology import shares_on_devices
from simulation.provisioning.workload import PhaseProblem, predecessors

# Seconds to hand a tensor to another GPU, besides its bytes (assumed: two launches and a rendezvous
# of a point-to-point send).
MESSAGE_S = 20e-6
VISITS = 3_000_000  # most visits of requests at stations in a replay
REQUESTS, FEWEST = 2_000, 400  # requests of a replay: wanted, and at least even if visits exceed
TURNOVERS = 4  # requests of a replay, at least this times those in flight at the latency limit
WARM_UP = 0.1  # share of requests that do not count: at the start, stations are still empty
SPARE = 1.1  # largest batch of a pipeline stage over the mean batch, so that batches stay spread
NO_BATCH_LIMIT = 1 << 40
CATCH_UP = 2.0  # most prompt tokens of a batch over the planned ones, to catch up after a burst


CurveKey = tuple[int, tuple[str, ...]]  # index of the parallelism, and names of operators


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in order of arrival."""

    arrival_s: FloatArray  # from the first
    isl: IntArray  # input tokens
    osl: IntArray  # output tokens
    counted: slice | None = None  # requests in the result; None: all after the ``WARM_UP`` share

    def until(self, end_s: float) -> Requests:
        """Return the requests that arrive up to ``end_s``."""
        count = int(np.searchsorted(self.arrival_s, end_s, side="right"))
        return Requests(self.arrival_s[:count], self.isl[:count], self.osl[:count])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StationLayout:
    """V stations, their Q replicas in order of stations, and the devices of the replicas."""

    curves: list[Curve]  # [V] seconds by batch
    batch: IntArray  # [V] largest batch, requests
    sticky: npt.NDArray[np.bool_]  # [V] whether requests stay on one replica of the station
    places: IntArray  # [V] most requests on a sticky replica
    room: FloatArray  # [Q] KV-cache capacity of a sticky replica, tokens
    hop_s: FloatArray  # [V] latency of a transfer to the next stations, seconds
    row_s: FloatArray  # [V] link seconds per prompt token (prefill) or per sequence (decode)
    edges: tuple[tuple[int, int], ...]  # pairs (before, after) of stations
    replicas: IntArray  # [V]
    of_shard: IntArray  # replica of each shard
    device: IntArray  # device of each shard
    compute: FloatArray  # [V] share of a device's arithmetic while the station runs
    bandwidth: FloatArray  # [V] share of a device's memory bandwidth while it runs
    interference: FloatArray  # [V, V] measured slowdown of v by a running u; empty: shares are used
    devices: int
    budget: float = np.inf  # most prompt tokens beside ``batch`` sequences; inf: no chunks
    visited: npt.NDArray[np.bool_] | None = None  # [V, 2] by passes of prompts, and of decodes
    span: tuple[int, ...] = ()  # first station of each service, and the end; default: one service

    def graph(self) -> Graph:
        """Return the arrays of the stations for compiled code."""
        count, total = len(self.curves), int(self.replicas.sum())
        visited = np.ones((count, 2), np.bool_) if self.visited is None else self.visited
        before = np.zeros((count, 2), np.int64)
        for u, w in self.edges:
            before[w] += visited[u]
        pairs = sorted(self.edges)
        by_replica = np.argsort(self.of_shard, kind="stable")
        by_device = np.argsort(self.device, kind="stable")
        return Graph(
            curves=np.concatenate([curve.values for curve in self.curves]),
            curve_offset=_offsets([curve.values.size for curve in self.curves]),
            max_batch=self.batch.astype(np.int64),
            sticky=self.sticky,
            max_requests=self.places.astype(np.int64),
            kv_capacity=np.ascontiguousarray(self.room),
            hop_s=np.ascontiguousarray(self.hop_s, np.float64),
            row_s=np.ascontiguousarray(self.row_s, np.float64),
            token_budget=np.full(count, self.budget),
            visited=visited,
            predecessor_count=before,
            next_offset=_offsets(np.bincount([u for u, _ in pairs], minlength=count)),
            next_stations=np.array([w for _, w in pairs], np.int64),
            first_replica=_offsets(self.replicas),
            station_of=np.repeat(np.arange(count), self.replicas).astype(np.int64),
            shard_offset=_offsets(np.bincount(self.of_shard, minlength=total)),
            shard_device=self.device[by_replica].astype(np.int64),
            device_offset=_offsets(np.bincount(self.device, minlength=self.devices)),
            device_replicas=self.of_shard[by_device].astype(np.int64),
            compute=np.ascontiguousarray(self.compute),
            bandwidth=np.ascontiguousarray(self.bandwidth),
            interference=self.interference,
            service_offset=np.array(self.span or (0, count)),
        )


def _offsets(sizes: npt.ArrayLike) -> IntArray:
    """Return the first index of each of several concatenated arrays, and the end of the last."""
    return np.asarray(np.r_[0, np.cumsum(sizes)], np.int64)


def draw_requests(
    isl: npt.ArrayLike, osl: npt.ArrayLike, phase: PhaseProblem, *, seed: int = 0
) -> Requests:
    """Return random requests from the sample at the phase's rate, enough for one replay.

    The number is several times the requests in flight at the latency limit. Raises SimulationError
    for an empty sample or columns of different length.
    """
    prompts, answers = (np.asarray(column, np.int64) for column in (isl, osl))
    if not prompts.size or prompts.size != answers.size:
        raise SimulationError("A replay needs a sample of lengths, as many inputs as outputs.")
    passes = 1.0 if phase.queues else float(np.maximum(answers - 1, 1).mean())
    needed = max(REQUESTS, TURNOVERS * phase.problem.rate * phase.service.slo_s)
    count = int(min(needed, max(FEWEST, VISITS / (passes * len(phase.names)))))
    # Evenly spaced rows of the sorted sample have its lengths with less chance than random ones.
    rng = np.random.default_rng(seed)
    ordered = np.lexsort((answers, prompts))
    spaced = ((np.arange(count) + rng.uniform()) * (prompts.size / count)).astype(np.int64)
    rows = rng.permutation(ordered[np.minimum(spaced, prompts.size - 1)])
    arrival = np.cumsum(rng.exponential(size=count))
    arrival *= count / arrival[-1] / phase.service.requests_s
    return Requests(arrival, prompts[rows], answers[rows])


def can_replay(phase: PhaseProblem) -> bool:
    """Return whether a phase can be replayed: only without images."""
    return not phase.service.image_tokens


class LevelReplay:
    """Replays the same requests with plans of any level of a phase."""

    def __init__(self, phase: PhaseProblem, draws: Sequence[Requests], device_bytes: float) -> None:
        """Store several ``draws`` of requests, so that no lucky draw confirms a plan."""
        self.phase, self.draws, self.device_bytes = phase, tuple(draws), device_bytes
        self.curves: dict[CurveKey, Curve] = {}  # may be shared by replays of one model

    def latency_of(self, level: Level) -> ReplayedLatency:
        """Replay ``level`` and return the latencies of the draw with the lowest attainment."""
        if level.replicas is None:
            graph = self.layout_of_placement(level).graph()
        else:
            graph = self._layout_of_replicas(level.replicas).graph()
        latencies = [self._latency_of_draw(level, graph, draw) for draw in self.draws]
        return min(latencies, key=lambda replayed: (replayed.attainment, -replayed.p95_s))

    def _latency_of_draw(self, level: Level, graph: Graph, requests: Requests) -> ReplayedLatency:
        """Return the latencies of requests that pass through ``graph``, the stations of ``level``.

        Latencies of chunked phases are those between tokens, and their attainment counts requests
        that keep the TTFT limit too.
        """
        phase, aligned = self.phase, level.replicas is not None
        passes = _passes([phase], [requests], aligned=aligned, chunk=self._chunk(level))
        run = replay(graph, passes)
        counted = requests.counted or slice(int(WARM_UP * run.finish.size), None)
        if phase.service.phase != "chunked":
            latency_s = (
                run.finish - requests.arrival_s
            ) / passes.passes  # per prompt, or per token
            return _latencies(phase, latency_s[counted], run)
        in_time = run.prefilled - requests.arrival_s <= phase.service.ttft_s
        latency_s = (run.finish - run.prefilled) / (passes.passes - passes.chunks)
        return _latencies(phase, latency_s[counted], run, in_time[counted])

    def curve(self, parallel: int, names: tuple[str, ...] = ()) -> Curve:
        """Return the seconds of a pass through operators and their collectives as a curve.

        ``names`` are the operators; default: all. ``parallel`` is the index of the parallelism.
        Curves are cached.
        """
        if (parallel, names) not in self.curves:
            phase, tp = self.phase, int(self.phase.problem.parallel[parallel])
            arrangement = Arrangement(tp=tp, weights=phase.weights)
            graph = operator_graph(phase.service.shape, arrangement)
            if names:
                computed_by = {operator.name: operator.name for operator in graph.operators}
                for operator in graph.operators:
                    if isinstance(operator, Collective) and operator.axis != "encoder":
                        owner = predecessors(graph, operator, phase.names)[0]
                        computed_by[operator.name] = phase.names[owner]
                chosen = tuple(o for o in graph.operators if computed_by[o.name] in names)
                graph = replace(graph, operators=chosen)
            self.curves[parallel, names] = compile_graph(graph, phase.timing)
        return self.curves[parallel, names]

    def _layout_of_replicas(self, plan: ReplicaPlan) -> StationLayout:
        """Return the stations of whole replicas, one per stage."""
        phase, device_bytes = self.phase, self.device_bytes
        problem, stages = phase.problem, plan.stages
        parallel = int(np.searchsorted(problem.parallel, plan.parallel))  # index, as the next one
        batch_size = int(np.searchsorted(problem.batches, plan.batch))
        curve = scale_curve(self.curve(parallel), 1.0 / stages)
        # Limits of a replica: sequences in all stages, requests of a batch, and tokens in memory
        max_sequences, batch, kv_tokens = NO_BATCH_LIMIT, plan.batch, np.inf
        if not phase.queues:
            max_sequences = stages * int(problem.batches[-1])
            batch = int(problem.batches[-1])
            if stages > 1:
                # A limit near the mean batch keeps sequences spread over the stages.
                batch = int(np.ceil(SPARE * plan.in_flight)) + 1
            bytes_per_token = float(phase.kv_bytes_per_request[parallel]) / phase.service.context
            free_bytes = device_bytes * stages - float(phase.replica_bytes[batch_size, parallel])
            kv_tokens = free_bytes / bytes_per_token if bytes_per_token > 0 else np.inf
        rows = float(problem.batches[batch_size]) * (phase.service.isl if phase.queues else 1.0)
        # The last stage sends nothing.
        hop_s = np.r_[np.full(stages - 1, 2 * MESSAGE_S), 0.0]
        crossing_s = float(phase.crossing_s[batch_size, parallel])
        row_s = np.r_[np.full(stages - 1, crossing_s / rows), 0.0]
        replicas = plan.replicas * stages
        shards = np.repeat(np.arange(replicas), plan.parallel)
        # Replicas are numbered stage by stage; each has its own devices.
        return StationLayout(
            curves=[curve] * stages,
            batch=np.full(stages, batch),
            sticky=np.ones(stages, np.bool_),
            places=np.full(stages, max_sequences),
            room=np.full(replicas, kv_tokens),
            hop_s=hop_s,
            row_s=row_s,
            edges=tuple((s, s + 1) for s in range(stages - 1)),
            replicas=np.full(stages, plan.replicas),
            of_shard=shards,
            device=np.arange(shards.size),
            compute=np.zeros(stages),
            bandwidth=np.zeros(stages),
            interference=np.empty((0, 0)),
            devices=shards.size,
        )

    def layout_of_placement(self, level: Level) -> StationLayout:
        """Return the stations of placed operators or layers."""
        phase, (plan, placement) = self.phase, level.placed
        as_planned = level.as_planned(phase)
        problem, demand = as_planned.problem, as_planned.demand
        chosen = problem.indices_of(plan.batch, plan.parallel)
        packed = packing_plan(problem, demand, plan)
        kv_bytes = demand.kv_bytes[chosen[0], chosen[2]]
        sticky = (kv_bytes > 0) & (not phase.queues)
        visited = self._visited_stations(level)
        first = np.r_[0, np.cumsum(plan.replicas)]
        of_shard = first[placement.operator] + placement.replica
        has_cache = sticky[placement.operator]  # by shard
        room = np.full(int(first[-1]), np.inf)
        tokens = self._cache_tokens(level, problem.rate, kv_bytes, has_cache, ~visited[:, 1])
        np.minimum.at(room, of_shard[has_cache], tokens[has_cache])
        hop_s, row_s = self._transfer_times(level, problem.transfer_s[chosen], visited)
        return StationLayout(
            curves=self._station_curves(level),
            batch=plan.batch,
            sticky=sticky,
            places=np.full(len(problem.names), NO_BATCH_LIMIT),
            room=room,
            hop_s=hop_s,
            row_s=row_s,
            edges=problem.edges,
            replicas=plan.replicas,
            of_shard=of_shard,
            device=placement.device,
            compute=packed.compute,
            bandwidth=packed.bandwidth,
            interference=packed.interference,
            devices=placement.devices,
            budget=CATCH_UP * self._chunk(level),
            visited=visited,
        )

    def _transfer_times(
        self, level: Level, transfer_s: FloatArray, visited: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the latency of each station's transfers, and the link's seconds per row, ``[V]``.

        A row is a prompt token, or a sequence. ``transfer_s [V]`` are the seconds of a whole batch.
        ``visited [V, 2]`` tells which stations prompts and decodes visit.
        """
        phase, (plan, _) = self.phase, level.placed
        rows = plan.batch * (phase.service.isl if phase.queues else 1.0)
        if phase.service.phase == "chunked":
            rows = visited @ np.array([self._chunk(level), float(plan.batch.max())])
        to_other_device, to_other_node = _distances(phase, level)
        gpu = phase.service.gpu
        # Seconds on the network between nodes over those on the link within a node
        slower = (gpu.link_bytes_s or 1.0) / (gpu.network_bytes_s or gpu.link_bytes_s or 1.0)
        weighted_distance = to_other_device - to_other_node + to_other_node * slower
        # A run of layers scatters and gathers once, an operator sends once per layer.
        hops = np.full(rows.size, 2.0) if level.cut is not None else phase.layers
        return hops * MESSAGE_S * to_other_device, transfer_s / rows * weighted_distance

    def _cache_tokens(
        self, level: Level, rate: float, kv_bytes: FloatArray, has_cache: BoolArray,
        of_prompt: BoolArray,
    ) -> FloatArray:  # fmt: skip
        """Return the tokens of KV cache that fit in each shard, ``[S]``; valid where ``has_cache``.

        They fill its planned cache, and an equal part of the spare memory of its device. ``kv_bytes
        [V]`` is the planned cache of all replicas of an operator. ``of_prompt [V]`` marks operators
        that work on prompts only. ``rate`` is in sequence iterations/s.
        """
        service, (plan, placement) = self.phase.service, level.placed
        spare_bytes = self.device_bytes - placement.memory_bytes
        caches_on_device = np.bincount(placement.device[has_cache], minlength=placement.devices)
        with np.errstate(divide="ignore", invalid="ignore"):
            in_flight = rate * level.latency_s  # sequences, by Little's law
            bytes_per_token = kv_bytes / in_flight / service.context
            if service.phase == "chunked":
                # Attention of prompts is planned for prompts in flight as long as the TTFT limit.
                shortened = level.latency_s / service.time_budget_s
                prompts = service.requests_s * service.ttft_s * shortened
                bytes_per_token[of_prompt] = kv_bytes[of_prompt] / prompts / service.isl
            planned_bytes = (kv_bytes / plan.replicas)[placement.operator]
            shard_bytes = planned_bytes + (spare_bytes / caches_on_device)[placement.device]
            return np.asarray(shard_bytes / bytes_per_token[placement.operator], np.float64)

    def _chunk(self, level: Level) -> float:
        """Return the prompt tokens in a batch of a chunked plan; inf for other phases.

        In steady state, one prompt starts for each sequence that ends.
        """
        service = self.phase.service
        if service.phase != "chunked" or level.plan is None:
            return float(np.inf)
        return float(level.plan.batch.max()) * service.isl / service.osl

    def _visited_stations(self, level: Level) -> BoolArray:
        """Return which stations prompts and decodes visit, ``[stations, 2]``."""
        phase = self.phase
        if phase.service.phase != "chunked":
            return np.ones((len(level.as_planned(phase).problem.names), 2), np.bool_)
        graph = operator_graph(phase.service.shape, Arrangement(weights=phase.weights))
        axes = np.array([graph[name].axis for name in phase.names])
        return np.stack([axes != "decodes", axes != "prefill"], axis=1)

    def _station_curves(self, level: Level) -> list[Curve]:
        """Return the iteration times of each station of a level without whole replicas.

        Each operator has a curve, times its slowdown in a share of the multiprocessors. A run of
        layers has the curve of all repeated operators, times its share of the layers.
        """
        phase, (plan, _) = self.phase, level.placed
        j = np.searchsorted(phase.problem.parallel, plan.parallel)
        if level.cut is None:
            curves_alone = [self.curve(int(j[v]), (name,)) for v, name in enumerate(phase.names)]
            slowdown_table = level.as_planned(phase).demand.slower
            if slowdown_table is None:
                return curves_alone
            slowdowns = slowdown_table[phase.problem.indices_of(plan.batch, plan.parallel)]
            return [
                scale_curve(curve, float(slow))
                for curve, slow in zip(curves_alone, slowdowns, strict=True)
            ]
        repeated = tuple(n for n, count in zip(phase.names, phase.layers, strict=True) if count > 1)
        once = tuple(n for n in phase.names if n not in repeated)
        all_layers = self.curve(int(j[0]), repeated)
        runs = plan.replicas.size - bool(once)
        layers = int(phase.layers.max())
        edges = np.linspace(0, layers, runs + 1).round()
        curves = [scale_curve(all_layers, float(count) / layers) for count in np.diff(edges)]
        # One more station has the operators that run once, such as the output head.
        return curves + ([self.curve(int(j[0]), once)] if once else [])


def replay_together(
    replays: Sequence[LevelReplay], levels: Sequence[Level]
) -> list[ReplayedLatency]:
    """Return the latencies of each of several services whose operators share devices.

    There is one replay and one level per service. A level has the placement of its operators on the
    common devices. The first draw of requests of each service is used, up to the end of the
    shortest one.
    """
    services = list(zip(replays, levels, strict=True))
    layout = _join_layouts([service.layout_of_placement(level) for service, level in services])
    demands = [level.as_planned(service.phase).demand for service, level in services]
    interference = joint_interference(demands, layout.compute, layout.bandwidth)
    end_s = min(float(service.draws[0].arrival_s[-1]) for service in replays)
    draws = [service.draws[0].until(end_s) for service in replays]
    # Operators have different numbers of replicas, so a request may change its replica number.
    requests = _passes([service.phase for service in replays], draws, aligned=False)
    run = replay(replace(layout, interference=interference).graph(), requests)
    latency_s = (run.finish - requests.arrival_s) / requests.passes  # per prompt, or per token
    counted = requests.arrival_s >= WARM_UP * end_s
    return [
        _latencies(service.phase, latency_s[counted & (requests.service == s)], run)
        for s, service in enumerate(replays)
    ]


def _passes(
    phases: Sequence[PhaseProblem], requests: Sequence[Requests], *, aligned: bool,
    chunk: float = np.inf,
) -> Passes:  # fmt: skip
    """Return the requests of all services in order of arrival, with their passes.

    A prompt makes one pass through the stations, a sequence one per token after the first. A
    chunked request makes one pass per ``chunk`` tokens of its prompt, and then those of a sequence.
    If ``aligned``, a request uses the replica with the same number at every station.
    """
    service = np.repeat(np.arange(len(phases)), [draw.arrival_s.size for draw in requests])
    arrival_s = np.concatenate([draw.arrival_s for draw in requests])
    order = np.argsort(arrival_s, kind="stable")
    isl = np.concatenate([draw.isl for draw in requests])[order]
    prompt_passes, decode_passes = [], []  # by service
    for phase, draw in zip(phases, requests, strict=True):
        has_prompts, has_decodes = phase.service.phase != "decode", not phase.queues
        chunks_of_prompt = np.maximum(np.ceil(draw.isl / chunk), 1).astype(np.int64)
        prompt_passes.append(chunks_of_prompt * has_prompts)
        decode_passes.append(np.maximum(draw.osl - 1, 1) * has_decodes)
    chunks, decodes = np.concatenate(prompt_passes)[order], np.concatenate(decode_passes)[order]
    service = service[order]
    # The queue of each service: its first request, and the next one after each request
    following, heads = np.full(order.size, -1), np.full(len(phases), -1)
    for s in range(len(phases)):
        rows = np.flatnonzero(service == s)
        following[rows[:-1]] = rows[1:]
        heads[s] = rows[0] if rows.size else -1
    shortest = any(phase.service.order == "shortest" and phase.queues for phase in phases)
    return Passes(
        arrival_s[order], isl, chunks + decodes, chunks, service, following, heads, aligned,
        shortest, isl.astype(np.float64),
    )  # fmt: skip


def _join_layouts(layouts: Sequence[StationLayout]) -> StationLayout:
    """Return the stations of several services on common devices, service by service."""
    stations = np.cumsum([0, *(len(layout.curves) for layout in layouts)]).tolist()
    replicas = np.cumsum([0, *(layout.room.size for layout in layouts)]).tolist()
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(layout, name) for layout in layouts])
        for name in (
            "batch", "sticky", "places", "room", "hop_s", "row_s", "replicas", "device", "compute",
            "bandwidth",
        )
    }  # fmt: skip
    # Stations and replicas are numbered through all services.
    edges = [
        (first + u, first + v)
        for first, layout in zip(stations[:-1], layouts, strict=True)
        for u, v in layout.edges
    ]
    of_shard = [
        first + layout.of_shard for first, layout in zip(replicas[:-1], layouts, strict=True)
    ]
    return replace(
        layouts[0],
        **joined,
        curves=[curve for layout in layouts for curve in layout.curves],
        edges=tuple(edges),
        of_shard=np.concatenate(of_shard),
        visited=None,
        span=tuple(stations),
    )


def _latencies(
    phase: PhaseProblem, sojourn_s: FloatArray, run: ReplayState, in_time: BoolArray | bool = True
) -> ReplayedLatency:
    """Return attainment and latencies of requests that spent ``sojourn_s`` in the stations.

    NaN: never done, which counts as an infinite latency. ``in_time`` marks requests that kept their
    other limit. ``run`` is the final state of the replay.
    """
    latency_s = np.where(np.isfinite(sojourn_s), sojourn_s + phase.service.start_s, np.inf)
    return ReplayedLatency(
        attainment=float(((latency_s <= phase.service.slo_s) & in_time).mean()),
        mean_s=float(latency_s.mean()),
        p50_s=float(np.quantile(latency_s, 0.5, method="lower")),
        p95_s=float(np.quantile(latency_s, 0.95, method="lower")),
        p99_s=float(np.quantile(latency_s, 0.99, method="lower")),
        requests=latency_s.size,
        visits=int(run.count[VISITED]),
    )


def _distances(phase: PhaseProblem, level: Level) -> tuple[FloatArray, FloatArray]:
    """Return the shares of each station's output that go to another device, and to another node.

    Every replica sends equally to every replica of the next stations.
    """
    (_, placement), problem = level.placed, level.as_planned(phase).problem
    count = len(problem.names)
    share_on_device = shares_on_devices(placement, count)
    first_of_nodes = np.arange(0, placement.devices, phase.service.gpu.gpus_per_node)
    share_on_node = np.add.reduceat(share_on_device, first_of_nodes, axis=1)
    # [V, V] share of a station's output that goes to each of the next stations, evenly
    sent = np.zeros((count, count))
    for u, v in problem.edges:
        sent[u, v] = 1.0 / sum(1 for sender, _ in problem.edges if sender == u)
    to_other_device = (sent * (1.0 - share_on_device @ share_on_device.T)).sum(axis=1)
    to_other_node = (sent * (1.0 - share_on_node @ share_on_node.T)).sum(axis=1)
    return to_other_device, to_other_node
