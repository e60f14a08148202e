"""Convert a model's operator graph to the scaling problem of one phase.

Prefill and decode are separate problems. In prefill each request is one pass through the operators,
in decode each token is. The time of a tensor-parallel collective is added to the operator before
it. Consecutive operators may run on different GPUs, so their tensors cross the link once per layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.performance.efficiency import bandwidth_of, kind_of, peak_flops
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.power import PowerModel
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape
from simulation.performance.work import Attention, Collective, Iteration, Operator, iteration
from simulation.provisioning.energy import PhasePower, dynamic_w, operator_watts
from simulation.provisioning.interference import (
    GEMM_MEMORY_BOUND,
    SHARED_KINDS,
    Demand,
    InterferenceTable,
)
from simulation.provisioning.problem import OperatorProblem
from simulation.provisioning.timing import OperatorTiming

Timing = Callable[[Operator, Iteration], FloatArray]
EVERY = slice(None)
SHORTEST_S = 1e-9
Phase = Literal["prefill", "decode", "chunked"]  # chunked: iterations that prefill and decode
Order = Literal["fcfs", "shortest"]


@dataclass(frozen=True, slots=True)
class PhaseLoad:
    """The load on one phase of a model: requests, lengths and the latency limit."""

    shape: ModelShape
    gpu: GpuSpec
    phase: Phase
    requests_s: float
    isl: float  # input tokens per request; for prefill, only those that are not in a prefix cache
    osl: float  # output tokens per request
    slo_s: float  # TTFT limit for prefill, TBT limit for decode and chunked
    image_tokens: float = 0.0  # tokens per request for the encoder of a vision-language model
    images: float = 1.0  # images per request; patches attend to patches of the same image
    ttft_s: float = 0.0  # chunked only: longest time that a prompt is in flight
    start_s: float = 0.0  # part of the TTFT before the first iteration, without GPU memory
    cached: float = 0.0  # prefill only: input tokens per request in a prefix cache
    order: Order = "fcfs"  # order in which waiting prompts get a replica

    @property
    def time_budget_s(self) -> float:
        """Return the seconds left for passes and queues; nearly 0 if ``start_s`` uses them up."""
        return max(self.slo_s - self.start_s, SHORTEST_S)

    @property
    def rate(self) -> float:
        """Return arrivals at the operators per second: requests, or iterations of sequences."""
        return self.requests_s * (1.0 if self.phase == "prefill" else self.osl)

    @property
    def context(self) -> float:
        """Return the mean tokens of KV cache of a sequence in this phase."""
        return self.isl + (self.cached if self.phase == "prefill" else self.osl / 2.0)

    def iteration(self, batch: FloatArray) -> Iteration:
        """Return one iteration of ``batch`` requests or sequences."""
        if self.phase == "decode":
            return iteration(decodes=batch, decode_context=batch * self.context)
        # Chunked, steady state: one prompt begins per sequence that ends, so 1 / osl of a prompt
        # per decoded token.
        prompts = batch if self.phase == "prefill" else batch / self.osl
        decodes = np.zeros_like(batch) if self.phase == "prefill" else batch
        image_tokens = prompts * self.image_tokens
        mean_attended = self.isl / 2.0 + self.cached  # tokens that a prompt token attends to
        return iteration(
            decodes=decodes,
            decode_context=decodes * self.context,
            prefill_tokens=prompts * self.isl,
            prefill_pairs=prompts * self.isl * mean_attended,
            encoder_tokens=image_tokens,
            encoder_pairs=image_tokens * self.image_tokens / self.images,
        )

    def kv_tokens_in_flight(self, operator: Attention) -> float:
        """Return the tokens in the KV cache that ``operator`` reads, over all requests in flight.

        By Little's law, the requests are their rate times their time in flight, which is assumed to
        be the latency limit. In chunked iterations, attention of prompts reads only the prompts
        that are not done. A sliding window limits the tokens of each request.
        """
        window = operator.window or np.inf
        if self.phase == "chunked" and operator.axis != "decodes":
            return self.requests_s * self.ttft_s * min(self.isl, window)
        return self.rate * self.time_budget_s * min(self.context, window)


@dataclass(frozen=True, slots=True, eq=False)
class PhaseProblem:
    """One phase of a service as arrays: its operators, and whole replicas.

    ``problem`` has the times of operators, ``demand`` their use of devices. Axes: V operators, B
    batches, P parallelisms.
    """

    service: PhaseLoad
    problem: OperatorProblem
    demand: Demand
    replica_s: FloatArray  # [B, P] seconds of a pass through a whole replica, without transfers
    replica_bytes: FloatArray  # [B, P] memory on each GPU of a replica
    kv_bytes: FloatArray  # [P] KV cache in flight per GPU, all replicas together
    reserve_s: float  # length of the passes that ``kv_bytes`` assumes, seconds
    power: PhasePower
    layers: IntArray  # [V] layers that run the operator
    # [2, V, B, P] share of the operator's time from measured kernels: within the measured range,
    # and extrapolated. The rest is modelled.
    measured: FloatArray
    names: tuple[str, ...]  # of the operators, even if ``problem`` has runs of layers
    timing: Timing
    weights: str

    @property
    def crossing_s(self) -> FloatArray:
        """Return the seconds to send a batch to the next run of layers, ``[B, P]``.

        It is sent by one scatter and one gather.
        """
        repeated = np.flatnonzero(self.layers > 1)
        last = int(repeated[-1]) if repeated.size else 0
        return np.asarray(2.0 * self.problem.transfer_s[last] / self.layers[last], np.float64)

    @property
    def queues(self) -> bool:
        """Return whether passes queue for whole replicas; decoding sequences stay on theirs."""
        return self.service.phase == "prefill"

    @property
    def kv_bytes_per_request(self) -> FloatArray:
        """Return the bytes of KV cache per GPU of one request or sequence in flight, ``[P]``."""
        return np.asarray(self.kv_bytes / (self.problem.rate * self.reserve_s), np.float64)


def phase_problem(
    service: PhaseLoad,
    timing: Timing,
    *,
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    parallel: Sequence[int] = (1, 2, 4, 8),
    weights: str = "bf16",
    power: PowerModel | None = None,
    interference: InterferenceTable | None = None,
) -> PhaseProblem:
    """Return the time, memory and power of each operator of ``service``, by batch and parallelism.

    Operators without work in this phase are omitted. ``timing`` gives the seconds of an operator
    call. ``power`` gives its watts. Without it, an operator draws the GPU's power in this phase
    times the share of arithmetic or bandwidth that it uses, whichever is larger. The GPU's power
    limit caps both. Shares are relative to the peak that kernels reach if ``timing`` knows it, else
    to the published peak. The KV cache assumes that each request stays for the whole latency limit;
    ``reserve_kv_cache`` computes it for shorter passes. ``interference`` gives measured slowdowns
    in place of the physical model. Raises SimulationError if the GPU has no link speed.
    """
    gpu = service.gpu
    graphs = [operator_graph(service.shape, Arrangement(tp=p, weights=weights)) for p in parallel]
    iterations = service.iteration(np.asarray(batches, np.float64))
    names = _operator_names(graphs[0], iterations, timing)
    arrays = _Arrays.zeros(len(names), len(batches), len(parallel))
    floor_w = gpu.idle_w
    if power is not None:
        floor_w = max(gpu.idle_w, power.floor * (gpu.tdp_w or 0.0))
    for j, graph in enumerate(graphs):
        for v, name in enumerate(names):
            operator = graph[name]
            arrays.fill(v, j, operator, iterations, service, timing)
            if power is not None:
                call_s = arrays.latency_s[v, :, j] / operator.count
                drawn_w = operator_watts(power, gpu, operator, iterations, call_s)
                arrays.active_w[v, :, j] = np.maximum(drawn_w - floor_w, 0.0)
        _add_collectives(
            arrays.latency_s[:, :, j], arrays.measured_s[:, :, :, j], graph, names, timing,
            iterations,
        )  # fmt: skip
    _mark_memory_bound(arrays.kinds, arrays.bandwidth_share > arrays.compute_share)
    active_w = arrays.active_w
    if power is None:
        used_share = np.maximum(arrays.compute_share, arrays.bandwidth_share)
        active_w = dynamic_w(gpu, service.phase) * used_share
    board_power_share = np.zeros_like(active_w)
    if gpu.tdp_w:
        active_w = np.minimum(active_w, gpu.tdp_w - floor_w)
        board_power_share = active_w / (gpu.tdp_w - floor_w)
    problem = OperatorProblem(
        names=names,
        edges=_edges(graphs[0], names),
        batches=np.asarray(batches, np.int64),
        parallel=np.asarray(parallel, np.int64),
        latency_s=arrays.latency_s,
        transfer_s=arrays.transfer_s,
        rate=service.rate,
        slo_s=service.time_budget_s,
    )
    return PhaseProblem(
        service=service,
        problem=problem,
        demand=Demand(
            arrays.resident_bytes, arrays.compute_share, arrays.bandwidth_share, arrays.kv_bytes,
            arrays.kinds, interference, board_power_share,
        ),
        replica_s=arrays.latency_s.sum(axis=0),
        replica_bytes=arrays.resident_bytes.sum(axis=0),
        kv_bytes=arrays.kv_bytes.sum(axis=0),
        reserve_s=service.time_budget_s,
        power=PhasePower(gpu.idle_w, floor_w, active_w),
        layers=arrays.layers,
        measured=arrays.measured_s / arrays.latency_s,
        names=names,
        timing=timing,
        weights=weights,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Arrays:
    """Times, memory and power of operators, ``[V, B, P]`` (see ``PhaseProblem``) unless stated."""

    latency_s: FloatArray
    transfer_s: FloatArray
    resident_bytes: FloatArray  # weights and transient memory
    compute_share: FloatArray  # of the arithmetic that kernels reach
    bandwidth_share: FloatArray  # of the bandwidth that kernels reach
    active_w: FloatArray  # power above the floor
    kv_bytes: FloatArray  # [V, P]
    kinds: FloatArray  # [V, K] by SHARED_KINDS
    layers: IntArray  # [V]
    measured_s: FloatArray  # [2, V, B, P] from measured kernels, and extrapolated

    @classmethod
    def zeros(cls, operators: int, batches: int, parallel: int) -> Self:
        """Return arrays to fill in."""
        shape = (operators, batches, parallel)
        return cls(
            latency_s=np.zeros(shape),
            transfer_s=np.zeros(shape),
            resident_bytes=np.zeros(shape),
            compute_share=np.zeros(shape),
            bandwidth_share=np.zeros(shape),
            active_w=np.zeros(shape),
            kv_bytes=np.zeros((operators, parallel)),
            kinds=np.zeros((operators, len(SHARED_KINDS))),
            layers=np.ones(operators, np.int64),
            measured_s=np.zeros((2, *shape)),
        )

    def fill(
        self,
        v: int,
        j: int,
        operator: Operator,
        iteration: Iteration,
        service: PhaseLoad,
        timing: Timing,
    ) -> None:
        """Fill in operator ``v`` at the parallelism with index ``j``, except its power.

        Raises SimulationError if the GPU has no link speed.
        """
        if not service.gpu.link_bytes_s:
            raise SimulationError(
                f"{service.gpu.name} has no published link speed, which handing tensors between "
                "GPUs needs. Add link_bytes_s to it."
            )
        count, work = operator.count, operator.work(iteration)
        seconds = count * timing(operator, iteration)
        self.latency_s[v, :, j] = seconds
        self.transfer_s[v, :, j] = count * work.output_bytes / service.gpu.link_bytes_s
        weight_bytes, traffic_bytes = count * operator.memory_bytes, count * work.memory_bytes
        self.resident_bytes[v, :, j] = weight_bytes + operator.transient_bytes(iteration)
        flops_s, bytes_s = _reached_speeds(timing, operator, service.gpu)
        self.compute_share[v, :, j] = np.minimum(count * work.flops / flops_s / seconds, 1.0)
        self.bandwidth_share[v, :, j] = np.minimum(traffic_bytes / bytes_s / seconds, 1.0)
        self.layers[v] = count
        self.kinds[v] = np.array(SHARED_KINDS) == _interference_kind(operator)
        _count_measured(self.measured_s[:, v, :, j], seconds, timing, operator, iteration)
        if isinstance(operator, Attention):
            token_bytes = count * operator.kv_row_bytes
            self.kv_bytes[v, j] = service.kv_tokens_in_flight(operator) * token_bytes


def _add_collectives(
    latency_s: FloatArray, measured_s: FloatArray, graph: OperatorGraph, names: tuple[str, ...],
    timing: Timing, iteration: Iteration,
) -> None:  # fmt: skip
    """Add the seconds of each collective to those of the operator whose output it transfers.

    ``latency_s [V, B]`` and ``measured_s [2, V, B]`` are changed in place.
    """
    for collective in graph.operators:
        if not isinstance(collective, Collective):
            continue
        seconds = collective.count * timing(collective, iteration)
        if seconds.any():  # no time for encoder collectives without images
            owner = owner_of(graph, collective, names)
            latency_s[owner] += seconds
            _count_measured(measured_s[:, owner], seconds, timing, collective, iteration)


def _mark_memory_bound(kinds: FloatArray, more_traffic: BoolArray) -> None:
    """Change the kind of matrix products to the memory-bound one if most choices wait for memory.

    ``kinds [V, K]`` are shares by ``SHARED_KINDS``, changed in place. ``more_traffic [V, B, P]`` is
    True where an operator uses more of the bandwidth than of the arithmetic.
    """
    gemm, memory_bound_gemm = SHARED_KINDS.index("gemm"), SHARED_KINDS.index(GEMM_MEMORY_BOUND)
    memory_bound = more_traffic.mean(axis=(1, 2)) > 0.5
    kinds[memory_bound, memory_bound_gemm] = kinds[memory_bound, gemm]
    kinds[memory_bound, gemm] = 0.0


def with_max_replicas(phase: PhaseProblem, max_replicas: int) -> PhaseProblem:
    """Return ``phase`` with at most ``max_replicas`` replicas of an operator."""
    return replace(phase, problem=replace(phase.problem, max_replicas=max_replicas))


def _reached_speeds(timing: Timing, operator: Operator, gpu: GpuSpec) -> tuple[float, float]:
    """Return the FLOP/s and bytes/s that kernels of ``operator`` reach on the GPU."""
    shares = timing.reached_shares(operator) if isinstance(timing, OperatorTiming) else (1.0, 1.0)
    return shares[0] * peak_flops(operator, gpu), shares[1] * bandwidth_of(gpu)


def _count_measured(
    into: FloatArray, seconds: FloatArray, timing: Timing, operator: Operator, iteration: Iteration
) -> None:
    """Add ``seconds [B]`` to row 0 of ``into [2, B]`` if measured, or to row 1 if extrapolated.

    Modelled calls add nothing.
    """
    if isinstance(timing, OperatorTiming):
        weight = timing.measurement_weight(operator, iteration)
        into[0] += np.where(weight == 1.0, seconds, 0.0)
        into[1] += np.where(weight == 0.5, seconds, 0.0)


def _interference_kind(operator: Operator) -> str:
    """Return the operator's kind in an interference table; latent attention counts as attention."""
    kind = kind_of(operator)
    return "attention_decode" if kind == "latent_decode" else kind


def at_rate(phase: PhaseProblem, requests_s: float) -> PhaseProblem:
    """Return ``phase`` at another request rate: times stay, the KV cache in flight is scaled."""
    service = replace(phase.service, requests_s=requests_s)
    problem = replace(phase.problem, rate=service.rate)
    scaled = _scale_kv_cache(phase, service.rate / phase.problem.rate)
    return replace(scaled, service=service, problem=problem)


def reserve_kv_cache(phase: PhaseProblem, seconds: float) -> PhaseProblem:
    """Return ``phase`` with the KV cache of requests whose passes take at most ``seconds``."""
    return replace(_scale_kv_cache(phase, seconds / phase.reserve_s), reserve_s=seconds)


def _scale_kv_cache(phase: PhaseProblem, factor: float) -> PhaseProblem:
    """Return ``phase`` with ``factor`` times the bytes of KV cache."""
    demand = replace(phase.demand, kv_bytes=phase.demand.kv_bytes * factor)
    return replace(phase, demand=demand, kv_bytes=phase.kv_bytes * factor)


def with_some_choices(
    phase: PhaseProblem, batches: slice, parallel: slice = EVERY, *, slo_s: float | None = None
) -> PhaseProblem:
    """Return ``phase`` with only some of its batches and parallelisms, selected by index.

    ``slo_s`` replaces the latency limit, if given.
    """
    problem, demand, selection = phase.problem, phase.demand, (slice(None), batches, parallel)
    return replace(
        phase,
        problem=replace(
            problem,
            batches=problem.batches[batches],
            parallel=problem.parallel[parallel],
            latency_s=problem.latency_s[selection],
            transfer_s=problem.transfer_s[selection],
            slo_s=problem.slo_s if slo_s is None else slo_s,
        ),
        demand=replace(
            demand,
            memory_bytes=demand.memory_bytes[selection],
            compute=demand.compute[selection],
            bandwidth=demand.bandwidth[selection],
            kv_bytes=demand.kv_bytes[:, parallel],
            board=demand.board[selection],
        ),
        replica_s=phase.replica_s[batches, parallel],
        replica_bytes=phase.replica_bytes[batches, parallel],
        kv_bytes=phase.kv_bytes[parallel],
        power=replace(phase.power, above_w=phase.power.above_w[selection]),
        measured=phase.measured[:, *selection],
    )


def _operator_names(graph: OperatorGraph, iteration: Iteration, timing: Timing) -> tuple[str, ...]:
    """Return the names of the operators that have work in these iterations."""
    return tuple(
        operator.name
        for operator in graph.operators
        if not isinstance(operator, Collective) and (timing(operator, iteration) > 0).all()
    )


def owner_of(graph: OperatorGraph, collective: Operator, names: tuple[str, ...]) -> int:
    """Return the index in ``names`` of the operator that produces the input of ``collective``.

    Raises SimulationError if there is none.
    """
    for index in _predecessors(graph, collective, names):
        return index
    raise SimulationError(f"Nothing comes before {collective.name}.")


def _edges(graph: OperatorGraph, names: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return the edges of the operator graph as pairs (before, after) of indices into ``names``."""
    before = (_predecessors(graph, graph[name], names) for name in names)
    return tuple(sorted({(u, v) for v, indices in enumerate(before) for u in indices}))


def _predecessors(
    graph: OperatorGraph, operator: Operator, names: tuple[str, ...]
) -> Iterator[int]:
    """Yield the indices in ``names`` of the operators before ``operator``, the nearest first.

    An operator that is not in ``names`` is replaced by those before it.
    """
    to_visit = list(operator.after)
    while to_visit:
        name = to_visit.pop(0)
        if name in names:
            yield names.index(name)
        else:
            to_visit += graph[name].after


def pass_seconds(latency_s: FloatArray, edges: tuple[tuple[int, int], ...]) -> FloatArray:
    """Return the seconds of a pass on the critical path without waits or transfers, ``[B, P]``."""
    ends = np.zeros_like(latency_s)
    # Operators are in topological order.
    for v in range(len(latency_s)):
        ends_before = [ends[u] for u, w in edges if w == v]
        ends[v] = latency_s[v] + (np.max(ends_before, axis=0) if ends_before else 0.0)
    return np.asarray(ends.max(axis=0), np.float64)
