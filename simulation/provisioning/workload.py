"""Convert a model's operator graph to the scaling problem of one phase.

Prefill and decode are separate problems. In prefill each request is one pass through the operators,
in decode each token is. The time of a tensor-parallel collective is added to the operator before
it. Consecutive operators may run on different GPUs, so their tensors cross the link once per layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.performance.efficiency import bandwidth_of, kind_of, peak_flops
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.power import PowerModel
from simulation.performance.roofline import OperatorTiming
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape
from simulation.performance.work import Attention, Collective, Iteration, Operator, iteration
from simulation.provisioning.energy import PhasePower, operator_watts
from simulation.provisioning.interference import (
    GEMM_MEMORY_BOUND,
    SHARED_KINDS,
    Demand,
    InterferenceTable,
)
from simulation.provisioning.problem import OperatorProblem

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
    if not gpu.link_bytes_s:
        raise SimulationError(
            f"{gpu.name} has no published link speed, which handing tensors between GPUs needs. "
            "Add link_bytes_s to it."
        )
    graphs = [operator_graph(service.shape, Arrangement(tp=p, weights=weights)) for p in parallel]
    iterations = service.iteration(np.asarray(batches, np.float64))
    names = _operator_names(graphs[0], iterations, timing)
    operators = [graphs[0][name] for name in names]
    floor_w = gpu.idle_w
    if power is not None:
        floor_w = max(gpu.idle_w, power.floor * (gpu.tdp_w or 0.0))
    work = _work_by_choice(graphs, names, iterations, service, timing, power, floor_w)
    # Share of the board power above the floor.
    board = work.above_w / (gpu.tdp_w - floor_w) if gpu.tdp_w else np.zeros_like(work.above_w)
    kinds = _interference_kinds(operators, work.bandwidth > work.compute)
    problem = OperatorProblem(
        names=names,
        edges=_edges(graphs[0], names),
        batches=np.asarray(batches, np.int64),
        parallel=np.asarray(parallel, np.int64),
        latency_s=work.latency_s,
        transfer_s=work.transfer_s,
        rate=service.rate,
        slo_s=service.time_budget_s,
    )
    return PhaseProblem(
        service=service,
        problem=problem,
        demand=Demand(
            memory_bytes=work.memory_bytes, compute=work.compute, bandwidth=work.bandwidth,
            kv_bytes=work.kv_bytes, kinds=kinds, table=interference, board=board,
        ),
        replica_s=work.latency_s.sum(axis=0),
        replica_bytes=work.memory_bytes.sum(axis=0),
        kv_bytes=work.kv_bytes.sum(axis=0),
        reserve_s=service.time_budget_s,
        power=PhasePower(gpu.idle_w, floor_w, work.above_w),
        layers=np.array([operator.count for operator in operators], np.int64),
        measured=np.moveaxis(work.measured_s, 1, 0) / work.latency_s,  # [2, V, B, P] shares
        names=names,
        timing=timing,
        weights=weights,
    )  # fmt: skip


class _OperatorWork(NamedTuple):
    """Time and memory of all layers of one operator at one parallelism, ``[B]`` by batch.

    For all operators and parallelisms, each array has two more axes: ``[V, ..., P]``.
    """

    latency_s: FloatArray
    transfer_s: FloatArray
    memory_bytes: FloatArray  # weights and transient memory
    compute: FloatArray  # share of the arithmetic that kernels reach
    bandwidth: FloatArray  # share of the bandwidth that kernels reach
    measured_s: FloatArray  # [2, B] of ``latency_s``: from measured kernels, and extrapolated
    above_w: FloatArray  # power above the floor
    kv_bytes: FloatArray  # KV cache in flight; one number


def _work_by_choice(
    graphs: Sequence[OperatorGraph],
    names: tuple[str, ...],
    iteration: Iteration,
    service: PhaseLoad,
    timing: Timing,
    power: PowerModel | None,
    floor_w: float,
) -> _OperatorWork:
    """Return the work of the operators ``names`` by parallelism, with that of collectives.

    ``graphs`` has the operator graph at each parallelism. For ``floor_w`` see ``_operator_work``.
    """
    by_parallelism = []
    for graph in graphs:
        of_operators = [
            _operator_work(graph[name], iteration, service, timing, power, floor_w)
            for name in names
        ]
        # One array [V, ...] per field, from those of each operator
        work = _OperatorWork(*(np.stack(field) for field in zip(*of_operators, strict=True)))
        _add_collectives(work.latency_s, work.measured_s, graph, names, timing, iteration)
        by_parallelism.append(work)
    # One array [V, ..., P] per field, from those of each parallelism
    fields = zip(*by_parallelism, strict=True)
    return _OperatorWork(
        *(np.ascontiguousarray(np.stack(field, axis=-1), np.float64) for field in fields)
    )


def _operator_work(
    operator: Operator,
    iteration: Iteration,
    service: PhaseLoad,
    timing: Timing,
    power: PowerModel | None,
    floor_w: float,
) -> _OperatorWork:
    """Return the work of ``operator`` in the iterations, one for each batch size.

    ``floor_w`` is the power while any kernel runs. ``power`` None: see ``phase_problem``. Raises
    AssertionError if the GPU has no link speed.
    """
    gpu, count, work = service.gpu, operator.count, operator.work(iteration)
    assert gpu.link_bytes_s
    seconds = count * timing(operator, iteration)
    measured_s = np.zeros((2, seconds.size))
    _count_measured(measured_s, seconds, timing, operator, iteration)
    # Shares of the published FLOP/s and bytes/s that kernels of this kind reach
    flops_share, bytes_share = 1.0, 1.0
    if isinstance(timing, OperatorTiming):
        flops_share, bytes_share = timing.reached_shares(operator)
    flops_s, bytes_s = flops_share * peak_flops(operator, gpu), bytes_share * bandwidth_of(gpu)
    compute = np.minimum(count * work.flops / flops_s / seconds, 1.0)
    bandwidth = np.minimum(count * work.memory_bytes / bytes_s / seconds, 1.0)
    if power is None:
        active_w = gpu.prefill_w if service.phase == "prefill" else gpu.decode_w
        above_w = max(active_w - gpu.idle_w, 0.0) * np.maximum(compute, bandwidth)
    else:
        drawn_w = operator_watts(power, gpu, operator, iteration, seconds / count)
        above_w = np.maximum(drawn_w - floor_w, 0.0)
    if gpu.tdp_w:
        above_w = np.minimum(above_w, gpu.tdp_w - floor_w)
    kv_bytes = 0.0
    if isinstance(operator, Attention):
        kv_bytes = service.kv_tokens_in_flight(operator) * (count * operator.kv_row_bytes)
    return _OperatorWork(
        latency_s=seconds,
        transfer_s=count * work.output_bytes / gpu.link_bytes_s,
        memory_bytes=count * operator.memory_bytes + operator.transient_bytes(iteration),
        compute=compute,
        bandwidth=bandwidth,
        measured_s=measured_s,
        above_w=above_w,
        kv_bytes=np.asarray(kv_bytes, np.float64),
    )


def _add_collectives(
    latency_s: FloatArray, measured_s: FloatArray, graph: OperatorGraph, names: tuple[str, ...],
    timing: Timing, iteration: Iteration,
) -> None:  # fmt: skip
    """Add the seconds of each collective to those of the operator whose output it transfers.

    ``latency_s [V, B]`` and ``measured_s [V, 2, B]`` are changed in place.
    """
    for collective in graph.operators:
        if not isinstance(collective, Collective):
            continue
        seconds = collective.count * timing(collective, iteration)
        if seconds.any():  # no time for encoder collectives without images
            owner = predecessors(graph, collective, names)[0]
            latency_s[owner] += seconds
            _count_measured(measured_s[owner], seconds, timing, collective, iteration)


def _interference_kinds(operators: Sequence[Operator], more_traffic: BoolArray) -> FloatArray:
    """Return the kind of each operator in an interference table, ``[V, K]`` with 1 for its kind.

    Latent attention counts as attention. A matrix product is memory bound if more than half of
    ``more_traffic [V, B, P]`` are True: it uses more of the bandwidth than of the arithmetic.
    """
    kinds = np.zeros((len(operators), len(SHARED_KINDS)))
    for v, operator in enumerate(operators):
        kind = kind_of(operator)
        if kind == "latent_decode":
            kind = "attention_decode"
        elif kind == "gemm" and more_traffic[v].mean() > 0.5:
            kind = GEMM_MEMORY_BOUND
        kinds[v, SHARED_KINDS.index(kind)] = 1.0
    return kinds


def with_max_replicas(phase: PhaseProblem, max_replicas: int) -> PhaseProblem:
    """Return ``phase`` with at most ``max_replicas`` replicas of an operator."""
    return replace(phase, problem=replace(phase.problem, max_replicas=max_replicas))


def _count_measured(
    into: FloatArray, seconds: FloatArray, timing: Timing, operator: Operator, iteration: Iteration
) -> None:
    """Add ``seconds [B]`` to row 0 of ``into [2, B]`` if measured, or to row 1 if extrapolated.

    Modelled calls add nothing.
    """
    if not isinstance(timing, OperatorTiming):
        return
    measured = timing.is_measured(operator, iteration)
    if measured is not None:
        into[0] += np.where(measured, seconds, 0.0)
        into[1] += np.where(measured, 0.0, seconds)


def with_slo(phase: PhaseProblem, slo_s: float) -> PhaseProblem:
    """Return ``phase`` with another latency limit for its operators."""
    return replace(phase, problem=replace(phase.problem, slo_s=slo_s))


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


def with_some_choices(phase: PhaseProblem, batches: slice, parallel: slice = EVERY) -> PhaseProblem:
    """Return ``phase`` with only some of its batches and parallelisms, selected by index."""
    problem, demand, selection = phase.problem, phase.demand, (EVERY, batches, parallel)
    return replace(
        phase,
        problem=replace(
            problem,
            batches=problem.batches[batches],
            parallel=problem.parallel[parallel],
            latency_s=problem.latency_s[selection],
            transfer_s=problem.transfer_s[selection],
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
    """Return the names of the operators that have work in these iterations, without collectives."""
    return tuple(
        operator.name
        for operator in graph.operators
        if not isinstance(operator, Collective) and (timing(operator, iteration) > 0).all()
    )


def _edges(graph: OperatorGraph, names: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return the edges of the operator graph as pairs (before, after) of indices into ``names``."""
    edges = set()
    for after, name in enumerate(names):
        edges |= {(before, after) for before in predecessors(graph, graph[name], names)}
    return tuple(sorted(edges))


def predecessors(graph: OperatorGraph, operator: Operator, names: tuple[str, ...]) -> list[int]:
    """Return the indices in ``names`` of the operators before ``operator``, the nearest first.

    An operator that is not in ``names`` is replaced by those before it.
    """
    indices, to_visit = [], list(operator.after)
    while to_visit:
        name = to_visit.pop(0)
        if name in names:
            indices.append(names.index(name))
        else:
            to_visit += graph[name].after
    return indices
