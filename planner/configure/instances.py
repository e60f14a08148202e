"""Every instance that a model can be served on: GPU type, arrangement, precision, engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.catalogue.efficiency import efficiencies
from planner.catalogue.estimating import estimate_fit
from planner.catalogue.serving import (
    MAX_BATCH,
    MAX_BATCH_TOKENS,
    room,
    sequence_s,
    starts_after,
    typical_context,
)
from planner.configure.asked import HourPrice
from planner.scenario.measured import Move, deployed, moves
from simulation.errors import SimulationError
from simulation.fleet import KvLink
from simulation.performance.adjusted import AdjustedProfile, adjusted
from simulation.performance.curves import slower_by_sequence
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.estimate.own import Times
from simulation.performance.graph import operator_graph
from simulation.performance.memory import (
    MEMORY_SHARE,
    OVERHEAD_BYTES,
    gpu_weight_bytes,
    kv_bytes_per_token,
)
from simulation.performance.roofline import roofline_curve
from simulation.performance.specs import BYTES, Arrangement, GpuSpec, ModelShape, Provenance
from simulation.search.space import arrangements
from simulation.search.values import Instance, Mode

KV_CACHE = "bf16"  # the engines' default
PRECISIONS = ("bf16", "fp8", "fp4")  # that weights are brought to, from the most bits to the fewest
# Engines that run on a family of GPUs; all of them on NVIDIA's.
RUNS_ON = {"cdna3": ("vllm", "sglang"), "gaudi": ("vllm",), "battlemage": ("vllm",)}
ALIKE = 9  # decimals to which factors of measured rows are one
MODELLED = Provenance("modelled", "operators at published peaks, as kind: roofline")

NO_FIT = "does not fit in GPU memory"
NO_PRECISION = "precision not on this GPU"
NO_FACTS = "peaks or links of the GPU are not known"

ReportProgress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """``evaluated`` counts all that were looked at, ``ruled_out`` those of them by reason that
    cannot be instances."""

    instances: tuple[Instance, ...]
    evaluated: int
    ruled_out: Counter[str]


def instances_of(
    shape: ModelShape,
    published: str,
    gpus: Sequence[GpuSpec],
    prices: Mapping[str, HourPrice],
    wanted_engines: Sequence[str],
    report: ReportProgress,
    times: Times | None = None,
) -> Built:
    """``published`` is the precision of the model's weights as released: there are instances in it
    and in fewer bits, where the GPU computes in those. What ``times`` rows say moves their
    speeds."""
    instances: list[Instance] = []
    ruled_out: Counter[str] = Counter()
    evaluated = 0
    for done, gpu in enumerate(gpus):
        report(done / len(gpus), f"Arrangements of {gpu.name}")
        runs = RUNS_ON.get(gpu.family, ENGINES)
        engines = tuple(engine for engine in wanted_engines if engine in runs)
        for weights in precisions(published):
            able = weights == published or bool(gpu.peak_flops.get(weights))
            for where in arrangements(shape, gpu, weights, KV_CACHE):
                evaluated += len(engines)
                if isinstance(where, str):
                    ruled_out[where] += len(engines)
                elif not able:
                    ruled_out[NO_PRECISION] += len(engines)
                elif not _fits(shape, gpu, where):
                    ruled_out[NO_FIT] += len(engines)
                else:
                    fitting = _instances(shape, gpu, where, engines, prices[gpu.name])
                    if isinstance(fitting, str):
                        ruled_out[fitting] += len(engines)
                    else:
                        instances += fitting
    if times is not None:
        instances = _as_measured(instances, shape, times)
    return Built(tuple(instances), evaluated, ruled_out)


def _as_measured(instances: Sequence[Instance], shape: ModelShape, times: Times) -> list[Instance]:
    """Each as measured rows say, alone and with prefill and decode apart: engines and modes of
    which they say different things become instances of their own."""
    each = [
        (instance, engine, apart)
        for instance in instances for engine in instance.engines
        for apart in ((False, True) if instance.link else (False,))
    ]  # fmt: skip
    factors = moves(
        [
            deployed(shape, instance.gpu, instance.where, engine, apart=apart)
            for instance, engine, apart in each
        ],
        times,
    )
    groups: dict[tuple[int, float, float], tuple[Instance, Move, dict[str, set[Mode]]]] = {}
    for (instance, engine, apart), move in zip(each, factors, strict=True):
        key = (id(instance), round(move.decode, ALIKE), round(move.prefill, ALIKE))
        _, _, modes = groups.setdefault(key, (instance, move, {}))
        modes.setdefault(engine, set()).add("disagg" if apart else "agg")
    return [
        _moved(instance, move, engines, mode)
        for instance, move, modes in groups.values()
        for mode, engines in _by_mode(instance, modes).items()
    ]


def _by_mode(instance: Instance, modes: Mapping[str, set[Mode]]) -> dict[Mode, tuple[str, ...]]:
    """Engines of a group by what their instances are for."""
    by_mode: dict[Mode, tuple[str, ...]] = {}
    for engine, among in modes.items():
        mode: Mode = "any" if len(among) == 2 or not instance.link else next(iter(among))
        by_mode[mode] = (*by_mode.get(mode, ()), engine)
    return by_mode


def _moved(instance: Instance, move: Move, engines: tuple[str, ...], mode: Mode) -> Instance:
    if move.nothing:
        return replace(instance, engines=engines, mode=mode)
    source = Provenance(MODELLED.kind, f"{MODELLED.source}; {move.words}")
    profile = adjusted(
        instance.profile,
        curve=move.curve(instance.profile.curve),
        start_s=move.prefill * instance.profile.start_s,
        provenance=source,
    )
    return replace(instance, engines=engines, mode=mode, profile=profile)


def precisions(published: str) -> tuple[str, ...]:
    """As released, and what weights can be brought to from there."""
    fewer = tuple(precision for precision in PRECISIONS if BYTES[precision] < BYTES[published])
    return (published, *fewer)


def _fits(shape: ModelShape, gpu: GpuSpec, where: Arrangement) -> bool:
    """Whether weights alone do: quick, and the memory model has the last word."""
    room = gpu.memory_bytes * MEMORY_SHARE - OVERHEAD_BYTES
    return gpu_weight_bytes(shape, where) < room


def _instances(
    shape: ModelShape,
    gpu: GpuSpec,
    where: Arrangement,
    engines: Sequence[str],
    price: HourPrice,
) -> list[Instance] | str:
    """One for each engine; or why there is none."""
    try:
        limits = room(
            shape,
            gpu,
            where,
            max_batch=MAX_BATCH * where.attention_dp,
            max_batch_tokens=MAX_BATCH_TOKENS * where.attention_dp,
        )
    except SimulationError:
        return NO_FIT
    overhead_s = estimate_fit().calibration.iteration_s
    try:
        graph = operator_graph(shape, where)
        curve = roofline_curve(graph, gpu, efficiencies(), overhead_s)
    except SimulationError:
        return NO_FACTS
    link = _link(shape, gpu, where)
    instances = []
    starts = starts_after(shape, gpu, where, engines)
    for engine, start_s in zip(engines, starts, strict=True):
        more = sequence_s(engine) / where.attention_dp
        slower = slower_by_sequence(curve, more) if more > 0 else curve
        profile = AdjustedProfile(
            model=shape.name, gpu=gpu.name, tp=where.gpus, provenance=MODELLED, kind="roofline",
            curve=slower, start_s=start_s, **limits,
        )  # fmt: skip
        instances.append(Instance(gpu, where, (engine,), profile, price.usd, link))
    return instances


def _link(shape: ModelShape, gpu: GpuSpec, where: Arrangement) -> KvLink | None:
    """As a scenario has it that says nothing of it: every GPU sends at its published rate."""
    if not gpu.network_bytes_s:
        return None
    size = kv_bytes_per_token(shape, where.kv_cache, typical_context(shape.max_context))
    return KvLink(size, gpu.network_bytes_s * where.gpus)
