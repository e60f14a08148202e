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
from simulation.provisioning.stations import VISITS, replay
from simulation.provisioning.topology import shares_on_devices
from simulation.provisioning.workload import PhaseProblem, predecessors

# Seconds to hand a tensor to another GPU, besides its bytes (assumed: two launches and a rendezvous
# of a point-to-point send).
MESSAGE_S = 20e-6
MAX_VISITS = 3_000_000  # most visits of requests at stations in a replay
WANTED_REQUESTS, MIN_REQUESTS = (
    2_000,
    400,
)  # requests of a replay: wanted, and at least even if visits exceed
MIN_TURNOVERS = 4  # requests of a replay, at least this times those in flight at the latency limit
WARM_UP_SHARE = 0.1  # of requests that do not count: at the start, stations are still empty
STAGE_BATCH_FACTOR = 1.1  # largest batch of a stage over the mean batch, to keep batches spread
NO_BATCH_LIMIT = 1 << 40
CATCH_UP_FACTOR = 2.0  # most prompt tokens of a batch over the planned ones, to clear a burst


CurveKey = tuple[int, tuple[str, ...]]  # index of the parallelism, and names of operators


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in order of arrival."""

    arrival_s: FloatArray  # from the first
    isl: IntArray  # input tokens
    osl: IntArray  # output tokens
    counted: slice | None = None  # requests in the result; None: all after ``WARM_UP_SHARE``

    def until(self, end_s: float) -> Requests:
        """Return the requests that arrive up to ``end_s``."""
        count = int(np.searchsorted(self.arrival_s, end_s, side="right"))
        return Requests(self.arrival_s[:count], self.isl[:count], self.osl[:count])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StationLayout:
    """V stations, their Q replicas in order of stations, and the devices of the replicas.

    A shard is the part of a replica on one device.
    """

    curves: list[Curve]  # [V] seconds by batch
    max_batch: IntArray  # [V] largest batch, requests
    sticky: npt.NDArray[np.bool_]  # [V] whether requests stay on one replica of the station
    max_requests: IntArray  # [V] most requests on a sticky replica
    kv_capacity: FloatArray  # [Q] KV-cache capacity of a sticky replica, tokens
    hop_s: FloatArray  # [V] latency of a transfer to the next stations, seconds
    row_s: FloatArray  # [V] link seconds per prompt token (prefill) or per sequence (decode)
    edges: tuple[tuple[int, int], ...]  # pairs (before, after) of stations
    replicas: IntArray  # [V]
    replica_of_shard: IntArray
    device_of_shard: IntArray
    compute: FloatArray  # [V] share of a device's arithmetic while the station runs
    bandwidth: FloatArray  # [V] share of a device's memory bandwidth while it runs
    interference: FloatArray  # [V, V] measured slowdown of v by a running u; empty: shares are used
    devices: int
    token_budget: float = np.inf  # most prompt tokens beside ``max_batch`` sequences; inf: no limit
    visited: npt.NDArray[np.bool_] | None = None  # [V, 2] by passes of prompts, and of decodes
    service_offset: tuple[int, ...] = ()  # first station of each service, and the end; (): one

    def graph(self) -> Graph:
        """Return the arrays of the stations for compiled code."""
        count, replicas = len(self.curves), int(self.replicas.sum())
        visited = np.ones((count, 2), np.bool_) if self.visited is None else self.visited
        predecessor_count = np.zeros((count, 2), np.int64)
        for before, after in self.edges:
            predecessor_count[after] += visited[before]
        edges = sorted(self.edges)
        shards_by_replica = np.argsort(self.replica_of_shard, kind="stable")
        shards_by_device = np.argsort(self.device_of_shard, kind="stable")
        return Graph(
            curves=np.concatenate([curve.values for curve in self.curves]),
            curve_offset=_offsets([curve.values.size for curve in self.curves]),
            max_batch=self.max_batch.astype(np.int64),
            sticky=self.sticky,
            max_requests=self.max_requests.astype(np.int64),
            kv_capacity=np.ascontiguousarray(self.kv_capacity),
            hop_s=np.ascontiguousarray(self.hop_s, np.float64),
            row_s=np.ascontiguousarray(self.row_s, np.float64),
            token_budget=np.full(count, self.token_budget),
            visited=visited,
            predecessor_count=predecessor_count,
            next_offset=_offsets(np.bincount([before for before, _ in edges], minlength=count)),
            next_stations=np.array([after for _, after in edges], np.int64),
            first_replica=_offsets(self.replicas),
            station_of=np.repeat(np.arange(count), self.replicas).astype(np.int64),
            shard_offset=_offsets(np.bincount(self.replica_of_shard, minlength=replicas)),
            shard_device=self.device_of_shard[shards_by_replica].astype(np.int64),
            device_offset=_offsets(np.bincount(self.device_of_shard, minlength=self.devices)),
            device_replicas=self.replica_of_shard[shards_by_device].astype(np.int64),
            compute=np.ascontiguousarray(self.compute),
            bandwidth=np.ascontiguousarray(self.bandwidth),
            interference=self.interference,
            service_offset=np.array(self.service_offset or (0, count)),
        )


def _offsets(sizes: npt.ArrayLike) -> IntArray:
    """Return the first index of each of several concatenated arrays, and the end of the last."""
    return np.asarray(np.r_[0, np.cumsum(sizes)], np.int64)


def draw_requests(
    isl: npt.ArrayLike, osl: npt.ArrayLike, phase: PhaseProblem, *, seed: int = 0
) -> Requests:
    """Return random requests from the sample at the phase's rate, enough for one replay.

    ``isl`` and ``osl`` are the input and output tokens of the sampled requests. The number drawn is
    several times the requests in flight at the latency limit. Raises SimulationError for an empty
    sample or columns of different length.
    """
    prompts, answers = np.asarray(isl, np.int64), np.asarray(osl, np.int64)
    if not prompts.size or prompts.size != answers.size:
        raise SimulationError("A replay needs a sample of lengths, as many inputs as outputs.")
    # Passes of a request: one for a prompt, one per output token after the first for a sequence
    passes = 1.0 if phase.queues else float(np.maximum(answers - 1, 1).mean())
    needed = max(WANTED_REQUESTS, MIN_TURNOVERS * phase.problem.rate * phase.service.slo_s)
    affordable = max(MIN_REQUESTS, MAX_VISITS / (passes * len(phase.names)))
    count = int(min(needed, affordable))
    # Evenly spaced rows of the sorted sample have its lengths with less chance than random ones.
    rng = np.random.default_rng(seed)
    by_length = np.lexsort((answers, prompts))
    spaced = ((np.arange(count) + rng.uniform()) * (prompts.size / count)).astype(np.int64)
    rows = rng.permutation(by_length[np.minimum(spaced, prompts.size - 1)])
    arrival_s = np.cumsum(rng.exponential(size=count))
    arrival_s *= count / arrival_s[-1] / phase.service.requests_s  # to the exact mean rate
    return Requests(arrival_s, prompts[rows], answers[rows])


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
        requests_passes = _passes([phase], [requests], aligned=aligned, chunk=self._chunk(level))
        passes = requests_passes.passes
        final_state = replay(graph, requests_passes)
        finish_s, arrival_s = final_state.finish, requests.arrival_s
        counted = requests.counted or slice(int(WARM_UP_SHARE * finish_s.size), None)
        if phase.service.phase != "chunked":
            latency_s = (finish_s - arrival_s) / passes  # per prompt, or per token
            return _latencies(phase, latency_s[counted], final_state)
        prefilled_s = final_state.prefilled
        within_ttft = prefilled_s - arrival_s <= phase.service.ttft_s
        latency_s = (finish_s - prefilled_s) / (passes - requests_passes.chunks)
        return _latencies(phase, latency_s[counted], final_state, within_ttft[counted])

    def curve(self, parallel_index: int, operators: tuple[str, ...] = ()) -> Curve:
        """Return the seconds of a pass through operators and their collectives as a curve.

        ``operators`` are names; default: all. ``parallel_index`` is the index of the parallelism.
        Curves are cached.
        """
        if (parallel_index, operators) not in self.curves:
            phase, tp = self.phase, int(self.phase.problem.parallel[parallel_index])
            arrangement = Arrangement(tp=tp, weights=phase.weights)
            graph = operator_graph(phase.service.shape, arrangement)
            if operators:
                # Keep the chosen operators. A collective belongs to the operator before it.
                owner = {operator.name: operator.name for operator in graph.operators}
                for operator in graph.operators:
                    if isinstance(operator, Collective) and operator.axis != "encoder":
                        nearest = predecessors(graph, operator, phase.names)[0]
                        owner[operator.name] = phase.names[nearest]
                chosen = tuple(o for o in graph.operators if owner[o.name] in operators)
                graph = replace(graph, operators=chosen)
            self.curves[parallel_index, operators] = compile_graph(graph, phase.timing)
        return self.curves[parallel_index, operators]

    def _layout_of_replicas(self, plan: ReplicaPlan) -> StationLayout:
        """Return the stations of whole replicas, one per stage."""
        phase, device_bytes = self.phase, self.device_bytes
        problem, stages = phase.problem, plan.stages
        parallel_index = int(np.searchsorted(problem.parallel, plan.parallel))
        batch_index = int(np.searchsorted(problem.batches, plan.batch))
        curve = scale_curve(self.curve(parallel_index), 1.0 / stages)
        # Limits of a replica: sequences in all stages, requests of a batch, and tokens in memory
        max_sequences, max_batch, kv_tokens = NO_BATCH_LIMIT, plan.batch, np.inf
        if not phase.queues:
            max_sequences = stages * int(problem.batches[-1])
            max_batch = int(problem.batches[-1])
            if stages > 1:
                # A limit near the mean batch keeps sequences spread over the stages.
                max_batch = int(np.ceil(STAGE_BATCH_FACTOR * plan.in_flight)) + 1
            request_bytes = float(phase.kv_bytes_per_request[parallel_index])
            bytes_per_token = request_bytes / phase.service.context
            weight_bytes = float(phase.replica_bytes[batch_index, parallel_index])
            free_bytes = device_bytes * stages - weight_bytes
            kv_tokens = free_bytes / bytes_per_token if bytes_per_token > 0 else np.inf
        # Rows of a batch: prompt tokens, or sequences. The last stage sends none.
        rows = float(problem.batches[batch_index]) * (phase.service.isl if phase.queues else 1.0)
        hop_s = np.r_[np.full(stages - 1, 2 * MESSAGE_S), 0.0]
        crossing_s = float(phase.crossing_s[batch_index, parallel_index])
        row_s = np.r_[np.full(stages - 1, crossing_s / rows), 0.0]
        replicas = plan.replicas * stages
        shards = np.repeat(np.arange(replicas), plan.parallel)
        # Replicas are numbered stage by stage; each has its own devices.
        return StationLayout(
            curves=[curve] * stages,
            max_batch=np.full(stages, max_batch),
            sticky=np.ones(stages, np.bool_),
            max_requests=np.full(stages, max_sequences),
            kv_capacity=np.full(replicas, kv_tokens),
            hop_s=hop_s,
            row_s=row_s,
            edges=tuple((s, s + 1) for s in range(stages - 1)),
            replicas=np.full(stages, plan.replicas),
            replica_of_shard=shards,
            device_of_shard=np.arange(shards.size),
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
        kv_bytes = demand.kv_bytes[chosen[0], chosen[2]]  # [V] at each operator's parallelism
        sticky = (kv_bytes > 0) & (not phase.queues)
        visited = self._visited_stations(level)
        first_replica = np.r_[0, np.cumsum(plan.replicas)]  # of each station
        replica_of_shard = first_replica[placement.operator] + placement.replica
        has_cache = sticky[placement.operator]  # by shard
        tokens = self._cache_tokens(level, problem.rate, kv_bytes, has_cache, ~visited[:, 1])
        # A replica has the capacity of its shard with the least.
        kv_capacity = np.full(int(first_replica[-1]), np.inf)
        np.minimum.at(kv_capacity, replica_of_shard[has_cache], tokens[has_cache])
        hop_s, row_s = self._transfer_times(level, problem.transfer_s[chosen], visited)
        return StationLayout(
            curves=self._station_curves(level),
            max_batch=plan.batch,
            sticky=sticky,
            max_requests=np.full(len(problem.names), NO_BATCH_LIMIT),
            kv_capacity=kv_capacity,
            hop_s=hop_s,
            row_s=row_s,
            edges=problem.edges,
            replicas=plan.replicas,
            replica_of_shard=replica_of_shard,
            device_of_shard=placement.device,
            compute=packed.compute,
            bandwidth=packed.bandwidth,
            interference=packed.interference,
            devices=placement.devices,
            token_budget=CATCH_UP_FACTOR * self._chunk(level),
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
        network_factor = 1.0
        if gpu.network_bytes_s:
            network_factor = (gpu.link_bytes_s or 1.0) / gpu.network_bytes_s
        # Output to a device of the same node counts 1, to another node ``network_factor``.
        weighted_distance = to_other_device - to_other_node + to_other_node * network_factor
        # A run of layers scatters and gathers once, an operator sends once per layer.
        hops = np.full(rows.size, 2.0) if level.layer_runs is not None else phase.layers
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
        """Return which stations prompts and decodes visit, a mask ``[stations, 2]``."""
        phase = self.phase
        if phase.service.phase != "chunked":
            return np.ones((len(level.as_planned(phase).problem.names), 2), np.bool_)
        graph = operator_graph(phase.service.shape, Arrangement(weights=phase.weights))
        # The tokens that an operator computes: "prefill", "decodes", or both
        axes = np.array([graph[name].axis for name in phase.names])
        return np.stack([axes != "decodes", axes != "prefill"], axis=1)

    def _station_curves(self, level: Level) -> list[Curve]:
        """Return the iteration times of each station of a level without whole replicas.

        Each operator has a curve, times its slowdown in a share of the multiprocessors. A run of
        layers has the curve of all repeated operators, times its share of the layers.
        """
        phase, (plan, _) = self.phase, level.placed
        parallel_index = np.searchsorted(phase.problem.parallel, plan.parallel).tolist()
        if level.layer_runs is None:
            curves_alone = [
                self.curve(index, (name,))
                for index, name in zip(parallel_index, phase.names, strict=True)
            ]
            slowdown_table = level.as_planned(phase).demand.share_slowdown
            if slowdown_table is None:
                return curves_alone
            slowdowns = slowdown_table[phase.problem.indices_of(plan.batch, plan.parallel)]
            return [
                scale_curve(curve, float(slowdown))
                for curve, slowdown in zip(curves_alone, slowdowns, strict=True)
            ]
        layers_of_operator = zip(phase.names, phase.layers, strict=True)
        repeated = tuple(name for name, layers in layers_of_operator if layers > 1)
        once = tuple(name for name in phase.names if name not in repeated)
        all_layers = self.curve(parallel_index[0], repeated)
        runs = plan.replicas.size - bool(once)
        layers = int(phase.layers.max())
        edges = np.linspace(0, layers, runs + 1).round()
        curves = [scale_curve(all_layers, float(count) / layers) for count in np.diff(edges)]
        if once:  # one more station has the operators that run once, such as the output head
            curves.append(self.curve(parallel_index[0], once))
        return curves


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
    final_state = replay(replace(layout, interference=interference).graph(), requests)
    total_s = final_state.finish - requests.arrival_s
    latency_s = total_s / requests.passes  # per prompt, or per token
    counted = requests.arrival_s >= WARM_UP_SHARE * end_s
    return [
        _latencies(service.phase, latency_s[counted & (requests.service == s)], final_state)
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
    # Arrays are concatenated service by service, then put in order of arrival by ``[order]``.
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
    # The queue of each service: its first request, and the next one after each; -1: none
    next_of_service, first_of_service = np.full(order.size, -1), np.full(len(phases), -1)
    for s in range(len(phases)):
        rows = np.flatnonzero(service == s)
        next_of_service[rows[:-1]] = rows[1:]
        first_of_service[s] = rows[0] if rows.size else -1
    return Passes(
        arrival_s=arrival_s[order],
        isl=isl,
        passes=chunks + decodes,
        chunks=chunks,
        service=service,
        next_of_service=next_of_service,
        first_of_service=first_of_service,
        aligned=aligned,
        by_key=any(phase.service.order == "shortest" and phase.queues for phase in phases),
        key=isl.astype(np.float64),
    )


def _join_layouts(layouts: Sequence[StationLayout]) -> StationLayout:
    """Return the stations of several services on common devices, service by service.

    Stations and replicas are numbered through all services.
    """
    stations = np.cumsum([0, *(len(layout.curves) for layout in layouts)]).tolist()
    replicas = np.cumsum([0, *(layout.kv_capacity.size for layout in layouts)]).tolist()
    concatenated: dict[str, Any] = {
        name: np.concatenate([getattr(layout, name) for layout in layouts])
        for name in (
            "max_batch", "sticky", "max_requests", "kv_capacity", "hop_s", "row_s", "replicas",
            "device_of_shard", "compute", "bandwidth",
        )
    }  # fmt: skip
    edges, replica_of_shard = [], []
    for layout, station, replica in zip(layouts, stations[:-1], replicas[:-1], strict=True):
        edges += [(station + before, station + after) for before, after in layout.edges]
        replica_of_shard.append(replica + layout.replica_of_shard)
    return replace(
        layouts[0],
        **concatenated,
        curves=[curve for layout in layouts for curve in layout.curves],
        edges=tuple(edges),
        replica_of_shard=np.concatenate(replica_of_shard),
        visited=None,
        service_offset=tuple(stations),
    )


def _latencies(
    phase: PhaseProblem,
    sojourn_s: FloatArray,
    final_state: ReplayState,
    within_ttft: BoolArray | bool = True,
) -> ReplayedLatency:
    """Return attainment and latencies of requests that spent ``sojourn_s`` in the stations.

    NaN: never done, which counts as an infinite latency. ``within_ttft`` marks requests that kept
    the TTFT limit, if that is another one.
    """
    latency_s = np.where(np.isfinite(sojourn_s), sojourn_s + phase.service.start_s, np.inf)
    return ReplayedLatency(
        attainment=float(((latency_s <= phase.service.slo_s) & within_ttft).mean()),
        mean_s=float(latency_s.mean()),
        p50_s=float(np.quantile(latency_s, 0.5, method="lower")),
        p95_s=float(np.quantile(latency_s, 0.95, method="lower")),
        p99_s=float(np.quantile(latency_s, 0.99, method="lower")),
        requests=latency_s.size,
        visits=int(final_state.count[VISITS]),
    )


def _distances(phase: PhaseProblem, level: Level) -> tuple[FloatArray, FloatArray]:
    """Return the shares of each station's output that go to another device, and to another node.

    Every replica sends equally to every replica of the next stations.
    """
    (_, placement), problem = level.placed, level.as_planned(phase).problem
    count = len(problem.names)
    share_on_device = shares_on_devices(placement, count)
    # Sums of the columns of each node's devices
    first_devices = np.arange(0, placement.devices, phase.service.gpu.gpus_per_node)
    share_on_node = np.add.reduceat(share_on_device, first_devices, axis=1)
    # [V, V] share of a station's output that goes to each of the next stations, evenly
    sent = np.zeros((count, count))
    for u, v in problem.edges:
        sent[u, v] = 1.0 / sum(1 for sender, _ in problem.edges if sender == u)
    # The matrix products are the shares of replica pairs on the same device, and the same node.
    to_other_device = (sent * (1.0 - share_on_device @ share_on_device.T)).sum(axis=1)
    to_other_node = (sent * (1.0 - share_on_node @ share_on_node.T)).sum(axis=1)
    return to_other_device, to_other_node
